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
from signal import SIGKILL, SIGSTOP

import pyarrow as pa
import pytest

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import descendants, until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.turns(2),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

RECORDS = 40_000
VALUE = b"v" * 500
FILES_MORE_MAX = 12
"""File descriptors that a daemon may have more after it has lost Spark a second time: connections of threads
that come and go."""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """With a backlog that takes some seconds: many small archives."""
    made = Deployment(tmp_path / "d")
    document = quick(made.document())
    document["archive"] |= {"max_bytes": "8KiB"}
    document["intake"] = {"delay_max": "20ms", "delay_max_bytes": "64KiB"}
    made.write(document)
    fill(made, 0)
    return made


def fill(deployment: Deployment, begin: int) -> None:
    table = pa.table({"value": [VALUE + str(number).encode() for number in range(begin, begin + RECORDS)]})
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        writer.send_batch("clicks", table)


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


def archives(deployment: Deployment) -> int:
    return sum(path.suffix == ".parquet" for path in deployment.data.glob("archive/**/*"))


def makes_archives(deployment: Deployment, made: int) -> bool:
    return archives(deployment) > made


def in_the_middle(
    daemon: Served, deployment: Deployment, made: int, victim: Callable[[Served], list[int]]
) -> list[int]:
    """The processes to kill. A worker that has lost its JVM may still bring an archive: then there is no
    process to kill yet."""
    return victim(daemon) if makes_archives(deployment, made) else []


def failed(daemon: Served, times: int) -> bool:
    return daemon.cycles("tick", "untold") >= times


def kill_until_failed(daemon: Served, times: int, at_work: Callable[[], list[int]]) -> bool:
    """Whether so many rounds have failed; kills the processes if not. Once is not enough: Spark replaces a worker
    that was between two tasks."""
    if failed(daemon, times):
        return True
    for pid in at_work():
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)
    return False


@pytest.mark.parametrize("victim", [jvm, workers], ids=["the JVM", "the Python workers"])
def test_spark_is_killed_in_the_middle_of_a_job(
    victim: Callable[[Served], list[int]], deployment: Deployment, tmp_path: Path
) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        for time in (1, 2):
            at_work = partial(in_the_middle, daemon, deployment, archives(deployment), victim)
            until("a job is in the middle", at_work)
            until("the round has failed", partial(kill_until_failed, daemon, time, at_work))
            daemon.until_logged("the refinement job failed")
            daemon.until_archived("clicks", time * RECORDS)
            if time == 1:
                before = files(daemon)  # with Spark at work, as in the end
                fill(deployment, RECORDS)
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


def test_the_jvm_hangs_in_the_middle_of_a_job(deployment: Deployment, tmp_path: Path) -> None:
    document = quick(deployment.document(), silence_max="5s")
    document["archive"] |= {"max_bytes": "8KiB"}
    document["spark"] = {**document.get("spark", {}), "answer_timeout": "10s"}
    deployment.write(document)
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        until("a job is in the middle", partial(makes_archives, deployment, 0))
        hanging = jvm(daemon)
        for pid in hanging:
            os.kill(pid, SIGSTOP)
        until("the watch reports it", lambda: check(daemon, "spark") is False)
        until("the round is reported as stuck", lambda: check(daemon, "tick") is False)
        until("the round has failed", partial(failed, daemon, 1))
        daemon.until_logged("gave no sign of life for 10 s")
        # Its connections are closed, and the round has failed, before the last of its threads has ended.
        until("the JVM is gone", lambda: not alive_pids(hanging))
        daemon.until_archived("clicks", RECORDS)
        until("everything answers again", daemon.ready)
        assert zombies(daemon) == []
        assert daemon.stop() == 0
        assert not foreign_lines(daemon)


def alive_pids(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_jvm_that_is_killed_while_it_starts_is_started_again(
    deployment: Deployment, tmp_path: Path
) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        pids = until("the JVM starts", lambda: jvm(daemon))
        for pid in pids:
            os.kill(pid, SIGKILL)
        until("the round has failed", partial(failed, daemon, 1))
        daemon.until_logged("was ended by SIGKILL while it started")
        assert not daemon.logged("check the settings under spark")
        daemon.until_archived("clicks", RECORDS)
        assert daemon.stop() == 0
