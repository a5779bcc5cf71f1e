"""External changes of a real table, made with pyiceberg: compaction, appends, rollback, expiry. And a reader
of what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.values import data_file_of
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Tables, TableView
from archiver.events.types import DataFile
from archiver.runtime.ids import SeededIds
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import IDENTIFIER, Bench, data_file, offsets_in, rows, write_rows


def iceberg_tables(folder: Path, seed: int) -> IcebergTables:
    return IcebergTables("local", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}, SeededIds(seed))


def view_of(tables: Tables) -> TableView:
    view = tables.load(IDENTIFIER)
    assert view is not None
    return view


def check_rows(tables: Tables, folder: Path, *expected: tuple[int, int, int]) -> None:
    """Exactly these rows, by the files' bounds and, where the table is real, by reading it."""
    assert offsets_in(tables) == rows(*expected)
    if isinstance(tables, IcebergTables):
        catalog = load_catalog("local", type="sql", uri=f"sqlite:///{folder}/catalog.db")
        found = catalog.load_table(IDENTIFIER).scan().to_arrow()["kafka"].to_pylist()
        catalog.close()
        assert sorted((row["partition"], row["offset"]) for row in found if row is not None) == rows(
            *expected
        )


class _Replace(_OverwriteFiles):
    """What Java's compaction commits; pyiceberg itself has no such operation."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        summary = super()._summary(snapshot_properties or {})
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)


def compact(tables: Tables, bench: Bench, partition: int, base: int, end: int) -> None:
    """An external client rewrites all files into one of the same rows."""
    view = view_of(tables)
    path = bench.folder / f"compacted-{view.sequence_number}.parquet"
    size = write_rows(path, "row", partition, range(base, end), view.schema_json)
    one = data_file(f"file://{path}", stream_fields(view.schema_json), partition, base, end, size)
    swap_files(tables, view, [one], "replace")


def swap_files(
    tables: Tables, view: TableView, add: Sequence[DataFile], operation: str, remove: bool = True
) -> None:
    if isinstance(tables, MemoryTables):
        old = [item.path for item in tables.live_files(view)] if remove else []
        tables.replace_files(IDENTIFIER, old, add, operation)
        return
    table = view.handle
    assert isinstance(table, Table)
    transaction = Transaction(table, autocommit=True)
    if operation == "replace":
        producer: _OverwriteFiles = _Replace(Operation.OVERWRITE, transaction, table.io)
    else:
        producer = _OverwriteFiles(Operation(operation), transaction, table.io)
    for item in add:
        producer.append_data_file(data_file_of(item, view.spec_id))
    for old_file in live(table) if remove else []:
        producer.delete_data_file(old_file)
    producer.commit()


def live(table: Table) -> list[IcebergDataFile]:
    return [task.file for task in table.scan().plan_files()]


def roll_back(tables: Tables, snapshot_id: int) -> None:
    if isinstance(tables, MemoryTables):
        tables.roll_back(IDENTIFIER, snapshot_id)
        return
    table = view_of(tables).handle
    assert isinstance(table, Table)
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)


def roll_forward(tables: Tables, snapshot_id: int) -> None:
    """Make any retained snapshot the current one, in whichever lineage it is."""
    if isinstance(tables, MemoryTables):
        tables.roll_back(IDENTIFIER, snapshot_id)
        return
    table = view_of(tables).handle
    assert isinstance(table, Table)
    with table.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id)


def commit_to_branch(tables: Tables, bench: Bench, name: str = "theirs") -> None:
    """An external client appends an empty file to a branch that begins at the current snapshot."""
    if isinstance(tables, MemoryTables):
        tables.commit_to_branch(IDENTIFIER)
        return
    view = view_of(tables)
    table = view.handle
    assert isinstance(table, Table)
    assert view.snapshot_id is not None
    with table.manage_snapshots() as manage:
        manage.create_branch(view.snapshot_id, name)
    path = bench.folder / f"{name}-{view.sequence_number}.parquet"
    size = write_rows(path, "row", 0, range(0), view.schema_json)
    one = data_file(f"file://{path}", stream_fields(view.schema_json), 0, 0, 0, size)
    transaction = Transaction(table, autocommit=True)
    producer = _OverwriteFiles(Operation.APPEND, transaction, table.io, branch=name)
    producer.append_data_file(data_file_of(one, view.spec_id))
    producer.commit()


def expire_all_but_current(tables: Tables) -> None:
    view = view_of(tables)
    expire(tables, [item.snapshot_id for item in view.snapshots if item.snapshot_id != view.snapshot_id])


def expire(tables: Tables, gone: Sequence[int]) -> None:
    """Expire these snapshots as external tools do: the archiver is not notified."""
    if isinstance(tables, MemoryTables):
        tables.expire(IDENTIFIER, gone)
        return
    table = view_of(tables).handle
    assert isinstance(table, Table)
    with table.maintenance.expire_snapshots() as expiring:
        expiring.by_ids(list(gone))
