"""A worker that runs out of memory, disk, files or its connection is retried later: real workers of local[2]."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.refine import spark_job
from archiver.refine.demultiplexer import refine_batches, run_bundle
from archiver.refine.spark_job import SparkRefiner
from archiver.refine.task import PlanResult, RefineJob
from archiver.runtime.errors import Halt, RetryLater
from archiver.spark.fair_lock import SparkTurns
from archiver.spark.session import SparkSessions
from intake.read.reader import IntakeReader
from reconcile.audit.spark.reader import SparkRows, _results
from tests.support.builders.refining import CLUSTER, NOW, job_of_rows
from tests.support.intake.intake_files import Intake, Row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
LARGE = 2**20
"""Bytes of a record; a worker that may write half as much cannot store it."""
PASSING = [
    MemoryError(),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
    ImportError("libarrow.so: failed to map segment from shared object: Cannot allocate memory"),
]
LASTING = [ValueError("MemoryError is no reason"), OSError(errno.EACCES, os.strerror(errno.EACCES))]


@pytest.fixture
def sessions(spark_sessions: SparkSessions) -> SparkSessions:
    return spark_sessions


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(LocalObjectStore(tmp_path / "data"))


@pytest.fixture
def job(intake: Intake) -> RefineJob:
    return job_of_rows(intake, [Row(NOW, os.urandom(LARGE))])


def raising(error: Exception, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise error
    yield from ()


def named(error: Exception) -> str:
    return f"{type(error).__name__}-{getattr(error, 'errno', None)}"


@pytest.mark.parametrize("error", PASSING, ids=named)
def test_a_shortage_of_a_worker_is_waited_out(
    sessions: SparkSessions, job: RefineJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(spark_job, "refine_batches", partial(raising, error))
    with pytest.raises(RetryLater, match="a worker ran short of something, the next run repeats the job"):
        SparkRefiner(sessions.session).refine(job)
    rows = SparkRows(
        sessions.session,
        SparkTurns(60).turn,
        60,
        sessions.answering,
        StorePlace(f"file://{tmp_path}"),
        CLUSTER,
    )
    with pytest.raises(RetryLater, match="a worker ran out of a resource during the audit, audit again"):
        rows._job(
            lambda session: _results(session.range(1).mapInArrow(partial(raising, error), "result binary"))
        )


@pytest.mark.parametrize("error", LASTING, ids=named)
def test_what_will_be_the_same_again_halts(
    sessions: SparkSessions, job: RefineJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(spark_job, "refine_batches", partial(raising, error))
    with pytest.raises(Halt, match="worker"):
        SparkRefiner(sessions.session).refine(job)


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def short_of_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = list(batches)
    with limited(resource.RLIMIT_NOFILE, max(int(one.name) for one in Path("/proc/self/fd").iterdir())):
        yield from refine_batches(given)


def short_of_disk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with limited(resource.RLIMIT_FSIZE, LARGE // 2):
        yield from refine_batches(batches)


@pytest.mark.parametrize("work", [short_of_files, short_of_disk])
def test_a_worker_that_is_short_of_something_halts_nothing(
    sessions: SparkSessions,
    intake: Intake,
    job: RefineJob,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[..., Any],
) -> None:
    refiner = SparkRefiner(sessions.session)

    def refined() -> Sequence[PlanResult] | str:
        try:
            return refiner.refine(job)
        except RetryLater as error:
            return str(error)

    with monkeypatch.context() as patch:
        patch.setattr(spark_job, "refine_batches", work)
        found = refined()
    assert (
        "the next run repeats" in found
        if isinstance(found, str)
        else [one.error for one in found] == ["retry"]
    ), found
    assert list(intake.objects.list("archive/")) == []
    assert [one.error for one in refiner.refine(job)] == [None]


def test_memory_that_is_missing_while_intake_is_read_is_no_damage(
    job: RefineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(IntakeReader, "row_groups", short)
    assert [(one.error, one.why) for one in run_bundle(job.descriptors()[0])] == [
        ("retry", "ArrowMemoryError: malloc of size 1 failed")
    ]
