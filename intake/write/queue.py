"""The writer's queue: bounded in bytes, divided into flushes by age and size.

Items leave in the order in which they were put. The bytes held (waiting or being written) stay below the
bound, except when a single item is larger than the bound.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, RetryLater
from intake.batches.decoding import Bytes
from intake.log.fold import TopicState
from intake.producers import Stamp
from intake.records import Record
from intake.write.acknowledgements import FlushOutcome, PendingBatch, PendingRecord

ROW_COST_BYTES = 64
"""Queue cost of a row in addition to its weight, so that empty records are bounded too."""


class ItemSource(Protocol):
    """The idempotent producer of an item, as the flush sees it. Every method is called under the queue's
    lock.
    """

    def held_back(self, item: SessionItem) -> str | None:
        """Why the item must not be written now; None if it may be."""

    def record_acknowledged(self, item: RecordItem, verdict: FlushOutcome) -> None:
        """Called with the outcome of one of its records."""

    def batch_acknowledged(
        self, item: BatchItem, verdict_of: npt.NDArray[np.int32], verdicts: list[FlushOutcome]
    ) -> None:
        """Called with the outcome of one of its pieces, per row."""


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """Records of one partition that a client sent as one batch, and numbered itself if it is idempotent."""

    topic: TopicState
    partition: int
    columns: pa.RecordBatch
    """As `RECORD_SCHEMA`; at least one row."""
    stamp: Stamp | None
    """The producer and the sequence number of the first row, which the other rows follow; None: none."""


@dataclass(frozen=True, slots=True)
class RecordItem:
    """One record in the queue."""

    topic: TopicState
    record: Record
    raw_bytes: int
    cost: int
    """Bytes of the queue it uses: its weight and `ROW_COST_BYTES`."""
    accept_us: int
    pending: PendingRecord
    stamp: Stamp | None = None
    """Producer and sequence number; None if no idempotent producer sent it."""
    stated: bool = False
    """The caller stated its sequence number, so an earlier attempt may be in the log already."""
    source: ItemSource | None = None
    """Receives the outcome, in addition to `pending`."""
    generation: int = 0
    """The source's generation when it assigned the number."""

    @property
    def rows(self) -> int:
        """Always 1."""
        return 1

    @property
    def records(self) -> int:
        """Always 1."""
        return 1


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A piece of a batch in the queue."""

    topic: TopicState
    columns: pa.RecordBatch
    """As `RECORD_SCHEMA`."""
    row_bytes: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    raw_bytes: int
    cost: int
    """Bytes of the queue it uses: the weight of its rows and `ROW_COST_BYTES` for each."""
    accept_us: int
    first_row: int
    """First row of the piece in the batch of the call."""
    pending: PendingBatch
    stamp: Stamp | None = None
    """The producer of the rows; the sequence is that of the first row."""
    sequences: npt.NDArray[np.int32] | None = None
    """Per row, only with a stamp: they count per partition. None: the rows follow the first, and all are of
    one partition."""
    stated: bool = False
    """The caller stated the sequence numbers, so an earlier attempt may be in the log already."""
    source: ItemSource | None = None
    """Receives the outcome, in addition to `pending`."""
    generation: int = 0
    """The source's generation when it assigned the numbers."""
    offsets: npt.NDArray[np.int64] | None = None
    """Per row, only in a mirrored topic: ascending within each partition."""
    numbers_only: bool = False
    """Its one row is a placeholder, which is not stored: the batch has sequence numbers (`Stamp.covered`) and
    no records in this topic."""
    after: Sequence[PendingBatch] = ()
    """Records of the same batch that go to DLQ topics. They are queued before it. Without them it must not be
    stored, because its sequence numbers in the log say that all of the batch is stored."""

    @property
    def rows(self) -> int:
        """Rows of the piece."""
        return len(self.partitions)

    @property
    def records(self) -> int:
        """As `rows`."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """A record batch of a Kafka client in the queue, to be stored as it came. It is one row of a flush."""

    topic: TopicState
    partition: int
    data: Bytes
    records: int
    raw_bytes: int
    """Of its records, before compression."""
    cost: int
    """Bytes of the queue it uses: its own and `ROW_COST_BYTES`."""
    accept_us: int
    pending: PendingBatch
    """Of one row: the client learns one offset and one outcome."""
    stamp: Stamp | None = None
    """The producer; the sequence is that of the first record."""
    offset: int | None = None
    """Of its first record, only in a mirrored topic; the others follow it."""

    @property
    def rows(self) -> int:
        """Always 1."""
        return 1

    @property
    def stated(self) -> bool:
        """A client repeats a batch under its numbers without notice, so each may be in the log already."""
        return self.stamp is not None

    @property
    def source(self) -> None:
        """No session of this process numbered it."""
        return None


SessionItem = RecordItem | BatchItem
"""An item that a producer session of this process may have numbered."""
Item = SessionItem | EncodedItem


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Counters of a queue."""

    held_bytes: int
    """Waiting or being written, counted as `queue_bytes_max` counts."""
    records: int
    """Admitted."""
    raw_bytes: int
    """Of the records admitted."""
    waits: int
    """How often a sender found no room."""
    waited_s: float
    """How long senders waited for room, together."""


