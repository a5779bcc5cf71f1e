"""The deep audit's jobs on Spark: files in, runs of offsets and digests back.

Owns how rows are read: by Spark's own Parquet reader, or through our store if they are in a bucket (`stored.py`); page checksums compared,
no file split, so that a worker sees each file's rows in their order. Of archives every column goes to the worker that rebuilds the records;
of somebody else's files only the coordinates do, and those are sorted first, because such files mix offsets as they like. Promises that a
job is bounded (`JOB_BYTES` of files, one of them at least), that each waits for its turn on the session, and that the session's settings
stay as they are. A file that cannot be read does not stop the others: it comes back short. Must never collect rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from archiver.errors import Halt, RetryLater
from archiver.objects.place import StorePlace
from archiver.schema.state import TopicSchema, arrow_schema
from archiver.spark_session import parallelism
from archiver.spark_tasks import handed_out
from archiver.spark_watch import JobWatch, Pulse
from archiver.spark_worker import same_version, shortage, unfit
from reconcile.coverage import Range
from reconcile.rows import FileRows, ForeignRows, IntakeRange, RowFile
from reconcile.spark.intake_digests import digest_batches
from reconcile.spark.stored import StoredFiles
from reconcile.spark.summary import (
    FOREIGN,
    RESULT,
    archive_summary,
    by_spelling,
    merged_foreign,
    pack,
    positions_summary,
    sorted_summary,
    spelled,
    unhidden,
    unpacked,
)

JOB_BYTES = 1024**3
"""Files of one job. It bounds how long a round of archiving waits for an audit that is under way."""
_TASK_BYTES = 128 * 1024**2
_TASKS_PER_CORE = 4
_TASKS_PER_JOB = 8
_BATCH_BYTES = 16 * 1024**2
"""About so much of columns is handed to a worker at a time."""
_BATCH_ROWS = (16, 4096)
_OFFSETS_TOGETHER = 2**20
"""Rows of somebody else's files are sorted in blocks of so many offsets."""
_COORDINATES = "kafka struct<partition int, offset long, ingest_timestamp timestamp>"
_POSITIONS = "file_path string, pos long"
_JOB = "archiver-audit"
_TEXT_MAX = 300

Turn = Callable[[str], AbstractContextManager[None]]


