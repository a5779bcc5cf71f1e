"""Rows that others removed or added, recorded by the table after the snapshot that did it expired.

The audit gives the same verdict as before the expiry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from archiver.catalog.external_changes import ExpiredChanges, read_expired
from archiver.catalog.table_layout import EXPIRED_CHANGES
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, catalog_table, properties_of
from tests.support.builders.reconciling import fixed, left, reconciled
from tests.support.builders.retention import forget_snapshots, keep
from tests.support.catalog.foreign_hands import live
from tests.support.catalog.foreign_rows import hide, rewrite

TABLE = "shop.clicks"
STEP_S = 1800.0
LATER_S = 10 * STEP_S


class Stage:
    """A deployment whose own commits keep few snapshots; each round adds five records, half an hour after the
    last."""

    def __init__(self, root: Path) -> None:
        self.deployment = Deployment(root)
        document = self.deployment.document()
        document.setdefault("archive", {}).update(snapshots_max=2, snapshots_age="1s")
        self.deployment.write(document)
        self.rounds = 0
        self.go_on(1)

    def go_on(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            clock = AheadClock()
            clock.ahead_s = self.rounds * STEP_S
            self.rounds += 1
            with Driver(self.deployment, clock) as driver:
                driver.send("clicks", [b"new"] * 5, 0)
                assert driver.archive().topics["clicks"].state == "archived"

    def audited(self) -> dict[str, Any]:
        with Driver(self.deployment) as driver:
            (found,) = (
                item
                for item in driver.audit()["partitions"]
                if (item["topic"], item["partition"]) == ("clicks", 0)
            )
            return dict(found)

    def check(
        self, verdict: str, removed: list[list[int]] | None = None, missing: list[list[int]] | None = None
    ) -> str:
        """Check the audit's verdict; returns its reason."""
        found = self.audited()
        assert (found["verdict"], found["removed"], found["missing"]) == (
            verdict,
            removed or [],
            missing or [],
        ), found["why"]
        return found["why"] or ""

    def retained(self) -> set[int]:
        with catalog_table(self.deployment, TABLE) as table:
            return {snapshot.snapshot_id for snapshot in table.metadata.snapshots}

    def take_out(self) -> int:
        """Delete the file that was appended externally."""
        with catalog_table(self.deployment, TABLE) as table:
            producer = _OverwriteFiles(Operation.DELETE, Transaction(table, autocommit=True), table.io)
            (added,) = [file for file in live(table) if "/foreign-" in file.file_path]
            producer.delete_data_file(added)
            producer.commit()
            return int(table.refresh().current_snapshot().snapshot_id)

    def explained(self, offset: int) -> tuple[str, str]:
        with Driver(self.deployment) as driver:
            found = driver.application.explain("clicks", 0, offset)
            return found.state, found.why


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "d")


def test_what_was_erased_stays_removed_when_its_snapshot_has_expired(stage: Stage) -> None:
    first = rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    assert f"snapshot {first}" in stage.check("valid", [[1, 3]])
    assert stage.explained(1)[0] == "removed"
    stage.go_on()
    assert first not in stage.retained()
    assert f"by external snapshot {first} (which has expired)" in stage.check("valid", [[1, 3]])
    state, why = stage.explained(1)
    assert (state, f"snapshot {first}, which has expired" in why) == ("removed", True), why
    findings = [finding for finding, _ in reconciled(stage.deployment, ahead_s=LATER_S).findings]
    assert [finding.id for finding in findings] == ["rows-removed"]
    assert f"snapshot {first}, which has expired, of table {TABLE} removed 2 rows" in findings[0].what
    second = rewrite(stage.deployment, "overwrite", lambda offset: offset != 7)
    assert f"snapshot {second}, {first} (which has expired)" in stage.check("valid", [[1, 3], [7, 8]])
    stage.go_on()
    assert stage.retained().isdisjoint({first, second})
    assert f"snapshot {second} (which has expired), {first} (which has expired)" in stage.check(
        "valid", [[1, 3], [7, 8]]
    )
    state, why = stage.explained(7)
    assert (state, f"snapshot {second}, which has expired" in why) == ("removed", True), (
        "the first came before that offset"
    )
    state, why = stage.explained(1)
    assert (state, f"one of the snapshots {second}, {first}" in why) == ("removed", True), why