class FlushQueue:
    """Many threads put, one takes. Every method takes the lock by itself; `changed` is its condition."""

    def __init__(self, clock: Clock, delay_max_s: float, delay_max_bytes: int, queue_bytes_max: int) -> None:
        self.changed = threading.Condition()
        self._clock = clock
        self._delay_max_s = delay_max_s
        self._delay_max_bytes = delay_max_bytes
        self._queue_bytes_max = queue_bytes_max
        self._items: deque[tuple[float, Item]] = deque()
        self._waiting_bytes = 0
        self._held_cost = 0
        self._put = 0
        self._done = 0
        self._flush_below = 0
        self._blocked = 0
        self._closed = False
        self._records = 0
        self._raw_bytes = 0
        self._waits = 0
        self._waited_s = 0.0

    def counts(self) -> QueueCounts:
        """Counters since the queue was made."""
        with self.changed:
            return QueueCounts(self._held_cost, self._records, self._raw_bytes, self._waits, self._waited_s)

    def put(
        self,
        raw_bytes: int,
        cost: int,
        timeout_s: float,
        make: Callable[[], Item],
        waited_s: float = 0.0,
    ) -> None:
        """Wait for room for one item of that size and cost, then make it under the lock and queue it.
        `waited_s`: how long it waited for others before; its delay includes that.

        Raises `RetryLater` if there is no room within `timeout_s`, `Halt` after `close`, and what `make`
        raises; then nothing was queued.
        """
        self.put_all(raw_bytes, cost, timeout_s, lambda: [make()], waited_s)

    def put_all(
        self,
        raw_bytes: int,
        cost: int,
        timeout_s: float,
        make: Callable[[], Sequence[Item]],
        waited_s: float = 0.0,
    ) -> None:
        """Queue several items together, which have that size and cost in all. Waits and raises as `put`."""
        with self.changed:
            self._await_room(cost, timeout_s)
            # After the wait, because `close` wakes waiting senders.
            if self._closed:
                raise Halt("the writer is closed; open another one")
            # Made under the lock, so that accept times and sequence numbers follow the order of the queue.
            items = make()
            # The delay counts by the monotonic clock: a step of the wall clock must not hold items back.
            since_s = self._clock.monotonic_s() - waited_s
            # The first item states when the flush is due.
            if self._items and since_s < self._items[0][0]:
                self._items[0] = since_s, self._items[0][1]
                self.changed.notify_all()
            self._items.extend((since_s, item) for item in items)
            self._waiting_bytes += raw_bytes
            self._held_cost += cost
            self._put += len(items)
            self._records += sum(item.records for item in items)
            self._raw_bytes += raw_bytes
            # Wake the flush thread only if these items start the delay or complete a flush.
            if len(self._items) == len(items) or self._waiting_bytes >= self._delay_max_bytes:
                self.changed.notify_all()

    def try_put_all(self, raw_bytes: int, cost: int, make: Callable[[], Sequence[Item]]) -> bool:
        """Queue several items together without waiting; False, and none is queued, if there is no room for
        all.

        If there is no room, a flush starts at once. Raises `Halt` after `close`, and what `make` raises.
        """
        with self.changed:
            # Checked first: a closed queue has room for everything.
            if self._closed:
                raise Halt("the writer is closed; open another one")
            if not self._has_room(cost):
                self._waits += 1
                # The caller will try again; flush now to free room for it.
                self._flush_below = max(self._flush_below, self._put)
                self.changed.notify_all()
                return False
            items = make()
            now_s = self._clock.monotonic_s()
            self._items.extend((now_s, item) for item in items)
            self._waiting_bytes += raw_bytes
            self._held_cost += cost
            self._put += len(items)
            self._records += sum(item.records for item in items)
            self._raw_bytes += raw_bytes
            self.changed.notify_all()
            return True

    def _await_room(self, cost: int, timeout_s: float) -> None:
        if self._has_room(cost):
            return
        # A flush is due while a sender is blocked, because only a flush frees room.
        self._blocked += 1
        self._waits += 1
        began_s = self._clock.monotonic_s()
        self.changed.notify_all()  # a blocked sender makes the next flush due at once
        try:
            roomy = self.changed.wait_for(lambda: self._has_room(cost), timeout_s)
        finally:
            self._blocked -= 1
            self._waited_s += self._clock.monotonic_s() - began_s
        if not roomy:
            raise RetryLater(
                f"the intake queue is full ({self._held_cost} of {self._queue_bytes_max} bytes) and "
                "freed no room for "
                f"{timeout_s:g} s; nothing was sent, try again"
            )

    def _has_room(self, cost: int) -> bool:
        # An empty queue accepts an item larger than its bound, which could otherwise never be sent. A closed
        # queue has room, so that waiting senders wake up and get `Halt`.
        return self._closed or self._held_cost == 0 or self._held_cost + cost <= self._queue_bytes_max

    def take(self) -> list[Item]:
        """Wait until a flush is due and return its items; an empty list once the queue is closed and empty.

        A flush holds at most `delay_max_bytes`, unless a single item is larger. Call `done` afterwards.
        """
        with self.changed:
            while not self._is_due():
                if self._closed and not self._items:
                    return []
                if not self.changed.wait(self._due_in_s()):
                    break  # the delay is over
            taken: list[Item] = []
            taken_bytes = 0
            # One item is always taken, even if it alone is larger than a flush.
            while self._items and (
                not taken or taken_bytes + self._items[0][1].raw_bytes <= self._delay_max_bytes
            ):
                item = self._items.popleft()[1]
                taken.append(item)
                taken_bytes += item.raw_bytes
            # The cost stays held until `done`: items that are being written use memory, too.
            self._waiting_bytes -= taken_bytes
            return taken

    def _is_due(self) -> bool:
        if not self._items:
            return False
        urgent = self._closed or self._blocked > 0 or self._done < self._flush_below
        return urgent or self._waiting_bytes >= self._delay_max_bytes or self._age_s() >= self._delay_max_s

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._items[0][0]

    def _due_in_s(self) -> float | None:
        return max(0.0, self._delay_max_s - self._age_s()) if self._items else None

    def done(self, taken: list[Item]) -> None:
        """The items of a flush are acknowledged; release their bytes."""
        with self.changed:
            self._done += len(taken)
            self._held_cost -= sum(item.cost for item in taken)
            self.changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Request a flush of everything queued and wait for it; False after `timeout_s`."""
        with self.changed:
            # Only what was put before this call: later items must not delay the caller.
            below = self._put
            self._flush_below = max(self._flush_below, below)
            self.changed.notify_all()
            # Items are done in the order in which they were put, so counting them is enough.
            return self.changed.wait_for(lambda: self._done >= below, timeout_s)

    def close(self) -> None:
        """Refuse further items; what is queued is due at once."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def abandon(self) -> list[Item]:
        """Remove and return the items that no flush has started."""
        with self.changed:
            abandoned = [item for _, item in self._items]
            self._items.clear()
            self._waiting_bytes = 0
        # They count as done, so that a waiting `flush` returns.
        self.done(abandoned)
        return abandoned


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a batch that are queued together."""

    start: int
    end: int
    raw_bytes: int
    cost: int


def cut_rows(
    raw_bytes: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
    delay_max_bytes: int,
    queue_bytes_max: int,
) -> list[Piece]:
    """Divide a batch into pieces, each as large as a flush (by raw bytes) and the queue (by cost) allow, or
    one row.
    """
    # With a leading 0, so that the bytes of rows [a, b) are a difference of two sums.
    sums = np.concatenate(([0], np.cumsum(raw_bytes)))
    costs = np.concatenate(([0], np.cumsum(weights + ROW_COST_BYTES)))
    cuts: list[Piece] = []
    start = 0
    while start < len(raw_bytes):
        by_size = int(np.searchsorted(sums, sums[start] + delay_max_bytes, side="right")) - 1
        by_room = int(np.searchsorted(costs, costs[start] + queue_bytes_max, side="right")) - 1
        # At least one row, even if it alone exceeds the limits.
        end = max(start + 1, min(by_size, by_room, len(raw_bytes)))
        cuts.append(Piece(start, end, int(sums[end] - sums[start]), int(costs[end] - costs[start])))
        start = end
    return cuts
