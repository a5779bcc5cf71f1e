"""Undecoded records are decoded again: the real log, ledger, store and SQL catalog; nothing is lost, doubled
or moved on the way.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from google.protobuf import descriptor_pb2
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from archiver.app.application import Application
from archiver.catalog.iceberg.values import data_file_of
from archiver.config.settings import load_settings
from archiver.events.types import DataFile
from archiver.objects.paths import parse_archive_key
from archiver.runtime import failpoints
from archiver.runtime.errors import NotFound, OutcomeUnknown, RetryLater
from archiver.status.explain import document_of, lines_of
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, append_nothing, catalog_table, properties_of
from tests.support.builders.undecoded import (
    COUNT,
    files_of_table,
    replay,
    rows_in_table,
    send_unmended,
    undecoded_in_table,
)
from tests.support.catalog.foreign_hands import _Replace
from tests.support.schema.orders import DESCRIPTOR_SET, order

REPLAYING = [name for name in failpoints.NAMES if name.startswith("replay.")]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """One archive of partition 0 with four orders that a fixed schema decodes, and one value that none does."""
    with Driver(deployment) as made:
        send_unmended(made, monkeypatch)
        yield made


def check_replayed(driver: Driver, partitions: int = 1) -> None:
    """Everything decodes but what never does; each row is there once, and the audit is valid."""
    assert undecoded_in_table(driver.deployment) == [(partition, COUNT) for partition in range(partitions)]
    assert len(rows_in_table(driver.deployment)) == partitions * (COUNT + 2)
    driver.check_complete("orders")


def test_listed_replayed_and_then_nothing_is_left_to_do(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_unmended(driver, monkeypatch, first=100, partition=1)
    before, files, evidence = (
        driver.records("orders"),
        files_of_table(deployment),
        properties_of(deployment, "shop.orders"),
    )
    listed = driver.application.archiving.undecoded(None, 3)
    assert (len(listed.records), listed.total, listed.exit_code) == (3, 10, 0)
    counts = {"value:malformed": 6, "value:not_utf8": 4}
    assert listed.topics[-1] == {"topic": "orders", "files": 2, "decode_errors": counts, "why": None}
    shown = [(item["partition"], item["offset"], item["cause"]) for item in listed.records]
    assert shown == [(0, 2, "not_utf8"), (0, 3, "malformed"), (0, 7, "not_utf8")]
    planned = replay(driver, dry_run=True)
    assert (planned.state, planned.archives, planned.decoded, planned.left) == ("replayed", 2, 8, 2)
    assert files_of_table(deployment) == files
    done = replay(driver)
    assert (done.state, done.archives, done.decoded, done.left, done.skipped) == ("replayed", 2, 8, 2, [])
    check_replayed(driver, partitions=2)
    assert rows_in_table(deployment)[0, 7]["__raw__"] is None
    assert driver.records("orders") == before
    assert not files & files_of_table(deployment)
    assert properties_of(deployment, "shop.orders") == evidence
    again = replay(driver)
    assert (again.state, again.archives, again.left, again.snapshot_id) == ("idle", 0, 2, None)
    assert driver.application.archiving.undecoded(None, 100).total == 2


def test_a_partition_that_is_not_there_is_refused(driver: Driver) -> None:
    absent = ("orders", frozenset({7}))
    with pytest.raises(NotFound, match="topic orders has no partition 7"):
        driver.application.archiving.undecoded(absent, 1)
    for dry_run in (True, False):
        with pytest.raises(NotFound, match="topic orders has no partition 7"):
            driver.application.archiving.replaying(driver.reported.append, dry_run=dry_run).run(
                absent, 1, dry_run=dry_run
            )


def test_rows_once_by_duckdb(driver: Driver, deployment: Deployment) -> None:
    replay(driver)
    paths = [path.removeprefix("file://") for path in files_of_table(deployment)]
    with duckdb.connect() as connection:
        connection.execute(
            "SELECT kafka.offset, value.id FROM read_parquet(?, hive_partitioning=false) ORDER BY 1", [paths]
        )
        found = connection.fetchall()
    assert found == [*((number, number) for number in range(COUNT)), (COUNT, None), (COUNT + 1, None)]


def test_the_new_archive_is_the_old_one_but_for_its_columns(driver: Driver) -> None:
    ledger = driver.application.ledger
    state = driver.application.topic("orders")
    before = ledger().topic(state.topic_id)
    stored, marks, covered = before.totals.stored_bytes, dict(before.watermarks), before.covered.ranges(0)
    done = replay(driver)
    after = ledger().topic(state.topic_id)
    ((old, replaced),) = after.rewrites.replaced.items()
    was, now = parse_archive_key(old), parse_archive_key(replaced.by)
    assert was is not None
    assert now is not None
    assert (now.partition, now.partition_value, now.base, now.end) == (
        was.partition,
        was.partition_value,
        was.base,
        was.end,
    )
    assert now.epoch > was.epoch
    assert done.ranges == [{"partition": 0, "base": now.base, "end": now.end, "archive": replaced.by}]
    assert (dict(after.watermarks), after.covered.ranges(0)) == (marks, covered)
    sizes = {info.key: info.size for info in driver.application.objects.list("archive/")}
    assert after.totals.stored_bytes == stored + sizes[replaced.by] - sizes[old]


def _customer_as_bytes() -> bytes:
    """The topic's schema with `customer` as bytes: what producers send there was never text."""
    mended = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    mended.file[0].message_type[1].field[1].type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    return mended.SerializeToString()


