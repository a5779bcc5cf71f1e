"""Runs the deep audit's Spark jobs: files in, runs of offsets and digests out.

Each worker reads whole files (`stored.py`), so it has each file's rows in order. A job is limited
(`JOB_BYTES` of files, at least one) and waits for its turn on the session, whose settings stay unchanged.
Rows are never collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError, Halt, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.schema.evolution.state import TopicSchema
from archiver.spark.session import parallelism
from archiver.spark.tasks import handed_out
from archiver.spark.watchdog import JobWatch, JvmHeartbeat, run_in_thread
from archiver.spark.worker_checks import same_version, shortage, unfit
from archiver.stream.rebuild import from_segment
from intake.read.digest import RecordsDigest
from intake.read.reader import IntakeReader
from intake.segments import FileRef, SegmentRef
from reconcile.audit.rows import Compared, ExternalRows, FileRows, IntakeRange, RowFile
from reconcile.audit.spark.comparison import (
    PRINTS,
    ColumnPrints,
    RecordPrints,
    merged_comparison,
    printing,
    summary_of,
)
from reconcile.audit.spark.stored import StoredFiles
from reconcile.audit.spark.summary import (
    EXTERNAL,
    RESULT,
    merged_external,
    pack,
    packed,
    positions_summary,
    sorted_summary,
    unpacked,
)
from reconcile.snapshot.offset_coverage import Range, total


# --- Digests of intake
@dataclass(slots=True)
class _Range:
    intake: IntakeRange
    digest: RecordsDigest
    rows: int = 0
    lost: bool = False


def digest_batches(
    place: StorePlace, cluster_id: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: from rows with a column `task` to one mapping of digests per task."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # One store per Spark partition: connections cannot travel from the driver.
        objects = open_store(place, cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                yield packed(digests(objects, unpacked(cell.as_py())))

    return work


def digests(objects: ObjectStore, ranges: Sequence[IntakeRange]) -> dict[str, bytes]:
    """The digest of each completely readable range, by the archive's uri."""
    works = [_Range(one, RecordsDigest(one.digest_version)) for one in ranges]
    files: dict[int, tuple[FileRef, dict[tuple[int, int], tuple[SegmentRef, list[_Range]]]]] = {}
    # Archives share intake files, so segments are grouped by file and each file is read once.
    for work in works:
        for segment in work.intake.segments:
            _, needed = files.setdefault(segment.file.log_index, (segment.file, {}))
            needed.setdefault((segment.row_group, segment.first_row), (segment, []))[1].append(work)
    reader = IntakeReader(objects)
    # Log order: the digest of a range needs its records in offset order.
    for index in sorted(files):
        file, needed = files[index]
        left = set(needed)
        try:
            for segment, records in reader.read(file, [segment for segment, _ in needed.values()]):
                place = (segment.row_group, segment.first_row)
                for work in needed[place][1]:
                    _feed(work, segment, records)
                left.discard(place)
        # The vacuum may delete intake files during the audit. Only the ranges of this file are lost.
        except (ArchiverError, OSError, pa.ArrowException):
            for place in left:
                for work in needed[place][1]:
                    work.lost = True
    return {
        work.intake.uri: work.digest.digest()
        for work in works
        # With fewer records the digest differs, which would accuse an intact archive.
        if not work.lost and work.rows == _due(work.intake)
    }


def _due(intake: IntakeRange) -> int:
    return intake.end - intake.base - total(intake.gaps)


def _feed(work: _Range, segment: SegmentRef, records: pa.RecordBatch) -> None:
    """Add the part of a segment in the range; the order of the log is the order of offsets."""
    rows = from_segment(segment, records)
    low, high = max(work.intake.base, segment.base), min(work.intake.end, segment.end)
    if low < high:
        work.digest.update(rows.slice(low - segment.base, high - low))
        work.rows += high - low


# --- Jobs
JOB_BYTES = 1024**3
"""Files of one job. It limits how long an archiving round waits for a running audit."""
_TASK_BYTES = 128 * 1024**2
# Several tasks per core, so that the cores finish at about the same time.
_TASKS_PER_CORE = 4
# Bundles of intake per job, so that a job of digests is about as long as one of archives.
_TASKS_PER_JOB = 8
_OFFSETS_TOGETHER = 2**20
"""Rows of other writers' files are sorted in blocks of so many offsets."""
_POSITIONS = "file_path string, pos long, origin long"
_JOB = "archiver-audit"
_TEXT_MAX = 300

