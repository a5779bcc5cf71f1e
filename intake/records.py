"""Records from producers, one at a time or as Arrow batches, and the rules that they must meet.

The rules concern types, size, header names and the range of timestamps. A record that passes can be stored
and read back unchanged. No byte of a key, a value or a header is changed.

The *raw bytes* of a record are the bytes of its key, its value and its header names and values; null counts
zero. Its *weight* counts against `record_bytes_max` and the writer's queue: raw bytes plus
`HEADER_COST_BYTES` per header. Without it, a record with millions of empty headers would weigh nothing and
still fill the memory. All other counts and limits use raw bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.runtime.errors import RecordRefused
from archiver.runtime.redaction import excerpt
from intake.arrow_arrays import ArrowArray, binary_lengths, header_lengths, list_array, list_lengths

HEADER_COST_BYTES = 16
"""Weight of a header in addition to its name and value, so that empty headers are bounded too."""

TIMESTAMP_MIN_US = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, the first instant that can be written as a date of four digits."""
TIMESTAMP_MAX_US = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
UNKNOWN_BATCH = -1
"""In the column `batch` of intake files: it is not known where the producer's batch began."""
HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("event_timestamp", TIMESTAMP),
    ]
)
"""Columns of a batch. An additional column `partition` is allowed (any integer type; null: the key
decides)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message without topic, partition and offset."""

    key: bytes | None
    value: bytes | None
    """None is a tombstone; that differs from empty bytes."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """In the producer's order; names may repeat."""
    timestamp_us: int | None = None
    """Event time. With None the writer uses its accept time, as a Kafka producer does."""


@dataclass(frozen=True, slots=True)
class NormalBatch:
    """An accepted batch: columns exactly as `RECORD_SCHEMA`, sizes per row, and the requested partitions."""

    columns: pa.RecordBatch
    raw_bytes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]
    """Raw bytes plus the cost of the headers, per row."""
    partitions: ArrowArray
    """int64, null where the key decides; None without such a column."""


def raw_bytes_of(record: Record) -> int:
    """Raw bytes of one record (its types must have been checked)."""
    total = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        total += len(name.encode("utf-8")) + len(value or b"")
    return total


def weight_of(record: Record, raw_bytes: int) -> int:
    """The weight of a record with these raw bytes."""
    return raw_bytes + HEADER_COST_BYTES * len(record.headers)


def validate(record: Record, record_bytes_max: int) -> int:
    """Check one record and return its raw bytes; raises `RecordRefused` with the broken rule.

    `record_bytes_max` bounds the record's weight.
    """
    for what, content in (("key", record.key), ("value", record.value)):
        # No `bytearray`: the caller could change it after the check.
        if content is not None and not isinstance(content, bytes):
            raise RecordRefused(f"the {what} is of type {type(content).__name__}; it must be bytes or None")
    _validate_headers(record.headers)
    _validate_timestamp(record.timestamp_us)
    raw_bytes = raw_bytes_of(record)
    if weight_of(record, raw_bytes) > record_bytes_max:
        raise RecordRefused(_too_large(raw_bytes, len(record.headers), record_bytes_max))
    return raw_bytes


def _validate_headers(headers: object) -> None:
    if not isinstance(headers, tuple):
        raise RecordRefused(
            f"the headers are of type {type(headers).__name__}; they must be a tuple of (name, value) pairs"
        )
    for position, header in enumerate(headers):
        if not isinstance(header, tuple) or len(header) != 2:
            raise RecordRefused(f"header {position} is not a pair of name and value")
        name, value = header
        if not isinstance(name, str):
            raise RecordRefused(
                f"the name of header {position} is of type {type(name).__name__}; it must be str"
            )
        try:
            # A lone surrogate is valid in a Python string and has no UTF-8 form.
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordRefused(
                f"the name of header {position} ({excerpt(name)!r}) cannot be written as UTF-8: "
                f"{error.reason}"
            ) from error
        if value is not None and not isinstance(value, bytes):
            raise RecordRefused(
                f"the value of header {excerpt(name)!r} is of type {type(value).__name__}; it must be "
                "bytes or None"
            )


