"""One SHA-256 over many records, the same however they are cut into batches.

Pure. Frozen format: each column part has its own SHA-256 over the little-endian content of its rows in order; the digest is the SHA-256
of `archiver.records.1` and the part digests in the order of `_PARTS`. Parts: offset (int64), key, value (one byte per row: 1 not null;
int64 lengths, a null counts zero; the bytes), headers (int64 number per row; names: int64 lengths, bytes; values: as key),
event and accept timestamp (int64 microseconds), batch (int32).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from intake.layout import ArrowArray, binary_layout, binary_lengths, list_lengths, valid_rows

_PARTS = (
    "offset",
    *("key.valid", "key.length", "key.bytes", "value.valid", "value.length", "value.bytes"),
    *("headers.count", "headers.key.length", "headers.key.bytes"),
    *("headers.value.valid", "headers.value.length", "headers.value.bytes"),
    *("event_timestamp", "accept_timestamp", "batch"),
)


class RecordsDigest:
    """Incremental; feed it the records of one topic partition in offset order."""

    def __init__(self) -> None:
        self._parts = {part: hashlib.sha256() for part in _PARTS}

    def update(self, base: int, records: pa.RecordBatch) -> None:
        """Add records whose offsets are `base`, `base + 1`, …; columns as `IntakeReader` yields them."""
        self._feed("offset", np.arange(base, base + records.num_rows, dtype="<i8"))
        self._binary("key", records.column("key"))
        self._binary("value", records.column("value"))
        headers: ArrowArray = records.column("headers")
        self._feed("headers.count", list_lengths(headers))
        names, values = headers.flatten().flatten()
        self._feed("headers.key.length", binary_lengths(names))
        self._parts["headers.key.bytes"].update(_content(names))
        self._binary("headers.value", values)
        self._feed("event_timestamp", records.column("event_timestamp").cast(pa.int64()).to_numpy())
        self._feed("accept_timestamp", records.column("accept_timestamp").cast(pa.int64()).to_numpy())
        self._parts["batch"].update(_bytes(records.column("batch").to_numpy(), "<i4"))

    def digest(self) -> bytes:
        """The 32 bytes for what was added so far; more may be added afterwards."""
        whole = hashlib.sha256(b"archiver.records.1")
        for part in _PARTS:
            whole.update(self._parts[part].digest())
        return whole.digest()

    def _feed(self, part: str, numbers: npt.NDArray[np.int64]) -> None:
        self._parts[part].update(_bytes(numbers, "<i8"))

    def _binary(self, part: str, column: ArrowArray) -> None:
        self._parts[f"{part}.valid"].update(_bytes(valid_rows(column), "u1"))
        self._feed(f"{part}.length", binary_lengths(column))
        self._parts[f"{part}.bytes"].update(_content(column))


def _bytes(numbers: npt.NDArray[Any], dtype: str) -> memoryview:
    return np.ascontiguousarray(numbers, dtype=dtype).data


def _content(column: ArrowArray) -> memoryview:
    """The bytes of all rows that are not null, one after the other."""
    if column.null_count:
        offsets, _ = binary_layout(column)
        if int(offsets[-1]) - int(offsets[0]) != int(binary_lengths(column).sum()):
            column = pc.drop_null(column)  # bytes stand behind a null
    offsets, data = binary_layout(column)
    return data[int(offsets[0]) : int(offsets[-1])].data
