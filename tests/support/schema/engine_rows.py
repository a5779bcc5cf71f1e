"""Records through a codec of either engine, with the promises that hold for all input checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.tree import ERR, RAW

ENGINES = ("ptars", "protobuf")


def schema_for(value: Source) -> TopicSchema:
    """The first schema of a topic with such values."""
    return decide("t", (), None, value).schema


def values_of(items: Sequence[bytes | None]) -> Any:
    """Payloads as an array."""
    return pa.array(items, pa.binary())


def encoded(engine: Any, value: Source, items: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """The value column as rows, after the two promises that hold for all input were checked."""
    schema = schema_for(value)
    codec = RecordCodec(schema, engine)
    keys = values_of([b"k"] * len(items))
    key, values = codec.encode_columns(keys, values_of(items))
    column: Any = values
    column.validate(full=True)
    assert column.type.equals(arrow_schema(schema).field("value").type, check_metadata=True)
    rebuilt_keys, rebuilt = codec.rebuild(key, column)
    assert rebuilt.to_pylist() == list(items)
    assert rebuilt_keys == keys
    rows: list[dict[str, Any] | None] = column.to_pylist()
    return rows


def plain(value: Any) -> Any:
    """Column values in a form where NaN equals itself and -0.0 is not 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def without_nan_raw(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """The row; without its bytes if it has a NaN, whose payload bits the slow engine loses in Python's floats
    (it keeps the bytes then)."""
    return {**row, RAW: None} if row is not None and "nan" in repr(row) and row[ERR] is None else row


def both(value: Source, items: list[bytes]) -> list[dict[str, Any]]:
    """The rows of either engine, which are the same."""
    fast, slow = (encoded(engine, value, items) for engine in ENGINES)
    assert plain([without_nan_raw(row) for row in fast]) == plain([without_nan_raw(row) for row in slow])
    return [row for row in fast if row is not None]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The message's columns that are set."""
    return {
        name: one for name, one in row.items() if one is not None and one != [] and name not in (RAW, ERR)
    }
