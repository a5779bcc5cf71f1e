"""Daemons that are killed or paused within a transaction of a Kafka client: it is committed as a whole or not at
all, and tables and audit have what was committed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from tests.support.builders.deployment import Deployment, text
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until
from tests.support.process.serving import Served
from tests.system.test_kafka_listener_served import (
    CLIENT,
    PARTITIONS,
    TOPIC,
    address,
    bootstrap,
    configure,
    coordinator,
    two,
)

pytestmark = [
    pytest.mark.turns(2, 1),
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    configure(made)
    return made


@pytest.fixture
def daemons(deployment: Deployment, tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with two(deployment, tmp_path) as found:
        yield found


def opened(servers: str, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": name, **CLIENT, "message.timeout.ms": 60_000}
    )
    producer.init_transactions(60)
    return producer


def send(producer: Producer, value: bytes, count: int = 5) -> None:
    for number in range(PARTITIONS):
        for _ in range(count):
            producer.produce(TOPIC, value, partition=number)
    assert producer.flush(60) == 0


def committed(servers: str, count: int) -> list[bytes]:
    """What a consumer of committed records reads: `count` values, and nothing more for a moment."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "r", "enable.auto.commit": False, **CLIENT}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []

    def read(wait_s: float) -> bool:
        message = consumer.poll(wait_s)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
        return len(found) >= count

    try:
        until(f"{count} values are read", lambda: read(0.5))
        read(0.5)
    finally:
        consumer.close()
    return sorted(found)


@pytest.mark.spark
def test_a_transaction_is_ended_at_another_daemon_when_its_own_was_killed(
    deployment: Deployment, daemons: tuple[Served, Served]
) -> None:
    servers = ",".join(bootstrap(one) for one in daemons)
    place = coordinator(daemons[0], "id", key_type=1)
    killed = next(one for one in daemons if address(one) == place)
    (left,) = (one for one in daemons if one is not killed)
    producer = opened(servers, "id")
    producer.begin_transaction()
    send(producer, b"kept")
    killed.kill()
    producer.commit_transaction(60)
    producer.begin_transaction()
    send(producer, b"gone")
    producer.abort_transaction(60)
    assert coordinator(left, "id", key_type=1) == address(left)
    kept = [b"kept"] * 5 * PARTITIONS
    assert committed(bootstrap(left), len(kept)) == kept
    left.kill()
    assert [one["value"] for one in deployment.consume(TOPIC)] == [text(one) for one in kept]
    assert deployment.run("archive", "--all").code == 0
    audit = deployment.run("audit", "--deep", "--output", "json")
    assert audit.code == 0, audit
    assert [one["value"] for one in deployment.consume(TOPIC)] == [text(one) for one in kept]


class Ending(WireClient):
    """A producer whose EndTxn is sent by hand."""

    producer_id = epoch = -1

    def open(self, name: str) -> bool:
        body = {
            "transactional_id": name,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        found = self.ask(ApiKey.INIT_PRODUCER_ID, 4, body)
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        return found.error_code is ErrorCode.none


def test_an_end_that_waited_at_a_paused_daemon_ends_nothing(daemons: tuple[Served, Served]) -> None:
    place = coordinator(daemons[0], "id", key_type=1)
    paused = next(one for one in daemons if address(one) == place)
    (other,) = (one for one in daemons if one is not paused)
    producer = opened(",".join(bootstrap(one) for one in daemons), "id")
    producer.begin_transaction()
    send(producer, b"first", 1)
    with WireClient(address(paused)) as stale:
        # The same producer, as the daemon knows it.
        paused.pause()
        producer.commit_transaction(60)
        producer.begin_transaction()
        send(producer, b"second", 1)
        for producer_id in range(20):
            # Its id is the index of an entry; the first ones are topics and claims.
            body = {"transactional_id": "id", "producer_id": producer_id, "producer_epoch": 0}
            stale.send(ApiKey.END_TXN, 3, {**body, "committed": True})
        paused.signal(SIGCONT)
        answers = [int.from_bytes(stale.receive()[-3:-1], "big", signed=True) for _ in range(20)]
    assert ErrorCode.none not in answers
    assert committed(bootstrap(other), PARTITIONS) == [b"first"] * PARTITIONS
    producer.commit_transaction(60)
    everything = sorted([b"first", b"second"] * PARTITIONS)
    assert committed(bootstrap(other), 2 * PARTITIONS) == everything
