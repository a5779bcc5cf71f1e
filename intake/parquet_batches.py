"""Reads a Parquet input file in batches of bounded size.

A few hundred bytes may expand to gigabytes: repeated values, long runs, well compressed pages. So each row
group is checked by its page headers (`intake.parquet_pages`) before anything is decoded, and refused if it is
too large. Decoded pages stay within `PAGES_BYTES_MAX`, and decoded rows within about twice that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.runtime.errors import InvalidInput, RecordRefused
from intake.parquet_pages import Pages, read_pages
from intake.records import HEADER_COST_BYTES

PAGES_BYTES_MAX: Final = 256 << 20
"""Sum over the columns of a row group, of the largest page and the dictionary. More if two of the largest
records need it."""
_DICTIONARY_VALUES_MAX: Final = 4 << 20
_PAGE_VALUES_MAX: Final = 16 << 20
_ROWS_PER_BATCH: Final = 8192
_BATCH_BYTES: Final = 16 << 20
_HEADERS_BYTES_MAX: Final = 64 << 20
"""Header values that repeat are decoded at once up to this size per row group."""
_HEADER_OBJECT_BYTES: Final = 256
"""Memory of a header in Python in addition to its bytes."""
_STREAM_BYTES: Final = 1 << 20
"""A column is read in pieces of this size."""
_NUMBER_BYTES: Final = 8
_VALUE_BYTES_MAX: Final = 64 << 20
"""Bound for a dictionary value, because the reader copies dictionary values without a size check. More if
records may be larger."""

Counts = npt.NDArray[np.int64]


def batches_from(
    source: BinaryIO, file: pq.ParquetFile, row: int, record_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """The rows from `row` on; `file` is the content of `source`.

    Raises `InvalidInput` for a row group that is too large, after the row groups before it. Raises
    `RecordRefused` for a row above `record_bytes_max`, after the rows before it; not every such row is found
    here.
    """
    passed = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        before, passed = passed, passed + rows
        if passed <= row:
            continue
        found = _judged(source, file, number, record_bytes_max)
        by_reference = [path for path, pages in found.items() if _is_repeated(path) and _is_large(pages)]
        reader = pq.ParquetFile(
            source, metadata=file.metadata, read_dictionary=by_reference, buffer_size=_STREAM_BYTES
        )
        at = before
        for batch in reader.iter_batches(batch_size=_batch_rows(found), row_groups=[number]):
            rest = batch.slice(min(max(0, row - at), batch.num_rows))
            at += batch.num_rows
            yield from _portions(rest, at - rest.num_rows, record_bytes_max)


def _judged(
    source: BinaryIO, file: pq.ParquetFile, number: int, record_bytes_max: int
) -> Mapping[str, Pages]:
    """The pages of each column of a row group, after the check that they may be read."""
    group, limit = file.metadata.row_group(number), max(PAGES_BYTES_MAX, 2 * record_bytes_max)
    found: dict[str, Pages] = {}
    total = 0
    for index in range(group.num_columns):
        column = group.column(index)
        where, repeated = (
            f"row group {number}, column {column.path_in_schema}",
            _is_repeated(column.path_in_schema),
        )
        try:
            pages = found[column.path_in_schema] = read_pages(source, column, limit)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}; the file is damaged") from error
        if column.physical_type == "BYTE_ARRAY":
            _check_texts(pages, repeated, max(record_bytes_max, _VALUE_BYTES_MAX), where)
        if max(pages.page_values, column.num_values if repeated else 0) > _PAGE_VALUES_MAX:
            raise InvalidInput(
                f"{where}: more than {_PAGE_VALUES_MAX} values in one page, or headers in one row "
                "group; write smaller ones"
            )
        # A column read as a dictionary accumulates the values of all its pages, and one row may have all
        # headers of the row group.
        collected = repeated or pa.types.is_dictionary(
            file.schema_arrow.field(column.path_in_schema.partition(".")[0]).type
        )
        total += pages.dictionary_bytes + max(pages.page_bytes, pages.plain_bytes if collected else 0)
        if total > limit:
            raise InvalidInput(
                f"{where}: its pages are too large to be read ({total} bytes decompressed, at most {limit}); "
                "write the file with smaller pages, or smaller row groups, and large values without a "
                "dictionary"
            )
    return found


def _check_texts(pages: Pages, repeated: bool, value_bytes_max: int, where: str) -> None:
    """Refuse strings whose decoded size cannot be bounded."""
    if not pages.foreseeable:
        raise InvalidInput(
            f"{where}: the decoded size of its encoding is not known in advance; write it "
            "plainly or by dictionary"
        )
    if pages.dictionary_values > _DICTIONARY_VALUES_MAX:
        raise InvalidInput(
            f"{where}: a dictionary of {pages.dictionary_values} values, at most "
            f"{_DICTIONARY_VALUES_MAX} can be read"
        )
    if pages.indexed_values and pages.longest_bytes > value_bytes_max:
        raise InvalidInput(
            f"{where}: a value of {pages.longest_bytes} bytes in its dictionary is larger than any "
            f"record, {value_bytes_max} at most"
        )
    if repeated and _is_large(pages) and pages.plain_bytes > _HEADERS_BYTES_MAX:
        raise InvalidInput(
            f"{where}: too many headers, some by dictionary and some not; write smaller row groups"
        )


def _is_repeated(path: str) -> bool:
    return "." in path


def _is_large(pages: Pages) -> bool:
    """Whether dictionary values may take too much memory when they are all copied to their rows."""
    return pages.indexed_values * pages.longest_bytes > _HEADERS_BYTES_MAX


def _batch_rows(found: Mapping[str, Pages]) -> int:
    """A number of rows that takes at most `_BATCH_BYTES`, plus one page at each end."""
    row_bytes = 1.0
    for path, pages in found.items():
        if not _is_repeated(path):
            row_bytes += max(_NUMBER_BYTES, pages.densest, pages.longest_bytes if pages.indexed_values else 0)
    return min(_ROWS_PER_BATCH, max(1, int(_BATCH_BYTES / row_bytes)))


def _portions(batch: pa.RecordBatch, row: int, record_bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch, whose first row is `row`, in parts of about `_BATCH_BYTES` as Python objects, up to the
    first record that is too large.
    """
    names = batch.schema.names
    if "headers" not in names and batch.nbytes <= _BATCH_BYTES:
        yield batch
        return
    counts = raw = np.zeros(batch.num_rows, np.int64)
    if "headers" in names:
        counts, raw = _headers(batch.column("headers"))
    for name in {"key", "value"}.intersection(names):
        raw = raw + _lengths(batch.column(name))
    weights = raw + counts * HEADER_COST_BYTES
    over = np.flatnonzero(weights > record_bytes_max)
    refused = int(over[0]) if len(over) else batch.num_rows
    costs = raw + counts * _HEADER_OBJECT_BYTES
    if "topic" in names:
        costs = costs + _lengths(batch.column("topic"))
    reached = np.cumsum(costs[:refused])
    first = 0
    while first < refused:
        room = _BATCH_BYTES + (int(reached[first - 1]) if first else 0)
        end = max(first + 1, int(np.searchsorted(reached, room, side="right")))
        yield batch.slice(first, end - first)
        first = end
    if len(over):
        raise RecordRefused(
            f"row {row + refused}: the record has {weights[refused]} bytes (each header counts "
            f"{HEADER_COST_BYTES} more), "
            f"more than intake.record_bytes_max = {record_bytes_max}; make it smaller or raise the limit"
        )


def _headers(column: Any) -> tuple[Counts, Counts]:
    """Per row: the number of headers, and the bytes of their names and values."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.flatten()
    reached = np.concatenate(
        [
            [0],
            np.cumsum(_lengths(pc.struct_field(values, "key")) + _lengths(pc.struct_field(values, "value"))),
        ]
    )
    ends = np.cumsum(counts)
    return counts, reached[ends] - reached[ends - counts]


def _lengths(column: Any) -> Counts:
    """Bytes of each value; zero for null."""
    if pa.types.is_dictionary(column.type):
        found: Any = pc.binary_length(column.dictionary).take(column.indices)
    else:
        found = pc.binary_length(column)
    lengths: Counts = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
