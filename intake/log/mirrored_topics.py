"""Mirrored topics in the intake fold: the conditions under which an entry with upstream offsets counts.

Pure. A segment of a mirrored topic states the offset of its first record. It must lie within the position
move of its own partition in the same entry. The records of a segment are consecutive, so offsets without a
record (aborted transactions, transaction markers, compacted records) lie between segments. A partition only
grows: a repeated or late entry changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import PartitionState, TopicState
from intake.segments import LARGEST

_SOURCE_PREFIX = "kafka:"


def mirror_source(topic_id: TopicId) -> str:
    """The log's name for the upstream of a mirrored topic. Its items are the partition numbers."""
    return f"{_SOURCE_PREFIX}{topic_id}"


def contradicts_topics(file: pb.IntakeFile, topics: Mapping[TopicId, TopicState]) -> str | None:
    """Why the offsets that an entry states are impossible in any state; None if they are possible."""
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
    """Whether every stated offset is at or beyond the end of its partition, and inside the range that the
    entry moves that partition over. If two processes mirror into one topic, one of them wins.
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
