"""Spark Structured Streaming: a query with a checkpoint reads a topic, and each record is in its table once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from archiver.catalog.engines import SPARK_PACKAGES
from tests.programs import streaming_program
from tests.support.builders.deployment import Deployment
from tests.support.kafka.java_programs import SPARK_SOURCE, iceberg_rows
from tests.support.process.processes import Command, until
from tests.support.servers.maven import jars
from tests.system.test_kafka_listener_served import CLIENT, bootstrap, configure, leader, two

TOPIC = "clicks"
PARTITIONS = 2
READER = "streaming"
PATIENCE_S = 240.0
"""A query of Spark begins slowly on a busy machine."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.turns(5, 4)]

Row = tuple[int, int, str, str]
"""Partition, offset, key and value."""


class Sender:
    """Sends numbered records and knows where each is."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **CLIENT})
        self.rows: list[Row] = []

    def send(self, count: int) -> None:
        for number in range(len(self.rows), len(self.rows) + count):
            key, value = f"k{number % 7}", f"value {number}"
            self._producer.produce(
                TOPIC, value, key, partition=number % PARTITIONS, on_delivery=self._delivered
            )
        assert self._producer.flush(60) == 0

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
        assert partition is not None and offset is not None
        assert isinstance(key, bytes) and isinstance(value, bytes)
        self.rows.append((partition, offset, key.decode(), value.decode()))


def stored(folder: Path) -> list[Row]:
    """The rows of the table, in order of partition and offset."""
    return iceberg_rows(folder / "warehouse" / "db" / "rows", "partition", "offset", "key", "value")


def test_each_record_is_in_the_table_once(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"topics": [{"name": TOPIC, "partitions": PARTITIONS}]})
    configure(deployment, group_initial_rebalance_delay="100ms")
    folder = tmp_path / "query"
    packages = ",".join(map(str, jars(*SPARK_PACKAGES, *SPARK_SOURCE)))

    with two(deployment, tmp_path) as daemons:
        servers = ",".join(map(bootstrap, daemons))

        def program(name: str) -> Command:
            command = [sys.executable, streaming_program.__file__]
            arguments = (servers, READER, TOPIC, str(folder), packages)
            return Command(deployment, *arguments, scratch=tmp_path / name, program=command)

        def until_rows(one: Command, least: int) -> None:
            def holds() -> bool:
                assert one._process.poll() is None, "".join(one.err)
                one.look()
                return len(stored(folder)) >= least

            try:
                until(f"{least} rows are in the table", holds, PATIENCE_S)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{''.join(one.err)}") from None

        sender = Sender(servers)
        sender.send(150)
        with program("first") as one:
            until_rows(one, 150)
            place = leader(bootstrap(daemons[0]), READER)
            killed = next(daemon for daemon in daemons if bootstrap(daemon) == place)
            sender.send(150)
            killed.kill()
            sender.send(300)
            until_rows(one, 350)
            # Killed here, within a batch or between two.
        with program("second") as one:
            sender.send(100)
            until_rows(one, len(sender.rows))
            assert one.end() == 0, "".join(one.err)
        assert stored(folder) == sorted(sender.rows)
