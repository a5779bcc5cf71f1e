"""How far events are published: the newest entry of the log `published`, which stands in the metadata store
beside the other two.

Owns that log: its form, and that it stays short. Promises that a position never goes back behind one that
somebody else wrote meanwhile: an entry is appended right behind the newest one that was read, or not at all.
It is read by whoever publishes, and decides nothing else.
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
"""Entries that stay when an older one is trimmed."""


@dataclass(frozen=True, slots=True)
class Position:
    """Every event before `mark` is in the topic."""

    topic: str
    topic_id: bytes
    """In the Kafka cluster; empty: it has none."""
    mark: Mark
    """In the control log."""


class Positions:
    """Reads and moves the position. One thread at a time; other processes may do the same."""

    def __init__(self, log: Log, owner: str, settings: AppendSettings, clock: Clock, ids: IdSource) -> None:
        self._log = log
        self._owner = owner
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._next = 0
        """Behind the newest entry that was read."""

    def newest(self) -> Position | None:
        """The position, None if nothing was published yet. Raises what the log raises."""
        for _ in range(self._settings.append_attempts_max):
            tail = self._log.tail()
            self._next = tail
            try:
                entries = self._log.read(max(self._log.floor(), tail - 1))
            except Trimmed:
                continue  # somebody moves it at this moment
            if not entries:
                return None
            self._next = entries[-1].index + 1
            return _parse(entries[-1].index, entries[-1].data)
        raise RetryLater(
            "the position of the control topic moves on too quickly to be read; somebody else publishes"
        )

    def move(self, position: Position) -> None:
        """Write it down, durably. `RetryLater` if somebody else moved it since it was read; `OutcomeUnknown`
        if it may have been moved: in both cases it must be read again.
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
            raise RetryLater("somebody else has published meanwhile; goes on from where that is")
        self._next += 1
        self._log.trim(max(0, self._next - KEPT))


def _parse(index: int, data: bytes) -> Position:
    try:
        entry = pb.Published.FromString(data)
    except DecodeError as error:
        raise Corrupted(
            f"entry {index} of the log {LOG} ({len(data)} bytes) is no position: {error}"
        ) from error
    if entry.format != FORMAT:
        raise Halt(
            f"entry {index} of the log {LOG} has format {entry.format}; this version knows {FORMAT}: "
            "use the version that wrote it"
        )
    return Position(entry.topic, entry.topic_id, Mark(entry.next_index, entry.last_id, entry.epoch))
