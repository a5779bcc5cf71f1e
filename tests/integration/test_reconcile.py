"""What external programs, crashes and damage leave, on a real catalog and a real folder.

Each difference is reported by its own id, and by no other.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.transforms import HourTransform

from archiver.ledger.fold import LedgerFold
from archiver.log.lease import FileLease
from archiver.runtime import failpoints
from archiver.runtime.clock import SystemClock
from reconcile.repair.run import ATTEMPTS_MAX
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, append_nothing, catalog_table
from tests.support.builders.reconciling import (
    LATER_S,
    archived,
    commits,
    control_tail,
    fixed,
    left,
    metadata_location,
    others_go_on,
    reconciled,
    roll_back,
)
from tests.support.catalog.foreign_hands import live
from tests.support.catalog.foreign_rows import hide, rewrite

DAYS_S = 5 * 86400.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return archived(tmp_path / "d")


def first_archive(deployment: Deployment) -> Path:
    """An archive of `clicks` partition 0."""
    with Driver(deployment) as driver:
        folder = deployment.data / "archive" / str(driver.topic_id("clicks")) / "data" / "partition=00000"
    return min(folder.rglob("*.parquet"))


def test_a_good_deployment_has_no_finding(deployment: Deployment) -> None:
    before = control_tail(deployment)
    report = reconciled(deployment)
    assert (report.findings, report.unread, report.exit_code) == ([], {}, 0)
    assert (report.topics, report.tables) == (4, 2)
    assert report.objects > 8
    assert control_tail(deployment) == before
    assert reconciled(deployment, "everything").findings == []
    assert reconciled(deployment, ahead_s=DAYS_S).findings == [], "nor when everything is old"


def test_compaction_and_an_empty_snapshot_of_others_are_no_finding(deployment: Deployment) -> None:
    rewrite(deployment, "replace", table="shop.orders")
    with catalog_table(deployment, "shop.clicks") as table:
        append_nothing(table)
    assert left(reconciled(deployment)) == []


# what crashes leave


def test_a_commit_that_the_ledger_did_not_hear_of(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("committed.append.before=error")
        driver.archive()
    report = reconciled(deployment)
    assert (left(report), report.exit_code) == ([("unknown-commit", "clicks")], 1)
    before = metadata_location(deployment)
    report = reconciled(deployment, "safe")
    assert (left(report), fixed(report), report.exit_code) == ([], [("unknown-commit", "clicks")], 0)
    assert metadata_location(deployment) == before, "the table was only looked at"
    tail = control_tail(deployment)
    assert reconciled(deployment, "safe").findings == []
    assert control_tail(deployment) == tail, "repaired twice is repaired once"
    with Driver(deployment) as driver:
        driver.check_complete("clicks")


def test_archives_that_wait_for_their_commit(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("table.swap.before=error")
        driver.archive()
    report = reconciled(deployment)
    assert left(report) == [("missing-in-catalog", "clicks")]
    assert "offsets 9 to 10" in report.findings[0][0].what
    report = reconciled(deployment, "safe")
    assert (left(report), fixed(report)) == ([], [("missing-in-catalog", "clicks")])
    with Driver(deployment) as driver:
        assert driver.archive().topics["clicks"].state == "idle", "nothing was left for the round"
        driver.check_complete("clicks")


def test_what_a_leader_has_in_hand_is_no_finding(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("table.swap.before=error")
        driver.archive()
    lease = FileLease(deployment.root / "metadata.db.lease", "elsewhere:4711")
    lease.acquire()
    try:
        assert left(reconciled(deployment)) == [], "it may be on its way"
        late = reconciled(deployment, ahead_s=LATER_S)
    finally:
        lease.release()
    assert sorted(left(late)) == [("missing-in-catalog", "clicks"), ("stale-lease", "clicks")]
    assert any("elsewhere:4711 holds the lease" in finding.what for finding, _ in late.findings)


def test_a_ledger_that_moves_on_is_looked_at_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archiver commits between the read of the ledger and the read of the table. The second read finds no
    difference."""
    with Driver(deployment) as worker, Driver(deployment) as driver:
        worker.send("clicks", [b"d"] * 2, 0)
        slept: list[float] = []
        monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: slept.append(seconds))
        run = driver.application.maintenance.reconciling(driver.reported.append, dry_run=True)
        ledger, asked = run.ledger, list[int]()

        def overtaken() -> LedgerFold:
            fold = ledger()
            asked.append(fold.next_index)
            if len(asked) == 1:
                worker.archive()
            return fold

        run.ledger = overtaken
        report = run.run()
        assert report.findings == []
        assert 2 <= len(asked) <= ATTEMPTS_MAX * 2


