"""Fingerprints of rows: equal for equal values in any file encoding, different for every difference."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from reconcile.audit.rows import Coordinates, RowFile
from reconcile.audit.spark import comparison
from reconcile.audit.spark.fingerprint import check_coordinates, columns_of, fingerprints, names_in
from tests.support.schema.orders import order_schema

HEADERS = {
    "type": "list",
    "element-id": 20,
    "element": {
        "type": "struct",
        "fields": [{"id": 7, "name": "key", "type": "string"}, {"id": 8, "name": "value", "type": "binary"}],
    },
}
MESSAGE = {
    "type": "struct",
    "fields": [
        {"id": 3, "name": "a", "type": "long"},
        {"id": 4, "name": "d", "type": "decimal(20, 0)"},
        {"id": 5, "name": "f", "type": "double"},
        {"id": 9, "name": "later", "type": "string"},
    ],
}
COLUMNS = columns_of(
    {
        "fields": [
            {"id": 1, "name": "k", "type": "binary"},
            {"id": 2, "name": "v", "type": MESSAGE},
            {"id": 6, "name": "h", "type": HEADERS},
            {
                "id": 30,
                "name": "m",
                "type": {"type": "map", "key-id": 31, "value-id": 32, "key": "string", "value": "int"},
            },
            {"id": 40, "name": "t", "type": "timestamptz"},
            {"id": 41, "name": "b", "type": "boolean"},
        ]
    }
)
TYPES: dict[str, pa.DataType] = {
    "k": pa.binary(),
    "v": pa.struct([("a", pa.int64()), ("d", pa.decimal128(20, 0)), ("f", pa.float64())]),
    "h": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "m": pa.map_(pa.string(), pa.int32()),
    "t": pa.timestamp("us", "UTC"),
    "b": pa.bool_(),
}
ROW: dict[str, Any] = {
    "k": b"x",
    "v": {"a": 1, "d": decimal.Decimal(5), "f": 1.5},
    "h": [{"key": "a", "value": None}, {"key": "b", "value": b"1"}],
    "m": [("a", 1), ("b", 2)],
    "t": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "b": True,
}


def batch(*rows: dict[str, Any], types: dict[str, pa.DataType] = TYPES) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in rows], kind) for name, kind in types.items()], names=list(types)
    )


def with_id(name: str, number: int | None, kind: pa.DataType) -> pa.Field[Any]:
    return pa.field(
        name, kind, metadata=None if number is None else {b"PARQUET:field_id": str(number).encode()}
    )


def of(row: dict[str, Any], **others: Any) -> bytes:
    return fingerprints(COLUMNS, batch(row, **others))[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k", None), ("k", b""), ("k", b"xx"),
        ("v", None), ("v", {}), ("v", {"a": 2, "d": decimal.Decimal(5), "f": 1.5}), ("v", {"a": 1, "d": decimal.Decimal(6), "f": 1.5}),
        ("v", {"a": 1, "d": decimal.Decimal(5), "f": -1.5}), ("v", {"a": None, "d": decimal.Decimal(5), "f": 1.5}),
        ("h", None), ("h", []), ("h", [{"key": "b", "value": b"1"}, {"key": "a", "value": None}]),
        ("h", [None, {"key": "b", "value": b"1"}]),
        ("h", [{"key": "a", "value": b""}, {"key": "b", "value": b"1"}]), ("h", [{"key": "ab", "value": None}, {"key": "", "value": b"1"}]),
        ("m", None), ("m", []), ("m", [("b", 2), ("a", 1)]), ("m", [("a", 1), ("b", 3)]), ("m", [("a", 1)]), ("m", [("a", None), ("b", 2)]),
        ("t", dt.datetime(2026, 1, 2, microsecond=1, tzinfo=dt.UTC)), ("t", None), ("b", False), ("b", None),
    ],
)  # fmt: skip
def test_every_difference_is_one(name: str, value: Any) -> None:
    assert of({**ROW, name: value}) != of(ROW)


def test_zero_is_neither_null_nor_minus_zero() -> None:
    rows = [
        {**ROW, "v": {"a": 0, "d": decimal.Decimal(0), "f": number}}
        for number in (0.0, -0.0, None, float("nan"))
    ]
    assert len(set(fingerprints(COLUMNS, batch(*rows)))) == len(rows)


def test_types_that_engines_widen_and_spell_otherwise_are_the_same() -> None:
    narrow = pa.struct([("a", pa.int32()), ("d", pa.decimal128(12, 0)), ("f", pa.float32())])
    items = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    spelled = {**TYPES, "k": pa.large_binary(), "v": narrow, "h": items, "t": pa.timestamp("ns", "UTC")}
    assert of(ROW, types=spelled) == of(ROW)


def test_columns_are_found_by_their_id_and_else_by_their_name() -> None:
    plain = batch(ROW)
    numbers = dict(zip(TYPES, (1, 2, 6, 30, 40, 41), strict=True))
    order = ["b", "t", "m", "h", "v", "k"]
    message = pa.struct(
        [
            with_id("renamed_a", 3, pa.int64()),
            with_id("renamed_d", 4, pa.decimal128(20, 0)),
            with_id("renamed_f", 5, pa.float64()),
        ]
    )
    header = pa.struct([with_id("renamed_key", 7, pa.string()), with_id("renamed_value", 8, pa.binary())])
    kinds = {**TYPES, "v": message, "h": pa.list_(with_id("element", 20, header))}
    renamed = pa.schema([with_id(f"renamed_{name}", numbers[name], kinds[name]) for name in order])
    headers = [{"renamed_key": one["key"], "renamed_value": one["value"]} for one in ROW["h"]]
    spelled = {**ROW, "v": {f"renamed_{name}": one for name, one in ROW["v"].items()}, "h": headers}
    moved = pa.RecordBatch.from_arrays(
        [pa.array([spelled[name]], kinds[name]) for name in order], schema=renamed
    )
    assert fingerprints(COLUMNS, moved) == fingerprints(COLUMNS, plain)
    assert names_in(COLUMNS, renamed) == [
        "renamed_k",
        "renamed_v",
        "renamed_h",
        "renamed_m",
        "renamed_t",
        "renamed_b",
    ]
    swapped = renamed.set(order.index("k"), with_id("k", 99, pa.binary()))
    other = pa.RecordBatch.from_arrays(list(moved.columns), schema=swapped)
    assert fingerprints(COLUMNS, other) == [of({**ROW, "k": None})], (
        "another column of the same name is not ours"
    )


def test_a_column_without_an_id_does_not_count_where_another_has_one() -> None:
    """Engines read the second column as `k`, so the correct first one must not hide it."""
    honest, forged = pa.array([b"x"]), pa.array([b"forged"])
    decoyed = pa.RecordBatch.from_arrays(
        [honest, forged],
        schema=pa.schema([with_id("k", None, pa.binary()), with_id("other", 1, pa.binary())]),
    )
    named = pa.RecordBatch.from_arrays([forged], names=["k"])
    assert names_in(COLUMNS, decoyed.schema) == ["other"]
    assert fingerprints(COLUMNS, decoyed) == fingerprints(COLUMNS, named)


def test_an_id_anywhere_in_the_file_makes_all_names_void() -> None:
    inside = pa.struct([with_id("a", 3, pa.int64())])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"x"]), pa.array([{"a": 1}], inside)],
        schema=pa.schema([with_id("k", None, pa.binary()), with_id("v", 2, inside)]),
    )
    assert names_in(COLUMNS, rows.schema) == ["v"]
    deep = pa.schema(
        [with_id("k", None, pa.binary()), with_id("m", None, pa.struct([with_id("key", 31, pa.string())]))]
    )
    assert names_in(COLUMNS, deep) == []
    listed = pa.schema(
        [with_id("k", None, pa.binary()), with_id("h", None, pa.list_(with_id("element", 20, pa.int32())))]
    )
    assert names_in(COLUMNS, listed) == []


@pytest.mark.parametrize("numbers", [(1, 1), (None, None)])
def test_a_column_that_is_there_twice_is_refused(numbers: tuple[int | None, int | None]) -> None:
    names = ("k", "k") if numbers[0] is None else ("k", "second")
    schema = pa.schema(
        [with_id(name, number, pa.binary()) for name, number in zip(names, numbers, strict=True)]
    )
    rows = pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([b"forged"])], schema=schema)
    for ask in (lambda: fingerprints(COLUMNS, rows), lambda: names_in(COLUMNS, schema)):
        with pytest.raises(ValueError, match="exists 2 times"):
            ask()


IDS = Coordinates(10, 11, 12, 13)
PLACES = {"partition": 11, "offset": 12, "ingest_timestamp": 13}


def kafka(name: str = "kafka", number: int | None = 10, **numbers: int | None) -> pa.Field[Any]:
    return with_id(
        name,
        number,
        pa.struct([with_id(one, place, pa.int64()) for one, place in {**PLACES, **numbers}.items()]),
    )


def test_coordinates_are_the_columns_with_their_ids() -> None:
    check_coordinates(IDS, pa.schema([kafka(), with_id("mine", 4711, pa.int64())]))
    check_coordinates(
        IDS, pa.schema([kafka(number=None, partition=None, offset=None, ingest_timestamp=None)])
    )


@pytest.mark.parametrize(
    "fields",
    [
        [kafka(number=None), kafka("other")], [kafka(number=99), kafka("other")], [kafka(), kafka("other")], [kafka(), kafka(number=99)],
        [kafka(offset=99)], [kafka(offset=None)], [kafka(offset=11, partition=12)], [kafka(second=12)], [with_id("mine", 4711, pa.int64())],
        [with_id("kafka", 10, pa.int64())],
    ],
)  # fmt: skip
def test_other_columns_never_pass_for_the_coordinates(fields: list[pa.Field[Any]]) -> None:
    with pytest.raises(ValueError, match="with field id"):
        check_coordinates(IDS, pa.schema(fields))


def test_a_column_that_a_file_lacks_is_null_and_one_of_others_does_not_count() -> None:
    lacking = batch(ROW).drop_columns(["m"])
    assert fingerprints(COLUMNS, lacking) == [of({**ROW, "m": None})]
    more = batch(ROW).append_column("mine", pa.array(["noted"]))
    assert fingerprints(COLUMNS, more) == [of(ROW)]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("t", pa.int64(), 5),
        ("b", pa.int64(), 1),
        ("h", pa.binary(), b"x"),
        ("v", pa.int64(), 1),
        ("m", pa.list_(pa.string()), ["a"]),
    ],
)
def test_a_column_of_another_type_is_refused_or_another_value(
    name: str, kind: pa.DataType, value: Any
) -> None:
    try:
        found = of({**ROW, name: value}, types={**TYPES, name: kind})
    except ValueError:
        return
    assert found != of(ROW)


ROWS = st.fixed_dictionaries(
    {
        "k": st.none() | st.binary(max_size=3),
        "v": st.none()
        | st.fixed_dictionaries({"a": st.none() | st.integers(0, 2), "d": st.none(), "f": st.none()}),
        "h": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"key": st.text("ab", max_size=2), "value": st.none() | st.binary(max_size=2)}
            ),
            max_size=2,
        ),
        "m": st.none()
        | st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 1)), max_size=2),
        "t": st.none(),
        "b": st.none() | st.booleans(),
    }
)


@given(st.lists(ROWS, min_size=1, max_size=6), st.data())
def test_rows_have_one_fingerprint_if_and_only_if_they_are_equal(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    """This also holds for any slices of the batch."""
    whole = batch(*rows)
    found = fingerprints(COLUMNS, whole)
    for one, first in zip(rows, found, strict=True):
        for other, second in zip(rows, found, strict=True):
            assert (first == second) == (one == other)
    low = data.draw(st.integers(0, len(rows)))
    assert fingerprints(COLUMNS, whole.slice(low)) == found[low:]


def test_a_codec_is_built_once_for_a_schema_version(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def building(schema: TopicSchema) -> RecordCodec:
        built.append(schema.version)
        return RecordCodec(schema)

    monkeypatch.setattr(comparison, "RecordCodec", building)
    first = order_schema()
    prints = comparison.RecordPrints([first, replace(first, version=first.version + 1)])
    rows = pa.record_batch({"other": [1]})
    for _ in range(3):
        assert list(prints.of(RowFile("theirs", 1), rows)) == [], "no version decoded these rows"
    assert built == [first.version, first.version + 1]
