"""The whole view of the intake log that readers use: what the fold holds, and before it what stands in
shelves.

Promises the same answers as a fold that never shelved anything. Only reads: the fold goes on under it, and so
does the view. May be used while one thread appends and another makes a checkpoint; an answer is never older
than the call. Must never decide anything: offsets, transactions and the stable offset are the fold's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.fold import IntakeFold, TopicState
from intake.log.state import Gap, merged
from intake.log.transactions import OpenTransaction
from intake.segments import (
    ACCEPT_MAX_US,
    LOG_INDEX,
    NONE,
    RAW_BYTES,
    FileRef,
    HeldSegments,
    SegmentRef,
    Segments,
)


@dataclass(frozen=True, slots=True)
class BacklogSummary:
    """The stable records of a partition beyond some offset, without those of aborted transactions."""

    rows: int
    bytes: int
    """Raw bytes: keys, values, header names and values. Of a segment that is counted in part, in proportion
    to its rows."""
    first_accept_us: int
    """Newest accept time of the first segment; 0 if there is none."""
    newest_us: int
    """Newest accept time; 0 if there is none."""
    first_floor_us: int
    """No record that is counted has an ingest time before this; 0 if there is none."""


EMPTY = BacklogSummary(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was accepted at or beyond some offset, stable or not."""

    records: int
    """Offsets without those of aborted transactions; records of open ones count."""
    first_accept_us: int | None
    """Newest accept time of the segment with the first of them; None if there is none."""


