"""Kafka record batches (magic 2): check, decode to Arrow columns, and encode from Arrow columns.

Pure. A batch is a header of 61 bytes and its records, which can be compressed as a whole. A record is

    length varint | attributes 1 byte | timestamp delta varlong | offset delta varint |
    key length varint | key | value length varint | value | header count varint | headers

and a header of a record is

    name length varint | name | value length varint | value

Varints are zigzag-encoded, and a length of -1 stands for null. The place of a record depends only on the
lengths of those before it, so all places are found first. All else is read and checked in numpy, for the
records of all batches at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from archiver.kafka.record_fields import (
    PADDING,
    FieldReader,
    Ints,
    Mask,
    Text,
    Words,
    encoded_varints,
    find_headers,
    find_records,
    read_varint,
)
from archiver.runtime.errors import InvalidInput
from archiver.stream.records import STREAM_SCHEMA
from intake.arrow_arrays import (
    ArrowArray,
    binary_layout,
    binary_lengths,
    concat_batches,
    list_array,
    list_lengths,
    valid_rows,
)
from intake.records import (
    HEADER_COST_BYTES,
    HEADERS,
    RECORD_SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
    no_headers,
)

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Bytes: TypeAlias = bytes | memoryview

BATCH_ROWS, BATCH_BYTES = 4096, 256 << 10
"""Bounds of an encoded batch whose producer's batch is unknown."""
LEADER_EPOCH = 0
"""Of every encoded batch: partitions have no leader that could change."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC = 2
_MAGIC_AT = 16
_LENGTH_END = 12
_CRC_FROM = 21
"""The checksum covers all bytes after itself. Base offset and leader epoch are before it."""
_CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_NO_TIMESTAMP = -1

_RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2
_INT32_MAX = (1 << 31) - 1
_SIZE_MAX = 1 << 30
"""Upper limit of the records of one batch: Arrow's offsets have 31 bits."""
_READ_BYTES = 1 << 20
_SNAPPY = pa.Codec("snappy")
_SNAPPY_RATIO_MAX = 22
"""Snappy's best element makes 64 bytes of 3."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16

HEADERS_MAX = 1_000_000
"""Most headers of the records of one batch. While they are decoded, each takes about 160 bytes."""
_GROUP_BYTES = 4 << 20
_GROUP_ROWS = 1 << 16
"""Uncompressed bytes, and records, that are decoded at once. They bound the memory needed in
addition to the inputs and results."""


class BatchRefused(InvalidInput):
    """A batch of records that is not accepted; the message says why."""

    def __init__(self, code: ErrorCode, message: str, record: int | None = None) -> None:
        super().__init__(message if record is None else f"record {record} of the batch: {message}")
        self.code = code
        """Kafka's error code for the partition."""
        self.record = record
        """Place of the refused record in its batch, from 0; None if the batch as a whole is refused."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch."""

    base_offset: int
    size: int
    """Bytes of the whole batch."""
    leader_epoch: int
    codec: Codec
    log_append_time: bool
    transactional: bool
    control: bool
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    """-1: the producer is not idempotent."""
    producer_epoch: int
    base_sequence: int
    count: int
    """Records, as declared; `decode` checks that they are there."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records as consumers receive them."""

    base_offset: int
    last_offset: int
    records: int
    max_timestamp_ms: int
    """-1 if no record has a timestamp."""
    data: bytes


