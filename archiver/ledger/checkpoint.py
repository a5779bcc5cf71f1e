"""A checkpoint of the ledger: the state of its fold before one log entry, as bytes, and its storage.

Frozen format 1: the magic, the SHA-256 of all following bytes, a `LedgerState` message. Its size depends on
the number of partitions and the work in progress (pending, killed, marked for deletion), not on the number of
archives.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from archiver.ledger.fold import LedgerFold
from archiver.ledger.state import FORMATS, restored, state_of
from archiver.log.checkpoints import KEPT, Checkpoints, seal, unseal
from archiver.log.store import Log
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2
from archiver.proto import ledger_state_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt

OBJECT_FORMAT = 1
"""The format of the object; part of its key as well."""
MAGIC = b"archiver.ledger1"


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """The state before the entry at `index`. A user may continue with its fold; the object is then no longer
    a checkpoint.
    """

    fold: LedgerFold

    @property
    def index(self) -> int:
        """The first entry that it does not contain."""
        return self.fold.next_index

    @property
    def last_id(self) -> bytes | None:
        """The id of the last entry that it contains."""
        return self.fold.last_id or None


def encode(fold: LedgerFold) -> bytes:
    """The object of a checkpoint: the current state of the fold."""
    return seal(MAGIC, state_of(fold).SerializeToString(deterministic=True))


def decode(data: bytes, where: str) -> LedgerCheckpoint:
    """The inverse of `encode`. Raises `Corrupted` if a bit is wrong or the state is inconsistent, `Halt` if a
    newer version wrote it.
    """
    try:
        message = pb.LedgerState.FromString(unseal(MAGIC, data, where))
    except DecodeError as error:
        raise Corrupted(f"checkpoint {where} is not the state of the ledger") from error
    if message.format not in FORMATS:
        raise Halt(
            f"checkpoint {where} has the format {message.format}, this version knows up to "
            f"{FORMATS[-1]}; upgrade before reading this log"
        )
    return LedgerCheckpoint(restored(message))


class LedgerCheckpoints(Checkpoints[LedgerCheckpoint]):
    """The checkpoints of the control log in an object store. Stateless; safe for several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(
            objects,
            "control",
            OBJECT_FORMAT,
            decode,
            lambda _, data: control_log_pb2.ControlEntry.FromString(data).id,
        )

    def superseded(self, log: Log) -> list[str]:
        """Keys of checkpoints that are older than the last two intact ones, and from which the log is no
        longer readable. While a trim is delayed, a new reader still finds all checkpoints that match the log.
        Empty if there are not two.
        """
        floor = log.floor()  # the floor never decreases, so a returned key is never needed again
        kept = self.last()
        return self.older_than(min(kept[-1].index, floor)) if len(kept) == KEPT else []
