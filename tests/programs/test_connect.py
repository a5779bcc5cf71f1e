"""Kafka Connect: a worker with a file source and Iceberg's sink, both exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.builders.deployment import Deployment
from tests.support.kafka.connect_worker import CONFIGS, GROUP, OFFSETS, STATES, ConnectWorker
from tests.support.kafka.java_programs import cleanup_policies, iceberg_rows, iceberg_sink
from tests.support.process.processes import until
from tests.support.process.serving import Served
from tests.system.test_kafka_listener_served import CLIENT, address, bootstrap, configure, coordinator, two

TOPIC = "lines"
CONTROL = "control"
SOURCE, SINK = "source", "sink"
PATIENCE_S = 200.0
"""A worker begins slowly on a busy machine."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turns(5, 2)]


class Lines:
    """Appends numbered lines to a file, and reads what is in the topic."""

    def __init__(self, file: Path, servers: str) -> None:
        self._file = file
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **CLIENT,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.written: list[str] = []
        self.read: list[str] = []

    def write(self, count: int) -> None:
        lines = [f"line {number}" for number in range(len(self.written), len(self.written) + count)]
        with self._file.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        self.written += lines

    def poll(self) -> None:
        for message in self._consumer.consume(200, 0.2):
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.read.append(value.decode())

    def until_read(self, worker: ConnectWorker, more: int = 0) -> None:
        """Wait until all is in the topic; so many more lines are written until then."""
        enough = len(self.written) + more

        def all_read() -> bool:
            worker.until_running(SOURCE)
            self.write(min(20, enough - len(self.written)))
            self.poll()
            return len(self.read) >= enough

        try:
            until("every line is in the topic", all_read, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{len(self.read)} of {len(self.written)}\n{worker.log()}"
            ) from None
        assert self.read == self.written

    def until_stored(self, worker: ConnectWorker, table: Path) -> None:
        """Wait until the sink has written all of them."""

        def all_stored() -> bool:
            worker.until_running(SINK)
            return len(iceberg_rows(table, "offset")) >= len(self.written)

        try:
            until("every line is in the table", all_stored, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{worker.log()}") from None

    def close(self) -> None:
        for _ in range(3):
            self.poll()
        assert self.read == self.written
        self._consumer.close()


def test_every_line_of_a_file_is_in_topic_and_table_once(tmp_path: Path) -> None:
    archive = {"kind": "iceberg", "catalog": "local", "table": "shop.lines"}
    topics = [
        {"name": TOPIC, "partitions": 1, "archive": archive},
        {"name": CONTROL, "partitions": 1, "archive": {"kind": "none"}},
    ]
    deployment = Deployment(tmp_path / "d", overrides={"topics": topics})
    configure(deployment, group_initial_rebalance_delay="100ms")
    file = tmp_path / "lines.txt"
    source = {
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(file),
        "topic": TOPIC,
        "exactly.once.support": "required",
    }
    warehouse = tmp_path / "warehouse"
    table = warehouse / "db" / "lines"
    with two(deployment, tmp_path) as daemons:
        servers = ",".join(map(bootstrap, daemons))
        sink = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": "1",
            "topics": TOPIC,
            "iceberg.tables": "db.lines",
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.catalog": "local",
            "iceberg.catalog.type": "hadoop",
            "iceberg.catalog.warehouse": str(warehouse),
            "iceberg.control.topic": CONTROL,
            "iceberg.control.commit.interval-ms": "1000",
            "iceberg.control.commit.timeout-ms": "5000",
            "iceberg.kafka.bootstrap.servers": servers,
            # A line becomes a row with its offset.
            "transforms": "hoist,insert",
            "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
            "transforms.hoist.field": "line",
            "transforms.insert.type": "org.apache.kafka.connect.transforms.InsertField$Value",
            "transforms.insert.offset.field": "offset",
        }
        plugins = {"iceberg": iceberg_sink()}
        lines = Lines(file, servers)
        lines.write(100)
        with ConnectWorker(deployment, tmp_path / "first", servers, plugins) as worker:
            worker.create(SOURCE, source)
            worker.create(SINK, sink)
            lines.until_read(worker)
            lines.until_stored(worker, table)
            assert cleanup_policies(servers, CONFIGS, OFFSETS, STATES) == {"compact"}
            place = coordinator(daemons[0], GROUP)
            killed = next(daemon for daemon in daemons if address(daemon) == place)
            lines.write(100)
            killed.kill()
            lines.until_read(worker, 300)
            lines.write(100)
        # Killed as well: the next one has the connector and its place from the topics.
        with ConnectWorker(deployment, tmp_path / "second", servers, plugins) as worker:
            lines.until_read(worker, 100)
            lines.until_stored(worker, table)
            lines.close()
            assert iceberg_rows(table, "offset", "line") == list(enumerate(lines.written))
    # The listener's daemons take records only; this one archives them, too.
    with Served(deployment, scratch=tmp_path / "archiving") as daemon:
        daemon.until_ready()
        daemon.until_archived(TOPIC, len(lines.written))
        assert daemon.stop() == 0
