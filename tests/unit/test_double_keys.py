"""Map entries that repeat an earlier key are found, in small maps and in large ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver.schema.protobuf.wire_columns import _FEW_ENTRIES, _double_keys


@pytest.mark.parametrize("entries_max", [1, 2, 3, 4, _FEW_ENTRIES, _FEW_ENTRIES + 1, 40])
@pytest.mark.parametrize("seed", range(20))
def test_as_a_set_would_find_them(seed: int, entries_max: int) -> None:
    chance = random.Random(seed * 100 + entries_max)
    maps = [
        [f"k{chance.randrange(30 if seed % 2 else 10_000)}" for _ in range(chance.randrange(entries_max + 1))]
        for _ in range(50)
    ]
    maps[chance.randrange(50)] = ["same"] * entries_max
    expected: list[bool] = []
    for keys in maps:
        expected += [key in keys[:place] for place, key in enumerate(keys)]
    offsets = np.concatenate(([0], np.cumsum([len(keys) for keys in maps]))).astype(np.int32)
    column: Any = pa.array([key for keys in maps for key in keys], pa.string())
    found = _double_keys(offsets, column)
    assert (found.tolist() if found is not None else [False] * len(expected)) == expected


def test_no_maps_and_empty_ones() -> None:
    column: Any = pa.array([], pa.string())
    assert _double_keys(np.zeros(1, np.int32), column) is None
    assert _double_keys(np.zeros(5, np.int32), column) is None


@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.int32(), pa.int64(), pa.decimal128(20), pa.string()], ids=str
)
@pytest.mark.parametrize("entries", [2, 5])
def test_keys_of_every_type(entries: int, kind: Any) -> None:
    keys: Any = pa.array([0, 1, *[1] * (entries - 2), 0, 0, *[1] * (entries - 2)]).cast(kind)
    offsets = np.array([0, entries, 2 * entries], np.int32)
    expected = [False, False, *[True] * (entries - 2), False, True, False, *[True] * (entries - 3)]
    found = _double_keys(offsets, keys)
    assert found is not None
    assert found.tolist() == expected[: 2 * entries]
