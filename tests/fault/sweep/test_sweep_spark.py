"""Refinement and publishing with real Spark: what the sweep does at every failpoint happens to a driver, a
JVM and Python workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from archiver.runtime import failpoints
from tests.fault.sweep.actors import Host
from tests.fault.sweep.cases import Case, share, spark_cases
from tests.fault.sweep.playground import Ground
from tests.fault.sweep.playing import play

PREFIXES = ("round.", "archive.", "written.", "complete.", "table.", "committed.", "settled.")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("sweep"))


def test_every_point_of_refinement_and_publishing_is_played_with_spark() -> None:
    expected = {
        (name, action)
        for name in failpoints.NAMES
        if name.startswith(PREFIXES)
        for action in ("kill", "pause", "error")
    }
    assert {(case.point, case.action) for case in spark_cases()} == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", share(spark_cases()), ids=str)
def test_with_spark(case: Case, ground: Ground, host: Host, spark_session: SparkSession) -> None:
    play(ground, host, case)
