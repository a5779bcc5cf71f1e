"""Offsets of a consumer group within a transaction, over the listener: real clients, and single requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime.errors import RetryLater
from tests.integration.test_kafka_groups import QUICK, Member, elsewhere, listed
from tests.integration.test_kafka_transactions import OK, Transactional, end_overdue
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 2} for name in ("orders", "input", "output", "hidden")]
COUNT = 60
UNSTABLE = ErrorCode.unstable_offset_commit


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS, kafka=QUICK)) as found:
        producer = Producer({"bootstrap.servers": found.bootstrap})
        for number in range(COUNT):
            producer.produce("input", b"%d" % number, partition=number % 2)
        assert producer.flush(30) == 0
        yield found


class Pending(Transactional):
    """A producer that commits offsets of a group by single requests. The group has its name."""

    def add_offsets(self, version: int = 3, **stated: Any) -> ErrorCode:
        body = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "group_id": self.name,
        }
        return ErrorCode(self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, body | stated).error_code)

    def commit(self, offsets: dict[int, int], version: int = 3, **stated: Any) -> list[ErrorCode]:
        parts = [
            {
                "partition_index": number,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": stated.get("metadata", "m"),
            }
            for number, offset in offsets.items()
        ]
        body = {
            "transactional_id": self.name,
            "group_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": stated.get("topic", "orders"), "partitions": parts}],
        }
        (topic,) = self.ask(ApiKey.TXN_OFFSET_COMMIT, version, body | stated).topics
        return [ErrorCode(one.error_code) for one in topic.partitions]

    def fetch(self, *, stable: bool = True, version: int = 8) -> dict[int, int | ErrorCode]:
        """The committed offsets of both partitions of the topic, or their errors."""
        return self._fetched(stable, version, [{"name": "orders", "partition_indexes": (0, 1)}])

    def fetch_all(self, *, stable: bool = True, version: int = 8) -> dict[int, int | ErrorCode]:
        """As `fetch`, of what the group has."""
        return self._fetched(stable, version, None)

    def _fetched(self, stable: bool, version: int, topics: Any) -> dict[int, int | ErrorCode]:
        one = {"group_id": self.name, "topics": topics}
        body = {"groups": [one], "require_stable": stable} | one
        found = self.ask(ApiKey.OFFSET_FETCH, version, body)
        of_group = found.groups[0] if version >= 8 else found
        assert of_group.error_code is OK
        return {
            part.partition_index: part.committed_offset if part.error_code is OK else part.error_code
            for topic in of_group.topics
            for part in topic.partitions
        }


@pytest.fixture
def producer(served: Listening, request: pytest.FixtureRequest) -> Iterator[Pending]:
    """An open producer; its group is coordinated here already."""
    with Pending(served, request.node.name) as made:
        assert made.open() is OK
        yield made


# --- Requests.
@pytest.mark.parametrize("version", range(4))
def test_offsets_count_when_their_transaction_is_committed(producer: Pending, version: int) -> None:
    assert producer.add_offsets(version) is OK
    assert producer.commit({0: 5}, version) == [OK]
    assert producer.fetch() == {0: UNSTABLE, 1: -1}
    assert producer.fetch_all() == {0: UNSTABLE}
    assert producer.fetch(version=7) == {0: UNSTABLE, 1: -1}
    # Who does not ask for stable offsets gets those before the transaction.
    assert producer.fetch(stable=False) == producer.fetch(version=6) == {0: -1, 1: -1}
    assert producer.fetch_all(stable=False) == {}
    # Once more within the transaction, as after a lost answer, and a later one.
    assert producer.commit({0: 5}, version) == producer.commit({0: 7}, version) == [OK]
    assert producer.end() is OK
    assert producer.fetch() == {0: 7, 1: -1}
    assert producer.commit({0: 9, 1: 3}, version) == [OK, OK]
    assert producer.fetch() == {0: UNSTABLE, 1: UNSTABLE}
    assert producer.fetch(stable=False) == producer.fetch_all(stable=False) | {1: -1} == {0: 7, 1: -1}
    assert producer.end(commit=False) is OK
    assert producer.fetch() == {0: 7, 1: -1}


def test_offsets_of_an_overdue_or_fenced_transaction_never_count(
    served: Listening, producer: Pending
) -> None:
    assert producer.commit({0: 5}) == [OK]
    assert producer.name in end_overdue(served, 61)
    assert producer.end() is ErrorCode.producer_fenced
    assert producer.fetch() == {0: -1, 1: -1}
    assert producer.open() is OK
    assert producer.commit({0: 6}) == [OK]
    with Pending(served, producer.name) as second:
        assert second.open() is OK
        # A zombie adds nothing.
        assert producer.add_offsets() is ErrorCode.producer_fenced
        assert producer.add_offsets(1) is ErrorCode.invalid_producer_epoch
        for version in range(4):
            assert producer.commit({0: 7}, version) == [ErrorCode.invalid_producer_epoch]
        assert second.fetch() == {0: -1, 1: -1}
        assert second.commit({0: 8}) == [OK]
        assert producer.end() is ErrorCode.producer_fenced
        assert second.end() is OK
        assert second.fetch() == {0: 8, 1: -1}


def test_requests_that_are_refused(producer: Pending) -> None:
    mapping = ErrorCode.invalid_producer_id_mapping
    assert producer.add_offsets(producer_id=2**40) is mapping
    assert producer.commit({0: 5}, producer_id=2**40) == [mapping]
    assert producer.commit({0: 5}, group_id="") == [ErrorCode.invalid_group_id]
    for name in ("", "x" * 1025):
        assert producer.add_offsets(transactional_id=name) is ErrorCode.invalid_request
        assert producer.commit({0: 5}, transactional_id=name) == [ErrorCode.invalid_request]
    unknown = ErrorCode.unknown_topic_or_partition
    assert producer.commit({0: 5}, topic="missing") == [unknown]
    assert producer.commit({7: 5, 1: 3}) == [unknown, OK]
    assert producer.commit({0: 5}, metadata="x" * 5000) == [ErrorCode.offset_metadata_too_large]
    assert producer.commit({0: -5}) == [ErrorCode.invalid_request]
    assert producer.end() is OK
    assert producer.fetch() == {0: -1, 1: 3}


def test_offsets_of_a_member_need_its_generation(served: Listening, producer: Pending) -> None:
    with Member(served, producer.name) as member:
        joined = member.enter(group_instance_id="i")
        stated = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        fenced = {**stated, "member_id": "other", "group_instance_id": "i"}
        # Also while the group waits for its leader.
        assert producer.commit({0: 5}, **stated) == [OK]
        member.sync(joined)
        assert producer.commit({0: 6}, **stated) == [OK]
        assert producer.commit({0: 7}, **stated | {"generation_id": 7}) == [ErrorCode.illegal_generation]
        assert producer.commit({0: 7}, **stated | {"member_id": "?"}) == [ErrorCode.unknown_member_id]
        assert producer.commit({0: 7}, **fenced) == [ErrorCode.fenced_instance_id]
        assert producer.end() is OK
        assert producer.fetch() == {0: 6, 1: -1}
        # An earlier client states no member: its transactional id alone fences it.
        assert producer.commit({0: 8}, version=2) == [OK]
        assert producer.end() is OK
        assert producer.fetch() == {0: 8, 1: -1}


def test_a_commit_under_a_lost_claim_adds_nothing(served: Listening, producer: Pending) -> None:
    assert producer.commit({0: 5}) == [OK]
    elsewhere(served, producer.name)
    assert producer.commit({0: 6}) == [ErrorCode.not_coordinator]
    # The first one behind a claim may be from before it.
    loading = ErrorCode.coordinator_load_in_progress
    until("it claims the slot again", lambda: producer.commit({0: 6}) == [loading])
    elsewhere(served, producer.name)
    assert producer.commit({0: 6}, 1) == [ErrorCode.not_coordinator]
    unavailable = ErrorCode.coordinator_not_available
    until("it claims the slot again", lambda: producer.commit({0: 6}, 1) == [unavailable])
    assert producer.fetch(stable=False) == {0: -1, 1: -1}
    assert (producer.end(), producer.end()) == (loading, OK)
    assert producer.fetch() == {0: 5, 1: -1}


def test_a_group_with_pending_offsets_is_neither_deleted_nor_reset(
    served: Listening, producer: Pending
) -> None:
    name, topic_id = producer.name, served.application.topic("orders").topic_id

    def deleted() -> ErrorCode:
        (found,) = producer.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [name]}).results
        return ErrorCode(found.error_code)

    with Member(served, name) as member:
        assert producer.commit({0: 5}) == [OK]
        assert name in listed(member)
        assert deleted() is ErrorCode.non_empty_group
        with pytest.raises(RetryLater, match="an open transaction has offsets of it"):
            served.service.reset_offsets(name, topic_id, {0: 1})
        assert producer.end() is OK
        served.service.reset_offsets(name, topic_id, {0: 1})
        assert producer.fetch() == {0: 1, 1: -1}
        assert deleted() is OK
        assert name not in listed(member)


def test_offsets_within_a_transaction_need_their_permissions(tmp_path: Path) -> None:
    everyone = "User:ANONYMOUS"
    rules = [
        {"principal": everyone, "operations": ["write"], "transactional_ids": ["mine", "no-group"]},
        {"principal": everyone, "operations": ["read"], "groups": ["mine", "theirs"], "topics": ["orders"]},
    ]
    with listening(configured(tmp_path, TOPICS, kafka={**QUICK, "acls": rules})) as found:
        with Pending(found, "mine") as producer:
            assert producer.open() is OK
            assert producer.add_offsets() is OK
            assert producer.commit({0: 5}) == [OK]
            denied = [ErrorCode.topic_authorization_failed]
            assert producer.commit({0: 5}, topic="hidden") == producer.commit({0: 5}, topic="?") == denied
        with Pending(found, "no-group") as producer:
            assert producer.open() is OK
            assert producer.add_offsets() is ErrorCode.group_authorization_failed
            assert producer.commit({0: 5}) == [ErrorCode.group_authorization_failed]
        with Pending(found, "theirs") as producer:
            refused = ErrorCode.transactional_id_authorization_failed
            assert producer.add_offsets() is refused
            assert producer.commit({0: 5}) == [refused]


# --- Real clients.
def consumer_of(served: Listening, group: str, **options: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": served.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            **options,
        }
    )


def processor(served: Listening, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(30)
    return producer


def some(consumer: Consumer, count: int) -> list[Message]:
    """That many records of the input."""
    found: list[Message] = []

    def read() -> bool:
        found.extend(one for one in consumer.consume(count - len(found), 1) if one.error() is None)
        return len(found) >= count

    until(f"{count} records are read", read)
    return found


def process(
    consumer: Consumer, producer: Producer, messages: list[Message], prefix: bytes, *, commit: bool = True
) -> None:
    """One transaction: output for each record, and the offsets."""
    producer.begin_transaction()
    for message in messages:
        producer.produce("output", prefix + (message.value() or b""), partition=message.partition() or 0)
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
    )
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def output(served: Listening, prefix: bytes) -> list[bytes]:
    values = (one.value or b"" for records in served.stored("output").values() for one in records)
    return sorted(value for value in values if value.startswith(prefix))


def test_a_loop_whose_transactions_are_aborted_in_between_is_exactly_once(served: Listening) -> None:
    producer, done = processor(served, "loop"), 0
    for attempt in range(6):
        # A consumer starts from what was committed, as a process that was started again.
        consumer = consumer_of(served, "loop")
        consumer.subscribe(["input"])
        messages = some(consumer, COUNT // 3)
        process(consumer, producer, messages, b"loop-", commit=attempt % 2 == 1)
        done += len(messages) if attempt % 2 == 1 else 0
        assert len(output(served, b"loop-")) == done
        consumer.close()
    assert output(served, b"loop-") == sorted(b"loop-%d" % number for number in range(COUNT))


def test_a_consumer_waits_for_the_offsets_of_an_open_transaction(served: Listening) -> None:
    first, producer = consumer_of(served, "wait"), processor(served, "wait")
    first.subscribe(["input"])
    messages = some(first, 10)
    producer.begin_transaction()
    for message in messages:
        producer.produce("output", b"wait-" + (message.value() or b""), partition=0)
    where = first.position(first.assignment())
    producer.send_offsets_to_transaction(where, first.consumer_group_metadata(), 30)
    first.close()
    second = consumer_of(served, "wait")
    second.subscribe(["input"])

    def assigned() -> bool:
        assert second.poll(0.1) is None
        return len(second.assignment()) == 2

    until("the second is assigned", assigned)
    # It must not read what the transaction has processed.
    assert second.poll(1) is None
    producer.commit_transaction(30)
    rest = some(second, COUNT - 10)
    second.close()
    assert len({one.value() for one in (*messages, *rest)}) == COUNT


def test_a_member_of_an_earlier_generation_commits_nothing(served: Listening) -> None:
    zombie, producer = consumer_of(served, "zombie", **{"max.poll.interval.ms": 6000}), processor(served, "z")
    zombie.subscribe(["input"])
    messages = some(zombie, 10)
    stale = zombie.consumer_group_metadata()
    where = zombie.position(zombie.assignment())
    other = consumer_of(served, "zombie")
    other.subscribe(["input"])
    zombie.unsubscribe()
    until("the other goes on", lambda: other.poll(0.2) is not None)
    producer.begin_transaction()
    for message in messages:
        producer.produce("output", b"zombie-" + (message.value() or b""), partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(where, stale, 30)
    assert refused.value.args[0].txn_requires_abort()
    assert refused.value.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
    producer.abort_transaction(30)
    assert output(served, b"zombie-") == []
    zombie.close()
    other.close()


def test_another_client_commits_offsets_with_its_records(served: Listening) -> None:
    asyncio.run(_aiokafka(served))
    assert output(served, b"aio-") == sorted(b"aio-%d" % number for number in range(COUNT))


async def _aiokafka(served: Listening) -> None:
    consumer = AIOKafkaConsumer(
        "input",
        bootstrap_servers=served.bootstrap,
        group_id="aio",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=served.bootstrap, transactional_id="aio")
    await consumer.start()
    await producer.start()
    try:
        left = COUNT
        while left:
            async with producer.transaction():
                offsets = {}
                for place, records in (await consumer.getmany(timeout_ms=5000, max_records=20)).items():
                    for one in records:
                        await producer.send("output", b"aio-" + one.value, partition=place.partition)
                        left -= 1
                    offsets[place] = records[-1].offset + 1
                await producer.send_offsets_to_transaction(offsets, "aio")
        for number in range(2):
            assert await consumer.committed(AioPartition("input", number)) == COUNT // 2
    finally:
        await producer.stop()
        await consumer.stop()
