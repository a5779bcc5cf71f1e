"""A removal that was undone explains no missing row, however long ago it was and whichever snapshots have
expired since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, catalog_table
from tests.support.catalog.foreign_rows import rewrite

ROUNDS = 3
"""Enough commits of the archiver to expire the snapshot that the rollback made current."""
STEP_S = 1800.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    document = made.document()
    document.setdefault("archive", {}).update(snapshots_max=2, snapshots_age="1s")
    made.write(document)
    with Driver(made) as driver:
        driver.send("clicks", [b"old"] * 5, 0)
        driver.archive()
    return made


def undo(deployment: Deployment, removed: set[int]) -> int:
    """Delete rows externally, then roll the table back. The snapshot that removed them stays, outside of the
    lineage."""
    with catalog_table(deployment, "shop.clicks") as table:
        before = table.metadata.current_snapshot_id
    deleted = rewrite(deployment, "overwrite", lambda offset: offset not in removed)
    with catalog_table(deployment, "shop.clicks") as table, table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(before)
    return deleted


def go_on(deployment: Deployment) -> None:
    for number in range(1, ROUNDS + 1):
        clock = AheadClock()
        clock.ahead_s = number * STEP_S
        with Driver(deployment, clock) as driver:
            driver.send("clicks", [b"new"] * 5, 0)
            assert driver.archive().topics["clicks"].state == "archived"


def audited(deployment: Deployment) -> dict[str, Any]:
    with Driver(deployment) as driver:
        (found,) = (
            item
            for item in driver.audit()["partitions"]
            if (item["topic"], item["partition"]) == ("clicks", 0)
        )
        return dict(found)


def test_a_removal_that_was_undone_is_forgotten_with_the_snapshots_around_it(deployment: Deployment) -> None:
    deleted = undo(deployment, {1, 2})
    assert audited(deployment)["verdict"] == "valid"
    go_on(deployment)
    with catalog_table(deployment, "shop.clicks") as table:
        assert deleted in {snapshot.snapshot_id for snapshot in table.metadata.snapshots}, (
            "this test shows nothing otherwise"
        )
        assert len(table.metadata.snapshots) < ROUNDS + 2, "the lineage is cut"
    found = audited(deployment)
    assert (found["verdict"], found["why"], found["removed"]) == ("valid", None, [])


def test_rows_that_are_lost_are_not_taken_for_those_that_came_back(deployment: Deployment) -> None:
    """As many rows are missing as were removed once: the counts alone would explain them."""
    undo(deployment, {1, 2})
    go_on(deployment)
    rewrite(deployment, "replace", lambda offset: offset not in {16, 17})
    found = audited(deployment)
    assert (found["verdict"], found["missing"], found["removed"]) == ("invalid", [[16, 18]], [])


def test_rows_that_are_lost_are_not_taken_for_those_that_were_removed_before_they_came(
    deployment: Deployment,
) -> None:
    rewrite(deployment, "overwrite", lambda offset: offset not in {1, 2})
    go_on(deployment)
    assert audited(deployment)["removed"] == [[1, 3]]
    rewrite(deployment, "replace", lambda offset: offset != 16)
    found = audited(deployment)
    assert (found["verdict"], found["missing"], found["removed"]) == ("invalid", [[1, 3], [16, 17]], [])
