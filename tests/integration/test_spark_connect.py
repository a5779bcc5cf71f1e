"""Refinement and the deep audit through a real Spark Connect server, which is killed, hangs, and forgets its
sessions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_spark_cluster import (
    COMMAND_S,
    PAUSE,
    archive,
    archiving,
    check,
    deployment_on,
    paused,
)
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.log.etcd_server import free_port
from tests.support.process.processes import until
from tests.support.spark.spark_cluster import SparkProcess, connect_server

pytestmark = [
    pytest.mark.turns(6),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

INTERRUPTED_S = 180.0
"""Time limit for a command to end. It may have to leave the server after `answer_timeout` (60 s), and takes
longer on a busy machine."""
ABSENT: Any = {"answer_timeout": "2s"}
"""Where no server is there, it can answer no later either."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SparkProcess]:
    """For a test that leaves it dead, or with a task that never ends."""
    with connect_server(tmp_path / "server") as made:
        yield made


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """For all tests that leave it as they found it."""
    with connect_server(tmp_path_factory.mktemp("server")) as made:
        yield made


def deployment_at(root: Path, address: str, **spark: str) -> Deployment:
    """Settings as on a cluster; a server that is unavailable is given up after some seconds."""
    made = deployment_on(root, "local[2]")
    made.overrides["spark"] = {
        "remote": f"sc://{address}",
        "task_bytes": "1MiB",
        "answer_timeout": "30s",
    } | spark
    made.write(made.document())
    return made


def test_a_server_that_dies_in_the_middle_of_a_job_is_to_be_asked_again(
    server: SparkProcess, tmp_path: Path
) -> None:
    deployment = deployment_at(tmp_path / "d", server.address)
    with archiving(deployment, PAUSE) as running:
        until("a task is in the middle", lambda: paused(running, [server]), COMMAND_S)
        stored = {
            path: path.stat().st_mtime_ns for path in deployment.data.glob("archive/*/data/**/*.parquet")
        }
        server.kill()
    done = running.result()
    assert done.code == 2, done.out + done.err
    assert "the refinement job failed, the next run repeats it" in done.out + done.err
    assert "Traceback" not in done.err
    document = deployment.document()
    deployment.write(document | {"spark": document["spark"] | ABSENT})
    away = archive(deployment)
    deployment.write(document)
    assert away.code == 2, away.out + away.err
    assert f"the Spark Connect server sc://{server.address} cannot be reached" in away.out + away.err
    with connect_server(tmp_path / "again", port=int(server.address.rpartition(":")[2])):
        check(deployment, archive(deployment))
        assert stored and all(path.stat().st_mtime_ns == time for path, time in stored.items()), (
            "what was stored stays as it is"
        )
        audited = deployment.run("audit", "--deep", "--output", "json", timeout_s=COMMAND_S)
    assert audited.code == 0, audited.err
    assert {one["proof"] for one in audited.json()["partitions"] if one["rows"]} == {"rows"}


def test_a_server_that_hangs_in_the_middle_of_a_job_is_left(server: SparkProcess, tmp_path: Path) -> None:
    deployment = deployment_at(tmp_path / "d", server.address, job_timeout="60s")
    with archiving(deployment, PAUSE) as running:
        until("a task is in the middle", lambda: paused(running, [server]), COMMAND_S)
        os.kill(server.pid, signal.SIGSTOP)
    done = running.result()
    assert done.code == 2, done.out + done.err
    assert "the refinement job was cancelled after 60 s" in done.out + done.err


