"""Do idempotent producers of Kafka's clients store each record once where their epochs matter?

The log forgets a producer that was silent for `intake.producer_idle_max`. Its next batch has a sequence number
above 0. Clients of Kafka raise their epoch then, or ask for a new id, and number from 0. They must not do so
when a batch overtakes the first one of a new producer on the way to another daemon.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from archiver.spark.java import require_java
from tests.support.kafka import kafka_server
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.overtaking import Overtaking
from tests.support.servers.maven import compiled, jars, spark_jars

RELEASE = kafka_server.PACKAGES[0].rsplit(":", 1)[1]
SOURCES = Path(__file__).parent / "idle_producer"
TOPIC = "orders"
PARTITIONS = 3
PATIENCE_S = 30.0

Placed = Sequence[tuple[int, str]]
"""Partition and value of each record."""
Send = Callable[[Placed], None]
"""Send the records, all before the first answer, and wait until each is acknowledged."""

pytestmark = pytest.mark.timeout(240)


@contextmanager
def librdkafka(bootstrap: str) -> Iterator[Send]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 1})
    failed: list[KafkaError] = []

    def done(error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            failed.append(error)

    def send(records: Placed) -> None:
        for partition, value in records:
            producer.produce(TOPIC, value.encode(), partition=partition, on_delivery=done)
        assert producer.flush(PATIENCE_S) == 0
        assert failed == []

    yield send


@contextmanager
def java(bootstrap: str) -> Iterator[Send]:
    needed = [*jars(f"org.apache.kafka:kafka-clients:{RELEASE}"), *spark_jars("slf4j-api")]
    classes = compiled(f"idle-producer/{RELEASE}", SOURCES, needed)
    path = os.pathsep.join(map(str, (classes, *needed)))
    command = [str(require_java(os.environ).executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", path]
    with subprocess.Popen(
        [*command, "IdleProducer", bootstrap, TOPIC],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        written, read = process.stdin, process.stdout

        def send(records: Placed) -> None:
            written.write(" ".join(f"{partition}:{value}" for partition, value in records) + "\n")
            written.flush()
            answer = read.readline().split()
            assert len(answer) == len(records), answer

        # The program ends with its input, which the context closes.
        yield send


def forget_all(served: Listening) -> int:
    """What an archiving round does after `intake.producer_idle_max`; the number of forgotten producers."""
    later_us = served.application.clock.now_us() + 1
    return served.writer.sequencer.forget_producers(later_us, 1000, later_us)


@pytest.mark.parametrize("client", [java, librdkafka], ids=lambda client: client.__name__)
def test_a_forgotten_producer_goes_on(
    client: Callable[[str], AbstractContextManager[Send]], tmp_path: Path
) -> None:
    sent: list[tuple[int, str]] = []

    def records(name: str) -> Placed:
        # Several a partition are on their way when the first one is refused.
        found = [(number % PARTITIONS, f"{name}{number}") for number in range(4 * PARTITIONS)]
        sent.extend(found)
        return found

    path = configured(tmp_path, [{"name": TOPIC, "partitions": PARTITIONS}])
    with listening(path) as served, client(served.bootstrap) as send:
        send(records("a"))
        for name in ("b", "c", "d"):
            assert forget_all(served) > 0
            send(records(name))
            # Without a gap: the state of the producer is the one that its next batch continues.
            send(records(f"{name}-next-"))
        stored = served.stored(TOPIC)
    for number in range(PARTITIONS):
        values = [record.value for record in stored[number]]
        assert values == [value.encode() for partition, value in sent if partition == number]


def test_the_first_batch_of_a_producer_is_overtaken(tmp_path: Path) -> None:
    """The second batch is refused at one daemon, while the first one is stored at another without an answer."""
    records = [(0, f"v{number}") for number in range(6)]
    with Overtaking() as relay, ExitStack() as daemons:
        topics, served = [{"name": TOPIC, "partitions": 1}], []
        for address in relay.addresses:
            config = configured(tmp_path, topics, kafka={"advertised": address})
            served.append(daemons.enter_context(listening(config)))
        relay.start([one.address for one in served])
        with librdkafka(relay.addresses[0]) as send:
            send(records)
        assert relay.has_begun
        stored = served[0].stored(TOPIC)
    assert [record.value for record in stored[0]] == [value.encode() for _, value in records]
