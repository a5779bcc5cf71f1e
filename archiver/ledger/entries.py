"""Parses an entry of the control log, and decides whether it is valid.

Pure. Every fold of the log uses these functions, so all agree on which entries are void (rule L3).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt

FORMATS = (1, 2, 3, 4, 5, 6)
"""Entry formats that this version reads."""

_SINCE_2 = (pb.FilesRewritten, pb.RewriteSettled)
"""Bodies that format 1 does not have."""


def format_of(body: Message) -> int:
    """The format of an entry with `body`: the lowest whose readers understand it."""
    if isinstance(body, pb.SchemaChanged):
        # A reader of an older format would find a Protobuf message without a descriptor.
        if has_json(body):
            return 6
        if has_avro(body):
            return 5
        # The lowest format that suffices, so that an older version can still read the log after an upgrade.
        return 2 if _says_more_than_1(body) else 1
    if isinstance(body, pb.StartMoved):
        return 3
    if isinstance(body, pb.FilesRewritten) and any(file.more for file in body.files):
        return 4
    return 2 if isinstance(body, _SINCE_2) else 1


def has_avro(body: pb.SchemaChanged) -> bool:
    """Whether the key or the value of a topic is Avro."""
    return bool(body.key.avro or body.value.avro)


def has_json(body: pb.SchemaChanged) -> bool:
    """Whether the key or the value of a topic is JSON."""
    return bool(body.key.json or body.value.json)


def _says_more_than_1(body: pb.SchemaChanged) -> bool:
    """Whether a reader that knows only format 1 would write other columns than the entry means."""
    # Format 1 has only version 1 and none of these fields. Its readers treat every column as in use.
    sources = (body.key, body.value)
    return body.version > 1 or any(
        one.HasField("recursion_depth") or one.columns or one.ids or one.enveloped for one in sources
    )


def parse_entry(index: int, data: bytes) -> pb.ControlEntry:
    """The entry; raises `Halt` for a format or kind that this version does not know, `Corrupted` for bytes
    that are not an entry.
    """
    try:
        entry = pb.ControlEntry.FromString(data)
    except DecodeError as error:
        raise Corrupted(f"control log entry {index} ({len(data)} bytes) is not an entry: {error}") from error
    if entry.format not in FORMATS:
        raise Halt(
            f"control log entry {index} has format {entry.format}; this version knows up to "
            f"{FORMATS[-1]}: use the version that wrote it"
        )
    if len(entry.id) != 16:
        raise Corrupted(f"control log entry {index} has an id of {len(entry.id)} bytes; it must have 16")
    # Protobuf drops unknown fields, so a body of a newer version leaves the entry empty. To skip it would let
    # this fold differ from others.
    if entry.WhichOneof("body") is None:
        raise Halt(
            f"control log entry {index} is of a kind that this version does not know: use the version "
            "that wrote it"
        )
    return entry


def counts(index: int, entry: pb.ControlEntry, epoch: int) -> bool:
    """Whether an entry is valid after the newest epoch `epoch`; otherwise it is void. Raises `Corrupted` if
    no leader started the entry's epoch.
    """
    # Two candidates may propose one number. The first in the log wins, and the second is void.
    if entry.HasField("epoch_started"):
        return entry.epoch > epoch
    # A leader appends its EPOCH before anything else, so this is no entry that a leader wrote.
    if entry.epoch > epoch:
        raise Corrupted(
            f"control log entry {index} is of epoch {entry.epoch}, which no leader started; the newest is "
            f"{epoch}"
        )
    # Rule L3: an entry of a deposed leader is void.
    return entry.epoch == epoch
