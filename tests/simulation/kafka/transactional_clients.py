"""Kafka clients with a transactional id: they open their producer, write to several partitions, and commit or abort.

Both processes of a replaced client go on, so that one fences the other. A client keeps the rules of Kafka's: it
asks for a commit only after every batch was acknowledged, sends EndTxn again until it knows, and opens its
producer again after an abort with batches of unknown outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime.ids import TopicPartition
from intake.producers import Stamp
from tests.simulation.book import Sent, Transaction
from tests.simulation.kafka.coordinator_link import AGAIN, CoordinatorLink
from tests.simulation.kafka.group_requests import Offset, Stated, commit_codes, commit_in_transaction
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
LOST: Final = {ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}
"""The member has lost its place in the group, and its transaction must be aborted."""
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


class Transactional(Protocol):
    """The actor whose processes have a transactional id."""

    name: str
    transactional_id: str
    world: World
    brokers: Brokers
    stored: list[tuple[TopicPartition, int, int]]
    """Acknowledged batches: partition, base offset, number of records."""


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
                # What was written must not be committed with the next transaction.
                producer.close()
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
            chosen = {place: self._random.randrange(1, 4) for place in self._random.sample(sorted(places), 2)}
            producer.write(
                {place: producer.records(transaction, places[place], rows) for place, rows in chosen.items()}
            )
            if self._random.random() < 0.2:
                producer.process.sleep(self._random.randrange(4_000_000))
        producer.end(transaction, commit=self._random.random() < 0.7)


class TransactionalProcess:
    """One process with a transactional id."""

    def __init__(self, actor: Transactional, process: Process, choices: random.Random) -> None:
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
                self._retry("InitProducerId", code, self._coordinator)

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

    def records(self, transaction: Transaction, tp: TopicPartition, rows: int) -> list[Sent]:
        """So many records that are going to be written."""
        stream = f"{transaction.name} {self.process.name}"
        return [self._actor.world.book.record(stream, tp, transaction) for _ in range(rows)]

    def write(self, records: Mapping[Place, list[Sent]]) -> None:
        """Write the records of each partition, and wait for the acknowledgements. Raises `Fenced` and
        `GaveUp`.
        """
        self._ask("AddPartitionsToTxn", lambda: self._send_add(list(records)), _added)
        batches: dict[Place, tuple[list[Sent], Stamp]] = {}
        for place, rows in records.items():
            tp = rows[0].tp
            batches[place] = rows, Stamp(*self._present(), self._sequences.get(tp, 0), transactional=True)
            self._sequences[tp] = self._sequences.get(tp, 0) + len(rows)
        for _ in range(_TRIES_MAX):
            if not batches:
                return
            try:
                self._produce(batches)
            except Disconnected:
                self.process.sleep(self._random.randrange(1, _REST_US))
        if batches:
            raise GaveUp

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

    def send_offsets(self, group: str, link: CoordinatorLink, attempt: Callable[[], ErrorCode]) -> bool:
        """Add offsets of a group to the transaction. `attempt` sends them once, to the coordinator at the
        `link`. False if the group refuses the member. Raises `Fenced` and `GaveUp`.
        """
        self._ask("AddOffsetsToTxn", lambda: self._send_add_offsets(group), _error)
        for _ in range(_TRIES_MAX):
            try:
                code = attempt()
            except Disconnected:
                self.process.sleep(self._random.randrange(1, _REST_US))
                continue
            if code is ErrorCode.none or code in LOST:
                return code is ErrorCode.none
            self._retry("TxnOffsetCommit", code, link)
        raise GaveUp

    def commit_offsets(
        self, member: Stated, link: CoordinatorLink, offsets: Mapping[Place, Offset]
    ) -> ErrorCode:
        """Send offsets once. Raises `Disconnected`."""
        connection, name = link.connection(), self._actor.transactional_id
        reply = commit_in_transaction(connection, member, name, self._present(), offsets)
        code = ErrorCode(next(iter(commit_codes(answered(reply, _PATIENCE_US)).values())))
        self._met("TxnOffsetCommit", code)
        return code

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort it. Raises `Fenced` and `GaveUp`."""
        assert all(is_settled([one]) for one in transaction.records) or not commit
        if commit:
            transaction.fate = "unknown"
        try:
            self._ask("EndTxn", lambda: self._send_end(commit=commit), _error)
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
            self._retry(what, code, self._coordinator)
        raise GaveUp

    def _retry(self, what: str, code: ErrorCode, coordinator: CoordinatorLink) -> None:
        if code in _FENCED:
            raise Fenced
        if code not in _AGAIN_LATER:
            raise Violation(
                "a client that keeps the rules is served", f"{self.process.name} {what}: {code.name}"
            )
        if code is not ErrorCode.coordinator_load_in_progress:
            coordinator.leave()
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

    def _send_add_offsets(self, group: str) -> Any:
        producer_id, epoch = self._present()
        body = SimpleNamespace(
            transactional_id=self._actor.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        connection = self._coordinator.connection()
        return connection.send(ApiKey.ADD_OFFSETS_TO_TXN, 3, body, f"AddOffsetsToTxn of {group}")

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


def _error(body: Mapping[str, Any]) -> int:
    code: int = body["error_code"]
    return code


def _added(body: Mapping[str, Any]) -> int:
    """The error of an AddPartitionsToTxn: that of its first partition with one."""
    codes = [
        part["partition_error_code"]
        for topic in body["results_by_topic_v3_and_below"]
        for part in topic["results_by_partition"]
    ]
    return next((code for code in codes if code), 0)
