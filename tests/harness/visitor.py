"""One worker process that has none of the product's code: its senders use HTTP or Kafka's protocol, or drop
files. It keeps its ledger as the other workers do.

`python -m tests.harness.visitor SPEC.json`. Exit code 0: everything it sent was noted. Without a supervisor
it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.harness.file_sender import FileSender
from tests.harness.http_sender import HttpSender
from tests.harness.kafka_reader import KafkaReader
from tests.harness.kafka_sender import KafkaSender
from tests.harness.ledger_file import LedgerFile

VISITORS = ("http-json", "http-protobuf", "files-jsonl", "files-parquet")
"""Kinds of sending threads in a soak. `kafka-idempotent`, `kafka-plain` and `kafka-reader` need a Kafka port."""


class Visitor:
    """The process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._parent = os.getppid()
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._broken: list[BaseException] = []
        self._ledger = LedgerFile(Path(spec["folder"]), f"worker-{spec['worker']}-0", spec["origin_s"])

    def run(self) -> int:
        """Work until stopped; the exit code."""
        with self._ledger:
            self._ledger.write("start", worker=self._spec["worker"], life=0)
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

    def _sender(self, number: int, kind: Any) -> HttpSender | FileSender | KafkaSender | KafkaReader:
        spec, name = self._spec, f"{self._spec['worker']}.{number}-{kind}"
        if kind == "kafka-reader":
            return KafkaReader(self._ledger, name, spec["servers"], spec["topics"])
        if kind in ("kafka-idempotent", "kafka-plain"):
            return KafkaSender(
                self._ledger, spec["seed"], name, kind, spec["servers"], spec["topics"], spec["burst_max"]
            )
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
    return Visitor(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()


if __name__ == "__main__":
    sys.exit(main())
