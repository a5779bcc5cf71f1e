"""Mirrored topics in the intake fold: what an entry with an upstream's offsets must hold to count.

Pure. A segment of a mirrored topic states the offset of its first record, and lies within the move of its own
partition in the same entry. The records of a segment follow each other without a gap, so what the upstream
has no record for (aborted transactions, transaction markers, what compaction took) lies between segments.
Promises that a partition only ever goes on: whoever repeats an entry, or slept before it, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import PartitionState, TopicState
from intake.segments import LARGEST

_SOURCE_PREFIX = "kafka:"


def mirror_source(topic_id: TopicId) -> str:
    """What the log calls the upstream of a mirrored topic: its items are partitions, by their numbers."""
    return f"{_SOURCE_PREFIX}{topic_id}"


def contradicts_topics(file: pb.IntakeFile, topics: Mapping[TopicId, TopicState]) -> str | None:
    """What makes the offsets that an entry states impossible, whatever was taken in before; None if nothing
    does.
    """
    for group in file.topics:
        stated = [segment for segment in group.segments if segment.HasField("offset")]
        topic = topics.get(TopicId(group.topic_id.hex()))
        if not stated or topic is None:  # None: it was deleted
            continue
        if not topic.mirrored:
            return f"states offsets for topic {topic.name}, which is not mirrored"
        if not file.positions:
            return f"states offsets for topic {topic.name} without the positions they belong to"
        reached: dict[int, int] = {}
        for segment in stated:
            if segment.partition >= topic.partitions:
                return (
                    f"has records of partition {segment.partition} of topic {topic.name}, which has "
                    f"{topic.partitions}"
                )
            if segment.offset < reached.get(segment.partition, 0):
                return (
                    f"states offset {segment.offset} of topic {topic.name} partition {segment.partition} "
                    "behind a later one"
                )
            reached[segment.partition] = segment.offset + segment.rows
            if reached[segment.partition] > LARGEST:
                return (
                    f"states offset {segment.offset} of topic {topic.name}, which is larger than there can "
                    "be one"
                )
    return None


def follow_offsets(file: pb.IntakeFile, partitions: Mapping[TopicPartition, PartitionState]) -> bool:
    """Whether every stated offset lies at or beyond the end of its partition, and within what the entry says
    was read of just that one. Where two would mirror into one topic, one of them wins.
    """
    spans = {(move.source, move.item): (move.base, move.end) for move in file.positions}
    for group in file.topics:
        topic_id = TopicId(group.topic_id.hex())
        for segment in group.segments:
            if not segment.HasField("offset"):
                continue
            base, end = spans.get((mirror_source(topic_id), str(segment.partition)), (0, 0))
            if (
                not max(base, partitions[topic_id, segment.partition].next_offset)
                <= segment.offset
                <= end - segment.rows
            ):
                return False
    return True