def test_a_loss_behind_the_expiry_is_still_invalid(stage: Stage) -> None:
    rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    stage.go_on()
    rewrite(stage.deployment, "replace", lambda offset: offset != 3)
    assert "removed 2 rows, but 3 are missing" in stage.check("invalid", missing=[[1, 4]])


def test_what_came_later_is_not_taken_for_what_was_erased(stage: Stage) -> None:
    """As many rows are missing as were erased; but one of them was archived after the erasure."""
    rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    stage.go_on()
    rewrite(stage.deployment, "overwrite", lambda offset: offset != 12)
    stage.check("valid", [[1, 3], [12, 13]])
    stage.go_on()
    rewrite(stage.deployment, "replace", lambda offset: offset != 27)
    assert "came before offsets 27 were in the table" in stage.check(
        "invalid", missing=[[1, 3], [12, 13], [27, 28]]
    )


def test_rows_that_came_and_went_are_forgotten_with_their_snapshots(stage: Stage) -> None:
    added = rewrite(stage.deployment, "append", lambda offset: offset in {1, 2}, remove=False)
    assert stage.audited()["verdict"] == "invalid"
    taken = stage.take_out()
    stage.check("valid")
    stage.go_on()
    assert stage.retained().isdisjoint({added, taken})
    stage.check("valid")
    assert "foreign-rows" not in [one for one, _ in left(reconciled(stage.deployment, ahead_s=LATER_S))]
    rewrite(stage.deployment, "overwrite", lambda offset: offset != 3)
    stage.check("valid", [[3, 4]])


def test_rows_that_went_when_the_snapshot_that_added_them_had_expired(stage: Stage) -> None:
    added = rewrite(stage.deployment, "append", lambda offset: offset in {1, 2}, remove=False)
    stage.go_on()
    assert added not in stage.retained()
    assert stage.audited()["doubled"] == [[1, 3]]
    findings = {finding.id: finding for finding, _ in reconciled(stage.deployment, ahead_s=LATER_S).findings}
    assert f"snapshot {added}, which has expired, of table {TABLE}" in findings["foreign-rows"].what
    taken = stage.take_out()
    assert taken in stage.retained()
    stage.check("valid")
    assert "foreign-rows" not in [one for one, _ in left(reconciled(stage.deployment, ahead_s=LATER_S))]
    stage.go_on()
    stage.check("valid")
    rewrite(stage.deployment, "replace", lambda offset: offset != 3)
    stage.check("invalid", missing=[[3, 4]])


def test_an_erasure_next_to_rows_of_others_that_stay(stage: Stage) -> None:
    """The rows that were added externally are still there, so they explain no missing row."""
    rewrite(stage.deployment, "append", lambda offset: offset in {1, 2}, remove=False)
    rewrite(stage.deployment, "overwrite", lambda offset: offset != 4)
    for _ in range(2):
        found = stage.audited()
        assert (found["verdict"], found["removed"], found["missing"], found["doubled"]) == (
            "invalid",
            [[4, 5]],
            [],
            [[1, 3]],
        ), found["why"]
        stage.go_on()


def test_rows_that_were_hidden_are_reported_as_such(stage: Stage) -> None:
    hider = hide(stage.deployment, lambda offset: offset in {1, 2})
    assert stage.audited()["verdict"] == "unknown"
    stage.go_on()
    assert hider not in stage.retained()
    reported = read_expired(properties_of(stage.deployment, TABLE))
    assert [(one.rows, one.hidden, one.below, one.snapshots) for one in reported.changes] == [
        (0, 2, (5, 0), (hider,))
    ]


