"""Kafka clients with a transactional id: they open their producer, write to several partitions, and commit or abort.

Both processes of a replaced client go on, so that one fences the other. A client keeps the rules of Kafka's: it
asks for a commit only after every batch was acknowledged, sends EndTxn again until it knows, and opens its
producer again after an abort with batches of unknown outcome.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime.ids import TopicPartition
from intake.producers import Stamp
from tests.simulation.book import Sent, Transaction
from tests.simulation.kafka.coordinator_link import AGAIN, CoordinatorLink
from tests.simulation.kafka.kafka_clients import Links, answer
from tests.simulation.kafka.requests import Place, batch_of, produce, produced
from tests.simulation.kafka.wire import Brokers, Disconnected, answered
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import World, is_settled

_REST_US = 200_000
_PATIENCE_US = 4_000_000
_TRIES_MAX = 8
_FENCED = {
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    # A producer that was forgotten, or whose id has another one.
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.unknown_producer_id,
}
_AGAIN_LATER = {
    *AGAIN,
    ErrorCode.not_enough_replicas,
    ErrorCode.request_timed_out,
    ErrorCode.not_leader_or_follower,
    ErrorCode.out_of_order_sequence_number,
}


class Fenced(Exception):
    """Another process has opened the producer, or its transaction was aborted by its timeout."""


class GaveUp(Exception):
    """The outcome of something is not known, and the producer must be opened again."""


class TransactionalSender:
    """Writes transactions, one after the other."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        world: World,
        choices: random.Random,
        brokers: Brokers,
        transactions: int,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.world = world
        self.brokers = brokers
        self.stored: list[tuple[TopicPartition, int, int]] = []
        """Acknowledged batches: partition, base offset, number of records."""
        self._random = choices
        self._left = transactions

    def live(self, process: Process) -> None:
        producer = TransactionalProcess(self, process, self._random)
        while self._left > 0:
            if process.schedule.calm:
                process.require_current()
            try:
                producer.open(self._random.randrange(300, 8_000))
                self._left -= 1
                self._transact(producer)
            except Disconnected:
                process.require_current()
                process.sleep(self._random.randrange(1, _REST_US))
            except (Fenced, GaveUp) as error:
                self.world.ground.met[f"kafka transaction {type(error).__name__}"] += 1
                # A process that was replaced and fenced ends, as a client with a fatal error does.
                process.require_current()
                producer.close()

    def _transact(self, producer: TransactionalProcess) -> None:
        transaction = producer.begin()
        for _ in range(self._random.randrange(1, 3)):
            places = producer.places()
            producer.write(
                transaction,
                {place: self._random.randrange(1, 4) for place in self._random.sample(sorted(places), 2)},
            )
            if self._random.random() < 0.2:
                producer.process.sleep(self._random.randrange(4_000_000))
        producer.end(transaction, commit=self._random.random() < 0.7)


