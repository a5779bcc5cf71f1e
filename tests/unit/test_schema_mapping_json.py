"""docs/schema-mapping-json.md is true: every row of its tables holds with both engines, byte for byte."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.json.model import Kind, parse_schema
from archiver.schema.json.source import json_source
from tests.support.schema.both_engines import ENGINES
from tests.support.schema.json_page import document_of, json_page_rows, schema_of
from tests.support.schema.type_tables import TypeRow, shown, type_text

ROWS = json_page_rows()


@pytest.mark.parametrize("row", ROWS, ids=[f"line {row.line}" for row in ROWS])
def test_a_row_of_the_page(row: TypeRow) -> None:
    payload = document_of(row).encode()
    schema = decide("t", (), None, json_source(schema_of(row), "the page", recursion_depth=row.depth)).schema
    *_, column, _ = schema.schema()["fields"][1]["type"]["fields"]
    assert f"{column['name']} {type_text(column['type'])}" == row.column
    for engine in ENGINES:
        codec = RecordCodec(schema, engine)
        # Many, because the fast engine leaves few to the other.
        values = pa.array([payload] * 20, pa.binary())
        key, encoded = codec.encode_columns(pa.nulls(20, pa.binary()), values)
        column_of: Any = encoded
        [found, *_] = column_of.to_pylist()
        assert (found["__err__"], found["__prefix__"]) == (None, None), engine
        assert shown(found["v"]) == row.holds, engine
        assert (found["__raw__"], row.raw) in ((None, "no"), (payload, "kept")), engine
        assert codec.rebuild(key, encoded)[1].equals(values)


def test_the_page_shows_every_kind() -> None:
    kinds = {parse_schema(schema_of(row), "the page").node.fields[0][1].kind for row in ROWS}
    assert kinds == set(Kind)
