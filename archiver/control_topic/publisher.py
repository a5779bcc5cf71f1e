"""Publish the ledger's control events to the control topic, asynchronously to all other work.

The publisher reads the control log from its durable position, sends the events in waves, and moves the
position after the acknowledged ones. The position is the newest entry of a log of its own, `published`. Each
event is published at least once and never skipped. The events of one table first appear in ledger order. Only
valid events are published: an entry is in the log before it is read, and COMMIT_TO_TABLE is appended after
the table's commit.

No leadership is needed. Whether an entry is valid depends only on the entries before it, so a paused process
publishes nothing false. Two concurrent publishers repeat events, which readers detect by their ids, but
cannot reorder them. A sender of an event has sent the events before it, or started at a position that says
they are acknowledged. The lease only avoids the repetition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from archiver.config.events import ControlTopicSettings
from archiver.config.groups import LogSettings
from archiver.control_topic.waves import Destination, record_of, waves
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.entries import parse_entry
from archiver.ledger.event_reader import BEGINNING, EventReader, LedgerEvent, Mark
from archiver.log.append_retry import append_until_known
from archiver.log.lease import Lease
from archiver.log.store import Appended, Entry, Log
from archiver.proto import control_topic_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, OutcomeUnknown, RetryLater, Trimmed
from archiver.runtime.ids import IdSource, new_entry_id

# --- The position
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

    def __init__(self, log: Log, owner: str, settings: LogSettings, clock: Clock, ids: IdSource) -> None:
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
            # The index to append to, if there is no entry.
            self._next = tail
            try:
                entries = self._log.read(max(self._log.floor(), tail - 1))
            # Another process moves the position, and trims.
            except Trimmed:
                continue
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
        # The index is below the floor: another process has moved the position several times.
        except Trimmed:
            outcome = Appended.TAKEN
        if outcome is Appended.TAKEN:
            raise RetryLater("another process has published; continuing from its position")
        self._next += 1
        # Only the newest entry counts; the one before it is kept for a reader that is under way.
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


# --- The publisher
READ_ENTRIES = 100
"""Entries of the control log to hold in memory; the position moves at the latest after so many."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedState:
    """The publisher's state for status and metrics. `lag` and `since_us` are None while unknown."""

    topic: str
    events: int = 0
    """Events acknowledged since the process started, repetitions included."""
    lag: int | None = None
    """Entries of the control log that were not read, or whose events are not acknowledged."""
    since_us: int | None = None
    """Append time of the first of these entries."""
    trouble: str | None = None
    """Reason why nothing is published; None if there is no problem."""
    holder: str | None = None
    """The process that publishes instead."""


