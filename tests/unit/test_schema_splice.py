"""Rows of several parts in their order, and rows removed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver.schema.splice import blocks, picked, replaced, spliced


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("scattered", [False, True])
def test_any_cut_is_put_together(seed: int, scattered: bool) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 200)
    values: Any = pa.array([[{"a": number}] for number in range(count)])
    owner = np.array([rng.randrange(3) if scattered else row * 3 // count for row in range(count)])
    parts = [
        (np.flatnonzero(owner == part), picked(values, np.flatnonzero(owner == part))) for part in range(3)
    ]
    assert spliced(parts).equals(values)
    rows = np.flatnonzero(owner == 1)
    others: Any = pa.array([[{"a": -number}] for number in rows.tolist()], values.type)
    wanted = values.to_pylist()
    for row in rows.tolist():
        wanted[row] = [{"a": -row}]
    assert replaced(values, rows, others).to_pylist() == wanted
    assert np.concatenate([numbers(), *blocks(rows)]).tolist() == rows.tolist()


def test_nothing_and_everything() -> None:
    values: Any = pa.array([1, 2, 3])
    assert spliced([(numbers(), values.slice(0, 0))]).to_pylist() == []
    assert replaced(values, numbers(), values.slice(0, 0)) is values
    assert replaced(values, numbers(0, 1, 2), values) is values
    assert picked(values, numbers()).to_pylist() == []
    assert picked(values, numbers(0, 2)).to_pylist() == [1, 3]
