"""Reads records from intake files, and refuses a file that does not match the log.

Yielded records are those that the writer stored. Size and footer digest are in the log entry, and every page
and every record batch carries a checksum. An altered page header does not decode to the footer's row count.
Each row group is read once, and never yielded in part. A chunk of record batches is read as a row group is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import (
    ArchiverError,
    Corrupted,
    Halt,
    InvalidInput,
    NotFound,
    RetryLater,
    passing,
)
from archiver.runtime.text import counted
from intake.arrow_arrays import concat_batches
from intake.batches.chunks import CHUNKS_KEY, Chunk, decode_chunk, read_chunk_index
from intake.batches.decoding import NotDecompressed, StoredBatches
from intake.format import (
    FOOTER_TAIL_BYTES,
    FORMAT_KEY,
    FORMATS,
    LOG_INDEX_KEY,
    MAGIC,
    READ_COLUMNS,
    READ_SCHEMA,
    footer_length,
)
from intake.parquet_footer import footer_only, read_unverified_metadata
from intake.parquet_pages import Pages, check_pages
from intake.segments import FileRef, SegmentRef

_PLAIN_PATHS = frozenset({"key", "value", "headers.list.element.value"})
"""Columns that the writer never encodes with a dictionary."""
_NAMES_PATH = "headers.list.element.key"
_NAMES_BYTES = 64 * 2**20
"""If the header names of a row group could take more, their total is computed before they are decoded."""
_NAMES_BYTES_MAX = 2**30
"""No file has more raw bytes: it is the upper limit of `intake.delay_max_bytes`."""
_FOOTER_GUESS_BYTES = 64 * 1024
"""Usually covers the whole footer: one request instead of two."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ChunkPlaces:
    """Where a file has its chunks of record batches, by its verified footer."""

    row_groups: int
    """Row groups with rows. The numbers of the chunks follow theirs."""
    spans: tuple[tuple[int, int], ...]
    """First byte and size of each chunk."""