def read_header(data: Bytes) -> BatchHeader:
    """Read the header of the one batch that `data` holds, and verify its size and checksum.

    Raises `BatchRefused`: corrupt_message for a wrong checksum, unsupported_for_message_format for batches of
    Kafka before 0.11, unsupported_compression_type, and invalid_record for wrong sizes and counts.
    """
    size = len(data)
    # All formats have the magic number at the same place.
    if size > _MAGIC_AT and data[_MAGIC_AT] in (0, 1):
        raise BatchRefused(
            ErrorCode.unsupported_for_message_format,
            f"the records have the format of magic {data[_MAGIC_AT]}; only magic 2 is accepted, which "
            "clients write since Kafka 0.11",
        )
    if size < _HEADER.size:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch has {size} bytes, fewer than the {_HEADER.size} bytes of its header",
        )
    fields = _HEADER.unpack_from(data)
    base_offset, length, leader_epoch, magic, checksum, attributes, last_offset_delta = fields[:7]
    base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, count = fields[7:]
    if magic != _MAGIC:
        raise BatchRefused(ErrorCode.invalid_record, f"the batch has magic {magic}; only magic 2 is accepted")
    if length != size - _LENGTH_END:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch declares {length} bytes after its length, and {size - _LENGTH_END} are there; a "
            "partition of a produce request has exactly one batch",
        )
    found = crc32c(memoryview(data)[_CRC_FROM:])
    if found != checksum:
        raise BatchRefused(
            ErrorCode.corrupt_message,
            f"the batch has CRC-32C {found:08x} and declares {checksum:08x}; its bytes changed on the way",
        )
    codec = attributes & 0x07
    if codec >= len(_CODECS):
        raise BatchRefused(
            ErrorCode.unsupported_compression_type,
            f"the batch has compression type {codec}; known are 0 to 4 ({', '.join(_CODECS)})",
        )
    if count < 1:
        raise BatchRefused(ErrorCode.invalid_record, f"the batch declares {count} records; send at least one")
    if codec == 0:
        _check_count(count, size - _HEADER.size)
    return BatchHeader(
        base_offset=base_offset,
        size=size,
        leader_epoch=leader_epoch,
        codec=_CODECS[codec],
        log_append_time=bool(attributes & _LOG_APPEND_TIME),
        transactional=bool(attributes & _TRANSACTIONAL),
        control=bool(attributes & _CONTROL),
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )


def _check_count(count: int, size: int) -> None:
    if count > size // _RECORD_BYTES_MIN:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch declares {count} records in {size} bytes; a record has at least "
            f"{_RECORD_BYTES_MIN} bytes",
        )


def decode(
    batches: Sequence[tuple[BatchHeader, Bytes]], *, uncompressed_max: int, total_max: int | None = None
) -> list[pa.RecordBatch | BatchRefused]:
    """The records of batches that a producer sent, each as `RECORD_SCHEMA` or the reason for its refusal.

    `uncompressed_max` bounds the bytes of the records of each batch after decompression. A timestamp of -1
    becomes null. Several results can share memory.

    With `total_max`, decoding ends after the batch with which all records reach so many bytes. Later batches
    then have no result, and the caller calls again for them.
    """
    results: list[pa.RecordBatch | BatchRefused | None] = [None] * len(batches)
    group: list[tuple[int, BatchHeader, Bytes]] = []
    group_bytes = total = 0
    size_max = min(uncompressed_max, _SIZE_MAX)
    for place, (header, data) in enumerate(batches):
        try:
            _check_produced(header)
            records = _records_of(header, memoryview(data)[_HEADER.size :], size_max)
            _check_count(header.count, len(records))
        except BatchRefused as refused:
            # Without the frames of its traceback and cause, which hold what was decompressed.
            refused.__cause__ = refused.__context__ = None
            results[place] = refused.with_traceback(None)
            continue
        if group_bytes + len(records) > _GROUP_BYTES:
            _decode_group(group, size_max, results)
            group, group_bytes = [], 0
        group.append((place, header, records))
        group_bytes += len(records)
        total += len(records)
        if total_max is not None and total >= total_max:
            break
    _decode_group(group, size_max, results)
    return [result for result in results if result is not None]


