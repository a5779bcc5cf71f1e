"""Reads the control events of the ledger in sequence, without the rest of the ledger's state.

It returns the events of valid entries in order, with exactly their bytes, and never that of a void entry
(rule L3). A new reader starts at the oldest entry with a known previous state: at 0, or at the oldest
checkpoint from which the log is readable.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from archiver.ledger.bridge import event_bytes
from archiver.ledger.checkpoint import LedgerCheckpoint, LedgerCheckpoints
from archiver.ledger.entries import counts, parse_entry
from archiver.log.store import Log
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt, NotFound

KINDS = {
    "round_started": "START_COMMIT",
    "files_written": "DATA_WRITTEN",
    "round_written": "DATA_COMPLETE",
    "table_committed": "COMMIT_TO_TABLE",
    "round_settled": "COMMIT_COMPLETE",
}
"""Entry bodies that can have an event, and its type."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a reader."""

    next_index: int
    """The next entry to read."""
    last_id: bytes
    """The id of the entry before it; empty before the first."""
    epoch: int
    """The newest epoch before it."""


BEGINNING = Mark(0, b"", 0)


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """The event of one entry."""

    index: int
    """The index of the entry."""
    entry_id: bytes
    """The id of the entry. It is unique, even if a log was restored and an index used again."""
    epoch: int
    """The epoch of the leader that wrote it: the newest at that index."""
    kind: str
    """START_COMMIT and so on."""
    commit_id: bytes
    """The commit id of the round, 16 bytes."""
    topic_id: bytes
    """The topic of the event's table, 16 bytes; empty for events of a whole round."""
    data: bytes
    """The bytes on the wire."""

    @property
    def mark(self) -> Mark:
        """The position of a reader after this event."""
        return Mark(self.index + 1, self.entry_id, self.epoch)


class EventReader:
    """Reads from a mark on, with the schema texts before it. To read again, set `mark` back."""

    def __init__(self, mark: Mark = BEGINNING, texts: Iterable[bytes] = ()) -> None:
        # With the epoch of the mark and the texts, each later entry can be judged. No fold of the whole
        # ledger is needed.
        self.mark = mark
        self.texts = {hashlib.sha256(text).digest(): text for text in texts}
        """Schema texts by their SHA-256. A text never changes, so additional ones do no harm."""

    @classmethod
    def behind(cls, checkpoint: LedgerCheckpoint) -> EventReader:
        """A reader at the position of the checkpoint."""
        fold = checkpoint.fold
        return cls(Mark(fold.next_index, fold.last_id, fold.epoch), fold.texts.values())

    @classmethod
    def first(cls, log: Log, checkpoints: LedgerCheckpoints) -> EventReader:
        """A reader at the first readable entry with a known previous state. Raises like
        `LedgerCheckpoints.start`.
        """
        # Listed before the log's bounds are read, so that no checkpoint is ahead of them.
        indexes = checkpoints.indexes()
        floor, tail = log.floor(), log.tail()
        if floor == 0:
            return cls()
        for index in indexes:
            found = _whole(checkpoints, index) if floor <= index <= tail else None
            # The data folder may hold checkpoints of another log, for example after a restore.
            if found is not None and checkpoints.is_of(found, log):
                return cls.behind(found)
        # No listed checkpoint fits. `newest` finds one that was made since, or raises the reason.
        return cls.newest(log, checkpoints)

    @classmethod
    def newest(cls, log: Log, checkpoints: LedgerCheckpoints) -> EventReader:
        """A reader at the newest entry with a known previous state. Raises like `LedgerCheckpoints.start`."""
        newest = checkpoints.start(log)
        return cls() if newest is None else cls.behind(newest)

    def take(self, index: int, data: bytes) -> LedgerEvent | None:
        """The event of the entry; None if it has none, or is void. Raises `Halt` and `Corrupted` like
        `LedgerFold.apply`.
        """
        if index != self.mark.next_index:
            raise Halt(
                f"control log entry {index} was handed to a reader that needs entry "
                f"{self.mark.next_index} next"
            )
        entry = parse_entry(index, data)
        valid = counts(index, entry, self.mark.epoch)
        found = self._event(index, entry) if valid else None
        # Also after a void entry: its epoch is older, so `max` keeps the newest.
        self.mark = Mark(index + 1, entry.id, max(self.mark.epoch, entry.epoch))
        return found

    def _event(self, index: int, entry: pb.ControlEntry) -> LedgerEvent | None:
        # Before the kind: a text has no event, but later events need it.
        if entry.HasField("schema_text"):
            self.texts[entry.schema_text.sha256] = entry.schema_text.text
        body = entry.WhichOneof("body") or ""
        kind = KINDS.get(body)
        if kind is None:
            return None
        message = getattr(entry, body)
        if not message.HasField("event"):
            return None
        topic_id = message.topic_id if isinstance(message, pb.FilesWritten | pb.TableCommitted) else b""
        return LedgerEvent(
            index,
            entry.id,
            entry.epoch,
            kind,
            message.commit_id,
            topic_id,
            event_bytes(self.texts, message.event),
        )


def needed_for(next_index: int, checkpoints: LedgerCheckpoints) -> int:
    """The lowest entry that the log must keep for a new reader that is to reach `next_index`."""
    for index in reversed(checkpoints.indexes()):
        if index <= next_index and _whole(checkpoints, index) is not None:
            # One entry more: its id proves that the checkpoint is of this log.
            return max(0, index - 1)
    return 0


def _whole(checkpoints: LedgerCheckpoints, index: int) -> LedgerCheckpoint | None:
    try:
        return checkpoints.load(index)
    except (Corrupted, NotFound) as error:
        # A damaged checkpoint costs time only, because another one can take its place.
        _log.warning("%s; another one takes its place", error)
        return None
