"""Entries of the intake log: their formats, and how to build them from stored files.

Pure. An entry is written in the oldest format that can express it, and an entry of an unknown format stops
the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from google.protobuf.message import DecodeError

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from intake.format import PlacedSegment
from intake.log.source_positions import Move
from intake.log.state import CONFIG_CHARS_MAX, CONFIGS_MAX, Configs
from intake.producers import UNOPENED_IDS, Stamp

_FRAME_BYTES = 8
"""Upper bound of the tag and length of a nested message."""

# Format 5 also added configs of topics, committed offsets of consumer groups, and deletions of records.
ENTRY_FORMATS = (1, 2, 3, 4, 5, 6, 7)
"""Format 2 added producers, transactions and barriers, format 3 deleted topics and positions of sources,
format 4 mirrored topics, format 5 growth of topics that are not mirrored, epochs that a producer without a
transactional id raised itself, producers without an entry of their own, and batches with more sequence
numbers than records, format 6 segments with append times, format 7 offsets of transactions, ends of them that
stay known, and producers that go on in the next epoch."""

_BODIES_OF_5 = ("configured", "records_deleted", "slots_claimed", "offsets_committed", "offsets_removed")


def parse_entry(index: int, data: bytes) -> pb.IntakeEntry:
    """Parse one entry of the intake log. Raises `Corrupted` if it is not one, `Halt` if a newer version wrote
    it.
    """
    try:
        # Protobuf also accepts entries with unknown fields; the format number says whether they matter.
        entry = pb.IntakeEntry.FromString(data)
    except DecodeError as error:
        raise Corrupted(
            f"intake log: entry {index} is not an intake entry ({len(data)} bytes); restore the log"
        ) from error
    # An entry without a known body is of a newer version: skipping it could change later offsets.
    if entry.format not in ENTRY_FORMATS or entry.WhichOneof("body") is None:
        raise Halt(
            f"intake log: entry {index} has the format {entry.format}, this version knows "
            f"{ENTRY_FORMATS[-1]}; "
            "upgrade before reading this log"
        )
    return entry


def format_of(entry: pb.IntakeEntry) -> int:
    """The format of a new entry: the oldest that can express it, so that older readers can read on."""
    # An older version would forget these offsets at the end of the transaction.
    if entry.WhichOneof("body") == "offsets_pending":
        return 7
    segments = [segment for group in entry.file.topics for segment in group.segments]
    # In descending order: the newest content of an entry decides.
    if entry.producer.resumed or entry.transaction.by_client:
        # An older version would forget it, and write other checkpoints than newer ones.
        return 7
    if any(segment.log_append_time for segment in segments):
        # An older version would show these times to consumers as those of the producers.
        return 6
    newest = any(
        segment.producer.covered
        or (segment.producer.epoch and not segment.producer.transactional)
        or segment.producer.producer_id >= UNOPENED_IDS
        for segment in segments
    )
    configured = entry.WhichOneof("body") in _BODIES_OF_5 or bool(entry.topic.configs)
    if entry.grown.own_offsets or configured or newest:
        # An older version takes this growth for damage. It refuses batches of raised epochs, and batches
        # after covered numbers, which would move the offsets of later records. With this format it says that
        # it must be upgraded, also where it would archive and delete by other settings, or give records that
        # are deleted.
        return 5
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


def config_entries(configs: Configs) -> list[pb.TopicConfig]:
    """The configs of a topic, as an entry states them."""
    return [pb.TopicConfig(name=name, value=value) for name, value in configs]


def stated_configs(index: int, stated: Sequence[pb.TopicConfig]) -> Configs:
    """The configs that an entry states. Raises `Corrupted` if no writer of this format would state them."""
    configs = tuple((one.name, one.value) for one in stated)
    names = [name for name, _ in configs]
    if (
        len(names) > CONFIGS_MAX
        or names != sorted(set(names))
        or any(len(text) > CONFIG_CHARS_MAX for one in configs for text in one)
    ):
        raise Corrupted(f"intake log: entry {index} states impossible configs of a topic; restore the log")
    return configs


def file_entry(
    key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment], moves: Sequence[Move] = ()
) -> pb.IntakeFile:
    """The body of the entry that names an intake file. Segments of one topic are adjacent. `moves` are its
    source positions.
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
                    log_append_time=segment.log_append_time,
                )
                for segment in group
            ],
        )
        # `groupby` joins only adjacent segments; the writer sorts them by topic.
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
    """The position of an item of a source, as an entry states it."""
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
    """Upper bound of the bytes that the positions add to an entry."""
    # Each position is a nested message with a tag and a length.
    return sum(position_entry(move).ByteSize() + _FRAME_BYTES for move in moves)


def batch_entry(stamp: Stamp | None) -> pb.ProducerBatch | None:
    """The producer batch of a segment, as an entry states it."""
    if stamp is None:
        return None
    return pb.ProducerBatch(
        producer_id=stamp.producer_id,
        epoch=stamp.epoch,
        sequence=stamp.sequence,
        transactional=stamp.transactional,
        covered=stamp.covered,
    )
