"""The Java classes of Iceberg as the judge of control events: compiled once per release, run as a process.

Owns the way to them: which packages a release needs. Needs a Java runtime (the one that Spark needs) and no
JDK.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archiver.spark.java import require_java
from tests.support.servers.maven import compiled, jars, spark_jars

SOURCES = Path(__file__).resolve().parents[2] / "compat" / "event_judge"
AVRO_OF = {"1.12.0": "1.12.2", "1.10.1": "1.12.0"}
"""Releases of Iceberg, each with the Avro that its core asks for."""
CURRENT, OLDER = AVRO_OF
"""The newest release, and one that knows no `table_uuid`."""
TIMEOUT_S = 100

_ICEBERG = ("kafka-connect-events", "core", "api", "common", "bundled-guava")
_MEMORY = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Verdicts:
    """What the judge said: its exit code (0: it read everything) and a document for each event."""

    code: int
    documents: list[dict[str, Any]]

    @property
    def events(self) -> list[Any]:
        """The content of each event as Java understood it; None where it refused one."""
        return [document.get("event") for document in self.documents]

    @property
    def errors(self) -> list[str]:
        """Why events were refused."""
        return [document["error"] for document in self.documents if "error" in document]


@dataclass(frozen=True)
class Judge:
    """The judge with the classes of one release."""

    release: str
    classpath: tuple[Path, ...]

    def read(self, *files: Path, options: Sequence[str] = ("--strict",)) -> Verdicts:
        """Read events; `--strict` also refuses what a correct writer would not write."""
        done = self._run("judge", *options, *map(str, files))
        assert done.returncode in (0, 1), done.stderr
        return Verdicts(done.returncode, [json.loads(line) for line in done.stdout.split("\n") if line])

    def read_stream(self, file: Path) -> Verdicts:
        """Read what `ledger events --raw` wrote."""
        return self.read(file, options=("--strict", "--stream"))

    def write(self, cases: Sequence[dict[str, Any]], folder: Path) -> None:
        """Write NAME.bin and NAME.json of each case (a golden file's `name`, `event`, `table_schema` and
        `partition_spec`)."""
        listed = folder / "cases.json"
        listed.write_text(json.dumps(cases), encoding="utf-8")
        done = self._run("gen", str(folder), str(listed))
        assert done.returncode == 0, done.stderr

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        java = str(require_java(os.environ).executable)
        classes = os.pathsep.join(map(str, self.classpath))
        return subprocess.run(
            [java, *_MEMORY, "-Dfile.encoding=UTF-8", "-cp", classes, "eventjudge.Main", *arguments],
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )


def judge(release: str) -> Judge:
    """The judge of a release; fetched and compiled unless that was done before."""
    iceberg = [f"org.apache.iceberg:iceberg-{name}:{release}" for name in _ICEBERG]
    needed = jars(
        *iceberg, f"org.apache.avro:avro:{AVRO_OF[release]}", "com.github.ben-manes.caffeine:caffeine:3.2.2"
    )
    needed += spark_jars("jackson-annotations", "jackson-core", "jackson-databind", "slf4j-api")
    return Judge(release, (compiled(f"event-judge/{release}", SOURCES, needed), *needed))
