"""Entries of the intake log, as they are made from what a writer has stored. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from archiver.proto import intake_log_pb2 as pb
from intake.format import PlacedSegment
from intake.log.source_positions import Move
from intake.producers import Stamp

_FRAME_BYTES = 8
"""More than the tag of a message inside another one, and its length."""


def file_entry(
    key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment], moves: Sequence[Move] = ()
) -> pb.IntakeFile:
    """The body of the entry that names an intake file; segments of one topic stand together. `moves` go on
    with it.
    """
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
                    offset=segment.offset,
                )
                for segment in group
            ],
        )
        for topic_id, group in groupby(segments, key=lambda segment: segment.topic_id)
    ]
    return pb.IntakeFile(
        key=key,
        size=size,
        footer_sha256=footer_sha256,
        topics=topics,
        positions=[position_entry(move) for move in moves],
    )


def position_entry(move: Move) -> pb.SourcePosition:
    """How far an item of a source is taken in, as the entry says it."""
    return pb.SourcePosition(
        source=move.source,
        item=move.item,
        base=move.base,
        end=move.end,
        done=move.done,
        identity=move.identity,
        seen=move.seen,
        count=move.count,
    )


def positions_bytes(moves: Sequence[Move]) -> int:
    """More than the positions add to an entry."""
    return sum(position_entry(move).ByteSize() + _FRAME_BYTES for move in moves)


def batch_entry(stamp: Stamp | None) -> pb.ProducerBatch | None:
    """Whose batch a segment is, as the entry says it."""
    if stamp is None:
        return None
    return pb.ProducerBatch(
        producer_id=stamp.producer_id,
        epoch=stamp.epoch,
        sequence=stamp.sequence,
        transactional=stamp.transactional,
    )
