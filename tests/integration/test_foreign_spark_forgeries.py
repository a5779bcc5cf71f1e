"""Forged rows, written with Spark SQL: the deep audit names offsets and snapshots, and a compaction that
changes nothing stays valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_foreign_spark_tools import Hands
from tests.support.builders.reconciling import archived, reconciled
from tests.support.spark.foreign_spark import ForeignSpark, foreign_spark  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FORGED = "named_struct('__raw__', cast('forged' AS binary))"
MERGED = f"""
MERGE INTO shop.clicks USING (SELECT 1 AS p, 1L AS o) AS forged ON kafka.partition = forged.p AND kafka.offset = forged.o
WHEN MATCHED THEN UPDATE SET key = {FORGED}, headers = array(named_struct('key', 'by', 'value', cast('forger' AS binary)))
"""


def test_forged_rows_are_invalid_and_a_faithful_compaction_is_valid(
    tmp_path: Path,
    foreign_spark: ForeignSpark,  # noqa: F811
    spark_session: SparkSession,
) -> None:
    """One deployment, one session and one deep audit for all kinds, because Spark is slow to start."""
    hands = Hands(foreign_spark, archived(tmp_path / "d"))
    hands.do("CALL system.rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))")
    hands.do(
        f"UPDATE shop.clicks SET value = {FORGED} WHERE kafka.partition = 0 AND kafka.offset = 3", MERGED
    )
    hands.do("ALTER TABLE shop.clicks SET TBLPROPERTIES ('write.update.mode' = 'merge-on-read')")
    hands.do(
        "UPDATE shop.clicks SET kafka.batch_start = 4711L WHERE kafka.partition = 0 AND kafka.offset = 7"
    )
    updated, merged, hidden = [snapshot_id for snapshot_id, _ in hands.snapshots()][-3:]

    done = hands.deployment.cli("audit", "--deep", "--output", "json")
    found = {(item["topic"], item["partition"]): item for item in done.json()["partitions"]}
    assert done.code == 1, done.out
    for partition in (0, 1):
        orders = found["orders", partition]
        assert (orders["verdict"], orders["why"], orders["proof"], orders["altered"]) == (
            "valid",
            None,
            "rows",
            [],
        ), orders
    first, second = found["clicks", 0], found["clicks", 1]
    assert (first["verdict"], first["altered"], first["missing"], first["doubled"]) == (
        "invalid",
        [[3, 4], [7, 8]],
        [],
        [],
    )
    assert f"offsets 3 were altered by snapshot {updated}" in first["why"]
    assert f"offsets 7 were altered by snapshot {hidden}" in first["why"]
    assert (second["verdict"], second["altered"]) == ("invalid", [[1, 2]])
    assert f"offsets 1 were altered by snapshot {merged}" in second["why"]

    findings = [finding for finding, _ in reconciled(hands.deployment).findings]
    assert [(one.id, one.severity, one.topic) for one in findings] == [
        ("foreign-rows", "warning", "clicks")
    ] * 3
    for snapshot_id in (updated, merged, hidden):
        assert sum(f"snapshot {snapshot_id}" in one.what for one in findings) == 1
