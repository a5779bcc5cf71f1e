"""Records of segments that wait to be decoded, as places in the batches that they came in.

Pure. Promises that rows keep their order. Batches come without the column `headers` where no record has any (`without_headers`), as most
row groups are: to slice it and put it together again takes a third of the time that small pieces take (decision 0059).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from intake.format import READ_SCHEMA
from intake.layout import ArrowArray, concat_batches, copied_batches, list_array
from intake.records import HEADERS

Piece: TypeAlias = tuple[pa.RecordBatch, int, int]
"""Rows of a batch: the batch, the first of them, how many. A twentieth of what a slice takes, which is 2.7 KB, however few its rows are."""

_NO_HEADERS: ArrowArray = pa.array([], HEADERS.value_type)
_JOINED_MAX = 256
"""Pieces are sliced and put together so many at a time."""


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records (columns as `READ_SCHEMA`) for pieces: without the column of headers if none of them has a header."""
    headers: ArrowArray = records.column("headers")
    return records if len(headers.flatten()) else records.drop_columns(["headers"])


def together(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """The rows of the pieces, columns as `READ_SCHEMA`; of a single piece not copied."""
    return _with_headers(concat_batches(_joined(pieces)))


def copied(pieces: Sequence[Piece]) -> Piece:
    """The pieces as one in memory of its own."""
    records = copied_batches(_joined(pieces))
    return records, 0, records.num_rows


def _joined(pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
    """The rows of the pieces in a few batches with the same columns, one for as many pieces as may be slices at a time."""
    if len(pieces) <= _JOINED_MAX:
        slices = [records.slice(first, rows) for records, first, rows in pieces]
    else:
        slices = [copied_batches(_joined(pieces[at : at + _JOINED_MAX])) for at in range(0, len(pieces), _JOINED_MAX)]
    alike = len({one.num_columns for one in slices}) == 1
    return slices if alike else [_with_headers(one) for one in slices]


def _with_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_columns == len(READ_SCHEMA):
        return records
    none = list_array(np.zeros(records.num_rows + 1, np.int32), _NO_HEADERS, HEADERS)
    columns = [none if name == "headers" else records.column(name) for name in READ_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)
