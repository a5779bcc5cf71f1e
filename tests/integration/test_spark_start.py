"""A Spark session that cannot start states the reason each time, also after its JVM died between two tries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway

from archiver.spark.session import _Start
from tests.support.builders.deployment import Deployment
from tests.support.process.terminal import Terminal

PROGRAM = """
import os, psutil
from archiver.runtime.errors import Halt
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

sessions = SparkSessions(SparkSettings(master="local[1]", driver_memory="200m"), os.environ)
for _ in range(3):
    try:
        sessions.session()
    except Halt as error:
        print("INVALID_DRIVER_MEMORY" in str(error), flush=True)
    machines = [process for process in psutil.Process().children(recursive=True) if process.name() == "java"]
    for process in machines:
        process.kill()
    psutil.wait_procs(machines, 20)
    print(len(machines), flush=True)
"""


@pytest.mark.spark
@pytest.mark.turns(2)
def test_a_start_that_fails_again_after_the_jvm_died_says_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["True", "1"] * 3, done.stdout


def _run(program: str, scratch: Path, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    """Run the program, which makes its temporary files in `scratch`."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


UNNOTICED = """
import os
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions, _process

settings = SparkSettings(master="local[1]", driver_memory="600m")
first = SparkSessions(settings, os.environ)
first.session()
machine = _process()
SparkSessions(settings, os.environ).abandon()
print(first.session().range(2).count(), machine.poll(), flush=True)
machine.kill()
machine.wait(20)
print(SparkSessions(settings, os.environ).session().range(3).count(), flush=True)
"""


@pytest.mark.spark
@pytest.mark.turns(2)
def test_who_started_no_jvm_ends_none_and_starts_one_where_another_has_lost_it(tmp_path: Path) -> None:
    done = _run(UNNOTICED, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["2", "None", "3"]), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("seconds", "timeout_s", "code"), [("60", 0.2, -9), ("0", 60.0, None)], ids=["too long", "in time"]
)
def test_a_start_has_an_end(seconds: str, timeout_s: float, code: int | None) -> None:
    gateways: Any = java_gateway
    before, start = gateways.Popen, _Start(timeout_s)
    with start:
        process = gateways.Popen(["sleep", seconds])
        process.wait(60)
    assert start.killed() == code
    assert gateways.Popen is before


INTERRUPTED = """
import os
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

session = SparkSessions(SparkSettings(master="local[1]", driver_memory="600m"), os.environ).session()
print(session.range(3).count(), len(os.listdir(os.environ["TMPDIR"])) > 0, flush=True)
raise KeyboardInterrupt
"""


@pytest.mark.spark
@pytest.mark.turns(2)
def test_ctrl_c_leaves_no_scratch_folder(tmp_path: Path) -> None:
    done = _run(INTERRUPTED, tmp_path)
    assert done.stdout.split() == ["3", "True"], done.stderr[-2000:]
    assert list(tmp_path.glob("archiver-spark-*")) == []


MET = """
import os, psutil, signal, threading, time
from pyspark import SparkContext, java_gateway
from archiver.spark import session as spark_session
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

def interrupt():
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

def met(owner, name):
    call, left = getattr(owner, name), [interrupt]
    def meeting(*arguments, **options):
        if left:
            threading.Thread(target=left.pop()).start()
        return call(*arguments, **options)
    setattr(owner, name, meeting)

sessions = SparkSessions(SparkSettings(master="local[1]", driver_memory="600m"), os.environ)
for owner, name in ((spark_session, "launch_gateway"), (java_gateway, "Popen"), (SparkContext, "_initialize_context")):
    met(owner, name)
    try:
        sessions.session()
        print("it came too late", flush=True)
    except KeyboardInterrupt:
        machines = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
        print("interrupted", len(psutil.wait_procs(machines, 20)[1]), flush=True)
print(sessions.session().range(3).count(), flush=True)
"""


@pytest.mark.spark
@pytest.mark.turns(2)
def test_ctrl_c_ends_a_start_wherever_it_meets_it(tmp_path: Path) -> None:
    """This includes the middle of a call to the JVM, which py4j turns into an error; the next start is
    normal."""
    done = _run(MET, tmp_path, 170)
    assert done.stdout.split() == ["interrupted", "0"] * 3 + ["3"], done.stderr[-2000:]
    assert list(tmp_path.glob("archiver-spark-*")) == []


STOPPED = """
import os, signal
from pyspark import SparkContext
from archiver.runtime.errors import RetryLater
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions, _process

sessions = SparkSessions(SparkSettings(master="local[1]", driver_memory="600m"), os.environ)
initialize = SparkContext._initialize_context

def ended_by(end):
    def ending(*arguments, **options):
        end()
        _process().wait(20)
        return initialize(*arguments, **options)
    SparkContext._initialize_context = ending
    try:
        sessions.session()
    except RetryLater as error:
        print(str(error).partition(" its last words")[0], flush=True)

ended_by(lambda: _process().send_signal(signal.SIGTERM))
ended_by(sessions.abandon)
ended_by(lambda: _process().kill())
"""


@pytest.mark.spark
@pytest.mark.turns(2)
def test_a_start_that_was_stopped_is_not_called_a_lack_of_memory(tmp_path: Path) -> None:
    done = _run(STOPPED, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "spark was stopped by SIGTERM while it started; the next run starts it again.",
        "spark was stopped while it started, because this process stops or no longer needs it",
        (
            "the JVM of spark was ended by SIGKILL while it started; the next run starts it again. is "
            "there enough memory?"
        ),
    ]


@pytest.mark.spark
@pytest.mark.turns(2)
def test_a_command_says_that_it_waits_for_spark(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"spark": {"master": "local[1]", "driver_memory": "600m"}}
    )
    deployment.produce([{"topic": "files", "value": None}])
    done = deployment.run("archive", "--all", "--output", "json")
    assert (done.code, done.json()["rounds"]) == (0, 1), done.err
    began, ready, *others = done.err.splitlines()
    assert began == "starting Spark (JVM)..."
    assert re.fullmatch(r"Spark is ready after \d+ s", ready)
    assert not any("Spark" in line for line in others)
    again = deployment.run("archive", "--all", "--output", "json")
    assert (again.json()["rounds"], again.err) == (0, ""), "there is nothing to refine"


@pytest.mark.spark
def test_on_a_terminal_the_error_replaces_the_line_about_the_wait(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"spark": {"master": "local[1]", "driver_memory": "200m"}}
    )
    deployment.produce([{"topic": "files", "value": None}])
    with Terminal(deployment, "archive", "--all") as terminal:
        assert terminal.wait() == 1
    assert terminal.written.startswith("\rstarting Spark (JVM)...\x1b[K")
    assert "\r\x1b[Kerror: spark does not start with master" in terminal.written
