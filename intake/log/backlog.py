"""The readers' view of the intake log: segments and gaps in memory and in history files, also in windows.

It gives the same answers as a fold that dropped nothing. Read-only: the fold advances under it, and so does
the view. It may be used while one thread appends and another makes a checkpoint; a result is never older than
the call. Offsets, transactions and the stable offset are decided by the fold alone.
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
    """Raw bytes: keys, values, header names and values. A segment counted in part contributes in proportion
    to its rows."""
    first_accept_us: int
    """Newest accept time of the first segment; 0 if there is none."""
    newest_us: int
    """Newest accept time; 0 if there is none."""
    first_floor_us: int
    """Lower bound of the ingest times of these records; 0 if there are none."""


EMPTY = BacklogSummary(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records accepted at or beyond some offset, stable or not."""

    records: int
    """Offsets without those of aborted transactions; records of open ones count."""
    first_accept_us: int | None
    """Newest accept time of the segment with the first of them; None if there is none."""


class HistorySegments(Protocol):
    """Segments and gaps that checkpoints moved from the log to history files. Every range [start, end) passed
    in ends at such an offset.
    """

    def segments(self, tp: TopicPartition, start: int, end: int, bytes_max: int | None) -> Segments:
        """Those that reach beyond `start`, in offset order, until their bytes reach `bytes_max`."""

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The offsets of aborted transactions; ascending."""

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        """The records beyond `start`."""

    def key_of(self, log_index: int) -> str | None:
        """The key of the history file for the entry at `log_index`; None if no history file has it."""


class NoHistory:
    """A log without history files."""

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
    """A partition in the fold's memory at one moment."""

    history_end: int
    segments: HeldSegments
    """Other segments may be appended during reading."""
    gaps: list[Gap]

    def first_beyond(self, start: int) -> int:
        """The place of the first segment in memory that reaches beyond `start`."""
        return self.segments.first_beyond(max(start, self.history_end))


@dataclass(frozen=True, slots=True)
class Counted:
    """The sum of a partition's segments in memory. The next call only adds newer segments."""

    held: _Held
    start: int
    end: int
    """Place of the first segment that was not counted."""
    summary: BacklogSummary

    def goes_on(self, held: _Held, start: int, stable: int) -> bool:
        """Whether the sum up to `stable` can start from this one: the segment list is the same and only grew.

        False if nothing was counted: the call may have been beyond the end of the log, and later segments may
        still be below `start`.
        """
        if not self.summary.rows:
            return False
        # Identity: the fold appends to a list and replaces it when segments are dropped or aborted.
        same = self.held.segments is held.segments and (self.held.history_end, self.start) == (
            held.history_end,
            start,
        )
        return same and held.segments.end_of(self.end - 1) <= stable


