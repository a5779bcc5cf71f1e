"""A worker of Kafka Connect that keeps its configs, offsets and states in topics."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.builders.deployment import Deployment
from tests.support.kafka.java_programs import CONNECT, CONNECT_FILE, java
from tests.support.process.processes import until
from tests.support.servers.local_server import free_port
from tests.support.servers.maven import jars

GROUP = "connect-workers"
CONFIGS, OFFSETS, STATES = "connect-configs", "connect-offsets", "connect-status"
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
REQUEST_TIMEOUT_S = 30.0


class ConnectWorker:
    """One running worker; `plugins` are the classpaths of connectors that have class loaders of their own."""

    def __init__(
        self,
        deployment: Deployment,
        folder: Path,
        servers: str,
        plugins: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        self._port = free_port()
        found = folder.with_name(f"{folder.name}-plugins")
        found.mkdir()
        for name, paths in (plugins or {}).items():
            (found / name).mkdir()
            for path in paths:
                (found / name / path.name).symlink_to(path)
        properties = {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "config.storage.topic": CONFIGS,
            "offset.storage.topic": OFFSETS,
            "offset.storage.partitions": 2,
            "status.storage.topic": STATES,
            "status.storage.partitions": 2,
            **{f"{name}.storage.replication.factor": 1 for name in ("config", "offset", "status")},
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.path": found,
            "plugin.discovery": "service_load",
            "offset.flush.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 0,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "consumer.auto.offset.reset": "earliest",
            "consumer.session.timeout.ms": 6000,
            "consumer.heartbeat.interval.ms": 500,
        }
        file = folder.with_name(f"{folder.name}.properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        classpath = [*jars(*CONNECT, transitive=True), *jars(CONNECT_FILE)]
        self.command = java(deployment, folder, classpath, MAIN, str(file), memory_mb=512)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.command.look()
        self.command.__exit__()

    def ask(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Status and body of the answer; status 0 if none came."""
        assert self.command._process.poll() is None, self.log()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_TIMEOUT_S)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            # Before its own parts are ready, the server inside answers in HTML.
            json_came = answer.getheader("Content-Type", "").startswith("application/json")
            return answer.status, json.loads(text) if json_came else None
        except OSError:
            return 0, None
        finally:
            connection.close()

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, once the worker answers."""

        def created() -> bool:
            status, said = self.ask("PUT", f"/connectors/{name}/config", dict(config))
            # 0, 404, 409 and 500: it starts, or a rebalance is not finished.
            assert status != 400, said
            return status in (200, 201)

        until(f"connector {name} is created", created)

    def until_running(self, name: str) -> None:
        """Wait for the connector and its tasks."""

        def running() -> bool:
            status, said = self.ask("GET", f"/connectors/{name}/status")
            if status != 200:
                return False
            states = [said["connector"]["state"], *(task["state"] for task in said["tasks"])]
            assert "FAILED" not in states, (said, self.log())
            return len(states) > 1 and set(states) == {"RUNNING"}

        until(f"connector {name} runs", running)

    def log(self) -> str:
        """What it has logged."""
        return "".join(self.command.err)
