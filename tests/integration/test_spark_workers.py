"""Workers that cannot run our code state the reason, and are not asked again: real workers of local[2].

The last tests cover what else an executor needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import archiver
from archiver.config.settings import SparkSettings
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import S3Options
from archiver.refine.spark_job import SparkRefiner
from archiver.refine.task import RefineJob
from archiver.runtime.errors import Halt
from archiver.spark.session import SparkSessions, promised_cores
from archiver.spark.worker_checks import unfit
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.builders.refining import NOW, job_of_rows
from tests.support.intake.intake_files import Intake, Row
from tests.support.log.etcd_server import free_port
from tests.support.schema.orders import order, order_schema

pytestmark = [pytest.mark.timeout(300)]
ENTRY = ROOT / "deploy" / "entrypoint.sh"
CANARY = "canary-of-the-store"


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(LocalObjectStore(tmp_path / "data"))


@pytest.fixture
def job(intake: Intake) -> RefineJob:
    rows = [Row(NOW + number, order(number)) for number in range(3)]
    return job_of_rows(intake, rows, schema=order_schema(), store=S3Options(secret_access_key=CANARY))


@pytest.fixture
def sessions(spark_sessions: SparkSessions) -> SparkSessions:
    return spark_sessions


def stored(intake: Intake) -> list[str]:
    return [info.key for info in intake.objects.list("archive/")]


@pytest.mark.spark
def test_a_worker_of_another_version_does_nothing(
    sessions: SparkSessions, intake: Intake, job: RefineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    refiner = SparkRefiner(sessions.session)
    with monkeypatch.context() as patch:
        patch.setattr(archiver, "__version__", "9.9.9")  # the driver's
        with pytest.raises(
            Halt, match=r"this worker runs version 0\.1\.0 of stream-archiver, the driver 9\.9\.9"
        ):
            refiner.refine(job)
    assert stored(intake) == []
    assert [result.error for result in refiner.refine(job)] == [None]


@pytest.mark.spark
def test_a_worker_of_another_python_does_nothing(
    sessions: SparkSessions, intake: Intake, job: RefineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions.session()
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "pythonVer", "3.9")  # the driver's
        with pytest.raises(Halt, match="PYTHON_VERSION_MISMATCH"):
            SparkRefiner(sessions.session).refine(job)
    assert stored(intake) == []


@pytest.mark.spark
def test_a_worker_without_a_python_says_so(
    sessions: SparkSessions, intake: Intake, job: RefineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions.session()
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "pythonExec", "./environment/bin/python")
        with pytest.raises(Halt, match=r'Cannot run program "\./environment/bin/python"'):
            SparkRefiner(sessions.session).refine(job)
    assert stored(intake) == []


@pytest.mark.spark
def test_what_spark_reports_of_a_job_holds_no_key_of_the_store(
    sessions: SparkSessions, job: RefineJob
) -> None:
    """Its pages and event logs are made of this."""
    SparkRefiner(sessions.session).refine(job)
    session: Any = sessions.session()
    executions = session._jsparkSession.sharedState().statusStore().executionsList()
    reported = "".join(
        executions.apply(at).toString() + executions.apply(at).physicalPlanDescription()
        for at in range(executions.size())
    )
    assert "MapInArrow" in reported
    for spelling in (CANARY, CANARY.encode().hex(), CANARY.encode().hex(" ")):
        assert spelling.lower() not in reported.lower()


def test_what_may_pass_is_no_reason_to_halt() -> None:
    assert unfit(OSError("[Errno 28] No space left on device")) is None
    said = unfit(RuntimeError("first\n  ModuleNotFoundError: No module named 'archiver'\nat x"))
    assert said is not None
    assert said.endswith("ModuleNotFoundError: No module named 'archiver'")


@pytest.mark.parametrize(
    ("conf", "cores"),
    [
        ({}, 0),
        ({"spark.executor.instances": "4"}, 4),
        ({"spark.executor.instances": "4", "spark.executor.cores": "3"}, 12),
        ({"spark.executor.instances": "4", "spark.executor.cores": "3", "spark.cores.max": "8"}, 8),
        ({"spark.cores.max": "8"}, 8),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "4"}, 0),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "5",
                "spark.executor.cores": "2",
            },
            10,
        ),
        ({"spark.dynamicAllocation.maxExecutors": "5"}, 0),
        ({"spark.default.parallelism": "7", "spark.executor.instances": "4"}, 0),
        ({"spark.executor.instances": "many"}, 0),
    ],
)
def test_cores_that_a_cluster_was_asked_for(conf: dict[str, str], cores: int) -> None:
    assert promised_cores(conf) == cores


@pytest.mark.spark
def test_a_round_is_divided_for_what_was_asked_for(sessions: SparkSessions) -> None:
    sessions.session()
    asked = SparkSessions(SparkSettings(master="local[2]", conf={"spark.executor.instances": "6"}), {})
    assert asked.cores() == 6  # the same session, borrowed: two cores are there
    assert sessions.cores() == 2


@pytest.mark.parametrize(
    ("spark", "reported"),
    [
        ({"master": "local[2]"}, False),
        ({"master": "spark://host:7077", "conf": {"spark.authenticate": True}}, True),
        ({"remote": "sc://host:15002/;use_ssl=true"}, True),
    ],
)
def test_a_folder_that_remote_executors_must_see_is_reported(
    tmp_path: Path, spark: dict[str, Any], reported: bool
) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"spark": spark})
    done = deployment.cli("config", "check")
    assert done.code == 0, done.err
    assert ("every executor must see" in done.out) is reported
    assert bool(deployment.cli("config", "check", "--output", "json").json().get("notes")) is reported


def test_the_image_is_an_executor_when_spark_asks_for_one(tmp_path: Path) -> None:
    """It reaches the driver's port, where no process listens."""
    port = free_port()
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "spark-of-the-test",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "archiver-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "SPARK_JAVA_OPT_1": "-Dsaid=a b$c",
        "SPARK_JAVA_OPT_2": "--add-opens=java.base/java.nio=ALL-UNNAMED",
    }
    done = subprocess.run(
        [ENTRY, "executor"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    reported = done.stdout + done.stderr
    assert done.returncode != 0, reported[-2000:]
    assert "KubernetesExecutorBackend: Started daemon" in reported, reported[-2000:]
    assert f"Failed to connect to /127.0.0.1:{port}" in reported


def test_the_image_is_the_command_otherwise() -> None:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ENTRY, "--help"], env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, "Usage: archiver" in done.stdout) == (0, True), done.stderr
