"""Records of segments that wait to be decoded, as places in what was read.

Pure. Promises that rows keep their order. Headers stand beside the other columns, and are left out where
nobody sent any, as in most row groups: to slice them and put them together again takes a third of the time
that small pieces take (decision 0059).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from intake.arrow_arrays import ArrowArray, copied_batches
from intake.format import READ_COLUMNS, READ_SCHEMA
from intake.records import no_headers

_OTHERS = [name for name in READ_COLUMNS if name != "headers"]
_NONE = no_headers(8192)
"""As many as most pieces have at most: to make them anew takes ten times as long as a slice."""
_JOINED_MAX = 256
"""Pieces are sliced and put together so many at a time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Records as they wait."""

    others: pa.RecordBatch
    """The columns of `READ_SCHEMA` but for headers."""
    headers: ArrowArray | None
    """None: no record has any."""

    @property
    def nbytes(self) -> int:
        """What the records take."""
        return self.others.nbytes + (0 if self.headers is None else int(self.headers.nbytes))


Piece: TypeAlias = tuple[Kept, int, int]
"""Rows: of what, the first of them, how many. It takes a twentieth of a slice, which has 2.7 KB, however few
its rows are."""


def kept(records: pa.RecordBatch) -> Kept:
    """Records (columns as `READ_SCHEMA`) for pieces; nothing is copied."""
    headers: ArrowArray = records.column("headers")
    return Kept(records.select(_OTHERS), headers if len(headers.flatten()) else None)


def together(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """The rows of the pieces, columns as `READ_SCHEMA`; of a single piece not copied."""
    if len(pieces) == 1:
        found, first, rows = pieces[0]
    else:
        found = _joined(pieces)
        first, rows = 0, found.others.num_rows
    others = found.others.slice(first, rows)
    headers = _none(rows) if found.headers is None else found.headers.slice(first, rows)
    columns = [headers if name == "headers" else others.column(name) for name in READ_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)


def copied(pieces: Sequence[Piece]) -> Piece:
    """The pieces as one in memory of its own."""
    joined = _joined(pieces)
    return joined, 0, joined.others.num_rows


def _joined(pieces: Sequence[Piece]) -> Kept:
    if len(pieces) > _JOINED_MAX:
        return _joined([copied(pieces[at : at + _JOINED_MAX]) for at in range(0, len(pieces), _JOINED_MAX)])
    others = copied_batches([one.others.slice(first, rows) for one, first, rows in pieces])
    if all(one.headers is None for one, _, _ in pieces):
        return Kept(others, None)
    headers = [
        _none(rows) if one.headers is None else one.headers.slice(first, rows) for one, first, rows in pieces
    ]
    return Kept(others, pa.concat_arrays(headers))


def _none(rows: int) -> ArrowArray:
    return _NONE.slice(0, rows) if rows <= len(_NONE) else no_headers(rows)
