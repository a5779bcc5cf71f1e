"""Finds the transaction that an aborted offset belonged to, as far as the log still holds it.

A fold keeps gaps without their transactions. So the entries since the older of the last two checkpoints are
folded again; the entry after which the offset is a gap is the one that aborted it. Read-only.
"""

from __future__ import annotations

from dataclasses import dataclass

from archiver.log.store import Log, entries_from
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicPartition
from intake.log.checkpoint import CheckpointStore
from intake.log.entries import parse_entry
from intake.log.fold import IntakeFold

_ENDING = ("transaction", "producer", "deleted")


@dataclass(frozen=True, slots=True)
class Aborted:
    """Why an offset is a gap."""

    transactional_id: str
    producer_id: int
    epoch: int
    started_us: int
    log_index: int
    """Of the entry that ended the transaction."""
    ended_us: int
    how: str
    """A sentence for people."""


def aborted_by(log: Log, store: CheckpointStore, tp: TopicPartition, offset: int) -> Aborted | None:
    """The transaction of `offset`, which is a gap; None if the entry that aborted it was trimmed.

    Raises `Trimmed` if the log is trimmed during the call, and what log and store raise.
    """
    fold = _oldest(log, store)
    # A gap in the oldest state was made by an entry that is trimmed.
    if fold is None or _is_gap(fold, tp, offset):
        return None
    for entry in entries_from(log, fold.next_index):
        parsed = parse_entry(entry.index, entry.data)
        # Only these entries end transactions, so the open ones are copied for them alone.
        ending = parsed.WhichOneof("body") in _ENDING
        open_before = list(fold.transactions) if ending else []
        fold.apply(entry.index, entry.data)
        if ending and _is_gap(fold, tp, offset):
            for one in open_before:
                # The entry may have ended several; the ranges show which one wrote the offset.
                if any(low <= offset < high for low, high in one.ranges.get(tp, ())):
                    how, ended_us = _how(parsed)
                    return Aborted(
                        one.transactional_id,
                        one.producer_id,
                        one.epoch,
                        one.started_us,
                        entry.index,
                        ended_us,
                        how,
                    )
    return None


def _oldest(log: Log, store: CheckpointStore) -> IntakeFold | None:
    """The oldest state from which the log can be read; None if there is none."""
    floor = log.floor()
    if floor == 0:
        return IntakeFold()
    # A checkpoint below the floor has lost the entries that follow it.
    usable = [checkpoint for checkpoint in store.last() if checkpoint.index >= floor]
    return usable[-1].fold() if usable else None


def _is_gap(fold: IntakeFold, tp: TopicPartition, offset: int) -> bool:
    if tp[0] not in fold.topics_by_id:
        return False
    # Gaps below `history_end` are in history files and not in memory.
    return bool(fold.gaps(tp, offset, offset + 1)) or offset < fold.partition(tp).history_end


def _how(entry: pb.IntakeEntry) -> tuple[str, int]:
    body = entry.WhichOneof("body")
    if body == "producer":
        return "its transactional id was opened again", entry.producer.time_us
    if body == "deleted":
        return "another topic that it had written to was deleted", entry.deleted.time_us
    # Only an overdue transaction is ended with a fence.
    if entry.transaction.fence:
        return "it was open for too long", entry.transaction.time_us
    return "its producer aborted it", entry.transaction.time_us
