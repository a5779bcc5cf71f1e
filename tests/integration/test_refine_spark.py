"""The same tasks through a real Spark session on local[2]."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from archiver.config.settings import SparkSettings
from archiver.objects.local import LocalObjectStore
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan
from archiver.refine.spark_job import SparkRefiner
from archiver.refine.task import PlanResult, RefineJob, RefineOptions
from archiver.runtime.errors import Halt, RetryLater
from archiver.spark.session import SparkSessions, properties
from tests.support.builders.refining import job_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, rows_of

pytestmark = pytest.mark.spark
NOW = 1_728_003_600_000_000


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(LocalObjectStore(tmp_path / "data"))


@pytest.fixture
def plans(intake: Intake) -> list[Plan]:
    topic = intake.topic("orders", 5)
    for index in range(3):
        intake.file(
            {(topic, p): [Row(NOW + index, order(index * 10 + i)) for i in range(3)] for p in range(5)}
        )
    return [plan for p in range(5) for plan in intake.plans(topic, p)]


def orders_of(intake: Intake, bundles: Sequence[tuple[Plan, ...]], **options: Any) -> RefineJob:
    return job_of(intake, bundles, schema=order_schema(), options=RefineOptions(**options))


@pytest.mark.timeout(120)
def test_results_in_the_order_of_the_plans(
    spark_sessions: SparkSessions,
    intake: Intake,
    plans: list[Plan],
) -> None:
    bundles = [(plans[4], plans[0]), (plans[1],), (plans[3], plans[2])]
    job = orders_of(intake, bundles)
    results = SparkRefiner(spark_sessions.session).refine(job)
    assert [result.partition for result in results] == [4, 0, 1, 3, 2]
    assert all(result.error is None for result in results)
    objects: Any = intake.objects
    for result in results:
        table = pq.read_table(objects.root / result.files[0].archive.key, partitioning=None)
        assert [row["id"] for row in rows_of(table["value"])] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    # Plain Python gives the same results: it is the same code, and it reuses the files.
    plain = [result for task in job.descriptors() for result in run_bundle(task)]
    assert sorted(plain, key=lambda result: result.partition) == sorted(
        results, key=lambda result: result.partition
    )


@pytest.mark.timeout(120)
def test_each_bundle_is_a_task_of_its_own(spark_sessions: SparkSessions) -> None:
    # Asked for here: a test before this one may have ended the module's session.
    frame = spark_sessions.session().createDataFrame(
        [(number, bytearray(b"x")) for number in range(6)], "number int, task binary"
    )
    sizes = frame.repartitionById(6, frame["number"]).select("task").mapInArrow(_count, "rows int").collect()
    assert [row["rows"] for row in sizes] == [1] * 6


def _count(batches: Any) -> Any:
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int32())})


@pytest.mark.timeout(120)
def test_trouble_comes_back_as_a_result(
    spark_sessions: SparkSessions,
    intake: Intake,
    plans: list[Plan],
) -> None:
    intake.objects.delete(intake.keys[0])
    results = SparkRefiner(spark_sessions.session).refine(orders_of(intake, [tuple(plans)]))
    assert [result.error for result in results] == ["missing"] * 5


@pytest.mark.timeout(120)
def test_a_killed_worker_is_to_be_tried_again(
    spark_sessions: SparkSessions,
    intake: Intake,
    plans: list[Plan],
) -> None:
    refiner = SparkRefiner(spark_sessions.session)
    with pytest.raises(RetryLater, match="the refinement job failed"):
        # One after the other, so that no third one is under way when the second is stored.
        refiner.refine(
            orders_of(intake, [tuple(plans)], uploads_max=0, failpoints="archive.upload.after=kill@2")
        )
    stored = {info.key: info.modified_us for info in intake.objects.list("archive/")}
    assert len(stored) == 2
    results = refiner.refine(orders_of(intake, [tuple(plans)]))
    assert [result.error for result in results] == [None] * 5
    after = {info.key: info.modified_us for info in intake.objects.list("archive/")}
    assert len(after) == 5
    assert stored.items() <= after.items()


@pytest.mark.timeout(120)
def test_workers_arm_and_disarm(spark_sessions: SparkSessions, intake: Intake, plans: list[Plan]) -> None:
    refiner = SparkRefiner(spark_sessions.session)
    (first, *_) = refiner.refine(orders_of(intake, [(plans[0],)], failpoints="archive.upload.before=error"))
    assert first.error == "retry"
    (second, *_) = refiner.refine(orders_of(intake, [(plans[0],)]))
    assert second.error is None


@pytest.mark.timeout(120)
def test_no_work_starts_no_spark(intake: Intake) -> None:
    def no_session() -> SparkSession:
        raise AssertionError("a session was asked for")

    assert SparkRefiner(no_session).refine(orders_of(intake, [])) == []
    assert SparkRefiner(no_session).refine(orders_of(intake, [()])) == []


@pytest.mark.timeout(120)
def test_a_job_that_takes_too_long_is_cancelled(
    spark_sessions: SparkSessions,
    intake: Intake,
    plans: list[Plan],
) -> None:
    fast = SparkRefiner(spark_sessions.session)
    fast.refine(orders_of(intake, [(plans[0],)]))
    with pytest.raises(RetryLater, match="cancelled after"):
        SparkRefiner(spark_sessions.session, timeout_s=0.0).refine(
            orders_of(intake, [(plan,) for plan in plans] * 20)
        )
    assert [result.error for result in fast.refine(orders_of(intake, [tuple(plans)]))] == [None] * 5


@pytest.mark.timeout(120)
def test_a_plan_without_an_answer_is_to_be_tried_again(plans: list[Plan], intake: Intake) -> None:
    class Silent(SparkRefiner):
        def _collect(self, session: object, tasks: object) -> list[bytes]:
            return []

    results = Silent(lambda: None).refine(orders_of(intake, [tuple(plans)]))  # type: ignore[arg-type,return-value]
    assert results == [PlanResult.failed(plan, "retry", "no worker answered for this plan") for plan in plans]


@pytest.mark.timeout(120)
def test_a_dead_jvm_is_replaced(spark_sessions: SparkSessions) -> None:
    session = spark_sessions.session()
    gateway: Any = session.sparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)
    gateway.proc.wait(120)
    again = spark_sessions.session()
    assert again is not session
    assert again.range(3).count() == 3
    assert spark_sessions.session() is again


@pytest.mark.timeout(120)
def test_a_closed_session_is_built_again_and_a_foreign_one_is_left_alone(
    spark_sessions: SparkSessions,
) -> None:
    session = spark_sessions.session()
    guest = SparkSessions(SparkSettings(master="local[1]"), os.environ)
    assert guest.session().sparkContext.master == "local[2]"
    guest.close()
    assert spark_sessions.session() is session
    spark_sessions.close()
    assert spark_sessions.session().range(2).count() == 2
    assert spark_sessions.cores() == 2


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SparkContext, "_active_spark_context", None
    )  # as in a process that has no session yet
    sessions = SparkSessions(SparkSettings(master="local[2]"), {"PATH": str(tmp_path)})
    with pytest.raises(Halt, match="openjdk-17"):
        sessions.session()


def test_properties(tmp_path: Path) -> None:
    found = properties(
        SparkSettings(
            master="local[3]", driver_memory="3g", conf={"spark.ui.enabled": "true", "spark.x": "y"}
        ),
        tmp_path,
    )
    assert (found["spark.master"], found["spark.driver.memory"]) == ("local[3]", "3g")
    assert (found["spark.ui.enabled"], found["spark.x"]) == ("true", "y")
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in properties(
        SparkSettings(master="spark://host:7077", allow_insecure=True), tmp_path
    )
