"""One worker process that has none of the product's code: its senders use HTTP or Kafka's protocol, or drop
files. It keeps its ledger as the other workers do.

`python -m tests.harness.visitor SPEC.json`. Exit code 0: everything it sent was noted. Without a supervisor
it ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Protocol

from tests.harness.file_sender import FileSender
from tests.harness.group_member import ASSIGNORS, GroupMember
from tests.harness.http_sender import HttpSender
from tests.harness.kafka_loop import LOOP, KafkaLoop
from tests.harness.kafka_reader import KafkaReader, KafkaRereader
from tests.harness.kafka_sender import KafkaSender
from tests.harness.kafka_transactional_sender import KafkaTransactionalSender
from tests.harness.ledger_file import LedgerFile
from tests.harness.offset_observer import OffsetObserver

VISITORS = ("http-json", "http-protobuf", "files-jsonl", "files-parquet")
"""Kinds of sending threads in a soak. Kinds that begin with `kafka-` need a Kafka port."""


class Sending(Protocol):
    """What one thread does."""

    def burst(self) -> object:
        """Send some records, or read some."""

    def close(self) -> None:
        """Come to an end."""


class Visitor:
    """The process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._parent = os.getppid()
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._broken: list[BaseException] = []
        self._life: int = spec.get("life", 0)
        """A worker that was killed has another one."""
        ledger = f"worker-{spec['worker']}-{self._life}"
        self._ledger = LedgerFile(Path(spec["folder"]), ledger, spec["origin_s"])

    def run(self) -> int:
        """Work until stopped; the exit code."""
        with self._ledger:
            self._ledger.write("start", worker=self._spec["worker"], life=self._life)
            threads = [
                threading.Thread(target=self._send, args=(number, kind))
                for number, kind in enumerate(self._spec["senders"])
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self._broken:
                raise self._broken[0]
            self._ledger.write("end")
        return 0

    def _sender(self, number: int, kind: Any) -> Sending:
        spec, name = self._spec, f"{self._spec['worker']}.{number}-{kind}"
        if kind.startswith("kafka-"):
            return self._kafka(name, kind)
        if kind in ("http-json", "http-protobuf"):
            return HttpSender(
                self._ledger,
                spec["seed"],
                name,
                kind,
                tuple(spec["address"]),
                spec["topics"],
                spec["burst_max"],
            )
        inbox = spec["inboxes"][kind]
        partitions = spec["topics"][inbox["topic"]]
        return FileSender(
            self._ledger,
            spec["seed"],
            name,
            kind,
            Path(inbox["folder"]),
            inbox["topic"],
            partitions,
            spec["file_records_max"],
        )

    def _kafka(self, name: str, kind: Any) -> Sending:
        spec, ledger = self._spec, self._ledger
        servers, topics = spec["servers"], spec["topics"]
        if kind in ("kafka-reader", "kafka-reader-uncommitted"):
            uncommitted = kind == "kafka-reader-uncommitted"
            return KafkaReader(ledger, name, servers, topics, "uncommitted" if uncommitted else "committed")
        if kind == "kafka-rereader":
            return KafkaRereader(ledger, name, servers, topics)
        if kind in ASSIGNORS:
            return GroupMember(ledger, name, self._life, kind, servers, topics)
        if kind == LOOP:
            return KafkaLoop(ledger, spec["seed"], name, self._life, servers, topics, spec["outputs"])
        if kind == "kafka-offsets":
            return OffsetObserver(ledger, servers, spec["daemons"], spec["groups"], topics)
        seed, burst_max = spec["seed"], spec["burst_max"]
        if kind == "kafka-transactional":
            return KafkaTransactionalSender(ledger, seed, name, self._life, servers, topics, burst_max)
        return KafkaSender(ledger, seed, name, self._life, kind, servers, topics, burst_max)

    def _send(self, number: int, kind: str) -> None:
        pause_s = self._spec["file_pause_s" if kind.startswith("files-") else "pause_s"]
        try:
            sender = self._sender(number, kind)
            while not (self._stop.is_set() or os.getppid() != self._parent):
                sender.burst()
                self._stop.wait(pause_s)
            sender.close()
        except BaseException as error:  # noqa: BLE001 - reported by the code that joins this thread
            self._broken.append(error)
            self._stop.set()


def main() -> int:
    """The program."""
    # A visitor that does not end is aborted, and says in its log where each of its threads was.
    faulthandler.enable()
    return Visitor(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()


if __name__ == "__main__":
    sys.exit(main())
