"""Publishes the ledger's control events to the control topic, behind everything else and holding up nothing.

Reads the control log from the position on, which is durable, sends what it says in waves, and moves the
position behind what was acknowledged. Promises each event at least once, those of one table first seen in the
order of the ledger, and only what counts there: an entry is in the log before it is read, and COMMIT_TO_TABLE
is appended after the table's commit.

Nothing of this needs a leader. Whether an entry counts is decided by the entries before it, so a process that
slept publishes nothing false; two that publish at a time repeat events, which readers tell by their ids, and
cannot disorder them: who sends an event has sent the ones before it, or started at a position that says they
are acknowledged. The lease saves the repetition. Must never skip an event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from archiver.control_topic.destination import Destination
from archiver.control_topic.position import Position, Positions
from archiver.control_topic.waves import record_of, waves
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.entries import parse_entry
from archiver.ledger.event_reader import BEGINNING, EventReader, LedgerEvent, Mark
from archiver.log.lease import Lease
from archiver.log.store import Entry, Log
from archiver.runtime.errors import ArchiverError, Corrupted, OutcomeUnknown

READ_ENTRIES = 100
"""Entries of the control log that are in memory at a time, and after which the position is moved at the
latest."""
_log = logging.getLogger(__name__)


class PublisherSettings(Protocol):
    """What the publisher needs of `events.kafka`."""

    @property
    def topic(self) -> str:
        """Its name."""

    @property
    def beginning(self) -> str:
        """`earliest` or `latest`."""


@dataclass(frozen=True, slots=True)
class PublishedState:
    """What can be seen of it. `lag` and `since_us` are None while nothing is known."""

    topic: str
    events: int = 0
    """Acknowledged since the process began, repetitions too."""
    lag: int | None = None
    """Entries of the control log that were not looked at, or whose events are not acknowledged."""
    since_us: int | None = None
    """When the first of them was appended."""
    trouble: str | None = None
    """Why nothing is published; None if nothing is wrong."""
    holder: str | None = None
    """Who publishes instead."""


class EventPublisher:
    """One publisher of a process. One thread runs it; any may look at `state`. Close it."""

    def __init__(
        self,
        settings: PublisherSettings,
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
        """Of the position, as far as it is known."""
        self._destination: Destination | None = None
        self._begun = False
        """Whether it was sent to since it was connected, or may be now."""
        self._topic_id = b""

    def run(self) -> int:
        """Publish what is there now; how many events that were. Raises `LeaseHeld` if somebody else does it,
        what the log raises, and what `Destination` raises; then the next run begins again at the position.
        """
        self._lease.acquire()
        before = self.state.events
        try:
            destination, reader = self._open()
            tail = self._log.tail()
            if reader.mark.next_index < tail:
                self._check_topic(destination)
            while reader.mark.next_index < tail and not self._stopping():
                self._publish(destination, reader, self._log.read(reader.mark.next_index, READ_ENTRIES))
        except BaseException:
            self._abandon()
            raise
        return self.state.events - before

    def look(self, trouble: str | None, holder: str | None = None) -> None:
        """Bring `state` up to date after a run that ended so. Why it did is said also if it cannot be found
        out how much waits.
        """
        self.state = replace(self.state, trouble=trouble, holder=holder)
        lag: int | None = None
        since_us: int | None = None
        try:
            if holder is None:
                lag, since_us = self._waiting()
        except ArchiverError as error:
            _log.warning("how much waits to be published is not known: %s", error)
        self.state = replace(self.state, lag=lag, since_us=since_us)

    def _waiting(self) -> tuple[int, int | None]:
        """How many entries wait, and since when; those that the log does not have any more wait for
        nothing.
        """
        reached = max(self._log.floor(), self._mark.next_index)
        lag = max(0, self._log.tail() - reached)
        waiting = self._log.read(reached, 1) if lag else []
        return lag, parse_entry(waiting[0].index, waiting[0].data).time_us if waiting else None

    def close(self) -> None:
        """Let go of broker and lease."""
        self._abandon()
        self._disconnect()

    def _abandon(self) -> None:
        """What comes next begins at the position, with a new connection if the old one may send something.
        Somebody else may try.
        """
        if self._reader is not None:
            self._reader.mark = self._mark
        if self._begun:
            self._disconnect()
        self._lease.release()

    def _disconnect(self) -> None:
        destination, self._destination, self._begun = self._destination, None, False
        if destination is not None:
            destination.close()

    def _open(self) -> tuple[Destination, EventReader]:
        if self._destination is not None and self._reader is not None and self._begun:
            return self._destination, self._reader
        found = self._positions.newest() or self._first()
        # Before the broker is asked: how far behind it is can be told while that is away.
        position, reader = self._stand_at(found)
        if self._destination is None:
            self._destination = self._connect()
        self._topic_id = self._destination.topic_id(self._stopping)
        start = self._start(position)
        if start != position:
            self._positions.move(start)  # before anything is sent: behind the old one the log may be trimmed
            _, reader = self._stand_at(start)
        self._begun = True
        return self._destination, reader

    def _first(self) -> Position:
        """The first position of all. It is written at once: what is behind it stays in the log, however long
        the broker is away.
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
        """Where to go on in the topic that is there now; the reader stands at `position`."""
        known = position.topic_id and self._topic_id
        if position.topic == self._settings.topic and (position.topic_id == self._topic_id or not known):
            return position
        mark = position.mark
        if self._settings.beginning == "earliest":
            first = EventReader.first(self._log, self._checkpoints)
            # Else the log was trimmed up to the position, and not up to a checkpoint.
            if first.mark.next_index < mark.next_index:
                self._reader, self._mark = first, first.mark
                mark = first.mark
        why = (
            "was made anew"
            if position.topic == self._settings.topic
            else f"takes the place of {position.topic}"
        )
        _log.warning(
            "the control topic %s %s; it begins with entry %d of the control log",
            self._settings.topic,
            why,
            mark.next_index,
        )
        return Position(self._settings.topic, self._topic_id, mark)

    def _stand_at(self, position: Position) -> tuple[Position, EventReader]:
        """Let the reader stand there. A position that does not fit the log is none: begin with the first
        event that there is, at a position that is written at once.
        """
        mark, reader = position.mark, self._reader
        if reader is None or reader.mark != mark or self._log.floor() > mark.next_index:
            reader = self._reader_at(mark)
        if reader is None:
            reader = EventReader.first(self._log, self._checkpoints)
            _log.error(
                "the control log does not go on from entry %d, up to which events were published: it "
                "is another log, or was trimmed while "
                "nothing was published. All events from entry %d on are published, those that were "
                "before with the ids they had",
                mark.next_index,
                reader.mark.next_index,
            )
            position = replace(position, mark=reader.mark)
            self._positions.move(position)
        self._reader, self._mark = reader, reader.mark
        return position, reader

    def _reader_at(self, mark: Mark) -> EventReader | None:
        """A reader that stands there and knows every text before it; None if the log is not the one of the
        mark.
        """
        if mark == BEGINNING and self._log.floor() == 0:
            return EventReader()
        reader = EventReader.newest(self._log, self._checkpoints)
        if reader.mark.next_index > mark.next_index:
            return EventReader(mark, reader.texts.values()) if self._leads_to(mark, reader) else None
        return reader if self._pass_to(reader, mark.next_index) and reader.mark == mark else None

    def _leads_to(self, mark: Mark, later: EventReader) -> bool:
        """Whether the log goes from the mark to where the other reader stands: by the id of the entry before
        the mark, or, where others have trimmed just that one, by all that come after it.
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
            return False  # of an epoch that nobody started behind the mark

    def _pass_to(self, reader: EventReader, index: int) -> bool:
        """Let the reader pass everything up to there; whether the log has so much."""
        while left := max(0, index - reader.mark.next_index):
            if not self._pass(reader, min(READ_ENTRIES, left)):
                return False
        return True

    def _pass(self, reader: EventReader, entries_max: int) -> int:
        """Take in what was published, or is not to be; how many entries that were."""
        if self._log.tail() < reader.mark.next_index:
            return 0
        entries = self._log.read(reader.mark.next_index, entries_max)
        for entry in entries:
            reader.take(entry.index, entry.data)
        return len(entries)

    def _publish(self, destination: Destination, reader: EventReader, entries: list[Entry]) -> None:
        """Some entries, and the position behind what was acknowledged of them, whatever ends it. What the
        position then does not say, because the process is to stop or the cluster does not answer, is
        published again.
        """
        acknowledged = self._mark
        try:
            for wave in waves(_events(reader, entries)):
                if self._stopping():
                    break
                destination.send([record_of(self._cluster_id, event) for event in wave], self._stopping)
                acknowledged = wave[-1].mark
                self.state = replace(self.state, events=self.state.events + len(wave))
            else:
                acknowledged = reader.mark
        except ArchiverError:
            # Else what came before it would be published again with every try, and with a broker that often
            # fails nothing else.
            self._keep(destination, acknowledged)
            raise
        self._move(destination, acknowledged)
        reader.mark = acknowledged

    def _keep(self, destination: Destination, mark: Mark) -> None:
        """Move the position after an error; that is the one to tell, whatever becomes of this."""
        try:
            self._move(destination, mark)
        except ArchiverError as error:
            _log.warning(
                "events that the control topic acknowledged are published again, their position was "
                "not written: %s",
                error,
            )

    def _move(self, destination: Destination, mark: Mark) -> None:
        """The position, behind what was acknowledged."""
        if mark == self._mark:
            return
        self._check_topic(
            destination
        )  # behind the acknowledgements: else they might be those of a topic that is gone
        self._positions.move(Position(self._settings.topic, self._topic_id, mark))
        self._mark = mark

    def _check_topic(self, destination: Destination) -> None:
        """It is the one that the position speaks of."""
        if destination.topic_id(self._stopping) != self._topic_id:
            raise OutcomeUnknown(
                f"the control topic {self._settings.topic} was made anew since it was last looked at; "
                "it is looked at again"
            )


def _events(reader: EventReader, entries: Iterable[Entry]) -> Iterator[LedgerEvent]:
    for entry in entries:
        event = reader.take(entry.index, entry.data)
        if event is not None:
            yield event