def _check_produced(header: BatchHeader) -> None:
    """Refuse what a broker writes and a producer may not send."""
    if header.control:
        raise BatchRefused(ErrorCode.invalid_record, "the batch is a control batch; only brokers write these")
    if header.log_append_time:
        raise BatchRefused(
            ErrorCode.invalid_timestamp,
            "the batch has the timestamp type LogAppendTime; producers must send CreateTime",
        )
    if header.last_offset_delta != header.count - 1:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch has last offset delta {header.last_offset_delta} and {header.count} records; "
            "offsets must be consecutive",
        )


# --- Decompression


def _records_of(header: BatchHeader, data: memoryview, size_max: int) -> Bytes:
    """The uncompressed records; never allocates much more than `size_max`."""
    try:
        if header.codec == "none":
            records: Bytes = data
        elif header.codec == "snappy":
            records = _snappy(data, size_max)
        else:
            records = _streamed(header.codec, data, size_max)
    except (pa.ArrowException, OSError) as error:
        raise BatchRefused(
            ErrorCode.invalid_record, f"the records are not valid {header.codec}: {str(error)[:200]}"
        ) from error
    if len(records) > size_max:
        raise _too_large(size_max)
    return records


def _too_large(size_max: int) -> BatchRefused:
    return BatchRefused(
        ErrorCode.message_too_large,
        f"the records of the batch have more than {size_max} bytes after decompression; send smaller batches",
    )


