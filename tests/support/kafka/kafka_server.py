"""The real Kafka broker of the tests: one node in KRaft mode, in a process of its own on loopback ports that
the system chose.

Ended and started again at its address, it knows its records. Internal topics have one replica, because there
is one broker.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archiver.spark.java import require_java
from tests.support.servers import class_data
from tests.support.servers.local_server import LocalServer, free_port
from tests.support.servers.maven import jars

PACKAGES = ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
"""The second is of the release of log4j that the first brings along; without it nothing would be said."""
START_TIMEOUT_S = 90.0
_CLUSTER = "dGVzdHMtb2YtYXJjaGl2ZQ"
_MEMORY = ("-Xmx320m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SETTINGS: dict[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "num.partitions": 1,
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # A broker that was killed may register again when its session has ended, which takes 9 s otherwise.
    "broker.session.timeout.ms": 5000,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.election.timeout.ms": 200,
    "controller.quorum.election.backoff.max.ms": 100,
    # Compaction and retention within a test's patience.
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 0,
    "log.initial.task.delay.ms": 500,
    "log.message.timestamp.after.max.ms": 2**62,
    "log.retention.ms": -1,
}
_LOGGING = """<Configuration status="WARN"><Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class KafkaServer(LocalServer):
    """One broker, its data below `folder`. It starts in 3 to 6 s."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        listener: str = "PLAINTEXT",
        java: Sequence[str] = _MEMORY,
    ) -> None:
        """`settings` are added to those of every test; `listener`: the protocol that clients speak; `java`:
        options of its virtual machine, those of tests start fast and compile little.
        """
        super().__init__("Kafka")
        self._folder = folder
        self._settings = dict(settings or {})
        self._listener = listener
        self._java = java
        self._topics = 0

    @property
    def brokers(self) -> str:
        """Where clients begin."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """Where its partitions lie, each in a folder of its name."""
        return self._folder / "data"

    def new_name(self, what: str = "topic") -> str:
        """A unique name for a topic."""
        self._topics += 1
        return f"{what}-{os.getpid()}-{self._topics}"

    def _started(self, port: int) -> bool:
        controller = free_port()
        self._folder.mkdir(parents=True, exist_ok=True)
        properties, logging = self._folder / "server.properties", self._folder / "log4j2.xml"
        logging.write_text(_LOGGING)
        lines = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{self._listener}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"{self._listener}://127.0.0.1:{port}",
            "inter.broker.listener.name": self._listener,
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{self._listener}:{self._listener}",
            "log.dirs": self.data,
            **self._settings,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        path = ":".join(str(jar) for jar in jars(*PACKAGES, transitive=True))
        java = [
            str(require_java(os.environ).executable),
            *self._java,
            *class_data.options("kafka"),
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            path,
        ]
        if not (self.data / "meta.properties").exists():
            asked = [
                *java,
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                _CLUSTER,
                "--config",
                str(properties),
            ]
            subprocess.run(asked, check=True, capture_output=True, timeout=START_TIMEOUT_S)
        return self._run(
            [*java, "kafka.Kafka", str(properties)], port, lambda: _listens(port), START_TIMEOUT_S
        )


def admin(server: KafkaServer, **properties: str) -> Any:
    """The administrative client of a test."""
    from confluent_kafka.admin import AdminClient

    return AdminClient(
        {
            "bootstrap.servers": server.brokers,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
    )


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
