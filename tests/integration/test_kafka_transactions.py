"""Transactions over the listener: real clients, and the errors of each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.kafka.transactions import SESSION_IDS_MAX
from intake.log.checkpoint import CheckpointStore
from intake.log.committed_offsets import CommittedOffsets, OffsetBounds
from intake.log.consumer_groups import slot_of
from intake.log.sequencer import Sequencer
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

NAMES = (
    "committed", "aborted", "fenced", "late", "resumed", "unended", "async", "errors", "other", "stale",
    "shown", "hanging", "waited"
)  # fmt: skip
TOPICS = [{"name": name, "partitions": 2} for name in NAMES]


TRANSACTIONAL = 16
"""The attribute of a batch."""
OK = ErrorCode.none


class _Broken(Exception):
    pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS)) as found:
        yield found


def transactional(served: Listening, name: str, **options: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": served.bootstrap, "transactional.id": name, "linger.ms": 0, **options}
    )
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topic: str, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)


def read(served: Listening, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """What a consumer has when it has reached the end of both partitions, at least `count` values."""
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found: list[bytes] = []
    ends: set[int | None] = set()
    try:
        while len(ends) < 2 or len(found) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} of {count} values"
            error = message.error()
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends.add(message.partition())
    finally:
        consumer.close()
    return sorted(found)


def stored(served: Listening, topic: str) -> list[bytes]:
    """The committed records of the archiver's own reader."""
    return sorted(one.value or b"" for records in served.stored(topic).values() for one in records)


def end_overdue(served: Listening, after_s: int) -> list[str]:
    """End what is overdue after that time, as the watch of a daemon does."""
    now_us = served.application.clock.now_us() + after_s * 1_000_000
    return [one.transactional_id for one in served.writer.sequencer.end_overdue(now_us)]


def is_open(served: Listening, name: str) -> bool:
    return any(one.transactional_id == name for one in served.writer.sequencer.refresh().transactions)


# --- Real clients.
def test_a_committed_transaction_is_visible_as_a_whole(served: Listening) -> None:
    producer = transactional(served, "committed")
    values = [b"%02d" % number for number in range(20)]
    for half in (values[:10], values[10:]):
        producer.begin_transaction()
        send(producer, "committed", half)
        assert producer.flush(30) == 0
        visible = read(served, "committed", 0)
        assert not set(half) & set(visible)
        assert set(half) <= set(read(served, "committed", len(half), "read_uncommitted"))
        producer.commit_transaction(30)
    assert read(served, "committed", 20) == values == stored(served, "committed")


def test_an_aborted_transaction_is_invisible_and_the_next_one_counts(served: Listening) -> None:
    producer = transactional(served, "aborted")
    producer.begin_transaction()
    send(producer, "aborted", [b"gone"] * 6)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    producer.begin_transaction()
    send(producer, "aborted", [b"a", b"b"])
    producer.commit_transaction(30)
    assert read(served, "aborted", 2) == [b"a", b"b"] == stored(served, "aborted")
    assert read(served, "aborted", 2, "read_uncommitted") == [b"a", b"b"]


def test_a_second_instance_fences_the_first_one_and_aborts_its_transaction(served: Listening) -> None:
    first = transactional(served, "fenced")
    first.begin_transaction()
    send(first, "fenced", [b"first"] * 4)
    assert first.flush(30) == 0
    second = transactional(served, "fenced")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(30)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].code() == KafkaError._FENCED
    second.begin_transaction()
    send(second, "fenced", [b"second"] * 2)
    second.commit_transaction(30)
    assert read(served, "fenced", 2) == [b"second"] * 2 == stored(served, "fenced")


