"""Refinement on a real standalone cluster: a master and workers of their own, some of which die, come late,
or are released.

The command runs in processes of its own, as its users have it. Its archives are compared with those that a
process without Spark makes of the same log: the same files, byte for byte. That holds for archives with so
few rows that their encodings depend on type alone. Those of a larger one may depend on what its task made
before it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import Driver
from tests.support.log.etcd_server import free_port
from tests.support.process.processes import until
from tests.support.schema.orders import order
from tests.support.spark.spark_cluster import DRIVER, Cluster, SparkProcess

pytestmark = [
    pytest.mark.turns(6),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

CLICKS, ORDERS = 9000, 300
INTAKE = {"delay_max": "20ms", "delay_max_bytes": "128KiB"}
"""Small intake files, of which small archives can be made."""
ARCHIVE = {"max_bytes": "256KiB", "uploads_max": 0}
"""One after the other: the first is stored before the second."""
PAUSE = "archive.upload.before=pause@2"
"""Each Python worker pauses before its second archive."""
COMMAND_S = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def have(cluster: Cluster, workers: int) -> None:
    """Have as many workers as a test needs; existing ones stay."""
    while len(cluster.workers) > workers:
        cluster.lose(cluster.workers[-1])
    while len(cluster.workers) < workers:
        cluster.add_worker()


def deployment_on(root: Path, master: str, conf: dict[str, str] | None = None, **spark: Any) -> Deployment:
    """A deployment with a backlog of several tasks of several archives each."""
    settings = {
        "master": master,
        "driver_memory": "600m",
        "task_bytes": "1MiB",
        "conf": DRIVER | (conf or {}),
    } | spark
    made = Deployment(
        root, failpoints_asked=True, overrides={"spark": settings, "archive": ARCHIVE, "intake": INTAKE}
    )
    fill(made)
    return made


def fill(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        with driver.application.intake.writer() as writer:
            writer.send_batch(
                "clicks", pa.table({"value": [b"v" * 400 + str(number).encode() for number in range(CLICKS)]})
            )
        driver.send("orders", [order(number, lines=number % 4) for number in range(ORDERS)])


def made_here(deployment: Deployment, root: Path) -> dict[str, bytes]:
    """The archives that a process without Spark makes of the same log, in a copy of the folder."""
    with Driver(copied(deployment, root)) as driver:
        driver.archive()
    return archives(root)


def copied(deployment: Deployment, root: Path) -> Deployment:
    """A copy of the folder, for a process without a cluster."""
    shutil.copytree(deployment.root, root)
    return Deployment(root, overrides=deployment.overrides | {"spark": {}})


def archives(root: Path) -> dict[str, bytes]:
    """Digests of all archives by their keys."""
    folder = root / "data"
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).digest()
        for path in folder.glob("archive/*/data/**/*.parquet")
    }


def archive(deployment: Deployment, armed: str = "") -> Done:
    return deployment.run("archive", "--all", armed=armed, timeout_s=COMMAND_S)


@contextmanager
def archiving(deployment: Deployment, armed: str) -> Iterator[Future[Done]]:
    """Run the command while the test continues."""
    with ThreadPoolExecutor(1) as runner:
        yield runner.submit(archive, deployment, armed)


def resumed(running: Future[Done], workers: list[SparkProcess]) -> bool:
    """Resume paused Python workers; whether the command has ended."""
    for worker in workers:
        for process in worker.paused():
            process.resume()
    return running.done()


def check(deployment: Deployment, done: Done) -> None:
    assert done.code == 0, done.out + done.err
    with Driver(deployment) as driver:
        driver.check_complete("clicks", "orders")
        assert sum(map(len, driver.records("clicks").values())) == CLICKS


def paused(running: Future[Done], workers: list[SparkProcess]) -> SparkProcess | None:
    assert not running.done(), running.result().out + running.result().err
    return next((worker for worker in workers if worker.paused()), None)


def test_a_worker_that_dies_in_the_middle_of_a_job_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    have(cluster, 2)
    deployment = deployment_on(tmp_path / "d", cluster.url)
    expected = made_here(deployment, tmp_path / "plain")
    with archiving(deployment, PAUSE) as running:
        victim = until("a task is in the middle", lambda: paused(running, cluster.workers), COMMAND_S)
        stored = {
            path: path.stat().st_mtime_ns for path in deployment.data.glob("archive/*/data/**/*.parquet")
        }
        cluster.lose(victim)
        until("the job goes on elsewhere", lambda: resumed(running, cluster.workers), COMMAND_S)
    check(deployment, running.result())
    assert stored and all(path.stat().st_mtime_ns == time for path, time in stored.items()), (
        "what was stored is adopted"
    )
    assert archives(deployment.root) == expected
    audited = deployment.run("audit", "--deep", "--output", "json", timeout_s=COMMAND_S)
    assert audited.code == 0, audited.err
    assert {one["proof"] for one in audited.json()["partitions"] if one["rows"]} == {"rows"}


def test_without_a_worker_a_job_ends_in_its_time_and_with_the_next_one_all_is_archived(
    cluster: Cluster, tmp_path: Path
) -> None:
    have(cluster, 0)
    deployment = deployment_on(tmp_path / "d", cluster.url, job_timeout="5s")
    done = archive(deployment)
    assert done.code == 2, done.out + done.err
    assert "cancelled after 5 s" in done.out + done.err
    assert archives(deployment.root) == {}
    have(cluster, 1)
    deployment.write(deployment.document() | {"spark": deployment.overrides["spark"] | {"job_timeout": "1h"}})
    check(deployment, archive(deployment))


def test_a_master_that_is_away_is_to_be_asked_again(tmp_path: Path) -> None:
    deployment = deployment_on(tmp_path / "d", f"spark://127.0.0.1:{free_port()}", start_timeout="12s")
    done = archive(deployment)
    assert done.code == 2, done.out + done.err
    assert "does the master answer?" in done.out + done.err
    assert archives(deployment.root) == {}
