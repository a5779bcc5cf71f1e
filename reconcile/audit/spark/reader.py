"""The deep audit's jobs on Spark: files in, runs of offsets and digests back.

Owns which worker reads what (`stored.py` has how): whole files, so that a worker sees each one's rows in
their order. Rows of an archive stay in the worker that reads and rebuilds them; of somebody else's files the
coordinates are sorted first, because such files mix offsets as they like. Promises that a job is bounded
(`JOB_BYTES` of files, one of them at least), that each waits for its turn on the session, and that the
session's settings stay as they are. An archive that cannot be read does not stop the others: it comes back
short. Must never collect rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from archiver.objects.location import StorePlace
from archiver.runtime.errors import Halt, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.schema.evolution.state import TopicSchema
from archiver.spark.session import parallelism
from archiver.spark.tasks import handed_out
from archiver.spark.watchdog import JobWatch, JvmHeartbeat, run_in_thread
from archiver.spark.worker_checks import same_version, shortage, unfit
from reconcile.audit.rows import Compared, FileRows, ForeignRows, IntakeRange, RowFile
from reconcile.audit.spark.comparison import (
    PRINTS,
    ColumnPrints,
    RecordPrints,
    merged_comparison,
    printing,
    summary_of,
)
from reconcile.audit.spark.intake_digests import digest_batches
from reconcile.audit.spark.stored import StoredFiles
from reconcile.audit.spark.summary import (
    FOREIGN,
    RESULT,
    merged_foreign,
    pack,
    positions_summary,
    sorted_summary,
    unpacked,
)
from reconcile.snapshot.offset_coverage import Range

JOB_BYTES = 1024**3
"""Files of one job. It bounds how long a round of archiving waits for an audit that is under way."""
_TASK_BYTES = 128 * 1024**2
_TASKS_PER_CORE = 4
_TASKS_PER_JOB = 8
_OFFSETS_TOGETHER = 2**20
"""Rows of somebody else's files are sorted in blocks of so many offsets."""
_POSITIONS = "file_path string, pos long, origin long"
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
        answering: Callable[[], JvmHeartbeat],
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
        self._stored = StoredFiles(place, cluster_id)
        self._job_bytes = job_bytes

    def positions(self, files: Sequence[RowFile]) -> Mapping[tuple[str, int], tuple[Range, ...]]:
        """As the Protocol says."""
        if not files:
            return {}

        def ask(session: SparkSession) -> list[Any]:
            rows = _tasks(session, files).mapInArrow(same_version(self._stored.positions()), _POSITIONS)
            frame = rows.repartition(parallelism(session), "file_path")
            ordered = frame.sortWithinPartitions("file_path", "origin", "pos")
            return _results(ordered.mapInArrow(same_version(positions_summary), RESULT))

        found: dict[tuple[str, int], tuple[Range, ...]] = {}
        for part in self._job(ask):
            found.update({place: tuple(runs) for place, runs in part.items()})
        return found

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """As the Protocol says."""
        return [one for chunk in _chunks(files, self._job_bytes) for one in self._archives(chunk, schema)]

    def _archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """One job, or more if it fails: a file that makes it fail is found by halving."""

        def ask(session: SparkSession) -> list[Any]:
            return _results(
                _tasks(session, files).mapInArrow(same_version(self._stored.archives(schema)), RESULT)
            )

        try:
            return self._job(ask)
        except _Unreadable as error:
            if len(files) == 1:
                return [FileRows(files[0].uri, trouble=str(error))]
            half = len(files) // 2
            return self._archives(files[:half], schema) + self._archives(files[half:], schema)

    def foreign(self, files: Sequence[RowFile]) -> ForeignRows:
        """As the Protocol says. One job, however large: offsets of all files are sorted together."""
        if not files:
            return ForeignRows()

        def ask(session: SparkSession) -> list[Any]:
            tasks = _tasks(session, files)
            coordinates = tasks.mapInArrow(same_version(self._stored.coordinates()), FOREIGN)
            block = sql.floor(sql.col("offset") / _OFFSETS_TOGETHER)
            together = coordinates.repartition(
                parallelism(session) * _TASKS_PER_CORE, sql.col("partition"), block
            )
            parts = _results(
                together.sortWithinPartitions("partition", "offset").mapInArrow(
                    same_version(sorted_summary), RESULT
                )
            )
            counts = _results(tasks.mapInArrow(same_version(self._stored.counts()), RESULT))
            return [merged_foreign(parts, {uri: rows for part in counts for uri, rows in part.items()})]

        try:
            found: ForeignRows = self._job(ask)[0]
            return found
        except _Unreadable as error:
            return ForeignRows(trouble=str(error))

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        """As the Protocol says. A job has about `job_bytes` of the files, and the archives that can have
        their offsets.
        """
        prints = RecordPrints(versions) if records else ColumnPrints(versions[-1])
        chunks = list(_chunks(sorted(files, key=_first_offset), self._job_bytes))
        parts: list[Compared] = []
        for chunk in chunks:
            near = (
                archives
                if len(chunks) == 1
                else [one for one in archives if any(_can_share(file, one) for file in chunk)]
            )

            def ask(session: SparkSession, both: Sequence[RowFile] = (*chunk, *near)) -> list[Any]:
                rows = _tasks(session, both).mapInArrow(same_version(printing(self._stored, prints)), PRINTS)
                block = sql.floor(sql.col("offset") / _OFFSETS_TOGETHER)
                together = rows.repartition(
                    parallelism(session) * _TASKS_PER_CORE, sql.col("partition"), block
                )
                ordered = together.sortWithinPartitions("partition", "offset", "origin")
                return _results(ordered.mapInArrow(same_version(summary_of(records=records)), RESULT))

            try:
                parts += self._job(ask)
            except _Unreadable as error:
                return Compared(trouble=str(error))
        return merged_comparison(parts)

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """As the Protocol says."""
        found: dict[str, bytes] = {}
        ordered = sorted(
            ranges, key=lambda one: (one.segments[0].file.log_index if one.segments else 0, one.base)
        )
        for tasks in _rounds(ordered, _TASKS_PER_JOB):

            def ask(session: SparkSession, tasks: Sequence[Sequence[IntakeRange]] = tasks) -> list[Any]:
                return _results(
                    handed_out(session, [pack(task) for task in tasks]).mapInArrow(
                        same_version(digest_batches(*self._intake)), RESULT
                    )
                )

            for part in self._job(ask):
                found.update(part)
        return found

    def _job(self, ask: Callable[[SparkSession], list[Any]]) -> list[Any]:
        """One job, in its turn and within its time. Raises `RetryLater`, `_Unreadable` if files cannot be
        read, `Halt` if the workers cannot run our code.
        """
        with self._turn("a deep audit"):
            session, pulse = self._session(), self._answering()
            watch = JobWatch(session, _JOB, self._timeout_s, pulse)

            def work() -> list[Any]:
                with pulse, watch:
                    return ask(session)

            try:
                return run_in_thread(work, watch.give_up, "audit-job")
            except (PySparkException, Py4JError, OSError, EOFError) as error:
                if pulse.silent:
                    raise RetryLater(
                        f"the JVM of spark gave no sign of life for {pulse.timeout_s:g} s and was "
                        "killed; audit again"
                    ) from error
                if watch.overdue:
                    raise RetryLater(
                        "a job of the deep audit was cancelled after spark.job_timeout = "
                        f"{self._timeout_s:g} s"
                    ) from error
                if why := unfit(error):
                    raise Halt(why) from error
                if short_of := shortage(error):
                    raise RetryLater(
                        f"a worker ran short of something while it audited, audit again: {short_of}"
                    ) from error
                raise _Unreadable(f"spark could not read it: {_told(error)}") from error


