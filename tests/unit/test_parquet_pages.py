"""The page headers of Parquet files against what was written, and rows in bounded batches against all rows."""

from __future__ import annotations

import io
import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.runtime.errors import InvalidInput, RecordRefused
from intake.inputs import InputPosition, read_inputs
from intake.parquet_pages import Pages, read_pages
from intake.records import HEADERS

LIMIT = 1 << 28
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def written(columns: dict[str, Any], **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink


def pages_of(source: io.BytesIO, column: int = 0, group: int = 0, limit: int = LIMIT) -> Pages:
    return read_pages(source, pq.ParquetFile(source).metadata.row_group(group).column(column), limit)


def values(count: int, size: int, kinds: int) -> pa.Array[Any]:
    chance = random.Random(7)
    known = [chance.randbytes(size) for _ in range(kinds)]
    return pa.array([known[number % kinds] for number in range(count)], pa.binary())


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_dictionary(codec: str, version: str) -> None:
    found = pages_of(written({"value": values(5000, 50, 20)}, compression=codec, data_page_version=version))
    assert (found.dictionary_values, found.dictionary_bytes) == (20, 20 * 54)
    assert found.longest_bytes == (50 if codec != "lz4" else 20 * 54), (
        "of a codec that is not known here, the whole page"
    )
    assert (found.indexed_values, found.plain_bytes, found.foreseeable) == (5000, 0, True)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_plain_pages(codec: str, version: str) -> None:
    source = written(
        {"value": values(5000, 50, 5000)},
        compression=codec,
        data_page_version=version,
        use_dictionary=False,
        data_page_size=10_000,
    )
    found = pages_of(source)
    assert (found.dictionary_bytes, found.longest_bytes, found.indexed_values) == (0, 0, 0)
    assert 5000 * 54 <= found.plain_bytes < 5000 * 54 * 1.1
    assert found.page_bytes < 100_000
    assert found.page_values < 5000
    assert found.densest == pytest.approx(54, rel=0.05)


def test_a_dictionary_that_was_given_up() -> None:
    found = pages_of(
        written({"value": values(20_000, 50, 20_000)}, dictionary_pagesize_limit=1000, write_batch_size=100)
    )
    assert 0 < found.indexed_values < 20_000
    assert found.plain_bytes > 0
    assert found.longest_bytes == 50


def test_a_dictionary_above_the_limit_is_not_opened() -> None:
    assert pages_of(written({"value": values(100, 50, 1)}, compression="none"), limit=54).longest_bytes == 50
    assert pages_of(written({"value": values(100, 50, 1)}, compression="none"), limit=53).longest_bytes == 54


def test_statistics_in_a_page_header_are_passed_over() -> None:
    source = written(
        {"value": values(10, 9000, 10)}, write_statistics=True, data_page_version="2.0", use_dictionary=False
    )
    assert pages_of(source).page_values == 10


def page(kind: int, size: int, stored: int, detail: int, values_of_it: int) -> bytes:
    """A page header in Thrift's compact protocol. `detail` is the number of its inner struct; `stored` zero
    bytes follow."""

    def number(field_step: int, value: int) -> bytes:
        return bytes([field_step << 4 | 5]) + _varint(value << 1)

    head = number(1, kind) + number(1, size) + number(1, stored)
    return (
        head
        + bytes([(detail - 3) << 4 | 12])
        + number(1, values_of_it)
        + number(1, 8)
        + b"\0\0"
        + bytes(stored)
    )


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def walked(data: bytes, count: int) -> Pages:
    column: Any = SimpleNamespace(
        data_page_offset=1,
        has_dictionary_page=False,
        dictionary_page_offset=None,
        total_compressed_size=len(data),
        num_values=count,
        physical_type="BYTE_ARRAY",
        compression="UNCOMPRESSED",
    )
    return read_pages(io.BytesIO(b"P" + data + bytes(5000)), column, LIMIT)


DICTIONARY, DATA = page(2, 40, 40, 7, 10), page(0, 10, 10, 5, 3)


def test_pages_that_are_made_by_hand_are_read() -> None:
    found = walked(DICTIONARY + DATA, 3)
    assert (found.dictionary_values, found.indexed_values, found.values) == (10, 3, 3)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DICTIONARY + DICTIONARY + DATA, "two dictionaries"),
        (page(2, 40, 40, 7, 41) + DATA, "fewer bytes than values"),
        (DICTIONARY + page(0, 10, 10, 5, 3)[:-1], "is invalid"),
        (page(2, 50, 40, 7, 11) + DATA, "ends inside a value"),
    ],
)
def test_pages_that_contradict_themselves_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        walked(data, 3)


def test_damaged_headers_are_refused_or_harmless() -> None:
    data = written({"value": values(200, 50, 3)}).getvalue()
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    chance, refused = random.Random(3), 0
    for _ in range(3000):
        broken = bytearray(data)
        broken[chance.randrange(4, 80)] = chance.randrange(256)
        try:
            read_pages(io.BytesIO(bytes(broken)), metadata, LIMIT)
        except InvalidInput:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 2000}, {"row_group_size": 700}]
)
def test_every_row_comes_once_from_anywhere(options: dict[str, Any]) -> None:
    chance = random.Random(11)
    pool = [chance.randbytes(chance.choice([0, 5, 300, 60_000])) for _ in range(40)]
    rows = [chance.choice([None, *pool]) for _ in range(2000)]
    headers = [
        [{"key": "h", "value": chance.choice(pool)}] * chance.choice([0, 0, 1, 3]) if row else None
        for row in rows
    ]
    columns = {
        "value": pa.array(rows, pa.binary()),
        "key": pa.array(rows[::-1], pa.large_binary()),
        "headers": pa.array(headers, HEADERS),
    }
    source = written(columns, write_batch_size=50, **options)
    for start in (0, 1, 699, 700, 1234, 1999, 2000):
        items = read_inputs(source, "parquet", "t", False, 1 << 20, InputPosition(start, start))
        found = [(item.where, item.record.value, item.record.key, len(item.record.headers)) for item in items]
        expected = zip(rows, rows[::-1], headers, strict=True)
        assert found == [
            (f"row {at}", *row[:2], len(row[2] or ())) for at, row in enumerate(expected) if at >= start
        ]


def test_rows_before_one_that_is_too_large_are_read() -> None:
    headers = [[{"key": "h", "value": b"x" * 10}] * count for count in (1, 2, 100, 1)]
    items = read_inputs(
        written({"value": pa.array([b"v"] * 4), "headers": pa.array(headers, HEADERS)}),
        "parquet",
        "t",
        False,
        1000,
    )
    assert [next(items).where, next(items).where] == ["row 0", "row 1"]
    with pytest.raises(RecordRefused, match=r"^row 2: the record has 2701 bytes"):
        next(items)
