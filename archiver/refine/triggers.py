"""When a topic partition is archived: a pure reading of its backlog against its settings.

A partition is *open* when it holds enough stable records to be worth a file, and *due* when its file should
be made now. Both are derived from the log alone, so a restarted archiver comes to the same answer and forgets
no delay that was running. This module never looks at a clock: the caller passes the time in.

Offsets of aborted transactions are no records: they open nothing and make no file. Where a backlog consists
of nothing else, the watermark has to pass them all the same, or the partition would hold on to its intake for
ever. That costs an entry of the ledger and a snapshot of the table, so it is done with the next round that
writes anything of the topic, and else when `complete_delay_max` has passed since the last one that did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from intake.log.backlog import BacklogSummary
from intake.segments import SegmentRef

if TYPE_CHECKING:  # Spark workers import plans, and so this module; they need no settings
    from archiver.config.settings import ArchiveSettings


NEVER = -1
"""As `min_bytes`: the partition is never opened."""


def rows_within(segment: SegmentRef, start: int, stable: int) -> int:
    """How many records of the segment lie in [start, stable)."""
    return max(0, min(segment.end, stable) - max(segment.base, start))


def bytes_within(segment: SegmentRef, start: int, stable: int) -> int:
    """Raw bytes of the segment's records in [start, stable): exact for a whole segment, else in proportion to
    the rows.
    """
    rows = rows_within(segment, start, stable)
    return segment.raw_bytes if rows == segment.rows else segment.raw_bytes * rows // segment.rows


def is_open(backlog: BacklogSummary, settings: ArchiveSettings) -> bool:
    """Is there anything stable, and is it at least `min_bytes` (-1 never, 0 at once)?"""
    return backlog.rows > 0 and settings.min_bytes != NEVER and backlog.bytes >= settings.min_bytes


def is_due(
    backlog: BacklogSummary, opened_at_us: Callable[[], int], now_us: int, settings: ArchiveSettings
) -> bool:
    """Should the open partition be archived now: it is large, has been open for long, or nothing arrives any
    more.

    `opened_at_us` finds the accept time of the segment with which the backlog reached `min_bytes`; it is
    asked only if all else leaves the question open, and then the backlog is smaller than `max_bytes`.

    A time of the backlog that lies in the future counts as far away as it is: with a distance of at least the
    delay, in either direction, the delay has passed. Records may come from a writer whose clock ran ahead,
    and the archiver's own clock may have been set back; either way nobody can tell how long they have waited,
    and waiting for the clock to reach them could stop archiving for years. A distance below the delay is
    ordinary skew between machines, and ends by itself within the delay.
    """
    if not is_open(backlog, settings):
        return False
    if (
        backlog.bytes >= settings.max_bytes
        or settings.idle_max == 0
        or _passed(backlog.newest_us, now_us, settings.idle_max)
    ):
        return True
    return _passed(opened_at_us(), now_us, settings.complete_delay_max)


def gaps_due(written_us: int, now_us: int, settings: ArchiveSettings) -> bool:
    """Should the watermark pass a backlog of nothing but gaps now, though nothing else of the topic is due?

    `written_us` is when the ledger last took in anything of the topic; 0 if it never did.
    """
    return settings.min_bytes != NEVER and _passed(written_us, now_us, settings.complete_delay_max)


def _passed(since_us: int, now_us: int, delay_s: float) -> bool:
    return abs(now_us - since_us) >= delay_s * 1e6


def look_due(last_look_us: int | None, now_us: int, start_delay_max: float) -> bool:
    """Has `start_delay_max` (seconds) passed since the partition was last looked at?

    A wall clock that was set back counts as passed: a step of the clock must not stop archiving.
    """
    return last_look_us is None or now_us < last_look_us or now_us - last_look_us >= start_delay_max * 1e6


def concurrent_limit(concurrent_max: int, memory_bytes: int, partition_bytes: int) -> int:
    """How many partitions may be archived at a time: `concurrent_max`, or (0) as many as fit into memory; at
    least one.
    """
    if concurrent_max > 0:
        return concurrent_max
    return max(1, memory_bytes // max(1, partition_bytes))


class PollState:
    """The looks of one process. One thread at a time."""

    def __init__(self) -> None:
        self._last_us: dict[str, int] = {}
        self._whole: set[str] = set()

    def due(self, topic: str, now_us: int, start_delay_max: float) -> bool:
        """May the topic be looked at again?"""
        return look_due(self._last_us.get(topic), now_us, start_delay_max)

    def looked(self, topic: str, now_us: int) -> None:
        """It was looked at."""
        self._last_us[topic] = now_us

    def whole(self, topic: str) -> bool:
        """Was the topic ready for archiving when it was last prepared, so that it needs to be prepared again
        only if there is work?
        """
        return topic in self._whole

    def ended(self, topic: str, state: str) -> None:
        """How the topic's part of a run ended, as `TopicReport.state` says."""
        if state in ("idle", "archived"):
            self._whole.add(topic)
        else:
            self._whole.discard(topic)
        if state == "archived":
            self._last_us.pop(topic, None)
