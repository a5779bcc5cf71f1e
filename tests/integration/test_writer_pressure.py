"""A slow store slows its producers down, the writer's memory stays bounded, and the metrics say so."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from archiver import Writer
from archiver.runtime.errors import RetryLater
from archiver.runtime.logging import METRICS
from intake.records import Record
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault

MIB = 1 << 20


def program(folder: Path, megabytes: int, queue_bytes: int) -> dict[str, Any]:
    """Run it; returns what it printed."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.support.intake.slow_store_memory",
        str(folder),
        str(megabytes),
        str(queue_bytes),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_two_gigabytes_through_a_slow_store_stay_within_the_bound(tmp_path: Path) -> None:
    bound = 64_000_000
    found = program(tmp_path / "bounded", 2000, bound)
    # The queue, and a flush of 15 MB once as sorted columns and twice as a file; the rest is the allocator's.
    assert found["grown_mib"] * MIB < bound + 100 * MIB, found
    assert found["records_ok"] == found["records_accepted"] > 1_000_000
    assert found["bytes_accepted"] > 2_000_000_000
    assert found["producer_waits"] > 10
    assert found["producer_wait_seconds"] > 1
    assert found["queue_bytes"] == 0
    unbounded = program(tmp_path / "unbounded", 600, 4_000_000_000)
    assert unbounded["grown_mib"] > found["grown_mib"] + 100, (
        "without the bound most of it is held: the measurement shows it"
    )
    assert unbounded["producer_waits"] == 0


def test_a_sender_waits_at_a_full_queue_and_is_counted(tmp_path: Path) -> None:
    rig = IntakeRig(tmp_path)
    rig.topic("t", 1)
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    with rig.writer(
        queue_bytes_max=10_000, delay_max_bytes=5_000, record_bytes_max=5_000, close_timeout=3
    ) as writer:
        for _ in range(4):
            writer.send("t", Record(None, b"x" * 2000))
        full = writer.metrics()
        assert (full.records_accepted, full.bytes_accepted, full.queue_bytes_max) == (4, 8_000, 10_000)
        assert 8_000 < full.queue_bytes <= 10_000
        assert (full.producer_waits, full.producer_wait_seconds) == (0, 0)
        with pytest.raises(RetryLater, match="the intake queue is full"):
            writer.send("t", Record(None, b"x" * 2000))
        waited = writer.metrics()
        assert waited.producer_waits == 1
        assert waited.producer_wait_seconds >= 3
        threading.Timer(0.05, release.set).start()
        writer.send("t", Record(None, b"y" * 2000)).result(WAIT_S)
        done = writer.metrics()
        assert done.producer_waits == 2
        assert done.records_ok == done.records_accepted == 5
    rig.close()


def test_outcomes_are_counted(tmp_path: Path) -> None:
    rig = IntakeRig(tmp_path)
    rig.topic("t", 1)
    with rig.writer() as writer:
        assert writer.send("t", Record(None, b"ok")).result(WAIT_S).outcome == "ok"
        rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
        assert writer.send("t", Record(None, b"failed")).result(WAIT_S).outcome == "failed"
        rig.log.script(*[AppendFault.DROPPED] * 3)
        assert writer.send("t", Record(None, b"unknown")).result(WAIT_S).outcome == "unknown"
        numbers = writer.metrics()
    assert (numbers.records_ok, numbers.records_failed, numbers.records_unknown, numbers.flushes) == (
        1,
        1,
        1,
        3,
    )
    assert 0 < numbers.upload_seconds < WAIT_S
    assert 0 < numbers.append_seconds < WAIT_S
    rig.close()


def test_a_program_sees_them_by_their_public_names(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Writer(deployment.config) as writer:
        writer.send("kept", b"v" * 100).result(WAIT_S)
        numbers = writer.metrics()
    assert set(numbers) <= set(METRICS)
    assert numbers["archiver_intake_records_ok_total"] == 1
    assert numbers["archiver_intake_bytes_accepted_total"] == 100
    assert numbers["archiver_intake_queue_bytes_max"] == 64_000_000