def test_a_transaction_over_its_time_is_aborted_and_its_commit_fails(served: Listening) -> None:
    producer = transactional(served, "late", **{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
    producer.begin_transaction()
    send(producer, "late", [b"late"] * 4)
    assert producer.flush(30) == 0
    assert "late" in end_overdue(served, 2)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(30)
    assert refused.value.args[0].fatal()
    assert read(served, "late", 0) == [] == stored(served, "late")


def test_another_client_commits_and_aborts(served: Listening) -> None:
    asyncio.run(_commit_and_abort(served))
    assert stored(served, "async") == [b"kept"]


async def _commit_and_abort(served: Listening) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=served.bootstrap, transactional_id="async")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait("async", b"kept", partition=0)
        with contextlib.suppress(_Broken):
            async with producer.transaction():
                await producer.send_and_wait("async", b"gone", partition=0)
                raise _Broken
    finally:
        await producer.stop()


# --- Requests.
class Transactional(WireClient):
    """A producer that sends single requests."""

    def __init__(self, served: Listening, name: str) -> None:
        super().__init__(served.address)
        self.name = name
        self.producer_id = self.epoch = -1

    def open(self, version: int = 4, **stated: int) -> ErrorCode:
        body = {
            "transactional_id": self.name,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        found = self.ask(ApiKey.INIT_PRODUCER_ID, version, body | stated)
        if found.error_code is ErrorCode.none:
            self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        return ErrorCode(found.error_code)

    def add(self, topic: str, numbers: tuple[int, ...] = (0,), version: int = 3) -> list[ErrorCode]:
        found = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": numbers}],
            },
        )
        return [
            ErrorCode(part.partition_error_code)
            for one in found.results_by_topic_v3_and_below
            for part in one.results_by_partition
        ]

    def produce(self, topic: str, sequence: int, name: str | None = None) -> ErrorCode:
        records = records_bytes([RawRecord(value=b"%d" % sequence)])
        batch = batch_bytes(records, flags=TRANSACTIONAL, producer=(self.producer_id, self.epoch, sequence))
        body = {
            "transactional_id": name or self.name,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }
        found = self.ask(ApiKey.PRODUCE, 9, body)
        return ErrorCode(found.responses[0].partition_responses[0].error_code)

    def mark(
        self, topic: str, numbers: tuple[int, ...] = (0,), *, commit: bool = False, **stated: int
    ) -> list[ErrorCode]:
        marker = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": numbers}],
            "coordinator_epoch": 0,
        }
        found = self.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker | stated]})
        ((topic_result,),) = [one.topics for one in found.markers]
        return [ErrorCode(one.error_code) for one in topic_result.partitions]

    def end(self, *, commit: bool = True, version: int = 4) -> ErrorCode:
        body = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        return ErrorCode(self.ask(ApiKey.END_TXN, version, body).error_code)


def test_requests_of_a_fenced_producer_get_the_error_of_their_version(served: Listening) -> None:
    with Transactional(served, "versions") as old, Transactional(served, "versions") as new:
        assert old.open() is OK
        assert new.open() is OK
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
        assert old.add("errors", version=2) == [ErrorCode.producer_fenced]
        assert old.add("errors", version=1) == [ErrorCode.invalid_producer_epoch]
        assert old.end(version=2) is ErrorCode.producer_fenced
        assert old.end(version=1) is ErrorCode.invalid_producer_epoch
        assert old.produce("errors", 0) is ErrorCode.invalid_producer_epoch
        assert new.add("errors") == [OK]
        assert new.end() is OK


