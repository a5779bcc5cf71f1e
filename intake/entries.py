"""Entries of the intake log, as they are made from what a writer has stored. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from archiver.proto import intake_log_pb2 as pb
from intake.format import PlacedSegment
from intake.producers import Stamp


def file_entry(key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment]) -> pb.IntakeFile:
    """The body of the entry that names an intake file; segments of one topic stand together."""
    topics = [
        pb.TopicSegments(
            topic_id=bytes.fromhex(topic_id),
            segments=[
                pb.Segment(
                    partition=segment.partition,
                    row_group=segment.row_group,
                    first_row=segment.first_row,
                    rows=segment.rows,
                    raw_bytes=segment.raw_bytes,
                    accept_max_us=segment.accept_max_us,
                    producer=batch_entry(segment.stamp),
                )
                for segment in group
            ],
        )
        for topic_id, group in groupby(segments, key=lambda segment: segment.topic_id)
    ]
    return pb.IntakeFile(key=key, size=size, footer_sha256=footer_sha256, topics=topics)


def batch_entry(stamp: Stamp | None) -> pb.ProducerBatch | None:
    """Whose batch a segment is, as the entry says it."""
    if stamp is None:
        return None
    return pb.ProducerBatch(producer_id=stamp.producer_id, epoch=stamp.epoch, sequence=stamp.sequence, transactional=stamp.transactional)
