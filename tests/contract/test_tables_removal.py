"""Files that leave a table without others in their place, and everything that a table names: the same of
every `Tables`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import Table

from archiver.catalog.tables import SwapOutcome, Tables
from archiver.runtime.errors import RetryLater
from tests.contract.test_tables import append, named, one_file
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.table_catalogs import loaded, made


def ranges(tables: Tables) -> list[tuple[int | None, int | None]]:
    return sorted((file.offset_min, file.offset_max) for file in tables.live_files(loaded(tables)))


def test_a_removal_is_one_delete_snapshot_that_sets_properties(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    append(tables, (0, 5), (5, 9))
    view = append(tables, (9, 12))
    gone = [one_file(view, 0, 5).path, one_file(view, 9, 12).path]
    request = tables.prepare_removal(view, gone, named(kept="yes"), {"archiver.commit-id": "c"}, ())
    assert loaded(tables).snapshot_id == view.snapshot_id
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    newest = after.lineage()[0]
    assert (newest.operation, newest.parent_id, newest.sequence_number) == (
        "delete",
        view.snapshot_id,
        view.sequence_number + 1,
    )
    assert (newest.snapshot_id, newest.summary["archiver.commit-id"]) == (request.snapshot_id, "c")
    assert (after.properties["kept"], after.properties["announced"]) == (
        "yes",
        f"{newest.snapshot_id} {newest.sequence_number}",
    )
    assert ranges(tables) == [(5, 8)]
    assert len(list(tables.live_files(after, view.snapshot_id))) == 3, "an older snapshot still has them"
    append(tables, (12, 20))
    assert ranges(tables) == [(5, 8), (12, 19)]


def test_a_removal_can_take_everything_and_forget_snapshots(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    first = append(tables, (0, 5))
    view = append(tables, (5, 9))
    gone = [file.path for file in tables.live_files(view)]
    assert first.snapshot_id is not None
    request = tables.prepare_removal(view, gone, named(), {}, (first.snapshot_id,))
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert [item.snapshot_id for item in after.snapshots] == [view.snapshot_id, request.snapshot_id]
    assert ranges(tables) == []


def test_what_is_not_live_cannot_be_removed_and_a_stale_base_is_refused(
    tables: Tables, tmp_path: Path
) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 5), (5, 9))
    with pytest.raises(RetryLater, match="not in its current snapshot"):
        tables.prepare_removal(view, ["file:///nowhere"], named(), {}, ())
    stale = tables.prepare_removal(view, [one_file(view, 0, 5).path], named(), {}, ())
    append(tables, (9, 12))
    assert tables.swap(stale).outcome is SwapOutcome.CONFLICT
    assert ranges(tables) == [(0, 4), (5, 8), (9, 11)]


def test_everything_that_metadata_and_retained_snapshots_need_is_named(
    tables: Tables, tmp_path: Path
) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 5), (5, 9))
    gone = one_file(view, 0, 5).path
    tables.swap(tables.prepare_removal(view, [gone], named(), {}, ()))
    assert gone in set(tables.named_paths(loaded(tables))), "an older snapshot has it"
    first = view.snapshot_id or 0
    view = append(tables, (9, 12), expire=(first,))
    found = set(tables.named_paths(view))
    assert gone not in found
    assert {one_file(view, 5, 9).path, one_file(view, 9, 12).path} <= found
    if isinstance(tables, MemoryTables):
        return
    table = view.handle
    assert isinstance(table, Table)
    files = {str(path) for path in (tmp_path / "archive").rglob("*") if path.is_file()}
    named_files = {path.removeprefix("file://") for path in found}
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    manifests = {
        manifest.manifest_path for one in table.metadata.snapshots for manifest in one.manifests(table.io)
    }
    assert {
        view.metadata_location,
        *lists,
        *manifests,
        *(item.metadata_file for item in table.metadata.metadata_log),
    } <= found
    left = {Path(path).name for path in files - named_files}
    assert any(name.startswith(f"snap-{first}-") for name in left), (
        "the list of the snapshot that was forgotten"
    )
    assert not left & {Path(path).name for path in manifests | lists}
