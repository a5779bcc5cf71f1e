"""One SHA-256 over many records, independent of their division into batches.

Pure. It covers exactly what a reader gets of a record: offset, key, value, headers, event timestamp, ingest
timestamp and batch start. All of these follow from the intake log and can be read from an archive, so the
digest verifies an archive.

Frozen format. A *part* is one SHA-256 over the content of all records in offset order, without anything
between them; integers are little endian. The digest is the SHA-256 of the 18 bytes `archiver.records.1` and
of the 32 bytes of each part, in this order:

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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from intake.arrow_arrays import ArrowArray, binary_layout, binary_lengths, list_lengths, valid_rows

_PARTS = (
    "offset",
    *("key.valid", "key.length", "key.bytes", "value.valid", "value.length", "value.bytes"),
    *("headers.count", "headers.key.length", "headers.key.bytes"),
    *("headers.value.valid", "headers.value.length", "headers.value.bytes"),
    *("event_timestamp.valid", "event_timestamp", "ingest_timestamp", "batch_start.valid", "batch_start"),
)


class RecordsDigest:
    """Incremental; update it with the records of one topic partition in offset order."""

    def __init__(self) -> None:
        # One hash per column, so that the digest does not depend on the division into batches.
        self._parts = {part: hashlib.sha256() for part in _PARTS}

    def update(self, records: pa.RecordBatch) -> None:
        """Add records, with the columns `offset`, `key`, `value`, `headers`, `event_timestamp`,
        `ingest_timestamp` and `batch_start`.

        Offset, ingest timestamp, headers and header names must not be null. Times are in microseconds.
        """
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
        """The 32 bytes for the records so far; more may be added afterwards."""
        # The version in front, so that a later format cannot give the same digest by accident.
        whole = hashlib.sha256(b"archiver.records.1")
        for part in _PARTS:
            whole.update(self._parts[part].digest())
        return whole.digest()

    def _feed(self, part: str, numbers: npt.NDArray[np.int64]) -> None:
        self._parts[part].update(_bytes(numbers, "<i8"))

    def _optional(self, part: str, column: ArrowArray) -> None:
        self._parts[f"{part}.valid"].update(_bytes(valid_rows(column), "u1"))
        self._feed(part, _numbers(column))

    def _binary(self, part: str, column: ArrowArray) -> None:
        self._parts[f"{part}.valid"].update(_bytes(valid_rows(column), "u1"))
        self._feed(f"{part}.length", binary_lengths(column))
        self._parts[f"{part}.bytes"].update(_content(column))


def _bytes(numbers: npt.NDArray[Any], dtype: str) -> memoryview:
    # The byte order is part of the format; on most machines this makes no copy.
    return np.ascontiguousarray(numbers, dtype=dtype).data


def _numbers(column: ArrowArray) -> npt.NDArray[np.int64]:
    """The numbers of a column of integers or times; a null counts zero."""
    whole = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
    numbers: npt.NDArray[np.int64] = (pc.fill_null(whole, 0) if whole.null_count else whole).to_numpy()
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
