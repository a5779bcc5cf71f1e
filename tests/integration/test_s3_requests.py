"""How many requests does each step send to a bucket? They are counted on their way to a real server;
docs/operations/s3.md has the numbers.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import pytest

from archiver.config.topics import READS_OF_A_BUCKET
from archiver.objects.cluster import ensure_cluster
from archiver.objects.location import StorePlace
from archiver.objects.s3.store import S3ObjectStore
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.spark_job import SparkRefiner
from archiver.refine.task import PlanResult, RefineJob, RefineOptions, RefineTopic, TaskDescriptor, pack
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from archiver.stream.archives import list_archives, read_footer
from intake.read.reader import IntakeReader
from tests.support.intake.intake_files import Intake, Row
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import SECRET_ACCESS_KEY, S3Server
from tests.support.objects.s3_store import options, place
from tests.support.schema.orders import raw_schema

FILES = 6
DAY_US = 86_400_000_000
NOW_US = 20_000 * DAY_US


@pytest.fixture
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue("s3_server")
    return found


@pytest.fixture
def faults(server: S3Server) -> Iterator[S3Faults]:
    with S3Faults(server) as proxy:
        yield proxy


class Filled:
    """Intake of two partitions in a bucket that is a cluster's."""

    def __init__(self, server: S3Server, endpoint: str, row_bytes: int) -> None:
        self.place = place(server, endpoint=endpoint)
        self.cluster = ensure_cluster(
            S3ObjectStore(self.place), "test", SystemIds(), SystemClock()
        ).cluster_id
        self.objects = S3ObjectStore(self.place, self.cluster)
        self.intake = Intake(self.objects)
        self.topic = self.intake.topic("orders", 2)
        for number in range(FILES):
            rows = [Row(NOW_US + number, value=os.urandom(row_bytes)) for _ in range(100)]
            self.intake.file({(self.topic, 0): rows[:50], (self.topic, 1): rows[50:]})

    def task(self) -> TaskDescriptor:
        plans = [plan for partition in range(2) for plan in self.intake.plans(self.topic, partition)]
        topics = {self.topic: RefineTopic(self.topic, "orders", raw_schema(), "day")}
        return TaskDescriptor(
            self.cluster, self.place, 1, topics, tuple(plans), RefineOptions(reads_max=READS_OF_A_BUCKET)
        )


def test_an_intake_file_is_one_request_to_write_and_few_to_read(server: S3Server, faults: S3Faults) -> None:
    filled = Filled(server, faults.uri, 20_000)
    counts = faults.counts()
    assert (counts["put"], counts["identity"]) == (FILES + 1, 3)  # at the start: whose bucket is it?
    segments = [segment for plan in filled.task().plans for segment in plan.segments]
    one = [segment for segment in segments if segment.file.key == filled.intake.keys[0]]
    read = list(IntakeReader(filled.objects).read(one[0].file, one))
    assert sum(rows.num_rows for _, rows in read) == 100
    assert faults.counts() == {
        "get": 3
    }  # of two megabytes: the end, the begin, and the rest in larger blocks
    small = Filled(server, faults.uri, 1_000)
    faults.counts()
    one = [
        segment
        for plan in small.task().plans
        for segment in plan.segments
        if segment.file.key == small.intake.keys[0]
    ]
    assert sum(rows.num_rows for _, rows in IntakeReader(small.objects).read(one[0].file, one)) == 100
    assert faults.counts() == {"get": 1}


def test_a_task_reads_each_intake_file_once_and_puts_each_archive_once(
    server: S3Server, faults: S3Faults
) -> None:
    filled = Filled(server, faults.uri, 1_000)
    faults.counts()
    results = list(run_bundle(filled.task()))
    assert [result.error for result in results] == [None, None]
    counts = faults.counts()
    assert counts.pop("identity") in (
        1,
        2,
    )  # both archives are on their way at a time, and each may first ask for the bucket's owner
    assert counts == {"get": FILES, "put": 2}
    again = list(run_bundle(filled.task()))
    assert [one.archive.key for result in again for one in result.files] == [
        one.archive.key for result in results for one in result.files
    ]
    counts = faults.counts()
    assert counts.pop("identity") in (1, 2)
    assert counts == {"get": FILES + 4, "put": 2}  # refused; reused after it was read whole


def test_the_footer_of_an_archive_is_one_request(server: S3Server, faults: S3Faults) -> None:
    filled = Filled(server, faults.uri, 1_000)
    list(run_bundle(filled.task()))
    faults.counts()
    found = list(list_archives(filled.objects, filled.topic))
    assert faults.counts() == {"list": 1}
    for archive in found:
        read_footer(filled.objects, archive, filled.cluster)
    assert faults.counts() == {"get": 2}


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_keys_travel_to_workers_and_show_nowhere(server: S3Server, spark_session: object) -> None:
    """The key is neither in a descriptor's text nor in what Spark shows of a job: its plans, its stages, its
    event log."""
    filled = Filled(server, server.uri, 1_000)
    task = filled.task()
    assert SECRET_ACCESS_KEY not in repr(task) + str(task)
    assert SECRET_ACCESS_KEY.encode() in pickle.dumps(task), "else this test shows nothing"
    job = RefineJob(
        filled.cluster, filled.place, 1, task.topics, [task.plans], RefineOptions(reads_max=READS_OF_A_BUCKET)
    )
    assert SECRET_ACCESS_KEY not in repr(job)
    session = spark_session
    results: list[PlanResult] = SparkRefiner(lambda: session).refine(job)  # type: ignore[arg-type, return-value]
    assert [result.error for result in results] == [None, None]
    frame = session.createDataFrame([(0, bytearray(pack(task)))], "number int, task binary").select("task")  # type: ignore[attr-defined]
    execution = frame._jdf.queryExecution()
    reported = [execution.toString(), execution.simpleString(), execution.stringWithStats()]
    store = session._jsparkSession.sharedState().statusStore().executionsList()  # type: ignore[attr-defined]
    reported += [store.apply(number).physicalPlanDescription() for number in range(store.size())]
    reported += [store.apply(number).description() for number in range(store.size())]
    assert len(reported) > 4
    for text in reported:
        assert SECRET_ACCESS_KEY not in text
        assert SECRET_ACCESS_KEY.encode().hex() not in text.lower()


def test_a_worker_that_lost_the_bucket_says_try_again(server: S3Server, faults: S3Faults) -> None:
    filled = Filled(server, faults.uri, 1_000)
    lost = StorePlace(filled.place.uri, options(faults.uri, attempts_max=1))
    task = filled.task()
    faults.refuse()
    gone = TaskDescriptor(task.cluster_id, lost, 1, task.topics, task.plans, task.options)
    assert {result.error for result in run_bundle(gone)} == {"retry"}