def test_a_mended_schema_gives_the_records_their_columns(deployment: Deployment) -> None:
    """A text that is not UTF-8 becomes a bytes column: only the schema in the configuration changes."""
    sent = [order(0), order(1).replace(b"ada", b"\xff\xfe\xfd"), order(2), b"\xff"]
    with Driver(deployment) as driver:
        driver.send("orders", sent, 0)
        driver.archive()
        listed = driver.application.archiving.undecoded(("orders", None), 10).records
        assert [(item["offset"], item["cause"]) for item in listed] == [(1, "not_utf8"), (3, "malformed")]
        assert replay(driver).state == "idle"
        (deployment.root / "shop.binpb").write_bytes(_customer_as_bytes())
        planned = replay(driver, dry_run=True)
        assert (planned.schema_version, planned.archives, planned.decoded, planned.left) == (2, 1, 1, 1)
        assert driver.application.ledger().topic(driver.topic_id("orders")).schema_version == 1
        done = replay(driver)
        assert (done.schema_version, done.archives, done.decoded, done.left) == (2, 1, 1, 1)
        assert done.emptied == ["value.customer"]
        found = rows_in_table(deployment)
        shown = [
            (found[0, offset]["id"], found[0, offset]["customer_v2"], found[0, offset]["customer"])
            for offset in range(4)
        ]
        assert shown == [(0, b"ada", None), (1, b"\xff\xfe\xfd", None), (2, b"ada", None), (None, None, None)]
        assert [record.value for record in driver.records("orders")[0]] == sent
        driver.check_complete("orders")
        assert replay(driver).state == "idle"


def test_a_schema_that_reads_less_is_not_replayed_with(driver: Driver, deployment: Deployment) -> None:
    """It decodes one order without lines, which failed before, and no order with lines. The archive stays,
    and the report says so."""
    worse = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    sku = worse.file[0].message_type[0].field[0]
    sku.type, sku.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, ".shop.Order"
    (deployment.root / "shop.binpb").write_bytes(worse.SerializeToString())
    files, keys = files_of_table(deployment), _archive_keys(driver)
    done = replay(driver)
    assert (done.state, done.archives, len(done.skipped)) == ("idle", 0, 1)
    assert "decoded now would not be" in done.skipped[0]["why"]
    assert (files_of_table(deployment), _archive_keys(driver)) == (files, keys)
    assert driver.audit()["verdict"] == "valid"


