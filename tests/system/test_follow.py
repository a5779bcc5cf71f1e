"""`consume --follow` as a separate process, during writes, archiving, checkpoints and the vacuum: every
record once, and a clean end."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import sys
import termios
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.intake.transactions import Transactional
from tests.support.process.processes import Command, until
from tests.support.schema.orders import order

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

GRACE_S = 3601.0
PIPE_BYTES = 65_536
"""What Linux lets a pipe hold at most by default; pages that are not full make it less."""
OVERRIDES: dict[str, Any] = {
    "log": {"append_backoff": "5ms", "checkpoint_entries": 4},
    "archive": {"snapshots_max": 1, "snapshots_age": "0s"},
}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d", overrides=OVERRIDES)


def lines(command: Command) -> list[Any]:
    return [json.loads(line) for line in list(command.out) if line.endswith("\n")]


def _has(command: Command, count: int) -> bool:
    return len(lines(command)) == count


def archive_and_clean(driver: Driver, *topics: str) -> None:
    """Archive, and delete all intake that is not needed any more, as hours of waiting would."""
    for topic in topics:
        driver.archive((topic, None))
    for _ in range(2):
        driver.clock.ahead_s += GRACE_S
        driver.application.maintenance.cleaning(driver.reported.append).run()
    driver.application.checkpointer.run_if_due()


def test_it_goes_on_after_any_event(deployment: Deployment, tmp_path: Path) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [order(1, lines=1)], 0)
        with Command(
            deployment, "consume", "--topic", "orders", "--follow", "--decode", scratch=tmp_path / "scratch"
        ) as command:
            until("the first record is there", lambda: len(lines(command)) == 1)
            for number in range(1, 7):
                driver.send("orders", [order(number + 1, lines=1)], number % 3)
                until(f"record {number} is there", partial(_has, command, number + 1), 60.0)
                archive_and_clean(driver, "orders")
            assert driver.application.intake_log.floor() > 10, "the log was trimmed meanwhile"
            command.signal(signal.SIGTERM)
            assert command.wait() == 130
        found = lines(command)
        assert [record["decoded"]["value"]["id"] for record in found] == [str(n) for n in range(1, 8)]
        assert [line for line in command.err if "Traceback" in line] == []
        assert all(line.endswith("\n") for line in command.out)


def test_what_it_was_about_to_read_is_archived_and_deleted(deployment: Deployment) -> None:
    """Its reader is slow, so it stands in the middle of a pass while the intake files of that pass go."""
    count, size = 40, 4000
    with Driver(deployment) as driver:
        for number in range(count):
            driver.send("clicks", [bytes([number]) * size for _ in range(3)], 0)
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "archiver",
                "consume",
                "--topic",
                "clicks",
                "--partition",
                "0",
                "--follow",
            ],
            env=deployment.environ(),
            cwd=deployment.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                first = process.stdout.readline()  # it writes, and is blocked as soon as the pipe is full
                before = {info.key for info in driver.application.objects.list("intake/")}
                archive_and_clean(driver, "clicks")
                assert len(before & {info.key for info in driver.application.objects.list("intake/")}) < 3
                read = [json.loads(first)] + [
                    json.loads(process.stdout.readline()) for _ in range(count * 3 - 1)
                ]
                driver.send("clicks", [b"and on"], 0)
                read.append(json.loads(process.stdout.readline()))
            finally:
                process.kill()
            assert process.stderr is not None
            assert "reading is retried" in process.stderr.read(), "it met a file that was gone"
    assert [record["offset"] for record in read] == list(range(count * 3 + 1))
    assert (read[0]["from"], read[-2]["from"]) == ("intake", "archive")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_does_not_read_holds_up_no_end(deployment: Deployment, number: signal.Signals) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"x" * 1000 for _ in range(300)], 0)
    with subprocess.Popen(
        [sys.executable, "-m", "archiver", "consume", "--topic", "clicks", "--follow"],
        env=deployment.environ(),
        cwd=deployment.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            descriptor = process.stdout.fileno()
            until("it is blocked", lambda: _unread(descriptor) > PIPE_BYTES // 2 and _asleep(process.pid))
            process.send_signal(number)
            assert process.wait(120) == 130
        finally:
            process.kill()


def _unread(descriptor: int) -> int:
    """Bytes that stand in the pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _asleep(pid: int) -> bool:
    """In a system call, and not about to leave it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_it_ends_when_its_reader_is_gone(deployment: Deployment) -> None:
    """Also while there is nothing to write."""
    with Driver(deployment) as driver:
        driver.send("clicks", [b"one"], 0)
    with subprocess.Popen(
        [sys.executable, "-m", "archiver", "consume", "--topic", "clicks", "--follow"],
        env=deployment.environ(),
        cwd=deployment.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["offset"] == 0
            process.stdout.close()
            assert process.wait(120) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_it_ends_with_its_topic(deployment: Deployment, tmp_path: Path) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"one"], 0)
        with Command(
            deployment, "consume", "--topic", "clicks", "--follow", scratch=tmp_path / "scratch"
        ) as command:
            until("it reads", lambda: command.out)
            driver.application.sequencer.delete_topic(driver.topic_id("clicks"))
            assert command.wait() == 3
    # The log or the stream notices it first, and the log names the id as well.
    assert re.search(r"topic clicks( \(id [0-9a-f]+\))? was deleted", "".join(command.err))


def test_from_the_end_it_prints_new_records_only(deployment: Deployment, tmp_path: Path) -> None:
    """Records of a transaction that was open at the start count as new when it is committed."""
    with Driver(deployment) as driver:
        driver.send("clicks", [b"old"], 0)
        driver.send("clicks", [b"old"], 1)
        producer = Transactional(driver.application, driver.clock, "slow")
        producer.send({("clicks", 0): [b"open"]})
        with Command(
            deployment,
            "consume",
            "--topic",
            "clicks",
            "--follow",
            "--from",
            "end",
            "--text",
            scratch=tmp_path / "scratch",
        ) as command:
            until("it has found the end", lambda: command.said("1 offset of topic clicks waits"))
            driver.send("clicks", [b"new"], 1)
            until("the new one is there", partial(_has, command, 1))
            producer.commit()
            until("the committed one is there", partial(_has, command, 2))
            command.signal(signal.SIGINT)
            assert command.wait() == 130
    assert [record["value"] for record in lines(command)] == ["new", "open"]


def test_from_the_last_records_it_goes_on(deployment: Deployment, tmp_path: Path) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"%d" % number for number in range(5)], 0)
        with Command(
            deployment,
            "consume",
            "--topic",
            "clicks",
            "--follow",
            "--from",
            "latest-2",
            "--text",
            scratch=tmp_path / "scratch",
        ) as command:
            until("the last are there", partial(_has, command, 2))
            driver.send("clicks", [b"new"], 1)
            until("the new one is there", partial(_has, command, 3))
            command.signal(signal.SIGTERM)
            assert command.wait() == 130
    assert [record["value"] for record in lines(command)] == ["3", "4", "new"]
