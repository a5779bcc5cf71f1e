"""A standalone cluster that runs a second copy of a slow task, or releases its executors between two rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_spark_cluster import (
    COMMAND_S,
    PAUSE,
    archives,
    archiving,
    check,
    copied,
    deployment_on,
    have,
    made_here,
    paused,
    resumed,
)
from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.spark.spark_cluster import Cluster

pytestmark = [
    pytest.mark.turns(6, 3),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

EAGER = {"interval": "100ms", "multiplier": "1.0", "quantile": "0.1", "minTaskRuntime": "100ms"}
DYNAMIC = {
    "enabled": "true",
    "minExecutors": "0",
    "maxExecutors": "2",
    "executorIdleTimeout": "1s",
    "schedulerBacklogTimeout": "1s",
    "shuffleTracking.enabled": "true",
    "shuffleTracking.timeout": "1s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("elastic")) as made:
        have(made, 2)
        yield made


def reported(folder: Path) -> dict[str, str]:
    """Spark properties that make the driver write its event log."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
    }


def tasks(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The tasks of refinement, the last stage of the only job, from the driver's event log."""
    lines = [
        line
        for path in sorted(folder.rglob("events_*"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    found = [event for event in map(json.loads, lines) if event["Event"] == f"SparkListener{kind}"]
    last = max(event["Stage ID"] for event in found)
    return [event["Task Info"] for event in found if event["Stage ID"] == last]


def left(deployment: Deployment) -> list[Path]:
    """Unfinished objects of ended processes, once another process has written something. Before that they are
    the only finding."""
    found = deployment.cli("reconcile", "--output", "json")
    assert found.code == 0, found.out + found.err
    assert {finding["id"] for finding in found.json()["findings"]} <= {"stray-upload"}
    with Driver(deployment) as driver:
        driver.send("kept", [b"later"])
    return [path for path in deployment.data.joinpath(".spool").rglob("*") if path.is_file()]


def test_a_task_that_hangs_is_overtaken_by_its_copy(cluster: Cluster, tmp_path: Path) -> None:
    conf = {
        "spark.speculation": "true",
        **{f"spark.speculation.{name}": value for name, value in EAGER.items()},
    }
    deployment = deployment_on(tmp_path / "d", cluster.url, conf | reported(tmp_path / "events"))
    expected = made_here(deployment, tmp_path / "plain")
    with archiving(deployment, PAUSE) as running:
        slow = until("a task is in the middle", lambda: paused(running, cluster.workers), COMMAND_S)
        stored = {
            path: path.stat().st_mtime_ns for path in deployment.data.glob("archive/*/data/**/*.parquet")
        }
        others = [worker for worker in cluster.workers if worker is not slow]
        until("the others end the job", lambda: resumed(running, others), COMMAND_S)
    check(deployment, running.result())
    assert archives(deployment.root) == expected
    assert stored and all(path.stat().st_mtime_ns == time for path, time in stored.items()), (
        "what the first copy had stored is adopted"
    )
    begun, ended = (tasks(tmp_path / "events", kind) for kind in ("TaskStart", "TaskEnd"))
    won = [task for task in ended if task["Speculative"] and not task["Failed"] and not task["Killed"]]
    assert won, "a copy has won"
    both = [{task["Host"] for task in begun if task["Index"] == copy["Index"]} for copy in won]
    assert {"127.0.0.1", "127.0.0.2"} in both, "against one on another machine"
    assert left(deployment) == []


ROUNDS = """
import os
import sys
from pathlib import Path
from archiver.app.application import Application
from archiver.runtime.clock import SystemClock
from archiver.config.settings import load_settings

application = Application(load_settings(Path(sys.argv[1]), {}), os.environ, SystemClock())
for topic in ("clicks", "orders"):
    report = application.archiving.round(lambda line: None).run((topic, None), everything=True)
    print(report.of(topic).state, report.of(topic).why, flush=True)
    sys.stdin.readline()
application.close()
"""


def test_executors_that_leave_between_two_rounds_take_nothing_along(cluster: Cluster, tmp_path: Path) -> None:
    conf = {f"spark.dynamicAllocation.{name}": value for name, value in DYNAMIC.items()} | {
        "spark.executor.cores": "1"
    }
    deployment = deployment_on(tmp_path / "d", cluster.url, conf)
    plain = copied(deployment, tmp_path / "plain")
    with Driver(plain) as driver:
        for topic in ("clicks", "orders"):
            driver.archive((topic, None))
    with rounds(deployment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in ("clicks", "orders"):
            assert process.stdout.readline() == "archived None\n"
            until("the executors are let go", lambda: not executors(cluster), COMMAND_S)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(COMMAND_S) == 0
    check(deployment, Done(0, "", ""))
    assert archives(deployment.root) == archives(plain.root)
    assert left(deployment) == []


def executors(cluster: Cluster) -> int:
    return sum(worker.executors() for worker in cluster.workers)


@contextmanager
def rounds(deployment: Deployment) -> Iterator[subprocess.Popen[str]]:
    """A process with a round for each topic, the next after a line of its input."""
    with (deployment.root / "rounds.log").open("w", encoding="utf-8") as log:
        command = [sys.executable, "-c", ROUNDS, str(deployment.config)]
        process = subprocess.Popen(
            command,
            env=deployment.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            process.kill()
            process.wait(COMMAND_S)