def test_a_rollback_to_before_it_is_refused_once_it_has_expired(stage: Stage) -> None:
    with catalog_table(stage.deployment, TABLE) as table:
        before = table.metadata.current_snapshot_id
    rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    stage.go_on()
    with (
        catalog_table(stage.deployment, TABLE) as table,
        pytest.raises(ValueError, match="Cannot roll back to unknown snapshot"),
        table.manage_snapshots() as snapshots,
    ):
        snapshots.rollback_to_snapshot(before)
    stage.check("valid", [[1, 3]])


def test_a_tag_on_an_older_snapshot_keeps_the_record(stage: Stage) -> None:
    """A rollback to the tag restores the rows; then nothing may report that they are gone."""
    with catalog_table(stage.deployment, TABLE) as table, table.manage_snapshots() as snapshots:
        snapshots.create_tag(table.metadata.current_snapshot_id, "kept")
    first = rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    stage.go_on()
    assert first in stage.retained()
    assert read_expired(properties_of(stage.deployment, TABLE)) == ExpiredChanges(kept=(first,))
    assert "expired" not in stage.check("valid", [[1, 3]])


def test_what_a_tag_kept_expires_once_the_tags_snapshot_is_gone(stage: Stage) -> None:
    with catalog_table(stage.deployment, TABLE) as table, table.manage_snapshots() as snapshots:
        tagged = table.metadata.current_snapshot_id
        assert tagged is not None
        snapshots.create_tag(tagged, "kept")
    first = rewrite(stage.deployment, "overwrite", lambda offset: offset != 1)
    stage.go_on()
    second = rewrite(stage.deployment, "overwrite", lambda offset: offset != 7)
    stage.go_on()
    assert stage.retained() >= {tagged, first, second}
    assert read_expired(properties_of(stage.deployment, TABLE)) == ExpiredChanges(
        kept=tuple(sorted((first, second)))
    )
    stage.check("valid", [[1, 2], [7, 8]])
    with catalog_table(stage.deployment, TABLE) as table:
        with table.manage_snapshots() as snapshots:
            snapshots.remove_tag("kept")
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids([tagged])
    stage.go_on(2)
    assert stage.retained().isdisjoint({first, second})
    reported = read_expired(properties_of(stage.deployment, TABLE))
    assert ([one.snapshots for one in reported.changes], reported.kept) == ([(first,), (second,)], ())
    stage.check("valid", [[1, 2], [7, 8]])


def test_what_a_tag_kept_is_no_ancestor_after_a_rollback_to_the_tag(stage: Stage) -> None:
    with catalog_table(stage.deployment, TABLE) as table, table.manage_snapshots() as snapshots:
        tagged = table.metadata.current_snapshot_id
        assert tagged is not None
        snapshots.create_tag(tagged, "kept")
    first = rewrite(stage.deployment, "overwrite", lambda offset: offset != 1)
    stage.go_on()
    with catalog_table(stage.deployment, TABLE) as table, table.manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(tagged)
    assert ("rolled-back", "clicks") in fixed(
        reconciled(stage.deployment, "everything", "clicks", ahead_s=stage.rounds * STEP_S)
    )
    stage.go_on()
    assert first in stage.retained()
    reported = read_expired(properties_of(stage.deployment, TABLE))
    assert (reported.changes, reported.kept) == ((), ())
    assert stage.audited()["missing"] == []


def test_a_takeover_behind_a_cut_leaves_the_audit_right(stage: Stage) -> None:
    """One row is erased long ago, the newest one later. Then a compaction follows, and an expiry of all
    snapshots that show the second erasure."""
    rewrite(stage.deployment, "overwrite", lambda offset: offset != 1)
    stage.go_on()
    stage.check("valid", [[1, 2]])
    newest = stage.audited()["watermark"] - 1
    rewrite(stage.deployment, "overwrite", lambda offset: offset != newest)
    rewrite(stage.deployment, "replace")
    forget_snapshots(stage.deployment, TABLE)
    assert ("evidence-doubted", "clicks") in left(reconciled(stage.deployment))
    assert ("evidence-doubted", "clicks") in fixed(
        reconciled(stage.deployment, "everything", "clicks", ahead_s=stage.rounds * STEP_S)
    )
    stage.go_on(2)
    stage.check("valid", [[1, 2]])
    rewrite(stage.deployment, "replace", lambda offset: offset != 3)
    assert stage.audited()["verdict"] == "invalid", "a compaction lost it"


