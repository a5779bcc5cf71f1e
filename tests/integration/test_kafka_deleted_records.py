"""Real Kafka clients delete records, at one of two daemons, from intake and from archives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from intake.records import Record
from intake.write.producer import Producer as TransactionalProducer
from tests.support.builders.driver import refine_here
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [
    {"name": "orders", "partitions": 2, "archive": {"kind": "parquet"}},
    {"name": "fixed", "partitions": 1, "retention": "forever", "archive": {"kind": "parquet"}},
    {"name": "open", "partitions": 1},
]
SPEC: Any = OffsetSpec  # without types


@dataclass(frozen=True)
class Pair:
    """Two daemons of one deployment."""

    one: Listening
    two: Listening

    @property
    def both(self) -> tuple[Listening, Listening]:
        return self.one, self.two


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    path = configured(tmp_path, TOPICS)
    with listening(path) as one, listening(path) as two:
        yield Pair(one, two)


def produce(served: Listening, topic: str, count: int, partition: int = 0) -> None:
    for number in range(count):
        served.writer.send(topic, Record(b"key", b"%d" % number), partition)
    served.writer.flush()


def archive(served: Listening) -> None:
    run = replace(served.application.archiving.round(lambda _: None), refine=refine_here, cores=lambda: 1)
    run.run(everything=True)


def delete(served: Listening, *places: tuple[str, int, int]) -> dict[tuple[str, int], int | str]:
    """The low watermark of each partition, or the name of its error."""
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    found: dict[tuple[str, int], int | str] = {}
    for place, future in admin.delete_records([TopicPartition(*one) for one in places]).items():
        try:
            found[place.topic, place.partition] = future.result(30).low_watermark
        except KafkaException as error:
            found[place.topic, place.partition] = error.args[0].name()
    return found


def read(served: Listening, topic: str, start: int, **options: Any) -> list[int] | str:
    """The offsets that a consumer gets from `start` to the end, or the name of its error."""
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **options,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, f"nothing after {found}"
            error = message.error()
            if error is None:
                offset = message.offset()
                assert offset is not None
                found.append(offset)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                return str(error.name())
    finally:
        consumer.close()


def ends(served: Listening, topic: str) -> tuple[int, int]:
    """The earliest and the latest offset of partition 0."""
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    place = TopicPartition(topic, 0)
    specs = (SPEC.earliest(), SPEC.latest())
    found = [admin.list_offsets({place: spec})[place].result(30).offset for spec in specs]
    return found[0], found[1]


@pytest.mark.parametrize("archived", [0, 5, 10])
def test_records_below_the_offset_are_gone_on_every_daemon(pair: Pair, archived: int) -> None:
    one, two = pair.both
    produce(one, "orders", archived)
    if archived:
        archive(one)
    produce(one, "orders", 10 - archived)
    for served in pair.both:
        # So that both have cached what is deleted.
        assert read(served, "orders", 0) == list(range(10))
    assert delete(two, ("orders", 0, 7)) == {("orders", 0): 7}
    # The other daemon has nothing to ask of the log for this fetch, and learns of it within a second.
    until("the deletion is known", lambda: read(one, "orders", 3) == "_AUTO_OFFSET_RESET")
    for served in pair.both:
        assert ends(served, "orders") == (7, 10)
        assert read(served, "orders", 7) == [7, 8, 9]
        # Also inside of a batch of the producer.
        assert read(served, "orders", 8) == [8, 9]
        assert read(served, "orders", 3) == "_AUTO_OFFSET_RESET"
        assert read(served, "orders", 3, **{"auto.offset.reset": "earliest"}) == [7, 8, 9]
    # The same again, less, and nothing at all: the answer is where the partition begins.
    for below in (7, 2, 0):
        assert delete(one, ("orders", 0, below)) == {("orders", 0): 7}
    assert delete(one, ("orders", 0, 11)) == {("orders", 0): "OFFSET_OUT_OF_RANGE"}
    assert ends(two, "orders") == (7, 10)
    # Up to the end, and on from there.
    assert delete(one, ("orders", 0, OFFSET_END)) == {("orders", 0): 10}
    assert [read(served, "orders", 10) for served in pair.both] == [[], []]
    produce(one, "orders", 2)
    for served in pair.both:
        assert ends(served, "orders") == (10, 12)
        assert read(served, "orders", 10) == [10, 11]
    archive(one)
    assert [read(served, "orders", 10) for served in pair.both] == [[10, 11], [10, 11]]


def test_each_partition_has_its_own_answer(pair: Pair) -> None:
    produce(pair.one, "orders", 4)
    produce(pair.one, "orders", 6, 1)
    produce(pair.one, "fixed", 3)
    places = [("orders", 0, 5), ("orders", 1, 2), ("fixed", 0, 1)]
    assert [delete(pair.one, place)[place[:2]] for place in places] == [
        "OFFSET_OUT_OF_RANGE",
        2,
        "POLICY_VIOLATION",
    ]
    # Nothing to delete needs no permission of the configuration.
    assert delete(pair.one, ("fixed", 0, 0), ("orders", 0, 4), ("orders", 1, 1)) == {
        ("fixed", 0): 0,
        ("orders", 0): 4,
        ("orders", 1): 2,
    }
    assert [len(records) for records in pair.two.stored("orders").values()] == [0, 4]


def test_deleting_records_of_an_open_transaction(pair: Pair) -> None:
    one = pair.one
    produce(one, "open", 2)
    producer = TransactionalProducer.open(one.writer, "mover")
    producer.begin()
    for number in range(4):
        producer.send("open", Record(None, b"%d" % number), 0)
    one.writer.flush()
    assert ends(one, "open") == (0, 6)
    assert delete(one, ("open", 0, 4)) == {("open", 0): 4}
    # A consumer of committed records waits at the first offset that is left.
    assert read(one, "open", 4, **{"isolation.level": "read_committed"}) == []
    assert read(one, "open", 4, **{"isolation.level": "read_uncommitted"}) == [4, 5]
    producer.commit()
    assert read(one, "open", 4, **{"isolation.level": "read_committed"}) == [4, 5]


def test_deleting_needs_the_permission_to_delete(tmp_path: Path) -> None:
    rules = [
        {"principal": "User:ANONYMOUS", "operations": ["all"], "topics": ["mine"]},
        {
            "principal": "User:ANONYMOUS",
            "operations": ["read", "write", "describe"],
            "topics": ["*"],
            "groups": ["*"],
        },
    ]
    topics = [{"name": name, "partitions": 1} for name in ("mine", "theirs")]
    with listening(configured(tmp_path, topics, kafka={"acls": rules})) as served:
        for name in ("mine", "theirs"):
            produce(served, name, 3)
        places = [("mine", 0, 2), ("theirs", 0, 2)]
        assert [delete(served, place)[place[:2]] for place in places] == [2, "TOPIC_AUTHORIZATION_FAILED"]
        assert [len(served.stored(name)[0]) for name in ("mine", "theirs")] == [1, 3]
