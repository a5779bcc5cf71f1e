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
    """One way from a topic to a table. Its process ends with the context."""

    unit_us = 1
    """Unit of the timestamps in its table, in microseconds."""

    def __init__(self, brokers: str, folder: Path, cores: int, fresh_s: int, java_options: str = "") -> None:
        """`fresh_s` is the minimum commit interval, for contenders that commit by time;
        `java_options` apply to every JVM.
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
            kill_tree(self._process)  # type: ignore[arg-type]  # only its id is used
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self.tables.close()

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the settings to report with the result."""

    @abstractmethod
    def prepare(self, topics: Sequence[str]) -> None:
        """Start the process, with no work yet."""

    @abstractmethod
    def begin(self, topic: str) -> None:
        """Start to copy the topic's records into the table of that name."""

    @abstractmethod
    def rest(self) -> None:
        """Wait until it has no more work for the last topic."""

    def check(self) -> None:
        """Raise if it cannot go on."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()

    def read(self, topic: str) -> pa.Table:
        """Return its table with the columns of the message."""
        return self.tables.read(topic, COLUMNS)

    def proofs(self, topic: str) -> Mapping[str, Any]:
        """Return other checks of its table, by name."""
        return {"rows_of_the_newest_snapshot": self.tables.rows(topic)}

    def cpu_seconds_before(self, topic: str) -> float:  # noqa: ARG002 - used by subclasses
        """Return the CPU seconds spent on the topic before the start; they are not in
        `cpu_seconds`.
        """
        return 0.0

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of all processes so far, including ended ones."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def log(self) -> str:
        """Return the end of its log."""
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
        """Return the environment of its process, without the user's settings and with its own
        temporary folder.
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
        """Send a JSON object as one line to the program."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
