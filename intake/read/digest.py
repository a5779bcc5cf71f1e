"""One digest over many records, independent of their division into batches.

Pure. It covers exactly what a reader gets of a record: offset, key, value, headers, event timestamp, ingest
timestamp and batch start. All of these follow from the intake log and can be read from an archive, so the
digest verifies an archive. An archive's footer version says which of the two frozen formats it has.

In both formats a *part* is one hash over the content of all records in offset order, without anything between
them, and integers are little endian. The digest is the hash of 18 bytes, `archiver.records.` and the version,
and of the 32 bytes of each part, in the order of the tables.

Version 2: BLAKE3. A *run* is two int64: a number and how many consecutive records (headers) have it. Runs are
as long as possible.

| number | part | content |
|---|---|---|
| 1 | offset | runs of the offset minus the number of records before it |
| 2, 3 | key: length, bytes | int32, -1 for null; the bytes, none for null |
| 4, 5 | value: length, bytes | as key |
| 6 | headers: count | runs |
| 7, 8 | header names: length, bytes | per header: int32; UTF-8 |
| 9, 10 | header values: length, bytes | per header, as key |
| 11, 12 | event timestamp: valid, microseconds | runs of 1 (0 for null); int64, 0 for null |
| 13 | ingest timestamp: microseconds | runs |
| 14, 15 | batch start: valid, offset | runs of 1 (0 for null); runs, 0 for null |

Version 1, in archives of earlier versions: SHA-256.

| number | part | per record |
|---|---|---|
| 1 | offset | int64 |
| 2, 3, 4 | key: valid, length, bytes | 1 byte (1; 0 for null); int64, 0 for null; the bytes, none for null |
| 5, 6, 7 | value: valid, length, bytes | as key |
| 8 | headers: count | int64 |
| 9, 10 | header names: length, bytes | per header: int64; UTF-8 |
| 11, 12, 13 | header values: valid, length, bytes | per header, as key |
| 14, 15 | event timestamp: valid, microseconds | 1 byte (1, or 0 for null); int64, 0 for null |
| 16 | ingest timestamp: microseconds | int64 |
| 17, 18 | batch start: valid, offset | as event timestamp |
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from intake.arrow_arrays import (
    ArrowArray,
    Int64Array,
    binary_layout,
    binary_lengths,
    list_lengths,
    valid_rows,
)

DIGEST_VERSIONS = (1, 2)
"""The formats, oldest first; the last is that of new archives."""

_SHA256_PARTS = (
    "offset",
    *("key.valid", "key.length", "key.bytes", "value.valid", "value.length", "value.bytes"),
    *("headers.count", "headers.key.length", "headers.key.bytes"),
    *("headers.value.valid", "headers.value.length", "headers.value.bytes"),
    *("event_timestamp.valid", "event_timestamp", "ingest_timestamp", "batch_start.valid", "batch_start"),
)


class RecordsDigest:
    """Incremental; update it with the records of one topic partition in offset order."""

    def __init__(self, version: int = DIGEST_VERSIONS[-1]) -> None:
        """An empty digest of a format in `DIGEST_VERSIONS`."""
        self.version = version
        formats: dict[int, type[_Sha256Parts | _Blake3Parts]] = {1: _Sha256Parts, 2: _Blake3Parts}
        self._format = formats[version]()

    def update(self, records: pa.RecordBatch) -> None:
        """Add records, with the columns `offset`, `key`, `value`, `headers`, `event_timestamp`,
        `ingest_timestamp` and `batch_start`.

        Offset, ingest timestamp, headers and header names must not be null. Times are in microseconds.
        """
        self._format.update(records)

    def digest(self) -> bytes:
        """The 32 bytes for the records so far; more may be added afterwards."""
        return self._format.digest()


# --- Version 2
_RUN = struct.Struct("<qq")


class _Runs:
    """The hash of numbers as runs. A run stays open until another number follows, so that the division into
    batches does not matter.
    """

    def __init__(self) -> None:
        self._hash = blake3()
        self._number = 0
        self._count = 0

    def update(self, numbers: Int64Array) -> None:
        if not len(numbers):
            return
        (changed,) = (numbers[1:] != numbers[:-1]).nonzero()
        # Offsets always are one run; for few records the arrays below would cost more than the hash.
        if not len(changed):
            self.repeat(int(numbers[0]), len(numbers))
            return
        starts = np.empty(len(changed) + 2, np.int64)
        starts[0], starts[-1] = 0, len(numbers)
        np.add(changed, 1, out=starts[1:-1])
        runs = np.empty((len(starts) - 1, 2), np.int64)
        runs[:, 0] = numbers[starts[:-1]]
        np.subtract(starts[1:], starts[:-1], out=runs[:, 1])
        if runs[0, 0] == self._number:
            runs[0, 1] += self._count
        else:
            self._close(self._hash)
        self._hash.update(_bytes(runs[:-1], "<i8"))
        self._number, self._count = int(runs[-1, 0]), int(runs[-1, 1])

    def repeat(self, number: int, count: int) -> None:
        """The same as `update` with `count` times `number`."""
        if not count:
            return
        if number != self._number:
            self._close(self._hash)
            self._number, self._count = number, 0
        self._count += count

    def digest(self) -> bytes:
        whole = self._hash.copy()
        self._close(whole)
        return whole.digest()

    def _close(self, into: blake3) -> None:
        # Before the first number there is no run.
        if self._count:
            into.update(_RUN.pack(self._number, self._count))


class _Blake3Parts:
    def __init__(self) -> None:
        self._records = 0
        self._offset = _Runs()
        self._key, self._value = _Blake3Binary(), _Blake3Binary()
        self._header_counts = _Runs()
        self._header_names, self._header_values = _Blake3Binary(), _Blake3Binary()
        self._event_valid, self._event = _Runs(), blake3()
        self._ingest = _Runs()
        self._batch_valid, self._batch = _Runs(), _Runs()

    def update(self, records: pa.RecordBatch) -> None:
        rows = records.num_rows
        # Consecutive offsets become one run: of the offset that record 0 would have.
        self._offset.update(
            _numbers(records.column("offset")) - np.arange(self._records, self._records + rows)
        )
        self._records += rows
        self._key.update(records.column("key"))
        self._value.update(records.column("value"))
        headers: ArrowArray = records.column("headers")
        names, values = headers.flatten().flatten()
        # Mostly no record has headers, and then no array is needed to know the counts.
        if len(names):
            self._header_counts.update(list_lengths(headers))
            self._header_names.update(names)
            self._header_values.update(values)
        else:
            self._header_counts.repeat(0, rows)
        event: ArrowArray = records.column("event_timestamp")
        _feed_valid(self._event_valid, event)
        self._event.update(_bytes(_numbers(event), "<i8"))
        self._ingest.update(_numbers(records.column("ingest_timestamp")))
        batch: ArrowArray = records.column("batch_start")
        _feed_valid(self._batch_valid, batch)
        self._batch.update(_numbers(batch))

    def digest(self) -> bytes:
        # The version in front, so that another format cannot give the same digest by accident.
        whole = blake3(b"archiver.records.2")
        for part in (
            self._offset,
            *(self._key.length, self._key.content, self._value.length, self._value.content),
            *(self._header_counts, self._header_names.length, self._header_names.content),
            *(self._header_values.length, self._header_values.content),
            *(self._event_valid, self._event, self._ingest, self._batch_valid, self._batch),
        ):
            whole.update(part.digest())
        return whole.digest()


class _Blake3Binary:
    """The two parts of a binary or string column."""

    def __init__(self) -> None:
        self.length, self.content = blake3(), blake3()

    def update(self, column: ArrowArray) -> None:
        if column.null_count:
            lengths = binary_lengths(column)
            # Null and empty bytes differ, and no length is negative.
            lengths[~valid_rows(column)] = -1
            self.content.update(_content(column))
        else:
            offsets, data = binary_layout(column)
            lengths = offsets[1:] - offsets[:-1]
            self.content.update(data[int(offsets[0]) : int(offsets[-1])].data)
        # Arrow's own offsets are int32, so every length fits.
        self.length.update(_bytes(lengths, "<i4"))


def _feed_valid(runs: _Runs, column: ArrowArray) -> None:
    if column.null_count:
        runs.update(valid_rows(column).astype(np.int64))
    else:
        runs.repeat(1, len(column))


# --- Version 1
class _Sha256Parts:
    def __init__(self) -> None:
        # One hash per column, so that the digest does not depend on the division into batches.
        self._parts = {part: hashlib.sha256() for part in _SHA256_PARTS}

    def update(self, records: pa.RecordBatch) -> None:
        self._feed("offset", _numbers(records.column("offset")))
        self._binary("key", records.column("key"))
        self._binary("value", records.column("value"))
        headers: ArrowArray = records.column("headers")
        self._feed("headers.count", list_lengths(headers))
        names, values = headers.flatten().flatten()
        self._feed("headers.key.length", binary_lengths(names))
        self._parts["headers.key.bytes"].update(_content(names))
        self._binary("headers.value", values)
        self._optional("event_timestamp", records.column("event_timestamp"))
        self._feed("ingest_timestamp", _numbers(records.column("ingest_timestamp")))
        self._optional("batch_start", records.column("batch_start"))

    def digest(self) -> bytes:
        whole = hashlib.sha256(b"archiver.records.1")
        for part in _SHA256_PARTS:
            whole.update(self._parts[part].digest())
        return whole.digest()

    def _feed(self, part: str, numbers: Int64Array) -> None:
        self._parts[part].update(_bytes(numbers, "<i8"))

    def _optional(self, part: str, column: ArrowArray) -> None:
        self._parts[f"{part}.valid"].update(_bytes(valid_rows(column), "u1"))
        self._feed(part, _numbers(column))

    def _binary(self, part: str, column: ArrowArray) -> None:
        self._parts[f"{part}.valid"].update(_bytes(valid_rows(column), "u1"))
        self._feed(f"{part}.length", binary_lengths(column))
        self._parts[f"{part}.bytes"].update(_content(column))


# --- Both
def _bytes(numbers: npt.NDArray[Any], dtype: str) -> memoryview:
    # The byte order is part of the format; on most machines this makes no copy. Viewed as bytes, because
    # `blake3` accepts no buffer of another type.
    return np.ascontiguousarray(numbers, dtype=dtype).reshape(-1).view(np.uint8).data


def _numbers(column: ArrowArray) -> Int64Array:
    """The numbers of a column of integers or times; a null counts zero."""
    if pa.types.is_timestamp(column.type):
        # A view of the same numbers, for which no kernel is called.
        whole = column.view(pa.int64())
    else:
        whole = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
    numbers: Int64Array = (pc.fill_null(whole, 0) if whole.null_count else whole).to_numpy()
    return numbers


def _content(column: ArrowArray) -> memoryview:
    """The bytes of all rows that are not null, concatenated."""
    if column.null_count:
        offsets, _ = binary_layout(column)
        if int(offsets[-1]) - int(offsets[0]) != int(binary_lengths(column).sum()):
            # Bytes stand behind a null, and they are not part of the records.
            column = pc.drop_null(column)
    offsets, data = binary_layout(column)
    return data[int(offsets[0]) : int(offsets[-1])].data