def test_the_first_interrupt_in_the_middle_of_a_job_ends_the_command(
    server: SparkProcess, tmp_path: Path
) -> None:
    """The task itself sleeps, so that the job does not end by itself."""
    # The limits of a user: a busy machine may not answer within the 30 s of the other tests.
    deployment = deployment_at(tmp_path / "d", server.address, answer_timeout="60s")
    command = [sys.executable, "-m", "archiver", "archive", "--all"]
    with subprocess.Popen(
        command,
        cwd=deployment.root,
        env=deployment.environ(PAUSE),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as archiving:
        try:
            until(
                "a task is in the middle", lambda: server.paused() or archiving.poll() is not None, COMMAND_S
            )
            archiving.send_signal(signal.SIGINT)
            reported, _ = archiving.communicate(timeout=INTERRUPTED_S)
        finally:
            archiving.kill()
    assert archiving.returncode == 130, reported
    assert "interrupted; nothing is lost" in reported


SESSIONS = """
import os, sys
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

settings = SparkSettings(remote=f"sc://{sys.argv[1]}", conf={"spark.sql.session.timeZone": "UTC"})
sessions = SparkSessions(settings, os.environ)
first = sessions.session()
print(first.range(3).count(), sessions.cores(), sessions.session() is first, flush=True)
first.client.release_session()
again = sessions.session()
print(again is not first, again.range(4).count(), flush=True)
"""


def test_a_session_that_the_server_has_ended_is_begun_again(lasting_server: SparkProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, lasting_server.address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["3", "2", "True", "True", "4"]), done.stderr[-3000:]


LEFT = """
import faulthandler, gc, os, sys
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Results

faulthandler.dump_traceback_later(60, exit=True)
sessions = SparkSessions(SparkSettings(remote=f"sc://{sys.argv[1]}"), os.environ)
first = sessions.session()
print(first.range(3).count(), flush=True)
first.itself = first  # as a session that an error's traceback holds: only the garbage collector finds it
sessions._forget()
print(sessions.session().range(4).count(), flush=True)
with Results._get_or_create_release_thread_pool()._shutdown_lock:  # as while a result is released
    del first
    print(gc.collect() > 0, flush=True)
print(sessions.session().range(5).count(), flush=True)
"""


def test_a_session_that_was_left_may_be_collected_at_any_time(lasting_server: SparkProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT, lasting_server.address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["3", "4", "True", "5"]), done.stderr[-3000:]


ROUNDS = """
import os, signal, sys, time
from pathlib import Path
from archiver.app.application import Application
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RetryLater
from archiver.config.settings import SparkSettings, load_settings
from archiver.spark.session import SparkSessions, parallelism
from intake.records import Record
from pyspark.errors import PySparkException

server, application = int(sys.argv[1]), Application(load_settings(Path(sys.argv[2]), {}), {}, SystemClock())
sessions = application.archiving._sessions
patient = SparkSessions(SparkSettings(remote=application.settings.spark.remote), {})
patient.cores()  # A server takes its time for its first plan.
patient.close()

def archived():
    report = application.archiving.round(lambda line: None).run(everything=True)
    return {name: topic.state for name, topic in report.topics.items()}["clicks"]

def frozen(work):
    os.kill(server, signal.SIGSTOP)
    began = time.monotonic()
    try:
        found = work()
    except (PySparkException, RetryLater) as error:
        found = type(error).__name__ if "cannot be reached" not in str(error) else "away"
    finally:
        took = time.monotonic() - began
        os.kill(server, signal.SIGCONT)
    print(found, "in time" if took < 120 else took, sep=", ", flush=True)

print(archived(), flush=True)
with application.intake.writer() as writer:
    writer.send("clicks", Record(None, b"late")).result(30)
frozen(archived)
print(archived(), flush=True)
session = sessions.session()
frozen(lambda: parallelism(session))
print(sessions.cores(), flush=True)
frozen(application.close)
print(sessions.cores(), flush=True)
os.kill(server, signal.SIGSTOP)  # the end of the process, with a session that nobody has closed
"""


def test_a_server_that_freezes_between_two_rounds_is_left(
    lasting_server: SparkProcess, tmp_path: Path
) -> None:
    server = lasting_server
    deployment = deployment_at(tmp_path / "d", server.address, answer_timeout="25s")
    try:
        done = subprocess.run(
            [sys.executable, "-c", ROUNDS, str(server.pid), deployment.config],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        os.kill(server.pid, signal.SIGCONT)
    reported = [
        "archived",
        "away, in time",
        "archived",
        "SparkConnectGrpcException, in time",
        "2",
        "None, in time",
        "2",
    ]
    assert (done.returncode, done.stdout.splitlines()) == (0, reported), done.stderr[-3000:]


def test_a_server_that_was_never_there(tmp_path: Path) -> None:
    deployment = deployment_at(tmp_path / "d", f"127.0.0.1:{free_port()}", **ABSENT)
    done = archive(deployment)
    assert done.code == 2, done.out + done.err
    assert "cannot be reached" in done.out + done.err