class HistorySegments(Protocol):
    """The segments and gaps that checkpoints moved out of the log. Every range of offsets [start, end) ends
    at a shelved offset.
    """

    def segments(self, tp: TopicPartition, start: int, end: int, bytes_max: int | None) -> Segments:
        """Those that reach beyond `start`, in offset order, until their bytes reach `bytes_max`."""

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The offsets of aborted transactions; ascending."""

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        """The records beyond `start`."""

    def key_of(self, log_index: int) -> str | None:
        """The object that holds what the entry at `log_index` decided; None if it is in no shelf."""


class NoHistory:
    """Nothing was shelved yet."""

    def key_of(self, log_index: int) -> str | None:
        del log_index
        return None

    def segments(self, tp: TopicPartition, start: int, end: int, bytes_max: int | None) -> Segments:
        del tp, start, end, bytes_max
        return NONE

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        del tp, start, end
        return []

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        del tp, start, end
        return EMPTY


@dataclass(frozen=True, slots=True)
class _Held:
    """What the fold held of a partition at one moment."""

    history_end: int
    segments: HeldSegments
    """More may come to its end while it is read."""
    gaps: list[Gap]

    def first_beyond(self, start: int) -> int:
        """The place of the first that reaches beyond `start` and is not in a shelf."""
        return self.segments.first_beyond(max(start, self.history_end))


@dataclass(frozen=True, slots=True)
class Counted:
    """What was summed up of the segments that are held of a partition: the next look only adds those that
    came since.
    """

    held: _Held
    start: int
    end: int
    """Place of the first segment that was not counted."""
    summary: BacklogSummary

    def goes_on(self, held: _Held, start: int, stable: int) -> bool:
        """Whether a sum of these segments up to `stable` begins with this one: nothing was taken out of the
        list, or it is another.

        Not if nothing was counted: it may have been asked beyond the end of the log, and what comes later may
        still be below `start`.
        """
        if not self.summary.rows:
            return False
        same = self.held.segments is held.segments and (self.held.history_end, self.start) == (
            held.history_end,
            start,
        )
        return same and held.segments.end_of(self.end - 1) <= stable


class Backlog:
    """Topics, offsets, segments and gaps, wherever they are kept.

    Methods that take a topic partition raise `NotFound` if there is none; those that look into shelves also
    `Corrupted` for a damaged shelf, `Halt` for one that is gone, `RetryLater` if the object store cannot be
    reached.
    """

    def __init__(
        self,
        fold: IntakeFold,
        history: HistorySegments | None = None,
        counted: dict[TopicPartition, Counted] | None = None,
    ) -> None:
        """`counted` remembers sums from one view of the same log to the next; it may be emptied at any
        time.
        """
        self.fold = fold
        self._history = history or NoHistory()
        self._counted = {} if counted is None else counted
        self._files: dict[int, FileRef] = {}

    @property
    def topics_by_name(self) -> Mapping[str, TopicState]:
        """Every topic, in order of declaration."""
        return self.fold.topics_by_name

    @property
    def topics_by_id(self) -> Mapping[TopicId, TopicState]:
        """Every topic, in order of declaration."""
        return self.fold.topics_by_id

    @property
    def tick_us(self) -> int:
        """The newest tick: nothing later in the log has an ingest time before it. 0 before the first."""
        return self.fold.tick_us

    @property
    def next_index(self) -> int:
        """How far the log was read: one past the last entry."""
        return self.fold.next_index

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset the partition's next record will get."""
        return self.fold.next_offset(tp)

    def stable_offset(self, tp: TopicPartition) -> int:
        """Nothing at or beyond it is archived: the first offset of the oldest open transaction, else the end
        of the partition.
        """
        return self.fold.stable_offset(tp)

    def blocking(self, tp: TopicPartition) -> OpenTransaction | None:
        """The transaction at whose first offset the partition's stable offset stands; None if nothing holds
        it back.
        """
        return self.fold.blocking(tp)

    def segments(self, tp: TopicPartition, start: int = 0, bytes_max: int | None = None) -> Segments:
        """The segments that reach beyond offset `start`, in offset order, without those of aborted
        transactions.

        With `bytes_max` the answer ends with the segment with which their raw bytes reach it; the stable
        offset is not looked at.
        """
        held = self._held(tp)
        part = (
            self._history.segments(tp, start, held.history_end, bytes_max)
            if start < held.history_end
            else NONE
        )
        first, end = held.first_beyond(start), len(held.segments)
        numbers = held.segments.numbers(first, end)
        if bytes_max is not None:
            before = int(part.raw_bytes.sum()) + np.cumsum(numbers[:, RAW_BYTES]) - numbers[:, RAW_BYTES]
            wanted = int(np.searchsorted(before, bytes_max))
            numbers = numbers[
                : wanted if part else max(wanted, 1)
            ].copy()  # or all that is held would be kept for these
        self._files.update(
            zip(
                numbers[:, LOG_INDEX].tolist(), held.segments.files[first : first + len(numbers)], strict=True
            )
        )
        return Segments.joined([part, Segments(numbers, self._files)])

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The offsets in [start, end) that belong to aborted transactions; merged, ascending."""
        held = self._held(tp)
        below = self._history.gaps(tp, start, min(end, held.history_end)) if start < held.history_end else []
        return merged([*below, *(gap for gap in held.gaps if gap[1] > held.history_end)], start, end)

    def summary(self, tp: TopicPartition, start: int, stable: int | None = None) -> BacklogSummary:
        """What is stable and beyond offset `start`. To find the stable offset goes through all open
        transactions; a caller that has done so for many partitions says what it found.
        """
        if stable is None:
            stable = self.fold.stable_offset(tp)  # first: what is aborted after that is still beyond it
        held = self._held(tp)
        below = self._history.summary(tp, start, held.history_end) if start < held.history_end else EMPTY
        return joined(below, self._summed(tp, held, max(start, held.history_end), stable))

    def _summed(self, tp: TopicPartition, held: _Held, start: int, stable: int) -> BacklogSummary:
        """Of what is held from `start` on, which is not in a shelf. Every partition is looked at every few
        seconds, and may have thousands of segments.
        """
        known = self._counted.get(tp)
        if known is None or not known.goes_on(held, start, stable):
            known = Counted(held, start, held.first_beyond(start), EMPTY)
        end = held.segments.first_beyond(stable, known.end)
        found = (
            joined(known.summary, summed(held.segments[known.end : end], start))
            if end > known.end
            else known.summary
        )
        self._counted[tp] = Counted(held, start, end, found)
        return found

    def waiting(self, tp: TopicPartition, start: int) -> Waiting:
        """What was accepted at or beyond `start`. Goes through the gaps that are held, never through the
        segments.
        """
        end = self.fold.next_offset(tp)
        held = self._held(tp)
        below = self._history.summary(tp, start, held.history_end) if start < held.history_end else EMPTY
        at = max(start, held.history_end)
        if at >= end:
            return Waiting(below.rows, below.first_accept_us if below.rows else None)
        gaps = held.gaps[max(0, bisect_right(held.gaps, (at, at)) - 1) :]
        records = below.rows + end - at - sum(high - low for low, high in merged(gaps, at, end))
        if below.rows:
            return Waiting(records, below.first_accept_us)
        place = held.segments.first_beyond(at)
        return Waiting(records, held.segments[place].accept_max_us if place < len(held.segments) else None)

    def history_file_of(self, tp: TopicPartition, segment: SegmentRef) -> str | None:
        """The key of the shelf in which the log keeps that segment; None if the segment is held here."""
        return (
            self._history.key_of(segment.file.log_index)
            if segment.end <= self._held(tp).history_end
            else None
        )

    def _held(self, tp: TopicPartition) -> _Held:
        """A partition at one moment, though a checkpoint may take segments out meanwhile: it raises
        `shelved_to` first.
        """
        state = self.fold.partition(tp)
        while True:
            held = _Held(state.history_end, state.segments, state.gaps)
            if state.history_end == held.history_end:
                return held


def summed(segments: Segments, start: int) -> BacklogSummary:
    """Sum up segments that reach beyond `start`; only the first of them can begin before it."""
    if not segments:
        return EMPTY
    first = segments[0]
    inside = min(first.rows, first.end - start)
    rows = inside + int((segments.ends - segments.bases)[1:].sum())
    size = first.raw_bytes * inside // first.rows + int(segments.raw_bytes[1:].sum())
    return BacklogSummary(
        rows, size, first.accept_max_us, max(0, int(segments.numbers[:, ACCEPT_MAX_US].max())), first.floor_us
    )


def joined(earlier: BacklogSummary, later: BacklogSummary) -> BacklogSummary:
    """The sum of two ranges that follow each other."""
    if not earlier.rows or not later.rows:
        return earlier if earlier.rows else later
    newest_us = max(earlier.newest_us, later.newest_us)
    return BacklogSummary(
        earlier.rows + later.rows,
        earlier.bytes + later.bytes,
        earlier.first_accept_us,
        newest_us,
        earlier.first_floor_us,
    )


WINDOW_BYTES = 16 * 2**20
"""Raw bytes of the records behind one window, where nothing else bounds it: some ten thousand segments, if
they are small."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the offsets from some start to `end` consist of."""

    segments: Segments
    """In offset order; the first and the last may reach beyond the window."""
    gaps: list[Gap]
    """Inside the window; ascending."""
    end: int
    """Exclusive. Where the next segment begins, or the stop that was asked for: gaps behind the last segment
    are in the window."""


def look(backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int) -> Window:
    """What is in [start, stop), up to the segment with which the raw bytes reach `bytes_max`."""
    found = backlog.segments(tp, start, bytes_max)
    segments = found.where(found.bases < stop)
    end, reached = stop, int(found.ends[-1]) if found else stop
    if len(segments) == len(found) and reached < stop:
        behind = backlog.segments(tp, reached, 1)
        end = min(stop, int(behind.bases[0])) if behind else stop
    return Window(segments, backlog.gaps(tp, start, end), end)


def windows(
    backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int = WINDOW_BYTES
) -> Iterator[Window]:
    """[start, stop) in windows of about `bytes_max` raw bytes, each looked up when it is asked for."""
    at = start
    while at < stop:
        window = look(backlog, tp, at, stop, bytes_max)
        yield window
        at = window.end
