"""One refinement task: a bundle of plans over a span of intake files, and the function that Spark's workers
run.

Runs in a Spark worker or in a test's process, and needs the Python packages and the object store, but no
Spark. Owns the order in which intake is read. Guarantees: each intake file is opened once for all plans that
are written together (`archiver.refine.plan.written_together`). Memory stays within 1.5 times `buffer_bytes`
plus what is read ahead (`archiver.refine.prefetch`). Each plan gets exactly one result.

An error of one plan never affects a plan that does not need the same bytes. It must not become an exception:
Spark would discard the results of the other plans. Neither the content of a record nor a missing object may
raise.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import Conflict, Uploads
from archiver.refine.plan import ROW_OVERHEAD_BYTES, Plan, written_together
from archiver.refine.plan_writer import Kept, PlanWriter, TopicRows, copied, decode_together, kept
from archiver.refine.prefetch import Part, ReadAhead, parts_to_read
from archiver.refine.task import ErrorKind, PlanResult, TaskDescriptor, pack, unpack_task
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Corrupted, NotFound, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from intake.read.reader import IntakeReader, beyond

_PIECE_BYTES = 200
"""Memory for a segment that waits to be decoded, without its records, however few these are (measured: 130 to
190)."""
_TRIMMED_BELOW = 0.75
"""If the required rows lie within less than this share of a row group, the rest is not kept."""


def run_bundle(task: TaskDescriptor, objects: ObjectStore | None = None) -> Iterator[PlanResult]:
    """Carry out a task; one result per plan, as soon as it is known.

    Without `objects` the store is opened from the descriptor as the store of the task's cluster. So nothing
    is written below the mount point of a folder that is gone.
    """
    store = open_store(task.place, task.cluster_id) if objects is None else objects
    # Kept over all passes of the task, because compiling descriptors is costly.
    topics: dict[TopicId, TopicRows] = {}
    with Uploads(store, task.options.uploads_max) as uploads:
        for plans in written_together(task.plans, task.options.open_writers_max, task.options.writer_bytes):
            yield from _Demultiplexer(task, plans, store, uploads, topics).run()


@dataclass(slots=True)
class _Work:
    """A plan in progress."""

    plan: Plan
    writer: PlanWriter
    ended: bool = False


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
        self._reader = ReadAhead(IntakeReader(objects), task.options.reads_max, self._still_needed)
        self._topics = topics
        self._plans = plans
        self._works: list[_Work] = []
        self._open: dict[int, _Work] = {}
        """Works that have no result yet, by their index."""
        self._waiting: list[int] = []
        """Owners of small plans that are complete, and wait to be decoded with others of their topic."""
        self._waiting_rows = self._waiting_bytes = 0
        self._uploading: deque[_Work] = deque()
        """Works that are done except for their last archive, which is being uploaded."""
        self._pinned_bytes = 0
        """Size of the row groups that pieces may still point into, if nothing was copied out of them
        since."""
        self._pinned_next = task.options.buffer_bytes // 4
        """Above this size, the part that no piece needs any more is counted."""
        self._held_bytes = 0
        """An upper estimate of what the open writers hold; it is recounted before anything is done about
        it."""

    def run(self) -> Iterator[PlanResult]:
        """Results in the order in which the plans end."""
        try:
            for plan in self._plans:
                yield from self._begin(plan)
            for parts in self._reader.through(parts_to_read([work.plan for work in self._works])):
                yield from self._read(parts)
                # Plans that end in this file; waiting for those of later files could take all memory.
                yield from self._finish_waiting()
                yield from self._stored(self._task.options.uploads_max)
            # What is still open here lacks segments; `finish` reports that, so no plan is without a result.
            for owner, work in list(self._open.items()):
                yield from self._finish(owner, work)
            yield from self._stored(0)
        finally:
            # Reads in progress and spool files must not outlive a task that ends early.
            self._reader.close()
            for work in self._open.values():
                work.writer.discard()

    def _begin(self, plan: Plan) -> Iterator[PlanResult]:
        """Open a writer; gives a result only if that fails."""
        try:
            rows = self._topics.get(plan.topic_id)
            if rows is None:
                rows = self._topics[plan.topic_id] = TopicRows(
                    self._task.topics[plan.topic_id], self._task.options
                )
        except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
            kind, why = _error_of(error)
            # The error is about the topic, not about intake: it must not be called `corrupted` or `missing`.
            yield PlanResult.failed(plan, "retry" if kind == "retry" else "failed", why)
            return
        try:
            work = _Work(
                plan,
                PlanWriter(
                    plan, rows, self._task.cluster_id, self._objects, self._uploads, self._task.options
                ),
            )
        except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
            yield PlanResult.failed(plan, *_error_of(error))
            return
        self._open[len(self._works)] = work
        self._works.append(work)

    def _read(self, parts: Sequence[Part]) -> Iterator[PlanResult]:
        """Read every required row group of one file.

        A row group that cannot be read fails the plans that need it; reading continues after it.
        """
        # Plans may have failed since the file was read ahead.
        remaining = self._still_needed(parts)
        while remaining:
            taken = 0
            try:
                read = self._reader.row_groups(parts[0].file, [part.row_group for part in remaining])
                for part, records in zip(remaining, read, strict=True):
                    taken += 1
                    yield from self._give(part, records)
                return
            except (ArchiverError, OSError, pa.ArrowException) as error:
                failure = _intake_error(error)
            # The row group after the last one that was given is the one that raised.
            behind = taken + 1
            if failure[0] in ("missing", "retry"):
                behind = len(remaining)  # nothing of the file can be read now
            for part in remaining[taken:behind]:
                for owner, *_ in part.lines:
                    yield from self._fail(owner, *failure)
            remaining = self._still_needed(remaining[behind:])

    def _still_needed(self, parts: Sequence[Part]) -> list[Part]:
        """Parts that some plan still waits for."""
        return [part for part in parts if any(owner in self._open for owner, *_ in part.lines)]

    def _give(self, part: Part, records: pa.RecordBatch) -> Iterator[PlanResult]:
        """Hand the records of a row group to every plan that needs some of them. This loop runs for every
        segment, so it does as little as possible.
        """
        # An estimate, before the records are trimmed; `_count_held` corrects it.
        self._held_bytes += part.raw_bytes + ROW_OVERHEAD_BYTES * part.rows
        try:
            trimmed, start = _trimmed(records, part)
        except Exception as error:  # noqa: BLE001 - the plans that need it fail
            for owner, *_ in part.lines:
                yield from self._fail(owner, *_error_of(error))
            return
        for owner, place, first, rows in part.lines:
            work = self._works[owner]
            # It has failed; another plan needs the same row group.
            if work.ended:
                continue
            # Slicing beyond the end would silently give fewer rows.
            if first + rows > records.num_rows:
                yield from self._fail(
                    owner, *_intake_error(beyond(part.file, part.row_group, records.num_rows))
                )
                continue
            try:
                if work.writer.add(place, trimmed, first - start, rows):
                    yield from self._decode(owner, work)
            except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
                yield from self._fail(owner, *_error_of(error))
        self._pinned_bytes += trimmed.nbytes + _PIECE_BYTES * len(part.lines)
        yield from self._bound_memory()

    def _decode(self, owner: int, work: _Work) -> Iterator[PlanResult]:
        """Decode what is due of a plan, which may end it."""
        if work.writer.joinable:
            self._waiting.append(owner)
            self._waiting_rows += work.writer.rows
            self._waiting_bytes += work.writer.held_bytes
            options = self._task.options
            if self._waiting_rows >= options.decode_rows or self._waiting_bytes >= options.decode_bytes:
                yield from self._finish_waiting()
            return
        if not work.writer.complete:
            before = work.writer.held_bytes
            work.writer.decode()
            self._held_bytes += work.writer.held_bytes - before
        if work.writer.complete or work.writer.conflict is not None:
            yield from self._finish(owner, work)

    def _finish_waiting(self) -> Iterator[PlanResult]:
        """Decode the waiting plans, those of each topic together, and end them."""
        owners, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        of_topic: dict[TopicId, list[int]] = {}
        for owner in owners:
            # It may have failed since.
            if owner in self._open:
                of_topic.setdefault(self._works[owner].plan.topic_id, []).append(owner)
        for topic_id, together in of_topic.items():
            # Memory may have run short since, and a plan was decoded.
            writers = [self._works[owner].writer for owner in together if self._works[owner].writer.joinable]
            if len(writers) > 1:
                # An error may be about one plan alone. Each then decodes its own records and has its own
                # error.
                with contextlib.suppress(Exception):
                    decode_together(self._topics[topic_id], writers)
            for owner in together:
                yield from self._finish(owner, self._works[owner])

    def _bound_memory(self) -> Iterator[PlanResult]:
        """Free row groups that small slices keep alive. If all writers together hold too much, close the row
        group of the fullest.
        """
        limit = self._task.options.buffer_bytes
        if self._pinned_bytes > self._pinned_next:
            # Counting visits every writer, so it is repeated only after some growth.
            self._pinned_next = self._pinned_bytes + limit // 16
            self._held_bytes = self._count_held()
            unneeded_bytes = self._pinned_bytes - sum(
                work.writer.pinning_bytes for work in self._open.values()
            )
            # While copying, memory is needed twice: a row group is freed only after the last writer has
            # copied its part.
            if unneeded_bytes > limit // 4 or self._pinned_bytes + self._held_bytes > limit + limit // 2:
                for owner, work in list(self._open.items()):
                    try:
                        work.writer.detach()
                    except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
                        yield from self._fail(owner, *_error_of(error))
                # Every piece is a copy now, so no row group is referred to.
                self._pinned_bytes, self._pinned_next = 0, limit // 4
        # The estimate may be too high, so the exact number decides.
        if self._held_bytes > limit:
            self._held_bytes = self._count_held()
        while self._held_bytes > limit and self._open:
            # The fullest writer frees most memory, and its row group is shortened least.
            owner, work = max(self._open.items(), key=lambda one: one[1].writer.held_bytes)
            try:
                work.writer.relieve()
            except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
                yield from self._fail(owner, *_error_of(error))
            self._held_bytes = self._count_held()

    def _count_held(self) -> int:
        return sum(work.writer.held_bytes for work in self._open.values())

    def _finish(self, owner: int, work: _Work) -> Iterator[PlanResult]:
        """End a plan whose segments are complete; it is stored while other plans continue."""
        try:
            if work.writer.conflict is None:
                work.writer.finish()
        except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
            yield from self._fail(owner, *_error_of(error))
            return
        # Its records are written. Only the outcome of the last upload is open.
        self._end(owner)
        self._uploading.append(work)
        yield from self._stored(self._task.options.uploads_max)

    def _stored(self, under_way_max: int) -> Iterator[PlanResult]:
        """Results of plans that are stored by now; waits for the oldest while more than `under_way_max` are
        being stored.
        """
        while self._uploading and (len(self._uploading) > under_way_max or self._uploading[0].writer.stored):
            work = self._uploading.popleft()
            try:
                outcome = work.writer.outcome()
            except Exception as error:  # noqa: BLE001 - no error of one plan may stop another plan
                yield PlanResult.failed(work.plan, *_error_of(error))
                continue
            if isinstance(outcome, Conflict):
                yield PlanResult.failed(work.plan, "conflict", outcome.why)
            else:
                yield PlanResult.done(work.plan, outcome)

    def _fail(self, owner: int, kind: ErrorKind, why: str) -> Iterable[PlanResult]:
        """End a plan with an error; nothing if it has ended."""
        work = self._works[owner]
        if work.ended:
            return ()
        self._end(owner)
        return (PlanResult.failed(work.plan, kind, why),)

    def _end(self, owner: int) -> None:
        work = self._open.pop(owner)
        work.ended = True
        # Frees the records now: other plans of the task may run for long.
        work.writer.discard()


def _trimmed(records: pa.RecordBatch, part: Part) -> tuple[Kept, int]:
    """The part of a row group's records to keep, and its first row. The required rows may be kept for long,
    and mostly lie together.
    """
    start, end = part.lines[0][2], part.end_row
    if end - start > _TRIMMED_BELOW * records.num_rows:
        return kept(records), 0
    return copied([(kept(records.slice(start, end - start)), 0, end - start)])[0], start


def _intake_error(error: Exception) -> tuple[ErrorKind, str]:
    """What an error of reading intake means for the plans that need the bytes."""
    if isinstance(error, NotFound) or isinstance(error.__cause__, NotFound):
        return "missing", str(error)
    # Arrow's lack of memory is an `ArrowException` too, and says nothing about the bytes.
    if isinstance(error, pa.ArrowException) and not isinstance(error, MemoryError):
        return "corrupted", f"{type(error).__name__}: {error}"
    return _error_of(error)


def _error_of(error: Exception) -> tuple[ErrorKind, str]:
    """What an error means for the plan, and the sentence for people."""
    why = str(error) or type(error).__name__
    if isinstance(error, RetryLater | OutcomeUnknown):
        return "retry", why
    if isinstance(error, Corrupted):
        return "corrupted", why
    # A full disk or short memory on this worker; another run may succeed.
    if isinstance(error, OSError | MemoryError):
        return "retry", f"{type(error).__name__}: {why}"
    if isinstance(error, ArchiverError):
        return "failed", why
    return "failed", f"{type(error).__name__}: {why}"


_RESULTS_MAX = 256
"""Results that are returned in one batch."""
RESULT_SCHEMA = pa.schema([pa.field("result", pa.binary())])

# Per process: arming again would reset the counts of the failpoints.
_armed_with: list[str] = [""]


def refine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: rows with a column `task` in, rows with a column `result` out, one per
    plan.
    """
    # Arrow imports pandas lazily, in the middle of a plan. If memory runs short there, the import stays
    # broken.
    import pandas  # type: ignore[import-untyped]  # noqa: F401

    for batch in batches:
        for cell in batch.column("task"):
            task = unpack_task(cell.as_py())
            _arm(task)
            results = run_bundle(task)
            # Each batch has a cost of its own in Spark, and nothing waits for a single result.
            while packed := [pack(result) for result in itertools.islice(results, _RESULTS_MAX)]:
                yield pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], schema=RESULT_SCHEMA)


def _arm(task: TaskDescriptor) -> None:
    """Arm the failpoints that the driver asks for. A worker process that runs several tasks keeps its
    counts.
    """
    if task.options.failpoints != _armed_with[0]:
        failpoints.arm(task.options.failpoints)
        _armed_with[0] = task.options.failpoints
