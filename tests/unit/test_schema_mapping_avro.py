"""docs/schema-mapping-avro.md is true: every row of its tables holds with both engines, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.avro.model import Kind, parse_schema
from archiver.schema.avro.source import avro_source
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from tests.support.schema.avro_page import avro_page_rows, payload_of, record_of
from tests.support.schema.random_avro import LOGICAL
from tests.support.schema.type_tables import TypeRow, shown, type_text

ROWS = avro_page_rows()


@pytest.mark.parametrize("row", ROWS, ids=[f"line {row.line}" for row in ROWS])
def test_a_row_of_the_page(row: TypeRow) -> None:
    payload = payload_of(row)
    parsed = parse_schema(json.dumps(record_of(row)).encode(), "the page", row.depth)
    schema = decide("t", (), None, avro_source(parsed, "the page", row.depth)).schema
    [*_, column] = schema.schema()["fields"][1]["type"]["fields"]
    assert f"{column['name']} {type_text(column['type'])}" == row.column
    for engine in ("ptars", "protobuf"):
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


def test_the_page_shows_every_type() -> None:
    texts = [json.dumps(row.type) for row in ROWS]
    for kind in Kind:
        assert kind is Kind.UNION or kind is Kind.ENCODED or any(f'"{kind.value}"' in one for one in texts), (
            kind
        )
    for logical in LOGICAL:
        assert any(f'"{logical["logicalType"]}"' in one for one in texts), logical


@pytest.mark.parametrize(
    ("kind", "payload", "held"),
    [
        ('"string"', b"\x02a", "a"),
        ('["null", "long"]', b"\x02\x02", 1),
        ('{"type": "array", "items": "int"}', b"\x02\x02\x00", [1]),
    ],
)
def test_a_schema_that_is_no_record(kind: str, payload: bytes, held: Any) -> None:
    parsed = parse_schema(kind.encode(), "test")
    schema = decide("t", (), avro_source(parsed, "test"), None).schema
    assert [one["name"] for one in schema.schema()["fields"][0]["type"]["fields"]] == [
        "__raw__",
        "__prefix__",
        "__err__",
        "value",
    ]
    codec = RecordCodec(schema)
    payloads = pa.array([payload, None], pa.binary())
    key, value = codec.encode_columns(payloads, payloads)
    rows: Any = key
    assert rows[0].as_py() == {"__raw__": payload, "__prefix__": None, "__err__": None, "value": held}
    assert codec.rebuild(key, value)[0].equals(payloads)
