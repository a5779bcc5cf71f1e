"""The frame of an intake-log entry: which formats there are, and which one an entry needs.

Pure. Promises that an entry is written in the oldest format that can say it, and that an entry of an unknown
format stops the reader.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt

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
