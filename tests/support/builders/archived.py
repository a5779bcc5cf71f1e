"""A deployment of which a part is archived, for tests that only read it.

`from tests.support.builders.archived import archived` in a test file makes the fixture known there, together
with those of `spark.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.builders.deployment import Deployment, check_present, sample_records

RECORD = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "ingest_timestamp",
    "batch_start",
    "from",
]
"""The fields that `consume` prints, in their order."""
SENT = sample_records(90)
"""Archived."""
MORE = sample_records(30, first=90)
"""Still in intake only."""


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory, spark_session: SparkSession) -> Deployment:
    """Records in archives and tables, and some behind them in intake; tests only read it."""
    made = Deployment(tmp_path_factory.mktemp("commands") / "d")
    acknowledged = made.produce(SENT)
    done = made.cli("archive", "--all", "--output", "json")
    assert done.code == 0, done.err
    acknowledged += made.produce(MORE)
    check_present(made, [*SENT, *MORE], acknowledged)
    return made


def rows_of(deployment: Deployment, topic: str, *arguments: str) -> list[Any]:
    """What `consume` prints."""
    done = deployment.cli("consume", "--topic", topic, *arguments)
    assert done.code == 0, done.err
    return done.lines()
