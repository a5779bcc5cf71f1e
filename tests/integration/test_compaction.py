"""Compaction merges small archives of past days into one, without loss, duplicates or moved rows.

Log, ledger, store and SQL catalog are real.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.objects.paths import parse_archive_key
from archiver.runtime import failpoints
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater
from tests.support.builders.compacting import (
    DAY_S,
    archives_of_table,
    at_noon,
    compact,
    compacted,
    erase,
    ranges_of_table,
    rows_of_table,
    send_small,
)
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, append_nothing, catalog_table, properties_of
from tests.support.builders.rebuilding import second_version
from tests.support.builders.retention import forget_snapshots, keep
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order

COMPACTING = [name for name in failpoints.NAMES if name.startswith("compact.")]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return compacted(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    """Four archives of yesterday in partition 0, two in partition 1, one of today in each."""
    with Driver(deployment) as made:
        at_noon(made)
        send_small(made, 4)
        send_small(made, 2, first=100, partition=1)
        made.clock.ahead_s += DAY_S
        send_small(made, 1, first=200)
        send_small(made, 1, first=300, partition=1)
        yield made


MERGED = [(0, 0, 20), (0, 20, 25), (1, 0, 10), (1, 10, 15)]
SMALL = [(0, 0, 5), (0, 5, 10), (0, 10, 15), (0, 15, 20), (0, 20, 25), (1, 0, 5), (1, 5, 10), (1, 10, 15)]


def check_compacted(driver: Driver) -> None:
    """Everything is merged, nothing is under way, and the audit is valid."""
    assert ranges_of_table(driver.deployment) == MERGED
    assert not driver.application.ledger().topic(driver.topic_id("orders")).rewrites.under_way
    driver.check_complete("orders")


def test_small_archives_of_days_that_are_over_become_one(driver: Driver, deployment: Deployment) -> None:
    records, rows, evidence = (
        driver.records("orders"),
        rows_of_table(deployment),
        properties_of(deployment, "shop.orders"),
    )
    assert ranges_of_table(deployment) == SMALL
    planned = compact(driver, dry_run=True)
    assert (planned.merged, planned.archives, planned.bytes_after) == (2, 6, 0)
    assert ranges_of_table(deployment) == SMALL
    done = compact(driver)
    assert (done.merged, done.archives, done.skipped, done.why, done.more) == (2, 6, [], None, False)
    assert (done.bytes_before, done.bytes_after) == (planned.bytes_before, sum(_sizes(driver)))
    check_compacted(driver)
    assert rows_of_table(deployment) == rows
    assert driver.records("orders") == records
    assert properties_of(deployment, "shop.orders") == evidence
    with catalog_table(deployment, "shop.orders") as table:
        newest = table.current_snapshot()
        reported = newest.summary.operation.value, newest.summary.additional_properties["archiver.compacted"]
        assert reported == ("replace", "1"), "in a command each by itself"
    again = compact(driver)
    assert (again.merged, again.why) == (0, None)
    driver.send("orders", [order(400)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")


def _sizes(driver: Driver) -> list[int]:
    """Sizes of the merged archives that the table has."""
    names = {one.end: one for one in archives_of_table(driver.deployment) if one.end - one.base > 5}
    found = []
    for info in driver.application.objects.list("archive/"):
        parsed = parse_archive_key(info.key)
        if parsed is not None and names.get(parsed.end) == parsed:
            found.append(info.size)
    return found


def test_rows_once_by_duckdb(driver: Driver, deployment: Deployment) -> None:
    compact(driver)
    with catalog_table(deployment, "shop.orders") as table:
        paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    with duckdb.connect() as connection:
        columns = "kafka.partition, kafka.offset, value.id"
        connection.execute(
            f"SELECT {columns} FROM read_parquet(?, hive_partitioning=false) ORDER BY 1, 2", [paths]
        )
        found = connection.fetchall()
    zero = [(0, number, number) for number in range(20)] + [
        (0, 20 + number, 200 + number) for number in range(5)
    ]
    one = [(1, number, 100 + number) for number in range(10)] + [
        (1, 10 + number, 300 + number) for number in range(5)
    ]
    assert found == zero + one


def test_without_the_setting_nothing_is_merged(tmp_path: Path) -> None:
    with Driver(Deployment(tmp_path / "plain")) as driver:
        at_noon(driver)
        send_small(driver, 2)
        driver.clock.ahead_s += 2 * DAY_S
        assert compact(driver).merged == 0
        assert ranges_of_table(driver.deployment) == [(0, 0, 5), (0, 5, 10)]


def test_gaps_of_transactions_stay_gaps(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        at_noon(driver)
        send_small(driver, 1)
        for number in range(3):
            sender = Transactional(driver.application, driver.clock, f"t{number}")
            sender.send({("orders", 0): [order(10 * number + one) for one in range(3)]})
            assert (sender.commit() if number != 1 else sender.abort()) is None
            driver.send("orders", [order(100 + number)], 0)
            assert driver.archive().exit_code == 0
        driver.clock.ahead_s += 2 * DAY_S
        before, rows = driver.records("orders"), rows_of_table(deployment)
        assert compact(driver).merged == 1
        assert len(ranges_of_table(deployment)) == 1
        assert driver.records("orders") == before
        assert rows_of_table(deployment) == rows
        driver.check_complete("orders")


def test_a_run_ends_at_its_limit_and_the_next_goes_on(tmp_path: Path) -> None:
    with Driver(compacted(tmp_path / "d", compact_run_bytes_max=1)) as driver:
        at_noon(driver)
        for partition in (0, 1):
            send_small(driver, 2, partition=partition)
        driver.clock.ahead_s += 2 * DAY_S
        assert (compact(driver).more, ranges_of_table(driver.deployment)) == (
            True,
            [(0, 0, 10), (1, 0, 5), (1, 5, 10)],
        )
        assert (compact(driver).more, ranges_of_table(driver.deployment)) == (False, [(0, 0, 10), (1, 0, 10)])
        driver.check_complete("orders")


def test_a_leader_that_keeps_the_lease_ends_at_the_limit_as_well(tmp_path: Path) -> None:
    """It merges a few archives before any of them is in the table."""
    with Driver(compacted(tmp_path / "d", compact_run_bytes_max=1)) as driver:
        at_noon(driver)
        for partition in (0, 1):
            send_small(driver, 2, partition=partition)
        driver.clock.ahead_s += 2 * DAY_S
        driver.application.close()
        driver.application = Application(
            load_settings(driver.deployment.config, {}), {}, driver.clock, lasting=True
        )
        assert (compact(driver).more, ranges_of_table(driver.deployment)) == (
            True,
            [(0, 0, 10), (1, 0, 5), (1, 5, 10)],
        )
        assert (compact(driver).more, ranges_of_table(driver.deployment)) == (False, [(0, 0, 10), (1, 0, 10)])
        driver.application.leadership.resign()


@pytest.mark.turns(2)
@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", [*COMPACTING, "archive.upload.after", "epoch.append.after@2"])
def test_a_step_of_compaction_that_fails_or_loses_its_reply(driver: Driver, name: str, action: str) -> None:
    records, rows = driver.records("orders"), rows_of_table(driver.deployment)
    point, _, at = name.partition("@")
    failpoints.arm(f"{point}={action}" + (f"@{at}" if at else ""))
    try:
        driver.application.maintenance.cleaning(driver.reported.append).run()
    except (RetryLater, OutcomeUnknown):
        pass
    assert failpoints.reached(point) >= int(at or 1)
    failpoints.arm("")
    assert driver.audit()["verdict"] == "valid"
    assert driver.records("orders") == records
    compact(driver)
    compact(driver)
    check_compacted(driver)
    assert driver.records("orders") == records
    assert rows_of_table(driver.deployment) == rows


def test_an_archive_that_is_gone_from_the_table_in_between_is_not_brought_back(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of yesterday is erased externally after the merge and before the table is read."""
    came: list[str] = []

    def erases(point: str) -> None:
        if point == "compact.written.after" and not came:
            came.append(point)
            with catalog_table(deployment, "shop.orders") as table:
                erase(table, 0, 5)

    monkeypatch.setattr(failpoints, "reach", erases)
    done = compact(driver)
    assert came
    assert done.merged == 1
    assert any("not in the table any more" in item["why"] for item in done.skipped)
    assert ranges_of_table(deployment) == [one for one in SMALL if one[0] == 0 and one != (0, 5, 10)] + [
        one for one in MERGED if one[0] == 1
    ]
    topic = driver.application.ledger().topic(driver.topic_id("orders"))
    assert len(topic.rewrites.abandoned) == 1