def _streamed(codec: Literal["gzip", "lz4", "zstd"], data: memoryview, size_max: int) -> bytes:
    """gzip, lz4 or zstd, one or several frames."""
    pieces: list[bytes] = []
    size = 0
    # `CompressedInputStream` continues with the next frame, as Kafka's readers do.
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        # A read allocates its size at once: the first one suits a usual batch.
        wish = min(_READ_BYTES, 4 * len(data) + 64)
        while size <= size_max and (piece := stream.read(min(wish, size_max + 1 - size))):
            pieces.append(piece)
            size += len(piece)
            wish = min(_READ_BYTES, 2 * wish)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(data: memoryview, size_max: int) -> bytes:
    """One raw block, or the blocks of snappy-java, which Java clients write."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, size_max)
    records = bytearray()
    position = 0
    while position < len(data):
        # A header can come again: snappy-java reads concatenated streams.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_BYTES
            continue
        block_size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if block_size > len(data) - position:
            raise BatchRefused(ErrorCode.invalid_record, "the records end within a snappy block")
        records += _snappy_block(data[position : position + block_size], size_max - len(records))
        position += block_size
    return bytes(records)


def _snappy_block(block: memoryview, size_max: int) -> bytes:
    # The length is checked before the memory for it is allocated.
    declared, _ = read_varint(bytes(block[:5]) + PADDING, 0)
    if declared > _SNAPPY_RATIO_MAX * len(block):
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"a snappy block of {len(block)} bytes declares {declared} bytes, more than it can hold",
        )
    if declared > size_max:
        raise _too_large(size_max)
    return bytes(_SNAPPY.decompress(block, decompressed_size=declared, asbytes=True))


# --- Decoding


_FIELDS = "its lengths do not match its bytes"
_REASONS: tuple[tuple[ErrorCode, str], ...] = (
    (ErrorCode.none, ""),
    (ErrorCode.invalid_record, _FIELDS),
    (ErrorCode.invalid_record, "its offset delta is not its place in the batch; offsets must be consecutive"),
    (
        ErrorCode.invalid_timestamp,
        "its timestamp is outside the years 1 to 9999; send milliseconds since 1970",
    ),
    (ErrorCode.invalid_record, "the lengths of its headers do not match its bytes"),
    (ErrorCode.message_too_large, "the batch has too many headers up to here; send smaller batches"),
    (ErrorCode.invalid_record, "the name of a header is not UTF-8"),
)
_BAD_FIELDS, _BAD_OFFSET, _BAD_TIMESTAMP, _BAD_HEADERS, _TOO_MANY_HEADERS, _BAD_NAME = range(1, len(_REASONS))


def _decode_group(
    group: Sequence[tuple[int, BatchHeader, Bytes]],
    size_max: int,
    results: list[pa.RecordBatch | BatchRefused | None],
) -> None:
    """Set the results of the batches of a group."""
    if not group:
        return
    data = b"".join([*(records for _, _, records in group), PADDING])
    # A view with a stride of one byte: unaligned, and nothing is copied.
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    text = Text(data, words, pa.py_buffer(data))
    counts = np.array([header.count for _, header, _ in group], np.int64)
    limits = np.cumsum([len(records) for _, _, records in group])
    firsts = np.concatenate(([0], limits[:-1]))
    ends = np.cumsum(counts)
    rows = ends - counts
    places = find_records(text, firsts, counts, rows)
    # A batch begins where the one before ends, so this also finds bytes left at the end of a batch.
    following = np.concatenate((places[1:], limits[-1:]))
    base_ms = np.array([header.base_timestamp_ms for _, header, _ in group], np.int64)
    bases = np.repeat(base_ms, counts)
    deltas = np.arange(len(places)) - np.repeat(rows, counts)
    batch_of = np.repeat(np.arange(len(group)), counts)
    headers_left = np.full(len(group), min(size_max // HEADER_COST_BYTES, HEADERS_MAX), np.int64)
    portions, reasons = [], np.zeros(len(places), np.uint8)
    for start in range(0, len(places), _GROUP_ROWS):
        part = slice(start, start + _GROUP_ROWS)
        portions.append(
            _decode_rows(
                text,
                places[part],
                following[part],
                bases[part],
                deltas[part],
                batch_of[part],
                headers_left,
                reasons[part],
            )
        )
    columns = concat_batches(portions)
    # One search for all batches: usually no record is bad.
    bad = np.flatnonzero(reasons)
    first_bad = np.searchsorted(bad, rows)
    for (place, header, _), row, number in zip(group, rows.tolist(), first_bad.tolist(), strict=True):
        if number < len(bad) and bad[number] < row + header.count:
            code, message = _REASONS[reasons[bad[number]]]
            results[place] = BatchRefused(code, message, int(bad[number]) - row)
        else:
            results[place] = columns.slice(row, header.count)


def _decode_rows(
    text: Text,
    places: Ints,
    following: Ints,
    base_ms: Ints,
    deltas: Ints,
    batch_of: Ints,
    headers_left: Ints,
    reasons: npt.NDArray[np.uint8],
) -> pa.RecordBatch:
    """The columns of records, and the reasons why some are bad; a bad record has any content.

    Subtracts the headers of the records from `headers_left`, which has what each batch may still have.
    """
    reader = FieldReader(text, places)
    lengths = reader.int32()
    reader.bad |= (lengths < 0) | (reader.positions + lengths != following)
    # Attributes of a record have no meaning yet, and Kafka ignores them.
    reader.positions = reader.positions + 1
    delta_ms = reader.int64()
    offset_delta = reader.int32()
    key_places, key_lengths = reader.blob()
    value_places, value_lengths = reader.blob()
    header_counts = reader.int32()
    headers_at = reader.positions
    reader.bad |= (header_counts < 0) | (header_counts > (following - headers_at) // _HEADER_BYTES_MIN)
    reader.bad |= (header_counts == 0) & (headers_at != following)
    reasons[offset_delta != deltas] = _BAD_OFFSET
    timestamps, bad_timestamps = _timestamps(base_ms, delta_ms)
    reasons[bad_timestamps] = _BAD_TIMESTAMP
    # Before the counts of headers are used, because wrong lengths make every other field meaningless.
    reasons[reader.bad] = _BAD_FIELDS
    # Headers of few bytes would take much more memory than the batch.
    counted = np.where(reader.bad, 0, header_counts)
    reasons[_beyond(counted, batch_of, headers_left) & ~reader.bad] = _TOO_MANY_HEADERS
    # A bad record has a null key and value: its places can be anywhere.
    bad = reasons != 0
    return pa.RecordBatch.from_arrays(
        [
            _binary_column(text, key_places, key_lengths, (key_lengths < 0) | bad, pa.binary()),
            _binary_column(text, value_places, value_lengths, (value_lengths < 0) | bad, pa.binary()),
            _headers_column(text, headers_at, following, np.where(bad, 0, header_counts), reasons),
            timestamps,
        ],
        schema=RECORD_SCHEMA,
    )


def _beyond(counts: Ints, batch_of: Ints, left: Ints) -> Mask:
    """Which records have headers beyond those that are left for their batch; subtracts all of them."""
    if not counts.any():
        return np.zeros(len(counts), np.bool_)
    sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    # The records of a batch are consecutive.
    firsts = np.flatnonzero(np.diff(batch_of, prepend=-1))
    rows = np.diff(np.append(firsts, len(counts)))
    beyond = sums[1:] - np.repeat(sums[firsts] + left[batch_of[firsts]], rows) > 0
    left[batch_of[firsts]] -= np.diff(sums[np.append(firsts, len(counts))])
    return beyond & (counts > 0)


def _timestamps(base_ms: Ints, delta_ms: Ints) -> tuple[ArrowArray, Mask]:
    """The column, and which timestamps are out of range."""
    milliseconds = base_ms + delta_ms
    # A sum overflowed if its sign differs from those of both summands.
    bad = ((base_ms ^ milliseconds) & (delta_ms ^ milliseconds)) < 0
    bad |= (milliseconds < -(-TIMESTAMP_MIN_US // 1000)) | (milliseconds > TIMESTAMP_MAX_US // 1000)
    column: ArrowArray = pa.array(milliseconds * 1000, pa.int64(), mask=milliseconds == _NO_TIMESTAMP)
    return column.view(TIMESTAMP), bad


def _binary_column(text: Text, places: Ints, lengths: Ints, null: Mask, data_type: pa.DataType) -> ArrowArray:
    """A binary or string column of the bytes at these places."""
    # An array over the whole text, whose elements 0, 2, 4, … are the column and whose others are never read.
    # `take` then copies the elements natively; Arrow has no other way to make a column of scattered bytes.
    starts = np.where(null, 0, places)
    offsets = np.empty(2 * len(places) + 1, np.int32)
    offsets[:-1:2] = starts
    offsets[1::2] = starts + lengths
    # Arrow compares the first with the last offset.
    offsets[-1] = len(text.data)
    scattered: ArrowArray = pa.Array.from_buffers(
        data_type, 2 * len(places), [None, pa.py_buffer(offsets.data), text.buffer]
    )
    chosen = np.arange(0, 2 * len(places), 2)
    return scattered.take(pa.array(chosen, mask=null if null.any() else None))


def _headers_column(
    text: Text, places: Ints, ends: Ints, counts: Ints, reasons: npt.NDArray[np.uint8]
) -> ArrowArray:
    """The headers of records; sets the reasons of those whose headers are bad."""
    if not counts.any():
        return no_headers(len(counts))
    elements: list[ArrowArray] = []
    ends_of = np.cumsum(counts)
    start = 0
    while start < len(counts):
        # Few places are kept at once: they take more memory than small headers.
        before = int(ends_of[start] - counts[start])
        limit = int(np.searchsorted(ends_of, before + _GROUP_ROWS, side="right"))
        portion = slice(start, max(start + 1, limit))
        spans, bad = find_headers(text, places[portion], ends[portion], counts[portion])
        for first in range(0, len(spans), _GROUP_ROWS):
            span = spans[first : first + _GROUP_ROWS].astype(np.int64)
            names, bad_names = _names(text, span[:, 0], span[:, 1])
            reasons[np.searchsorted(ends_of, before + first + bad_names, side="right")] = _BAD_NAME
            values = _binary_column(text, span[:, 2], span[:, 3], span[:, 3] < 0, pa.binary())
            elements.append(pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type)))
        # Last, because a record with bad headers can have any names.
        reasons[portion][bad] = _BAD_HEADERS
        start = portion.stop
    offsets = np.concatenate(([0], ends_of)).astype(np.int32)
    return list_array(offsets, pa.concat_arrays(elements), HEADERS)


def _names(text: Text, places: Ints, lengths: Ints) -> tuple[ArrowArray, Ints]:
    """Header names, and which are not UTF-8; these become empty."""
    present = np.zeros(len(places), np.bool_)
    names = _binary_column(text, places, lengths, present, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        bad = np.array([not _is_utf8(name) for name in names.cast(pa.binary()).to_pylist()], np.bool_)
        names = _binary_column(text, places, np.where(bad, 0, lengths), present, pa.string())
        return names, np.flatnonzero(bad)
    return names, np.zeros(0, np.int64)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# --- Encoding

_HEAD_BYTES, _SLOT_BYTES = 32, 48
"""Space for the varints of a record: those before the key, then eight bytes for the length of the value and
eight for the count of headers. A write of a varint stores eight bytes, the next write overwrites the rest."""
_RECORD_VARINTS_MAX = 34


def encode(
    records: pa.RecordBatch,
    *,
    append_times: Mask | None = None,
    rows_max: int = BATCH_ROWS,
    bytes_max: int = BATCH_BYTES,
) -> list[EncodedBatch]:
    """Rows of `STREAM_SCHEMA`, offsets ascending, as uncompressed batches for consumers.

    Rows with one `batch_start` become one batch, whose base offset is `batch_start`. Rows without one become
    batches of consecutive offsets, of at most `rows_max` rows and about `bytes_max` bytes. A row without
    event time gets the timestamp -1.

    `append_times`: which rows have the append time as event time; None: none. They are in batches of the type
    LogAppendTime, each of one time, because consumers give all its records the newest time of the batch.
    """
    if not records.num_rows:
        return []
    if records.schema.names != STREAM_SCHEMA.names:
        raise ValueError(f"the columns are {records.schema.names}, not {STREAM_SCHEMA.names}")
    column = {name: records.column(name) for name in records.schema.names}
    offsets = _numpy(column["offset"])
    starts = _numpy(column["batch_start"].fill_null(-1))
    # Kafka counts milliseconds.
    timestamps = _numpy(column["event_timestamp"].cast(pa.int64()).fill_null(_NO_TIMESTAMP * 1000)) // 1000
    header_blobs, header_sizes = _encoded_headers(column["headers"])
    header_counts = list_lengths(column["headers"])
    sizes = binary_lengths(column["key"]) + binary_lengths(column["value"]) + header_sizes
    sums = np.concatenate(([0], np.cumsum(sizes + _RECORD_VARINTS_MAX)))
    breaks: Mask = np.zeros(len(offsets) - 1, np.bool_)
    if append_times is not None:
        breaks |= append_times[1:] != append_times[:-1]
        breaks |= append_times[1:] & (timestamps[1:] != timestamps[:-1])
    spans = _batch_spans(offsets, starts, sums, breaks, rows_max, bytes_max)
    first_rows = np.array([first for first, _, _ in spans], np.int64)
    rows_of = np.diff(np.concatenate((first_rows, [len(offsets)])))
    bases = np.repeat(np.array([base for _, _, base in spans], np.int64), rows_of)
    base_timestamps = np.repeat(timestamps[first_rows], rows_of)
    body, record_sizes = _encoded_records(
        column["key"],
        column["value"],
        header_counts,
        header_blobs,
        header_sizes,
        timestamps - base_timestamps,
        offsets - bases,
    )
    ends = np.concatenate(([0], np.cumsum(record_sizes)))
    return [
        _batch(
            base,
            offsets[first:end],
            timestamps[first:end],
            body[ends[first] : ends[end]],
            _LOG_APPEND_TIME if append_times is not None and append_times[first] else 0,
        )
        for first, end, base in spans
    ]


def _numpy(column: ArrowArray) -> Ints:
    values: Ints = column.to_numpy(zero_copy_only=False)
    return values


def _batch_spans(
    offsets: Ints, starts: Ints, sums: Ints, breaks: Mask, rows_max: int, bytes_max: int
) -> list[tuple[int, int, int]]:
    """First row, end and base offset of each batch. `breaks`: rows but the first that must begin one."""
    new = breaks | (starts[1:] != starts[:-1])
    new |= (starts[1:] < 0) & (offsets[1:] != offsets[:-1] + 1)
    firsts = [0, *(np.flatnonzero(new) + 1).tolist()]
    spans = []
    for run, run_end in zip(firsts, [*firsts[1:], len(offsets)], strict=True):
        start, known = int(starts[run]), starts[run] >= 0
        # A batch of a producer that is continued, in another type or at another time, has a base of its own.
        begun = run > 0 and starts[run] == starts[run - 1]
        first = run
        while first < run_end:
            offset = int(offsets[first])
            # A delta has 31 bits, and the rest of a batch that had to be split begins a new one.
            whole = known and first == run and not begun
            base = start if whole and 0 <= offset - start <= _INT32_MAX else offset
            byte_limit = int(sums[first]) + (_SIZE_MAX if known else bytes_max)
            end = min(
                run_end,
                int(np.searchsorted(offsets, base + _INT32_MAX, side="right")),
                # At least one row, however large.
                max(first + 1, int(np.searchsorted(sums, byte_limit, side="right")) - 1),
            )
            if not known:
                end = min(end, first + rows_max)
            spans.append((first, end, base))
            first = end
    return spans


def _encoded_headers(headers: ArrowArray) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The headers of all rows, one after the other, and their bytes per row, without the counts."""
    pairs = headers.flatten()
    if not len(pairs):
        return np.zeros(0, np.uint8), np.zeros(len(headers), np.int64)
    names, values = pairs.flatten()
    slots, words = _slots(len(pairs), 16)
    name_lengths, value_lengths = binary_lengths(names), binary_lengths(values)
    at = np.arange(len(pairs)) * 16
    words[at], name_sizes = encoded_varints(name_lengths)
    words[at + 8], value_sizes = encoded_varints(np.where(valid_rows(values), value_lengths, -1))
    lengths = np.stack((name_sizes, name_lengths, value_sizes, value_lengths), axis=1)
    (name_bytes, name_places), (value_bytes, value_places) = _source(names), _source(values)
    blobs = _joined(
        [slots, name_bytes, value_bytes], [(0, at), (1, name_places), (0, at + 8), (2, value_places)], lengths
    )
    sums = np.concatenate(([0], np.cumsum(lengths.sum(axis=1))))
    ends = np.concatenate(([0], np.cumsum(list_lengths(headers))))
    return blobs, np.diff(sums[ends])


