"""One suite for every `Tables`: the pyiceberg adapter on a SQL catalog in SQLite and on the real REST
catalog, and the twin in memory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from sqlalchemy.exc import OperationalError

from archiver.catalog.iceberg import producers
from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Prepared, SwapOutcome, Tables, TableView
from archiver.events.types import DataFile
from archiver.runtime.errors import ConfigInvalid, Halt, KeyExists, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.table_catalogs import client, loaded, made, sql_tables
from tests.support.catalog.tables import (
    CLUSTER_ID,
    IDENTIFIER,
    TOPIC_ID,
    Bench,
    data_file,
    schema_json,
    target_in,
)


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[IcebergTables]:
    found = sql_tables(tmp_path)
    yield found
    found.close()


def one_file(view: TableView, base: int, end: int, partition: int = 0) -> DataFile:
    path = f"{view.location}/data/{partition}-{base}-{end}.parquet"
    return data_file(path, stream_fields(view.schema_json), partition, base, end)


def named(**properties: str) -> Any:
    """New properties that also hold what the adapter announced."""

    def properties_of(snapshot_id: int, sequence_number: int) -> Mapping[str, str]:
        return {"announced": f"{snapshot_id} {sequence_number}", **properties}

    return properties_of


def prepared(
    tables: Tables, view: TableView, *files: DataFile, merge: bool = False, expire: tuple[int, ...] = ()
) -> Prepared:
    return tables.prepare(view, files, named(), {"archiver.commit-id": "c"}, merge, expire)


def append(
    tables: Tables, *ranges: tuple[int, int], merge: bool = False, expire: tuple[int, ...] = ()
) -> TableView:
    view = loaded(tables)
    request = prepared(
        tables, view, *(one_file(view, base, end) for base, end in ranges), merge=merge, expire=expire
    )
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    return loaded(tables)


def test_a_table_that_is_not_there_is_none(tables: Tables) -> None:
    assert tables.load(IDENTIFIER) is None
    assert tables.load(("no", "such")) is None


def test_created_table_is_as_asked(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    assert view.location == target_in(tmp_path).location
    assert (view.format_version, view.spec_id, view.schema_id, view.granularity) == (2, 0, 0, "day")
    assert (view.snapshot_id, view.sequence_number, view.snapshots) == (None, 0, ())
    assert view.properties["archiver.topic-id"] == TOPIC_ID
    assert view.properties["archiver.cluster-id"] == CLUSTER_ID
    assert view.properties["gc.enabled"] == "false"
    assert not [name for name in view.properties if name.startswith("commit.retry")]
    stream_fields(view.schema_json)
    assert loaded(tables) == view


@pytest.mark.parametrize("granularity", ["day", "hour", "month"])
def test_every_granularity_is_recognised_again(tables: Tables, tmp_path: Path, granularity: Any) -> None:
    tables.create(IDENTIFIER, target_in(tmp_path).location, schema_json(), granularity, {})
    assert loaded(tables).granularity == granularity


def test_a_second_create_is_refused(tables: Tables, tmp_path: Path) -> None:
    first = made(tables, tmp_path)
    with pytest.raises(KeyExists, match=r"demo\.flights"):
        made(tables, tmp_path)
    assert loaded(tables).uuid == first.uuid


def test_a_schema_without_stream_columns_is_refused(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(Halt, match=r"kafka\.partition"):
        tables.create(
            IDENTIFIER, target_in(tmp_path).location, '{"type":"struct","schema-id":0,"fields":[]}', "day", {}
        )
    assert tables.load(IDENTIFIER) is None


def test_swap_sets_snapshot_and_properties_in_one_commit(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    request = tables.prepare(
        view, [one_file(view, 0, 10)], named(x="1"), {"archiver.commit-id": "c", "n": "2"}, False, ()
    )
    assert loaded(tables) == view  # nothing is visible before
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert (after.snapshot_id, after.sequence_number) == (request.snapshot_id, 1)
    assert after.properties["x"] == "1"
    assert after.properties["announced"] == f"{request.snapshot_id} 1"
    assert after.properties["archiver.topic-id"] == TOPIC_ID
    (snapshot,) = after.snapshots
    assert (snapshot.parent_id, snapshot.sequence_number, snapshot.operation) == (None, 1, "append")
    assert snapshot.summary["archiver.commit-id"] == "c"
    assert snapshot.summary["n"] == "2"


def test_live_files_report_bounds_and_partition(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 10), (10, 25))
    files = sorted(tables.live_files(view), key=lambda item: item.path)
    assert [(item.offset_min, item.offset_max, item.record_count, item.file_size) for item in files] == [
        (0, 9, 10, 100),
        (10, 24, 15, 100),
    ]
    assert {
        (item.partition, item.partition_min, item.partition_max, item.sequence_number) for item in files
    } == {((20_000,), 0, 0, 1)}
    assert {item.snapshot_id for item in files} == {view.snapshot_id}
    assert not any(item.has_deletes for item in files)


def test_an_empty_commit_moves_the_base(tables: Tables, tmp_path: Path) -> None:
    """Rule D2 needs a fence: a snapshot that adds nothing."""
    made(tables, tmp_path)
    before = append(tables, (0, 5))
    after = append(tables)
    assert after.snapshot_id != before.snapshot_id
    assert after.sequence_number == before.sequence_number + 1
    assert [item.offset_max for item in tables.live_files(after)] == [4]


def test_lineage_runs_from_the_newest_to_the_oldest(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    ids = [append(tables, (at, at + 1)).snapshot_id for at in range(4)]
    assert [item.snapshot_id for item in loaded(tables).lineage()] == ids[::-1]


def test_c5_a_stale_base_is_a_conflict(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    base = append(tables, (0, 5))
    late = prepared(tables, base, one_file(base, 5, 9))
    newest = append(tables, (5, 6))
    swapped = tables.swap(late)
    assert swapped.outcome is SwapOutcome.CONFLICT
    assert swapped.why
    assert loaded(tables) == newest
    assert sorted(item.offset_max or 0 for item in tables.live_files(newest)) == [4, 5]


def test_c5_the_base_of_an_empty_table_is_asserted_too(tables: Tables, tmp_path: Path) -> None:
    empty = made(tables, tmp_path)
    late = prepared(tables, empty, one_file(empty, 0, 9))
    append(tables, (0, 5))
    assert tables.swap(late).outcome is SwapOutcome.CONFLICT


def test_the_same_request_twice_is_applied_once(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    request = prepared(tables, view, one_file(view, 0, 5))
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    assert tables.swap(request).outcome is SwapOutcome.CONFLICT
    assert [item.offset_max for item in tables.live_files(loaded(tables))] == [4]


def test_c5_a_base_that_became_current_again_is_refused_by_its_sequence_number(
    tables: Tables, tmp_path: Path
) -> None:
    made(tables, tmp_path)
    first = append(tables, (0, 5))
    paused = prepared(tables, first, one_file(first, 5, 9))
    append(tables, (5, 7))
    assert first.snapshot_id is not None
    roll_back(tables, tmp_path, first.snapshot_id)
    rolled = loaded(tables)
    assert rolled.snapshot_id == first.snapshot_id
    assert rolled.sequence_number == 2
    assert tables.swap(paused).outcome is SwapOutcome.CONFLICT
    assert [item.offset_max for item in tables.live_files(loaded(tables))] == [4]


def test_c5_a_recreated_table_has_another_uuid_and_refuses(tables: Tables, tmp_path: Path) -> None:
    old = made(tables, tmp_path)
    paused = prepared(tables, old, one_file(old, 0, 5))
    drop(tables, tmp_path)
    assert tables.swap(paused).outcome is SwapOutcome.CONFLICT
    assert tables.load(IDENTIFIER) is None
    new = made(tables, tmp_path)
    assert new.uuid != old.uuid
    assert tables.swap(paused).outcome is SwapOutcome.CONFLICT
    assert loaded(tables).snapshot_id is None


def test_a_file_of_another_partition_spec_is_refused(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    stranger = data_file(f"{view.location}/x", stream_fields(view.schema_json), 0, 0, 5, spec_id=3)
    with pytest.raises(Halt, match="partition spec 3"):
        prepared(tables, view, stranger)


def test_expiry_in_the_same_commit(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    ids = [append(tables, (at, at + 1)).snapshot_id or 0 for at in range(4)]
    view = append(tables, (4, 5), expire=(ids[0], ids[1]))
    assert [item.snapshot_id for item in view.lineage()] == [view.snapshot_id, ids[3], ids[2]]
    assert sorted(item.offset_min or 0 for item in tables.live_files(view)) == [0, 1, 2, 3, 4]


def test_expiring_what_is_gone_already_is_a_conflict_or_changes_nothing(
    tables: Tables, tmp_path: Path
) -> None:
    made(tables, tmp_path)
    ids = [append(tables, (at, at + 1)).snapshot_id or 0 for at in range(3)]
    view = append(tables, (3, 4), expire=(ids[0],))
    swapped = tables.swap(prepared(tables, view, one_file(view, 4, 5), expire=(ids[0],)))
    if swapped.outcome is SwapOutcome.CONFLICT:
        assert loaded(tables) == view
    else:  # Java's metadata builder ignores a snapshot that it does not find
        assert swapped.outcome is SwapOutcome.APPLIED
        assert [item.snapshot_id for item in loaded(tables).snapshots] == [
            *ids[1:],
            view.snapshot_id,
            swapped.snapshot_id,
        ]


def test_data_paths_since_a_sequence_number(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    for at in range(4):
        append(tables, (at, at + 1))
    view = loaded(tables)
    paths = [one_file(view, at, at + 1).path for at in range(4)]
    assert tables.data_paths(view, 0) == frozenset(paths)
    assert tables.data_paths(view, 2) == frozenset(paths[2:])
    assert tables.data_paths(view, 4) == frozenset()


def test_aside_paths_are_those_of_retained_snapshots_outside_of_the_lineage(
    tables: Tables, tmp_path: Path
) -> None:
    made(tables, tmp_path)
    for at in range(3):
        append(tables, (at, at + 1))
    view = loaded(tables)
    assert tables.aside_paths(view, 0) == frozenset()
    roll_back(tables, tmp_path, view.lineage()[-1].snapshot_id)
    turned = loaded(tables)
    assert [item.sequence_number for item in turned.aside()] == [2, 3]
    assert tables.aside_paths(turned, 0) == {one_file(view, 1, 2).path, one_file(view, 2, 3).path}
    assert tables.aside_paths(turned, 2) == {one_file(view, 2, 3).path}
    assert tables.aside_paths(turned, 3) == frozenset()


def test_merging_manifests_changes_nothing_else(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    for at in range(5):
        append(tables, (at, at + 1))
    view = append(tables, (5, 6), merge=True)
    assert sorted(item.offset_min or 0 for item in tables.live_files(view)) == list(range(6))
    assert sorted(item.sequence_number for item in tables.live_files(view)) == [1, 2, 3, 4, 5, 6]
    assert tables.data_paths(view, 5) == frozenset({one_file(view, 5, 6).path})
    assert tables.data_paths(view, 4) == frozenset({one_file(view, 4, 5).path, one_file(view, 5, 6).path})


# External changes, made with the real library where there is one.


def roll_back(tables: Tables, folder: Path, snapshot_id: int) -> None:
    if isinstance(tables, MemoryTables):
        tables.roll_back(IDENTIFIER, snapshot_id)
        return
    catalog = client(folder)
    with catalog.load_table(IDENTIFIER).manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)
    catalog.close()


def drop(tables: Tables, folder: Path) -> None:
    if isinstance(tables, MemoryTables):
        tables.drop(IDENTIFIER)
        return
    catalog = client(folder)
    catalog.drop_table(IDENTIFIER)
    catalog.close()


# The pyiceberg adapter alone.


def manifests(folder: Path) -> int:
    catalog = client(folder)
    table = catalog.load_table(IDENTIFIER)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    count = len(snapshot.manifests(table.io))
    catalog.close()
    return count


def test_a_merge_leaves_one_manifest(iceberg: IcebergTables, tmp_path: Path) -> None:
    made(iceberg, tmp_path)
    for at in range(4):
        append(iceberg, (at, at + 1))
    assert manifests(tmp_path) == 4
    append(iceberg, (4, 5), merge=True)
    assert manifests(tmp_path) == 1


def test_a_merge_leaves_grown_manifests_until_enough_have_come_together(
    iceberg: IcebergTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "SMALL_BYTES", 0)
    monkeypatch.setattr(producers, "TOGETHER_MIN", 4)
    made(iceberg, tmp_path)
    for at in range(3):
        append(iceberg, (at, at + 1), merge=True)
    assert manifests(tmp_path) == 3
    added = {
        item.path: (item.snapshot_id, item.sequence_number) for item in iceberg.live_files(loaded(iceberg))
    }
    append(iceberg, (3, 4), merge=True)
    assert manifests(tmp_path) == 1
    merged = {
        item.path: (item.snapshot_id, item.sequence_number) for item in iceberg.live_files(loaded(iceberg))
    }
    assert len(merged) == 4
    assert added.items() < merged.items()  # who added a file, and when, is still on record


def test_rows_are_readable_by_pyiceberg(iceberg: IcebergTables, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    view = bench.table(iceberg)
    files = [bench.archive(view, 1, 0, 0, 10)[1], bench.archive(view, 1, 1, 0, 5)[1]]
    assert iceberg.swap(prepared(iceberg, view, *files)).outcome is SwapOutcome.APPLIED
    catalog = client(tmp_path)
    table = catalog.load_table(IDENTIFIER)
    found: pa.Table = table.scan(row_filter="kafka.partition = 0").to_arrow()
    assert [row["offset"] for row in found["kafka"].to_pylist() if row is not None] == list(range(10))
    assert found["value"].to_pylist()[3] == {"text": "row 3"}
    assert table.scan().to_arrow().num_rows == 15
    assert len(list(table.scan(row_filter="kafka.offset >= 7").plan_files())) == 1  # the bounds prune
    catalog.close()


def test_the_adapter_deletes_nothing_on_a_conflict(iceberg: IcebergTables, tmp_path: Path) -> None:
    base = made(iceberg, tmp_path)
    late = prepared(iceberg, base, one_file(base, 0, 9))
    before = set(tmp_path.rglob("*.avro"))
    append(iceberg, (0, 5))
    assert iceberg.swap(late).outcome is SwapOutcome.CONFLICT
    assert before <= set(tmp_path.rglob("*.avro"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "error",
    [
        OperationalError("update", {}, Exception("database is locked")),
        CommitStateUnknownException("504"),
        TimeoutError("read timed out"),
        ValueError("something odd"),
    ],
    ids=["locked", "504", "timeout", "odd"],
)
def test_c6_any_other_error_of_the_catalog_is_unknown(
    sql: IcebergTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, error: Exception
) -> None:
    view = made(sql, tmp_path)
    request = prepared(sql, view, one_file(view, 0, 5))
    commit_table = SqlCatalog.commit_table

    def spoiled(self: SqlCatalog, *arguments: Any) -> Any:
        if when == "after":
            commit_table(self, *arguments)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", spoiled)
        assert sql.swap(request).outcome is SwapOutcome.UNKNOWN
    view = loaded(sql)
    assert len(list(sql.live_files(view))) == (1 if when == "after" else 0)
    assert sql.swap(request).outcome is (SwapOutcome.CONFLICT if when == "after" else SwapOutcome.APPLIED)
    assert len(list(sql.live_files(loaded(sql)))) == 1


def test_two_connections_see_each_other(sql: IcebergTables, tmp_path: Path) -> None:
    other = sql_tables(tmp_path)
    made(sql, tmp_path)
    assert append(other, (0, 5)) == loaded(sql)
    other.close()


def test_missing_metadata_halts(sql: IcebergTables, tmp_path: Path) -> None:
    view = made(sql, tmp_path)
    Path(view.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(Halt, match="metadata cannot be read"):
        sql.load(IDENTIFIER)


def test_a_catalog_that_cannot_be_opened_is_tried_later(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "catalog.db").write_bytes(b"this is no database, not at all" * 100)
    tables = sql_tables(tmp_path)
    with pytest.raises(RetryLater, match="local"):
        tables.load(IDENTIFIER)
    tables.close()


@pytest.mark.parametrize(
    "properties", [{"type": "sql", "uri": "sqlite://"}, {"type": "nonsense", "uri": "x"}]
)
def test_a_catalog_that_makes_no_sense_is_a_configuration_error(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid, match="catalog wrong"):
        IcebergTables("wrong", properties, SeededIds(1)).load(IDENTIFIER)


def test_local_metadata_is_on_disk_before_the_catalog_points_to_it(
    sql: IcebergTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    view = made(sql, tmp_path)
    monkeypatch.setattr(os, "fsync", noted)
    request = prepared(sql, view, one_file(view, 0, 5))
    sql.swap(request)
    written = {str(path) for path in (tmp_path / "archive").rglob("*") if path.is_file()}
    assert {path for path in written if not path.endswith(Path(view.metadata_location).name)} <= set(synced)
    assert str(tmp_path / "archive" / TOPIC_ID / "metadata") in synced


def test_table_uuid_is_the_catalogs(iceberg: IcebergTables, tmp_path: Path) -> None:
    view = made(iceberg, tmp_path)
    catalog = client(tmp_path)
    assert catalog.load_table(IDENTIFIER).metadata.table_uuid == view.uuid
    assert isinstance(view.uuid, uuid.UUID)
    catalog.close()
