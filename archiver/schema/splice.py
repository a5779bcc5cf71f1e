"""Combines rows decoded in several parts into one array, in their order.

`spliced` and `replaced` combine; `picked` and `blocks` select. Every row keeps its position. Runs of
neighbouring rows are copied as blocks. So one exceptional row in a hundred thousand costs one copy of the
columns, without gathering row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from archiver.schema.arrow import Array, arrow

Rows = npt.NDArray[np.int64]

_RUNS_MAX = 16
"""More runs than this are gathered row by row: each block has a fixed cost."""


def spliced(parts: Sequence[tuple[Rows, Array]]) -> Array:
    """One array of all parts. A part: its rows, ascending, and a value for each; together the rows are 0, 1,
    2 … without a hole.
    """
    # All parts may be empty. One of them is kept for its type.
    parts = [part for part in parts if len(part[0])] or list(parts[:1])
    if len(parts) == 1:
        return parts[0][1]
    runs = [
        (int(rows[start]), values.slice(start, end - start))
        for rows, values in parts
        for start, end in _runs(rows)
    ]
    if len(runs) <= _RUNS_MAX:
        return arrow.concat_arrays([values for _, values in sorted(runs, key=lambda run: run[0])])
    # The inverse permutation: for each row, its place among the concatenated parts.
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    return arrow.concat_arrays([values for _, values in parts]).take(arrow.array(order))


def replaced(base: Array, rows: Rows, values: Array) -> Array:
    """`base` with other values in these rows (ascending)."""
    if len(rows) == len(base):
        return values
    if len(rows) == 0:
        return base
    runs = _runs(rows)
    if len(runs) > _RUNS_MAX:
        # Indexes from len(base) on point to the new values.
        order = np.arange(len(base), dtype=np.int64)
        order[rows] = len(base) + np.arange(len(rows))
        return arrow.concat_arrays([base, values]).take(arrow.array(order))
    blocks, at = [], 0
    for start, end in runs:
        first = int(rows[start])
        blocks += [base.slice(at, first - at), values.slice(start, end - start)]
        at = first + end - start
    return arrow.concat_arrays([*blocks, base.slice(at)])


def blocks(rows: Rows) -> list[Rows]:
    """The rows (ascending) as runs of neighbours; as one selection if these are many."""
    runs = _runs(rows)
    return [rows[start:end] for start, end in runs] if len(runs) <= _RUNS_MAX else [rows]


def picked(array: Array, rows: Rows) -> Array:
    """The array's values in these rows (ascending); without a copy where they are neighbours."""
    # Ascending without a gap, so a slice needs no copy.
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return array.slice(int(rows[0]), len(rows))
    return array.take(arrow.array(rows, "int64"))


def _runs(rows: Rows) -> list[tuple[int, int]]:
    """Where runs of neighbouring rows start and end, as places in `rows`."""
    if len(rows) == 0:
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True))
