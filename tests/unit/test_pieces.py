"""Pieces put together are the rows they stand for, with and without headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from archiver.jobs.pieces import Piece, copied, together, without_headers
from intake.format import READ_SCHEMA

NONE: list[tuple[str, bytes]] = []
SOME: list[tuple[str, bytes]] = [("a", b"1"), ("b", b"")]


def batch(headers: Sequence[list[tuple[str, bytes]]], first: int = 0) -> pa.RecordBatch:
    """A record for each list of headers, numbered from `first` on."""
    rows: list[dict[str, Any]] = [
        {
            "key": b"%d" % number if number % 3 else None,
            "value": b"v%d" % number,
            "headers": [{"key": name, "value": value} for name, value in one],
            "event_timestamp": number,
            "accept_timestamp": number,
            "batch": number,
        }
        for number, one in enumerate(headers, first)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=READ_SCHEMA)


def test_only_records_without_any_header_do_without_the_column() -> None:
    mixed = batch([SOME, NONE, NONE, SOME])
    assert without_headers(mixed) is mixed
    assert without_headers(batch([NONE, NONE])).schema == READ_SCHEMA.remove(READ_SCHEMA.get_field_index("headers"))
    inside = without_headers(mixed.slice(1, 2))  # of its neighbours nothing counts
    assert "headers" not in inside.schema.names
    assert together([(inside, 0, 2)]).to_pylist() == mixed.slice(1, 2).to_pylist()
    assert without_headers(mixed.slice(1, 3)).num_columns == len(READ_SCHEMA)


@pytest.mark.parametrize("of_each", [1, 3], ids=["small", "in slices"])
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("with_headers", ["none", "all", "the first", "the last", "some"])
def test_rows_come_in_their_order(with_headers: str, count: int, of_each: int) -> None:
    places = {"none": [], "all": range(count), "the first": [0], "the last": [count - 1], "some": range(2, count, 7)}[with_headers]
    whole = [batch([SOME if place in places else NONE] * 4, 4 * place) for place in range(count)]
    pieces: list[Piece] = [(without_headers(one), 1, of_each) for one in whole]
    wanted = [row for one in whole for row in one.slice(1, of_each).to_pylist()]
    for found in (together(pieces), together([copied(pieces)]), together([copied(pieces[:1]), *pieces[1:]])):
        assert found.schema == READ_SCHEMA
        found.validate(full=True)
        assert found.to_pylist() == wanted


def test_what_was_copied_points_into_nothing_that_was_read() -> None:
    read = without_headers(batch([NONE] * 5))
    records, first, rows = copied([(read, 1, 3)])
    assert (first, rows) == (0, 3)
    addresses = {buffer.address for column in read.columns for buffer in column.buffers() if buffer is not None}
    assert not addresses & {buffer.address for column in records.columns for buffer in column.buffers() if buffer is not None}