class TransactionalProcess:
    """One process with a transactional id."""

    def __init__(self, actor: TransactionalSender, process: Process, choices: random.Random) -> None:
        self.process = process
        self._actor = actor
        self._random = choices
        self._links = Links(process, actor.brokers, choices)
        self._coordinator = CoordinatorLink(
            process, actor.brokers, choices, self._links, actor.transactional_id, transactional=True
        )
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._attempts = 0
        """How often the present request was sent."""

    def open(self, timeout_ms: int) -> None:
        """Open the producer, unless it is open. Raises `Disconnected`."""
        while self._producer is None:
            body = answered(self._send_init(timeout_ms), _PATIENCE_US)
            code = ErrorCode(body["error_code"])
            self._met("InitProducerId", code)
            if code is ErrorCode.none:
                self._producer = body["producer_id"], body["producer_epoch"]
                self._sequences.clear()
            else:
                self._retry("InitProducerId", code)

    def close(self) -> None:
        """Open it again before the next transaction."""
        self._producer = None

    def places(self) -> Mapping[Place, TopicPartition]:
        """Every partition."""
        return self._links.places(self._links.leader())

    def begin(self) -> Transaction:
        """A transaction that is going to be written."""
        transaction = self._actor.world.book.begin(f"{self._actor.name} {self._producer}")
        self.process.schedule.note(self.process.name, f"begins {transaction.name}")
        return transaction

    def write(self, transaction: Transaction, rows: Mapping[Place, int]) -> list[Sent]:
        """Write so many records to each partition, and wait for the acknowledgements. Raises `Fenced` and
        `GaveUp`.
        """
        self._ask("AddPartitionsToTxn", lambda: self._send_add(list(rows)), _added)
        places, book = self.places(), self._actor.world.book
        batches: dict[Place, tuple[list[Sent], Stamp]] = {}
        for place, count in rows.items():
            tp = places[place]
            records = [
                book.record(f"{transaction.name} {self.process.name}", tp, transaction) for _ in range(count)
            ]
            batches[place] = records, Stamp(*self._present(), self._sequences.get(tp, 0), transactional=True)
            self._sequences[tp] = self._sequences.get(tp, 0) + count
        everything = [one for records, _ in batches.values() for one in records]
        for _ in range(_TRIES_MAX):
            if not batches:
                return everything
            try:
                self._produce(batches)
            except Disconnected:
                self.process.sleep(self._random.randrange(1, _REST_US))
        if batches:
            raise GaveUp
        return everything

    def _produce(self, batches: dict[Place, tuple[list[Sent], Stamp]]) -> None:
        """One attempt; what is acknowledged is removed from `batches`."""
        world = self._actor.world
        for records, _ in batches.values():
            for sent in records:
                sent.open_attempts += 1
        data = {place: batch_of(records, stamp) for place, (records, stamp) in batches.items()}
        timeout_ms = self._random.choice((300, 2000, 30_000))
        reply = produce(self._links.leader(), data, -1, timeout_ms, self._actor.transactional_id)
        fenced = False
        for place, (code, offset) in produced(answered(reply, _PATIENCE_US)).items():
            self._met("Produce", code)
            records, _ = batches[place]
            answer(world, records, code, offset)
            if code is ErrorCode.none:
                self._actor.stored.append((records[0].tp, offset, len(records)))
                del batches[place]
            elif code in _FENCED:
                fenced = True
            elif code not in _AGAIN_LATER:
                raise Violation(
                    "a client that keeps the rules is served", f"{self.process.name}: {code.name}"
                )
        if fenced:
            raise Fenced
        if batches:
            self.process.sleep(self._random.randrange(1, _REST_US))

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort it. Raises `Fenced` and `GaveUp`."""
        assert all(is_settled([one]) for one in transaction.records) or not commit
        if commit:
            transaction.fate = "unknown"
        try:
            self._ask("EndTxn", lambda: self._send_end(commit=commit), lambda body: body["error_code"])
        except Fenced:
            if self._attempts == 1:
                # No other request could have ended it.
                transaction.fate = "aborted"
            raise
        transaction.fate = "committed" if commit else "aborted"
        self.process.schedule.note(self.process.name, f"ended {transaction.name}: {transaction.fate}")

    # --- Requests to the coordinator

    def _ask(self, what: str, send: Any, code_of: Any) -> None:
        """Ask until the request is done. Raises `Fenced` and `GaveUp`."""
        self._attempts = 0
        for _ in range(_TRIES_MAX):
            try:
                self._attempts += 1
                code = ErrorCode(code_of(answered(send(), _PATIENCE_US)))
            except Disconnected:
                self.process.sleep(self._random.randrange(1, _REST_US))
                continue
            self._met(what, code)
            if code is ErrorCode.none:
                return
            self._retry(what, code)
        raise GaveUp

    def _retry(self, what: str, code: ErrorCode) -> None:
        if code in _FENCED:
            raise Fenced
        if code not in _AGAIN_LATER:
            raise Violation(
                "a client that keeps the rules is served", f"{self.process.name} {what}: {code.name}"
            )
        self._coordinator.leave()
        self.process.sleep(self._random.randrange(1, _REST_US))

    def _met(self, what: str, code: ErrorCode) -> None:
        self.process.schedule.note(self.process.name, f"{what}: {code.name}")
        self._actor.world.ground.met[f"kafka {what} {code.name}"] += 1

    def _present(self) -> tuple[int, int]:
        assert self._producer is not None, "the producer is open"
        return self._producer

    def _send_init(self, timeout_ms: int) -> Any:
        body = SimpleNamespace(
            transactional_id=self._actor.transactional_id,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        connection = self._coordinator.connection()
        return connection.send(ApiKey.INIT_PRODUCER_ID, 4, body, "InitProducerId with a transactional id")

    def _send_add(self, places: list[Place]) -> Any:
        producer_id, epoch = self._present()
        topics: dict[str, list[int]] = {}
        for topic, number in places:
            topics.setdefault(topic, []).append(number)
        body = SimpleNamespace(
            v3_and_below_transactional_id=self._actor.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                SimpleNamespace(name=name, partitions=numbers) for name, numbers in topics.items()
            ],
        )
        connection = self._coordinator.connection()
        return connection.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body, f"AddPartitionsToTxn {places}")

    def _send_end(self, *, commit: bool) -> Any:
        producer_id, epoch = self._present()
        body = SimpleNamespace(
            transactional_id=self._actor.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        what = f"EndTxn of {producer_id}, {epoch}: {'commit' if commit else 'abort'}"
        return self._coordinator.connection().send(ApiKey.END_TXN, 3, body, what)


def _added(body: Mapping[str, Any]) -> int:
    """The error of an AddPartitionsToTxn: that of its first partition with one."""
    codes = [
        part["partition_error_code"]
        for topic in body["results_by_topic_v3_and_below"]
        for part in topic["results_by_partition"]
    ]
    return next((code for code in codes if code), 0)
