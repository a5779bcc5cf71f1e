"""Engines that a test asks for rows: each says besides which data files it read, as the proxy before the bucket has seen it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.support.maven import jars
from tests.support.query_lake import Reads
from tests.support.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from tests.support.trino_server import TrinoServer

STATEMENT_TIMEOUT_S = 200.0
_LOG_TAIL = 3000
Rows = list[tuple[Any, ...]]


class Refused(Exception):
    """The engine did not carry the statement out."""


@dataclass(frozen=True)
class Answer:
    """What came of one statement."""

    rows: Rows
    files: set[str]
    """The data files that were read for it."""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """What the engine itself counts."""


class AskedTrino:
    """A running Trino as a test asks it."""

    def __init__(self, server: TrinoServer, reads: Reads) -> None:
        self._server = server
        self._reads = reads

    def ask(self, statement: str) -> Answer:
        """The rows, and which files were read."""
        self._reads.files()
        rows = [tuple(row) for row in self._server.sql(statement)]
        return Answer(rows, self._reads.files())


def printed(command: str) -> tuple[dict[str, str], list[str]]:
    """The settings and the packages of the command that `archiver tables` prints for Spark."""
    words = shlex.split(command)
    (packages,) = (words[at + 1] for at, word in enumerate(words) if word == "--packages")
    settings = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--conf")
    return settings, packages.split(",")


class AskedSpark:
    """Spark SQL in a process of its own, connected with what `archiver tables` prints."""

    def __init__(self, folder: Path, command: str, reads: Reads) -> None:
        settings, packages = printed(command)
        self._folder = folder
        self._reads = reads
        self._log = folder / "spark.log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
        environ |= {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "TZ": "UTC"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("spark_asked.py")),
                    json.dumps(settings),
                    ",".join(map(str, jars(*packages))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=environ,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STATEMENT_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def ask(self, statement: str) -> Answer:
        """The rows, which files were read, and what its scans say; raises `Refused` with what Spark says."""
        process, into = self._process, self._folder / "rows.arrow"
        assert process.stdin is not None
        assert process.stdout is not None
        self._reads.files()
        process.stdin.write(json.dumps({"sql": statement, "into": str(into)}) + "\n")
        process.stdin.flush()
        # A Spark that hangs is ended, and the empty answer is told with the end of its log.
        limit = threading.Timer(STATEMENT_TIMEOUT_S, process.kill)
        limit.start()
        try:
            line = process.stdout.readline()
        finally:
            limit.cancel()
        assert line, self._log.read_text(errors="replace")[-_LOG_TAIL:]
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        with pa.OSFile(str(into), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        return Answer(list(zip(*columns, strict=True)), self._reads.files(), answer["metrics"])
