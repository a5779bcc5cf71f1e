"""How far each partition of a topic is: a pure view over both folds, for people and for the planner."""

from __future__ import annotations

from dataclasses import dataclass

from archiver.ids import TopicId
from archiver.jobs.triggers import bytes_within, rows_within
from archiver.ledger.fold import LedgerFold
from intake.fold import IntakeFold


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Offsets of one topic partition at every stage; each is exclusive: the first offset that has not got there."""

    partition: int
    start: int
    """First offset that retention has left; 0 in this version."""
    watermark: int
    """The table (or, for kind parquet, the archives) is complete up to here."""
    written: int
    """Archives are in the ledger up to here; not below the watermark."""
    stable: int
    """Nothing at or beyond this may be archived."""
    next: int
    """The offset the next record will get."""
    backlog_rows: int
    """Stable records that no archive holds yet."""
    backlog_bytes: int
    """Their raw bytes."""


def positions(intake: IntakeFold, ledger: LedgerFold, topic_id: TopicId) -> list[PartitionPosition]:
    """One position per partition, in order."""
    topic = intake.topics_by_id[topic_id]
    found: list[PartitionPosition] = []
    for partition in range(topic.partitions):
        tp = (topic_id, partition)
        stable = intake.stable_offset(tp)
        written = ledger.topic(topic_id).planned_to(partition)
        segments = intake.segments(tp, written)
        found.append(
            PartitionPosition(
                partition=partition,
                start=0,
                watermark=ledger.topic(topic_id).watermark(partition),
                written=written,
                stable=stable,
                next=intake.next_offset(tp),
                backlog_rows=sum(rows_within(segment, written, stable) for segment in segments),
                backlog_bytes=sum(bytes_within(segment, written, stable) for segment in segments),
            )
        )
    return found
