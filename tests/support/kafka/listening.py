"""A Kafka listener over a real deployment in this process: local folder, SQLite, writer, and no daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.kafka.service import KafkaService
from archiver.stream.records import StreamRecord
from intake.write.writer import IntakeWriter
from tests.support.kafka.handing_over import WorkersInThreads

WORKERS = "ARCHIVER_TESTS_WORKERS"
"""Variable with a number of workers that serve the connections of every listener of the tests."""
QUICK: Mapping[str, Any] = {"delay_max": "20ms", "close_timeout": "10s"}


@dataclass(frozen=True)
class Listening:
    """The parts of an open listener."""

    application: Application
    writer: IntakeWriter
    service: KafkaService
    workers: WorkersInThreads | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for clients."""
        assert self.service.server.address is not None
        return self.service.server.address

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return "{}:{}".format(*self.address)

    def stored(self, topic: str) -> dict[int, list[StreamRecord]]:
        """Every committed record of a topic, by partition."""
        state = self.application.topic(topic)
        stream = self.application.stream()
        return {number: list(stream.read(state.topic_id, number)) for number in range(state.partitions)}


def configured(root: Path, topics: Sequence[Mapping[str, Any]], **groups: Any) -> Path:
    """The configuration file of a deployment in `root` with a listener on a free port."""
    document = {
        "cluster": "lab",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "meta/log.db"}},
        "topics": list(topics),
    } | groups
    document["kafka"] = {"listen": "127.0.0.1:0"} | groups.get("kafka", {})
    document["intake"] = dict(QUICK) | groups.get("intake", {})
    path = root / "archiver.yaml"
    root.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@contextmanager
def listening(path: Path, workers: int = 0) -> Iterator[Listening]:
    """Open the listener of a configuration file, and close all of it again."""
    application = Application(load_settings(path, {}), {}, lasting=True)
    try:
        with listening_of(application, workers) as found:
            yield found
    finally:
        application.close()


@contextmanager
def listening_of(application: Application, workers: int = 0) -> Iterator[Listening]:
    """Open the listener of an application, and close it again. With `workers`, threads as these serve its
    connections.
    """
    settings = application.settings.kafka
    assert settings is not None
    application.warm()
    writer = application.intake.writer()
    with ExitStack() as parts:
        count = workers or int(os.environ.get(WORKERS, "0"))
        pool = parts.enter_context(WorkersInThreads(application, count)) if count else None
        service = KafkaService(settings, application, writer, 1.0, settings.connections_max, pool)
        try:
            service.start()
            yield Listening(application, writer, service, pool)
        finally:
            service.close_intake()
            writer.close()
            # As the daemon: its workers end before it.
            parts.close()
            service.stop(5)
