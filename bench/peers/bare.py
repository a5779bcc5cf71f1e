"""Runs the libraries alone, as the lower bound of the work in Python without guarantees."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.contender import Contender
from bench.peers.upstream import PARTITIONS
from tests.support.builders.deployment import ROOT


class Libraries(Contender):
    """A consumer, ptars and pyarrow in a process per core."""

    def settings(self) -> Mapping[str, Any]:
        return {"processes": self.cores, "decoder": "ptars", "check": "encoded again and compared"}

    def prepare(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self.tables.create(topic)
        settings = {
            "folder": str(self.folder),
            "brokers": self.brokers,
            "partitions": PARTITIONS,
            "cores": self.cores,
        }
        self._start(
            [sys.executable, "-m", "bench.peers.bare_program", json.dumps(settings)],
            {"PYTHONPATH": str(ROOT)},
        )

    def begin(self, topic: str) -> None:
        self._send({"topic": topic})

    def rest(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["files"] == self.cores, self.log()
