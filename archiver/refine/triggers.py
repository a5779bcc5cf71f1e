"""When a topic is polled, and when a topic partition is archived: decided from its backlog and its settings.

A partition is *open* when it holds enough stable records to be worth a file, and *due* when its file should
be made now. Both are derived from the log alone, so a restarted archiver decides the same and no running
delay is lost. The functions are pure: the caller passes the time.

Offsets of aborted transactions are no records: they open nothing and make no file. A backlog of gaps alone
must still be passed by the watermark, or the partition would keep its intake for ever. That costs a ledger
entry and a table snapshot. So it is done with the next round that writes anything of the topic, or when
`complete_delay_max` has passed since the last one that did.
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
    # Sizes of single records are not in the log; integer division keeps the sum within the segment's.
    return segment.raw_bytes if rows == segment.rows else segment.raw_bytes * rows // segment.rows


def is_open(backlog: BacklogSummary, settings: ArchiveSettings) -> bool:
    """Whether there are stable records, and at least `min_bytes` of them (-1 never, 0 at once)."""
    return backlog.rows > 0 and settings.min_bytes != NEVER and backlog.bytes >= settings.min_bytes


def is_due(
    backlog: BacklogSummary, opened_at_us: Callable[[], int], now_us: int, settings: ArchiveSettings
) -> bool:
    """Whether the open partition should be archived now: it is large, has been open for long, or no record
    arrives any more.

    `opened_at_us` finds the accept time of the segment with which the backlog reached `min_bytes`. It is
    called only if everything else leaves the question open; the backlog is then smaller than `max_bytes`.

    A time in the future counts by its distance: at a distance of at least the delay, in either direction, the
    delay has passed. Records may come from a writer whose clock ran ahead, and the archiver's own clock may
    have been set back. In both cases the real waiting time is unknown, and waiting for the clock to catch up
    could stop archiving for years. A distance below the delay is ordinary clock skew, and ends by itself
    within the delay.
    """
    if not is_open(backlog, settings):
        return False
    if (
        # The cheap questions first: `opened_at_us` reads segments.
        backlog.bytes >= settings.max_bytes
        or settings.idle_max == 0
        or _passed(backlog.newest_us, now_us, settings.idle_max)
    ):
        return True
    return _passed(opened_at_us(), now_us, settings.complete_delay_max)


def gaps_due(written_us: int, now_us: int, settings: ArchiveSettings) -> bool:
    """Whether the watermark should pass a gap-only backlog now, though nothing else of the topic is due.

    `written_us` is when the ledger last recorded anything of the topic; 0 if it never did.
    """
    # A topic that was never written has the time 0, so its gaps are due at once.
    return settings.min_bytes != NEVER and _passed(written_us, now_us, settings.complete_delay_max)


def _passed(since_us: int, now_us: int, delay_s: float) -> bool:
    # The absolute distance, because of clocks that step (see `is_due`).
    return abs(now_us - since_us) >= delay_s * 1e6


def poll_due(last_poll_us: int | None, now_us: int, start_delay_max: float) -> bool:
    """Whether `start_delay_max` (seconds) has passed since the last poll.

    A wall clock that was set back counts as passed: a step of the clock must not stop archiving.
    """
    return last_poll_us is None or now_us < last_poll_us or now_us - last_poll_us >= start_delay_max * 1e6


def concurrent_limit(concurrent_max: int, memory_bytes: int, partition_bytes: int) -> int:
    """How many partitions may be archived at a time: `concurrent_max`, or with 0 as many as fit into memory;
    at least one.
    """
    if concurrent_max > 0:
        return concurrent_max
    return max(1, memory_bytes // max(1, partition_bytes))


class PollState:
    """When a daemon last polled which topic, so that idle topics are skipped. For one thread.

    In memory only: after a restart every topic is polled once. A topic without work is polled again after
    `start_delay_max`. A topic that was archived is polled in the next round, because it may have more.
    """

    def __init__(self) -> None:
        self._last_us: dict[str, int] = {}
        self._ready: set[str] = set()

    def due(self, topic: str, now_us: int, start_delay_max: float) -> bool:
        """Whether the topic may be polled again."""
        return poll_due(self._last_us.get(topic), now_us, start_delay_max)

    def polled(self, topic: str, now_us: int) -> None:
        """The topic was polled."""
        self._last_us[topic] = now_us

    def was_ready(self, topic: str) -> bool:
        """Whether the topic was ready for archiving when it was last prepared, so that it is prepared again
        only if there is work.
        """
        return topic in self._ready

    def ended(self, topic: str, state: str) -> None:
        """How the topic's part of a run ended, as `TopicReport.state` says."""
        # A topic that was deferred or halted is prepared again, because its trouble may be over.
        if state in ("idle", "archived"):
            self._ready.add(topic)
        else:
            self._ready.discard(topic)
        if state == "archived":
            self._last_us.pop(topic, None)
