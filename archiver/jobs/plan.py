"""What should be archived next: cuts a partition's stable backlog into ranges of about `max_bytes`.

Pure. Promises that the plans of one call are a chain without a hole from the watermark to the stable offset, in order, and that every
record between them is in exactly one plan. A record whose intake is not known stops the partition (protocol rule P1); it never makes a
plan shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archiver.errors import TopicHalted
from archiver.ids import TopicId, TopicPartition
from archiver.jobs.triggers import bytes_within, rows_within
from intake.segments import SegmentRef


@dataclass(frozen=True, slots=True)
class Plan:
    """One range of one topic partition that should become one archive."""

    topic_id: TopicId
    topic: str
    partition: int
    base: int
    end: int
    """Exclusive."""
    epoch: int
    """Of the leader that planned it; part of the object key, so that a range planned anew has another path (protocol rule P2)."""
    segments: tuple[SegmentRef, ...]
    """Where the records are, in offset order; the first and the last may reach beyond the range."""
    rows: int
    raw_bytes: int


def plan_partition(
    tp: TopicPartition, topic: str, segments: Sequence[SegmentRef], start: int, stable: int, epoch: int, max_bytes: int
) -> list[Plan]:
    """Plans for the records in [start, stable) of one partition.

    `segments` are in offset order and may reach beyond the range at both ends. A plan ends at the segment boundary nearest to `max_bytes`;
    a segment is never divided, except by `start` and `stable`. Raises `TopicHalted` if some offset of the range lies in no segment.
    """
    if stable <= start:
        return []
    needed = [segment for segment in segments if rows_within(segment, start, stable) > 0]
    _check_chain(topic, tp[1], needed, start, stable)
    plans: list[Plan] = []
    base = start
    for group in _groups(needed, start, stable, max_bytes):
        end = min(group[-1].end, stable)
        plans.append(
            Plan(
                topic_id=tp[0],
                topic=topic,
                partition=tp[1],
                base=base,
                end=end,
                epoch=epoch,
                segments=group,
                rows=end - base,
                raw_bytes=sum(bytes_within(segment, start, stable) for segment in group),
            )
        )
        base = end
    return plans


def _check_chain(topic: str, partition: int, needed: Sequence[SegmentRef], start: int, stable: int) -> None:
    """Every offset of [start, stable) must be in exactly one segment (protocol rule P1)."""
    reached = start
    for segment in needed:
        if segment.base > reached:
            break
        if segment.base < reached and segment is not needed[0]:
            raise TopicHalted(topic, f"partition {partition}: two intake segments claim offset {segment.base}; the intake log is damaged")
        reached = segment.end
    if reached < stable:
        following = next((segment.base for segment in needed if segment.base > reached), stable)
        raise TopicHalted(
            topic,
            f"partition {partition}: offsets {reached} to {following - 1} are stable and not archived, but no intake file holds them; "
            "nothing of this topic is archived until they are found (restore the intake log or its files)",
        )


def _groups(needed: Sequence[SegmentRef], start: int, stable: int, max_bytes: int) -> Iterator[tuple[SegmentRef, ...]]:
    """Runs of segments whose bytes come as near to `max_bytes` as segment boundaries allow."""
    group: list[SegmentRef] = []
    group_bytes = 0
    for segment in needed:
        segment_bytes = bytes_within(segment, start, stable)
        overshoot = group_bytes + segment_bytes - max_bytes
        if group and overshoot > max_bytes - group_bytes:
            yield tuple(group)
            group, group_bytes = [], 0
        group.append(segment)
        group_bytes += segment_bytes
        if group_bytes >= max_bytes:
            yield tuple(group)
            group, group_bytes = [], 0
    if group:
        yield tuple(group)
