"""One suite for every `Tables` that gets another schema: the pyiceberg adapter on a SQL catalog in SQLite,
and the twin in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Evolved, Prepared, SwapOutcome, Tables, TableView
from archiver.runtime.errors import Halt
from tests.support.catalog.table_catalogs import client, loaded, made
from tests.support.catalog.tables import IDENTIFIER, data_file


def prepared(tables: Tables, view: TableView, base: int, end: int) -> Prepared:
    path = f"{view.location}/data/{base}-{end}.parquet"
    file = data_file(path, stream_fields(view.schema_json), 0, base, end)
    return tables.prepare(view, [file], lambda *_: {}, {"archiver.commit-id": "c"}, False, ())


def append(tables: Tables, base: int, end: int) -> TableView:
    assert tables.swap(prepared(tables, loaded(tables), base, end)).outcome is SwapOutcome.APPLIED
    return loaded(tables)


def with_column(
    view: TableView, name: str, kind: str = "string", field_id: int | None = None, inside: str = "value"
) -> str:
    """The view's schema with one more column at the end of a struct."""
    document: Any = json.loads(view.schema_json)
    struct = next(one for one in document["fields"] if one["name"] == inside)["type"]
    number = view.last_column_id + 1 if field_id is None else field_id
    struct["fields"].append({"id": number, "name": name, "required": False, "type": kind})
    return json.dumps(document)


def names_in(view: TableView, inside: str = "value") -> dict[str, tuple[int, str]]:
    document: Any = json.loads(view.schema_json)
    struct = next(one for one in document["fields"] if one["name"] == inside)["type"]
    return {one["name"]: (one["id"], one["type"]) for one in struct["fields"]}


def test_a_table_evolves_to_the_schema_that_is_asked_for(tables: Tables, tmp_path: Path) -> None:
    made(tables, tmp_path)
    view = append(tables, 0, 10)
    assert tables.evolve(view, with_column(view, "extra")) == Evolved(SwapOutcome.APPLIED)
    after = loaded(tables)
    assert names_in(after)["extra"] == (view.last_column_id + 1, "string")
    assert names_in(view).items() <= names_in(after).items()
    assert (after.schema_id, after.last_column_id, after.schemas) == (1, view.last_column_id + 1, 2)
    assert (after.snapshot_id, after.sequence_number, after.uuid) == (
        view.snapshot_id,
        view.sequence_number,
        view.uuid,
    )
    assert {item.path for item in tables.live_files(after)} == {item.path for item in tables.live_files(view)}
    assert append(tables, 10, 20).sequence_number == 2


def test_a_view_that_is_not_the_newest_is_refused(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    assert tables.evolve(view, with_column(view, "first")).outcome is SwapOutcome.APPLIED
    refused = tables.evolve(view, with_column(view, "second"))
    assert refused.outcome is SwapOutcome.CONFLICT and refused.why
    assert "second" not in names_in(loaded(tables)) and "first" in names_in(loaded(tables))


def test_a_snapshot_in_between_is_no_conflict(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    append(tables, 0, 10)
    assert tables.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert "extra" in names_in(after) and after.sequence_number == 1


def test_a_commit_prepared_before_the_schema_changed_still_lands(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    request = prepared(tables, view, 0, 10)
    assert tables.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.APPLIED
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert "extra" in names_in(after) and [item.offset_max for item in tables.live_files(after)] == [9]


def test_a_schema_that_the_table_had_is_made_current_again(tables: Tables, tmp_path: Path) -> None:
    first = made(tables, tmp_path)
    assert tables.evolve(first, with_column(first, "extra")).outcome is SwapOutcome.APPLIED
    second = loaded(tables)
    assert tables.evolve(second, first.schema_json).outcome is SwapOutcome.APPLIED
    third = loaded(tables)
    assert (names_in(third), third.schema_id, third.schemas) == (names_in(first), first.schema_id, 2)
    assert third.last_column_id == second.last_column_id, "an id is never given twice"
    assert tables.evolve(second, with_column(second, "late")).outcome is SwapOutcome.CONFLICT


def test_another_table_of_that_name_does_not_evolve(iceberg: IcebergTables, tmp_path: Path) -> None:
    view = made(iceberg, tmp_path)
    catalog = client(tmp_path)
    catalog.drop_table(IDENTIFIER)
    catalog.close()
    assert iceberg.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.CONFLICT
    made(iceberg, tmp_path / "other")
    assert iceberg.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.CONFLICT
    assert "extra" not in names_in(loaded(iceberg))


@pytest.mark.parametrize("error", [CommitStateUnknownException("lost"), OSError("reset"), ValueError("what")])
def test_a_lost_answer_to_a_schema_is_unknown(
    iceberg: IcebergTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    view = made(iceberg, tmp_path)
    asked = []

    def lost(*request: Any) -> None:
        asked.append(request)
        raise error

    for catalog in (SqlCatalog, RestCatalog):
        monkeypatch.setattr(catalog, "commit_table", lost)
    answer = iceberg.evolve(view, with_column(view, "extra"))
    assert (answer.outcome, len(asked)) == (SwapOutcome.UNKNOWN, 1)
    assert str(error) in answer.why


def test_a_schema_that_loses_the_stream_columns_is_refused(tables: Tables, tmp_path: Path) -> None:
    view = made(tables, tmp_path)
    with pytest.raises(Halt, match=r"kafka\.partition"):
        tables.evolve(view, '{"type":"struct","schema-id":0,"fields":[]}')
    assert loaded(tables) == view
