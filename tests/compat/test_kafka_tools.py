"""Kafka's own command-line tools through the listener: they create, describe, change and delete topics, delete
records, and abort transactions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from archiver.spark.java import require_java
from intake.records import Record
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.servers.maven import jars

RELEASE = "4.3.1"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
TOOL_S = 100

pytestmark = [pytest.mark.timeout(400), pytest.mark.turns(2)]


class Tools:
    """Runs the tools against one listener."""

    def __init__(self, served: Listening) -> None:
        self.served = served
        # The command for configs is in the broker's jar.
        needed = [f"org.apache.kafka:{name}:{RELEASE}" for name in ("kafka-tools", "kafka_2.13")]
        self._path = os.pathsep.join(map(str, jars(*needed, transitive=True)))

    def run(self, tool: str, *arguments: str) -> str:
        """Standard output of a tool that succeeds."""
        done = self._run(tool, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, tool: str, *arguments: str) -> str:
        """Both outputs of a tool that reports an error."""
        done = self._run(tool, *arguments)
        return done.stdout + done.stderr

    def _run(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        java = [str(require_java(os.environ).executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"]
        command = [*java, self._path, tool, "--bootstrap-server", self.served.bootstrap, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=False)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    root = tmp_path_factory.mktemp("kafka")
    topics = [
        {"name": "orders", "partitions": 3, "archive": {"idle_max": "7s"}},
        {"pattern": "shop.*", "partitions": 2, "retention": "30d"},
    ]
    with listening(configured(root, topics)) as served:
        yield Tools(served)


def test_topics_are_created_grown_listed_and_deleted(tools: Tools) -> None:
    create = ("--create", "--topic")
    tools.run(
        TOPICS, *create, "shop.a", "--config", "retention.ms=86400000", "--config", "segment.bytes=104857600"
    )
    tools.run(TOPICS, *create, "shop.b", "--partitions", "5", "--replication-factor", "3")
    assert {"orders", "shop.a", "shop.b"} <= set(tools.run(TOPICS, "--list").split())
    described = tools.run(TOPICS, "--describe", "--topic", "shop.a")
    assert "PartitionCount: 2" in described
    assert "retention.ms=86400000" in described
    tools.run(TOPICS, "--alter", "--topic", "shop.a", "--partitions", "4")
    assert tools.served.application.topic("shop.a").partitions == 4
    assert "already exists" in tools.refused(TOPICS, *create, "shop.a")
    tools.run(TOPICS, "--delete", "--topic", "shop.b")
    assert "shop.b" not in tools.served.application.backlog().topics_by_name
    assert "name: orders" in tools.refused(TOPICS, "--delete", "--topic", "orders")


def test_configs_are_described_and_changed(tools: Tools) -> None:
    tools.run(TOPICS, "--create", "--topic", "shop.c")
    entity = ("--entity-type", "topics", "--entity-name")
    add = ("--alter", "--add-config")
    tools.run(CONFIGS, *entity, "shop.c", *add, "archive.idle_max=5s,cleanup.policy=compact")
    settings = tools.served.application.settings.topic("shop.c")
    assert settings is not None
    assert settings.archive.idle_max == 5
    described = tools.run(CONFIGS, *entity, "shop.c", "--describe")
    assert "archive.idle_max=5s" in described
    assert "cleanup.policy=compact" in described
    whole = tools.run(CONFIGS, *entity, "shop.c", "--describe", "--all")
    assert f"retention.ms={30 * 86_400_000}" in whole
    tools.run(CONFIGS, *entity, "shop.c", "--alter", "--delete-config", "cleanup.policy")
    assert dict(tools.served.application.topic("shop.c").configs) == {"archive.idle_max": "5s"}
    assert "topics.orders.archive.idle_max" in tools.refused(
        CONFIGS, *entity, "orders", *add, "archive.idle_max=5s"
    )
    assert "less than an hour" in tools.refused(CONFIGS, *entity, "shop.c", *add, "retention.ms=5")
    brokers = tools.run(CONFIGS, "--entity-type", "brokers", "--describe", "--all")
    assert "num.partitions=1" in brokers


def test_a_java_consumer_sees_the_timestamp_type(tools: Tools) -> None:
    created_us = 1_700_000_000_000_000
    entity = ("--entity-type", "topics", "--entity-name", "shop.d", "--alter")
    tools.run(TOPICS, "--create", "--topic", "shop.d", "--partitions", "1")
    tools.served.writer.send("shop.d", Record(None, b"one", (), created_us), 0).result(20)
    tools.run(CONFIGS, *entity, "--add-config", "message.timestamp.type=LogAppendTime")
    for value in (b"two", b"three"):
        tools.served.writer.send("shop.d", Record(None, value, (), created_us), 0).result(20)
    tools.run(CONFIGS, *entity, "--delete-config", "message.timestamp.type")
    tools.served.writer.send("shop.d", Record(None, b"four", (), created_us), 0).result(20)
    read = ("--topic", "shop.d", "--partition", "0", "--offset", "earliest", "--max-messages", "4")
    shown = tools.run(CONSUMER, *read, "--formatter-property", "print.timestamp=true")
    times = [(one.timestamp_us or 0) // 1000 for one in tools.served.stored("shop.d")[0]]
    types = ["CreateTime", "LogAppendTime", "LogAppendTime", "CreateTime"]
    assert times[0] == times[3] == created_us // 1000 < times[1] <= times[2]
    assert shown.split() == [
        text
        for kind, time_ms, value in zip(types, times, ["one", "two", "three", "four"], strict=True)
        for text in (f"{kind}:{time_ms}", value)
    ]


def test_records_below_an_offset_are_deleted(tools: Tools, tmp_path: Path) -> None:
    for partition in (0, 1):
        for _ in range(5):
            tools.served.writer.send("orders", Record(None, b"value"), partition)
    tools.served.writer.flush()
    asked = tmp_path / "offsets.json"
    parts = [
        {"topic": "orders", "partition": partition, "offset": offset}
        for partition, offset in enumerate((3, -1, 1))
    ]
    asked.write_text(json.dumps({"partitions": parts, "version": 1}))
    said = tools.run(DELETE_RECORDS, "--offset-json-file", str(asked))
    assert "orders-0\tlow_watermark: 3" in said
    assert "orders-1\tlow_watermark: 5" in said
    assert "not within the range of offsets" in said
    stored = tools.served.stored("orders")
    assert [[one.offset for one in stored[partition]] for partition in (0, 1)] == [[3, 4], []]


def test_an_open_transaction_is_found_and_aborted(tools: Tools) -> None:
    tools.run(TOPICS, "--create", "--topic", "shop.e", "--partitions", "2")
    producer = Producer(
        {"bootstrap.servers": tools.served.bootstrap, "transactional.id": "billing", "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce("shop.e", b"gone", partition=partition)
    assert producer.flush(30) == 0
    place = ("--topic", "shop.e", "--partition", "1")
    assert "billing" in tools.run(TRANSACTIONS, "list")
    assert "Ongoing" in tools.run(TRANSACTIONS, "describe", "--transactional-id", "billing")
    (shown,) = tools.run(TRANSACTIONS, "describe-producers", *place).splitlines()[1:]
    # Its producer is known, so nothing hangs.
    hanging = ("find-hanging", "--topic", "shop.e", "--max-transaction-timeout", "0")
    assert "billing" not in tools.run(TRANSACTIONS, *hanging)
    tools.run(TRANSACTIONS, "abort", *place, "--start-offset", "0")
    assert not list(tools.served.writer.sequencer.refresh().transactions)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(30)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert tools.served.stored("shop.e") == {0: [], 1: []}
    producer_id, epoch = shown.split()[:2]
    named = ("--producer-id", producer_id, "--producer-epoch", epoch, "--coordinator-epoch", "0")
    tools.run(TRANSACTIONS, "abort", *place, *named)
    wrong = ("--producer-id", producer_id, "--producer-epoch", "9", "--coordinator-epoch", "0")
    assert "invalid producer epoch" in tools.refused(TRANSACTIONS, "abort", *place, *wrong)


def test_a_java_consumer_that_the_daemon_assigns(tools: Tools) -> None:
    tools.run(TOPICS, "--create", "--topic", "shop.assigned")
    producer = Producer({"bootstrap.servers": tools.served.bootstrap})
    for number in range(10):
        producer.produce("shop.assigned", b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    consumed = tools.run(
        CONSUMER,
        *("--topic", "shop.assigned", "--group", "assigned", "--from-beginning"),
        *("--consumer-property", "group.protocol=consumer", "--max-messages", "10", "--timeout-ms", "30000"),
    )
    assert sorted(line for line in consumed.splitlines() if line.isdigit()) == [str(one) for one in range(10)]
    assert "Consumer" in tools.run(GROUPS, "--list", "--type")
    described = tools.run(GROUPS, "--describe", "--group", "assigned")
    assert [line.split()[3:6] for line in described.splitlines() if "shop.assigned" in line] == [
        ["5", "5", "0"]
    ] * 2
    assert "was successful" in tools.run(GROUPS, "--delete", "--group", "assigned")
