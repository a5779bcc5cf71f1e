"""Statistics of floating-point columns, counted from the values while a file is written.

Parquet's own minimum and maximum leave NaN out, and a footer does not say whether there was one. DuckDB and
Spark order NaN above every number and then skip row groups that hold matching rows. So archives carry no
Parquet statistics for these columns, and an archive's Iceberg bounds come from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from archiver.schema.arrow import pc


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """One column of one file."""

    null_count: int
    """Rows without a value, those whose enclosing message is null included."""
    nan_count: int
    low: float | None
    """Smallest value, with zero as -0.0; None if the column has a NaN or no value at all."""
    high: float | None
    """Largest value, with zero as +0.0; None as for `low`."""


class FloatCounts:
    """Counts the columns at these places, row group after row group. Not safe for several threads."""

    def __init__(self, places: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """Field id and position of each column: of the top-level column, then of the field at each level of
        structs.
        """
        self._places = tuple(places)
        self._found: dict[int, FloatColumn] = {}

    def add(self, table: pa.Table) -> None:
        """Count the rows of one row group."""
        for field_id, place in self._places:
            column: Any = table.column(place[0])
            # This kernel applies the validity of every level, unlike `StructArray.field`.
            found = _counted(pc.struct_field(column, place[1:]) if len(place) > 1 else column)
            before = self._found.get(field_id)
            self._found[field_id] = found if before is None else _both(before, found)

    def columns(self) -> dict[int, FloatColumn]:
        """What was counted, by field id."""
        return dict(self._found)


def _counted(values: Any) -> FloatColumn:
    nans = pc.sum(pc.is_nan(values)).as_py() or 0
    extremes = pc.min_max(values).as_py()
    low, high = extremes["min"], extremes["max"]
    if nans or low is None:
        return FloatColumn(values.null_count, nans, None, None)
    # Iceberg orders -0.0 before +0.0, and a minimum of equal zeros may be either.
    return FloatColumn(values.null_count, 0, low or -0.0, high or 0.0)


def _both(one: FloatColumn, other: FloatColumn) -> FloatColumn:
    nulls, nans = one.null_count + other.null_count, one.nan_count + other.nan_count
    lows = [column.low for column in (one, other) if column.low is not None]
    highs = [column.high for column in (one, other) if column.high is not None]
    if nans or not lows:
        return FloatColumn(nulls, nans, None, None)
    return FloatColumn(nulls, 0, min(lows), max(highs))