def _validate_timestamp(timestamp_us: object) -> None:
    if timestamp_us is None:
        return
    # `bool` is a subclass of `int`.
    if not isinstance(timestamp_us, int) or isinstance(timestamp_us, bool):
        raise RecordRefused(
            f"the timestamp is of type {type(timestamp_us).__name__}; it must be int microseconds "
            "since 1970 or None"
        )
    if not TIMESTAMP_MIN_US <= timestamp_us <= TIMESTAMP_MAX_US:
        raise RecordRefused(
            f"the timestamp {timestamp_us} us is outside the years 1 to 9999; it is counted in "
            "microseconds since 1970"
        )


def check_weight(raw_bytes: int, weight: int, record_bytes_max: int) -> None:
    """Raise `RecordRefused` for a record that is too heavy."""
    if weight > record_bytes_max:
        headers = (weight - raw_bytes) // HEADER_COST_BYTES
        raise RecordRefused(_too_large(raw_bytes, headers, record_bytes_max))


def _too_large(raw_bytes: int, headers: int, record_bytes_max: int) -> str:
    what = f"{raw_bytes} bytes"
    if headers:
        weight = raw_bytes + HEADER_COST_BYTES * headers
        what += (
            f" and {headers} headers, which count {HEADER_COST_BYTES} additional bytes each, together "
            f"{weight} bytes"
        )
    return (
        f"the record has {what}, more than intake.record_bytes_max = {record_bytes_max}; make it smaller "
        "or raise the limit"
    )


def normalise_batch(batch: pa.RecordBatch, record_bytes_max: int) -> NormalBatch:
    """Check a batch and convert it to `RECORD_SCHEMA`; raises `RecordRefused` that names the column or the
    row.

    `value` is required; a missing `key`, `headers` or `event_timestamp` is null in every row. Large binary
    columns and timestamps of another unit are cast if nothing is lost. Other columns are refused, so that a
    misspelt one is noticed.
    """
    names = batch.schema.names
    known = [*RECORD_SCHEMA.names, "partition"]
    for name in names:
        if name not in known:
            raise RecordRefused(
                f"the batch has a column {excerpt(name)!r}; the columns are {', '.join(known)}"
            )
        # Arrow allows repeated names, and it would be unclear which column counts.
        if names.count(name) > 1:
            raise RecordRefused(f"the batch has {names.count(name)} columns named {name!r}")
    if "value" not in names:
        raise RecordRefused(
            "the batch has no column 'value'; it may be null in every row, but it must be there"
        )
    key = _binary_column(batch, "key")
    value = _binary_column(batch, "value")
    headers = _headers_column(batch)
    event_timestamp = _timestamp_column(batch)
    # Computed on columns: no Python object is made per row.
    raw_bytes = binary_lengths(key) + binary_lengths(value) + header_lengths(headers)
    header_counts = list_lengths(headers)
    weights = raw_bytes + HEADER_COST_BYTES * header_counts
    if len(weights) and int(weights.max()) > record_bytes_max:
        row = int((weights > record_bytes_max).argmax())
        raise RecordRefused(
            f"row {row}: {_too_large(int(raw_bytes[row]), int(header_counts[row]), record_bytes_max)}"
        )
    columns = pa.RecordBatch.from_arrays([key, value, headers, event_timestamp], schema=RECORD_SCHEMA)
    return NormalBatch(columns, raw_bytes, weights, _partition_column(batch))


