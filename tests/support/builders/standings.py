"""Standings by hand, for what is said of them."""

from __future__ import annotations

from typing import Any

from archiver.publish.progress import HeldBack
from archiver.runtime.ids import TopicId
from archiver.status.journal import Cycle, Journal, Outcome
from archiver.status.lag import Kind, LagReport, PartitionLag, Stage, StageLag, TopicLag
from archiver.status.reasons import Cause

NOW_US = 1_767_323_045_000_000


def partition(
    number: int = 0,
    records: int | None = 0,
    seconds: float | None = 0.0,
    cause: Cause | None = None,
    reason: str | None = None,
    topic: str = "orders",
    held: HeldBack | None = None,
) -> PartitionLag:
    """A partition that accepted 100 records, of which so many are in no archive, the oldest that old."""
    stages: dict[Stage, StageLag] = {
        "stable": StageLag(100, 0, 0.0),
        "archived": StageLag(100 - (records or 0), records, seconds),
        "committed": StageLag(100 - (records or 0), records, seconds),
    }
    return PartitionLag(topic, number, 0, 100, stages, held, cause, reason)


def topic(
    *partitions: PartitionLag, name: str = "orders", kind: Kind = "iceberg", stuck: str | None = None
) -> TopicLag:
    """A topic with these partitions, committed a minute ago."""
    return TopicLag(
        name, TopicId("0" * 32), kind, partitions, NOW_US - 60_000_000, NOW_US - 90_000_000, 0, stuck
    )


def of(*topics: TopicLag, differences: tuple[str, ...] = ()) -> LagReport:
    """These topics, inspected two seconds before `NOW_US`."""
    return LagReport(NOW_US - 2_000_000, topics, differences)


def journal_of(*cycles: tuple[str, Outcome, str, dict[str, Any]]) -> Journal:
    """Of a daemon that serves, with these cycles a second ago: job, outcome, line, document."""
    journal = Journal(100)
    journal.becomes("serving")
    for job, outcome, line, document in cycles:
        journal.add(Cycle(job, NOW_US - 1_000_000, 0.1, outcome, line, document))
    return journal
