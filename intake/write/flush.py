"""Makes sent records durable: sort, upload an intake file, append its log entry, acknowledge.

A record is acknowledged `ok` only after its file is stored *and* its entry is in the log, with the offset
that the fold assigned. `failed` means that it is certainly not in the log; everything else is `unknown`. A
sender that states a sequence number may have tried before, so it gets `failed` only where the log proves that
the record is absent. A key is never used twice: if the append fails, the uploaded object stays unreferenced.

The order of writes is upload, then append. The footer of a file says how far its writer had read the log
(`LOG_INDEX_KEY`), which later proves that the log once was that long. Called by one thread; it waits only
through the clock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.objects.paths import intake_key
from archiver.objects.store import ObjectStore, create_once
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource, TopicPartition, new_ulid
from archiver.runtime.text import counted
from intake.arrow_arrays import Int64Array
from intake.format import IntakeFileBytes, SegmentRows
from intake.log.entries import positions_bytes
from intake.log.fold import Landed
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Move
from intake.producers import SEQUENCE_COUNT, Refusal, Stamp, begins_alone
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import NO_OFFSET, OK, FlushOutcome, Outcome
from intake.write.encode import Part, SortedFlush
from intake.write.queue import BatchItem, EncodedItem, Item, RecordItem

_log = logging.getLogger(__name__)

_PROVES_ABSENCE: frozenset[Refusal] = frozenset({"out_of_order", "wrong_kind"})
"""Refusals that prove a record absent, even after earlier attempts. (An out-of-order batch that is partly in
the log is `unknown` in the first place.)"""


@dataclass(frozen=True, slots=True)
class FlushCounts:
    """Counters of a flush writer."""

    flushes: int = 0
    acknowledged_ok: int = 0
    """Records."""
    acknowledged_failed: int = 0
    acknowledged_unknown: int = 0
    upload_s: float = 0.0
    """Of the last intake file, successful or not."""
    append_s: float = 0.0
    """Of the last entry, with its retries."""


@dataclass(slots=True)
class _Outcomes:
    """Outcomes of some rows, in some order."""

    offsets: Int64Array
    verdict_of: npt.NDArray[np.int32]
    verdicts: list[FlushOutcome]

    @classmethod
    def all(cls, rows: int, verdict: FlushOutcome) -> _Outcomes:
        """The same for every row, without offsets."""
        return cls(np.full(rows, NO_OFFSET, np.int64), np.zeros(rows, np.int32), [verdict])

    def put(self, rows: Int64Array, part: _Outcomes) -> None:
        """Set the outcomes of these rows from `part`."""
        self.offsets[rows] = part.offsets
        self.verdict_of[rows] = part.verdict_of + len(self.verdicts)
        self.verdicts.extend(part.verdicts)


class FlushWriter:
    """Writes flushes. Not thread-safe, but `counts` may be read from any thread."""

    def __init__(
        self,
        objects: ObjectStore,
        sequencer: Sequencer,
        row_group_bytes: int,
        clock: Clock,
        ids: IdSource,
        accept_clock: AcceptClock,
        held_max_s: float | None = None,
    ) -> None:
        """`held_max_s`: longest time from the acceptance of a batch that counts without a known producer to
        the write of its file; None if no such batch comes this way.
        """
        self._held_max_us = None if held_max_s is None else round(held_max_s * 1e6)
        self._objects = objects
        self._sequencer = sequencer
        self._row_group_bytes = row_group_bytes
        self._clock = clock
        self._ids = ids
        self._accept_clock = accept_clock
        self._counts = FlushCounts()

    @property
    def counts(self) -> FlushCounts:
        """Counters since it was made."""
        return self._counts

    def publish(self, items: Sequence[Item]) -> None:
        """Store the items in their order, and set the outcome of each.

        Errors of the store or the log are not raised; they become the outcome of the items.
        """
        for _, run in groupby(items, key=lambda item: item.stated and item.source is not None):
            # Items that a session sends again are flushed separately. Their outcome must be known before its
            # later items are written. Without a session every number is stated, and the log judges the order.
            self._publish_run(self._without_held_back(list(run)))

    def _publish_run(self, items: Sequence[Item]) -> None:
        if not items:
            return
        self._counts = replace(self._counts, flushes=self._counts.flushes + 1)
        try:
            if any(item.stated for item in items):
                self._sequencer.resolve()  # an earlier attempt of unknown outcome may hold these records
            flush = SortedFlush(items, self._stored_end)
            parts = flush.parts(self._sequencer.entry_bytes_max)
        # Nothing was stored yet. For records with stated numbers, `_acknowledge` turns `failed` into
        # `unknown`.
        except (ArchiverError, pa.ArrowException, MemoryError) as error:
            self.acknowledge_all(items, _verdict("failed", "nothing was stored", error))
            return
        if len(parts) > 1 and len(items) > 1 and any(_has_parts(item) for item in items):
            # Within one entry a batch and its records for DLQ topics are stored together or not at all. Of
            # several entries, those must come first that hold what the others need.
            middle = len(items) // 2
            for half in (items[:middle], items[middle:]):
                self._publish_run(self._without_held_back(half))
            return
        outcomes = _Outcomes.all(flush.rows, OK)
        for part in parts:
            # Outcomes are in file order; the items expect their order of arrival.
            outcomes.put(flush.order[part.first_row : part.end_row], self._publish_part(flush, part))
        self._acknowledge(items, outcomes)

    def acknowledge_all(self, items: Sequence[Item], verdict: FlushOutcome) -> None:
        """Give every item the same outcome, unless it has one."""
        if items:
            self._acknowledge(items, _Outcomes.all(sum(item.rows for item in items), verdict))

    def _without_held_back(self, items: Sequence[Item]) -> Sequence[Item]:
        """Fail items that must wait until an earlier item of their producer is resolved, or whose records for
        DLQ topics are not stored, and return the others.
        """
        if all(item.source is None and not _has_parts(item) for item in items):
            return items
        let_through: list[Item] = []
        # The lock of the queue guards the state of producers.
        with items[0].pending.condition:
            for item in items:
                if isinstance(item, EncodedItem) or item.source is None:
                    why = _lacks_parts(item)
                else:
                    why = item.source.held_back(item)
                if why is None:
                    let_through.append(item)
                elif not self._acknowledge([item], _Outcomes.all(item.rows, FlushOutcome("failed", why))):
                    # The session failed it together with the item before it; only the count is missing.
                    self._counts = replace(
                        self._counts, acknowledged_failed=self._counts.acknowledged_failed + item.rows
                    )
        return let_through

    def _known_end(self, tp: TopicPartition, stamp: Stamp) -> int | None:
        return self._sequencer.fold.producers.next_sequence(tp, stamp.producer_id, stamp.epoch)

    def _stored_end(self, tp: TopicPartition, stamp: Stamp) -> int | None:
        # Not the 0 that the log expects first: a first batch that wraps to 0 would be cut there, and its
        # second half would count as the beginning.
        return self._sequencer.fold.producers.known_end(tp, stamp.producer_id, stamp.epoch)

    def _publish_part(self, flush: SortedFlush, part: Part) -> _Outcomes:
        """Upload one file and append its entry; the outcomes of its rows, in file order."""
        rows = part.end_row - part.first_row
        try:
            key, file = self._stored(flush, part)
        except Exception as error:  # noqa: BLE001
            # Nothing was appended yet, so after any error these records are certainly not in the log.
            return _Outcomes.all(rows, _verdict("failed", "the intake file could not be stored", error))
        began_s = self._clock.monotonic_s()
        try:
            # The commit point. Before it nothing counts, and after it the records exist.
            landed = self._sequencer.append_file(key, len(file.data), file.footer_sha256, file.segments)
        except OutcomeUnknown as error:
            return _Outcomes.all(
                rows, _verdict("unknown", f"it is unknown whether {key} is in the intake log", error)
            )
        except ArchiverError as error:
            return _Outcomes.all(
                rows, _verdict("failed", f"{key} could not be named in the intake log", error)
            )
        finally:
            self._counts = replace(self._counts, append_s=self._clock.monotonic_s() - began_s)
        try:
            # Stands for a crash after the commit point: the records are there, but no outcome reaches the
            # sender.
            failpoints.reach("writer.append.after")
        except ArchiverError as error:
            return _Outcomes.all(rows, _verdict("unknown", f"{key} was appended, and then", error))
        counts = (flush.ends - flush.starts)[part.first_segment : part.end_segment]
        of_part = slice(part.first_row, part.end_row)
        segments = flush.segments[part.first_segment : part.end_segment]
        return self._outcomes(landed, segments, counts, flush.places[of_part], flush.accept_us[of_part])

    def publish_moving(self, items: Sequence[Item], moves: Sequence[Move]) -> Refusal | None:
        """Store the items as one file, and append the entry that also moves positions of sources.

        None of the items may come from an idempotent producer, and none is acknowledged here. Returns None,
        or why the entry does not count. Raises errors of store and log: after `OutcomeUnknown` the entry may
        be in the log, after any other `ArchiverError` it certainly is not. `InvalidInput` if the entry would
        be too large: send fewer partitions at a time.
        """
        flush = SortedFlush(items)
        # The positions need room in the same entry.
        parts = flush.parts(self._sequencer.entry_bytes_max - positions_bytes(moves))
        # One entry must hold all of it, because it moves the positions and names the records atomically.
        if len(parts) != 1:
            raise InvalidInput(
                f"{counted(len(flush.segments), 'segment')} and {len(moves)} positions do not fit one "
                "entry of the intake log"
            )
        key, file = self._stored(flush, parts[0])
        # The commit point, for records and positions together.
        refusal = self._sequencer.append_moves(moves, key, len(file.data), file.footer_sha256, file.segments)
        try:
            failpoints.reach("writer.append.after")
        except RetryLater as error:
            raise OutcomeUnknown(f"{key} was appended, and then: {error}") from error
        return refusal

    def _stored(self, flush: SortedFlush, part: Part) -> tuple[str, IntakeFileBytes]:
        """Upload one file: its key and content. No entry names it yet."""
        # The index goes into the footer: it later proves that the log once was that long.
        file = flush.encode(part, self._row_group_bytes, self._sequencer.fold.next_index)
        key = self._upload(file, self._first_beginning_us(flush, part))
        failpoints.reach("writer.append.before")
        return key, file

    def _first_beginning_us(self, flush: SortedFlush, part: Part) -> int | None:
        """The earliest accept time of a batch that counts without a known producer."""
        if self._held_max_us is None:
            return None
        times_us = [
            int(flush.accept_us[flush.starts[place]])
            for place in range(part.first_segment, part.end_segment)
            if (stamp := flush.segments[place].stamp) is not None and begins_alone(stamp)
        ]
        return min(times_us, default=None)

    def _upload(self, file: IntakeFileBytes, beginning_us: int | None) -> str:
        """Store the file under a new key, which is returned; `beginning_us` as `_first_beginning_us`."""
        failpoints.reach("writer.upload.before")
        fold = self._sequencer.fold
        # Never before the barrier: with a clock that was set back, the fold would refuse every file.
        written_us = max(self._accept_clock.written_us(fold.newest_us), fold.barrier_ms * 1000)
        # Its producer may be forgotten since, and the batch stored by another attempt. For a wait after this
        # line there is the barrier, which comes before producers are forgotten.
        if beginning_us is not None and self._held_max_us is not None:
            held_us = written_us - beginning_us
            if held_us > self._held_max_us:
                raise RetryLater(
                    f"a batch waited for {held_us / 1e6:,.0f} s, longer than an eighth of "
                    "intake.producer_idle_min; send it again"
                )
        # A new key each time. If the append fails, the object stays unreferenced and is vacuumed.
        key = intake_key(written_us, new_ulid(self._ids, written_us))
        began_s = self._clock.monotonic_s()
        try:
            create_once(self._objects, key, file.data)
        finally:
            self._counts = replace(self._counts, upload_s=self._clock.monotonic_s() - began_s)
        failpoints.reach("writer.upload.after")
        return key

    def _outcomes(
        self,
        landed: Sequence[Landed],
        segments: Sequence[SegmentRows],
        rows: Int64Array,
        places: Int64Array,
        accept_us: Int64Array,
    ) -> _Outcomes:
        """Offsets from the fold: a repeated batch has those of the original, a refused segment has none.

        `rows`: of the flush, per segment, with the placeholders that are not stored. `places`: per row, the
        records of its segment before it. `accept_us`: per row.
        """
        firsts = np.cumsum(rows) - rows
        bases = np.array([one.runs[0][0] if one.runs else 0 for one in landed], np.int64)
        offsets: Int64Array = np.repeat(bases, rows) + places
        outcomes = _Outcomes(offsets, np.zeros(len(offsets), np.int32), [OK])
        for number, one in enumerate(landed):
            # A placeholder for sequence numbers alone has no record, and learns the first offset.
            records = segments[number].rows or int(rows[number])
            # The usual segment: its offsets were computed above for all at once.
            usual = one.refusal is None and len(one.runs) == 1 and one.runs[0][1] == records
            appended = one.append_times or (one.segment is not None and segments[number].log_append_time)
            if usual and not appended:
                continue
            span = np.arange(firsts[number], firsts[number] + rows[number])
            if appended:
                times_us = (
                    _times(one.append_times, records)[places[span]] if one.append_times else accept_us[span]
                )
                # Rows that were accepted at the same time share a verdict.
                known_us, verdict_of = np.unique(times_us, return_inverse=True)
                outcomes.verdict_of[span] = verdict_of + len(outcomes.verdicts)
                outcomes.verdicts.extend(
                    FlushOutcome("ok", append_us=time_us) for time_us in known_us.tolist()
                )
            if usual:
                continue
            if one.refusal is not None:
                verdict = self._refused(one.refusal, one, segments[number])
                outcomes.put(span, _Outcomes.all(len(span), verdict))
            else:
                # A repetition may cover several batches of the original, whose offsets need not be adjacent.
                known = [np.arange(base, base + count) for base, count in one.runs]
                of_records = _aligned(np.concatenate(known) if known else np.zeros(0, np.int64), records)
                offsets[span] = of_records[places[span]]
        return outcomes

    def _refused(self, refusal: Refusal, landed: Landed, segment: SegmentRows) -> FlushOutcome:
        """The violated rule, and what to do."""
        stamp = segment.stamp
        if refusal == "deleted":
            gone = self._sequencer.fold.deleted_topics.get(landed.tp[0])
            return FlushOutcome(
                "failed",
                f"topic {'' if gone is None else gone.name} was deleted and accepts no more records",
                refusal,
            )
        # Without a producer nothing else can refuse a segment, because the writer never sends to a mirrored
        # topic.
        if refusal == "barrier" or stamp is None:
            return FlushOutcome(
                "failed",
                "the intake file was older than a barrier of the intake log when it was named; send again",
                refusal,
            )
        who = f"producer {stamp.producer_id}"
        batch = f"the batch of {stamp.covered or landed.rows} from sequence {stamp.sequence} on"
        if refusal == "fenced":
            return FlushOutcome(
                "failed",
                f"{who} with epoch {stamp.epoch} is fenced by a newer epoch; open the producer again",
                refusal,
            )
        if refusal == "unknown_producer":
            why = (
                f"the log does not know {who} with epoch {stamp.epoch}: it was forgotten, or never opened; "
                "open a new one"
            )
            return FlushOutcome("failed", why, refusal)
        if refusal == "wrong_kind":
            return FlushOutcome(
                "failed",
                f"{who} must send transactional records if, and only if, it has a transactional id",
                refusal,
            )
        if refusal == "forgotten":
            why = (
                f"{batch} of {who} is in the log, but too far back for its offsets to be remembered; "
                "find it by reading the topic"
            )
            return FlushOutcome("unknown", why, refusal)
        expected = self._known_end(landed.tp, stamp)
        # If the producer was fenced or forgotten since, a part of the batch may be there, so the outcome is
        # unknown.
        stored = self._stored_end(landed.tp, stamp)
        # Without a batch of that epoch nothing of this one can be there, also if its numbers wrap.
        without = 1 if expected is None else 0
        behind = without if stored is None else (stored - stamp.sequence) % SEQUENCE_COUNT
        # A batch is not divided, so sending it again would not store the rest. Kafka refuses it as well.
        # Several batches are divided at the next attempt, when the log's end is known before.
        if stored is not None and 0 < behind < segment.rows and len(segment.batches) == 1:
            return FlushOutcome(
                "failed",
                f"{batch} of {who} has numbers of other batches that are in the log; open the producer again",
                refusal,
            )
        if 0 < behind <= SEQUENCE_COUNT // 2:
            return FlushOutcome(
                "unknown",
                f"{batch} of {who} is in the log in part; send it again with the same sequence",
                refusal,
            )
        return FlushOutcome(
            "failed",
            f"{batch} of {who} does not follow: the log expects {expected}; send what comes before first",
            refusal,
        )

    def _acknowledge(self, items: Sequence[Item], outcomes: _Outcomes) -> int:
        """Acknowledge the items; the number of records that had no outcome before."""
        offsets, verdict_of, verdicts = outcomes.offsets, outcomes.verdict_of, outcomes.verdicts
        # A stated number may belong to an earlier attempt that reached the log, so most failures prove
        # nothing.
        doubtful = (
            [_if_tried_before(verdict) for verdict in verdicts]
            if any(item.stated for item in items)
            else verdicts
        )
        counts: Counter[Outcome] = Counter()
        # All items share the condition of the queue, so one lock covers the flush.
        with items[0].pending.condition:
            row = 0
            for item in items:
                end = row + item.rows
                known = doubtful if item.stated else verdicts
                if isinstance(item, RecordItem):
                    verdict = known[verdict_of[row]]
                    # False if `close` or the session set an outcome before: that one stays and was counted.
                    if item.pending.set_outcome(int(offsets[row]), verdict):
                        counts[verdict.outcome] += 1
                        if item.source is not None:
                            item.source.record_acknowledged(item, verdict)
                elif isinstance(item, EncodedItem):
                    if item.pending.set_outcome(0, offsets[row:end], verdict_of[row:end], known):
                        counts[known[verdict_of[row]].outcome] += item.records
                elif item.pending.set_outcome(item.first_row, offsets[row:end], verdict_of[row:end], known):
                    for number, rows in _counted(verdict_of[row:end]):
                        counts[known[number].outcome] += 0 if item.numbers_only else rows
                    if item.source is not None:
                        item.source.batch_acknowledged(item, verdict_of[row:end], known)
                row = end
            self._counts = replace(
                self._counts,
                acknowledged_ok=self._counts.acknowledged_ok + counts["ok"],
                acknowledged_failed=self._counts.acknowledged_failed + counts["failed"],
                acknowledged_unknown=self._counts.acknowledged_unknown + counts["unknown"],
            )
            items[0].pending.condition.notify_all()
        return counts.total()


def _counted(verdict_of: npt.NDArray[np.int32]) -> Sequence[tuple[int, int]]:
    """How many rows of an item have each of its verdicts."""
    # Usually all rows share one. A flush may have a verdict for each item, so `bincount`, whose result is as
    # long as the largest number, would take quadratic time.
    first = int(verdict_of[0])
    if bool((verdict_of == first).all()):
        return [(first, len(verdict_of))]
    numbers, rows = np.unique(verdict_of, return_counts=True)
    return list(zip(numbers.tolist(), rows.tolist(), strict=True))


def _has_parts(item: Item) -> bool:
    return isinstance(item, BatchItem) and bool(item.after)


def _lacks_parts(item: Item) -> str | None:
    """Why the item must not be written now: records that belong to it are not stored; None if it may be."""
    if not isinstance(item, BatchItem):
        return None
    # Parts without an outcome are in the same flush.
    failed = [part.answered for part in item.after if part.done() and part.answered.outcome != "ok"]
    if not failed:
        return None
    return (
        f"records of the batch that go to topic {failed[0].topic} are not stored ({failed[0].outcome}), so "
        "the others are not either; send the batch again"
    )


def _aligned(known: Int64Array, rows: int) -> Int64Array:
    """The offsets of `rows` rows, from those in the log. The counts differ where one attempt covered numbers
    without records; then the rows are counted from the first offset, as Kafka clients do.
    """
    if len(known) == rows:
        return known
    first: Int64Array = np.arange(rows, dtype=np.int64)
    return first + known[0] if len(known) else np.full(rows, NO_OFFSET, np.int64)


def _times(append_times: Sequence[tuple[int, int]], rows: int) -> Int64Array:
    """The append times of `rows` rows, from those in the log. The counts may differ as in `_aligned`; then
    the first one is that of all.
    """
    times_us, counts = np.array(append_times, np.int64).T
    return np.repeat(times_us, counts) if counts.sum() == rows else np.full(rows, times_us[0])


def _if_tried_before(verdict: FlushOutcome) -> FlushOutcome:
    """A failure as seen by a sender that may have sent the record before: that attempt may be in the log."""
    if verdict.outcome != "failed" or verdict.refusal in _PROVES_ABSENCE:
        return verdict
    return FlushOutcome(
        "unknown",
        f"{verdict.error}; an earlier attempt with that sequence number may be in the log",
        verdict.refusal,
    )


def _verdict(outcome: Outcome, what: str, error: Exception) -> FlushOutcome:
    why = str(error) if isinstance(error, ArchiverError) else f"{type(error).__name__}: {error}"
    _log.warning("%s: %s", what, why)
    return FlushOutcome(outcome, f"{what}: {why}")