class SparkRows:
    """The `RowReader` on the session that `session` returns at each call, so that a lost one is replaced."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        turn: Turn,
        timeout_s: float,
        answering: Callable[[], Pulse],
        place: StorePlace,
        cluster_id: str,
        job_bytes: int = JOB_BYTES,
    ) -> None:
        """`timeout_s` bounds a job; `place` and `cluster_id` are what a worker opens to read intake."""
        self._session = session
        self._turn = turn
        self._timeout_s = timeout_s
        self._answering = answering
        self._intake = (place, cluster_id)
        self._stored = StoredFiles(place, cluster_id) if place.is_s3 else None
        """What reads files in a bucket, in place of Spark's own reader."""
        self._job_bytes = job_bytes

    def positions(self, files: Sequence[RowFile]) -> Mapping[str, tuple[Range, ...]]:
        """As the Protocol says."""
        if not files:
            return {}

        def ask(session: SparkSession) -> list[Any]:
            if self._stored is None:
                rows = _parquet(session, files, _POSITIONS, strict=True)
            else:
                rows = _tasks(session, files).mapInArrow(same_version(self._stored.positions()), _POSITIONS)
            frame = rows.repartition(parallelism(session), "file_path")
            return _results(frame.sortWithinPartitions("file_path", "pos").mapInArrow(same_version(positions_summary), RESULT))

        found: dict[str, tuple[Range, ...]] = {}
        for part in self._job(ask):
            found.update({path: tuple(runs) for path, runs in part.items()})
        return found

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """As the Protocol says."""
        columns = from_arrow_schema(arrow_schema(schema))
        found: list[FileRows] = []
        for chunk in _chunks(files, self._job_bytes):
            found += self._archives(chunk, schema, columns)
        return found

    def _archives(self, files: Sequence[RowFile], schema: TopicSchema, columns: StructType) -> list[FileRows]:
        """One job, or more if it fails: the file that makes it fail is found by halving."""

        def ask(session: SparkSession) -> list[Any]:
            if self._stored is not None:
                return _results(_tasks(session, files).mapInArrow(same_version(self._stored.archives(schema)), RESULT))
            frame = _parquet(session, files, columns)
            chosen = frame.select(*_place(), sql.col("key.__raw__").alias("key"), "value", "headers", "kafka")
            return _results(chosen.mapInArrow(same_version(archive_summary(files, schema)), RESULT))

        try:
            return self._job(ask)
        except _Unreadable as error:
            if len(files) == 1:
                return [FileRows(files[0].uri, trouble=str(error))]
            half = len(files) // 2
            return self._archives(files[:half], schema, columns) + self._archives(files[half:], schema, columns)

    def foreign(self, files: Sequence[RowFile]) -> ForeignRows:
        """As the Protocol says. One job, however large: offsets of all files are sorted together."""
        if not files:
            return ForeignRows()

        def ask(session: SparkSession) -> list[Any]:
            coordinates, counts = self._coordinates(session, files)
            block = sql.floor(sql.col("offset") / _OFFSETS_TOGETHER)
            together = coordinates.repartition(parallelism(session) * _TASKS_PER_CORE, sql.col("partition"), block)
            parts = _results(together.sortWithinPartitions("partition", "offset").mapInArrow(same_version(sorted_summary), RESULT))
            return [merged_foreign(parts, counts())]

        try:
            found: ForeignRows = self._job(ask)[0]
            return found
        except _Unreadable as error:
            return ForeignRows(trouble=str(error))

    def _coordinates(self, session: SparkSession, files: Sequence[RowFile]) -> tuple[DataFrame, Callable[[], dict[str, int]]]:
        """Where the rows of somebody else's files are; and, when called, how many each file has."""
        if self._stored is not None:
            stored, tasks = self._stored, _tasks(session, files)

            def by_footer() -> dict[str, int]:
                return {
                    uri: rows for part in _results(tasks.mapInArrow(same_version(stored.counts()), RESULT)) for uri, rows in part.items()
                }

            return tasks.mapInArrow(same_version(stored.coordinates()), FOREIGN), by_footer
        frame = _parquet(session, files, _COORDINATES, strict=True)
        known = by_spelling(files)

        def by_rows() -> dict[str, int]:
            counted = frame.groupBy(sql.col("_metadata.file_path").alias("path")).count().collect()
            return {known[spelled(row["path"])].uri: row["count"] for row in counted}

        return frame.select(*_place(), "kafka").mapInArrow(same_version(unhidden(files)), FOREIGN), by_rows

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """As the Protocol says."""
        found: dict[str, bytes] = {}
        ordered = sorted(ranges, key=lambda one: (one.segments[0].file.log_index if one.segments else 0, one.base))
        for tasks in _rounds(ordered, _TASKS_PER_JOB):

            def ask(session: SparkSession, tasks: Sequence[Sequence[IntakeRange]] = tasks) -> list[Any]:
                return _results(
                    handed_out(session, [pack(task) for task in tasks]).mapInArrow(same_version(digest_batches(*self._intake)), RESULT)
                )

            for part in self._job(ask):
                found.update(part)
        return found

    def _job(self, ask: Callable[[SparkSession], list[Any]]) -> list[Any]:
        """One job, in its turn and within its time. Raises `RetryLater`, `_Unreadable` if files cannot be read, `Halt` if
        the workers cannot run our code.
        """
        with self._turn("a deep audit"), _apart(self._session(), self._answering()) as session:
            pulse = self._answering()
            watch = JobWatch(session, _JOB, self._timeout_s, pulse)
            try:
                with pulse, watch:
                    return ask(session)
            except (PySparkException, Py4JError, OSError, EOFError) as error:
                if pulse.silent:
                    raise RetryLater(
                        f"the JVM of spark gave no sign of life for {pulse.timeout_s:g} s and was killed; audit again"
                    ) from error
                if watch.overdue:
                    raise RetryLater(f"a job of the deep audit was cancelled after spark.job_timeout = {self._timeout_s:g} s") from error
                if why := unfit(error):
                    raise Halt(why) from error
                if short_of := shortage(error):
                    raise RetryLater(f"a worker ran short of something while it audited, audit again: {short_of}") from error
                raise _Unreadable(f"spark could not read it: {_told(error)}") from error


class _Unreadable(RetryLater):
    """A job failed, for a reason that may be in the files."""


