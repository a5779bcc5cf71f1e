"""Transactions through the commands and a real Spark: the tables hold exactly the committed records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order

pytestmark = pytest.mark.spark
PLACES = [("orders", 0), ("orders", 1), ("orders", 2), ("clicks", 0), ("clicks", 1), ("files", 0)]


def rows(deployment: Deployment, name: str) -> dict[tuple[int, int], Any]:
    """(partition, offset) → raw value or decoded id, read without the project's code."""
    found: dict[tuple[int, int], Any] = {}
    with catalog_table(deployment, name) as table:
        for task in table.scan().plan_files():
            content: list[Any] = pq.read_table(
                task.file.file_path.removeprefix("file://"), columns=["kafka", "value"]
            ).to_pylist()
            for row in content:
                place = (row["kafka"]["partition"], row["kafka"]["offset"])
                assert place not in found, "twice"
                found[place] = row["value"].get("id", row["value"].get("__raw__"))
    return found


@pytest.mark.timeout(180)
def test_interleaved_transactions(tmp_path: Path, spark_session: SparkSession) -> None:
    deployment = Deployment(tmp_path / "d")
    chance = random.Random(4)
    kept: dict[tuple[str, int, int], int] = {}
    with Driver(deployment) as driver:
        driver.application.intake.writer().close()
        producers = [
            Transactional(driver.application, driver.clock, name, timeout_s=3600) for name in ("a", "b", "c")
        ]
        pending: list[dict[tuple[str, int, int], int]] = [{}, {}, {}]
        number = 0
        for step in range(60):
            who = step % 3
            chosen = chance.sample(PLACES, 3)
            values: dict[tuple[str, int], list[bytes | None]] = {}
            numbers: dict[tuple[str, int], list[int]] = {}
            for place in chosen:
                numbers[place] = list(range(number, number + chance.randint(1, 6)))
                number = numbers[place][-1] + 1
                values[place] = [
                    order(one) if place[0] == "orders" else str(one).encode() for one in numbers[place]
                ]
            for place, base in producers[who].send(values).items():
                pending[who] |= {(*place, base + index): one for index, one in enumerate(numbers[place])}
            if chance.random() < 0.6:
                commit = chance.random() < 0.5
                assert (producers[who].commit() if commit else producers[who].abort()) is None
                kept |= pending[who] if commit else {}
                pending[who] = {}
        for who in (0, 1):
            producers[who].commit()
            kept |= pending[who]
        left_open = pending[2]
        stable = {
            place: driver.application.backlog().stable_offset((driver.topic_id(place[0]), place[1]))
            for place in PLACES
        }
    assert left_open, "one transaction is still open"

    def check(expected: dict[tuple[str, int, int], int]) -> None:
        done = deployment.cli("archive", "--all", "--output", "json")
        assert done.code == 0, done.err
        for topic in ("orders", "clicks"):
            found = {place: int(value) for place, value in rows(deployment, f"shop.{topic}").items()}
            assert found == {
                (partition, offset): one
                for (name, partition, offset), one in expected.items()
                if name == topic
            }
        for topic in ("orders", "clicks", "files"):
            places = {(item["partition"], item["offset"]) for item in deployment.consume(topic)}
            assert places == {(partition, offset) for name, partition, offset in expected if name == topic}
        audit = deployment.cli("audit", "--output", "json")
        assert (audit.code, audit.json()["verdict"]) == (0, "valid"), audit.out

    check({place: one for place, one in kept.items() if place[2] < stable[place[0], place[1]]})
    with Driver(deployment) as driver:
        driver.clock.ahead_s = 3700
        assert driver.application.sequencer.end_overdue(driver.clock.now_us())
    check(kept)
