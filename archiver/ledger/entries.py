"""An entry of the control log, from its bytes: what form it has, and whether it counts.

Pure. Whoever folds the log, for whatever purpose, asks here, so that all agree about which entries are void
(rule L3).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from archiver.ledger.formats import FORMATS
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt


def parse_entry(index: int, data: bytes) -> pb.ControlEntry:
    """The entry; raises `Halt` for a format or kind that this version does not know, `Corrupted` for bytes
    that are no entry.
    """
    try:
        entry = pb.ControlEntry.FromString(data)
    except DecodeError as error:
        raise Corrupted(f"control log entry {index} ({len(data)} bytes) is no entry: {error}") from error
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
    """Whether an entry counts, where `epoch` is the newest before it; else it is void. `Corrupted` if nobody
    started its epoch.
    """
    if entry.HasField("epoch_started"):
        return entry.epoch > epoch
    if entry.epoch > epoch:
        raise Corrupted(
            f"control log entry {index} is of epoch {entry.epoch}, which nobody started; the newest is "
            f"{epoch}"
        )
    return entry.epoch == epoch