class Backlog:
    """Topics, offsets, segments and gaps, in memory and in history files.

    Methods with a topic partition raise `NotFound` if there is none. Methods that read history files also
    raise `Corrupted` for a damaged file, `Halt` for a missing one, `RetryLater` if the object store cannot be
    reached.
    """

    def __init__(
        self,
        fold: IntakeFold,
        history: HistorySegments | None = None,
        counted: dict[TopicPartition, Counted] | None = None,
    ) -> None:
        """`counted` carries sums from one view of the same log to the next; it may be cleared at any time."""
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
        """Number of log entries read."""
        return self.fold.next_index

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset of the partition's next record."""
        return self.fold.next_offset(tp)

    def stable_offset(self, tp: TopicPartition) -> int:
        """Records at or beyond it are not archived: the first offset of the oldest open transaction, else the
        partition's end.
        """
        return self.fold.stable_offset(tp)

    def deleted_below(self, tp: TopicPartition) -> int:
        """Clients deleted the partition's records below this offset; 0 if they deleted none."""
        return self.fold.partition(tp).deleted_below

    def log_start(self, tp: TopicPartition, kept_from: int) -> int:
        """The first offset that a reader gets. Below it clients deleted the records, or retention did, which
        kept those from `kept_from` on.
        """
        return max(kept_from, self.deleted_below(tp))

    def blocking(self, tp: TopicPartition) -> OpenTransaction | None:
        """The open transaction that determines the partition's stable offset; None if there is none."""
        return self.fold.blocking(tp)

    def segments(self, tp: TopicPartition, start: int = 0, bytes_max: int | None = None) -> Segments:
        """The segments that reach beyond offset `start`, in offset order, without those of aborted
        transactions.

        With `bytes_max` the result ends with the segment whose raw bytes reach it. The stable offset is not
        considered.
        """
        held = self._held(tp)
        part = (
            self._history.segments(tp, start, held.history_end, bytes_max)
            if start < held.history_end
            else NONE
        )
        first, end = held.first_beyond(start), len(held.segments)
        numbers = held.segments.numbers(first, end)
        # Bytes before each segment, history included: the segment that reaches the limit is still returned.
        if bytes_max is not None:
            before = int(part.raw_bytes.sum()) + np.cumsum(numbers[:, RAW_BYTES]) - numbers[:, RAW_BYTES]
            count = int(np.searchsorted(before, bytes_max))
            # A copy, or the numbers of all held segments would stay in memory with these few.
            numbers = numbers[: count if part else max(count, 1)].copy()
        # One mapping for all results of this view, so that joined segments need no copy of it.
        self._files.update(
            zip(
                numbers[:, LOG_INDEX].tolist(), held.segments.files[first : first + len(numbers)], strict=True
            )
        )
        return Segments.joined([part, Segments(numbers, self._files)])

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The offsets in [start, end) without a record; merged, ascending."""
        held = self._held(tp)
        # Gaps below `history_end` are read from history files even if memory still has some of them.
        below = self._history.gaps(tp, start, min(end, held.history_end)) if start < held.history_end else []
        return merged([*below, *(gap for gap in held.gaps if gap[1] > held.history_end)], start, end)

    def summary(self, tp: TopicPartition, start: int, stable: int | None = None) -> BacklogSummary:
        """The stable records beyond offset `start`. Finding the stable offset visits all open transactions,
        so a caller with many partitions passes it.
        """
        if stable is None:
            # Before the segments: an abort in between only affects offsets beyond it.
            stable = self.fold.stable_offset(tp)
        held = self._held(tp)
        below = self._history.summary(tp, start, held.history_end) if start < held.history_end else EMPTY
        return joined(below, self._summed(tp, held, max(start, held.history_end), stable))

    def _summed(self, tp: TopicPartition, held: _Held, start: int, stable: int) -> BacklogSummary:
        """The sum of the segments in memory from `start` on. Kept between calls: every partition is polled
        every few seconds, and may have thousands of segments.
        """
        # Several threads may replace an entry; each sum is valid by itself.
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

    def in_memory(self, tp: TopicPartition, start: int, end: int) -> tuple[int, int] | None:
        """Number and raw bytes of the records in [start, end), stable or not; both have been the next offset.
        None if a checkpoint moved some to a history file, which is not read for this.
        """
        held = self._held(tp)
        if start < held.history_end:
            return None
        first = held.segments.first_beyond(start)
        # Segments appended since the caller read `end` belong to its next range.
        return held.segments.sums(first, held.segments.first_beyond(end, first))

    def waiting(self, tp: TopicPartition, start: int) -> Waiting:
        """Records accepted at or beyond `start`. Visits the gaps in memory, but not the segments."""
        end = self.fold.next_offset(tp)
        held = self._held(tp)
        below = self._history.summary(tp, start, held.history_end) if start < held.history_end else EMPTY
        at = max(start, held.history_end)
        # The checkpoint may have moved everything to history files.
        if at >= end:
            return Waiting(below.rows, below.first_accept_us if below.rows else None)
        # The gap before the found place may reach beyond `at`.
        gaps = held.gaps[max(0, bisect_right(held.gaps, (at, at)) - 1) :]
        # Offsets are dense: what is no gap is a record.
        records = below.rows + end - at - sum(high - low for low, high in merged(gaps, at, end))
        if below.rows:
            return Waiting(records, below.first_accept_us)
        place = held.segments.first_beyond(at)
        return Waiting(records, held.segments[place].accept_max_us if place < len(held.segments) else None)

    def history_file_of(self, tp: TopicPartition, segment: SegmentRef) -> str | None:
        """The key of the history file that holds that segment; None if the segment is in memory."""
        return (
            self._history.key_of(segment.file.log_index)
            if segment.end <= self._held(tp).history_end
            else None
        )

    def _held(self, tp: TopicPartition) -> _Held:
        """A consistent view of a partition. A checkpoint may drop segments at the same time, but raises
        `history_end` first.
        """
        state = self.fold.partition(tp)
        while True:
            held = _Held(state.history_end, state.segments, state.gaps)
            # Unchanged: no elements were dropped between the reads of these fields.
            if state.history_end == held.history_end:
                return held


def summed(segments: Segments, start: int) -> BacklogSummary:
    """Sum segments that reach beyond `start`; only the first of them can begin before it."""
    if not segments:
        return EMPTY
    first = segments[0]
    inside = min(first.rows, first.end - start)
    rows = inside + int((segments.ends - segments.bases)[1:].sum())
    # Bytes of single records are not in the log, so a part counts in proportion to its rows.
    size = first.raw_bytes * inside // first.rows + int(segments.raw_bytes[1:].sum())
    return BacklogSummary(
        rows, size, first.accept_max_us, max(0, int(segments.numbers[:, ACCEPT_MAX_US].max())), first.floor_us
    )


def joined(earlier: BacklogSummary, later: BacklogSummary) -> BacklogSummary:
    """The sum of two consecutive ranges."""
    # An empty range has the time 0, which must not become the earliest time.
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


# --- windows

WINDOW_BYTES = 16 * 2**20
"""Raw bytes of the records in a window, where no other bound applies: ten thousand segments, if they are
small."""


@dataclass(frozen=True, slots=True)
class Window:
    """Segments and gaps of the offsets from some start to `end`."""

    segments: Segments
    """In offset order; the first and the last may reach beyond the window."""
    gaps: list[Gap]
    """Inside the window; ascending."""
    end: int
    """Exclusive: the begin of the next segment, or the requested stop. Gaps after the last segment belong to
    the window."""


def read_window(backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int) -> Window:
    """The content of [start, stop), up to the segment whose raw bytes reach `bytes_max`."""
    found = backlog.segments(tp, start, bytes_max)
    segments = found.where(found.bases < stop)
    end, reached = stop, int(found.ends[-1]) if found else stop
    # `bytes_max` may have ended the result before `stop`.
    if len(segments) == len(found) and reached < stop:
        # A window ends where the next segment begins, so the gaps between the two belong to this window.
        behind = backlog.segments(tp, reached, 1)
        end = min(stop, int(behind.bases[0])) if behind else stop
    return Window(segments, backlog.gaps(tp, start, end), end)


def windows(
    backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int = WINDOW_BYTES
) -> Iterator[Window]:
    """[start, stop) in windows of about `bytes_max` raw bytes, each read when requested.

    A backlog may have millions of segments, so callers iterate. Consecutive windows show every segment and
    every gap of the range, each once.
    """
    at = start
    while at < stop:
        # Each window is a call of its own, so a checkpoint may move segments to history files between two of
        # them.
        window = read_window(backlog, tp, at, stop, bytes_max)
        yield window
        at = window.end