Turn = Callable[[str], AbstractContextManager[None]]


class SparkRows:
    """The `RowReader` on Spark. `session` is called for each job, so that a lost session is replaced."""

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
        """`timeout_s` limits a job; a worker opens `place` and `cluster_id` to read intake."""
        self._session = session
        self._turn = turn
        self._timeout_s = timeout_s
        self._answering = answering
        self._intake = (place, cluster_id)
        self._stored = StoredFiles(place, cluster_id)
        self._job_bytes = job_bytes

    def positions(self, files: Sequence[RowFile]) -> Mapping[tuple[str, int], tuple[Range, ...]]:
        """See `RowReader`."""
        if not files:
            return {}

        def ask(session: SparkSession) -> list[Any]:
            rows = _tasks(session, files).mapInArrow(same_version(self._stored.positions()), _POSITIONS)
            # All positions of a data file in one task, so that its runs can be merged.
            frame = rows.repartition(parallelism(session), "file_path")
            ordered = frame.sortWithinPartitions("file_path", "origin", "pos")
            return _results(ordered.mapInArrow(same_version(positions_summary), RESULT))

        found: dict[tuple[str, int], tuple[Range, ...]] = {}
        for part in self._job(ask):
            # Each path is in one part, so no runs are overwritten.
            found.update({place: tuple(runs) for place, runs in part.items()})
        return found

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """See `RowReader`."""
        return [one for chunk in _chunks(files, self._job_bytes) for one in self._archives(chunk, schema)]

    def _archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """One job, or several if it fails."""

        def ask(session: SparkSession) -> list[Any]:
            return _results(
                _tasks(session, files).mapInArrow(same_version(self._stored.archives(schema)), RESULT)
            )

        try:
            return self._job(ask)
        except _Unreadable as error:
            if len(files) == 1:
                return [FileRows(files[0].uri, trouble=str(error))]
            # A file can crash its worker, which fails the whole job. Bisection finds it.
            half = len(files) // 2
            return self._archives(files[:half], schema) + self._archives(files[half:], schema)

    def external(self, files: Sequence[RowFile]) -> ExternalRows:
        """See `RowReader`. One job of any size: offsets of all files are sorted together."""
        if not files:
            return ExternalRows()

        def ask(session: SparkSession) -> list[Any]:
            tasks = _tasks(session, files)
            coordinates = tasks.mapInArrow(same_version(self._stored.coordinates()), EXTERNAL)
            # Blocks of offsets, because a hash of single offsets would cut every run.
            block = sql.floor(sql.col("offset") / _OFFSETS_TOGETHER)
            together = coordinates.repartition(
                parallelism(session) * _TASKS_PER_CORE, sql.col("partition"), block
            )
            parts = _results(
                together.sortWithinPartitions("partition", "offset").mapInArrow(
                    same_version(sorted_summary), RESULT
                )
            )
            # Rows without coordinates are in no run, so row counts come from the footers.
            counts = _results(tasks.mapInArrow(same_version(self._stored.counts()), RESULT))
            return [merged_external(parts, {uri: rows for part in counts for uri, rows in part.items()})]

        try:
            found: ExternalRows = self._job(ask)[0]
            return found
        except _Unreadable as error:
            return ExternalRows(trouble=str(error))

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        """See `RowReader`. A job has about `job_bytes` of the files, and all archives that may share their
        offsets.
        """
        prints = RecordPrints(versions) if records else ColumnPrints(versions[-1])
        # Sorted by offset, so that a chunk shares offsets with few archives.
        chunks = list(_chunks(sorted(files, key=_first_offset), self._job_bytes))
        parts: list[Compared] = []
        for chunk in chunks:
            near = (
                archives
                # The caller passes only archives that are needed.
                if len(chunks) == 1
                else [one for one in archives if any(_can_share(file, one) for file in chunk)]
            )

            # Default arguments bind the values of this iteration.
            def ask(session: SparkSession, both: Sequence[RowFile] = (*chunk, *near)) -> list[Any]:
                rows = _tasks(session, both).mapInArrow(same_version(printing(self._stored, prints)), PRINTS)
                block = sql.floor(sql.col("offset") / _OFFSETS_TOGETHER)
                together = rows.repartition(
                    parallelism(session) * _TASKS_PER_CORE, sql.col("partition"), block
                )
                # Archive rows have origin -1, so they come first at each offset.
                ordered = together.sortWithinPartitions("partition", "offset", "origin")
                return _results(ordered.mapInArrow(same_version(summary_of(records=records)), RESULT))

            try:
                parts += self._job(ask)
            except _Unreadable as error:
                return Compared(trouble=str(error))
        return merged_comparison(parts)

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """See `RowReader`."""
        found: dict[str, bytes] = {}
        ordered = sorted(
            # Log order, so that archives of the same intake files are in one task.
            ranges,
            key=lambda one: (one.segments[0].file.log_index if one.segments else 0, one.base),
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
        """Run one job, in its turn and within its time limit. Raises `RetryLater`, `_Unreadable` if files
        cannot be read, `Halt` if the workers cannot run the archiver's code.
        """
        with self._turn("a deep audit"):
            # Inside the turn: another job may have replaced the session while this one waited.
            session, pulse = self._session(), self._answering()
            watch = JobWatch(session, _JOB, self._timeout_s, pulse)

            def work() -> list[Any]:
                with pulse, watch:
                    return ask(session)

            try:
                # py4j takes a Ctrl-C during a call for an error of that call, so the call runs in another
                # thread.
                return run_in_thread(work, watch.give_up, "audit-job")
            except (PySparkException, Py4JError, OSError, EOFError) as error:
                # The cause is checked before the text: a killed JVM and a cancelled job raise the same
                # exceptions.
                if pulse.silent:
                    raise RetryLater(
                        f"the JVM of spark did not answer for {pulse.timeout_s:g} s and was killed; "
                        "audit again"
                    ) from error
                if watch.overdue:
                    raise RetryLater(
                        "a job of the deep audit was cancelled after spark.job_timeout = "
                        f"{self._timeout_s:g} s"
                    ) from error
                if why := unfit(error):
                    raise Halt(why) from error
                # A lack of memory or disk says nothing about the files.
                if short_of := shortage(error):
                    raise RetryLater(
                        f"a worker ran out of a resource during the audit, audit again: {short_of}"
                    ) from error
                raise _Unreadable(f"spark could not read it: {_cause(error)}") from error


class _Unreadable(RetryLater):
    """A job failed, possibly because of a file."""


def _tasks(session: SparkSession, files: Sequence[RowFile]) -> DataFrame:
    """Whole files in a few tasks per core."""
    total = sum(file.size for file in files)
    # Small jobs get small tasks, so that every core has work.
    chunks = _chunks(files, max(1, min(_TASK_BYTES, total // (_TASKS_PER_CORE * parallelism(session)))))
    return handed_out(session, [pack(chunk) for chunk in chunks])


def _results(frame: DataFrame) -> list[Any]:
    return [unpacked(bytes(row["result"])) for row in frame.collect()]


def _chunks(files: Sequence[RowFile], bytes_max: int) -> Iterator[list[RowFile]]:
    """Files for one job each, in their order."""
    chunk: list[RowFile] = []
    size = 0
    for file in files:
        # A file is never split: its digest needs its rows in order.
        if chunk and size + file.size > bytes_max:
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.size
    if chunk:
        yield chunk


def _first_offset(file: RowFile) -> tuple[int, int]:
    """A sort key that puts files with the same offsets close together."""
    return (0, 0) if file.extent is None else (file.extent[2], file.extent[0])


def _can_share(file: RowFile, archive: RowFile) -> bool:
    """Whether an archive may share an offset with a file, by the table's metadata of the file."""
    key = archive.key
    # Without bounds any archive may share an offset.
    if file.extent is None or key is None:
        return True
    partition_min, partition_max, offset_min, offset_max = file.extent
    return partition_min <= key.partition <= partition_max and key.base <= offset_max and offset_min < key.end


def _rounds(ranges: Sequence[IntakeRange], tasks_max: int) -> Iterator[list[list[IntakeRange]]]:
    """Ranges in bundles of about `_TASK_BYTES` of records, and the bundles in jobs of `tasks_max`."""
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


def _cause(error: BaseException) -> str:
    """The innermost Java cause, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The outermost line of a Spark error only says that a stage failed.
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return excerpt(causes[-1] if causes else lines[0] if lines else type(error).__name__, _TEXT_MAX)