def _binary_column(batch: pa.RecordBatch, name: str) -> ArrowArray:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.binary())
    column: ArrowArray = batch.column(name)
    # A column of type null comes from callers that have no value in any row.
    if pa.types.is_null(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    if not pa.types.is_binary(column.type):
        raise RecordRefused(f"the column {name!r} is of type {excerpt(str(column.type))}; it must be binary")
    return column


def no_headers(rows: int) -> ArrowArray:
    """A headers column of that many rows without headers."""
    return list_array(np.zeros(rows + 1, np.int32), pa.array([], HEADERS.value_type), HEADERS)


def _headers_column(batch: pa.RecordBatch) -> ArrowArray:
    rows = batch.num_rows
    if "headers" not in batch.schema.names or pa.types.is_null(batch.column("headers").type):
        return no_headers(rows)
    column: ArrowArray = batch.column("headers")
    try:
        # Fields may be called nullable by the caller although no null is in them.
        if column.type != HEADERS:
            column = column.cast(_nullable_headers(column.type))
        if column.null_count:
            import pyarrow.compute as pc  # loads slowly, and `status` reads no records

            # A null list means no headers.
            column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
        # `flatten` respects a slice, which `values` does not.
        pairs = column.flatten()
        if pairs.null_count:
            raise RecordRefused(
                "the column 'headers' holds a null header; a header is a pair of name and value"
            )
        header_names, header_values = pairs.flatten()
        if header_names.null_count:
            raise RecordRefused("the column 'headers' holds a header without a name; names are UTF-8 text")
        # The full validation checks UTF-8, which Arrow does not enforce when an array is made.
        header_names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"the column 'headers' cannot be stored: {error}") from error
    # Offsets that start at 0: those of a slice would point beyond the flattened entries.
    offsets = np.concatenate(([0], np.cumsum(list_lengths(column)))).astype(np.int32)
    entries = pa.StructArray.from_arrays([header_names, header_values], fields=list(HEADERS.value_type))
    return list_array(offsets, entries, HEADERS)


def _nullable_headers(found: pa.DataType) -> pa.DataType:
    """The type to cast to before the check for nulls. Refuses all but lists of (key string, value binary)."""
    expected = "list<struct<key: string, value: binary>>"
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)) or not pa.types.is_struct(
        found.value_type
    ):
        raise RecordRefused(f"the column 'headers' is of type {found}; it must be {expected}")
    fields = {field.name: field.type for field in found.value_type}
    name_type, value_type = fields.get("key"), fields.get("value")
    names_fit = name_type is not None and (
        pa.types.is_string(name_type) or pa.types.is_large_string(name_type)
    )
    values_fit = value_type is not None and (
        pa.types.is_binary(value_type) or pa.types.is_large_binary(value_type) or pa.types.is_null(value_type)
    )
    if len(fields) != 2 or not names_fit or not values_fit or [*fields] != ["key", "value"]:
        raise RecordRefused(f"the column 'headers' is of type {found}; it must be {expected}")
    return pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def _timestamp_column(batch: pa.RecordBatch) -> ArrowArray:
    if "event_timestamp" not in batch.schema.names or pa.types.is_null(batch.column("event_timestamp").type):
        return pa.nulls(batch.num_rows, TIMESTAMP)
    column: ArrowArray = batch.column("event_timestamp")
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        raise RecordRefused(
            f"the column 'event_timestamp' is of type {column.type}; it must be a timestamp with a time zone"
        )
    try:
        # A safe cast: it raises instead of cutting off nanoseconds or overflowing.
        column = column.cast(TIMESTAMP)
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"the column 'event_timestamp' does not fit microseconds: {error}") from error
    micros = column.cast(pa.int64()).drop_null().to_numpy()
    if len(micros):
        # The smallest and the largest are enough for the range.
        _validate_timestamp(int(micros.min()))
        _validate_timestamp(int(micros.max()))
    return column


def _partition_column(batch: pa.RecordBatch) -> ArrowArray:
    if "partition" not in batch.schema.names:
        return None
    column: ArrowArray = batch.column("partition")
    if pa.types.is_null(column.type):
        return None
    if not pa.types.is_integer(column.type):
        raise RecordRefused(f"the column 'partition' is of type {column.type}; it must be an integer")
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"the column 'partition' does not fit: {error}") from error
