"""Entries of the intake log, as they are made from what a writer has stored. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from google.protobuf.message import DecodeError

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from intake.format import PlacedSegment
from intake.log.source_positions import Move
from intake.producers import Stamp

_FRAME_BYTES = 8
"""More than the tag of a message inside another one, and its length."""


ENTRY_FORMATS = (1, 2, 3, 4)
"""Format 2 has producers, transactions and barriers, format 3 deleted topics and positions of sources, format
4 mirrored topics."""


def parse_entry(index: int, data: bytes) -> pb.IntakeEntry:
    """One entry of the intake log; `Corrupted` if it is none, `Halt` if a newer version wrote it."""
    try:
        entry = pb.IntakeEntry.FromString(data)
    except DecodeError as error:
        raise Corrupted(
            f"intake log: entry {index} is not an intake entry ({len(data)} bytes); restore the log"
        ) from error
    if entry.format not in ENTRY_FORMATS or entry.WhichOneof("body") is None:
        raise Halt(
            f"intake log: entry {index} has the format {entry.format}, this version knows "
            f"{ENTRY_FORMATS[-1]}; "
            "upgrade before reading this log"
        )
    return entry


def format_of(entry: pb.IntakeEntry) -> int:
    """The format of an entry that is about to be written: a later one only if it needs what came with it, so
    that older readers go on as long as nothing is there that they would misread.
    """
    segments = [segment for group in entry.file.topics for segment in group.segments]
    if (
        entry.WhichOneof("body") == "grown"
        or entry.topic.mirrored
        or any(segment.HasField("offset") for segment in segments)
    ):
        return 4
    if entry.WhichOneof("body") in ("deleted", "source_forgotten") or entry.file.positions:
        return 3
    if entry.WhichOneof("body") not in ("topic", "file", "tick", "cluster"):
        return 2
    return 2 if any(segment.HasField("producer") for segment in segments) else 1


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
