"""Retention: expired records leave first the ledger, then the table, and last the object store.

This module does the first step; `Committer.retire` does the second, and the vacuum (`clean.py`) the third. A
start is in the ledger before anything below it is changed (rule C1). So a later leader neither archives those
offsets again nor reports them as lost. Only archived records are retired, by the ingest times of their
archives: a start is the end of an archive whose records, and all before them, are older than the retention.
The start of a topic never moves if its table is unreadable or doubtful.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from archiver.config.settings import TopicSettings
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.retention_floor import Lines


@dataclass(frozen=True, slots=True)
class Moved:
    """A move of the start of one topic partition."""

    topic: str
    topic_id: TopicId
    partition: int
    before: int
    start: int

    def to_json(self) -> dict[str, object]:
        """The JSON of `clean`."""
        return {"topic": self.topic, "partition": self.partition, "before": self.before, "start": self.start}


def due_starts(topic: TopicState, ledger: TopicLedger, retention_s: float, now_us: int) -> list[Moved]:
    """Starts that move because archived records are older than the retention. Pure."""
    limit_us = now_us - round(retention_s * 1e6)
    found: list[Moved] = []
    for partition in range(topic.partitions):
        before = ledger.start(partition)
        start = ledger.ages.older_than(partition, limit_us, ledger.watermarks.get(partition, 0))
        if start > before:
            found.append(Moved(topic.name, topic.topic_id, partition, before, start))
    return found


def all_due(
    topics: Iterable[TopicSettings], intake: Backlog, ledger: LedgerFold, lines: Lines, now_us: int
) -> list[Moved]:
    """The starts that move now, of all topics with a retention, archives and known retention floors. Pure."""
    found: list[Moved] = []
    for settings in topics:
        topic = intake.topics_by_name.get(settings.name)
        if topic is None or settings.retention is None or settings.archive.kind == "none":
            continue
        line = lines.get(topic.topic_id)
        if line is not None and line.why is None:
            found += due_starts(topic, ledger.topic(topic.topic_id), settings.retention, now_us)
    return found


def move_starts(leader: Leader, moved: list[Moved]) -> None:
    """Append the new starts to the ledger; `leader` must lead. Raises the errors of an append."""
    by_topic: dict[TopicId, list[Moved]] = {}
    for item in moved:
        by_topic.setdefault(item.topic_id, []).append(item)
    for topic_id, items in by_topic.items():
        raw_id = bytes.fromhex(topic_id)
        failpoints.reach("start.append.before")
        append_in_parts(
            leader,
            [pb.PartitionOffset(partition=item.partition, offset=item.start) for item in items],
            lambda part, _, raw_id=raw_id: pb.StartMoved(topic_id=raw_id, starts=part),  # type: ignore[misc]
            lambda item: f"the start of partition {item.partition}",
        )
        failpoints.reach("start.append.after")