def test_another_writer_that_commits_first_is_no_hindrance_to_compaction(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []

    def commits(point: str) -> None:
        if point == "compact.swap.before" and not came:
            came.append(point)
            with catalog_table(deployment, "shop.orders") as table:
                append_nothing(table)

    monkeypatch.setattr(failpoints, "reach", commits)
    assert compact(driver).merged == 2
    assert came
    check_compacted(driver)


def test_a_lasting_leader_archives_while_archives_are_merged(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round runs after the upload of merged archives and before they are in the ledger and the table."""
    driver.application.close()
    driver.application = Application(
        load_settings(driver.deployment.config, {}), {}, driver.clock, lasting=True
    )
    driver.archive()
    rounds: list[int] = []

    def archives(point: str) -> None:
        if point == "archive.upload.after" and not rounds:
            rounds.append(1)
            driver.send("orders", [order(500)], 0)
            assert driver.archive().exit_code == 0

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", archives)
        done = compact(driver)
    assert rounds
    assert (done.merged, done.why) == (2, None)
    assert ranges_of_table(driver.deployment) == [*MERGED[:2], (0, 25, 26), *MERGED[2:]]
    driver.check_complete("orders")
    driver.application.leadership.resign()


def test_what_a_newer_leader_found_unnamed_is_given_up(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader takes over after the merge and before the ledger entry. The merged archives are
    unreferenced, and nothing is lost."""
    driver.application.close()
    driver.application = Application(load_settings(deployment.config, {}), {}, driver.clock, lasting=True)
    driver.archive()
    driver.application.leadership.resign()
    came: list[int] = []

    def takes_over(point: str) -> None:
        if point == "archive.upload.after" and not came:
            came.append(1)
            driver.application.leadership._lease.release()
            with Driver(deployment, driver.clock) as other:
                other.send("orders", [order(500)], 0)
                assert other.archive().exit_code == 0

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", takes_over)
        try:
            compact(driver)
        except Deposed:
            pass
    assert came
    with Driver(deployment, driver.clock) as other:
        assert other.audit()["verdict"] == "valid"
        assert (0, 0, 5) in ranges_of_table(deployment)
        compact(other)
        assert ranges_of_table(deployment) == [*MERGED[:2], (0, 25, 26), *MERGED[2:]]
        other.check_complete("orders")


def test_a_rollback_behind_the_compaction_loses_nothing(driver: Driver, deployment: Deployment) -> None:
    records = driver.records("orders")
    with catalog_table(deployment, "shop.orders") as table:
        snapshot_id = table.current_snapshot().snapshot_id
    compact(driver)
    with catalog_table(deployment, "shop.orders") as table, table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)
    assert ranges_of_table(deployment) == SMALL
    assert driver.audit()["verdict"] == "valid"
    assert driver.records("orders") == records
    driver.send("orders", [order(400)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")
    assert compact(driver).merged == 2
    assert ranges_of_table(deployment) == [*MERGED[:2], (0, 25, 26), *MERGED[2:]]
    driver.check_complete("orders")


def test_the_small_archives_go_once_no_retained_snapshot_names_them(
    driver: Driver, deployment: Deployment
) -> None:
    records, small = driver.records("orders"), _stored(driver)
    compact(driver)
    assert len(_stored(driver)) == len(small) + 2
    for _ in range(2):
        driver.clock.ahead_s += 3601
        compact(driver)
    assert small <= _stored(driver), "a retained snapshot names them"
    with catalog_table(deployment, "shop.orders") as table:
        gone = [
            item.snapshot_id
            for item in table.snapshots()
            if item.snapshot_id != table.current_snapshot().snapshot_id
        ]
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids(gone)
    for _ in range(2):
        driver.clock.ahead_s += 3601
        compact(driver)
    assert len(_stored(driver)) == 4
    assert driver.application.ledger().topic(driver.topic_id("orders")).rewrites.replaced == {}
    assert driver.records("orders") == records
    check_compacted(driver)
    driver.send("orders", [order(400)], 0)
    assert driver.archive().exit_code == 0
    driver.check_complete("orders")


def _stored(driver: Driver) -> set[str]:
    return {
        info.key for info in driver.application.objects.list(f"archive/{driver.topic_id('orders')}/data/")
    }


def test_a_damaged_archive_stays_as_it_is_and_the_others_go_on(
    driver: Driver, deployment: Deployment
) -> None:
    spoil(driver, deployment, 0, 5)
    done = compact(driver)
    assert (done.merged, done.archives) == (2, 4)
    (reported,) = done.skipped
    assert "00000000000000000005-" in reported["archive"]
    assert ranges_of_table(deployment) == [(0, 0, 5), (0, 5, 10), (0, 10, 20), (0, 20, 25), *MERGED[2:]]


def spoil(driver: Driver, deployment: Deployment, partition: int, base: int) -> None:
    """Flip a byte in the pages of one archive."""
    (victim,) = [
        key for key in _stored(driver) if f"/{base:020d}-" in key and f"partition={partition:05d}" in key
    ]
    path = deployment.data / victim
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)


def test_what_cannot_be_merged_does_not_use_up_the_limit_of_a_run(tmp_path: Path) -> None:
    with Driver(compacted(tmp_path / "d", compact_run_bytes_max=1)) as driver:
        at_noon(driver)
        for partition in (0, 1):
            send_small(driver, 2, partition=partition)
        driver.clock.ahead_s += 2 * DAY_S
        spoil(driver, driver.deployment, 0, 0)
        spoil(driver, driver.deployment, 0, 5)
        done = compact(driver)
        assert (done.merged, ranges_of_table(driver.deployment)) == (1, [(0, 0, 5), (0, 5, 10), (1, 0, 10)])


def test_a_reader_that_began_before_reads_on(driver: Driver, deployment: Deployment) -> None:
    """Archives that it listed are merged, expire and are deleted while it reads."""
    wanted = driver.records("orders")[0]
    state = driver.application.topic("orders")
    reading = driver.application.stream().read(state.topic_id, 0)
    found = [next(reading)]
    assert compact(driver).merged == 2
    forget_snapshots(deployment, "shop.orders")
    for _ in range(2):
        driver.clock.ahead_s += 3601
        compact(driver)
    assert len(_stored(driver)) == 4
    found += list(reading)
    assert found == wanted


def test_retention_takes_a_merged_archive_once_all_of_it_is_too_old(deployment: Deployment) -> None:
    keep(deployment, "2d")
    with Driver(deployment) as driver:
        at_noon(driver)
        send_small(driver, 1)
        driver.clock.ahead_s += DAY_S / 4
        send_small(driver, 1, first=50)
        driver.clock.ahead_s += DAY_S
        assert compact(driver).merged == 1
        assert ranges_of_table(deployment) == [(0, 0, 10)]
        driver.clock.ahead_s += (
            0.9 * DAY_S
        )  # two days and some hours after the first, less than two after the second
        compact(driver)
        topic = driver.application.ledger().topic(driver.topic_id("orders"))
        assert (topic.start(0), ranges_of_table(deployment)) == (5, [(0, 0, 10)])
        assert driver.audit()["verdict"] == "valid"
        state = driver.application.topic("orders")
        assert [record.offset for record in driver.application.stream().read(state.topic_id, 0, 5)] == [
            5,
            6,
            7,
            8,
            9,
        ]
        driver.clock.ahead_s += DAY_S / 2
        compact(driver)
        assert (topic.start(0), ranges_of_table(deployment)) == (10, [])
        assert driver.audit()["verdict"] == "valid"


def test_schema_versions_are_not_mixed(deployment: Deployment) -> None:
    """Archives of another schema version stay apart; each merge keeps the columns of its own version."""
    with Driver(deployment) as driver:
        at_noon(driver)
        send_small(driver, 2)
        (deployment.root / "shop.binpb").write_bytes(second_version()[0])
        send_small(driver, 2, first=10)
        driver.clock.ahead_s += 2 * DAY_S
        rows = rows_of_table(deployment)
        done = compact(driver)
        assert (done.merged, done.skipped) == (2, [])
        assert ranges_of_table(deployment) == [(0, 0, 10), (0, 10, 20)]
        assert rows_of_table(deployment) == rows
        driver.check_complete("orders")


def test_the_command_says_what_it_merged(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.clock.ahead_s = DAY_S / 2 - time.time() % DAY_S - 3 * DAY_S  # noon, three days ago
        send_small(driver, 3)
    done = deployment.cli("clean", "--dry-run")
    assert done.code == 0, done.err
    assert re.search(
        r"^orders: 3 archives with [0-9.]+ KiB would be merged into 1$", done.out, re.MULTILINE
    ), done.out
    done = deployment.cli("clean")
    assert done.code == 0, done.err
    assert re.search(
        r"^orders: 3 archives with [0-9.]+ KiB merged into 1 with [0-9.]+ KiB$", done.out, re.MULTILINE
    ), done.out
    assert ranges_of_table(deployment) == [(0, 0, 15)]
    assert deployment.cli("clean", "--output", "json").json()["compacted"] == [], "nothing is left to merge"
