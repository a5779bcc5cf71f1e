"""When a topic partition is archived: a pure reading of its backlog against its settings.

A partition is *open* when it holds enough stable records to be worth a file, and *due* when its file should be made now. Both are derived
from the log alone, so a restarted archiver comes to the same answer and forgets no delay that was running. This module never looks at a
clock: the caller passes the time in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intake.segments import SegmentRef

if TYPE_CHECKING:  # Spark workers import plans, and so this module; they need no settings
    from archiver.settings import ArchiveSettings

NEVER = -1
"""As `min_bytes`: the partition is never opened."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The stable records of one topic partition that no archive holds yet."""

    bytes: int
    """Raw bytes: keys, values, header names and values."""
    rows: int
    opened_at_us: int | None
    """Accept time of the segment with which the backlog reached `min_bytes`; None while it has not."""
    newest_us: int
    """Newest accept time in the backlog; 0 if it is empty."""


EMPTY = Backlog(bytes=0, rows=0, opened_at_us=None, newest_us=0)


def rows_within(segment: SegmentRef, start: int, stable: int) -> int:
    """How many records of the segment lie in [start, stable)."""
    return max(0, min(segment.end, stable) - max(segment.base, start))


def bytes_within(segment: SegmentRef, start: int, stable: int) -> int:
    """Raw bytes of the segment's records in [start, stable): exact for a whole segment, else in proportion to the rows."""
    rows = rows_within(segment, start, stable)
    return segment.raw_bytes if rows == segment.rows else segment.raw_bytes * rows // segment.rows


def backlog_of(segments: Iterable[SegmentRef], start: int, stable: int, min_bytes: int) -> Backlog:
    """Sum up the segments (in offset order) of one partition between the watermark `start` and the stable offset."""
    total_bytes = total_rows = newest_us = 0
    opened_at_us: int | None = None
    for segment in segments:
        rows = rows_within(segment, start, stable)
        if rows == 0:
            continue
        total_rows += rows
        total_bytes += bytes_within(segment, start, stable)
        newest_us = max(newest_us, segment.accept_max_us)
        if opened_at_us is None and min_bytes != NEVER and total_bytes >= min_bytes:
            opened_at_us = segment.accept_max_us
    return Backlog(bytes=total_bytes, rows=total_rows, opened_at_us=opened_at_us, newest_us=newest_us)


def is_open(backlog: Backlog, settings: ArchiveSettings) -> bool:
    """Is there anything stable, and is it at least `min_bytes` (-1 never, 0 at once)?"""
    return backlog.rows > 0 and settings.min_bytes != NEVER and backlog.bytes >= settings.min_bytes


def is_due(backlog: Backlog, now_us: int, settings: ArchiveSettings) -> bool:
    """Should the open partition be archived now: it is large, has been open for long, or nothing arrives any more.

    A time of the backlog that lies in the future counts as far away as it is: with a distance of at least the delay, in either direction,
    the delay has passed. Records may come from a writer whose clock ran ahead, and the archiver's own clock may have been set back; either
    way nobody can tell how long they have waited, and waiting for the clock to reach them could stop archiving for years. A distance below
    the delay is ordinary skew between machines, and ends by itself within the delay.
    """
    if not is_open(backlog, settings):
        return False
    if backlog.bytes >= settings.max_bytes or settings.idle_max == 0:
        return True
    opened_at_us = backlog.newest_us if backlog.opened_at_us is None else backlog.opened_at_us
    open_for_s = abs(now_us - opened_at_us) / 1e6
    idle_for_s = abs(now_us - backlog.newest_us) / 1e6
    return open_for_s >= settings.complete_delay_max or idle_for_s >= settings.idle_max


def look_due(last_look_us: int | None, now_us: int, start_delay_max: float) -> bool:
    """Has `start_delay_max` (seconds) passed since the partition was last looked at?

    A wall clock that was set back counts as passed: a step of the clock must not stop archiving.
    """
    return last_look_us is None or now_us < last_look_us or now_us - last_look_us >= start_delay_max * 1e6


def concurrent_limit(concurrent_max: int, memory_bytes: int, partition_bytes: int) -> int:
    """How many partitions may be archived at a time: `concurrent_max`, or (0) as many as fit into memory; at least one."""
    if concurrent_max > 0:
        return concurrent_max
    return max(1, memory_bytes // max(1, partition_bytes))
