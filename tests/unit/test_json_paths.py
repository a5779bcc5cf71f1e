"""What errors and columns of JSON records show of names and moments that a producer chose, with both engines."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.json.source import json_source
from archiver.schema.side_reader import EngineName
from tests.support.schema.both_engines import ENGINES

INTEGER = {"type": "integer"}
SCHEMA = {
    "properties": {
        "m": {"additionalProperties": INTEGER},
        "o\n": {"properties": {"\x1b": INTEGER}},
        "t": {"type": "string", "format": "date-time"},
    }
}


def columns(payload: bytes, engine: EngineName) -> dict[str, Any]:
    schema = decide("t", (), None, json_source(json.dumps(SCHEMA).encode(), "test")).schema
    # Many, because the fast engine leaves few to the other.
    values = pa.array([payload] * 20, pa.binary())
    found: Any = RecordCodec(schema, engine).encode_columns(pa.nulls(20, pa.binary()), values)[1]
    rows: list[dict[str, Any]] = found.to_pylist()
    assert rows == rows[:1] * 20
    assert rows[0]["__raw__"] == payload
    return rows[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (rb'{"m":{"\n\u001b[31m\u0000":"x"}}', r"m.\n\u001b[31m\u0000"),
        (rb'{"m":{"\u2028\u202e":"x"}}', r"m.\u2028\u202e"),
        (rb'{"m":{"\u017c":"x"}}', "m.ż"),
        (rb'{"m":{"\ud800":1}}', r"m.\ud800"),
        (rb'{"o\n":{"\u001b":"x"}}', r"o\n.\u001b"),
        (rb'{"x":{"\u001b\n":{"q":1,"q":2}}}', r"x.\u001b\n"),
    ],
)
def test_names_in_errors_are_printable(payload: bytes, path: str, engine: EngineName) -> None:
    error = columns(payload, engine)["__err__"]
    assert error.isprintable()
    assert error.startswith(f"cannot be decoded as JSON: {path} ")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("offset", ["+24:00", "-24:00", "+99:99", "+00:60", "-00:60", "+23:5", "+1:00"])
def test_offsets_that_no_zone_has(offset: str, engine: EngineName) -> None:
    row = columns(b'{"t":"2026-11-28T14:00:00%s"}' % offset.encode(), engine)
    assert (row["t"], row["__err__"]) == (None, None)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_greatest_offset(engine: EngineName) -> None:
    row = columns(b'{"t":"2026-11-28T14:00:00-23:59"}', engine)
    assert row["t"].isoformat() == "2026-11-29T13:59:00+00:00"
