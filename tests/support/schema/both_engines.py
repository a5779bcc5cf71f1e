"""What the tests of both engines of a format share: the same columns, the same bytes, and damaged bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from archiver.schema.side_reader import EngineName

ENGINES: tuple[EngineName, ...] = ("ptars", "protobuf")


def enveloped(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def columns_of(schema: TopicSchema, payloads: list[bytes], engine: EngineName = "ptars") -> Any:
    """The value column of payloads, which come back byte for byte."""
    codec = RecordCodec(schema, engine)
    keys, values = pa.nulls(len(payloads), pa.binary()), pa.array(payloads, pa.binary())
    key, value = codec.encode_columns(keys, values)
    value.validate(full=True)
    assert codec.rebuild(key, value)[1].equals(values)
    return value


def same_columns(schema: TopicSchema, payloads: list[bytes]) -> Any:
    """The column that both engines give."""
    fast, complete = (columns_of(schema, payloads, engine) for engine in ENGINES)
    assert fast.equals(complete) or compared(fast) == compared(complete)
    return fast


def compared(column: Any) -> list[str]:
    """The rows as text, where a NaN equals another. Python's floats of 32 bits do not hold a signaling NaN, so
    the complete engine keeps such a record's bytes.
    """
    rows = [(repr(plain(row)), row) for row in column.to_pylist()]
    return [shown if "nan" in shown else repr(row) for shown, row in rows]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in row.items() if name not in (RAW, PREFIX, ERR)}


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a fault in them, or without one."""
    at = rng.randrange(len(data) + 1)
    pick = rng.randrange(6)
    if pick == 0:
        return data[:at]
    if pick == 1:
        return data + rng.randbytes(rng.randint(1, 5))
    if pick == 2:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if pick == 3:
        return data[:at] + rng.randbytes(rng.randint(1, 3)) + data[at:]
    if pick == 4:
        return (
            data[:at]
            + rng.choice((b"\xff" * 10, b"\x80\x00", b"\x01", b"\xff\xff\xff\xff\x0f", b'"', b"}{", b"\n"))
            + data[at:]
        )
    return rng.randbytes(rng.randint(0, 40))
