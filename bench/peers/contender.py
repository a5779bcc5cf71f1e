"""Defines the base class of contenders: own processes with counted CPU time, and a catalog with a
table per topic.
"""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from bench.peers.tables import Tables
from bench.peers.upstream import COLUMNS
from bench.processes import cpu_seconds
from tests.harness.scene import kill_tree

LOG_TAIL = 4000


class Contender(ABC):
    """One way from a topic to a table. Its process does not outlive the block that it is used in."""

    unit_us = 1
    """Of the timestamps in its table."""

    def __init__(self, brokers: str, folder: Path, cores: int, fresh_s: int, java_options: str = "") -> None:
        """`fresh_s`: how often its table is to change at most, of those that commit by the clock;
        `java_options`: of every JVM.
        """
        folder.mkdir(parents=True)
        self.brokers, self.folder, self.cores, self.fresh_s = brokers, folder, cores, fresh_s
        self._java_options = java_options
        self.tables = Tables(folder)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            kill_tree(self._process)  # type: ignore[arg-type]  # only its id is asked for
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self.tables.close()

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What a reader of the result has to know of how it was set up."""

    @abstractmethod
    def prepare(self, topics: Sequence[str]) -> None:
        """Start it, with nothing to do yet."""

    @abstractmethod
    def begin(self, topic: str) -> None:
        """Let it take in what the topic has; the table of that name gets it."""

    @abstractmethod
    def rest(self) -> None:
        """Wait until it has nothing more to do with the last topic."""

    def check(self) -> None:
        """Raises if it cannot go on."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()

    def read(self, topic: str) -> pa.Table:
        """Its table, the columns of the message."""
        return self.tables.read(topic, COLUMNS)

    def proofs(self, topic: str) -> Mapping[str, Any]:
        """What else is known of its table, by name."""
        return {"rows_of_the_newest_snapshot": self.tables.rows(topic)}

    def cpu_seconds_before(self, topic: str) -> float:  # noqa: ARG002 - whose it was, for those who took any
        """Of this contender's own for the topic, before it began; not among `cpu_seconds`."""
        return 0.0

    def cpu_seconds(self) -> dict[str, float]:
        """So far, of everything that it started, what has ended included."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def log(self) -> str:
        """The end of what it said."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]

    def _start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=self._environ(environ),
            )

    def _environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Of a process of this contender: nothing of the user's settings, and a folder of its own for what is
        in the making.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "ARCHIVER_"))
        }
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        own = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        if self._java_options:
            own["JAVA_TOOL_OPTIONS"] = self._java_options
        return {**kept, **own, **environ}

    def _send(self, asked: Mapping[str, Any]) -> None:
        """Of a program that reads one JSON object a line."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
