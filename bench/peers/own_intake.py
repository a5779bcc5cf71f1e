"""Runs the archiver as a contender whose records are already in its intake files when it begins.

The records are read from the peers' topic and sent through the library, as Arrow batches, before
the daemon starts (`sender_program`). The cost of sending is reported separately, and a second ratio
includes it. The measurement begins with a reload that removes the setting that blocks the topic's archives.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import deployment, orders
from bench.peers.ours import Archiver
from bench.peers.upstream import PARTITIONS
from tests.support.builders.deployment import ROOT
from tests.support.servers.local_server import free_port

HELD = {"min_bytes": -1}
"""Archives of a topic with this setting are never due."""
PATIENCE_S = 120.0
POLL_S = 0.2


class OwnIntake(Archiver):
    """`archiver serve` with records that are already in intake files, and no source."""

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "http": {"listen": f"127.0.0.1:{self._port}"}}

    def configure(self, topics: Sequence[str]) -> Path:
        self._port = free_port()
        self._released: set[str] = set()
        self._topics = list(topics)
        return self._write()

    def prepare(self, topics: Sequence[str]) -> None:
        configuration = self.configure(topics)
        asked = json.dumps(
            {"configuration": str(configuration), "brokers": self.brokers, "topics": self._topics}
        )
        environ = {"PYTHONPATH": str(ROOT)}
        sender = [sys.executable, "-m", "bench.peers.sender_program", asked]
        reported = subprocess.run(
            sender, env=self._environ(environ), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        self._sent: dict[str, dict[str, float]] = json.loads(reported)
        self._start(
            [sys.executable, "-m", "archiver", "serve"], {**environ, "ARCHIVER_CONFIG": str(configuration)}
        )
        self._until_ready()

    def begin(self, topic: str) -> None:
        self._released.add(topic)
        self._write()
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def cpu_seconds_before(self, topic: str) -> float:
        return self._sent[topic]["cpu_s"]

    def _write(self) -> Path:
        topics = [deployment.topic(name, PARTITIONS) for name in self._topics]
        for topic in topics:
            if topic["name"] not in self._released:
                topic["archive"] |= HELD
        document = deployment.document(
            f"sqlite:///{self.tables.database}?timeout=60", topics, self.settings()
        )
        return deployment.write(self.folder, orders.descriptor_set(), document)

    def _until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.check()
            assert time.monotonic() < deadline, self.log()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=POLL_S):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