def _parquet(session: SparkSession, files: Sequence[RowFile], columns: StructType | str, *, strict: bool = False) -> DataFrame:
    """The files' rows, each file in one piece. Unless `strict`, of a file that cannot be read on the rest is left out."""
    total, largest = sum(file.size for file in files), max(file.size for file in files)
    together = max(largest, min(_TASK_BYTES, total // (_TASKS_PER_CORE * parallelism(session)))) + 1
    low, high = _BATCH_ROWS
    rows = min(high, max(low, _BATCH_BYTES // max(1, *(file.row_bytes for file in files))))
    for name, value in {
        # With one partition asked for, files are cut at this size and nowhere below it: none is cut.
        "spark.sql.files.maxPartitionBytes": together,
        "spark.sql.files.minPartitionNum": 1,
        "spark.sql.files.openCostInBytes": 4096,
        "spark.sql.files.ignoreCorruptFiles": str(not strict).lower(),
        "spark.sql.files.ignoreMissingFiles": str(not strict).lower(),
        "spark.sql.parquet.columnarReaderBatchSize": rows,
        "spark.sql.execution.arrow.maxRecordsPerBatch": rows,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": parallelism(session),
        "spark.sql.shuffle.partitions": parallelism(session),
        "spark.sql.session.timeZone": "UTC",
    }.items():
        session.conf.set(name, str(value))
    options = {
        "recursiveFileLookup": "true",  # the folders' names are no columns
        "datetimeRebaseMode": "CORRECTED",
        "int96RebaseMode": "CORRECTED",
        "parquet.page.verify-checksum.enabled": "true",
    }
    return session.read.schema(columns).options(**options).parquet(*(_unglobbed(file.uri) for file in files))


def _tasks(session: SparkSession, files: Sequence[RowFile]) -> DataFrame:
    """Files to be read through the store, a few tasks per core."""
    total = sum(file.size for file in files)
    chunks = _chunks(files, max(1, min(_TASK_BYTES, total // (_TASKS_PER_CORE * parallelism(session)))))
    return handed_out(session, [pack(chunk) for chunk in chunks])


def _place() -> list[Column]:
    """The path in the first row of each file, and the position of every row."""
    row = sql.col("_metadata.row_index")
    return [sql.when(row == 0, sql.col("_metadata.file_path")).alias("path"), row.alias("row")]


def _unglobbed(uri: str) -> str:
    """Spark takes these characters of a path for patterns."""
    return "".join(f"\\{one}" if one in "*?[]{}" else one for one in uri)


def _results(frame: DataFrame) -> list[Any]:
    return [unpacked(bytes(row["result"])) for row in frame.collect()]


@contextlib.contextmanager
def _apart(shared: Any, pulse: Pulse) -> Iterator[SparkSession]:
    """A session with settings of its own. A Spark Connect server keeps its copy until it is told that nobody needs it."""
    connect = not hasattr(shared, "newSession")
    try:
        if connect:
            from archiver import spark_connect

            session = spark_connect.apart(shared)
        else:
            with pulse:
                session = shared.newSession()
    # Spark Connect lets errors of gRPC through as they are; nothing has begun, whatever it is.
    except Exception as error:
        raise RetryLater(f"spark was lost before a job of the deep audit began: {_told(error)}") from error
    try:
        yield session
    finally:
        if connect:
            spark_connect.end(session)


def _chunks(files: Sequence[RowFile], bytes_max: int) -> Iterator[list[RowFile]]:
    """Files for one job each, in their order."""
    chunk: list[RowFile] = []
    size = 0
    for file in files:
        if chunk and size + file.size > bytes_max:
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.size
    if chunk:
        yield chunk


def _rounds(ranges: Sequence[IntakeRange], tasks_max: int) -> Iterator[list[list[IntakeRange]]]:
    """Ranges in bundles of about `_TASK_BYTES` of records, and those in jobs of `tasks_max`."""
    tasks: list[list[IntakeRange]] = []
    size = 0
    for one in ranges:
        if not tasks or size > _TASK_BYTES:
            if len(tasks) == tasks_max:
                yield tasks
                tasks = []
            tasks.append([])
            size = 0
        tasks[-1].append(one)
        size += sum(segment.raw_bytes for segment in one.segments)
    if tasks:
        yield tasks


def _told(error: BaseException) -> str:
    """The innermost cause that Java names, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:_TEXT_MAX]
