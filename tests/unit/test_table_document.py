"""The pure parts of a table's document: snapshots, partitions and columns of any metadata."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from archiver.app import reading_table
from archiver.app.reading_table import columns_of, partition_text, snapshots_of
from archiver.catalog.table_layout import COMMIT_ID, RANGES, RETIRED
from archiver.catalog.tables import LiveFile, SnapshotView, SpecView, TableView
from archiver.status.mapping import mapping_of
from tests.support.schema.orders import order_schema

VIEW = TableView(
    identifier=("shop", "orders"),
    uuid=uuid.UUID(int=1),
    location="file:///data/table",
    metadata_location="file:///data/table/metadata/1.json",
    schema_json=order_schema().iceberg_json,
    schema_id=0,
    format_version=2,
    spec_id=0,
    granularity="day",
    snapshot_id=2,
    sequence_number=3,
    properties={},
    snapshots=(),
    specs=(
        SpecView(0, "day", 1000),
        SpecView(1, "hour", 1001),
        SpecView(2, "month", 1002),
        SpecView(3, None, 0),
    ),
)
FILE = LiveFile("file:///data/a.parquet", 10, 1000, 0, (20_000,), 0, 9, 1, 1, 2, 3)


def snapshot(number: int, parent: int | None, summary: dict[str, str]) -> SnapshotView:
    return SnapshotView(number, parent, number, 1000 * number, "append", summary)


def test_snapshots_are_the_newest_first_with_what_each_added() -> None:
    view = replace(
        VIEW,
        snapshots=(
            snapshot(1, None, {"added-records": "5", "added-data-files": "1", "added-files-size": "700"}),
            snapshot(
                2,
                1,
                {
                    COMMIT_ID: "x",
                    RANGES: "0:0-5",
                    "added-records": "3",
                    "deleted-records": "1",
                    "total-records": "7",
                },
            ),
            snapshot(3, 1, {COMMIT_ID: "y", RETIRED: "2"}),
        ),
    )
    found, left = snapshots_of(view)
    assert left == 0
    assert [(one["id"], one["place"], one["by"], one["what"]) for one in found] == [
        (3, "aside", "archiver", "retention"),
        (2, "current", "archiver", None),
        (1, "ancestor", "another writer", None),
    ]
    assert found[1]["added"] == {"rows": 3, "files": 0, "bytes": 0}
    assert found[1]["removed"] == {"rows": 1, "files": 0, "bytes": 0}
    assert (found[1]["rows"], found[1]["offsets"], found[1]["time"]) == (
        7,
        "0:0-5",
        "1970-01-01T00:00:02.000000Z",
    )
    assert found[2]["added"] == {"rows": 5, "files": 1, "bytes": 700}
    assert found[2]["rows"] is None


def test_snapshots_of_other_writers_may_state_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_table, "SNAPSHOTS_MAX", 2)
    wrong = {
        "added-records": "-1",
        "added-data-files": "٣",
        "added-files-size": "9" * 5000,
        "total-records": "",
    }
    made = [
        replace(snapshot(number, None, {}), timestamp_ms=2**62, summary=wrong | {RANGES: "x" * 9000})
        for number in range(5)
    ]
    found, left = snapshots_of(replace(VIEW, snapshots=tuple(made)))
    assert ([one["id"] for one in found], left) == ([4, 3], 3)
    assert found[0]["time"] is None
    assert found[0]["added"] == {"rows": 0, "files": 0, "bytes": 0}
    assert len(found[0]["offsets"]) < 600


@pytest.mark.parametrize(
    ("spec", "values", "text"),
    [
        (0, (20_000,), "2024-10-04"),
        (0, (-1,), "1969-12-31"),
        (1, (480_013,), "2024-10-04T13"),
        (2, (657,), "2024-10"),
        (0, (10**12,), "1000000000000"),
        (1, (-(10**15),), "-1000000000000000"),
        (0, (None,), "None"),
        (3, ("eu", 7), "eu, 7"),
        (9, (1,), "1"),
        (3, (), ""),
    ],
)
def test_a_partition_is_shown_as_its_time(spec: int, values: tuple[object, ...], text: str) -> None:
    assert partition_text(VIEW, replace(FILE, spec_id=spec, partition=values)) == text


def test_columns_have_the_field_that_they_come_from() -> None:
    schema = order_schema()
    found = {one["name"]: one for one in columns_of(schema.iceberg_json, mapping_of([schema]))}
    assert list(found)[:3] == ["key", "key.__raw__", "value"]
    assert found["value.customer"]["type"] == "string"
    assert found["value.customer"]["from"] == {
        "side": "value",
        "field": "customer",
        "path": "2",
        "type": "string",
        "active": True,
        "versions": [1],
    }
    assert found["value.lines"]["type"] == "list<struct>"
    assert found["value.lines.sku"]["from"]["field"] == "lines.sku"
    assert found["value.__err__"]["from"] is None
    assert found["value.__err__"]["holds"] == "why the message could not be decoded"
    assert found["kafka.offset"]["holds"] == "the offset of the record"
    assert found["kafka.offset"]["required"]
    # The bytes of a key are always there; those of a value only where its columns do not give them.
    assert found["key.__raw__"]["holds"] == "the original bytes of the key"
    assert "where" in found["value.__raw__"]["holds"]
    # No column is without an explanation, and no id is there twice.
    assert all(one["from"] or one["holds"] for one in found.values())
    assert len({one["id"] for one in found.values()}) == len(found)


def test_columns_of_other_writers_have_their_doc_and_no_field() -> None:
    document: Any = json.loads(order_schema().iceberg_json)
    document["fields"].append(
        {"id": 900, "name": "region", "required": False, "type": "string", "doc": "x" * 9000}
    )
    *_, region = columns_of(json.dumps(document), mapping_of([order_schema()]))
    assert (region["id"], region["name"], region["from"], region["holds"]) == (900, "region", None, None)
    assert len(region["doc"]) < 600
