"""Runs the Iceberg sink for Kafka Connect as a contender, in a standalone worker."""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from archiver.spark.java import require_java
from bench import orders
from bench.deployment import NAMESPACE
from bench.peers.contender import Contender
from bench.peers.parts import BY_SCHEMA, CONVERTER, sink_classpath, worker_classpath
from tests.support.kafka.mirroring import Cluster
from tests.support.servers.local_server import free_port

START_S = 300.0
"""Generous, for a machine with other load."""
POLL_S = 0.2
POLL_RECORDS = 5_000
"""Ten times Kafka's default: fewer, larger puts."""
_LOGGING = """<Configuration status="WARN">
<Appenders><Console name="out" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class Sink(Contender):
    """A task for each core, with a converter for this one message only."""

    unit_us = 1000
    converter: Mapping[str, str] = {"value.converter": CONVERTER}
    converter_is = "a Java class of ours for this one message"

    def settings(self) -> Mapping[str, Any]:
        return {
            "tasks.max": self.cores,
            "iceberg.control.commit.interval-ms": 1000 * self.fresh_s,
            "iceberg.control.commit.timeout-ms": 3000 * self.fresh_s,
            "offset.flush.interval.ms": 1000 * self.fresh_s,
            "consumer.max.poll.records": POLL_RECORDS,
            "converter": self.converter_is,
        }

    def prepare(self, topics: Sequence[str]) -> None:
        plugin = self.folder / "plugins" / "iceberg"
        plugin.mkdir(parents=True)
        for jar in sink_classpath():
            (plugin / jar.name).symlink_to(jar)
        self._port = free_port()
        bytes_converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
        properties = {
            "bootstrap.servers": self.brokers,
            "key.converter": bytes_converter,
            **self.converter,
            "header.converter": bytes_converter,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.path": str(plugin.parent),
            "plugin.discovery": "service_load",
            "consumer.max.poll.records": POLL_RECORDS,
            "consumer.auto.offset.reset": "earliest",
            # Without new records the worker polls the sink for commits at this interval. Kafka's sample
            # file has 10 s.
            "offset.flush.interval.ms": 1000 * self.fresh_s,
        }
        (self.folder / "worker.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in properties.items())
        )
        (self.folder / "log4j2.xml").write_text(_LOGGING)
        for topic in topics:
            self.tables.create(topic)
            Cluster(self.brokers).create(self._control(topic))
        java = [
            str(require_java(os.environ).executable),
            "-Xmx2g",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}",
        ]
        path = os.pathsep.join(map(str, worker_classpath()))
        self._start(
            [
                *java,
                "-cp",
                path,
                "org.apache.kafka.connect.cli.ConnectStandalone",
                str(self.folder / "worker.properties"),
            ],
            {},
        )
        deadline = time.monotonic() + START_S
        while not self._serves():
            self.check()
            assert time.monotonic() < deadline, self.log()
            time.sleep(POLL_S)

    def begin(self, topic: str) -> None:
        self._connector = self._control(topic)
        catalog = {
            f"iceberg.catalog.{name}": value for name, value in self.tables.java().items() if name != "type"
        }
        config = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(self.cores),
            "topics": topic,
            "iceberg.tables": f"{NAMESPACE}.{topic}",
            "iceberg.catalog": "local",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            **catalog,
            "iceberg.control.topic": self._control(topic),
            "iceberg.control.commit.interval-ms": str(1000 * self.fresh_s),
            "iceberg.control.commit.timeout-ms": str(3000 * self.fresh_s),
            "iceberg.kafka.bootstrap.servers": self.brokers,
        }
        status, said = self._ask("POST", "/connectors", {"name": self._connector, "config": config})
        assert status == 201, said

    def check(self) -> None:
        super().check()
        if hasattr(self, "_connector"):
            status, said = self._ask("GET", f"/connectors/{self._connector}/status")
            assert status != 200 or "FAILED" not in said, f"{said}\n{self.log()}"

    def rest(self) -> None:
        status, said = self._ask("DELETE", f"/connectors/{self._connector}")
        assert status == 204, said
        del self._connector

    def _control(self, topic: str) -> str:
        """Return the unique name of the connector and of its control topic."""
        return f"{self.folder.name}-{topic}"

    def _serves(self) -> bool:
        try:
            return self._ask("GET", "/connectors")[0] == 200
        except OSError:
            return False

    def _ask(self, method: str, path: str, document: Any = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_S)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class SinkBySchema(Sink):
    """The sink with a converter that works from the schema, by DynamicMessage."""

    converter: Mapping[str, str] = {
        "value.converter": BY_SCHEMA,
        "value.converter.descriptor.set": base64.b64encode(orders.descriptor_set()).decode(),
        "value.converter.message": "bench.Order",
    }
    converter_is = "a Java class of ours, by protobuf-java's DynamicMessage"
