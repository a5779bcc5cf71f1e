"""Fuzz targets: Avro schemas and Avro payloads, as bytes from anywhere.

A schema is refused with `ConfigInvalid`, or its normal form is read again as the same. A batch is decoded to
columns and rebuilt byte for byte, or keeps its bytes. Both engines and the edge of the intake come to one
verdict.
"""

from __future__ import annotations

import contextlib
import json
import random
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.avro.model import parse_schema
from archiver.schema.avro.source import avro_source
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.payload_check import EdgeCheck
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.tree import ERR, RAW
from tests.support.fuzzing import fuzzing
from tests.support.schema.both_engines import mutated
from tests.support.schema.random_avro import Maker

SCHEMAS = 8
_WORDS = st.sampled_from(
    [
        "record",
        "enum",
        "fixed",
        "array",
        "map",
        "null",
        "int",
        "long",
        "bytes",
        "string",
        "R",
        "a.R",
        "decimal",
    ]
)
_NAMES = st.sampled_from(
    ["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "logicalType", "precision"]
)
_JSON = st.recursive(
    st.one_of(_WORDS, st.integers(-3, 2**40), st.none(), st.booleans(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_NAMES, inner, max_size=6)),
    max_leaves=25,
)
_VALUES = st.one_of(_JSON, st.sampled_from([2**64, 1e400, "a" * 2000, [], {}]))


@cache
def maker_of(seed: int) -> tuple[Maker, Source]:
    maker = Maker(random.Random(seed))
    return maker, avro_source(parse_schema(json.dumps(maker.schema).encode(), "fuzz"), "fuzz")


@cache
def judges(seed: int) -> tuple[RecordCodec, RecordCodec, EdgeCheck]:
    source = maker_of(seed)[1]
    schema = decide("t", (), None, source).schema
    return RecordCodec(schema, "ptars"), RecordCodec(schema, "protobuf"), EdgeCheck(source)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a document with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def check_schema(text: bytes) -> None:
    with contextlib.suppress(ConfigInvalid):
        found = parse_schema(text, "fuzz")
        assert parse_schema(found.text.encode(), "fuzz") == found
        decide("t", (), None, avro_source(found, "fuzz"))


@fuzzing()
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
def test_any_bytes_as_a_schema(text: bytes) -> None:
    check_schema(text)


@fuzzing()
@given(_JSON)
@example({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]})
def test_any_json_as_a_schema(document: Any) -> None:
    check_schema(json.dumps(document).encode())


@fuzzing()
@given(st.integers(0, SCHEMAS - 1), st.integers(0, 10_000), _VALUES)
def test_a_schema_with_a_part_replaced(seed: int, place: int, value: Any) -> None:
    document = json.loads(json.dumps(maker_of(seed)[0].schema))
    found = places(document)
    container, key = found[place % len(found)]
    container[key] = value
    check_schema(json.dumps(document).encode())


@fuzzing()
@given(
    st.integers(0, SCHEMAS - 1),
    st.lists(st.binary(max_size=200), min_size=1, max_size=30),
    st.integers(0, 10_000),
)
@example(0, [b"\xff" * 40, b"\x01" * 200, b""], 0)
def test_any_bytes_are_decoded_or_kept(seed: int, payloads: list[bytes], number: int) -> None:
    maker = Maker(random.Random(seed))
    rng = maker.rng = random.Random(number)
    good = [maker.datum().data for _ in range(10)]
    records = [*payloads, *good, *(mutated(rng, one) for one in good), None]
    fast, complete, edge = judges(seed)
    values = pa.array(records, pa.binary())
    verdicts = []
    for codec in (fast, complete):
        keys = pa.nulls(len(records), pa.binary())
        rows: list[Any] = []
        for start, end in codec.portions(keys, values):
            count = end - start
            key, encoded = codec.encode_columns(keys.slice(start, count), values.slice(start, count))
            column: Any = encoded
            column.validate(full=True)
            assert codec.rebuild(key, column)[1].to_pylist() == records[start:end]
            rows += column.to_pylist()
        for record, row in zip(records, rows, strict=True):
            assert (row is None) == (record is None)
            assert row is None or row[ERR] is None or row[RAW] == record
        verdicts.append({place: row[ERR] for place, row in enumerate(rows) if row and row[ERR]})
    assert verdicts[0] == verdicts[1]
    assert not verdicts[0].keys() & set(range(len(payloads), len(payloads) + len(good)))
    assert edge.check(values).errors == verdicts[0]
