"""A deployment with every kind of history that a table can be rebuilt from, and its rows before it was
lost."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater
from archiver.stream.records import StreamRecord
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.undecoded import replay, send_unmended
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import DESCRIPTOR_SET, order

TABLES = {"orders": "shop.orders", "clicks": "shop.clicks"}
Rows = dict[tuple[int, int], Any]


def second_version() -> tuple[bytes, Any]:
    """The orders without `customer`, with a `note`; and the message's class."""
    changed = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    message = changed.file[0].message_type[1]
    del message.field[1]
    message.field.add(
        name="note", number=4, type=message.field[0].TYPE_STRING, label=message.field[0].LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(changed.file[0])
    return changed.SerializeToString(), message_factory.GetMessageClass(
        pool.FindMessageTypeByName("shop.Order")
    )


@dataclass
class Before:
    """What could be read."""

    rows: dict[str, Rows]
    """By topic, as pyiceberg reads its table."""
    records: dict[str, dict[int, list[StreamRecord]]]
    files: dict[str, dict[str, Any]]
    """By topic: path → what the manifest says of it."""
    uuids: dict[str, str]
    """By topic, of its table."""

    def moved(self, was: Path, now: Path) -> Before:
        """The same of a copy of the folder."""
        files = {
            topic: {path.replace(was.as_uri(), now.as_uri()): reported for path, reported in of_topic.items()}
            for topic, of_topic in self.files.items()
        }
        return replace(self, files=files)


def make_history(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Before:
    """Several partitions and rounds; two schema versions; a replayed archive and the one that it replaced;
    aborted transactions inside an archive, and ranges of nothing else; a failed attempt that overlaps what
    came after it.
    """
    with Driver(deployment) as driver:
        send_unmended(driver, monkeypatch)
        assert replay(driver).state == "replayed"
        aborting = Transactional(driver.application, driver.clock, "aborting")
        driver.send("orders", [order(100)], 1)
        aborting.send(
            {("orders", 1): [order(101)] * 3, ("orders", 2): [order(102)] * 4, ("clicks", 1): [b"never"]}
        )
        driver.send("orders", [order(103), None], 1)
        driver.send("clicks", [f"click {number}".encode() for number in range(5)], 0)
        assert aborting.abort() is None
        driver.archive()
        descriptor_set, _ = second_version()
        (deployment.root / "shop.binpb").write_bytes(descriptor_set)
    with Driver(deployment) as driver:
        message = second_version()[1]
        values = [message(id=number, note=f"note {number}").SerializeToString() for number in range(6)]
        driver.send("orders", values[:2], 0)
        driver.send("orders", values[:3], 2)
        failpoints.arm("written.append.before=error")
        with suppress(RetryLater):
            driver.archive()
        failpoints.arm("")
    with Driver(deployment) as driver:
        driver.send("orders", values[3:], 0)
        driver.send("clicks", [b"last"], 1)
        driver.archive()
        driver.check_complete(*TABLES)
        return Before(
            {topic: rows_of(deployment, table) for topic, table in TABLES.items()},
            {topic: driver.records(topic) for topic in TABLES},
            {topic: described_files(deployment, table) for topic, table in TABLES.items()},
            {topic: uuid_of(deployment, table) for topic, table in TABLES.items()},
        )


def copied(deployment: Deployment, root: Path, *, failpoints_asked: bool) -> Deployment:
    """A copy of a deployment whose catalog is lost: nothing else in it says where it lies."""
    shutil.copytree(deployment.root, root)
    made = Deployment(root, failpoints_asked)
    (root / "shop.binpb").write_bytes(second_version()[0])
    return made


def uuid_of(deployment: Deployment, table: str) -> str:
    """The table's uuid."""
    with catalog_table(deployment, table) as opened:
        return str(opened.metadata.table_uuid)


def rows_of(deployment: Deployment, table: str) -> Rows:
    """(partition, offset) → the whole row, as pyiceberg reads it; no row stands there twice."""
    with catalog_table(deployment, table) as opened:
        found: list[Any] = opened.scan().to_arrow().to_pylist()
    places = [(row["kafka"]["partition"], row["kafka"]["offset"]) for row in found]
    assert len(set(places)) == len(places)
    return dict(zip(places, found, strict=True))


def described_files(deployment: Deployment, table: str) -> dict[str, Any]:
    """Path → everything that readers go by."""
    with catalog_table(deployment, table) as opened:
        return {
            task.file.file_path: (
                task.file.record_count,
                task.file.file_size_in_bytes,
                tuple(task.file.partition[place] for place in range(len(task.file.partition))),
                dict(task.file.lower_bounds),
                dict(task.file.upper_bounds),
                dict(task.file.null_value_counts),
                dict(task.file.value_counts),
                dict(task.file.column_sizes),
                list(task.file.split_offsets or ()),
                task.file.sort_order_id,
            )
            for task in opened.scan().plan_files()
        }


def places_by_duckdb(deployment: Deployment, table: str) -> list[tuple[int, int]]:
    """(partition, offset) of every row of the table's files, in order, by a reader of its own."""
    with catalog_table(deployment, table) as opened:
        paths = [task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()]
    with duckdb.connect() as connection:
        connection.execute(
            'SELECT kafka."partition", kafka."offset" FROM read_parquet(?, hive_partitioning=false) '
            "ORDER BY ALL",
            [paths],
        )
        return [(int(partition), int(offset)) for partition, offset in connection.fetchall()]


def lose_catalog(deployment: Deployment) -> None:
    """The catalog's database is gone; the tables' metadata files are of no use then, so they may go as
    well."""
    (deployment.root / "catalog.db").unlink()
    for folder in deployment.data.glob("archive/*/metadata"):
        shutil.rmtree(folder)


def lose_metadata(deployment: Deployment) -> Path:
    """The metadata store is gone: away in the folder that is returned."""
    away = deployment.root / "away"
    away.mkdir()
    for path in [*deployment.root.glob("metadata.db*")]:
        path.rename(away / path.name)
    return away
