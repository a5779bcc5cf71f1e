"""Parses an entry of the control log, and decides whether it is valid.

Pure. Every fold of the log uses these functions, so all agree on which entries are void (rule L3).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from archiver.ledger.formats import FORMATS
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt


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
    if entry.HasField("epoch_started"):
        return entry.epoch > epoch
    if entry.epoch > epoch:
        raise Corrupted(
            f"control log entry {index} is of epoch {entry.epoch}, which no leader started; the newest is "
            f"{epoch}"
        )
    return entry.epoch == epoch
