"""Engines that a test asks for rows: each also reports which data files it read, as the proxy before the
bucket has seen it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.support.catalog.query_lake import Reads
from tests.support.objects.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from tests.support.servers.maven import jars
from tests.support.servers.trino_server import TrinoServer
from tests.support.spark.spark_process import SparkProcess

Rows = list[tuple[Any, ...]]


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
        environ = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
            "TZ": "UTC",
        }
        paths = ",".join(map(str, jars(*packages)))
        self._process = SparkProcess(folder, "spark_asked.py", json.dumps(settings), paths, environ=environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def ask(self, statement: str) -> Answer:
        """The rows, which files were read, and what its scans say; raises `Refused` with what Spark says."""
        into = self._folder / "rows.arrow"
        self._reads.files()
        answer = self._process.ask({"sql": statement, "into": str(into)})
        with pa.OSFile(str(into), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        return Answer(list(zip(*columns, strict=True)), self._reads.files(), answer["metrics"])
