"""Retention and the cleaning of tables' folders on a real deployment: expired data is deleted, and no file
that is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.objects.paths import parse_archive_key
from reconcile.vacuum.report import CleanReport
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, catalog_table
from tests.support.builders.retention import keep

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    keep(made, "2h")
    return made


def later(deployment: Deployment, hours: float) -> Driver:
    clock = AheadClock()
    clock.ahead_s = hours * HOUR_S
    return Driver(deployment, clock)


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def send(driver: Driver, label: str, topic: str = "clicks", partitions: int = 2) -> None:
    for partition in range(partitions):
        assert {
            one.outcome for one in driver.send(topic, [f"{label} {n}".encode() for n in range(5)], partition)
        } == {"ok"}


def clean(driver: Driver, *, dry_run: bool = False) -> CleanReport:
    return driver.application.maintenance.cleaning(driver.reported.append, dry_run=dry_run).run(
        dry_run=dry_run
    )


def archives(driver: Driver, topic: str = "clicks") -> list[tuple[int, int, int]]:
    found = [
        parse_archive_key(info.key)
        for info in driver.application.objects.list(f"archive/{driver.topic_id(topic)}/data/")
    ]
    return [(key.partition, key.base, key.end) for key in found if key is not None]


def start_of(driver: Driver, topic: str = "clicks") -> dict[int, int]:
    return driver.application.ledger().topic(driver.topic_id(topic)).starts


def named_files(deployment: Deployment, table_name: str) -> set[str]:
    """Every file that the table's metadata and its retained snapshots name, by pyiceberg alone."""
    with catalog_table(deployment, table_name) as table:
        found = {table.metadata_location, *(item.metadata_file for item in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {
                    entry.data_file.file_path
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                }
    return {path.removeprefix("file://") for path in found}


def check_named_exist(deployment: Deployment, *tables: str) -> None:
    for name in tables:
        assert [path for path in named_files(deployment, name) if not Path(path).exists()] == []


def test_old_archives_leave_the_ledger_then_the_table_then_the_store(deployment: Deployment) -> None:
    with Driver(deployment) as first:
        send(first, "old")
        first.archive()
        before = archives(first)
        assert clean(first).starts == [], "nothing is two hours old"
    with later(deployment, 2.2) as second:
        send(second, "new")
        second.archive()
    with later(deployment, 2.5) as third:
        dry = clean(third, dry_run=True)
        assert [(item.partition, item.before, item.start) for item in dry.starts] == [(0, 0, 5), (1, 0, 5)]
        assert start_of(third) == {}
        report = clean(third)
        assert (report.starts, report.exit_code) == (dry.starts, 0), report.to_json()
        assert start_of(third) == {0: 5, 1: 5}
        with catalog_table(deployment, "shop.clicks") as table:
            assert min(row["offset"] for row in table.scan().to_arrow().column("kafka").to_pylist()) == 5
            said = [snapshot.summary.operation.value for snapshot in table.metadata.snapshots]
            assert said == ["delete", "append"], (
                "files left the table; then what older snapshots named was forgotten"
            )
        assert len(archives(third)) == len(before) * 2, "no object goes before its grace is over"
        third.check_complete("orders")
        document = third.audit()
        assert document["verdict"] == "valid", document
        clicks = [item for item in document["partitions"] if item["topic"] == "clicks"]
        assert [(item["start"], item["watermark"], item["rows"]) for item in clicks] == [
            (5, 10, 5),
            (5, 10, 5),
        ]
    with later(deployment, 3) as between:
        report = clean(between)
        assert report.kinds["condemned"]["retired"]["objects"] == 2, report.to_json()
        assert len(archives(between)) == len(before) * 2, "no object goes before its grace is over"
    with later(deployment, 4.1) as fourth:
        report = clean(fourth)
        assert report.kinds["deleted"]["retired"]["objects"] == 2, report.to_json()
        assert archives(fourth) == [(0, 5, 10), (1, 5, 10)]
        check_named_exist(deployment, "shop.clicks")
        records = fourth.application.stream().read(fourth.topic_id("clicks"), 0, 0)
        assert [record.offset for record in records] == [5, 6, 7, 8, 9]
        send(fourth, "newest")
        fourth.archive()
        assert fourth.audit()["verdict"] == "valid"
