"""Runs the archiver as a contender: a daemon with one Kafka source per topic, of which the first
warms it up.

The measurement begins when the second source reaches its cluster. Until then no server listens on
the broker address that this source is configured with. Brokers advertise their own address, so only
the bootstrap requests pass through that port.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import deployment, orders
from bench.peers.contender import Contender
from bench.peers.upstream import COLUMNS
from tests.support.builders.deployment import ROOT
from tests.support.servers.local_server import free_port

_REPORTED = ("value.__raw__", "value.__err__", "kafka.partition", "kafka.offset")


def _triggers(fresh_s: int) -> dict[str, str]:
    """Return triggers for the same commit interval as the sink; partitions idle for half of it are
    archived at once.
    """
    return {
        "start_delay_max": f"{fresh_s * 100}ms",
        "idle_max": f"{fresh_s * 500}ms",
        "complete_delay_max": f"{fresh_s}s",
        "tick": f"{fresh_s}s",
    }


class Door:
    """A loopback port that refuses connections until it is opened and then forwards them to
    `target`.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.port = free_port()
        self._server: socket.socket | None = None

    def open(self) -> None:
        """Start to forward connections."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """Accept no new connections; existing ones end with their clients."""
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            behind = socket.create_connection(self._target)
            for a, b in ((client, behind), (behind, client)):
                threading.Thread(target=_copy, args=(a, b), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


class Archiver(Contender):
    """`archiver serve` with default settings, except for freshness."""

    def settings(self) -> Mapping[str, Any]:
        return {"archive": _triggers(self.fresh_s), "spark": {"master": f"local[{self.cores}]"}}

    def prepare(self, topics: Sequence[str]) -> None:
        configuration = self.configure(topics)
        environ = {"ARCHIVER_CONFIG": str(configuration), "PYTHONPATH": str(ROOT)}
        self._start([sys.executable, "-m", "archiver", "serve"], environ)

    def configure(self, topics: Sequence[str]) -> Path:
        """Write the configuration and return its path."""
        self._doors = {name: Door(self.brokers) for name in topics}
        sources = [
            {"kafka": self._source(name, f"127.0.0.1:{door.port}")} for name, door in self._doors.items()
        ]
        groups = {**self.settings(), "http": {"listen": "127.0.0.1:0"}, "sources": sources}
        document = deployment.document(
            f"sqlite:///{self.tables.database}?timeout=60",
            [deployment.topic(name, 0) for name in topics],
            groups,
        )
        return deployment.write(self.folder, orders.descriptor_set(), document)

    def begin(self, topic: str) -> None:
        self._doors[topic].open()

    def rest(self) -> None:
        """Do nothing: the daemon has no work left for the topic."""

    def read(self, topic: str) -> pa.Table:
        values: Any = self.tables.read(topic, tuple(f"value.{name}" for name in COLUMNS))["value"]
        return pa.table({name: pc.struct_field(values, name) for name in COLUMNS})

    def proofs(self, topic: str) -> Mapping[str, Any]:
        """Count rows whose bytes do not follow from their columns, and distinct offsets."""
        found = self.tables.read(topic, _REPORTED)
        values, kafka = found["value"], found["kafka"]
        places = pa.table({name: pc.struct_field(kafka, name) for name in ("partition", "offset")})
        return {
            **super().proofs(topic),
            "rows_with_bytes_beside_the_columns": _not_null(values, "__raw__"),
            "rows_that_did_not_decode": _not_null(values, "__err__"),
            "distinct_places": places.group_by(["partition", "offset"]).aggregate([]).num_rows,
        }

    def __exit__(self, *exception: object) -> None:
        for door in getattr(self, "_doors", {}).values():
            door.close()
        super().__exit__(*exception)

    def _source(self, topic: str, brokers: str) -> dict[str, Any]:
        return {
            "name": topic,
            "brokers": brokers,
            "topics": topic,
            "discover_interval": "500ms",
            "request_timeout": "5s",
            "properties": {"reconnect.backoff.max.ms": "200"},
        }


def _not_null(values: Any, name: str) -> int:
    column: Any = pc.struct_field(values, name)
    return len(column) - int(column.null_count)
