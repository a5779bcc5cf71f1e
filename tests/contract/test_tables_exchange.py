"""Files that are replaced by others in one snapshot, and what a table still names: the same of every
`Tables`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import SwapOutcome, Tables, TableView
from archiver.events.types import DataFile
from archiver.runtime.errors import RetryLater
from tests.contract.test_tables import append, one_file
from tests.support.catalog.table_catalogs import loaded, made
from tests.support.catalog.tables import data_file


def exchanged(view: TableView, base: int, end: int) -> tuple[str, DataFile]:
    """The path of a file that `append` made, and another file with the same rows."""
    path = f"{view.location}/data/again-{base}-{end}.parquet"
    return one_file(view, base, end).path, data_file(path, stream_fields(view.schema_json), 0, base, end)


def test_an_exchange_removes_and_adds_in_one_replace_snapshot(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    before = append(tables, (0, 5), (5, 9))
    append(tables, (9, 12))
    view = loaded(tables)
    old, new = exchanged(view, 5, 9)
    request = tables.prepare_exchange(view, [old], [new], {"archiver.commit-id": "c"})
    assert loaded(tables).snapshot_id == view.snapshot_id
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    newest = after.lineage()[0]
    assert (newest.operation, newest.parent_id, newest.sequence_number) == (
        "replace",
        view.snapshot_id,
        view.sequence_number + 1,
    )
    assert (newest.snapshot_id, newest.summary["archiver.commit-id"]) == (request.snapshot_id, "c")
    assert after.properties == view.properties
    assert sorted((file.offset_min, file.offset_max) for file in tables.live_files(after)) == [
        (0, 4),
        (5, 8),
        (9, 11),
    ]
    paths = {file.path for file in tables.live_files(after)}
    assert (new.path in paths, old in paths) == (True, False)
    assert {file.path for file in tables.live_files(after, before.snapshot_id)} == {
        one_file(view, *one).path for one in ((0, 5), (5, 9))
    }
    assert tables.data_paths(after, view.sequence_number) == {new.path}
    kept = {file.path: file.sequence_number for file in tables.live_files(after)}
    assert kept[one_file(view, 0, 5).path] == before.sequence_number


def test_several_files_give_way_to_one(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    append(tables, (0, 5), (5, 9))
    view = append(tables, (9, 12), (12, 15))
    merged = data_file(f"{view.location}/data/merged.parquet", stream_fields(view.schema_json), 0, 0, 12)
    olds = [one_file(view, *one).path for one in ((0, 5), (5, 9), (9, 12))]
    assert tables.swap(tables.prepare_exchange(view, olds, [merged], {})).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert sorted((file.offset_min, file.offset_max) for file in tables.live_files(after)) == [
        (0, 11),
        (12, 14),
    ]
    assert after.lineage()[0].operation == "replace"
    assert tables.data_paths(after, view.sequence_number) == {merged.path}
    names = {path.rpartition("/")[2] for path in (*olds, merged.path)}
    assert tables.retained_paths(after, names) == {*olds, merged.path}


def test_manifests_are_merged_over_an_exchange(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    append(tables, (0, 5), (5, 9))
    view = append(tables, (9, 12))
    old, new = exchanged(view, 5, 9)
    assert tables.swap(tables.prepare_exchange(view, [old], [new], {})).outcome is SwapOutcome.APPLIED
    after = append(tables, (12, 14), merge=True)
    paths = [file.path for file in tables.live_files(after)]
    assert sorted(paths) == sorted(
        [new.path, *(one_file(view, *one).path for one in ((0, 5), (9, 12), (12, 14)))]
    )


def test_c5_an_exchange_asserts_its_base(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 5))
    old, new = exchanged(view, 0, 5)
    first, second = (tables.prepare_exchange(view, [old], [new], {}) for _ in range(2))
    append(tables, (5, 9))
    assert tables.swap(first).outcome is SwapOutcome.CONFLICT
    assert tables.swap(second).outcome is SwapOutcome.CONFLICT
    assert sorted(file.path for file in tables.live_files(loaded(tables))) == [
        one_file(view, *one).path for one in ((0, 5), (5, 9))
    ]


def test_an_exchange_of_a_file_that_is_gone_is_not_prepared(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 5))
    with pytest.raises(RetryLater, match="9-12"):
        tables.prepare_exchange(view, [exchanged(view, 9, 12)[0]], [exchanged(view, 9, 12)[1]], {})


def test_retained_paths_are_those_of_every_retained_snapshot(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    view = append(tables, (0, 5))
    old, new = exchanged(view, 0, 5)
    assert tables.swap(tables.prepare_exchange(view, [old], [new], {})).outcome is SwapOutcome.APPLIED
    names = {path.rpartition("/")[2] for path in (old, new.path)}
    assert tables.retained_paths(loaded(tables), names) == {old, new.path}
    assert tables.retained_paths(loaded(tables), {new.path.rpartition("/")[2]}) == {new.path}
    append(tables, (5, 9), expire=(view.snapshot_id or 0,))
    assert tables.retained_paths(loaded(tables), names) == {new.path}


def test_null_counts_are_given_for_the_columns_asked_for(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    append(tables, (0, 5))
    offset = stream_fields(view.schema_json).offset
    assert [file.null_counts for file in tables.live_files(loaded(tables), nulls_of=(offset, 999))] == [
        ((offset, 0),)
    ]
    assert [file.null_counts for file in tables.live_files(loaded(tables))] == [()]
