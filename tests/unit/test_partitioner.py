"""Keys go to the partitions of Kafka's default partitioner, one by one and as a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intake.arrow_arrays import binary_lengths
from intake.write.partitioner import (
    STICKY_BYTES,
    Unkeyed,
    murmur2,
    murmur2_rows,
    partition_for,
    partition_rows,
)

# Key and signed result, from the test of Kafka's own implementation.
KAFKA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), KAFKA)
def test_murmur2_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for(key, 7) == (signed & 0x7FFFFFFF) % 7


def test_the_column_form_gives_kafkas_numbers() -> None:
    keys = pa.array([key for key, _ in KAFKA], pa.binary())
    assert murmur2_rows(keys).tolist() == [signed & 0xFFFFFFFF for _, signed in KAFKA]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=30), st.integers(0, 5), st.integers(1, 50)
)
def test_rows_go_where_single_records_go(keys: list[bytes | None], cut: int, partitions: int) -> None:
    column = pa.array([b"before"] * cut + keys, pa.binary()).slice(cut)
    weights = np.array([1 + 3000 * (number % 9) for number in range(len(keys))], np.int64)
    by_row, by_column = Unkeyed(5), Unkeyed(5)
    expected = [
        by_row.place(int(weight), partitions) if key is None else partition_for(key, partitions)
        for key, weight in zip(keys, weights, strict=True)
    ]
    assert partition_rows(column, weights, partitions, by_column).tolist() == expected
    assert by_column.place(1, partitions) == by_row.place(1, partitions)


def test_records_without_a_key_stay_together_and_then_move_on() -> None:
    unkeyed = Unkeyed(0)
    placed = [unkeyed.place(STICKY_BYTES // 4, 3) for _ in range(16)]
    assert placed == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4
    assert Unkeyed(2).place(1, 3) == 2


def test_empty_records_move_on_too() -> None:
    unkeyed = Unkeyed(0)
    assert {unkeyed.place(0, 2) for _ in range(STICKY_BYTES + 1)} == {0, 1}


def test_an_empty_key_is_a_key() -> None:
    keys = pa.array([b"", b""], pa.binary())
    assert partition_rows(keys, binary_lengths(keys), 12, Unkeyed(3)).tolist() == [partition_for(b"", 12)] * 2
