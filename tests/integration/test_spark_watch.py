"""A job over its time limit is cancelled until it has ended, for every kind of job: real jobs of local[2]."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.refine import spark_job
from archiver.refine.spark_job import SparkRefiner
from archiver.runtime.errors import RetryLater
from archiver.spark.fair_lock import SparkTurns
from archiver.spark.session import SparkSessions
from reconcile.audit.spark.reader import SparkRows
from tests.support.builders.refining import CLUSTER, NOW, job_of_rows
from tests.support.intake.intake_files import Intake, Row
from tests.support.process.processes import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ASLEEP_S = 100.0
"""Seconds of a task, much longer than a test waits."""
AWAKE_S = 3.0
"""Seconds of a task that ends."""
TIME_S, IN_TIME_S = 1.0, 60.0


@pytest.fixture
def sessions(spark_sessions: SparkSessions) -> SparkSessions:
    return spark_sessions


@pytest.fixture
def lost(sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first three requests to cancel are lost; records the tags of all of them."""
    context, asked = sessions.session().sparkContext, list[str]()
    cancel: Callable[[str], None] = context.cancelJobsWithTag

    def cancelled(tag: str) -> None:
        asked.append(tag)
        if len(asked) > 3:
            cancel(tag)

    monkeypatch.setattr(context, "cancelJobsWithTag", cancelled)
    return asked


def asleep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(ASLEEP_S)
        yield batch


def test_a_deep_audit_whose_first_cancels_are_lost_ends_all_the_same(
    sessions: SparkSessions, lost: list[str], tmp_path: Path
) -> None:
    rows = SparkRows(
        sessions.session,
        SparkTurns(IN_TIME_S).turn,
        TIME_S,
        sessions.answering,
        StorePlace(f"file://{tmp_path}"),
        CLUSTER,
    )

    def ask(session: SparkSession) -> list[Any]:
        return session.range(1).mapInArrow(asleep, "id bigint").collect()

    began = time.monotonic()
    with pytest.raises(
        RetryLater, match=r"a job of the deep audit was cancelled after spark\.job_timeout = 1 s"
    ):
        rows._job(ask)
    assert time.monotonic() - began < IN_TIME_S
    assert len(lost) > 3
    assert len(set(lost)) == 1 and lost[0].startswith("archiver-audit-")
    assert sessions.session().range(3).count() == 3


def test_a_refinement_whose_first_cancels_are_lost_ends_all_the_same(
    sessions: SparkSessions, lost: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of_rows(Intake(LocalObjectStore(tmp_path / "data")), [Row(NOW, b"one")])
    monkeypatch.setattr(spark_job, "refine_batches", asleep)
    began = time.monotonic()
    with pytest.raises(RetryLater, match="the refinement job was cancelled after 1 s"):
        SparkRefiner(sessions.session, TIME_S, sessions.answering).refine(job)
    assert time.monotonic() - began < IN_TIME_S
    assert len(lost) > 3
    assert len(set(lost)) == 1 and lost[0].startswith("archiver-refine-")


@pytest.mark.parametrize("who", ["refinement", "audit"])
def test_ctrl_c_in_the_middle_of_a_job_cancels_it(
    who: str, sessions: SparkSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt does not become an error of Spark, in any call."""
    monkeypatch.setattr(spark_job, "refine_batches", asleep)
    running = sessions.session().sparkContext.statusTracker().getActiveJobsIds

    def work() -> object:
        if who == "refinement":
            job = job_of_rows(Intake(LocalObjectStore(tmp_path / "data")), [Row(NOW, b"one")])
            return SparkRefiner(sessions.session, ASLEEP_S, sessions.answering).refine(job)
        turns = SparkTurns(IN_TIME_S)
        rows = SparkRows(
            sessions.session,
            turns.turn,
            ASLEEP_S,
            sessions.answering,
            StorePlace(f"file://{tmp_path}"),
            CLUSTER,
        )
        return rows._job(lambda session: session.range(1).mapInArrow(asleep, "id bigint").collect())

    found: list[list[int]] = []

    def interrupt() -> None:
        try:
            found.append(until("a job runs", running, IN_TIME_S))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert found, "the job was running"
    assert time.monotonic() - began < IN_TIME_S
    until("it has ended", lambda: not running(), IN_TIME_S)
    assert sessions.session().range(3).count() == 3


def test_a_request_to_cancel_that_comes_late_meets_no_later_job(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    rows = SparkRows(
        sessions.session,
        SparkTurns(IN_TIME_S).turn,
        IN_TIME_S,
        sessions.answering,
        StorePlace(f"file://{tmp_path}"),
        CLUSTER,
    )
    context = sessions.session().sparkContext
    ended = rows._job(lambda session: sorted(session.sparkContext.getJobTags()))
    assert len(ended) == 1

    def awake(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(AWAKE_S)
            yield batch

    def ask(session: SparkSession) -> list[Any]:
        late = threading.Timer(AWAKE_S / 2, context.cancelJobsWithTag, ended)
        late.start()
        try:
            return session.range(1).mapInArrow(awake, "id bigint").collect()
        finally:
            late.join()

    assert len(rows._job(ask)) == 1