def test_a_producer_goes_on_with_its_id_and_the_next_epoch(served: Listening) -> None:
    with Transactional(served, "resumed") as producer:
        assert producer.open() is OK
        first = producer.producer_id, producer.epoch
        assert producer.produce("resumed", 0) is OK
        # KIP-360: its transaction is aborted, and no batch of the earlier epoch counts.
        stated = {"producer_id": first[0], "producer_epoch": first[1]}
        assert producer.open(**stated) is OK
        assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 1)
        # The answer was lost, and the client asks again.
        assert producer.open(**stated) is OK
        assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 1)
        assert producer.open(**stated | {"producer_epoch": first[1] + 1}) is OK
        assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 2)
        assert producer.open(**stated) is ErrorCode.producer_fenced
        assert producer.open(version=3, **stated) is ErrorCode.invalid_producer_epoch
        other = {"producer_id": first[0] + 1_000_000, "producer_epoch": producer.epoch}
        assert producer.open(**other) is ErrorCode.producer_fenced
        assert producer.open(producer_id=first[0]) is ErrorCode.invalid_request
        assert producer.produce("resumed", 0) is OK
        assert producer.end() is OK
    assert stored(served, "resumed") == [b"0"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_transaction_timeout_outside_of_its_bounds_is_refused(served: Listening, timeout_ms: int) -> None:
    with Transactional(served, "timeout") as producer:
        assert producer.open(transaction_timeout=timeout_ms) is ErrorCode.invalid_transaction_timeout


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_a_transactional_id_that_cannot_be_stored_is_refused(served: Listening, name: str) -> None:
    with Transactional(served, name) as producer:
        assert producer.open() is ErrorCode.invalid_request


def test_unknown_producers_and_partitions_have_their_errors(served: Listening) -> None:
    with Transactional(served, "unknown") as producer:
        until("the slot is claimed", lambda: producer.end() is ErrorCode.invalid_producer_id_mapping)
        assert producer.add("errors") == [ErrorCode.invalid_producer_id_mapping]
        assert producer.open() is OK
        assert producer.add("missing") == [ErrorCode.unknown_topic_or_partition]
        # As in Kafka, none of them is added.
        expected = [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]
        assert producer.add("errors", (0, 7)) == expected
        assert producer.produce("errors", 0, "versions") is ErrorCode.invalid_producer_id_mapping


def test_a_repeated_end_is_answered_by_what_happened(served: Listening) -> None:
    with Transactional(served, "repeated") as producer:
        assert producer.open() is OK
        assert producer.produce("unended", 0) is OK
        assert producer.end() is OK
        tail = served.writer.sequencer.refresh().next_index
        assert producer.end() is OK
        # The second one changed nothing.
        assert served.writer.sequencer.refresh().next_index == tail
        assert producer.end(commit=False) is ErrorCode.invalid_txn_state
        # Another transaction, which gets no records.
        assert producer.add("unended") == [OK]
        assert producer.end(commit=False) is OK
        assert producer.produce("unended", 1) is OK
        assert "repeated" in end_overdue(served, 61)
        assert producer.end() is ErrorCode.producer_fenced
    assert stored(served, "unended") == [b"0"]


def test_an_end_under_a_lost_claim_ends_nothing(served: Listening) -> None:
    with Transactional(served, "stale") as producer:
        assert producer.open() is OK
        assert producer.produce("stale", 0) is OK
        _claim_elsewhere(served, "stale")
        assert producer.end() is ErrorCode.not_coordinator
        assert is_open(served, "stale")
        # It claims the slot again. The first request may be from before that, so it counts for nothing.
        until("it claims the slot again", lambda: producer.end() is ErrorCode.coordinator_load_in_progress)
        assert is_open(served, "stale")
        assert producer.end() is OK
    assert stored(served, "stale") == [b"0"]


def test_an_end_from_before_a_claim_that_another_client_caused_ends_nothing(served: Listening) -> None:
    """It waited in its connection while the daemon was paused, and its client went to another daemon."""
    with Transactional(served, "waited") as late, Transactional(served, _with_slot_of("waited")) as other:
        assert late.open() is OK
        assert late.add("waited") == [OK]
        assert late.produce("waited", 0) is OK
        _claim_elsewhere(served, "waited")
        until("the other client makes the daemon claim the slot", lambda: other.open() is OK)
        assert late.end() is ErrorCode.coordinator_load_in_progress
        assert is_open(served, "waited")
        # A client that still waits for the answer sends it again.
        assert late.end() is OK
        # One that had an answer under the claim has no such wait.
        assert other.add("waited") == [OK]
        assert other.produce("waited", 0) is OK
        assert other.end() is OK
    assert stored(served, "waited") == [b"0", b"0"]


def test_an_end_after_an_added_partition_needs_no_other_request(served: Listening) -> None:
    name = "reconnected"
    with Transactional(served, name) as producer, Transactional(served, name) as again:
        assert producer.open() is OK
        again.producer_id, again.epoch = producer.producer_id, producer.epoch
        assert again.add("waited") == [OK]
        assert again.end() is OK


def test_ids_of_one_connection_are_bounded(served: Listening) -> None:
    with Transactional(served, "many") as producer:
        for number in range(SESSION_IDS_MAX + 1):
            producer.name = f"many-{number}"
            assert producer.open() is OK
        producer.name = "many-0"
        assert producer.open() is OK
        assert producer.end() is OK


def _with_slot_of(name: str) -> str:
    """Another transactional id of the same coordinator."""
    found = (f"{name}-{number}" for number in range(10_000))
    return next(one for one in found if slot_of(one) == slot_of(name))


def _claim_elsewhere(served: Listening, name: str) -> None:
    """As another daemon, of which this one has not read yet."""
    found = served.application
    other = Sequencer(
        found.intake_log, found.ids, found.clock, found.settings.log, CheckpointStore(found.objects)
    )
    CommittedOffsets(other, found.clock, OffsetBounds(2**30, 1)).claim_slots([slot_of(name)], 99)


def test_a_transactional_id_needs_its_permissions(tmp_path: Path) -> None:
    rules = [
        {"principal": "User:ANONYMOUS", "operations": ["write"], "transactional_ids": ["mine-*"]},
        {"principal": "User:ANONYMOUS", "operations": ["write"], "topics": ["errors"]},
    ]
    denied = ErrorCode.transactional_id_authorization_failed
    with listening(configured(tmp_path, TOPICS, kafka={"acls": rules})) as found:
        # Of another principal.
        found.writer.sequencer.open_producer("other", 60_000_000)
        with Transactional(found, "mine-1") as producer:
            finding = {"key": "mine-1", "key_type": 1}
            assert producer.ask(ApiKey.FIND_COORDINATOR, 3, finding).error_code is OK
            assert producer.open() is OK
            assert producer.add("errors") == [OK]
            assert producer.add("other") == [ErrorCode.topic_authorization_failed]
            assert producer.produce("errors", 0) is OK
            assert producer.produce("errors", 1, "other") is denied
            assert producer.mark("errors") == [ErrorCode.cluster_authorization_failed]
            describing = {"transactional_ids": ["mine-1", "other"]}
            states = producer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, describing).transaction_states
            assert [one.error_code for one in states] == [OK, denied]
            listing: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
            found_ids = producer.ask(ApiKey.LIST_TRANSACTIONS, 0, listing).transaction_states
            assert [one.transactional_id for one in found_ids] == ["mine-1"]
            body = {"topics": [{"name": "other", "partition_indexes": [0]}]}
            (topic,) = producer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
            assert topic.partitions[0].error_code is ErrorCode.topic_authorization_failed
            assert producer.end() is OK
        with Transactional(found, "other") as producer:
            assert producer.ask(ApiKey.FIND_COORDINATOR, 3, finding | {"key": "other"}).error_code is denied
            assert producer.open() is denied
            assert producer.add("errors") == [denied]
            assert producer.end() is denied


