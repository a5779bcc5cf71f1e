"""The publishing position: the newest entry of the log `published`, the third log of the metadata store.

The log is kept short. A position never overwrites a newer one of another publisher: an entry is appended
directly after the newest entry that was read, or not at all. Only publishers read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from archiver.ledger.event_reader import Mark
from archiver.log.append_retry import AppendSettings, append_until_known
from archiver.log.store import Appended, Log
from archiver.proto import control_topic_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Corrupted, Halt, RetryLater, Trimmed
from archiver.runtime.ids import IdSource, new_entry_id

LOG = "published"
FORMAT = 1
KEPT = 2
"""Entries that a trim keeps."""


@dataclass(frozen=True, slots=True)
class Position:
    """All events before `mark` are in the topic."""

    topic: str
    topic_id: bytes
    """The topic's id in the Kafka cluster; empty if the cluster has no topic ids."""
    mark: Mark
    """Position in the control log."""


class Positions:
    """Reads and moves the position. One thread at a time; other processes may do so concurrently."""

    def __init__(self, log: Log, owner: str, settings: AppendSettings, clock: Clock, ids: IdSource) -> None:
        self._log = log
        self._owner = owner
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._next = 0
        """Index after the newest entry that was read."""

    def newest(self) -> Position | None:
        """The position; None if nothing was published yet. Errors of the log pass through."""
        for _ in range(self._settings.append_attempts_max):
            tail = self._log.tail()
            self._next = tail
            try:
                entries = self._log.read(max(self._log.floor(), tail - 1))
            except Trimmed:
                continue  # another process is moving it
            if not entries:
                return None
            self._next = entries[-1].index + 1
            return _parse(entries[-1].index, entries[-1].data)
        raise RetryLater(
            "the position of the control topic moves too quickly to be read; another process publishes"
        )

    def move(self, position: Position) -> None:
        """Store the position durably.

        Raises `RetryLater` if another process moved it since it was read, `OutcomeUnknown` if it may have
        been stored. In both cases read it again.
        """
        entry = pb.Published(
            format=FORMAT,
            id=new_entry_id(self._ids),
            owner=self._owner,
            time_us=self._clock.now_us(),
            topic=position.topic,
            topic_id=position.topic_id,
            next_index=position.mark.next_index,
            last_id=position.mark.last_id,
            epoch=position.mark.epoch,
        )
        attempts, backoff_s = self._settings.append_attempts_max, self._settings.append_backoff
        try:
            outcome = append_until_known(
                self._log, self._next, entry.SerializeToString(), attempts, backoff_s, self._clock
            )
        except Trimmed:
            outcome = Appended.TAKEN
        if outcome is Appended.TAKEN:
            raise RetryLater("another process has published; continuing from its position")
        self._next += 1
        self._log.trim(max(0, self._next - KEPT))


def _parse(index: int, data: bytes) -> Position:
    try:
        entry = pb.Published.FromString(data)
    except DecodeError as error:
        raise Corrupted(
            f"entry {index} of the log {LOG} ({len(data)} bytes) is not a position: {error}"
        ) from error
    if entry.format != FORMAT:
        raise Halt(
            f"entry {index} of the log {LOG} has format {entry.format}; this version knows {FORMAT}: "
            "use the version that wrote it"
        )
    return Position(entry.topic, entry.topic_id, Mark(entry.next_index, entry.last_id, entry.epoch))