class IntakeReader:
    """Reads segments from an object store. Stateless; safe to use from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def read(
        self, file: FileRef, segments: Sequence[SegmentRef]
    ) -> Iterator[tuple[SegmentRef, pa.RecordBatch]]:
        """The records of each of the segments, all of `file`; columns as `READ_SCHEMA`, in file order.

        Raises `Corrupted` that names the file if it is missing, shorter, longer or altered; `Halt` if a newer
        version wrote it.
        """
        # In file order, so that each row group is read and decoded once.
        ordered = sorted(segments, key=lambda segment: (segment.row_group, segment.first_row))
        groups = {
            row_group: list(members)
            for row_group, members in groupby(ordered, key=lambda segment: segment.row_group)
        }
        for row_group, rows in self.row_groups(file, list(groups)):
            for segment in groups[row_group]:
                if segment.first_row + segment.rows > rows.num_rows:
                    raise beyond(file, row_group, rows.num_rows)
                yield segment, rows.slice(segment.first_row, segment.rows)

    def row_groups(self, file: FileRef, numbers: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Whole row groups of the file, in the given order; columns as `READ_SCHEMA`. Raises as `read`."""
        return self._row_groups(file, numbers, READ_COLUMNS)

    def batches(self, file: FileRef, number: int) -> StoredBatches | None:
        """The record batches of a chunk as they came; None if the row group with this number has rows. Raises
        as `read`.
        """
        with self._opened(file) as source:
            places = self._chunk_places(file, source)
            if number < places.row_groups:
                return None
            start, size = _chunk_of(file, places.row_groups, places.spans, number)
            try:
                return StoredBatches(_chunk_bytes(file, source, start, size))
            except InvalidInput as error:
                raise _corrupted(file, f"row group {number} (record batches): {error}") from error
            except (OSError, pa.ArrowException, MemoryError) as error:
                raise _unreadable(file, f"row group {number} (record batches): {error}", error) from error

    def event_times(
        self, file: FileRef, numbers: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """The event times of whole row groups, microseconds since 1970, in the given order. Of rows, only
        this column is read. Raises as `read`.
        """
        for row_group, rows in self._row_groups(file, numbers, ("event_timestamp",)):
            yield row_group, rows.column("event_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)

    def _row_groups(
        self, file: FileRef, numbers: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not numbers:
            return
        with self._opened(file) as source:
            metadata = _checked_footer(file, source)
            # The verified metadata is passed in, so the footer is not read a second time, perhaps altered.
            parquet = pq.ParquetFile(
                source, metadata=metadata, page_checksum_verification=True, pre_buffer=False
            )
            chunks: list[Chunk] | None = None
            for row_group in numbers:
                if row_group < metadata.num_row_groups:
                    yield row_group, _row_group(file, source, parquet, row_group, columns)
                    continue
                if chunks is None:
                    chunks = _chunks(file, metadata)
                chunk = _chunk_of(file, metadata.num_row_groups, chunks, row_group)
                yield row_group, _chunk_rows(file, source, row_group, chunk, columns)

    def _chunk_places(self, file: FileRef, source: pa.NativeFile) -> ChunkPlaces:
        """Raises as `read`."""
        metadata = _checked_footer(file, source)
        spans = tuple((chunk.start, chunk.size) for chunk in _chunks(file, metadata))
        return ChunkPlaces(metadata.num_row_groups, spans)

    def _opened(self, file: FileRef) -> pa.NativeFile:
        try:
            # The reader may have listed this file before the vacuum deleted it.
            return self._objects.open_input(file.key)
        except NotFound as error:
            raise Corrupted(
                f"intake file {file.key} is gone; entry {file.log_index} of the intake log names it; "
                "if it was archived and deleted "
                "during the read, read again, else restore it"
            ) from error


def beyond(file: FileRef, row_group: int, rows: int) -> Corrupted:
    """The error for a segment that reaches beyond its row group."""
    return _corrupted(
        file, f"row group {row_group} has {counted(rows, 'row')}, the log has a segment beyond them"
    )


def log_index_of(objects: ObjectStore, key: str) -> int | None:
    """Number of log entries that the writer of an intake file had read before it stored the file. It proves
    that the log was that long.

    None if the file does not state it, is damaged or missing; raises `RetryLater` if it cannot be read now.
    """
    try:
        with objects.open_input(key) as source:
            text = (read_unverified_metadata(source).metadata or {}).get(LOG_INDEX_KEY.encode(), b"")
    except (NotFound, OSError, pa.ArrowException) as error:
        if (later := passing(error, f"intake file {key}")) is not None:
            raise later from error
        return None
    return int(text) if text.isdigit() else None


def check_size(file: FileRef, source: pa.NativeFile) -> int:
    """The size of an open file. Raises `Corrupted` if the log has another one, and as `IntakeReader.read`."""
    try:
        size = source.size()
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, str(error), error) from error
    if size != file.size:
        raise _corrupted(file, f"it has {size} bytes, the log says {file.size}")
    return size


def _checked_footer(file: FileRef, source: pa.NativeFile) -> pq.FileMetaData:
    """The Parquet metadata, after size and digest were compared with the log entry."""
    size = check_size(file, source)
    try:
        # The log has only a digest of the footer; the pages have checksums of their own.
        tail = _read_at(source, max(0, size - _FOOTER_GUESS_BYTES), size)
        length = footer_length(tail[-FOOTER_TAIL_BYTES:])
        if length is None or length > size:
            raise _corrupted(file, "it does not end in a Parquet footer")
        footer = tail[-length:] if length <= len(tail) else _read_at(source, size - length, size)
        if hashlib.sha256(footer).digest() != file.footer_sha256:
            raise _corrupted(file, "its footer is not the one that was written")
        if _read_at(source, 0, len(MAGIC)) != MAGIC:
            raise _corrupted(file, "it does not begin as a Parquet file")
        # Parsed only after its digest was compared.
        metadata = pq.read_metadata(pa.BufferReader(footer_only(footer)))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, str(error), error) from error
    found = (metadata.metadata or {}).get(FORMAT_KEY.encode(), b"").decode("utf-8", "replace")
    # A newer format may give the same columns another meaning.
    if found not in FORMATS:
        raise Halt(
            f"intake file {file.key} has the format {found!r}, this version knows {FORMATS[-1]!r}; upgrade "
            "before reading it"
        )
    return metadata


def _chunks(file: FileRef, metadata: pq.FileMetaData) -> list[Chunk]:
    """The chunks of record batches; none if the file has no index of them."""
    text = (metadata.metadata or {}).get(CHUNKS_KEY.encode())
    if text is None:
        return []
    try:
        return read_chunk_index(text)
    except InvalidInput as error:
        raise _corrupted(file, str(error)) from error


def _chunk_of(file: FileRef, row_groups: int, chunks: Sequence[_T], row_group: int) -> _T:
    """The chunk that the log calls `row_group`; the file has so many with rows before its chunks."""
    number = row_group - row_groups
    if number >= len(chunks):
        raise _corrupted(
            file,
            f"it has {row_groups + len(chunks)} row groups, the log has a segment in row group {row_group}",
        )
    return chunks[number]


def _chunk_bytes(file: FileRef, source: pa.NativeFile, start: int, size: int) -> bytes:
    """Raises `InvalidInput` if the file is too short."""
    # Before memory for it is allocated.
    if start + size > file.size:
        raise InvalidInput(f"it ends at byte {start + size}, beyond the file")
    return _read_at(source, start, start + size)


def _chunk_rows(
    file: FileRef, source: pa.NativeFile, row_group: int, chunk: Chunk, columns: Sequence[str]
) -> pa.RecordBatch:
    try:
        records = decode_chunk(chunk, _chunk_bytes(file, source, chunk.start, chunk.size))
        return records.select(list(columns)).cast(pa.schema([READ_SCHEMA.field(name) for name in columns]))
    # Its checksum is right, and it was decompressed before it was stored. Codecs fail if memory is short.
    except NotDecompressed as error:
        raise RetryLater(
            f"intake file {file.key}: row group {row_group} (record batches): {error}; memory may be short, "
            "try again"
        ) from error
    # The batches were checked before they were stored, so a bad one is damage and no wrong input.
    except InvalidInput as error:
        raise _corrupted(file, f"row group {row_group} (record batches): {error}") from error
    # numpy has its own error where memory is short.
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise _unreadable(file, f"row group {row_group} (record batches): {error}", error) from error


def _read_at(source: pa.NativeFile, start: int, end: int) -> bytes:
    source.seek(start)
    return bytes(source.read(end - start))


def _row_group(
    file: FileRef, source: pa.NativeFile, parquet: pq.ParquetFile, row_group: int, columns: Sequence[str]
) -> pa.RecordBatch:
    try:
        # Page headers have no checksum, and the decoder allocates what they say.
        pages = check_pages(source, parquet.metadata, row_group, columns)
        _check_values(source, parquet.metadata, row_group, pages)
        table = parquet.read_row_group(row_group, columns=list(columns), use_threads=False)
        # An altered page header may decode to fewer rows without an error.
        if table.num_rows != parquet.metadata.row_group(row_group).num_rows:
            raise _corrupted(
                file,
                f"row group {row_group} holds {counted(table.num_rows, 'row')}, its footer says otherwise",
            )
        table = table.select(list(columns)).cast(pa.schema([READ_SCHEMA.field(name) for name in columns]))
        rows = concat_batches(table.to_batches())
        # Offsets inside the arrays come from the file and must stay inside their buffers.
        rows.validate(full=True)
    # The file is of this system, so an impossible header is damage and no wrong input.
    except InvalidInput as error:
        raise _corrupted(file, str(error)) from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _unreadable(file, f"row group {row_group}: {error}", error) from error
    return rows


def _check_values(
    source: pa.NativeFile, metadata: pq.FileMetaData, row_group: int, pages: Mapping[str, Pages]
) -> None:
    """Raise `InvalidInput` if a page of known size may expand to much more: by a dictionary where the writer
    uses none, or by long header names.
    """
    for path in _PLAIN_PATHS & pages.keys():
        if not pages[path].plain:
            raise InvalidInput(f"row group {row_group}, column {path}: the writer never uses this encoding")
    names = pages.get(_NAMES_PATH)
    # An upper bound that nearly every file is below.
    if names is None or names.dictionary_bytes * names.indexed_values <= _NAMES_BYTES:
        return
    # Read as references, so that the names are not copied while they are counted.
    by_reference = pq.ParquetFile(source, metadata=metadata, read_dictionary=[_NAMES_PATH], pre_buffer=False)
    column: Any = by_reference.read_row_group(row_group, columns=[_NAMES_PATH], use_threads=False).column(
        "headers"
    )
    found = 0
    for chunk in column.chunks:
        name: Any = chunk.flatten().field("key")
        found += pc.sum(pc.take(pc.binary_length(name.dictionary), name.indices)).as_py() or 0
    if found > _NAMES_BYTES_MAX:
        raise InvalidInput(
            f"row group {row_group}, column {_NAMES_PATH}: {found} bytes of header names, more than a "
            "file has"
        )


def _unreadable(file: FileRef, why: str, error: Exception) -> ArchiverError:
    # A lack of memory, of open files or of a connection is no damage of the file.
    return passing(error, f"intake file {file.key}") or _corrupted(file, why)


def _corrupted(file: FileRef, why: str) -> Corrupted:
    return Corrupted(
        f"intake file {file.key} (entry {file.log_index} of the intake log) is damaged: {why}; restore "
        "it from a copy; until "
        "then its records cannot be read"
    )