class _Unreadable(RetryLater):
    """A job failed, for a reason that may be in the files."""


def _tasks(session: SparkSession, files: Sequence[RowFile]) -> DataFrame:
    """Whole files in a few tasks per core."""
    total = sum(file.size for file in files)
    chunks = _chunks(files, max(1, min(_TASK_BYTES, total // (_TASKS_PER_CORE * parallelism(session)))))
    return handed_out(session, [pack(chunk) for chunk in chunks])


def _results(frame: DataFrame) -> list[Any]:
    return [unpacked(bytes(row["result"])) for row in frame.collect()]


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


def _first_offset(file: RowFile) -> tuple[int, int]:
    """For an order in which files with the same offsets are close to each other."""
    return (0, 0) if file.extent is None else (file.extent[2], file.extent[0])


def _can_share(file: RowFile, archive: RowFile) -> bool:
    """Whether an archive can have an offset of a file, by what the table's metadata says of the file."""
    key = archive.key
    if file.extent is None or key is None:
        return True
    partition_min, partition_max, offset_min, offset_max = file.extent
    return partition_min <= key.partition <= partition_max and key.base <= offset_max and offset_min < key.end


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
    return excerpt(causes[-1] if causes else lines[0] if lines else type(error).__name__, _TEXT_MAX)
