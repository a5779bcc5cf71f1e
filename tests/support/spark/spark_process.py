"""Spark SQL in a process of its own that a test asks one question after the other: a line of JSON in, a line
of JSON out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.servers import class_data

STATEMENT_TIMEOUT_S = 200.0
_LOG_TAIL = 3000


class Refused(Exception):
    """The engine did not carry the statement out."""


class SparkProcess:
    """One running program of this folder, with its log and what it writes in another. Close it."""

    def __init__(
        self, folder: Path, program: str, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> None:
        """`environ` comes to that of this process, of which nothing about Spark is kept."""
        self._log = folder / "spark.log"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))
        }
        own = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(program)), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**kept, **class_data.for_spark(), **own, **(environ or {})},
            )

    def ask(self, question: Mapping[str, str]) -> dict[str, Any]:
        """The answer; raises `Refused` with what Spark says."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        # A Spark that hangs is ended, and the empty answer is reported with the end of its log.
        limit = threading.Timer(STATEMENT_TIMEOUT_S, process.kill)
        limit.start()
        try:
            line = process.stdout.readline()
        finally:
            limit.cancel()
        assert line, self._log.read_text(errors="replace")[-_LOG_TAIL:]
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def close(self) -> None:
        """End it, and the JVM with it."""
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
