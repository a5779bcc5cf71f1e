"""Statistics of Parquet pages from their headers, without decoding; at most a dictionary is decompressed.

Sizes in a footer may be wrong, and what a reader allocates follows the page headers. At most one header and
one dictionary page of an allowed size are in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.errors import InvalidInput
from intake.thrift_compact import Compact, Fields

_HEADER_BYTES: Final = 4096
_HEADER_BYTES_MAX: Final = 1 << 20
"""Of one page header; it may carry the smallest and the largest value."""
# Numbers of `PageType` in `parquet.thrift`; index pages (1) are skipped.
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
# Numbers of `Encoding` in `parquet.thrift`.
_PLAIN, _PLAIN_DICTIONARY, _DELTA_LENGTHS, _RLE_DICTIONARY = 0, 2, 6, 8
_LENGTH: Final = struct.Struct("<I")
_CODECS: Final[dict[str, Literal["snappy", "gzip", "brotli", "zstd"]]] = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
}


@dataclass(slots=True)
class Pages:
    """Statistics of one column of a row group."""

    dictionary_bytes: int = 0
    """Decompressed."""
    dictionary_values: int = 0
    longest_bytes: int = 0
    """Upper bound of the length of a dictionary value."""
    page_bytes: int = 0
    """Of the largest page, the larger of compressed and decompressed size. Of the dictionary, the compressed
    size only."""
    plain_bytes: int = 0
    """Decompressed, of all data pages that hold values themselves."""
    page_values: int = 0
    """Of the data page with the most values, nulls included."""
    indexed_values: int = 0
    """Of the data pages that refer to the dictionary, nulls included."""
    densest: float = 0.0
    """Bytes per value, of the data page with the most."""
    values: int = 0
    """Of all data pages, nulls included."""
    bytes: int = 0
    """Of all pages and their headers, decompressed."""
    stored_bytes: int = 0
    """Of all pages and their headers, compressed."""
    encodings: frozenset[int] = frozenset()
    """Parquet's encoding numbers of the data pages."""

    @property
    def plain(self) -> bool:
        """Whether all values are stored plainly, so that they take no more space than the pages."""
        return self.encodings <= {_PLAIN} and not self.dictionary_bytes

    @property
    def foreseeable(self) -> bool:
        """Whether no value is larger than its page or its dictionary. With prefix-sharing encodings it may
        be.
        """
        return self.encodings <= {_PLAIN, _PLAIN_DICTIONARY, _DELTA_LENGTHS, _RLE_DICTIONARY}


def read_pages(
    source: BinaryIO | pa.NativeFile, column: pq.ColumnChunkMetaData, dictionary_bytes_max: int
) -> Pages:
    """Walk the pages of a column; raises `InvalidInput` if that is impossible. A dictionary above the limit
    is not decompressed.
    """
    # A dictionary lies before the data pages; any other offset is not trusted.
    position = column.data_page_offset
    if (
        column.has_dictionary_page
        and column.dictionary_page_offset is not None
        and 0 < column.dictionary_page_offset < position
    ):
        position = column.dictionary_page_offset
    end = position + column.total_compressed_size
    pages, seen = Pages(), 0
    while seen < column.num_values and position < end:
        # Fields 1 to 3 of a page header: type, decompressed size, compressed size.
        header, header_bytes = _header_at(source, position)
        kind, size, stored = _number(header, 1), _number(header, 2), _number(header, 3)
        # The reader allocates by these numbers, so they must lie within the column.
        if min(kind, size, stored) < 0 or position + header_bytes + stored > end:
            raise InvalidInput("a page header is invalid")
        position += header_bytes + stored
        pages.stored_bytes += header_bytes + stored
        pages.bytes += header_bytes + size
        if kind == _DICTIONARY:
            if pages.dictionary_bytes:
                raise InvalidInput("a column has two dictionaries")
            pages.page_bytes = max(pages.page_bytes, stored)
            pages.dictionary_bytes, pages.dictionary_values = size, _number(header.get(7), 1)
            if pages.dictionary_values < 0 or pages.dictionary_values > size:
                raise InvalidInput("a dictionary has fewer bytes than values")
            pages.longest_bytes = size
            # Only strings and bytes differ in length. A larger dictionary keeps its size as the bound.
            if column.physical_type == "BYTE_ARRAY" and max(size, stored) <= dictionary_bytes_max:
                pages.longest_bytes = _longest(
                    source, position - stored, stored, size, pages.dictionary_values, column.compression
                )
            continue
        pages.page_bytes = max(pages.page_bytes, size, stored)
        if kind in (_DATA, _DATA_V2):
            # Field 5 is the header of a data page, field 8 that of version 2.
            detail = header.get(5 if kind == _DATA else 8)
            pages.values = seen = seen + _add(
                pages, size, _number(detail, 1), _number(detail, 2 if kind == _DATA else 4)
            )
    return pages


