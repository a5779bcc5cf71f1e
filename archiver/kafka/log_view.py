"""The logs as one daemon knows them: where partitions begin and end, and what a consumer could read.

Entries that this process appends are known at once. Those of other processes are known after `refresh`, which
reads the log at most once within an interval, however many consumers wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.backlog import Backlog
from intake.segments import BASE, RAW_BYTES

PLENTY: Final = 2**31 - 1
"""Estimated bytes where records are in history files or in many segments, which are not counted."""
_COUNTED_MAX = 256
"""Segments whose bytes an estimate adds."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition begins and ends."""

    log_start: int
    """The first offset that neither retention removed nor a client deleted."""
    last_stable_offset: int
    high_watermark: int
    """The offset of the next record."""

    def end(self, *, committed: bool) -> int:
        """Exclusive end of what a consumer of that isolation level may read."""
        return self.last_stable_offset if committed else self.high_watermark


class LogView:
    """Both logs, with a bound on how often they are read. Thread-safe."""

    def __init__(
        self,
        view: Callable[[], Backlog],
        read_on: Callable[[], object],
        read_ledger: Callable[[], LedgerFold],
        clock: Clock,
        *,
        refresh_interval_s: float = 0.05,
        ledger_interval_s: float = 1.0,
    ) -> None:
        """`view` gives the present state without reading the log, `read_on` reads the log to its tail,
        `read_ledger` the control log.
        """
        self._view = view
        self._read_on = read_on
        self._read_ledger = read_ledger
        self._clock = clock
        self._refresh_interval_s = refresh_interval_s
        self._ledger_interval_s = ledger_interval_s
        self._lock = threading.Lock()
        self._ledger_lock = threading.Lock()
        self._refreshed_s = float("-inf")
        self._ledger_s = float("-inf")
        self._ledger: LedgerFold | None = None

    @property
    def backlog(self) -> Backlog:
        """The intake log as far as it was read."""
        return self._view()

    @property
    def generation(self) -> int:
        """Number of intake log entries read. While it is the same, no partition has changed."""
        return self._view().next_index

    def refresh(self, *, since_s: float | None = None) -> bool:
        """Read the intake log to its tail, unless a read began after `since_s` (monotonic; by default, within
        the refresh interval); whether it has grown. Raises what reading the log raises.
        """
        before = self.generation
        with self._lock:
            due_s = self._clock.monotonic_s() - self._refresh_interval_s if since_s is None else since_s
            self._read_if_due(due_s)
        return self.generation != before

    def follow(self) -> None:
        """Read the intake log to its tail, unless that was done within a ledger interval or is being done.
        Raises what reading the log raises.
        """
        due_s = self._clock.monotonic_s() - self._ledger_interval_s
        # Readers do not wait for the thread that reads it: what is known is at most one read older.
        if self._refreshed_s <= due_s and self._lock.acquire(blocking=False):
            try:
                self._read_if_due(due_s)
            finally:
                self._lock.release()

    def _read_if_due(self, due_s: float) -> None:
        if self._refreshed_s <= due_s:
            began_s = self._clock.monotonic_s()
            self._read_on()
            self._refreshed_s = began_s

    def ledger(self, *, force: bool = False) -> LedgerFold:
        """The control log, at most one ledger interval old."""
        with self._ledger_lock:
            now_s = self._clock.monotonic_s()
            if self._ledger is None or force or now_s - self._ledger_s >= self._ledger_interval_s:
                self._ledger = self._read_ledger()
                self._ledger_s = now_s
            return self._ledger

    def bounds(self, topic_id: TopicId, partition: int) -> Bounds:
        """Where the partition begins and ends, by what was read of both logs. Reads nothing, so that an event
        loop may call it.

        Raises `NotFound` if there is no such partition, `RetryLater` before the first call of `ledger`.
        """
        backlog, tp = self._view(), (topic_id, partition)
        # The ends after the start, and the stable one first: none of them is beyond what is read later.
        start = self._start(backlog, tp)
        stable = backlog.stable_offset(tp)
        high = backlog.next_offset(tp)
        # A ledger that is newer than this view may have a start beyond its end.
        start = min(start, high)
        # Records of an open transaction may be deleted, and nothing stands below the start.
        return Bounds(start, max(start, stable), high)

    def log_start(self, topic_id: TopicId, partition: int) -> int:
        """Where the partition begins, as by `bounds`."""
        backlog, tp = self._view(), (topic_id, partition)
        return min(self._start(backlog, tp), backlog.next_offset(tp))

    def _start(self, backlog: Backlog, tp: TopicPartition) -> int:
        if (ledger := self._ledger) is None:
            raise RetryLater("the control log was not read yet; try again when the metadata store answers")
        topic = ledger.topics.get(tp[0])
        return backlog.log_start(tp, 0 if topic is None else topic.start(tp[1]))

    def have_append_time(
        self, topic_id: TopicId, partition: int, offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """For each of these offsets, whether its record has the append time; None: none of them has. Reads
        nothing. Raises `NotFound` for an unknown partition.
        """
        return self._view().fold.partition((topic_id, partition)).have_append_time(offsets)

    def available(self, topic_id: TopicId, partition: int, offset: int, *, committed: bool) -> int:
        """About how many bytes a consumer at `offset` could read now; 0 if there is nothing. Only offsets
        without records count as 1 byte. Reads no object. Raises `NotFound` for an unknown partition.
        """
        backlog, tp = self._view(), (topic_id, partition)
        end = backlog.stable_offset(tp) if committed else backlog.next_offset(tp)
        if offset >= end:
            return 0
        held = backlog.fold.partition(tp)
        segments = held.segments
        first = segments.first_beyond(offset)
        if offset < held.history_end or len(segments) - first > _COUNTED_MAX:
            return PLENTY
        numbers = segments.numbers(first, len(segments))
        return max(1, int(numbers[numbers[:, BASE] < end, RAW_BYTES].sum()))
