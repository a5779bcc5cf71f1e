"""Tables with small archives of days that are over, and their compaction: for tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from archiver.objects.paths import ArchiveKey, parse_archive_key
from archiver.rewrite.compact import TopicCompaction
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.orders import order

DAY_S = 86_400.0
BYTES = 128 * 2**20


def compacted(root: Path, **cleanup: Any) -> Deployment:
    """A deployment whose cleaning merges archives."""
    return Deployment(root, overrides={"cleanup": {"compact_bytes": BYTES, **cleanup}})


def at_noon(driver: Driver) -> None:
    """Set its clock to noon of tomorrow, so that what is sent within minutes is of one day."""
    driver.clock.ahead_s = DAY_S + DAY_S / 2 - time.time() % DAY_S


def send_small(driver: Driver, count: int, first: int = 0, partition: int = 0, each: int = 5) -> None:
    """So many archives with a few orders each, in one day."""
    for number in range(count):
        ids = range(first + number * each, first + (number + 1) * each)
        driver.send("orders", [order(one) for one in ids], partition)
        assert driver.archive().exit_code == 0


def compact(driver: Driver, *, dry_run: bool = False) -> TopicCompaction:
    """One run of cleaning; what it says of the topic of orders."""
    report = driver.application.maintenance.cleaning(driver.reported.append, dry_run=dry_run).run(
        dry_run=dry_run
    )
    assert (report.findings, report.error) == ([], None)
    for topic in report.compacted:
        if topic.topic == "orders":
            assert isinstance(topic, TopicCompaction)
            return topic
    return TopicCompaction("orders")


def archives_of_table(deployment: Deployment, name: str = "shop.orders") -> list[ArchiveKey]:
    """What the table's current snapshot names, by partitions and offsets."""
    with catalog_table(deployment, name) as table:
        paths = [task.file.file_path for task in table.scan().plan_files()]
    found = [parse_archive_key(path[path.index("archive/") :]) for path in paths]
    assert all(one is not None for one in found)
    return sorted((one for one in found if one is not None), key=lambda one: (one.partition, one.base))


def ranges_of_table(deployment: Deployment) -> list[tuple[int, int, int]]:
    """As `archives_of_table`: partition, base, end."""
    return [(one.partition, one.base, one.end) for one in archives_of_table(deployment)]


def rows_of_table(deployment: Deployment) -> list[Mapping[str, Any]]:
    """Every row with all its columns, by partitions and offsets."""
    with catalog_table(deployment, "shop.orders") as table:
        rows: list[Mapping[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["kafka"]["partition"], row["kafka"]["offset"]))


def erase(table: Table, partition: int, base: int) -> None:
    """An external client removes one archive from the table."""
    files = [task.file for task in table.scan().plan_files()]
    (gone,) = [
        file
        for file in files
        if f"/partition={partition:05d}/" in file.file_path and f"/{base:020d}-" in file.file_path
    ]
    transaction = Transaction(table, autocommit=True)
    producer = _OverwriteFiles(Operation.OVERWRITE, transaction, table.io)
    producer.delete_data_file(gone)
    producer.commit()