# --- Administration.
def test_transactions_and_producers_are_shown(served: Listening) -> None:
    with Transactional(served, "shown") as producer:
        assert producer.open() is OK
        listing = {"state_filters": [], "producer_id_filters": [producer.producer_id], "duration_filter": -1}

        def listed(**stated: Any) -> list[tuple[str, int, str]]:
            found = producer.ask(ApiKey.LIST_TRANSACTIONS, 1, listing | stated)
            return [
                (one.transactional_id, one.producer_id, one.transaction_state)
                for one in found.transaction_states
            ]

        def described(name: str = "shown") -> Any:
            body = {"transactional_ids": [name, name]}
            (found,) = producer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
            return found

        assert listed() == [("shown", producer.producer_id, "Empty")]
        producer.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["shown"]})
        # kio reads no negative time, which stands for no transaction.
        assert b"\x06Empty" + (60_000).to_bytes(4, "big") + b"\xff" * 8 in producer.receive()
        assert producer.produce("shown", 0) is OK
        assert producer.produce("shown", 1) is OK
        assert listed(state_filters=["Ongoing"]) == [("shown", producer.producer_id, "Ongoing")]
        assert listed(state_filters=["Empty"]) == listed(duration_filter=3_600_000) == []
        unknown = producer.ask(ApiKey.LIST_TRANSACTIONS, 1, listing | {"state_filters": ["Odd"]})
        assert (unknown.unknown_state_filters, unknown.transaction_states) == (("Odd",), ())
        found = described()
        assert (found.transaction_state, found.producer_id, found.producer_epoch) == (
            "Ongoing",
            producer.producer_id,
            producer.epoch,
        )
        assert found.transaction_timeout.total_seconds() == 60
        assert [(one.topic, one.partitions) for one in found.topics] == [("shown", (0,))]
        assert described("missing").error_code is ErrorCode.transactional_id_not_found

        body = {"topics": [{"name": "shown", "partition_indexes": [0, 1, 7]}]}
        (topic,) = producer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
        codes = [one.error_code for one in topic.partitions]
        assert codes == [OK, OK, ErrorCode.unknown_topic_or_partition]
        (active,) = topic.partitions[0].active_producers
        assert (active.producer_id, active.last_sequence, active.current_txn_start_offset) == (
            producer.producer_id,
            1,
            0,
        )
        assert topic.partitions[1].active_producers == ()
        assert producer.end() is OK
        (topic,) = producer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
        assert topic.partitions[0].active_producers[0].current_txn_start_offset == -1


def test_an_administrator_aborts_a_transaction_by_one_of_its_partitions(served: Listening) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    with Transactional(served, "hanging") as producer:
        assert producer.open() is OK
        assert producer.produce("hanging", 0) is OK
        assert producer.mark("missing") == [unknown]
        assert producer.mark("hanging", commit=True) == [ErrorCode.invalid_request]
        assert producer.mark("hanging", (1,)) == [ErrorCode.invalid_txn_state]
        assert producer.mark("hanging", producer_epoch=producer.epoch + 1) == [
            ErrorCode.invalid_producer_epoch
        ]
        assert producer.mark("hanging", producer_id=2**40) == [ErrorCode.invalid_producer_id_mapping]
        assert is_open(served, "hanging")
        assert producer.mark("hanging", (0, 7)) == [OK, unknown]
        assert not is_open(served, "hanging")
        tail = served.writer.sequencer.refresh().next_index
        # The answer was lost.
        assert producer.mark("hanging") == [OK]
        assert served.writer.sequencer.refresh().next_index == tail
        # The rest of the transaction must not be committed by itself.
        assert producer.produce("hanging", 1) is ErrorCode.invalid_producer_epoch
        assert producer.end() is ErrorCode.producer_fenced
        assert producer.open() is OK
        assert producer.produce("hanging", 0) is OK
        # Late: it is about the transaction before.
        assert producer.mark("hanging", producer_epoch=0) == [ErrorCode.invalid_producer_epoch]
        assert producer.end() is OK
    assert stored(served, "hanging") == [b"0"]
