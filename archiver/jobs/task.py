"""One refinement task: a bundle of plans over a span of intake files.

Runs anywhere: in a Spark worker, or in the process of a test. Owns the order in which intake is read. Promises that each intake file is
opened once for all plans of the task (while there is room for all their writers, see `archiver.jobs.bundle`), that memory stays within
`buffer_bytes` plus a row group, and that each plan gets exactly one result. A plan's trouble never concerns a plan that does not need the
same bytes. Must never raise because of what is in a record or missing in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from archiver.errors import ArchiverError, Corrupted, NotFound, OutcomeUnknown, RetryLater
from archiver.ids import TopicId
from archiver.jobs.archive_file import Conflict
from archiver.jobs.bundle import written_together
from archiver.jobs.plan import Plan
from archiver.jobs.plan_writer import PlanWriter
from archiver.jobs.refined import ErrorKind, PlanResult, TaskDescriptor
from archiver.jobs.rows import TopicRows
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from intake.reader import IntakeReader
from intake.segments import FileRef, SegmentRef

_ROW_GROUP_BYTES = 1024 * 1024
"""What a small segment may pin in memory: a row group of an intake file is about this large."""
_SLICE_BYTES = 3 * 1024
"""What a segment takes in memory however few its records are, as long as it is a slice of its own (measured: 2.7 KB)."""


def run_bundle(task: TaskDescriptor, objects: ObjectStore | None = None) -> Iterator[PlanResult]:
    """Carry out a task; one result per plan, as soon as it is settled.

    `objects` is opened from the descriptor if it is not given: as the store of the task's cluster, so that nothing is written below the
    mount point of a folder that is gone.
    """
    store = open_store(task.place, task.cluster_id) if objects is None else objects
    topics: dict[TopicId, TopicRows] = {}
    for plans in written_together(task.plans, task.options.open_writers_max, task.options.writer_bytes):
        yield from _Demultiplexer(task, plans, store, topics).run()


@dataclass(slots=True)
class _Work:
    """A plan under way."""

    plan: Plan
    writer: PlanWriter
    segments_left: int
    settled: bool = False


@dataclass(slots=True)
class _FileWork:
    """What is wanted from one intake file."""

    file: FileRef
    wanted: dict[tuple[int, int], tuple[SegmentRef, list[_Work]]] = field(default_factory=dict)
    """(row group, first row) → the segment and who needs it."""

    def still_wanted(self) -> list[SegmentRef]:
        """Segments that some plan still waits for, in the order of the file."""
        return [segment for _, (segment, works) in sorted(self.wanted.items()) if any(not work.settled for work in works)]


class _Demultiplexer:
    """Reads the intake files in the order of the log and gives each segment to the plans that need it."""

    def __init__(self, task: TaskDescriptor, plans: Sequence[Plan], objects: ObjectStore, topics: dict[TopicId, TopicRows]) -> None:
        self._task = task
        self._objects = objects
        self._reader = IntakeReader(objects)
        self._topics = topics
        self._plans = plans
        self._open: list[_Work] = []
        self._pinned_bytes = 0
        self._held_bytes = 0

    def run(self) -> Iterator[PlanResult]:
        """Results in the order in which the plans are settled."""
        files: dict[int, _FileWork] = {}
        try:
            for plan in self._plans:
                yield from self._begin(plan, files)
            for index in sorted(files):
                yield from self._read(files[index])
            for work in list(self._open):
                yield self._finish(work)
        finally:
            for work in self._open:
                work.writer.discard()

    def _begin(self, plan: Plan, files: dict[int, _FileWork]) -> Iterator[PlanResult]:
        """Open a writer and note which segments it needs; a result only if that fails."""
        try:
            rows = self._topics.get(plan.topic_id)
            if rows is None:
                rows = self._topics[plan.topic_id] = TopicRows(self._task.topics[plan.topic_id], self._task.options)
        except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
            kind, why = _verdict(error)
            yield PlanResult.failed(plan, "retry" if kind == "retry" else "failed", why)
            return
        writer = PlanWriter(plan, rows, self._task.cluster_id, self._objects, self._task.options)
        work = _Work(plan, writer, len(plan.segments))
        self._open.append(work)
        for segment in plan.segments:
            of_file = files.get(segment.file.log_index)
            if of_file is None:
                of_file = files[segment.file.log_index] = _FileWork(segment.file)
            of_file.wanted.setdefault((segment.row_group, segment.first_row), (segment, []))[1].append(work)

    def _read(self, file: _FileWork) -> Iterator[PlanResult]:
        """Everything that is wanted from one file.

        A row group that cannot be read fails the plans that need it; reading then goes on behind it.
        """
        remaining = file.still_wanted()
        while remaining:
            taken = 0
            try:
                for segment, records in self._reader.read(file.file, remaining):
                    taken += 1
                    yield from self._give(file, segment, records)
                return
            except (ArchiverError, OSError, pa.ArrowException) as error:
                trouble = _intake_verdict(error)
            damaged = remaining[taken].row_group if taken < len(remaining) else None
            whole_file = damaged is None or trouble[0] in ("missing", "retry")
            concerned = [segment for segment in remaining[taken:] if whole_file or segment.row_group == damaged]
            for segment in concerned:
                for work in file.wanted[(segment.row_group, segment.first_row)][1]:
                    yield from self._fail(work, *trouble)
            if whole_file:
                return
            behind = {(segment.row_group, segment.first_row) for segment in remaining[taken:]}
            remaining = [segment for segment in file.still_wanted() if (segment.row_group, segment.first_row) in behind]

    def _give(self, file: _FileWork, segment: SegmentRef, records: pa.RecordBatch) -> Iterator[PlanResult]:
        """One segment to everyone who needs it."""
        for work in file.wanted[(segment.row_group, segment.first_row)][1]:
            if work.settled:
                continue
            before = work.writer.held_bytes
            try:
                work.writer.add(segment, records)
            except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                self._held_bytes -= before
                yield from self._fail(work, *_verdict(error))
                continue
            self._held_bytes += work.writer.held_bytes - before
            work.segments_left -= 1
            if work.segments_left == 0 or work.writer.conflict is not None:
                yield self._finish(work)
        self._pinned_bytes += _SLICE_BYTES + max(_ROW_GROUP_BYTES if segment.first_row == 0 else 0, segment.raw_bytes)
        yield from self._bound_memory()

    def _bound_memory(self) -> Iterator[PlanResult]:
        """Free row groups that small slices keep alive; close the fullest writer's row group when all hold too much."""
        limit = self._task.options.buffer_bytes
        if self._pinned_bytes > limit // 4:
            for work in self._open:
                work.writer.detach()
            self._pinned_bytes = 0
        while self._held_bytes > limit and self._open:
            work = max(self._open, key=lambda one: one.writer.held_bytes)
            try:
                work.writer.relieve()
            except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                yield from self._fail(work, *_verdict(error))
            self._held_bytes = sum(one.writer.held_bytes for one in self._open)

    def _finish(self, work: _Work) -> PlanResult:
        """Settle a plan whose segments have all come."""
        held = work.writer.held_bytes
        try:
            outcome = work.writer.conflict or work.writer.finish()
            if isinstance(outcome, Conflict):
                result = PlanResult.failed(work.plan, "conflict", outcome.why)
            else:
                result = PlanResult.done(work.plan, outcome)
        except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
            result = PlanResult.failed(work.plan, *_verdict(error))
        self._settle(work)
        self._held_bytes = max(0, self._held_bytes - held)
        return result

    def _fail(self, work: _Work, kind: ErrorKind, why: str) -> Iterable[PlanResult]:
        """Settle a plan with an error; nothing if it is settled already."""
        if work.settled:
            return ()
        self._settle(work)
        self._held_bytes = sum(one.writer.held_bytes for one in self._open)
        return (PlanResult.failed(work.plan, kind, why),)

    def _settle(self, work: _Work) -> None:
        work.settled = True
        work.writer.discard()
        self._open = [one for one in self._open if one is not work]


def _intake_verdict(error: Exception) -> tuple[ErrorKind, str]:
    """What an error of reading intake means for the plans that need the bytes."""
    if isinstance(error, NotFound) or isinstance(error.__cause__, NotFound):
        return "missing", str(error)
    if isinstance(error, pa.ArrowException) and not isinstance(error, MemoryError):
        return "corrupted", f"{type(error).__name__}: {error}"
    return _verdict(error)


def _verdict(error: Exception) -> tuple[ErrorKind, str]:
    """What an error means for the plan, and the sentence for people."""
    why = str(error) or type(error).__name__
    if isinstance(error, RetryLater | OutcomeUnknown):
        return "retry", why
    if isinstance(error, Corrupted):
        return "corrupted", why
    if isinstance(error, OSError | MemoryError):
        return "retry", f"{type(error).__name__}: {why}"
    if isinstance(error, ArchiverError):
        return "failed", why
    return "failed", f"{type(error).__name__}: {why}"
