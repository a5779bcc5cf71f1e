"""An intake file contains the given records where its segments state, and any Parquet reader can open it."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.runtime.ids import TopicId
from intake.format import (
    FOOTER_TAIL_BYTES,
    INTAKE_SCHEMA,
    SegmentRows,
    footer_length,
    footer_sha256,
    write_intake_file,
)

TOPIC = TopicId("a" * 32)


def table_of(rows: int) -> pa.Table:
    cells = [
        {
            "topic": "t",
            "partition": number % 3,
            "key": None if number % 3 == 0 else b"k%d" % number,
            "value": None if number % 5 == 0 else b"" if number % 5 == 1 else b"v%d" % number,
            "headers": [{"key": "ä", "value": None}, {"key": "ä", "value": b"x"}][: number % 3],
            "event_timestamp": number - 5,
            "accept_timestamp": 1_700_000_000_000_000 + number,
            "batch": number,
        }
        for number in range(rows)
    ]
    return pa.Table.from_pylist(cells, schema=INTAKE_SCHEMA)


def segment(partition: int, rows: int, raw_bytes: int) -> SegmentRows:
    return SegmentRows(TOPIC, partition, rows, raw_bytes, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=12), st.integers(1, 60)
)
def test_round_trip(runs: list[tuple[int, int]], row_group_bytes: int) -> None:
    table = table_of(sum(rows for rows, _ in runs))
    segments = [segment(number, rows, size) for number, (rows, size) in enumerate(runs)]
    file = write_intake_file(table, segments, row_group_bytes)
    parquet = pq.ParquetFile(pa.BufferReader(file.data), page_checksum_verification=True)
    assert parquet.read().cast(INTAKE_SCHEMA).equals(table)
    start = 0
    held = 0
    for given_segment, placed in zip(segments, file.segments, strict=True):
        group = parquet.read_row_group(placed.row_group).cast(INTAKE_SCHEMA)
        assert group.slice(placed.first_row, placed.rows).equals(table.slice(start, placed.rows))
        # A row group closes at the first segment border at which it is large enough, and no earlier.
        assert (placed.first_row == 0) == (start == 0 or held >= row_group_bytes)
        held = given_segment.raw_bytes + (0 if placed.first_row == 0 else held)
        start += placed.rows
    assert parquet.metadata.num_row_groups == file.segments[-1].row_group + 1


def test_the_file_is_ordinary_parquet_with_checked_pages() -> None:
    file = write_intake_file(table_of(50), [segment(0, 50, 100)], 1)
    metadata = pq.read_metadata(pa.BufferReader(file.data))
    assert metadata.metadata == {b"archiver.intake_format": b"1"}
    assert metadata.row_group(0).column(3).compression == "ZSTD"
    assert metadata.schema.names[:4] == ["topic", "partition", "key", "value"]


def test_the_footer_digest_covers_length_and_magic() -> None:
    data = write_intake_file(table_of(5), [segment(0, 5, 100)], 1).data
    length = footer_length(data[-FOOTER_TAIL_BYTES:])
    assert length is not None
    assert footer_sha256(data) == hashlib.sha256(data[-length:]).digest()
    assert length == int.from_bytes(data[-8:-4], "little") + 8


def test_what_is_no_parquet_has_no_footer() -> None:
    assert footer_length(b"\0\0\0\0PAR2") is None
    assert footer_length(b"PAR1") is None
    with pytest.raises(ValueError, match="do not end in a Parquet footer"):
        footer_sha256(b"\xff\xff\xff\x7fPAR1")


def test_segments_must_cover_the_rows() -> None:
    with pytest.raises(ValueError, match="do not cover"):
        write_intake_file(table_of(5), [segment(0, 4, 1)], 1)
    with pytest.raises(ValueError, match="do not cover"):
        write_intake_file(table_of(0), [], 1)