def _encoded_records(
    keys: ArrowArray,
    values: ArrowArray,
    header_counts: Ints,
    header_blobs: npt.NDArray[np.uint8],
    header_sizes: Ints,
    timestamp_deltas: Ints,
    offset_deltas: Ints,
) -> tuple[npt.NDArray[np.uint8], Ints]:
    """All records, one after the other, and their sizes."""
    rows = len(keys)
    slots, words = _slots(rows, _SLOT_BYTES)
    key_lengths, value_lengths = binary_lengths(keys), binary_lengths(values)
    time_words, time_sizes = encoded_varints(timestamp_deltas)
    offset_words, offset_sizes = encoded_varints(offset_deltas)
    key_words, key_sizes = encoded_varints(np.where(valid_rows(keys), key_lengths, -1))
    value_words, value_sizes = encoded_varints(np.where(valid_rows(values), value_lengths, -1))
    count_words, count_sizes = encoded_varints(header_counts)
    sizes = 1 + time_sizes + offset_sizes + key_sizes + key_lengths + value_sizes + value_lengths
    sizes += count_sizes + header_sizes
    size_words, size_sizes = encoded_varints(sizes)
    slot = np.arange(rows) * _SLOT_BYTES
    at = slot
    # Attributes are a zero byte between the length and the timestamp delta.
    for field_words, field_sizes in (
        (size_words, size_sizes + 1),
        (time_words, time_sizes),
        (offset_words, offset_sizes),
        (key_words, key_sizes),
    ):
        words[at] = field_words
        at = at + field_sizes
    value_at, count_at = slot + _HEAD_BYTES, slot + _HEAD_BYTES + 8
    words[value_at], words[count_at] = value_words, count_words
    (key_bytes, key_places), (value_bytes, value_places) = _source(keys), _source(values)
    sources = [slots, key_bytes, value_bytes]
    parts = [(0, slot), (1, key_places), (0, value_at), (2, value_places), (0, count_at)]
    lengths = [at - slot, key_lengths, value_sizes, value_lengths, count_sizes]
    if len(header_blobs):
        sources.append(header_blobs)
        parts.append((3, np.cumsum(header_sizes) - header_sizes))
        lengths.append(header_sizes)
    return _joined(sources, parts, np.stack(lengths, axis=1)), sizes + size_sizes


