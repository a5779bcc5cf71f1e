"""Which rows of which intake files the plans of a task need, in the order in which they are read.

Pure. Promises that each segment of each plan is in exactly one part, and that parts, and the lines of one,
follow the log: file by file, row group by row group, row by row. Kept as numbers, for a plan may have a
segment of a few records in each of many files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from archiver.refine.plan import Plan
from intake.segments import BASE, END, FIRST_ROW, LOG_INDEX, RAW_BYTES, ROW_GROUP, FileRef, Numbers

_OWNER, _PLACE, _OF_SEGMENT = 0, 1, 2
"""The columns of a line that say whose it is and which of that plan's segments; those of a segment follow."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of one row group."""

    file: FileRef
    row_group: int
    lines: tuple[tuple[int, int, int, int], ...]
    """(place of the plan, place among its segments, first row, rows) of each segment, by their first rows."""
    end_row: int
    """One past the last row that is wanted."""
    rows: int
    raw_bytes: int
    """Of all that is wanted."""


def parts_to_read(plans: Sequence[Plan]) -> Iterator[list[Part]]:
    """All parts of one intake file after those of the other."""
    lines = _lines(plans)
    for of_file in _runs(lines, _OF_SEGMENT + LOG_INDEX):
        owner, index = of_file[0, _OWNER], int(of_file[0, _OF_SEGMENT + LOG_INDEX])
        file = plans[owner].segments.files[index]
        yield [_part(file, of_group) for of_group in _runs(of_file, _OF_SEGMENT + ROW_GROUP)]


def _lines(plans: Sequence[Plan]) -> Numbers:
    """A line for each segment of each plan, in the order of reading; where two plans share a segment, the
    first one's is first.
    """
    counts = [len(plan.segments) for plan in plans]
    owners = np.repeat(np.arange(len(plans)), counts)
    if not len(owners):
        return np.zeros((0, 1), np.int64)
    lines = np.column_stack(
        [
            owners,
            np.concatenate([np.arange(count) for count in counts]),
            np.concatenate([plan.segments.numbers for plan in plans]),
        ]
    )
    return lines[
        np.lexsort(
            (
                lines[:, _OF_SEGMENT + FIRST_ROW],
                lines[:, _OF_SEGMENT + ROW_GROUP],
                lines[:, _OF_SEGMENT + LOG_INDEX],
            )
        )
    ]


def _runs(lines: Numbers, column: int) -> list[Numbers]:
    """Neighbours that have the same number in a column."""
    return np.split(lines, np.flatnonzero(np.diff(lines[:, column])) + 1) if len(lines) else []


def _part(file: FileRef, lines: Numbers) -> Part:
    first_rows, rows = (
        lines[:, _OF_SEGMENT + FIRST_ROW],
        lines[:, _OF_SEGMENT + END] - lines[:, _OF_SEGMENT + BASE],
    )
    return Part(
        file=file,
        row_group=int(lines[0, _OF_SEGMENT + ROW_GROUP]),
        lines=tuple(
            zip(
                lines[:, _OWNER].tolist(),
                lines[:, _PLACE].tolist(),
                first_rows.tolist(),
                rows.tolist(),
                strict=True,
            )
        ),
        end_row=int((first_rows + rows).max()),
        rows=int(rows.sum()),
        raw_bytes=int(lines[:, _OF_SEGMENT + RAW_BYTES].sum()),
    )
