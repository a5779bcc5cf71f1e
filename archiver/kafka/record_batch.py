"""Kafka record batches (magic 2): encode from Arrow columns, as consumers receive them.

Pure. `intake.batches.decoding` has the form of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from archiver.stream.records import STREAM_SCHEMA
from intake.arrow_arrays import ArrowArray, binary_layout, binary_lengths, list_lengths, valid_rows
from intake.batches.decoding import (
    BATCH_HEADER,
    BATCH_MAGIC,
    CRC_FROM,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SIZE_MAX,
)
from intake.batches.record_fields import Ints, Mask, Words, encoded_varints

BATCH_ROWS, BATCH_BYTES = 4096, 256 << 10
"""Bounds of an encoded batch whose producer's batch is unknown."""
LEADER_EPOCH = 0
"""Of every encoded batch: partitions have no leader that could change."""

_INT32_MAX = (1 << 31) - 1
_PLACE = struct.Struct(">qii")
"""Base offset, length and leader epoch."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records as consumers receive them."""

    base_offset: int
    last_offset: int
    records: int
    max_timestamp_ms: int
    """-1 if no record has a timestamp."""
    data: bytes


_HEAD_BYTES, _SLOT_BYTES = 32, 48
"""Space for the varints of a record: those before the key, then eight bytes for the length of the value and
eight for the count of headers. A write of a varint stores eight bytes, the next write overwrites the rest."""
_RECORD_VARINTS_MAX = 34


def placed(data: memoryview, base_offset: int) -> bytes:
    """A batch as its client sent it, with its offset in the partition. No checksum covers that."""
    place = _PLACE.pack(base_offset, len(data) - LENGTH_END, LEADER_EPOCH)
    return b"".join((place, data[len(place) :]))


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
    timestamps = _numpy(column["event_timestamp"].cast(pa.int64()).fill_null(NO_TIMESTAMP * 1000)) // 1000
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
            LOG_APPEND_TIME if append_times is not None and append_times[first] else 0,
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
            byte_limit = int(sums[first]) + (SIZE_MAX if known else bytes_max)
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
    header = bytearray(BATCH_HEADER.size)
    BATCH_HEADER.pack_into(
        header,
        0,
        base,
        BATCH_HEADER.size - LENGTH_END + len(body),
        LEADER_EPOCH,
        BATCH_MAGIC,
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
    return EncodedBatch(base, last, len(offsets), newest, _with_checksum(header, body.data))


def _with_checksum(header: bytearray, records: bytes | memoryview) -> bytes:
    checksum = crc32c(records, crc32c(memoryview(header)[CRC_FROM:]))
    struct.pack_into(">I", header, CRC_FROM - 4, checksum)
    return b"".join((header, records))


# --- Offsets without records

_CONTROL = 0x30
"""Transactional, and for clients only."""


def filler(base: int, last: int) -> EncodedBatch:
    """A control batch for offsets [base, last] without a record, or for the first of them.

    Kafka has a transaction's end marker at such a place, and every client passes over it. A batch without any
    record would do for Java, but librdkafka takes it for a response that was cut, and after ten of them
    reports an error.
    """
    last = min(last, base + _INT32_MAX)
    # Key: version 0, type 1 (commit, which no client acts on). Value: version 0, coordinator epoch 0.
    key, value = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0)
    delta = last - base
    body = b"".join((b"\0\0", _varint(delta), _varint(len(key)), key, _varint(len(value)), value, _varint(0)))
    record = _varint(len(body)) + body
    size = BATCH_HEADER.size - LENGTH_END + len(record)
    header = bytearray(BATCH_HEADER.size)
    BATCH_HEADER.pack_into(
        header, 0, base, size, LEADER_EPOCH, BATCH_MAGIC, 0, _CONTROL, delta, 0, 0, -1, -1, -1, 1
    )
    data = _with_checksum(header, record)
    return EncodedBatch(base, last, 0, -1, data)


def _varint(number: int) -> bytes:
    """A number that is not negative, in zigzag form."""
    number <<= 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
