"""The pieces of a file add up to the file, at any place where reading restarts."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.runtime.errors import NotFound
from intake.inputs import InputFormat, InputPosition, batches_from
from intake.record_json import Input
from intake.sources.files.ingest import Cutting, Piece, PieceReader
from intake.write.queue import ROW_COST_BYTES
from tests.support.intake.file_sources import FORMATS, file_of

LARGE = 1 << 20
VALUES = st.lists(st.binary(max_size=40), max_size=40)


def cutting(
    form: InputFormat,
    bytes_max: int,
    partitions_max: int = 1000,
    place: Callable[[Input, int], int] = lambda *_: 0,
) -> Cutting:
    return Cutting(form, "t", form == "jsonl", LARGE, bytes_max, partitions_max, place)


def read(data: bytes, how: Cutting, restarts: Any = None) -> list[Piece]:
    """The pieces. Where `restarts` draws true, another reader continues that has only the position."""
    pieces: list[Piece] = []
    reader = PieceReader(io.BytesIO(data), how, InputPosition())
    while not pieces or not (pieces[-1].done or pieces[-1].broken):
        if pieces and restarts is not None and restarts.draw(st.booleans()):
            reader = PieceReader(io.BytesIO(data), how, InputPosition(pieces[-1].end, pieces[-1].count))
        pieces.append(reader.next())
    return pieces


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMATS), VALUES, st.integers(1, 600), st.data())
def test_the_pieces_are_the_file(form: InputFormat, values: list[bytes], bytes_max: int, data: Any) -> None:
    content = file_of(values, form)
    if form == "jsonl":
        content = b"\xef\xbb\xbf" + content.replace(
            b"\n", data.draw(st.sampled_from([b"\n", b"\n\n", b"\r\n  \n"]))
        )
    pieces = read(content, cutting(form, bytes_max), data)
    expected = [value.decode("latin-1").encode() for value in values] if form == "jsonl" else values
    assert [record.value for piece in pieces for record in piece.records] == expected
    assert [piece.base for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == (len(values) if form == "parquet" else len(content))
    for piece in pieces:
        assert len(piece.records) == len(piece.partitions) == len(piece.raw_bytes)
        assert piece.cost == sum(piece.raw_bytes) + ROW_COST_BYTES * len(piece.records)
        assert len(piece.records) == 1 or piece.cost <= bytes_max or piece.done
        assert piece.records or piece.done


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_names_the_same_place_after_a_restart(form: InputFormat) -> None:
    """The eighth record goes to a partition that does not exist."""
    content = file_of([str(number).encode() for number in range(9)], form)

    def place(item: Input, raw_bytes: int) -> int:
        if item.record.value == b"7":
            raise NotFound("no such partition")
        return 0

    how = cutting(form, 2 * ROW_COST_BYTES + 10, place=place)
    whole = read(content, how)
    assert len(whole) == 4
    again = PieceReader(io.BytesIO(content), how, InputPosition(whole[-1].end, whole[-1].count)).next()
    assert (again.broken, again.records) == (whole[-1].broken, [])
    assert (whole[-1].broken or "").startswith(
        {"jsonl": "line 8: no", "delimited": "record 7 (byte 14): no", "parquet": "row 7: no"}[form]
    )


def test_a_byte_order_mark_belongs_to_the_beginning() -> None:
    """Whether or not reading restarts before it."""
    content = b'{"value": "x"}\n\xef\xbb\xbf{"value": "y"}\n'
    first, second = (
        read(content, cutting("jsonl", 1)),
        PieceReader(io.BytesIO(content), cutting("jsonl", 1), InputPosition(15, 1)).next(),
    )
    assert first[-1].broken == second.broken
    assert "line 2" in (second.broken or "")


@pytest.mark.parametrize("form", ["jsonl", "delimited"])
def test_no_more_than_a_piece_is_read(form: InputFormat) -> None:
    stream = io.BytesIO(file_of([b"x" * 20] * 50_000, form))
    reader = PieceReader(stream, cutting(form, 1000), InputPosition())
    for _ in range(3):
        piece = reader.next()
        assert stream.tell() <= piece.end + 100


def test_a_parquet_file_of_large_values_is_read_in_small_batches() -> None:
    """The size of the next row is unknown, but the pages and the dictionary bound it."""
    large = [bytes([number]) * (9 << 20) for number in range(6)]
    source = io.BytesIO(file_of([b"", *large, b""], "parquet"))
    batches = [batch for batch in batches_from(source, pq.ParquetFile(source), 2, LARGE) if batch.num_rows]
    assert [batch.num_rows for batch in batches] == [1, 1, 1, 1, 1, 1]
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [*large[1:], b""]


def test_a_piece_has_so_many_partitions_at_most() -> None:
    content = file_of([bytes([number % 5]) for number in range(20)], "delimited")
    how = cutting("delimited", LARGE, 3, lambda item, _: (item.record.value or b"\0")[0])
    pieces = read(content, how)
    assert [set(piece.partitions) for piece in pieces[:2]] == [{0, 1, 2}, {3, 4, 0}]
    assert sum(len(piece.records) for piece in pieces) == 20
