"""A real daemon whose JVM or Python workers are killed in the middle of a job, or whose JVM hangs: the next
rounds archive everything, and nothing is left of what died.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pyarrow as pa
import pytest

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import descendants, until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.turns(4),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

RECORDS, ARCHIVES = 16_000, 250
"""Of one backlog."""
VALUE = b"v" * 500
FILES_MORE_MAX = 12
"""File descriptors that a daemon may have more after it has lost Spark a second time: connections of threads
that come and go."""


class Backlog:
    """Records in intake that take some seconds to archive: many small archives."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.records = 0
        self.archives_before = 0
        """Archives that there were when the last records were added."""

    def add(self) -> None:
        numbers = range(self.records, self.records + RECORDS)
        table = pa.table({"value": [VALUE + str(number).encode() for number in numbers]})
        self.archives_before = self._archives()
        with Driver(self._deployment) as driver, driver.application.intake.writer() as writer:
            writer.send_batch("clicks", table)
        self.records += RECORDS

    def has_begun(self) -> bool:
        """Whether a job has made an archive of the last records."""
        return self._archives() > self.archives_before

    def is_made(self) -> bool:
        """Whether every archive of the last records is there, so that a job may have ended."""
        return self._archives() >= self.archives_before + ARCHIVES

    def _archives(self) -> int:
        return sum(path.suffix == ".parquet" for path in self._deployment.data.glob("archive/**/*"))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    document = quick(made.document())
    document["archive"] |= {"max_bytes": "32KiB"}
    document["intake"] = {"delay_max": "20ms", "delay_max_bytes": "64KiB"}
    made.write(document)
    return made


@pytest.fixture
def backlog(deployment: Deployment) -> Backlog:
    made = Backlog(deployment)
    made.add()
    return made


def workers(daemon: Served) -> list[int]:
    """Python workers: the children of their parent, which the JVM has started."""
    found = [(process[0], line) for process, line in descendants(daemon.pid) if "pyspark.worker" in line]
    daemon.descendants()
    return [pid for pid, _ in found][1:]


def jvm(daemon: Served) -> list[int]:
    return [process[0] for process, line in descendants(daemon.pid) if "SparkSubmit" in line]


def files(daemon: Served) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def zombies(daemon: Served) -> list[str]:
    return [line for process, line in descendants(daemon.pid) if state(process[0]) == ["Z", str(daemon.pid)]]


def state(pid: int) -> list[str]:
    """Of a process, and its parent; nothing of one that has ended by then."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2:4]
    except (FileNotFoundError, ProcessLookupError):
        return []


def failed(daemon: Served, times: int) -> bool:
    return daemon.cycles("tick", "untold") >= times


class Killer:
    """Kills processes of Spark in the middle of jobs, until so many rounds have failed."""

    def __init__(
        self, daemon: Served, backlog: Backlog, victim: Callable[[Served], list[int]], rounds: int
    ) -> None:
        self._daemon = daemon
        self._backlog = backlog
        self._victim = victim
        self._rounds = rounds
        self._fine = daemon.cycles("tick", "fine")

    def has_failed_a_round(self) -> bool:
        """Whether so many rounds have failed; kills if not. Once is not enough: Spark replaces a worker that was
        between two tasks, and a job may end before its JVM is killed."""
        if failed(self._daemon, self._rounds):
            return True
        if self._backlog.has_begun():
            for pid in self._victim(self._daemon):
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
        # The second round that ended well since then has seen all records: there is no job to kill.
        if (fine := self._daemon.cycles("tick", "fine")) > self._fine + 1:
            self._backlog.add()
            self._fine = fine
        return False


@pytest.mark.parametrize("victim", [jvm, workers], ids=["the JVM", "the Python workers"])
def test_spark_is_killed_in_the_middle_of_a_job(
    victim: Callable[[Served], list[int]], deployment: Deployment, backlog: Backlog, tmp_path: Path
) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        for time in (1, 2):
            killer = Killer(daemon, backlog, victim, time)
            until("the round has failed", killer.has_failed_a_round)
            daemon.until_logged("the refinement job failed")
            daemon.until_archived("clicks", backlog.records)
            if time == 1:
                before = files(daemon)  # with Spark at work, as in the end
                backlog.add()
        assert zombies(daemon) == []
        assert files(daemon) <= before + FILES_MORE_MAX
        assert {line["level"] for line in daemon.logged("tick:")} <= {"info", "warning"}, daemon.log_text()
        assert daemon.stop() == 0
        assert not foreign_lines(daemon), "every line is in the log"


def foreign_lines(daemon: Served) -> list[str]:
    """What stands on standard error outside of the JSON log."""
    return [line["message"] for line in daemon.logged() if not line["level"]]


def check(daemon: Served, name: str) -> bool | None:
    """What /readyz says of a dependency; None if it is not asked."""
    found = [one["ok"] for one in daemon.get("/readyz").json()["checks"] if one["name"] == name]
    return found[0] if found else None


def stopped_in_a_job(daemon: Served, backlog: Backlog) -> list[int]:
    """The JVM, which is stopped while a job runs. The job may end before it is stopped; then it gets another one."""
    for _ in range(10):
        until("a job is in the middle", backlog.has_begun)
        hanging = jvm(daemon)
        for pid in hanging:
            os.kill(pid, SIGSTOP)
        if hanging and not backlog.is_made():
            return hanging
        for pid in hanging:
            os.kill(pid, SIGCONT)
        daemon.until_archived("clicks", backlog.records)
        backlog.add()
    raise AssertionError("every job ended too early")


def test_the_jvm_hangs_in_the_middle_of_a_job(
    deployment: Deployment, backlog: Backlog, tmp_path: Path
) -> None:
    document = quick(deployment.document(), silence_max="5s")
    document["archive"] |= {"max_bytes": "32KiB"}
    document["spark"] = {**document.get("spark", {}), "answer_timeout": "10s"}
    deployment.write(document)
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        hanging = stopped_in_a_job(daemon, backlog)
        until("the watch reports it", lambda: check(daemon, "spark") is False)
        until("the round is reported as stuck", lambda: check(daemon, "tick") is False)
        until("the round has failed", partial(failed, daemon, 1))
        daemon.until_logged("gave no sign of life for 10 s")
        # Its connections are closed, and the round has failed, before the last of its threads has ended.
        until("the JVM is gone", lambda: not alive_pids(hanging))
        daemon.until_archived("clicks", backlog.records)
        until("everything answers again", daemon.ready)
        assert zombies(daemon) == []
        assert daemon.stop() == 0
        assert not foreign_lines(daemon)


def alive_pids(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_jvm_that_is_killed_while_it_starts_is_started_again(
    deployment: Deployment, backlog: Backlog, tmp_path: Path
) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        pids = until("the JVM starts", lambda: jvm(daemon))
        for pid in pids:
            os.kill(pid, SIGKILL)
        until("the round has failed", partial(failed, daemon, 1))
        daemon.until_logged("was ended by SIGKILL while it started")
        assert not daemon.logged("check the settings under spark")
        daemon.until_archived("clicks", backlog.records)
        assert daemon.stop() == 0
