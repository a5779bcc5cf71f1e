"""Kafka Streams: a word count with a repartition topic, a state and its changelog."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.builders.deployment import Deployment
from tests.support.kafka.java_programs import RELEASE, STREAMS, cleanup_policies, java
from tests.support.process.processes import Command, until
from tests.support.servers.maven import compiled, jars
from tests.system.test_kafka_listener_served import (
    CLIENT,
    address,
    bootstrap,
    configure,
    coordinator,
    two,
)

SOURCES = Path(__file__).with_name("word_count")
APPLICATION = "wordcount"
LINES, COUNTS = "lines", "counts"
PARTITIONS = 2
REPARTITION, CHANGELOG = f"{APPLICATION}-words-repartition", f"{APPLICATION}-counts-changelog"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turns(5)]


class Words:
    """Sends lines of words, counts the words itself, and reads what the program counted."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **CLIENT})
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **CLIENT,
            }
        )
        self.consumer.assign([TopicPartition(COUNTS, 0, 0)])
        self._lines = 0
        self.sent: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.read = 0

    def send(self, lines: int) -> None:
        for number in range(self._lines, self._lines + lines):
            words = [f"a{number % 7}", f"b{number % 3}", "every"]
            self._producer.produce(LINES, " ".join(words).encode(), partition=number % PARTITIONS)
            self.sent.update(words)
        self._lines += lines
        assert self._producer.flush(60) == 0

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            key, value = message.key(), message.value()
            assert isinstance(key, bytes) and isinstance(value, bytes)
            self.counted[key.decode()] = int.from_bytes(value, "big")
            self.read += 1

    def read_all(self) -> None:
        """Read what there is, when no program writes."""
        _, high = self.consumer.get_watermark_offsets(TopicPartition(COUNTS, 0), timeout=30)

        def at_the_end() -> bool:
            self.poll()
            return self.consumer.position([TopicPartition(COUNTS, 0)])[0].offset >= high

        until("all counts are read", at_the_end)

    def low(self, topic: str) -> list[int]:
        """The first offset of each partition that can be read."""
        found = []
        for partition in range(PARTITIONS):
            low, _ = self.consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            found.append(low)
        return found


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_word_count(guarantee: str, tmp_path: Path) -> None:
    topics = [{"name": LINES, "partitions": PARTITIONS}, {"name": COUNTS, "partitions": 1}]
    deployment = Deployment(tmp_path / "d", overrides={"topics": topics})
    configure(deployment, group_initial_rebalance_delay="100ms")
    needed = jars(*STREAMS, transitive=True)
    classpath = [compiled(f"word-count/{RELEASE}", SOURCES, needed), *needed]

    with two(deployment, tmp_path) as daemons:
        servers = ",".join(map(bootstrap, daemons))

        def program(name: str) -> Command:
            arguments = (servers, APPLICATION, str(tmp_path / name / "state"), guarantee, LINES, COUNTS)
            return java(deployment, tmp_path / name, classpath, "WordCount", *arguments)

        words = Words(servers)

        def counted(one: Command, enough: Any) -> None:
            def holds() -> bool:
                assert one._process.poll() is None, "".join(one.err)
                words.poll()
                return bool(enough())

            try:
                until("the words are counted", holds)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{words.counted}\n{words.sent}\n{''.join(one.err)}") from None

        with program("first") as one:
            words.send(200)
            counted(one, lambda: words.counted == words.sent)
            assert cleanup_policies(servers, CHANGELOG) == {"compact"}
            counted(one, lambda: max(words.low(REPARTITION)) > 0)
            place = coordinator(daemons[0], APPLICATION)
            killed = next(daemon for daemon in daemons if address(daemon) == place)
            words.send(100)
            killed.kill()
            words.send(100)
            # At least once: a task whose commit was lost counts its records again.
            exact = guarantee == "exactly_once_v2"
            counted(one, lambda: words.counted == words.sent if exact else words.counted >= words.sent)
            assert one.end() == 0, "".join(one.err)
        words.read_all()
        before, sent = words.counted.copy(), words.sent.copy()
        # Its state is in the changelog only.
        with program("second") as one:
            words.send(100)
            counted(one, lambda: words.counted - before == words.sent - sent)
            assert one.end() == 0, "".join(one.err)
        words.read_all()
        assert words.counted - before == words.sent - sent
        words.consumer.close()
