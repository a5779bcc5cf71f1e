"""Retention: what a topic no longer keeps leaves first the ledger, then the table, and last the object store.

Owns the first of these steps; the second is `Committer.retire`, the third the vacuum's (`clean.py`). A start
is in the ledger before anything of what lies below it is touched (rule C1): whoever comes after us neither
archives those offsets again nor takes them for lost. Only what is archived is ever retired, by the ingest
times of its archives: a start is the end of an archive all of whose records, and all before them, are older
than the retention. Must never move a start of a topic whose table cannot be looked at, or is in doubt.
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
    """The start of one topic partition moves."""

    topic: str
    topic_id: TopicId
    partition: int
    before: int
    start: int

    def to_json(self) -> dict[str, object]:
        """As `clean` prints it."""
        return {"topic": self.topic, "partition": self.partition, "before": self.before, "start": self.start}


def due_starts(topic: TopicState, ledger: TopicLedger, retention_s: float, now_us: int) -> list[Moved]:
    """The starts that move because archived records are older than the retention. Pure."""
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
    """The starts that move now, of all topics that have a retention and archives, and whose lines are known.
    Pure.
    """
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
    """Say in the ledger where the starts are from now on; `leader` must lead. Raises what appending
    raises.
    """
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
