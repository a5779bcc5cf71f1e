"""Checks that files alone show the columns that the ledger recorded."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.runtime.errors import Corrupted
from archiver.schema.columns import found_schema
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.protobuf.descriptors import Source
from tests.support.builders.rebuilding import second_version
from tests.support.schema.orders import DESCRIPTOR_SET
from tests.support.schema.protos import all_kinds_file, random_file, source, well_known_file


def in_file(schema: TopicSchema) -> pa.Schema:
    """The columns of an archive of that version as a reader of its footer sees them."""
    sink = io.BytesIO()
    pq.write_table(arrow_schema(schema).empty_table(), sink, store_schema=False)
    return pq.read_metadata(sink).schema.to_arrow_schema()


def columns(kind: Any, above: str = "") -> Iterator[tuple[int, str, str, bool]]:
    """(id, path, type, required) of every column of a schema in Iceberg's JSON form."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        for one in kind["fields"]:
            yield one["id"], f"{above}{one['name']}", text_of(one["type"]), one["required"]
            yield from columns(one["type"], f"{above}{one['name']}.")
    elif kind["type"] == "list":
        yield kind["element-id"], f"{above}element", text_of(kind["element"]), kind["element-required"]
        yield from columns(kind["element"], f"{above}element.")
    else:
        yield kind["key-id"], f"{above}key", text_of(kind["key"]), True
        yield from columns(kind["key"], f"{above}key.")
        yield kind["value-id"], f"{above}value", text_of(kind["value"]), kind["value-required"]
        yield from columns(kind["value"], f"{above}value.")


def text_of(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind).replace(" ", "")


def same(text: str, schema: TopicSchema) -> None:
    found, recorded = json.loads(text), json.loads(schema.iceberg_json)
    assert sorted(columns(found)) == sorted(columns(recorded))


@pytest.mark.parametrize(
    "one",
    [
        Source("shop.Order", DESCRIPTOR_SET),
        source(all_kinds_file(), "AllKinds"),
        source(well_known_file(), "WellKnown"),
        None,
    ],
    ids=["orders", "all kinds", "well known", "raw"],
)
def test_one_version(one: Source | None) -> None:
    schema = decide("t", (), one, one).schema
    same(found_schema([in_file(schema)]), schema)


@pytest.mark.parametrize("seed", range(20))
def test_random_messages(seed: int) -> None:
    file = random_file(random.Random(seed))
    schema = decide("t", (), None, source(file, "M0")).schema
    same(found_schema([in_file(schema)]), schema)


def test_columns_of_every_version_stay() -> None:
    first = decide("t", (), None, Source("shop.Order", DESCRIPTOR_SET)).schema
    second = decide("t", (first,), None, Source("shop.Order", second_version()[0])).schema
    third = decide("t", (first, second), None, None).schema
    versions = [first, second, third]
    same(found_schema([in_file(one) for one in reversed(versions)]), third)


def test_a_name_that_was_given_again_names_the_newer_column() -> None:
    def of(field_id: int) -> pa.Schema:
        inner = pa.field("note", pa.string(), metadata={"PARQUET:field_id": str(field_id)})
        return pa.schema([pa.field("value", pa.struct([inner]), metadata={"PARQUET:field_id": "1"})])

    found = json.loads(found_schema([of(9), of(2)]))
    assert [(one["id"], one["name"]) for one in found["fields"][0]["type"]["fields"]] == [
        (9, "note"),
        (2, "note_2"),
    ]


def test_a_file_without_ids_is_none_of_ours() -> None:
    with pytest.raises(Corrupted, match="no field id"):
        found_schema([pa.schema([pa.field("value", pa.string())])])
