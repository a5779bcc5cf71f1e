"""Records and raw bytes that each topic accepts per second, from two polls of the intake log.

Only partitions whose next offset moved are read, and of these only the newest segments in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archiver.runtime.errors import NotFound
from archiver.runtime.ids import TopicId
from archiver.status.lag import LagReport, TopicLag
from intake.log.backlog import Backlog


@dataclass(frozen=True, slots=True)
class Accepted:
    """Records of one topic that were accepted between two polls."""

    seconds: float
    """Time between the polls; above 0."""
    records: int
    bytes: int
    """Keys, values, header names and values."""


class AcceptedRecords:
    """Counts what was accepted since the last poll. One thread polls."""

    def __init__(self) -> None:
        self._next: dict[TopicId, tuple[int, ...]] = {}
        """Next offset of each partition at the last poll."""
        self._polled_s: float | None = None

    def poll(self, intake: Backlog, report: LagReport, monotonic_s: float) -> dict[str, Accepted]:
        """By name of the topic. Left out are topics whose count is not known: all at the first poll, and
        those whose new segments a checkpoint has moved to a history file. `report` comes from `intake`.
        """
        before, since_s = self._next, self._polled_s
        self._next = {topic.topic_id: tuple(one.next for one in topic.partitions) for topic in report.topics}
        self._polled_s = monotonic_s
        if since_s is None or monotonic_s <= since_s:
            return {}
        found = ((topic.topic, _accepted(intake, topic, before)) for topic in report.topics)
        return {name: Accepted(monotonic_s - since_s, *sums) for name, sums in found if sums is not None}


def _accepted(
    intake: Backlog, topic: TopicLag, before: Mapping[TopicId, tuple[int, ...]]
) -> tuple[int, int] | None:
    """Records and bytes; None if not known."""
    records = size = 0
    known = before.get(topic.topic_id, ())
    for place, partition in enumerate(topic.partitions):
        # A topic or partition of this interval began without a record.
        start = known[place] if place < len(known) else 0
        if partition.next <= start:
            continue
        try:
            found = intake.in_memory((topic.topic_id, partition.partition), start, partition.next)
        except NotFound:
            # Deleted since the report was made.
            return None
        # A part of the sum would seem to be all of it.
        if found is None:
            return None
        records, size = records + found[0], size + found[1]
    return records, size