def test_a_ledger_that_never_holds_still_raises_no_alarm(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each read of the ledger an archiver commits, so the table is ahead of every view of the ledger."""
    with Driver(deployment) as worker, Driver(deployment) as driver:
        monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: None)
        run = driver.application.maintenance.reconciling(driver.reported.append, dry_run=True)
        ledger, asked = run.ledger, list[int]()

        def overtaken() -> LedgerFold:
            fold = ledger()
            asked.append(fold.next_index)
            if len(asked) % 2:  # once in each attempt, after its first read
                worker.send("clicks", [b"d"], 0)
                worker.archive()
            return fold

        run.ledger = overtaken
        report = run.run()
        assert report.findings == []
        assert set(report.unread) == {"clicks"}
        assert (report.exit_code, len(asked)) == (2, 2 * ATTEMPTS_MAX), (
            "it is not known, and nothing is wrong"
        )
    assert reconciled(deployment).findings == []


@pytest.mark.parametrize("seed", range(3))
def test_repairs_come_to_a_fixed_point(seed: int, tmp_path: Path) -> None:
    """For all that crashes and rollbacks left, a second repair changes nothing, and no record is missing or
    doubled."""
    dice = random.Random(seed)
    deployment = archived(tmp_path / "d")
    values = {0: 9, 1: 3}
    for _ in range(4):
        partition = dice.randrange(2)
        values[partition] += 2
        with Driver(deployment) as driver:
            driver.send("clicks", [b"more"] * 2, partition)
            failpoints.arm(
                dice.choice(
                    ("table.swap.before=error", "table.swap.after=error", "committed.append.before=error", "")
                )
            )
            driver.archive()
        if dice.random() < 0.5:
            with catalog_table(deployment, "shop.clicks") as table:
                number = dice.randrange(len(commits(table)))
            roll_back(deployment, number)
        if dice.random() < 0.6:
            reconciled(deployment, "everything")
    assert left(reconciled(deployment, "everything")) == []
    before = metadata_location(deployment), control_tail(deployment)
    again = reconciled(deployment, "everything")
    assert (again.findings, again.exit_code) == ([], 0)
    assert (metadata_location(deployment), control_tail(deployment)) == before
    with Driver(deployment) as driver:
        driver.archive()
        driver.check_complete("clicks")
        assert {number: len(records) for number, records in driver.records("clicks").items()} == values


# what external programs do


def drop(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        table.catalog.drop_table("shop.clicks")


def rename(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        table.catalog.rename_table("shop.clicks", "shop.elsewhere")


def replace_table(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        schema, spec, location, properties = (
            table.schema(),
            table.spec(),
            table.location(),
            dict(table.properties),
        )
        table.catalog.drop_table("shop.clicks")
        table.catalog.create_table("shop.clicks", schema, location, spec, properties=properties)


def strange_table(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        schema = table.schema()
        table.catalog.drop_table("shop.clicks")
        table.catalog.create_table("shop.clicks", schema, f"file://{deployment.data}/elsewhere")


def upgrade(deployment: Deployment) -> None:
    """As Spark's ALTER TABLE … SET TBLPROPERTIES ('format-version' = '3') leaves it; pyiceberg writes no such
    metadata."""
    with catalog_table(deployment, "shop.clicks") as table:
        before = str(table.metadata_location)
        metadata = json.loads(Path(before.removeprefix("file://")).read_text())
    after = before.replace("metadata/", "metadata/upgraded-")
    Path(after.removeprefix("file://")).write_text(
        json.dumps(metadata | {"format-version": 3, "next-row-id": 0})
    )
    with contextlib.closing(sqlite3.connect(deployment.root / "catalog.db")) as catalog, catalog:
        catalog.execute(
            "update iceberg_tables set metadata_location = ? where metadata_location = ?", (after, before)
        )


def respec(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table, table.update_spec() as update:
        update.remove_field("ingest_day")
        update.add_field("kafka.ingest_timestamp", HourTransform(), "ingest_hour")


def retype(deployment: Deployment) -> None:
    with (
        catalog_table(deployment, "shop.clicks") as table,
        table.update_schema(allow_incompatible_changes=True) as update,
    ):
        update.delete_column("value")


def damage_evidence(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table, table.transaction() as transaction:
        transaction.set_properties({"archiver.watermarks": "{"})


HALTING: dict[str, list[Callable[[Deployment], None]]] = {
    "table-missing": [drop, rename],
    "table-replaced": [replace_table, strange_table],
    "format-changed": [upgrade],
    "spec-changed": [respec],
    "schema-drift": [retype],
    "evidence-doubted": [damage_evidence],
}


@pytest.mark.parametrize(
    ("kind", "hand"), [(kind, hand) for kind, hands in HALTING.items() for hand in hands]
)
def test_what_halts_a_topic_is_reported_by_its_id(
    kind: str, hand: Callable[[Deployment], None], deployment: Deployment
) -> None:
    hand(deployment)
    others_go_on(deployment)
    report = reconciled(deployment, "everything")
    assert (left(report), fixed(report), report.exit_code) == ([(kind, "clicks")], [], 1)
    assert left(reconciled(deployment, topic="orders")) == []


def test_a_topic_made_again_on_its_old_table(deployment: Deployment) -> None:
    document = deployment.document()
    deployment.write(document | {"topics": [item for item in document["topics"] if item["name"] != "clicks"]})
    with Driver(deployment) as driver:
        driver.application.intake.delete_topic(driver.application.topic("clicks"))
    deployment.write(document)
    with Driver(deployment) as driver:
        driver.application.intake.declare_topic(driver.application.settings.topics[1])
    others_go_on(deployment)
    assert left(reconciled(deployment)) == [("topic-recreated-on-old-table", "clicks")]


def test_removed_rows_are_noted_and_nothing_is_wrong(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("files", [b"x"], 0)
    rewrite(deployment, "overwrite", lambda offset: offset != 2, table="shop.orders")
    report = reconciled(deployment)
    assert (left(report), report.exit_code) == ([("rows-removed", "orders")], 0)
    hide(deployment, lambda offset: offset == 1, table="shop.orders")
    assert ("rows-removed", "orders") in left(reconciled(deployment))


def test_rows_that_others_added_though_they_were_there(deployment: Deployment) -> None:
    rewrite(deployment, "append", lambda offset: offset in (1, 2), table="shop.orders", remove=False)
    report = reconciled(deployment)
    assert sorted(left(report)) == [("foreign-rows", "orders"), ("overlap", "orders")]
    assert "offsets 1 to 2 are in the table more than once" in report.findings[0][0].what
    assert "added 2 rows" in report.findings[1][0].what


def test_the_same_file_twice_is_doubled(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        path = next(file.file_path for file in live(table) if "partition=00001" in file.file_path)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(next(file for file in live(table) if file.file_path == path))
    found = left(reconciled(deployment))
    assert ("doubled-file", "clicks") in found
    assert {name for name, _ in found} <= {"doubled-file", "foreign-rows"}


def test_rows_taken_out_without_a_word(deployment: Deployment) -> None:
    """A `replace` that lost rows: the archives still have them."""
    rewrite(deployment, "replace", lambda offset: offset != 1, table="shop.orders")
    report = reconciled(deployment)
    assert [(finding.id, finding.severity, finding.safe) for finding, _ in report.findings] == [
        ("missing-in-catalog", "error", False)
    ]
    assert left(reconciled(deployment, "everything")) == [("missing-in-catalog", "orders")], (
        "the operator alone decides that"
    )


# damage


def test_an_object_that_is_gone_and_one_that_was_altered(deployment: Deployment) -> None:
    path = first_archive(deployment)
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    assert left(reconciled(deployment)) == [("altered-object", "clicks")]
    path.unlink()
    report = reconciled(deployment)
    assert (left(report), report.findings[0][0].partition) == ([("dangling-reference", "clicks")], 0)
    assert left(reconciled(deployment, "everything")) == [("dangling-reference", "clicks")]
    path.write_bytes(content)
    assert left(reconciled(deployment)) == []


def test_offsets_that_nothing_holds(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.orders") as table:
        paths = [Path(file.file_path.removeprefix("file://")) for file in live(table)]
    rewrite(deployment, "replace", lambda offset: offset != 1, table="shop.orders")
    for path in paths:
        path.unlink()
    assert left(reconciled(deployment)) == [("gap", "orders")]


def test_a_pending_archive_with_other_bytes_is_found_before_its_commit(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("table.swap.before=error")
        driver.archive()
        (waiting,) = driver.application.ledger().topic(driver.topic_id("clicks")).pending
    path = deployment.data / waiting.archive.key
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(bytes(content))
    assert left(reconciled(deployment)) == [("altered-object", "clicks")]


def test_unreferenced_files(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        folder = deployment.data / "archive" / driver.topic_id("clicks")
    (folder / "data" / "left-behind.parquet").write_bytes(b"x" * 10)
    assert left(reconciled(deployment)) == [], "it is young: its writer may be about to commit"
    report = reconciled(deployment, ahead_s=DAYS_S)
    assert (left(report), report.exit_code) == ([("orphan", "clicks")], 0)
    stranger = deployment.data / "archive" / ("0" * 32)
    stranger.mkdir()
    (stranger / "topic.json").write_text(json.dumps({"topic": "old"}))
    report = reconciled(deployment)
    assert [(finding.id, finding.severity, finding.topic) for finding, _ in report.findings] == [
        ("orphan", "warning", None)
    ]
    assert "(topic old)" in report.findings[0][0].what


def test_an_upload_that_never_ended(deployment: Deployment) -> None:
    folder = deployment.data / ".spool" / "process-abandoned"
    folder.mkdir(parents=True)
    (folder / "object-0").write_bytes(b"half")
    report = reconciled(deployment)
    assert (left(report), report.exit_code) == ([("stray-upload", None)], 0)
    assert "(4 bytes)" in report.findings[0][0].what
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"], 0)
    assert left(reconciled(deployment)) == []


def test_a_catalog_that_is_away_is_no_finding(deployment: Deployment) -> None:
    (deployment.root / "catalog.db").rename(deployment.root / "away.db")
    (deployment.root / "catalog.db").mkdir()
    report = reconciled(deployment)
    assert (report.findings, sorted(report.unread), report.exit_code) == ([], ["clicks", "orders"], 2)
    (deployment.root / "catalog.db").rmdir()
    (deployment.root / "away.db").rename(deployment.root / "catalog.db")
    assert reconciled(deployment).exit_code == 0


def test_topics_without_a_table_are_compared_too(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment, AheadClock()) as driver:
        driver.send("files", [b"x"] * 4, 0)
        driver.send("kept", [b"y"] * 2, 0)
        driver.archive()
        folder = deployment.data / "archive" / driver.topic_id("files") / "data"
    assert left(reconciled(deployment)) == []
    path = next(folder.rglob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert left(reconciled(deployment)) == [("altered-object", "files")]
    path.unlink()
    assert left(reconciled(deployment)) == [("gap", "files")]
