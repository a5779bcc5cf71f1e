"""Other hands on a deployment's tables, with a real tool: Spark SQL and Iceberg's own procedures, in a process of their own.

`from tests.support.foreign_spark import foreign_spark` makes the fixture known in a test file. The process knows nothing of the archiver:
what it may do to a table is what Iceberg's Spark runtime lets it do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.engines import SPARK_PACKAGES
from tests.support.deployment import Deployment
from tests.support.driver import Driver
from tests.support.maven import jars
from tests.support.orders import order
from tests.support.reconciling import left, reconciled

STATEMENT_TIMEOUT_S = 200.0
_LOG_TAIL = 3000

Rows = list[list[Any]]


class Refused(Exception):
    """Spark did not carry the statement out."""


class ForeignSpark:
    """One running Spark for many deployments."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "spark.log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environ |= {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("foreign_spark_sql.py")), ",".join(map(str, jars(*SPARK_PACKAGES)))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=environ,
            )

    def sql(self, deployment: Deployment, statement: str) -> Rows:
        """Run one statement; raises `Refused` with what Spark says."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"folder": str(deployment.root), "sql": statement}) + "\n")
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
        rows: Rows = answer["rows"]
        return rows

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


@pytest.fixture(scope="module")
def foreign_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignSpark]:
    """One for a module's tests: the JVM takes seconds to start."""
    spark = ForeignSpark(tmp_path_factory.mktemp("foreign-spark"))
    yield spark
    spark.close()


@dataclass(frozen=True)
class Aftermath:
    """What became of `clicks`, whose table somebody had in hand; `orders` went on, or there is none."""

    state: str
    """Of the topic, after a round with new records for both."""
    why: str
    partitions: dict[int, Any]
    """The audit's word on each partition after that round."""
    findings: list[tuple[str, str | None]]
    """(id, topic) of what the reconciler tells."""

    @property
    def verdicts(self) -> list[str]:
        """By partition."""
        return [found["verdict"] for found in self.partitions.values()]

    @property
    def removed(self) -> dict[int, Any]:
        """Offsets that the audit calls removed, by partition."""
        return {partition: found["removed"] for partition, found in self.partitions.items() if found["removed"]}


def aftermath(deployment: Deployment) -> Aftermath:
    """One round of both topics. Whatever becomes of the one, the other is archived, complete and valid, and has no finding."""
    with Driver(deployment) as driver:
        driver.send("orders", [order(7)] * 2, 1)
        driver.send("clicks", [b"after"], 0)
        report = driver.archive()
        assert report.topics["orders"].state == "archived", report.topics["orders"]
        found = report.topics["clicks"]
        documents = driver.audit()["partitions"]
    for item in documents:
        if item["topic"] == "orders":
            assert (item["verdict"], item["watermark"]) == ("valid", item["next"]), item
    told = left(reconciled(deployment))
    assert "orders" not in {topic for _, topic in told}, told
    partitions = {item["partition"]: item for item in documents if item["topic"] == "clicks"}
    return Aftermath(found.state, found.why or "", partitions, told)


def goes_on(deployment: Deployment) -> None:
    """Everything that waited is archived, nothing is wrong, and there is no finding."""
    found = aftermath(deployment)
    assert (found.state, found.verdicts, found.findings) == ("archived", ["valid", "valid"], []), found
    with Driver(deployment) as driver:
        driver.check_complete("clicks", "orders")
