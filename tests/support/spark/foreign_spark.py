"""External changes of a deployment's tables with a real tool: Spark SQL and Iceberg's own procedures, in a
separate process.

`from tests.support.spark.foreign_spark import foreign_spark` makes the fixture known in a test file. The
process knows nothing of the archiver: what it may do to a table is what Iceberg's Spark runtime lets it do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.engines import SPARK_PACKAGES
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.reconciling import left, reconciled
from tests.support.schema.orders import order
from tests.support.servers.maven import jars
from tests.support.spark.spark_process import SparkProcess

Rows = list[list[Any]]


class ForeignSpark:
    """One running Spark for many deployments."""

    def __init__(self, folder: Path) -> None:
        self._process = SparkProcess(
            folder, "foreign_spark_sql.py", ",".join(map(str, jars(*SPARK_PACKAGES)))
        )

    def sql(self, deployment: Deployment, statement: str) -> Rows:
        """Run one statement; raises `Refused` with what Spark says."""
        rows: Rows = self._process.ask({"folder": str(deployment.root), "sql": statement})["rows"]
        return rows

    def close(self) -> None:
        """End it."""
        self._process.close()


@pytest.fixture(scope="module")
def foreign_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignSpark]:
    """One for a module's tests: the JVM takes seconds to start."""
    spark = ForeignSpark(tmp_path_factory.mktemp("foreign-spark"))
    yield spark
    spark.close()


@dataclass(frozen=True)
class Aftermath:
    """The outcome for `clicks`, whose table an external client changed; `orders` went on, or there is
    none."""

    state: str
    """Of the topic, after a round with new records for both."""
    why: str
    partitions: dict[int, Any]
    """The audit's word on each partition after that round."""
    findings: list[tuple[str, str | None]]
    """(id, topic) of the reconciler's findings."""

    @property
    def verdicts(self) -> list[str]:
        """By partition."""
        return [found["verdict"] for found in self.partitions.values()]

    @property
    def removed(self) -> dict[int, Any]:
        """Offsets that the audit calls removed, by partition."""
        return {
            partition: found["removed"] for partition, found in self.partitions.items() if found["removed"]
        }


def aftermath(deployment: Deployment) -> Aftermath:
    """One round of both topics. With any outcome for the one, the other is archived, complete and valid, and
    has no finding."""
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
    reported = left(reconciled(deployment))
    assert "orders" not in {topic for _, topic in reported}, reported
    partitions = {item["partition"]: item for item in documents if item["topic"] == "clicks"}
    return Aftermath(found.state, found.why or "", partitions, reported)


def goes_on(deployment: Deployment, partitions: int = 2) -> None:
    """Everything that waited is archived, nothing is wrong, and there is no finding."""
    found = aftermath(deployment)
    assert (found.state, found.verdicts, found.findings) == ("archived", ["valid"] * partitions, []), found
    with Driver(deployment) as driver:
        driver.check_complete("clicks", "orders")
