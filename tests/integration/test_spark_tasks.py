"""How tasks reach Spark's Python workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from archiver.spark.tasks import handed_out

ANSWER = "part int, task binary"


def _answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each task with the number of its Spark partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        parts = pa.array([context.partitionId()] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([parts, batch.column("task")], names=["part", "task"])


def parents_of_workers() -> set[int]:
    """The processes that Spark started; a worker is forked from one and has its command line."""
    found: dict[int, int] = {}
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a worker may have ended in between
            if "archiver.spark.pyspark_daemon" in one.cmdline():
                found[one.pid] = one.ppid()
    return {pid for pid, parent in found.items() if parent not in found}


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_each_task_has_a_partition_and_all_share_one_parent_of_workers(spark_session: SparkSession) -> None:
    tasks = [b"", b"\x00\xff" * 3, *(b"%d" % number for number in range(5)), b"long" * 300_000]
    before = parents_of_workers()
    answers = handed_out(spark_session, tasks).mapInArrow(_answer, ANSWER).collect()
    assert [(answer["part"], bytes(answer["task"])) for answer in answers] == list(enumerate(tasks))
    more = parents_of_workers() - before
    assert len(more) <= 1, "the tasks went through Python workers of another kind on their way"
