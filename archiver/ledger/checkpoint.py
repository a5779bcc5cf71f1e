"""A checkpoint of the ledger: the state of its fold before one entry of the control log, as bytes, and where
those are kept.

Frozen format 1: the magic, the SHA-256 of all that follows it, a `LedgerState` message. Its size follows the
number of partitions and what is in work (pending, killed, condemned), not how many archives there ever were.
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
"""Of the object; part of its key as well."""
MAGIC = b"archiver.ledger1"


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """The state before the entry at `index`. Whoever goes on from it takes its fold, and it is a checkpoint
    no more.
    """

    fold: LedgerFold

    @property
    def index(self) -> int:
        """The first entry that is not in it."""
        return self.fold.next_index

    @property
    def last_id(self) -> bytes | None:
        """The id of the entry that it took in last."""
        return self.fold.last_id or None


def encode(fold: LedgerFold) -> bytes:
    """The object of a checkpoint: the state of the fold as it is now."""
    return seal(MAGIC, state_of(fold).SerializeToString(deterministic=True))


def decode(data: bytes, where: str) -> LedgerCheckpoint:
    """The inverse of `encode`. Raises `Corrupted` if a bit is wrong or the state contradicts itself, `Halt`
    if a newer version wrote it.
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
    """The checkpoints of the control log in an object store. Holds no state; safe to use from several
    threads.
    """

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(
            objects,
            "control",
            OBJECT_FORMAT,
            decode,
            lambda _, data: control_log_pb2.ControlEntry.FromString(data).id,
        )

    def superseded(self, log: Log) -> list[str]:
        """Keys of the checkpoints that are older than the last two that are whole, and from which the log
        cannot be read on any more: while its trim is held up, who begins anew finds all that it has. Nothing
        if there are not two.
        """
        floor = log.floor()  # never moves back, so what is named is never needed again
        kept = self.last()
        return self.older_than(min(kept[-1].index, floor)) if len(kept) == KEPT else []
