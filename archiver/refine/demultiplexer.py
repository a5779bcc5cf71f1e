"""One refinement task: a bundle of plans over a span of intake files.

Runs anywhere: in a Spark worker, or in the process of a test. Owns the order in which intake is read.
Promises that each intake file is opened once for all plans of the task (while there is room for all their
writers, see `archiver.refine.plan`), that memory stays within one and a half times `buffer_bytes` plus
what is read ahead (`archiver.refine.prefetch`), and that each plan gets exactly one result. A plan's trouble
never concerns a plan that does not need the same bytes. Must never raise because of what is in a record or
missing in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import Conflict, Uploads
from archiver.refine.plan import ROW_OVERHEAD_BYTES, Plan, written_together
from archiver.refine.plan_writer import Kept, PlanWriter, TopicRows, copied, kept
from archiver.refine.prefetch import Part, ReadAhead, parts_to_read
from archiver.refine.task import ErrorKind, PlanResult, TaskDescriptor, pack, unpack_task
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Corrupted, NotFound, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from intake.read.reader import IntakeReader, beyond

_PIECE_BYTES = 200
"""What is kept of a segment that waits to be decoded beside its records, however few these are (measured: 130
to 190)."""
_TRIMMED_BELOW = 0.75
"""If all that is wanted lies within less than this share of a row group, the rest is not kept."""


def run_bundle(task: TaskDescriptor, objects: ObjectStore | None = None) -> Iterator[PlanResult]:
    """Carry out a task; one result per plan, as soon as it is settled.

    `objects` is opened from the descriptor if it is not given: as the store of the task's cluster, so that
    nothing is written below the mount point of a folder that is gone.
    """
    store = open_store(task.place, task.cluster_id) if objects is None else objects
    topics: dict[TopicId, TopicRows] = {}
    with Uploads(store, task.options.uploads_max) as uploads:
        for plans in written_together(task.plans, task.options.open_writers_max, task.options.writer_bytes):
            yield from _Demultiplexer(task, plans, store, uploads, topics).run()


@dataclass(slots=True)
class _Work:
    """A plan under way."""

    plan: Plan
    writer: PlanWriter
    settled: bool = False


class _Demultiplexer:
    """Reads the intake files in the order of the log and gives the records of each segment to the plans that
    need it.
    """

    def __init__(
        self,
        task: TaskDescriptor,
        plans: Sequence[Plan],
        objects: ObjectStore,
        uploads: Uploads,
        topics: dict[TopicId, TopicRows],
    ) -> None:
        self._task = task
        self._objects = objects
        self._uploads = uploads
        self._reader = ReadAhead(IntakeReader(objects), task.options.reads_max, self._still_wanted)
        self._topics = topics
        self._plans = plans
        self._works: list[_Work] = []
        self._open: dict[int, _Work] = {}
        """Those that are not settled, by their place among the works."""
        self._leaving: deque[_Work] = deque()
        """Settled but for their last archive, which is on its way into the store."""
        self._pinned_bytes = 0
        """What row groups take of which something may wait to be decoded, if nothing was copied out of them
        since."""
        self._pinned_next = task.options.buffer_bytes // 4
        """When they take more than this, it is counted how much of them nothing waits for."""
        self._held_bytes = 0
        """What the open writers hold, or more: it is counted anew before anything is done about it."""

    def run(self) -> Iterator[PlanResult]:
        """Results in the order in which the plans are settled."""
        try:
            for plan in self._plans:
                yield from self._begin(plan)
            for parts in self._reader.through(parts_to_read([work.plan for work in self._works])):
                yield from self._read(parts)
                yield from self._stored(self._task.options.uploads_max)
            for owner, work in list(self._open.items()):
                yield from self._finish(owner, work)
            yield from self._stored(0)
        finally:
            self._reader.close()
            for work in self._open.values():
                work.writer.discard()

    def _begin(self, plan: Plan) -> Iterator[PlanResult]:
        """Open a writer; a result only if that fails."""
        try:
            rows = self._topics.get(plan.topic_id)
            if rows is None:
                rows = self._topics[plan.topic_id] = TopicRows(
                    self._task.topics[plan.topic_id], self._task.options
                )
        except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
            kind, why = _verdict(error)
            yield PlanResult.failed(plan, "retry" if kind == "retry" else "failed", why)
            return
        try:
            work = _Work(
                plan,
                PlanWriter(
                    plan, rows, self._task.cluster_id, self._objects, self._uploads, self._task.options
                ),
            )
        except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
            yield PlanResult.failed(plan, *_verdict(error))
            return
        self._open[len(self._works)] = work
        self._works.append(work)

    def _read(self, parts: Sequence[Part]) -> Iterator[PlanResult]:
        """Everything that is wanted from one file.

        A row group that cannot be read fails the plans that need it; reading then goes on behind it.
        """
        remaining = self._still_wanted(parts)
        while remaining:
            taken = 0
            try:
                read = self._reader.row_groups(parts[0].file, [part.row_group for part in remaining])
                for part, records in zip(remaining, read, strict=True):
                    taken += 1
                    yield from self._give(part, records)
                return
            except (ArchiverError, OSError, pa.ArrowException) as error:
                trouble = _intake_verdict(error)
            behind = taken + 1
            if trouble[0] in ("missing", "retry"):
                behind = len(remaining)  # nothing of the file can be read now
            for part in remaining[taken:behind]:
                for owner, *_ in part.lines:
                    yield from self._fail(owner, *trouble)
            remaining = self._still_wanted(remaining[behind:])

    def _still_wanted(self, parts: Sequence[Part]) -> list[Part]:
        """Parts that some plan still waits for."""
        return [part for part in parts if any(owner in self._open for owner, *_ in part.lines)]

    def _give(self, part: Part, records: pa.RecordBatch) -> Iterator[PlanResult]:
        """The records of a row group to everyone who needs some of them. This loop runs for every segment
        there is: it does little.
        """
        self._held_bytes += part.raw_bytes + ROW_OVERHEAD_BYTES * part.rows
        try:
            trimmed, start = _trimmed(records, part)
        except Exception as error:  # noqa: BLE001 - those who need it fail, so that nobody goes on without it
            for owner, *_ in part.lines:
                yield from self._fail(owner, *_verdict(error))
            return
        for owner, place, first, rows in part.lines:
            work = self._works[owner]
            if work.settled:
                continue
            if first + rows > records.num_rows:
                yield from self._fail(
                    owner, *_intake_verdict(beyond(part.file, part.row_group, records.num_rows))
                )
                continue
            try:
                if work.writer.add(place, trimmed, first - start, rows):
                    yield from self._decode(owner, work)
            except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                yield from self._fail(owner, *_verdict(error))
        self._pinned_bytes += trimmed.nbytes + _PIECE_BYTES * len(part.lines)
        yield from self._bound_memory()

    def _decode(self, owner: int, work: _Work) -> Iterator[PlanResult]:
        """What is due of a plan, which may settle it."""
        if not work.writer.complete:
            before = work.writer.held_bytes
            work.writer.decode()
            self._held_bytes += work.writer.held_bytes - before
        if work.writer.complete or work.writer.conflict is not None:
            yield from self._finish(owner, work)

    def _bound_memory(self) -> Iterator[PlanResult]:
        """Free row groups that small slices keep alive; close the fullest writer's row group when all hold
        too much.
        """
        limit = self._task.options.buffer_bytes
        if self._pinned_bytes > self._pinned_next:
            self._pinned_next = self._pinned_bytes + limit // 16
            self._held_bytes = self._count_held()
            for_nothing = self._pinned_bytes - sum(work.writer.pinning_bytes for work in self._open.values())
            # While it is copied it is there twice: no row group goes before the last writer has copied what
            # it needs of it.
            if for_nothing > limit // 4 or self._pinned_bytes + self._held_bytes > limit + limit // 2:
                for owner, work in list(self._open.items()):
                    try:
                        work.writer.detach()
                    except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                        yield from self._fail(owner, *_verdict(error))
                self._pinned_bytes, self._pinned_next = 0, limit // 4
        if self._held_bytes > limit:
            self._held_bytes = self._count_held()
        while self._held_bytes > limit and self._open:
            owner, work = max(self._open.items(), key=lambda one: one[1].writer.held_bytes)
            try:
                work.writer.relieve()
            except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                yield from self._fail(owner, *_verdict(error))
            self._held_bytes = self._count_held()

    def _count_held(self) -> int:
        return sum(work.writer.held_bytes for work in self._open.values())

    def _finish(self, owner: int, work: _Work) -> Iterator[PlanResult]:
        """Settle a plan whose segments have all come: it is stored while others go on."""
        try:
            if work.writer.conflict is None:
                work.writer.finish()
        except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
            yield from self._fail(owner, *_verdict(error))
            return
        self._settle(owner)
        self._leaving.append(work)
        yield from self._stored(self._task.options.uploads_max)

    def _stored(self, under_way_max: int) -> Iterator[PlanResult]:
        """Results of plans that are stored by now; waits for the oldest while more than so many are under
        way.
        """
        while self._leaving and (len(self._leaving) > under_way_max or self._leaving[0].writer.stored):
            work = self._leaving.popleft()
            try:
                outcome = work.writer.outcome()
            except Exception as error:  # noqa: BLE001 - a plan's trouble, whatever it is, must not stop its neighbours
                yield PlanResult.failed(work.plan, *_verdict(error))
                continue
            if isinstance(outcome, Conflict):
                yield PlanResult.failed(work.plan, "conflict", outcome.why)
            else:
                yield PlanResult.done(work.plan, outcome)

    def _fail(self, owner: int, kind: ErrorKind, why: str) -> Iterable[PlanResult]:
        """Settle a plan with an error; nothing if it is settled already."""
        work = self._works[owner]
        if work.settled:
            return ()
        self._settle(owner)
        return (PlanResult.failed(work.plan, kind, why),)

    def _settle(self, owner: int) -> None:
        work = self._open.pop(owner)
        work.settled = True
        work.writer.discard()


def _trimmed(records: pa.RecordBatch, part: Part) -> tuple[Kept, int]:
    """What is to be kept of a row group's records, and its first row: what is wanted may wait for long, and
    is mostly in one place.
    """
    start, end = part.lines[0][2], part.end_row
    if end - start > _TRIMMED_BELOW * records.num_rows:
        return kept(records), 0
    return copied([(kept(records.slice(start, end - start)), 0, end - start)])[0], start


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


RESULT_SCHEMA = pa.schema([pa.field("result", pa.binary())])

_armed_with: list[str] = [""]


def refine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: rows with a column `task` in, rows with a column `result` out, one per
    plan.
    """
    # Arrow would import it in the middle of a plan, where missing memory would break it for good.
    import pandas  # type: ignore[import-untyped]  # noqa: F401

    for batch in batches:
        for cell in batch.column("task"):
            task = unpack_task(cell.as_py())
            _arm(task)
            for result in run_bundle(task):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([pack(result)], pa.binary())], schema=RESULT_SCHEMA
                )


def _arm(task: TaskDescriptor) -> None:
    """Arm what the driver was asked to arm; a worker process that does several tasks keeps counting."""
    if task.options.failpoints != _armed_with[0]:
        failpoints.arm(task.options.failpoints)
        _armed_with[0] = task.options.failpoints