def test_a_row_that_came_back_with_a_takeover_is_not_reported_any_more(stage: Stage) -> None:
    """Its removal was recorded already, so a loss of as many rows would be explained by it."""
    newest = stage.audited()["watermark"] - 1
    first = rewrite(stage.deployment, "overwrite", lambda offset: offset != newest)
    for _ in range(3):
        clock = AheadClock()
        clock.ahead_s = stage.rounds * STEP_S
        stage.rounds += 1
        with Driver(stage.deployment, clock) as driver:
            driver.send("clicks", [b"other"], 1)
            assert driver.archive().topics["clicks"].state == "archived"
    assert first not in stage.retained()
    stage.check("valid", [[newest, newest + 1]])
    rewrite(stage.deployment, "replace")
    rewrite(stage.deployment, "replace")
    forget_snapshots(stage.deployment, TABLE)
    reconciled(stage.deployment, "everything", "clicks", ahead_s=stage.rounds * STEP_S)
    stage.go_on(2)
    stage.check("valid")
    rewrite(stage.deployment, "replace", lambda offset: offset != 2)
    assert stage.audited()["verdict"] == "invalid", "a compaction lost it"


def test_rows_of_others_that_retention_took_out_explain_nothing_later(stage: Stage) -> None:
    keep(stage.deployment, "2h")
    rewrite(stage.deployment, "append", lambda offset: offset in {1, 2}, remove=False)
    stage.go_on(2)
    clock = AheadClock()
    clock.ahead_s = 5 * STEP_S
    with Driver(stage.deployment, clock) as driver:
        driver.send("clicks", [b"new"] * 5, 0)
        assert driver.archive().topics["clicks"].state == "archived"
        report = driver.application.maintenance.cleaning(driver.reported.append, dry_run=False).run(
            dry_run=False
        )
        assert [(one.partition, one.start) for one in report.starts] == [(0, 10)]
    stage.rounds = 6
    stage.go_on(1)
    stage.check("valid")
    rewrite(stage.deployment, "overwrite", lambda offset: offset != 12)
    stage.check("valid", [[12, 13]])
    stage.go_on()
    stage.check("valid", [[12, 13]])


def test_a_property_that_cannot_be_read_is_left_alone_and_says_unknown(stage: Stage) -> None:
    rewrite(stage.deployment, "overwrite", lambda offset: offset not in {1, 2})
    stage.go_on()
    reported = properties_of(stage.deployment, TABLE)[EXPIRED_CHANGES]
    damaged = reported.replace('"v":1', '"v":7')
    with catalog_table(stage.deployment, TABLE) as table, table.transaction() as transaction:
        transaction.set_properties({EXPIRED_CHANGES: damaged})
    second = rewrite(stage.deployment, "overwrite", lambda offset: offset != 7)
    stage.go_on()
    assert second in stage.retained()
    assert properties_of(stage.deployment, TABLE)[EXPIRED_CHANGES] == damaged
    found = stage.audited()
    assert (found["verdict"], found["removed"]) == ("unknown", [])
    assert "archiver.expired-changes has version 7" in found["why"]
    assert stage.explained(1)[0] == "removed", "by the one that is retained, as far as it shows"
    with catalog_table(stage.deployment, TABLE) as table, table.transaction() as transaction:
        transaction.set_properties({EXPIRED_CHANGES: reported})
    stage.check("valid", [[1, 3], [7, 8]])