class EventPublisher:
    """The publisher of a process. One thread runs it; any thread may read `state`. Must be closed."""

    def __init__(
        self,
        settings: ControlTopicSettings,
        cluster_id: str,
        control_log: Log,
        checkpoints: LedgerCheckpoints,
        positions: Positions,
        lease: Lease,
        connect: Callable[[], Destination],
        stopping: Callable[[], bool],
    ) -> None:
        self.state = PublishedState(settings.topic)
        self._settings = settings
        self._cluster_id = cluster_id
        self._log = control_log
        self._checkpoints = checkpoints
        self._positions = positions
        self._lease = lease
        self._connect = connect
        self._stopping = stopping
        self._reader: EventReader | None = None
        self._mark = BEGINNING
        """The last known position in the control log."""
        self._destination: Destination | None = None
        self._begun = False
        """Whether this connection has sent records, or may send them now."""
        self._topic_id = b""

    def run(self) -> int:
        """Publish the events up to the log's current tail, and return their number.

        Raises `LeaseHeld` if another process publishes. Errors of the log and of `Destination` pass through;
        the next run then starts again at the position.
        """
        self._lease.acquire()
        before = self.state.events
        try:
            destination, reader = self._open()
            tail = self._log.tail()
            # Only if there is something to send, so that an idle publisher sends no request.
            if reader.mark.next_index < tail:
                self._check_topic(destination)
            while reader.mark.next_index < tail and not self._stopping():
                self._publish(destination, reader, self._log.read(reader.mark.next_index, READ_ENTRIES))
        # Also when the process stops: the next holder of the lease must not wait for it.
        except BaseException:
            self._abandon()
            raise
        return self.state.events - before

    def update_state(self, trouble: str | None, holder: str | None = None) -> None:
        """Update `state` after a run with that result. `trouble` is set even if the lag cannot be read."""
        # First, because reading the lag may fail.
        self.state = replace(self.state, trouble=trouble, holder=holder)
        lag: int | None = None
        since_us: int | None = None
        try:
            if holder is None:
                lag, since_us = self._waiting()
        except ArchiverError as error:
            _log.warning("the publishing lag is unknown: %s", error)
        self.state = replace(self.state, lag=lag, since_us=since_us)

    def _waiting(self) -> tuple[int, int | None]:
        """Number of unpublished entries and the time of the first; trimmed entries do not count."""
        reached = max(self._log.floor(), self._mark.next_index)
        lag = max(0, self._log.tail() - reached)
        waiting = self._log.read(reached, 1) if lag else []
        return lag, parse_entry(waiting[0].index, waiting[0].data).time_us if waiting else None

    def close(self) -> None:
        """Close the connection and release the lease."""
        self._abandon()
        self._disconnect()

    def _abandon(self) -> None:
        """Reset to the position and release the lease. The connection is closed if it may still send
        records.
        """
        if self._reader is not None:
            # Entries after the position were read but not acknowledged.
            self._reader.mark = self._mark
        # It may still send records, which could come after those of another publisher.
        if self._begun:
            self._disconnect()
        self._lease.release()

    def _disconnect(self) -> None:
        # Forgotten first: a close that fails must not be repeated.
        destination, self._destination, self._begun = self._destination, None, False
        if destination is not None:
            destination.close()

    def _open(self) -> tuple[Destination, EventReader]:
        # After a run without an error the position is where this process left it.
        if self._destination is not None and self._reader is not None and self._begun:
            return self._destination, self._reader
        found = self._positions.newest() or self._first()
        # Done before any request to the broker, so that the lag is known while the broker is down.
        position, reader = self._stand_at(found)
        if self._destination is None:
            self._destination = self._connect()
        self._topic_id = self._destination.topic_id(self._stopping)
        start = self._start(position)
        if start != position:
            # Stored before anything is sent, because the log may be trimmed up to the old position.
            self._positions.move(start)
            _, reader = self._stand_at(start)
        # From here on any error closes the connection.
        self._begun = True
        return self._destination, reader

    def _first(self) -> Position:
        """Create the first position. It is stored at once, so the log keeps all later entries while the
        broker is down.
        """
        if self._settings.beginning == "earliest":
            reader = EventReader.first(self._log, self._checkpoints)
        else:
            reader = EventReader.newest(self._log, self._checkpoints)
            while self._pass(reader, READ_ENTRIES):
                pass
        first = Position(self._settings.topic, b"", reader.mark)
        self._positions.move(first)
        self._reader, self._mark = reader, reader.mark
        return first

    def _start(self, position: Position) -> Position:
        """The start position for the existing topic; the reader is at `position`."""
        # A cluster without topic ids cannot show that the topic was recreated.
        known = position.topic_id and self._topic_id
        if position.topic == self._settings.topic and (position.topic_id == self._topic_id or not known):
            return position
        mark = position.mark
        if self._settings.beginning == "earliest":
            first = EventReader.first(self._log, self._checkpoints)
            # Otherwise the log was trimmed up to the position and not to a checkpoint.
            if first.mark.next_index < mark.next_index:
                self._reader, self._mark = first, first.mark
                mark = first.mark
        why = "was recreated" if position.topic == self._settings.topic else f"replaces {position.topic}"
        _log.warning(
            "the control topic %s %s; publishing starts at entry %d of the control log",
            self._settings.topic,
            why,
            mark.next_index,
        )
        return Position(self._settings.topic, self._topic_id, mark)

    def _stand_at(self, position: Position) -> tuple[Position, EventReader]:
        """Place the reader at the position. If the position does not fit the log, start at the first event
        and store that position at once.
        """
        mark, reader = position.mark, self._reader
        # Reading up to the mark is costly, so a reader that stands there is kept.
        if reader is None or reader.mark != mark or self._log.floor() > mark.next_index:
            reader = self._reader_at(mark)
        if reader is None:
            reader = EventReader.first(self._log, self._checkpoints)
            _log.error(
                "the control log does not continue at entry %d, up to which events were published: it "
                "is another log, or was trimmed while "
                "nothing was published. All events from entry %d on are published, repeated ones with "
                "their old ids",
                mark.next_index,
                reader.mark.next_index,
            )
            position = replace(position, mark=reader.mark)
            self._positions.move(position)
        self._reader, self._mark = reader, reader.mark
        return position, reader

    def _reader_at(self, mark: Mark) -> EventReader | None:
        """A reader at the mark with all texts before it; None if the mark is of another log."""
        if mark == BEGINNING and self._log.floor() == 0:
            return EventReader()
        reader = EventReader.newest(self._log, self._checkpoints)
        # The newest checkpoint is beyond the mark; its texts include those before the mark.
        if reader.mark.next_index > mark.next_index:
            return EventReader(mark, reader.texts.values()) if self._leads_to(mark, reader) else None
        return reader if self._pass_to(reader, mark.next_index) and reader.mark == mark else None

    def _leads_to(self, mark: Mark, later: EventReader) -> bool:
        """Whether the log continues from the mark to the later reader.

        Checked by the id of the entry before the mark. If exactly that entry was trimmed, checked by all
        entries after it.
        """
        floor = self._log.floor()
        if floor < mark.next_index:
            before = self._log.read(mark.next_index - 1, 1)
            return bool(before) and parse_entry(before[0].index, before[0].data).id == mark.last_id
        if floor > mark.next_index:
            return False
        trial = EventReader(mark, later.texts.values())
        try:
            return self._pass_to(trial, later.mark.next_index) and trial.mark == later.mark
        except Corrupted:
            # An entry of an epoch that did not start after the mark.
            return False

    def _pass_to(self, reader: EventReader, index: int) -> bool:
        """Advance the reader to `index`. False if the log ends before."""
        while left := max(0, index - reader.mark.next_index):
            if not self._pass(reader, min(READ_ENTRIES, left)):
                return False
        return True

    def _pass(self, reader: EventReader, entries_max: int) -> int:
        """Advance the reader over entries without publishing them; returns their number."""
        # A restored log may end before the mark.
        if self._log.tail() < reader.mark.next_index:
            return 0
        entries = self._log.read(reader.mark.next_index, entries_max)
        for entry in entries:
            reader.take(entry.index, entry.data)
        return len(entries)

    def _publish(self, destination: Destination, reader: EventReader, entries: list[Entry]) -> None:
        """Publish entries, and move the position after the acknowledged ones, also after an error.

        Acknowledged events after the stored position are published again, for example when the process stops.
        """
        acknowledged = self._mark
        try:
            for wave in waves(_events(reader, entries)):
                if self._stopping():
                    break
                destination.send([record_of(self._cluster_id, event) for event in wave], self._stopping)
                # Counted as acknowledged only here: `send` returns after all replicas confirmed the wave.
                acknowledged = wave[-1].mark
                self.state = replace(self.state, events=self.state.events + len(wave))
            else:
                # Entries without an event after the last wave are passed as well.
                acknowledged = reader.mark
        except ArchiverError:
            # Otherwise each retry would repeat the acknowledged events, and a flaky broker would allow no
            # progress.
            self._keep(destination, acknowledged)
            raise
        self._move(destination, acknowledged)
        reader.mark = acknowledged

    def _keep(self, destination: Destination, mark: Mark) -> None:
        """Move the position after an error, and only log a failure: the first error is the one to raise."""
        try:
            self._move(destination, mark)
        except ArchiverError as error:
            _log.warning(
                "events that the control topic acknowledged are published again, because the position was "
                "not stored: %s",
                error,
            )

    def _move(self, destination: Destination, mark: Mark) -> None:
        """Move the position to `mark`."""
        if mark == self._mark:
            return
        # Checked after the acknowledgements: they could be those of a topic that was deleted since.
        self._check_topic(destination)
        self._positions.move(Position(self._settings.topic, self._topic_id, mark))
        self._mark = mark

    def _check_topic(self, destination: Destination) -> None:
        """Raise `OutcomeUnknown` unless the topic is still the one of the position."""
        if destination.topic_id(self._stopping) != self._topic_id:
            raise OutcomeUnknown(
                f"the control topic {self._settings.topic} was recreated since the last check; "
                "it is checked again"
            )


def _events(reader: EventReader, entries: Iterable[Entry]) -> Iterator[LedgerEvent]:
    for entry in entries:
        event = reader.take(entry.index, entry.data)
        if event is not None:
            yield event
