"""Fuzz target: Protobuf payloads, as bytes from anywhere.

A batch is decoded to columns and rebuilt byte for byte, or keeps its bytes. Both engines and the edge of the
intake come to one verdict.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.schema.codec import RecordCodec
from archiver.schema.payload_check import EdgeCheck
from archiver.schema.protobuf.tree import ERR, RAW
from tests.support.fuzzing import fuzzing
from tests.support.schema.engine_rows import schema_for, values_of
from tests.support.schema.random_protos import Made, fill, random_schema
from tests.support.schema.wire_mutations import mutated

SCHEMAS = 6


@cache
def made_of(seed: int) -> Made:
    return random_schema(random.Random(seed))


@cache
def judges(seed: int) -> tuple[RecordCodec, RecordCodec, EdgeCheck]:
    source = made_of(seed).source
    return (
        RecordCodec(schema_for(source), "ptars"),
        RecordCodec(schema_for(source), "protobuf"),
        EdgeCheck(source),
    )


def valid(seed: int, number: int) -> bytes:
    """A record as a producer writes it."""
    message = made_of(seed).make()
    fill(random.Random(number), message)
    data: bytes = message.SerializePartialToString()
    return data


def altered(seed: int, number: int) -> bytes:
    return mutated(
        random.Random(number), made_of(seed).make.DESCRIPTOR, valid(seed, number), [valid(seed, number + 1)]
    )[1]


FIELDS = st.lists(
    st.sampled_from(
        [
            b"\x0a\x00",
            b"\x12\x00",
            b"\x1a\x00",
            b"\x08\x01",
            b"\x0b",
            b"\x0c",
            b"\x0d\x00\x00\x00\x00",
            b"\x82\x01\x00",
            b"\xff",
        ]
    ),
    max_size=200,
).map(b"".join)


@fuzzing()
@given(
    st.integers(0, SCHEMAS - 1),
    st.lists(st.one_of(st.binary(max_size=200), FIELDS), min_size=1, max_size=4),
    st.integers(0, 10_000),
)
@example(0, [b"\x0a\x00" * 20_000, b"\x0b" * 200], 0)
def test_any_bytes_are_decoded_or_kept(seed: int, payloads: list[bytes], number: int) -> None:
    records = [*payloads, valid(seed, number), altered(seed, number), None]
    fast, complete, edge = judges(seed)
    verdicts = []
    for codec in (fast, complete):
        keys = pa.nulls(len(records), pa.binary())
        rows: list[Any] = []
        for start, end in codec.portions(keys, values_of(records)):
            key, encoded = codec.encode_columns(keys.slice(start, end - start), values_of(records[start:end]))
            column: Any = encoded
            column.validate(full=True)
            assert codec.rebuild(key, column)[1].to_pylist() == records[start:end]
            rows += column.to_pylist()
        for record, row in zip(records, rows, strict=True):
            assert (row is None) == (record is None)
            assert row is None or row[ERR] is None or row[RAW] == record
        verdicts.append(
            {place: row[ERR] for place, row in enumerate(rows) if row is not None and row[ERR] is not None}
        )
    assert verdicts[0] == verdicts[1]
    assert edge.check(values_of(records)).errors == verdicts[0]