def check_pages(
    source: BinaryIO | pa.NativeFile, metadata: pq.FileMetaData, group: int, columns: Collection[str]
) -> dict[str, Pages]:
    """The pages of some top-level columns of a row group, checked against the footer. Only then may they be
    decompressed.

    For files of this system, whose footers are verified: a page header has no checksum, and the reader
    allocates what it says. Raises `InvalidInput` that names row group and column. Reads only the headers.
    """
    found: dict[str, Pages] = {}
    for place in range(metadata.row_group(group).num_columns):
        column = metadata.row_group(group).column(place)
        path = column.path_in_schema
        if path.partition(".")[0] not in columns:
            continue
        where = f"row group {group}, column {path}"
        try:
            # 0: no dictionary is decompressed here.
            pages = found[path] = read_pages(source, column, 0)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        # The footer is verified by its digest, so headers that add up to its numbers cannot lie about the
        # total.
        said = pages.bytes, pages.stored_bytes, pages.values
        written = column.total_uncompressed_size, column.total_compressed_size, column.num_values
        if said != written:
            raise InvalidInput(
                f"{where}: its page headers say {said} (bytes, bytes compressed, values), the footer "
                f"says {written}"
            )
    return found


def checked_batches(
    source: BinaryIO | pa.NativeFile,
    file: pq.ParquetFile,
    batch_rows: int,
    groups: Iterable[int],
    columns: Sequence[str] | None = None,
    *,
    use_threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of a file of this system; each row group after its page headers are checked against the footer.
    `columns` are paths; None: all.

    Raises `ArrowInvalid` for other headers, as Parquet does for damage.
    """
    names = set(file.schema_arrow.names) if columns is None else {path.partition(".")[0] for path in columns}
    for group in groups:
        try:
            # Per row group and just before it is read, so that only these pages are in memory.
            check_pages(source, file.metadata, group, names)
        except InvalidInput as error:
            raise pa.ArrowInvalid(str(error)) from error
        chosen = None if columns is None else list(columns)
        yield from file.iter_batches(
            batch_size=batch_rows, row_groups=[group], columns=chosen, use_threads=use_threads
        )


def _add(pages: Pages, size: int, values: int, encoding: int) -> int:
    """Count a data page; returns its number of values."""
    if values < 0 or encoding < 0:
        raise InvalidInput("a page header is invalid")
    pages.encodings |= {encoding}
    pages.page_values = max(pages.page_values, values)
    pages.densest = max(pages.densest, size / max(1, values))
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        pages.indexed_values += values
    else:
        pages.plain_bytes += size
    return values


def _longest(
    source: BinaryIO | pa.NativeFile, position: int, stored: int, size: int, values: int, compression: str
) -> int:
    """Bytes of the longest value of a dictionary page; of the whole page if that is unknown."""
    if compression != "UNCOMPRESSED" and compression not in _CODECS:
        return size
    source.seek(position)
    data: bytes | pa.Buffer = source.read(stored)
    if compression != "UNCOMPRESSED":
        try:
            data = pa.Codec(_CODECS[compression]).decompress(data, decompressed_size=size)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidInput(f"a dictionary cannot be decompressed: {error}") from error
    longest = at = 0
    try:
        for _ in range(values):
            # Values of a plain dictionary: a length of four bytes, then the bytes.
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            longest = max(longest, length)
    except struct.error as error:
        raise InvalidInput("a dictionary ends inside a value") from error
    return longest


def _number(header: object, field: int) -> int:
    """A whole number of a header, -1 if it is missing."""
    found = header.get(field) if isinstance(header, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else -1


def _header_at(source: BinaryIO | pa.NativeFile, position: int) -> tuple[Fields, int]:
    """A page header and its number of bytes."""
    # Almost every header fits; one with long statistics is read again with more room.
    room = _HEADER_BYTES
    while True:
        source.seek(position)
        data = source.read(room)
        compact = Compact(data, "a page header")
        try:
            header = compact.struct(0)
        except IndexError as error:
            if len(data) < room or room >= _HEADER_BYTES_MAX:
                raise InvalidInput("a page header does not end") from error
            room *= 16
            continue
        return header, compact.at
