"""Bounds are correct: at or below every value, at or above every value, or absent."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.refine.column_stats import (
    Columns,
    FileStatistics,
    Leaf,
    describe,
    leaves,
    single_value,
    truncate_down,
    truncate_up,
)
from archiver.runtime.errors import Corrupted


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field[Any]:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def described(
    kind: pa.DataType, values: list[Any], row_group_size: int = 100, bounded: frozenset[int] = frozenset({2})
) -> FileStatistics:
    schema = pa.schema([field("kafka", pa.struct([field("leaf", kind, 2)]), 1)])
    table = pa.Table.from_pylist([{"kafka": {"leaf": value}} for value in values], schema=schema)
    sink = io.BytesIO()
    pq.write_table(
        table, sink, row_group_size=row_group_size, store_schema=False, write_statistics=["kafka.leaf"]
    )
    return describe(pq.read_metadata(sink), Columns.of(schema, bounded), {})


@pytest.mark.parametrize(
    ("kind", "values", "lower", "upper"),
    [
        (pa.int32(), [3, -1, None], "ffffffff", "03000000"),
        (pa.int64(), [2**40, -(2**63)], "0000000000000080", "0000000000010000"),
        (pa.bool_(), [True, False], "00", "01"),
        (pa.string(), ["b", "aé"], "61c3a9", "62"),
        (pa.binary(), [b"\xff", b"\x00"], "00", "ff"),
        (pa.decimal128(20, 0), [decimal.Decimal(2**63), decimal.Decimal(0)], "00", "008000000000000000"),
        (pa.decimal128(9, 2), [decimal.Decimal("-1.28"), decimal.Decimal("1.28")], "80", "0080"),
        (
            pa.timestamp("us", tz="UTC"),
            [
                datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
                datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
            ],
            "c0bdf0ffffffffff",
            "40420f0000000000",
        ),
    ],
)
def test_single_value_form(kind: pa.DataType, values: list[Any], lower: str, upper: str) -> None:
    found = described(kind, values)
    assert found.lower_bounds[2].hex() == lower
    assert found.upper_bounds[2].hex() == upper


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_footer_proves_nothing_about_floating_point_columns(kind: pa.DataType) -> None:
    for values in ([1.5, -2.0], [1.5, float("nan")]):
        found = described(kind, values)
        assert (found.lower_bounds, found.upper_bounds, found.nan_value_counts, found.null_value_counts) == (
            {},
            {},
            {},
            {2: 0},
        )


def test_counts_sizes_and_offsets_over_row_groups() -> None:
    found = described(pa.int64(), [None, None, 5, 7, None], row_group_size=2)
    assert (found.record_count, found.value_counts, found.null_value_counts) == (5, {2: 5}, {2: 3})
    assert found.lower_bounds[2] == single_value(pa.int64(), 5)
    assert found.upper_bounds[2] == single_value(pa.int64(), 7)
    assert len(found.split_offsets) == 3
    assert found.split_offsets[0] == 4
    assert list(found.split_offsets) == sorted(found.split_offsets)
    assert found.column_sizes[2] > 0


def test_nothing_but_nulls_has_no_bounds() -> None:
    found = described(pa.string(), [None, None])
    assert (found.lower_bounds, found.upper_bounds, found.null_value_counts) == ({}, {}, {2: 2})


def test_a_column_that_is_not_asked_for_has_no_bounds() -> None:
    found = described(pa.int64(), [1], bounded=frozenset())
    assert (found.lower_bounds, found.upper_bounds, found.value_counts) == ({}, {}, {2: 1})


def test_one_row_group_without_statistics_leaves_no_bound() -> None:
    # Parquet stores no minimum or maximum of values beyond 4 KiB. Those of the other row group alone would be
    # wrong.
    found = described(pa.binary(), [b"a", b"b" * 5000], row_group_size=1)
    assert (found.lower_bounds, found.upper_bounds) == ({}, {})


def test_leaves_are_named_as_in_the_file_and_lists_have_no_bounds() -> None:
    inner = pa.struct([field("x", pa.int64(), 6)])
    key: Any = pa.field("key", pa.string(), nullable=False, metadata={"PARQUET:field_id": "8"})
    item: Any = field("value", inner, 9)
    schema = pa.schema(
        [
            field("a", pa.struct([field("b", pa.int32(), 2)]), 1),
            field("l", pa.list_(field("element", inner, 4)), 3),
            field("m", pa.map_(key, item), 7),
        ]
    )
    table = pa.Table.from_pylist([{"a": {"b": 1}, "l": [{"x": 5}], "m": [("k", {"x": 1})]}], schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False)
    metadata = pq.read_metadata(sink)
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    assert [leaf.path for leaf in leaves(schema)] == paths
    assert leaves(schema) == leaves(metadata.schema.to_arrow_schema())
    assert leaves(schema)[:2] == [
        Leaf("a.b", 2, pa.int32(), False, (0, 0)),
        Leaf("l.list.element.x", 6, pa.int64(), True),
    ]
    assert set(describe(metadata, Columns.of(schema, {2, 6, 8}), {}).lower_bounds) == {2}


def test_a_file_without_field_ids_is_refused() -> None:
    with pytest.raises(Corrupted, match=r"column a\.b has no field id"):
        leaves(pa.schema([field("a", pa.struct([pa.field("b", pa.int32())]), 1)]))


@pytest.mark.parametrize(
    ("value", "above"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ff" + "z", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "z", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("é" * 17, "é" * 15 + "ê"),
        (b"a" * 17, b"a" * 15 + b"b"),
        (b"a" + b"\xff" * 16, b"b"),
        (b"\xff" * 17, None),
        (b"\xff" * 16, b"\xff" * 16),
        (7, 7),
    ],
)
def test_truncated_upwards(value: Any, above: Any) -> None:
    assert truncate_up(value) == above


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_truncation_keeps_the_order(value: Any) -> None:
    assert truncate_down(value) <= value
    above = truncate_up(value)
    assert above is None or (above >= value and len(above) <= 16)


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=24), min_size=1, max_size=20), st.integers(1, 7))
def test_bounds_of_strings_hold_for_every_value(values: list[str | None], row_group_size: int) -> None:
    found = described(pa.string(), values, row_group_size)
    present = [value.encode() for value in values if value is not None]
    if 2 in found.lower_bounds:
        assert all(found.lower_bounds[2] <= value for value in present)
    if 2 in found.upper_bounds:
        assert all(found.upper_bounds[2] >= value for value in present)
    assert not present or 2 in found.lower_bounds


@given(st.integers(-(10**19), 10**19))
def test_decimals_are_the_shortest_twos_complement(unscaled: int) -> None:
    data = single_value(pa.decimal128(20, 0), unscaled)
    assert data is not None
    assert int.from_bytes(data, "big", signed=True) == unscaled
    with pytest.raises(OverflowError):
        unscaled.to_bytes(len(data) - 1, "big", signed=True) if len(data) > 1 else (1 << 9).to_bytes(
            1, "big", signed=True
        )


def test_unknown_types_have_no_bound() -> None:
    assert single_value(pa.null(), None) is None


def test_a_file_with_other_columns_than_it_should_have_is_not_described() -> None:
    def schema(*names: str) -> pa.Schema:
        return pa.schema([field(name, pa.int64(), number) for number, name in enumerate(names, 1)])

    sink = io.BytesIO()
    pq.write_table(schema("a", "b").empty_table(), sink, store_schema=False)
    metadata = pq.read_metadata(sink)
    assert describe(metadata, Columns.of(schema("a", "b")), {}).record_count == 0
    with pytest.raises(Corrupted, match="lists 2 columns, its schema 1"):
        describe(metadata, Columns.of(schema("a")), {})
    with pytest.raises(Corrupted, match="has the column b where its schema has c"):
        describe(metadata, Columns.of(schema("a", "c")), {})
