"""Concatenated pieces equal the rows they stand for, with and without headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from archiver.refine.plan_writer import Piece, copied, kept, together
from intake.format import READ_SCHEMA

NONE: list[tuple[str, bytes]] = []
SOME: list[tuple[str, bytes]] = [("a", b"1"), ("b", b"")]


def batch(headers: Sequence[list[tuple[str, bytes]]], first: int = 0) -> pa.RecordBatch:
    """One record for each list of headers, numbered from `first`."""
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


def test_headers_are_left_out_only_where_there_are_none() -> None:
    mixed = batch([SOME, NONE, NONE, SOME])
    assert kept(mixed).headers is not None
    assert kept(batch([NONE, NONE])).headers is None
    inside = mixed.slice(1, 2)
    assert kept(inside).headers is None, "of its neighbours nothing counts"
    assert together([(kept(inside), 0, 2)]).to_pylist() == inside.to_pylist()
    assert kept(mixed.slice(1, 3)).headers is not None


@pytest.mark.parametrize("rows", [8191, 8192, 8193, 20_000])
def test_many_rows_without_headers(rows: int) -> None:
    found = together([(kept(batch([NONE] * rows)), 0, rows)])
    found.validate(full=True)
    assert found.num_rows == rows
    assert found.column("headers").to_pylist() == [NONE] * rows
    again = together([(kept(batch([SOME])), 0, 1), (kept(found), 0, rows)])
    assert again.column("value").to_pylist() == [b"v0", *(b"v%d" % number for number in range(rows))]
    assert [len(one or ()) for one in again.column("headers").to_pylist()] == [2] + [0] * rows


@pytest.mark.parametrize("of_each", [1, 3], ids=["small", "in slices"])
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("with_headers", ["none", "all", "the first", "the last", "some"])
def test_rows_come_in_their_order(with_headers: str, count: int, of_each: int) -> None:
    places = {
        "none": [],
        "all": range(count),
        "the first": [0],
        "the last": [count - 1],
        "some": range(2, count, 7),
    }[with_headers]
    whole = [batch([SOME if place in places else NONE] * 4, 4 * place) for place in range(count)]
    pieces: list[Piece] = [(kept(one), 1, of_each) for one in whole]
    wanted = [row for one in whole for row in one.slice(1, of_each).to_pylist()]
    for found in (together(pieces), together([copied(pieces)]), together([copied(pieces[:1]), *pieces[1:]])):
        assert found.schema == READ_SCHEMA
        found.validate(full=True)
        assert found.to_pylist() == wanted


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_was_copied_points_into_nothing_that_was_read(pieces: int) -> None:
    read = kept(batch([NONE, SOME, NONE, NONE, SOME]))
    own, first, rows = copied([(read, 1, 3)] * pieces)
    assert (first, rows) == (0, 3 * pieces)
    addresses: list[set[int]] = []
    for one in (read, own):
        assert one.headers is not None
        buffers = [buffer for column in (*one.others.columns, one.headers) for buffer in column.buffers()]
        addresses.append({buffer.address for buffer in buffers if buffer is not None and buffer.size})
    assert not addresses[0] & addresses[1]
    assert own.nbytes < 1000 * pieces
