"""How the machines of a cluster get the package: not at all, another version, packed and sent along, or in
the image.

The cluster admits only clients with its secret, and encrypts what it sends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_spark_cluster import (
    COMMAND_S,
    archive,
    archives,
    archiving,
    check,
    deployment_on,
    made_here,
)
from tests.support.builders.deployment import ROOT
from tests.support.log.etcd_server import free_port
from tests.support.process.processes import descendants, until
from tests.support.spark.spark_archive import bare_environment, copied_packages, packed_environment
from tests.support.spark.spark_cluster import HOST, Cluster, SparkProcess

pytestmark = [
    pytest.mark.turns(6, 2),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

LOOK_EVERY_S = 0.3
SECRET = "canary-of-the-cluster"
CLOSED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": SECRET,
    "spark.network.crypto.enabled": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose only worker lacks the archiver's package."""
    with Cluster(tmp_path_factory.mktemp("closed"), **CLOSED) as made:
        made.add_worker(has_package=False)
        yield made


def test_a_worker_without_the_package_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    bare = bare_environment(tmp_path / "bare")
    deployment = deployment_on(tmp_path / "d", cluster.url, CLOSED | {"spark.pyspark.python": str(bare)})
    done = archive(deployment)
    assert done.code == 1, done.out + done.err
    assert "the workers cannot run this package" in done.err
    assert "ModuleNotFoundError" in done.err
    assert archives(deployment.root) == {}


def test_a_worker_with_another_version_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    other = copied_packages(tmp_path / "other", version="0.0.9")
    deployment = deployment_on(
        tmp_path / "d", cluster.url, CLOSED | {"spark.executorEnv.PYTHONPATH": str(other)}
    )
    done = archive(deployment)
    assert done.code == 1, done.out + done.err
    assert "this worker runs version 0.0.9 of stream-archiver" in done.err
    assert archives(deployment.root) == {}


def test_the_package_travels_with_the_job(cluster: Cluster, tmp_path: Path) -> None:
    packed = packed_environment(tmp_path)
    conf = CLOSED | {
        "spark.archives": f"{packed}#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    deployment = deployment_on(tmp_path / "d", cluster.url, conf)
    expected = made_here(deployment, tmp_path / "plain")
    commands: set[str] = set()
    with archiving(deployment, "") as running:
        until("it is done", lambda: looked(commands) and running.done(), COMMAND_S)
    check(deployment, running.result())
    assert archives(deployment.root) == expected
    assert any("environment/bin/python" in line for line in commands)
    assert any("SparkSubmit" in line for line in commands), "the driver"
    assert not any(SECRET in line for line in commands)


def looked(commands: set[str]) -> bool:
    """Record the command lines of all that runs below this process: driver, cluster and executors."""
    time.sleep(LOOK_EVERY_S)
    commands.update(line for _, line in descendants(os.getpid()))
    return True


MODULES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
)
OPTIONS = (
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in MODULES),
)


def test_the_image_is_an_executor_when_spark_asks_for_one(tmp_path: Path) -> None:
    port = free_port()
    with Cluster(tmp_path / "cluster") as empty:
        deployment = deployment_on(tmp_path / "d", empty.url, {"spark.driver.port": str(port)})
        expected = made_here(deployment, tmp_path / "plain")
        with archiving(deployment, "") as running:
            until(
                "the driver waits for executors",
                lambda: "Registered app" in empty.master.log.read_text(),
                120,
            )
            with SparkProcess(
                tmp_path / "pod",
                str(ROOT / "deploy" / "entrypoint.sh"),
                "executor",
                ready="(Successfully registered with driver)",
                environ=pod(port),
            ):
                until("the round is done", running.done, COMMAND_S)
        check(deployment, running.result())
        assert archives(deployment.root) == expected


def pod(port: int) -> dict[str, str]:
    """Environment variables that Spark sets for the pod of an executor."""
    set_by_spark = {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{HOST}:{port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "spark-of-the-test",
        "SPARK_EXECUTOR_POD_IP": HOST,
        "SPARK_EXECUTOR_POD_NAME": "archiver-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
    }
    options = {
        f"SPARK_JAVA_OPT_{number}": option
        for number, option in enumerate((*OPTIONS, f"-Dspark.driver.port={port}"))
    }
    in_the_image = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": "",
    }
    return set_by_spark | options | in_the_image
