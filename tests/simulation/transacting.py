"""Producers with transactions: begin, write to several partitions, commit or abort, and be taken over by
one's own successor.

Two of them may share a transactional id: each fences the other, as a process and the one that was started
because it was taken for dead. Promises to behave as a client must: a commit is asked for only after every
record was acknowledged; a client that gives up records of unknown outcome opens the producer again instead of
going on with the same epoch.
"""

from __future__ import annotations

import random

from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicPartition
from intake.producers import Refusal, Stamp
from tests.simulation.book import Transaction
from tests.simulation.schedule import Process
from tests.simulation.station import Outgoing, Station, World, is_settled

_TRIES_MAX = 4
_REST_US = 300_000


class _Fenced(Exception):
    """Another client has opened the producer again, or a time-out has closed its epoch."""


class TransactionalProducer:
    """Writes transactions, one after the other."""

    def __init__(
        self, name: str, transactional_id: str, world: World, choices: random.Random, transactions: int
    ) -> None:
        self.name = name
        self._transactional_id = transactional_id
        self._world = world
        self._random = choices
        self._left = transactions
        self.trouble = ""

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        failures = 0
        while self._left > 0:
            process.require_current()
            timeout_us = self._random.randrange(200_000, 5_000_000)
            session = _Session(
                station, self, station.sequencer.open_producer(self._transactional_id, timeout_us)
            )
            try:
                while self._left > 0:
                    process.require_current()
                    self._left -= 1
                    session.transact(self._random)
                    failures = 0
                    process.sleep(self._random.randrange(_REST_US))
            except _Fenced as error:
                self.trouble = str(error)
                failures += 1
                process.sleep(self._random.randrange(_REST_US))
            except RetryLater as error:
                self.trouble = str(error)
                failures += 1
            if failures > _TRIES_MAX:
                raise RetryLater("nothing arrives; a new process may see more")


class _Session:
    """One epoch of a producer."""

    def __init__(self, station: Station, actor: TransactionalProducer, producer: tuple[int, int]) -> None:
        self._station = station
        self._process = station.process
        self._book = station.world.book
        self._producer = producer
        self._sequences: dict[TopicPartition, int] = {}
        self._name = f"{actor.name} {producer}"

    def transact(self, choices: random.Random) -> None:
        """One transaction, to its end. Raises `_Fenced`, or `RetryLater` where only opening it again
        helps."""
        transaction = self._book.begin(self._name)
        self._process.schedule.note(self._process.name, f"begins {transaction.name}")
        for _ in range(choices.randrange(1, 4)):
            self._write(transaction, choices)
            self._process.require_current()
            if choices.random() < 0.2:
                self._process.sleep(choices.randrange(2_000_000))
        self._end(transaction, commit=choices.random() < 0.7)

    def _write(self, transaction: Transaction, choices: random.Random) -> None:
        """One flush into some partitions, sent again until all of it is there."""
        outgoing: list[Outgoing] = []
        for tp in choices.sample(self._station.partitions(), choices.randrange(1, 3)):
            rows = choices.randrange(1, 4)
            sequence = self._sequences.get(tp, 0)
            records = [self._book.record(self._name, tp, transaction) for _ in range(rows)]
            outgoing.append(Outgoing(tp, records, Stamp(*self._producer, sequence, transactional=True)))
            self._sequences[tp] = sequence + rows
        for _ in range(_TRIES_MAX):
            refusals = self._station.send(outgoing)
            self._process.require_current()
            outgoing = [
                Outgoing(one.tp, one.records, one.stamp, stated=True)
                for one in outgoing
                if not is_settled(one.records)
            ]
            if not outgoing:
                return
            for refusal in refusals:
                self._check_fenced(refusal)
        raise RetryLater("some records are of unknown outcome; the producer must be opened anew")

    def _end(self, transaction: Transaction, *, commit: bool) -> None:
        if commit:
            transaction.fate = "unknown"
        refusal = self._marker(transaction, commit=commit)
        self._process.schedule.note(
            self._process.name, f"{'commits' if commit else 'aborts'} {transaction.name}: {refusal}"
        )
        transaction.fate = "committed" if commit and refusal is None else "aborted"
        self._process.require_current()
        self._check_fenced(refusal)

    def _marker(self, transaction: Transaction, *, commit: bool) -> Refusal | None:
        """Ask again while the outcome is unknown, as long as this process lives."""
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                return self._station.sequencer.end_transaction(*self._producer, commit=commit)
            except OutcomeUnknown:
                if not tries_left:
                    raise
            except ArchiverError:
                if tries_left == _TRIES_MAX - 1:
                    transaction.fate = "open"  # certainly not appended
                raise
            self._process.sleep(100_000)
            self._process.require_current()
        raise AssertionError("the last try returns or raises")

    def _check_fenced(self, refusal: Refusal | None) -> None:
        if refusal in ("fenced", "unknown_producer"):
            raise _Fenced(refusal)
        if refusal not in (None, "barrier"):
            raise AssertionError(f"{self._name} met {refusal}")
