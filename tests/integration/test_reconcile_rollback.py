"""A table that was rolled back externally is reported, and never repaired unasked.

After an operator asked for the takeover, every record is in the table once again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater
from reconcile.repair.run import Fix
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.reconciling import (
    archived,
    control_tail,
    fixed,
    left,
    metadata_location,
    others_go_on,
    reconciled,
    roll_back,
)
from tests.support.catalog.foreign_rows import rewrite

ROLLED_BACK = [("rolled-back", "clicks")]
_UNASKED: tuple[Fix, ...] = ("nothing", "safe")
POINTS = [name for name in failpoints.NAMES if name.startswith("restate.")]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return archived(tmp_path / "d")


def archive_again(deployment: Deployment, values: int = 9) -> None:
    """The next round restores what is missing; the audit is valid and every record is there once."""
    with Driver(deployment) as driver:
        assert driver.archive().topics["clicks"].state == "archived"
        driver.check_complete("clicks", "orders")
        assert [len(driver.records("clicks")[partition]) for partition in (0, 1)] == [values, 3]
    with catalog_table(deployment, "shop.clicks") as table:
        rows = table.scan().to_arrow()
    found = sorted((row["partition"], row["offset"]) for row in rows["kafka"].to_pylist())
    assert found == [(0, offset) for offset in range(values)] + [(1, offset) for offset in range(3)]
    assert left(reconciled(deployment)) == []


def test_it_is_reported_and_never_repaired_unasked(deployment: Deployment) -> None:
    roll_back(deployment)
    before = metadata_location(deployment), control_tail(deployment)
    for fix in _UNASKED:
        report = reconciled(deployment, fix)
        assert (left(report), fixed(report), report.exit_code) == (ROLLED_BACK, [], 1)
    assert (metadata_location(deployment), control_tail(deployment)) == before
    others_go_on(deployment)


def test_t4_taken_over_what_is_missing_is_archived_again(deployment: Deployment) -> None:
    roll_back(deployment)
    report = reconciled(deployment, "everything", "clicks")
    assert (left(report), fixed(report), report.exit_code) == ([], ROLLED_BACK, 0)
    with Driver(deployment) as driver:
        assert driver.watermarks("clicks") == {0: 5, 1: 3}, "the ledger is lowered, in the open"
        assert driver.audit()["verdict"] == "valid"
    archive_again(deployment)


def test_repaired_twice_is_repaired_once(deployment: Deployment) -> None:
    roll_back(deployment)
    assert fixed(reconciled(deployment, "everything")) == ROLLED_BACK
    before = metadata_location(deployment), control_tail(deployment)
    report = reconciled(deployment, "everything")
    assert (report.findings, report.exit_code) == ([], 0)
    assert (metadata_location(deployment), control_tail(deployment)) == before
    archive_again(deployment)


def test_set_back_again_and_again(deployment: Deployment) -> None:
    """Each takeover is of the newest evidence; offsets that an earlier one abandoned never count again."""
    for values in (9, 12):
        roll_back(deployment)
        assert fixed(reconciled(deployment, "everything")) == ROLLED_BACK
        if values == 12:
            with Driver(deployment) as driver:
                driver.send("clicks", [b"d"] * 3, 0)
        archive_again(deployment, values)


def test_rolled_forward_again_nothing_has_to_be_done(deployment: Deployment) -> None:
    roll_back(deployment)
    assert left(reconciled(deployment)) == ROLLED_BACK
    with catalog_table(deployment, "shop.clicks") as table, table.manage_snapshots() as manage:
        newest = max(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
        manage.set_current_snapshot(snapshot_id=newest.snapshot_id)
    assert left(reconciled(deployment)) == []
    with Driver(deployment) as driver:
        driver.check_complete("clicks")


def test_another_writer_compacted_after_the_rollback(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [b"\x08\x05"] * 3, 0)
        driver.archive()
    roll_back(deployment, table="shop.orders")
    rewrite(deployment, "replace", table="shop.orders")
    assert left(reconciled(deployment)) == [("rolled-back", "orders")]
    assert fixed(reconciled(deployment, "everything")) == [("rolled-back", "orders")]
    with Driver(deployment) as driver:
        assert driver.watermarks("orders") == {0: 4}
        driver.archive()
        driver.check_complete("orders")


def test_a_rollback_with_a_missing_data_file_is_left_and_says_what_to_do(deployment: Deployment) -> None:
    roll_back(deployment)
    rewrite(deployment, "replace")
    with catalog_table(deployment, "shop.clicks") as table:
        Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://")).unlink()
    report = reconciled(deployment, "everything", "clicks")
    assert fixed(report) == []
    (why,) = [finding.repair for finding, _ in report.findings if finding.id == "rolled-back"]
    assert "restore the files that `archiver audit` names" in why


def test_rows_that_were_erased_before_do_not_come_back(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("clicks", [b"a"] * 5, 0)
        driver.archive()
        rewrite(deployment, "overwrite", lambda offset: offset < 3)
        driver.send("clicks", [b"b"] * 2, 0)
        driver.archive()
    with catalog_table(deployment, "shop.clicks") as table, table.manage_snapshots() as manage:
        erased = sorted(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)[1]
        manage.rollback_to_snapshot(erased.snapshot_id)
    report = reconciled(deployment, "everything")
    assert fixed(report) == ROLLED_BACK
    assert left(report) == [("rows-removed", "clicks")]
    with Driver(deployment) as driver:
        assert driver.watermarks("clicks") == {0: 5}
        driver.archive()
        (first,) = [
            item
            for item in driver.audit()["partitions"]
            if (item["topic"], item["partition"]) == ("clicks", 0)
        ]
        assert (first["verdict"], first["removed"], first["rows"]) == ("valid", [[3, 5]], 5)


def test_without_its_intake_nothing_is_written(deployment: Deployment) -> None:
    """P1: no record is given up if it cannot be archived again."""
    for path in (deployment.data / "intake").rglob("*.parquet"):
        path.unlink()
    roll_back(deployment)
    before = metadata_location(deployment)
    report = reconciled(deployment, "everything")
    assert (left(report), fixed(report), report.exit_code) == (ROLLED_BACK, [], 1)
    assert "intake no longer holds offsets 5 to 8 of partition 0" in report.findings[0][0].repair
    assert metadata_location(deployment) == before
    with Driver(deployment) as driver:
        assert driver.watermarks("clicks") == {0: 9, 1: 3}


def test_what_waits_is_killed_and_planned_again(deployment: Deployment) -> None:
    """P2: a path that was planned before the rollback is never offered after it."""
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("table.swap.before=error")
        driver.archive()
    with Driver(deployment) as driver:
        (waiting,) = driver.application.ledger().topic(driver.topic_id("clicks")).pending
    roll_back(deployment)
    assert ("rolled-back", "clicks") in fixed(reconciled(deployment, "everything"))
    with Driver(deployment) as driver:
        topic = driver.application.ledger().topic(driver.topic_id("clicks"))
        assert (topic.pending, set(topic.killed)) == ((), {waiting.archive.key})
    archive_again(deployment, 11)


def test_what_landed_below_the_rollback_is_committed_and_not_killed(deployment: Deployment) -> None:
    """C3 by path: the leader that swapped it in died before the ledger entry, and a later commit of ours was
    rolled back."""
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("committed.append.before=error")
        driver.archive()
        (waiting,) = driver.application.ledger().topic(driver.topic_id("clicks")).pending
    with catalog_table(deployment, "shop.clicks") as table, table.transaction() as transaction:
        evidence = json.loads(table.properties["archiver.watermarks"])
        evidence |= {"snapshot": 1, "sequence": evidence["sequence"] + 1}
        transaction.set_properties({"archiver.watermarks": json.dumps(evidence)})
    assert fixed(reconciled(deployment, "everything")) == ROLLED_BACK
    with Driver(deployment) as driver:
        topic = driver.application.ledger().topic(driver.topic_id("clicks"))
        assert (topic.pending, topic.killed, topic.watermark(0)) == ((), {}, 11)
        assert waiting.archive.key not in topic.unread
        driver.check_complete("clicks")
        assert len(driver.records("clicks")[0]) == 11


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("point", POINTS)
def test_a_takeover_that_failed_anywhere_is_gone_on_with(
    point: str, action: str, deployment: Deployment
) -> None:
    roll_back(deployment)
    with Driver(deployment) as driver:
        failpoints.arm(f"{point}={action}")
        report = driver.application.maintenance.reconciling(driver.reported.append).run("everything")
        failpoints.arm("")
    if fixed(report) != ROLLED_BACK:
        assert left(report) == ROLLED_BACK
        assert "not repaired: " in report.findings[0][0].repair
        with Driver(deployment) as driver:
            assert driver.archive().topics["clicks"].state == "halted", "half taken over is not taken over"
        assert fixed(reconciled(deployment, "everything")) == ROLLED_BACK
    archive_again(deployment)


def test_a_change_between_look_and_swap_is_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: an external roll forward comes at the last moment; table and ledger stay as they are."""
    roll_back(deployment)
    with Driver(deployment) as driver:
        reach, came = failpoints.reach, list[str]()

        def forward(name: str) -> None:
            if name == "restate.swap.before":
                came.append(name)
                with catalog_table(deployment, "shop.clicks") as table, table.manage_snapshots() as manage:
                    newest = max(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
                    manage.set_current_snapshot(snapshot_id=newest.snapshot_id)
            reach(name)

        monkeypatch.setattr(failpoints, "reach", forward)
        report = driver.application.maintenance.reconciling(driver.reported.append).run("everything")
        assert came
        assert left(report) == [], "it is not set back any more"
        assert driver.watermarks("clicks") == {0: 9, 1: 3}
        driver.check_complete("clicks")


def test_a_catalog_from_an_older_copy_is_taken_over_as_well(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        catalog = deployment.root / "catalog.db"
        copy = catalog.read_bytes()
        driver.archive()
    catalog.write_bytes(copy)
    report = reconciled(deployment)
    assert left(report) == ROLLED_BACK
    assert "restored from an older copy" in report.findings[0][0].what
    assert fixed(reconciled(deployment, "everything")) == ROLLED_BACK
    archive_again(deployment, 11)


def test_another_leader_is_left_alone(deployment: Deployment) -> None:
    roll_back(deployment)
    with Driver(deployment) as one, Driver(deployment) as other, one.application.leadership.turn("archiving"):
        with pytest.raises(RetryLater, match="lease is held"):
            other.application.maintenance.reconciling(other.reported.append).run("everything")
        assert (
            left(other.application.maintenance.reconciling(other.reported.append, dry_run=True).run())
            == ROLLED_BACK
        ), "a dry run needs no lease"
