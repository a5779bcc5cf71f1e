"""An archive entered its table, and was compacted and expired out of it before the ledger had the commit.

It is killed, and no other archive holds its records.
"""

from __future__ import annotations

from pathlib import Path

from archiver.runtime import failpoints
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.rebuilding import lose_catalog, places_by_duckdb
from tests.support.catalog.foreign_rows import rewrite


def test_streams_read_it_and_a_rebuild_takes_it(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("clicks", [b"a"] * 5, 0)
        driver.archive()
        driver.send("clicks", [b"b"] * 2, 0)
        failpoints.arm("committed.append.before=error")
        assert driver.archive().topics["clicks"].state == "deferred"
    rewrite(deployment, "replace")
    with catalog_table(deployment, "shop.clicks") as table, table.maintenance.expire_snapshots() as expire:
        expire.by_ids(
            [
                item.snapshot_id
                for item in table.metadata.snapshots
                if item.snapshot_id != table.metadata.current_snapshot_id
            ]
        )
    with Driver(deployment) as driver:
        driver.archive()
        (killed,) = driver.application.ledger().topic(driver.topic_id("clicks")).killed.values()
        assert (killed.archive.base, killed.archive.end) == (5, 7)
        driver.check_complete("clicks")
    for stored in deployment.data.glob("intake/**/*.parquet"):
        stored.unlink()  # as cleaning would: everything is archived
    with Driver(deployment) as driver:
        assert [record.value for record in driver.records("clicks")[0]] == [b"a"] * 5 + [b"b"] * 2
    lose_catalog(deployment)
    (rebuilt,) = deployment.cli("reconcile", "--rebuild", "--topic", "clicks", "--output", "json").json()[
        "tables"
    ]
    assert (rebuilt["state"], rebuilt["files"], rebuilt["rows"]) == ("rebuilt", 2, 7), rebuilt
    assert places_by_duckdb(deployment, "shop.clicks") == [(0, offset) for offset in range(7)]
    with Driver(deployment) as driver:
        assert driver.application.ledger().topic(driver.topic_id("clicks")).killed == {}
        driver.archive()
        driver.check_complete("clicks")