def test_archives_without_a_table_are_listed_and_left_alone(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    document = deployment.document()
    document["topics"][0]["archive"] = {"kind": "parquet"}
    deployment.write(document)
    with Driver(deployment) as driver:
        driver.send("orders", [order(0), b"\xff", order(2)], 0)
        driver.send("orders", [b"\xff"], 2)
        driver.archive()
        listed = driver.application.archiving.undecoded(("orders", frozenset({0})), 10)
        assert [(item["partition"], item["offset"]) for item in listed.records] == [(0, 1)]
        assert driver.application.archiving.undecoded(None, 0).total == 2
        done = replay(driver)
        assert (done.state, "kind: parquet" in str(done.why)) == ("idle", True)
        driver.check_complete("orders")


def test_a_limit_of_files_leaves_the_rest_to_the_next_run(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_unmended(driver, monkeypatch, first=100, partition=1)
    assert (replay(driver, 1).more, replay(driver, 1).archives) == (True, 1)
    check_replayed(driver, partitions=2)


def test_more_archives_than_one_snapshot_exchanges(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(1, 5):
        send_unmended(driver, monkeypatch, first=100 * place)
    monkeypatch.setattr("archiver.rewrite.replay.EXCHANGED_TOGETHER_MAX", 2)
    before, files = driver.records("orders"), files_of_table(deployment)
    done = replay(driver)
    assert (done.state, done.archives, done.decoded, done.left, done.skipped) == ("replayed", 5, 20, 5, [])
    assert [item["base"] for item in done.ranges] == [place * (COUNT + 2) for place in range(5)]
    with catalog_table(deployment, "shop.orders") as table:
        counts = [
            one.summary.additional_properties.get("archiver.replayed")
            for one in table.snapshots()
            if one.summary is not None
        ]
    assert [one for one in counts if one is not None] == ["2", "2", "1"]
    assert undecoded_in_table(deployment) == [(0, place * (COUNT + 2) + COUNT) for place in range(5)]
    assert (len(files_of_table(deployment)), files & files_of_table(deployment)) == (5, set())
    assert driver.records("orders") == before
    driver.check_complete("orders")
    assert replay(driver).state == "idle"


def test_explain_says_why_the_file_came_later_than_the_record(driver: Driver) -> None:
    def reported() -> str:
        return " ".join(lines_of(driver.application.explain("orders", 0, 3)))

    assert "rewritten" not in reported()
    replay(driver)
    assert "rewritten by a replay in place of the archive that added the record" in reported()
    (file,) = document_of(driver.application.explain("orders", 0, 3))["table"]["files"]  # type: ignore[index]
    assert file["remade"] is True


def test_archiving_goes_on_around_a_replay(driver: Driver, deployment: Deployment) -> None:
    replay(driver)
    driver.send("orders", [order(number) for number in range(200, 210)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")
    with Driver(deployment) as other:
        other.send("orders", [order(number) for number in range(210, 220)], 0)
        assert other.archive().exit_code == 0
        other.check_complete("orders")
        assert len(rows_in_table(deployment)) == COUNT + 22


def test_p2_a_leader_that_made_the_archive_itself_takes_a_new_epoch(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon keeps its epoch from turn to turn, and the epoch distinguishes the two keys."""
    with Driver(deployment) as driver:
        driver.application.close()
        driver.application = Application(load_settings(deployment.config, {}), {}, driver.clock, lasting=True)
        send_unmended(driver, monkeypatch)
        epoch = driver.application.leader.epoch
        assert (replay(driver).archives, driver.application.leader.epoch) == (1, epoch + 1)
        check_replayed(driver)
        assert replay(driver).archives == 0
        driver.send("orders", [order(300)], 0)
        assert driver.archive().exit_code == 0
        assert driver.application.leader.epoch == epoch + 1
        driver.check_complete("orders")
        driver.application.leadership.resign()


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", [*REPLAYING, "archive.upload.after", "epoch.append.after@2"])
def test_a_step_that_fails_or_loses_its_reply(driver: Driver, name: str, action: str) -> None:
    before = driver.records("orders")
    point, _, at = name.partition("@")
    failpoints.arm(f"{point}={action}" + (f"@{at}" if at else ""))
    try:
        replay(driver)
    except (RetryLater, OutcomeUnknown):
        pass
    failpoints.arm("")
    assert driver.audit()["verdict"] == "valid"
    assert driver.records("orders") == before
    replay(driver)
    check_replayed(driver)
    assert driver.records("orders") == before
    assert not driver.application.ledger().topic(driver.topic_id("orders")).rewrites.under_way


def test_a_lost_reply_is_settled_by_looking(driver: Driver) -> None:
    failpoints.arm("replay.swap.after=unknown")
    done = replay(driver)
    assert (done.state, done.archives, done.skipped) == ("replayed", 1, [])
    check_replayed(driver)


def test_what_another_leader_left_is_settled_by_the_next(driver: Driver, deployment: Deployment) -> None:
    """The swap landed, and its leader got no response."""
    failpoints.arm("replay.settled.before=error")
    assert replay(driver).state == "deferred"
    failpoints.arm("")
    with Driver(deployment) as other:
        assert other.archive().exit_code == 0
        other.check_complete("orders")
        topic = other.application.ledger().topic(other.topic_id("orders"))
        assert len(topic.rewrites.under_way) == 1
        assert replay(other).state == "idle"
        assert (len(topic.rewrites.under_way), len(topic.rewrites.replaced)) == (0, 1)


def test_a_file_that_another_writer_compacted_away_is_reported(
    driver: Driver, deployment: Deployment
) -> None:
    with catalog_table(deployment, "shop.orders") as table:
        _compact(table)
    listed = driver.application.archiving.undecoded(None, 100)
    assert listed.total == 5
    assert all("compacted-0" in str(item["archive"]) for item in listed.records)
    done = replay(driver)
    assert (done.state, done.archives, len(done.skipped)) == ("idle", 0, 1)
    assert "another engine wrote it" in done.skipped[0]["why"]
    assert driver.audit()["verdict"] == "valid"


def test_a_file_that_is_compacted_away_in_between_is_left_alone(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compacted(point: str) -> None:
        if point == "replay.written.after":
            with catalog_table(deployment, "shop.orders") as table:
                _compact(table)

    monkeypatch.setattr(failpoints, "reach", compacted)
    done = replay(driver)
    assert (done.state, done.archives) == ("idle", 0)
    assert "compacted" in done.skipped[0]["why"]
    topic = driver.application.ledger().topic(driver.topic_id("orders"))
    assert (len(topic.rewrites.abandoned), topic.rewrites.replaced) == (1, {})
    assert driver.audit()["verdict"] == "valid"
    assert len(driver.records("orders")[0]) == COUNT + 2


def test_another_writer_that_commits_first_is_no_hindrance(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []

    def commits(point: str) -> None:
        if point == "replay.swap.before" and not came:
            came.append(point)
            with catalog_table(deployment, "shop.orders") as table:
                append_nothing(table)

    monkeypatch.setattr(failpoints, "reach", commits)
    assert replay(driver).archives == 1
    assert came
    check_replayed(driver)


def test_a_rollback_behind_the_replay_loses_nothing(driver: Driver, deployment: Deployment) -> None:
    before = driver.records("orders")
    with catalog_table(deployment, "shop.orders") as table:
        snapshot_id = table.current_snapshot().snapshot_id
    replay(driver)
    with catalog_table(deployment, "shop.orders") as table, table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)
    assert len(undecoded_in_table(deployment)) == 5
    assert driver.audit()["verdict"] == "valid"
    driver.send("orders", [order(300)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")
    assert replay(driver).archives == 1
    assert len(undecoded_in_table(deployment)) == 1
    assert driver.records("orders")[0][: len(before[0])] == before[0]


def test_the_old_archive_goes_once_no_retained_snapshot_names_it(
    driver: Driver, deployment: Deployment
) -> None:
    (old,) = _archive_keys(driver)
    before = driver.records("orders")
    replay(driver)
    assert len(_archive_keys(driver)) == 2
    _clean(driver)
    assert old in _archive_keys(driver), "a retained snapshot names it"
    with catalog_table(deployment, "shop.orders") as table:
        gone = [
            item.snapshot_id
            for item in table.snapshots()
            if item.snapshot_id != table.current_snapshot().snapshot_id
        ]
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids(gone)
    assert driver.audit()["verdict"] == "valid"
    _clean(driver)
    assert old not in _archive_keys(driver)
    assert driver.application.ledger().topic(driver.topic_id("orders")).rewrites.replaced == {}
    assert driver.records("orders") == before
    check_replayed(driver)
    driver.send("orders", [order(300)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")


def test_an_archive_that_a_rollback_brought_back_stays(driver: Driver, deployment: Deployment) -> None:
    """The archive is marked for deletion, and then in the table again. Expired snapshots no longer protect
    it; the current one does."""
    (old,) = _archive_keys(driver)
    with catalog_table(deployment, "shop.orders") as table:
        snapshot_id = table.current_snapshot().snapshot_id
    replay(driver)
    with catalog_table(deployment, "shop.orders") as table, table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)
    driver.send("orders", [order(300)], 0)
    driver.archive()
    with catalog_table(deployment, "shop.orders") as table:
        gone = [
            item.snapshot_id
            for item in table.snapshots()
            if item.snapshot_id != table.current_snapshot().snapshot_id
        ]
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids(gone)
    _clean(driver)
    assert old in _archive_keys(driver), (
        "every snapshot is newer than the exchange, and names it all the same"
    )
    driver.check_complete("orders")


def _archive_keys(driver: Driver) -> set[str]:
    prefix = f"archive/{driver.topic_id('orders')}/data/"
    return {info.key for info in driver.application.objects.list(prefix)}


def _clean(driver: Driver) -> None:
    """Clean twice, with the deletion delay between."""
    for _ in range(2):
        driver.clock.ahead_s += 3601
        report = driver.application.maintenance.cleaning(driver.reported.append).run()
        assert report.findings == []


def _compact(table: Table) -> None:
    """Move the same rows into files of other names externally, as Spark's rewrite does."""
    transaction = Transaction(table, autocommit=True)
    producer: _OverwriteFiles = _Replace(Operation.OVERWRITE, transaction, table.io)
    for number, task in enumerate(table.scan().plan_files()):
        old = task.file
        path = f"{table.location()}/data/compacted-{number}.parquet"
        shutil.copy(old.file_path.removeprefix("file://"), path.removeprefix("file://"))
        new = DataFile(
            path=path,
            record_count=old.record_count,
            file_size=old.file_size_in_bytes,
            spec_id=old.spec_id,
            partition=(old.partition[0],),
            value_counts=old.value_counts,
            null_value_counts=old.null_value_counts,
            lower_bounds=old.lower_bounds,
            upper_bounds=old.upper_bounds,
        )
        producer.delete_data_file(old)
        producer.append_data_file(data_file_of(new, old.spec_id))
    producer.commit()
