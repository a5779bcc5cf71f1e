"""A real daemon that is asked to stop: what was acknowledged is there, what was not is not claimed, and it is
in time."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pyarrow as pa
import pytest

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment, text
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

SLACK_S = 20.0
"""For a loaded machine; what is stopped in time takes a second or two."""
BEYOND_S = 20.0
"""For a loaded machine, beyond a shutdown time that is used up."""
SENDERS = 4


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.write(quick(made.document()))
    return made


class Sender(threading.Thread):
    """Sends records one request after the other until they are refused; remembers what was acknowledged."""

    def __init__(self, daemon: Served, number: int) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._number = number
        self.acknowledged: dict[tuple[int, int], str] = {}
        self.refused: list[int] = []

    def run(self) -> None:
        count = 0
        while True:
            values = [text(f"{self._number}-{count + index}".encode()) for index in range(10)]
            count += len(values)
            try:
                answer = self._daemon.post(
                    "/v1/topics/kept/records",
                    "".join(json.dumps({"value": value}) + "\n" for value in values).encode(),
                )
            except OSError:
                return
            if answer.status not in (200, 429, 503):
                raise AssertionError(answer)
            if answer.status != 200:
                self.refused.append(answer.status)
                SystemClock().sleep(0.01)
                continue
            for value, reported in zip(values, answer.lines(), strict=True):
                if reported["offset"] is not None:
                    assert value is not None
                    self.acknowledged[reported["partition"], reported["offset"]] = value


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_nothing_acknowledged_is_lost(number: Signals, deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        senders = [Sender(daemon, number) for number in range(SENDERS)]
        for sender in senders:
            sender.start()
        until("records come in", lambda: all(len(sender.acknowledged) >= 100 for sender in senders))
        assert daemon.stop(number) == 0
        for sender in senders:
            sender.join(60)
            assert not sender.is_alive()
        assert [line["message"] for line in daemon.logged()][-1] == "stopped"
    reported = {place: value for sender in senders for place, value in sender.acknowledged.items()}
    assert len(reported) == sum(len(sender.acknowledged) for sender in senders), "no offset was given twice"
    stored = {
        (record["partition"], record["offset"]): record["value"] for record in deployment.consume("kept")
    }
    assert reported.items() <= stored.items()


def test_a_daemon_without_work_imports_neither_pandas_nor_spark(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        until("two cycles of archiving have ended", lambda: daemon.cycles("tick", "fine") >= 2)
        assert daemon.stop() == 0
        imported = {line.rpartition("|")[2].strip() for line in daemon.command.err if "import time:" in line}
    assert {"archiver.app.archiving", "pyarrow.lib"} <= imported
    assert not {"pandas.core.frame", "pyspark"} & imported


def test_a_second_signal_ends_it_at_once(deployment: Deployment, tmp_path: Path) -> None:
    document = deployment.document()
    # The place of the data folder hangs: opening the pipe blocks until the other end is open.
    document["data"] = {"uri": "hanging"}
    deployment.write(quick(document))
    (deployment.root / "hanging").mkdir()
    os.mkfifo(deployment.root / "hanging" / "cluster.json")
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        assert daemon.get("/healthz").status == 200
        daemon.signal(SIGTERM)
        until("it has begun to stop", lambda: daemon.logged("stopping within"))
        began_s = SystemClock().monotonic_s()
        daemon.signal(SIGTERM)
        assert daemon.command.wait() == 128 + SIGTERM
        assert SystemClock().monotonic_s() - began_s < SLACK_S


def test_what_hangs_does_not_outlast_the_grace(deployment: Deployment, tmp_path: Path) -> None:
    document = deployment.document()
    document["data"] = {"uri": "hanging"}
    deployment.write(quick(document, shutdown_grace="2s"))
    (deployment.root / "hanging").mkdir()
    os.mkfifo(deployment.root / "hanging" / "cluster.json")
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        assert daemon.get("/healthz").status == 200
        began_s = SystemClock().monotonic_s()
        assert daemon.stop() == 0
        assert SystemClock().monotonic_s() - began_s < 2 + BEYOND_S


def half_sent(daemon: Served, head: str) -> socket.socket:
    """A request whose body does not come to an end."""
    connection = socket.create_connection(daemon.address, timeout=60)
    connection.sendall(
        f"POST {head}\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode() + b'{"value": '
    )
    return connection


def test_neither_requests_nor_work_that_hangs_outlast_the_grace(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.write(quick(deployment.document(), shutdown_grace="8s"))
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        kind = "application/x-ndjson"
        with closing(sqlite3.connect(deployment.root / "metadata.db", isolation_level=None)) as held:
            held.execute("BEGIN IMMEDIATE")  # the writer cannot append what it has received
            with half_sent(daemon, f"/v1/topics/kept/records HTTP/1.1\r\nContent-Type: {kind}") as slow:
                waiting = threading.Thread(
                    target=daemon.post, args=("/v1/topics/kept/records", b'{"value": null}\n'), daemon=True
                )
                waiting.start()
                SystemClock().sleep(1.0)
                began_s = SystemClock().monotonic_s()
                assert daemon.stop() == 0
                assert SystemClock().monotonic_s() - began_s < 8 + BEYOND_S
                answer = b"".join(iter(partial(slow.recv, 65536), b""))
            waiting.join(60)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 "), answer
        error = json.loads(body)["error"]
        assert (error["type"], error["message"]) == (
            "RetryLater",
            "the daemon stops, and the body has not arrived; nothing was sent",
        )
        assert daemon.logged("stopped, with work left to the next leader")
        assert all(line["level"] for line in daemon.logged()), "no traceback"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.turns(2)
@pytest.mark.parametrize("grace", ["1s", "100s"], ids=["cut off", "ended"])
def test_a_round_under_way_is_ended_or_left_to_the_next_leader(
    grace: str, deployment: Deployment, tmp_path: Path
) -> None:
    document = quick(deployment.document(), shutdown_grace=grace)
    document["archive"] |= {"max_bytes": "64KiB"}
    deployment.write(document)
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        writer.send_batch("clicks", pa.table({"value": [b"v" * 500] * 40_000}))
    with Served(deployment, scratch=tmp_path / "one") as daemon:
        daemon.until_ready()
        until("a job runs", lambda: any("pyspark.worker" in line for line in daemon.descendants()))
        assert daemon.stop() == 0
        ended = bool(daemon.logged("archived in"))
        assert ended == (grace == "100s"), daemon.log_text()
    with Driver(deployment) as driver:
        driver.archive()
        driver.check_complete("clicks")


def test_a_daemon_that_still_waits_stops_at_once(deployment: Deployment, tmp_path: Path) -> None:
    document = deployment.document()
    document["metadata"] = {"sqlite": {"path": "absent/metadata.db"}}
    deployment.write(quick(document))
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        until("it waits", lambda: daemon.logged("waiting for metadata"))
        assert daemon.get("/readyz").status == 503
        assert daemon.stop() == 0
        assert not (deployment.root / "absent").exists()