def _slots(count: int, size: int) -> tuple[npt.NDArray[np.uint8], Words]:
    """Zero bytes, and the eight bytes from each place on to write to."""
    slots = np.zeros(count * size + 8, np.uint8)
    return slots, np.ndarray((len(slots) - 7,), "<u8", slots, 0, (1,))


def _source(column: ArrowArray) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The bytes of a binary column, and where each row begins."""
    offsets, data = binary_layout(column)
    # A slice shares the bytes of its parent, of which only its own are copied.
    return data[offsets[0] : offsets[-1]], (offsets[:-1] - offsets[0]).astype(np.int64)


def _joined(
    sources: Sequence[npt.NDArray[np.uint8]], parts: Sequence[tuple[int, Ints]], lengths: Ints
) -> npt.NDArray[np.uint8]:
    """For each row the bytes of each part, row after row.

    A part is the number of its source and the place of each row there; `lengths` has a column per part.
    """
    bases = np.cumsum([0, *map(len, sources)])
    starts = np.stack([places + bases[source] for source, places in parts], axis=1)
    # As in `_binary_column`: the elements 0, 2, 4, … of an array over all sources.
    spans = np.empty(2 * lengths.size, np.int64)
    spans[0::2] = starts.ravel()
    spans[1::2] = spans[0::2] + lengths.ravel()
    scattered: Any = pa.Array.from_buffers(
        pa.large_binary(),
        len(spans) - 1,
        [None, pa.py_buffer(spans.data), pa.py_buffer(np.concatenate(sources).data)],
    )
    data = scattered.take(pa.array(np.arange(0, len(spans) - 1, 2))).buffers()[2]
    return np.frombuffer(data, np.uint8)[: int(lengths.sum())]


def _batch(
    base: int, offsets: Ints, timestamps: Ints, body: npt.NDArray[np.uint8], attributes: int
) -> EncodedBatch:
    last, newest = int(offsets[-1]), int(timestamps.max())
    header = bytearray(_HEADER.size)
    _HEADER.pack_into(
        header,
        0,
        base,
        _HEADER.size - _LENGTH_END + len(body),
        LEADER_EPOCH,
        _MAGIC,
        0,
        attributes,
        last - base,
        int(timestamps[0]),
        newest,
        -1,
        -1,
        -1,
        len(offsets),
    )
    checksum = crc32c(body.data, crc32c(memoryview(header)[_CRC_FROM:]))
    struct.pack_into(">I", header, _CRC_FROM - 4, checksum)
    return EncodedBatch(base, last, len(offsets), newest, b"".join((header, body.data)))
