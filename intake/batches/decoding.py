"""Kafka record batches (magic 2) as clients send them: check, measure, and decode to Arrow columns.

Pure. A batch is a header of 61 bytes and its records, which can be compressed as a whole. A record is

    length varint | attributes 1 byte | timestamp delta varlong | offset delta varint |
    key length varint | key | value length varint | value | header count varint | headers

and a header of a record is

    name length varint | name | value length varint | value

Varints are zigzag-encoded, and a length of -1 stands for null. The place of a record depends only on the
lengths of those before it, so all places are found first. All else is read and checked in numpy, for the
records of all batches at once.

`measure` and `decode` refuse the same batches for the same reasons. So a batch that was measured and stored
can be decoded later.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from archiver.runtime.errors import InvalidInput
from intake.arrow_arrays import ArrowArray, concat_batches, list_array
from intake.batches.decompression import BadBlock, BadFrame, Codec, TooLarge, uncompressed
from intake.batches.record_fields import (
    PADDING,
    FieldReader,
    Ints,
    Mask,
    Text,
    binary_column,
    find_headers,
    find_records,
    names_not_utf8,
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

RefusalCode = Literal[
    "corrupt_message",
    "invalid_record",
    "invalid_timestamp",
    "message_too_large",
    "unsupported_compression_type",
    "unsupported_for_message_format",
]
"""Kafka's name of the error of a refused batch."""
Bytes: TypeAlias = bytes | memoryview

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_FIELDS = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("checksum", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
"""The same for numpy."""
_LENGTH = struct.Struct(">i")
BATCH_MAGIC = 2
_MAGIC_AT = 16
LENGTH_END = 12
CRC_FROM = 21
"""The checksum covers all bytes after itself. Base offset and leader epoch are before it."""
_CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
NO_TIMESTAMP = -1

_RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2
SIZE_MAX = 1 << 30
"""Upper limit of the records of one batch: Arrow's offsets have 31 bits."""

HEADERS_MAX = 1_000_000
"""Most headers of the records of one batch. While they are decoded, each takes about 160 bytes."""
_GROUP_BYTES = 8 << 20
_GROUP_ROWS = 1 << 15
"""Uncompressed bytes, and records, that are decoded at once. They bound the memory needed in
addition to the inputs and results."""


class BatchRefused(InvalidInput):
    """A batch of records that is not accepted; the message says why."""

    def __init__(self, code: RefusalCode, message: str, record: int | None = None) -> None:
        super().__init__(message if record is None else f"record {record} of the batch: {message}")
        self.code = code
        """The error of the partition that it is sent to."""
        self.record = record
        """Place of the refused record in its batch, from 0; None if the batch as a whole is refused."""


class NotDecompressed(BatchRefused):
    """A batch whose records could not be decompressed: the bytes are wrong, or memory is short."""


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


def read_header(data: Bytes) -> BatchHeader:
    """Read the header of the one batch that `data` holds, and verify its size and checksum.

    Raises `BatchRefused`: corrupt_message for a wrong checksum, unsupported_for_message_format for batches of
    Kafka before 0.11, unsupported_compression_type, and invalid_record for wrong sizes and counts.
    """
    size = len(data)
    # All formats have the magic number at the same place.
    if size > _MAGIC_AT and data[_MAGIC_AT] in (0, 1):
        raise BatchRefused(
            "unsupported_for_message_format",
            f"the records have the format of magic {data[_MAGIC_AT]}; only magic 2 is accepted, which "
            "clients write since Kafka 0.11",
        )
    if size < BATCH_HEADER.size:
        raise BatchRefused(
            "invalid_record",
            f"the batch has {size} bytes, fewer than the {BATCH_HEADER.size} bytes of its header",
        )
    fields = BATCH_HEADER.unpack_from(data)
    base_offset, length, leader_epoch, magic, checksum, attributes, last_offset_delta = fields[:7]
    base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, count = fields[7:]
    if magic != BATCH_MAGIC:
        raise BatchRefused("invalid_record", f"the batch has magic {magic}; only magic 2 is accepted")
    if length != size - LENGTH_END:
        raise BatchRefused(
            "invalid_record",
            f"the batch declares {length} bytes after its length, and {size - LENGTH_END} are there; a "
            "partition of a produce request has exactly one batch",
        )
    found = crc32c(memoryview(data)[CRC_FROM:])
    if found != checksum:
        raise BatchRefused(
            "corrupt_message",
            f"the batch has CRC-32C {found:08x} and declares {checksum:08x}; its bytes changed on the way",
        )
    codec = attributes & 0x07
    if codec >= len(_CODECS):
        raise BatchRefused(
            "unsupported_compression_type",
            f"the batch has compression type {codec}; known are 0 to 4 ({', '.join(_CODECS)})",
        )
    if count < 1:
        raise BatchRefused("invalid_record", f"the batch declares {count} records; send at least one")
    if codec == 0:
        _check_count(count, size - BATCH_HEADER.size)
    return BatchHeader(
        base_offset=base_offset,
        size=size,
        leader_epoch=leader_epoch,
        codec=_CODECS[codec],
        log_append_time=bool(attributes & LOG_APPEND_TIME),
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
            "invalid_record",
            f"the batch declares {count} records in {size} bytes; a record has at least "
            f"{_RECORD_BYTES_MIN} bytes",
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """A batch that can be stored: its records are as they must be."""

    raw_bytes: int
    """Of all records, as `intake.records` counts."""
    weight: int
    """Of all records."""
    heaviest: int
    """The place of the heaviest record in the batch, from 0."""
    largest_weight: int
    """Its weight."""
    largest_bytes: int
    """Its raw bytes."""
    untimed: bool
    """A record has no time. Consumers get its accept time, which the batch does not have."""


_Result = TypeVar("_Result")


def decode(
    batches: Sequence[tuple[BatchHeader, Bytes]], *, uncompressed_max: int, total_max: int | None = None
) -> list[pa.RecordBatch | BatchRefused]:
    """The records of batches that a producer sent, each as `RECORD_SCHEMA` or the reason for its refusal.

    `uncompressed_max` bounds the bytes of the records of each batch after decompression. A timestamp of -1
    becomes null. Several results can share memory.

    With `total_max`, decoding ends after the batch with which all records reach so many bytes. Later batches
    then have no result, and the caller calls again for them.
    """
    return _in_groups(batches, uncompressed_max, total_max, _decoded)


def measure(
    batches: Sequence[tuple[BatchHeader, Bytes]], *, uncompressed_max: int, total_max: int | None = None
) -> list[Measured | BatchRefused]:
    """The sizes of the records of batches, without their columns. All else is as for `decode`."""
    return _in_groups(batches, uncompressed_max, total_max, _measured)


def decode_with_gaps(
    batches: Sequence[tuple[BatchHeader, Bytes]], *, uncompressed_max: int, total_max: int
) -> list[tuple[pa.RecordBatch, Ints] | BatchRefused]:
    """The records of batches of a broker, which may have removed some of them or set their time; and their
    offsets in the batch. The times are the producers'. All else is as for `decode`.
    """
    produced = [
        (replace(header, log_append_time=False, last_offset_delta=header.count - 1), data)
        for header, data in batches
    ]
    results = _in_groups(produced, uncompressed_max, total_max, _decoded_with_gaps, gaps=True)
    return [
        result
        if isinstance(result, BatchRefused) or _ascends(result[1], header.last_offset_delta)
        else BatchRefused("invalid_record", "the offsets of its records do not ascend within it")
        for (header, _), result in zip(batches, results, strict=False)
    ]


def _ascends(deltas: Ints, last: int) -> bool:
    return bool(deltas[0] >= 0 and deltas[-1] <= last and (deltas[1:] > deltas[:-1]).all())


def _in_groups(
    batches: Sequence[tuple[BatchHeader, Bytes]],
    uncompressed_max: int,
    total_max: int | None,
    work: Callable[[_Group], Sequence[_Result]],
    *,
    gaps: bool = False,
) -> list[_Result | BatchRefused]:
    """The result of each batch, or its refusal. `work` gives one result for each batch of a group, whether
    its records are bad or not. `gaps`: offsets need not be consecutive.
    """
    results: dict[int, _Result | BatchRefused] = {}
    waiting: list[tuple[int, BatchHeader, Bytes]] = []
    group_bytes = total = 0
    size_max = min(uncompressed_max, SIZE_MAX)

    def finish(waiting: Sequence[tuple[int, BatchHeader, Bytes]]) -> None:
        if waiting:
            counts = np.array([header.count for _, header, _ in waiting], np.int64)
            base_ms = np.array([header.base_timestamp_ms for _, header, _ in waiting], np.int64)
            group = _Group(counts, base_ms, [records for _, _, records in waiting], size_max, gaps=gaps)
            found = work(group)
            refusals = group.refusals()
            for number, ((place, _, _), result) in enumerate(zip(waiting, found, strict=True)):
                results[place] = refusals.get(number, result)
            # Alone, because wrong lengths lead into the next batch and decide what is found there.
            if len(waiting) > 1:
                for number in refusals:
                    finish([waiting[number]])

    for place, (header, data) in enumerate(batches):
        try:
            _check_produced(header)
            records = _records_of(header.codec, memoryview(data)[BATCH_HEADER.size :], size_max)
            _check_count(header.count, len(records))
        except BatchRefused as refused:
            # Without the frames of its traceback and cause, which hold what was decompressed.
            refused.__cause__ = refused.__context__ = None
            results[place] = refused.with_traceback(None)
            continue
        if group_bytes + len(records) > _GROUP_BYTES:
            finish(waiting)
            waiting, group_bytes = [], 0
        waiting.append((place, header, records))
        group_bytes += len(records)
        total += len(records)
        if total_max is not None and total >= total_max:
            break
    finish(waiting)
    return [results[place] for place in sorted(results)]


def _check_produced(header: BatchHeader) -> None:
    """Refuse what a broker writes and a producer may not send."""
    if header.control:
        raise BatchRefused("invalid_record", "the batch is a control batch; only brokers write these")
    if header.log_append_time:
        raise BatchRefused(
            "invalid_timestamp",
            "the batch has the timestamp type LogAppendTime; producers must send CreateTime",
        )
    if header.last_offset_delta != header.count - 1:
        raise BatchRefused(
            "invalid_record",
            f"the batch has last offset delta {header.last_offset_delta} and {header.count} records; "
            "offsets must be consecutive",
        )


# --- Batches one after the other


class StoredBatches:
    """Batches that follow each other in some bytes. Their headers are columns, for many batches are small."""

    def __init__(self, data: Bytes) -> None:
        """Verify the headers and checksums. Raises `InvalidInput` if the bytes are not batches that `measure`
        accepts, as far as that can be seen without their records.
        """
        self.size = len(data)
        self._view = memoryview(data)
        self._starts = _starts_of(self._view)
        self._ends = [*self._starts[1:], self.size]
        places = np.array(self._starts, np.int64)[:, None] + np.arange(BATCH_HEADER.size)
        headers = np.frombuffer(self._view, np.uint8)[places].view(_HEADER_FIELDS)[:, 0]
        self.counts: Ints = headers["count"].astype(np.int64)
        """Records of each."""
        self._counts: list[int] = self.counts.tolist()
        self._base_ms: Ints = headers["base_timestamp_ms"].astype(np.int64)
        self._max_ms = headers["max_timestamp_ms"].tolist()
        self._codecs = (headers["attributes"] & 0x07).tolist()
        bad = headers["magic"] != BATCH_MAGIC
        bad |= (headers["attributes"] & (LOG_APPEND_TIME | _CONTROL)) != 0
        bad |= (headers["attributes"] & 0x07) >= len(_CODECS)
        bad |= (headers["count"] < 1) | (headers["last_offset_delta"] != headers["count"] - 1)
        bounds = zip(self._starts, self._ends, strict=True)
        bad |= headers["checksum"] != [crc32c(self._view[start + CRC_FROM : end]) for start, end in bounds]
        if bad.any():
            number = int(bad.argmax())
            # It says what is wrong.
            _check_produced(read_header(self._view[self._starts[number] : self._ends[number]]))
        self._records_to: list[int] = np.cumsum(self.counts).tolist()

    def of(self, first: int, count: int) -> list[tuple[int, int, memoryview]]:
        """The batches of a range of records: records, newest time and bytes of each. Raises `InvalidInput`
        if the range does not consist of whole batches.
        """
        low = bisect_right(self._records_to, first)
        high = bisect_left(self._records_to, first + count) + 1
        begin = self._records_to[low - 1] if low else 0
        if high > len(self._starts) or begin != first or self._records_to[high - 1] != first + count:
            raise InvalidInput(f"records {first} to {first + count - 1} of it are not whole batches")
        return [
            (
                self._counts[number],
                self._max_ms[number],
                self._view[self._starts[number] : self._ends[number]],
            )
            for number in range(low, high)
        ]

    def decode(self) -> pa.RecordBatch:
        """The records of all batches, in order, as `RECORD_SCHEMA`. Raises `BatchRefused` for the first batch
        that `measure` refuses.
        """
        columns: list[pa.RecordBatch] = []
        records: list[Bytes] = []
        begin = size = 0
        for number, (start, end, codec) in enumerate(
            zip(self._starts, self._ends, self._codecs, strict=True)
        ):
            found = _records_of(_CODECS[codec], self._view[start + BATCH_HEADER.size : end], SIZE_MAX)
            if size + len(found) > _GROUP_BYTES and records:
                columns += self._columns(begin, number, records)
                records, begin, size = [], number, 0
            records.append(found)
            size += len(found)
        columns += self._columns(begin, len(self._starts), records)
        return concat_batches(columns)

    def _columns(self, begin: int, end: int, records: list[Bytes]) -> list[pa.RecordBatch]:
        """The records of the batches [begin, end), in order; their bytes are dropped from the list."""
        counts = self.counts[begin:end]
        # Before places of so many records are allocated.
        for count, one in zip(counts.tolist(), records, strict=True):
            _check_count(count, len(one))
        group = _Group(counts, self._base_ms[begin:end], records, SIZE_MAX)
        # The group has a copy.
        records.clear()
        columns = [portion.columns() for portion in group.portions()]
        for refused in group.refusals().values():
            raise refused
        return columns


def _starts_of(view: memoryview) -> list[int]:
    """Where each batch begins, by the lengths that they state."""
    starts, start = [], 0
    while start < len(view):
        if start + BATCH_HEADER.size > len(view):
            raise InvalidInput("its bytes end within the header of a batch")
        (length,) = _LENGTH.unpack_from(view, start + LENGTH_END - _LENGTH.size)
        if length < BATCH_HEADER.size - LENGTH_END:
            raise InvalidInput(f"a batch states {length} bytes, fewer than its header has")
        starts.append(start)
        start += LENGTH_END + length
    if not starts or start != len(view):
        raise InvalidInput("its bytes end within a batch")
    return starts


def _records_of(codec: Codec, data: memoryview, size_max: int) -> Bytes:
    """The uncompressed records; never allocates much more than `size_max`."""
    try:
        return uncompressed(codec, data, size_max)
    except TooLarge:
        raise BatchRefused(
            "message_too_large",
            f"the records of the batch have more than {size_max} bytes after decompression; send smaller "
            "batches",
        ) from None
    except BadBlock as error:
        raise BatchRefused("invalid_record", str(error)) from None
    except BadFrame as error:
        raise NotDecompressed("invalid_record", str(error)) from error.__cause__


def records_of(header: BatchHeader, data: memoryview, size_max: int) -> Bytes:
    """The uncompressed records of a batch. Raises `BatchRefused` if they are no valid data, or too large."""
    return _records_of(header.codec, data[BATCH_HEADER.size :], min(size_max, SIZE_MAX))


# --- Decoding


_FIELDS = "its lengths do not match its bytes"
_REASONS: tuple[tuple[RefusalCode, str], ...] = (
    ("invalid_record", ""),
    ("invalid_record", _FIELDS),
    ("invalid_record", "its offset delta is not its place in the batch; offsets must be consecutive"),
    (
        "invalid_timestamp",
        "its timestamp is outside the years 1 to 9999; send milliseconds since 1970",
    ),
    ("invalid_record", "the lengths of its headers do not match its bytes"),
    ("message_too_large", "the batch has too many headers up to here; send smaller batches"),
    ("invalid_record", "the name of a header is not UTF-8"),
)
_BAD_FIELDS, _BAD_OFFSET, _BAD_TIMESTAMP, _BAD_HEADERS, _TOO_MANY_HEADERS, _BAD_NAME = range(1, len(_REASONS))


class _Group:
    """The uncompressed records of some batches, and where they are."""

    def __init__(
        self, counts: Ints, base_ms: Ints, records: Sequence[Bytes], size_max: int, *, gaps: bool = False
    ) -> None:
        data = b"".join([*records, PADDING])
        # A view with a stride of one byte: unaligned, and nothing is copied.
        words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
        self.text = Text(data, np.frombuffer(data, np.uint8), words, pa.py_buffer(data))
        self.counts = counts
        limits = np.cumsum([len(one) for one in records])
        firsts = np.concatenate(([0], limits[:-1]))
        self.rows = np.cumsum(self.counts) - self.counts
        """The first record of each batch."""
        self._places = find_records(self.text, firsts, self.counts, self.rows)
        # A batch begins where the one before ends, so this also finds bytes left at the end of a batch.
        self._following = np.concatenate((self._places[1:], limits[-1:]))
        self._base_ms = np.repeat(base_ms, self.counts)
        self.deltas: Ints = np.arange(len(self._places)) - np.repeat(self.rows, self.counts)
        """The offset of each record in its batch; with gaps, only after all portions were used."""
        self._gaps = gaps
        self._batch_of = np.repeat(np.arange(len(counts)), self.counts)
        self._headers_left = np.full(len(counts), min(size_max // HEADER_COST_BYTES, HEADERS_MAX), np.int64)
        self._reasons = np.zeros(len(self._places), np.uint8)

    def portions(self) -> Iterator[_Portion]:
        """All records, a bounded number at a time; to be read once, in order."""
        for start in range(0, len(self._places), _GROUP_ROWS):
            part = slice(start, start + _GROUP_ROWS)
            yield _portion(
                self.text,
                self._places[part],
                self._following[part],
                self._base_ms[part],
                self.deltas[part],
                self._gaps,
                self._batch_of[part],
                self._headers_left,
                self._reasons[part],
            )

    def refusals(self) -> dict[int, BatchRefused]:
        """The batches with bad records, by their place. Only after all portions were used."""
        # One search for all batches: usually no record is bad.
        bad = np.flatnonzero(self._reasons)
        # The first bad record of each batch that has one.
        batches, firsts = np.unique(self._batch_of[bad], return_index=True)
        found: dict[int, BatchRefused] = {}
        for batch, row in zip(batches.tolist(), bad[firsts].tolist(), strict=True):
            code, message = _REASONS[self._reasons[row]]
            found[batch] = BatchRefused(code, message, row - int(self.rows[batch]))
        return found


@dataclass(frozen=True, slots=True)
class _Portion:
    """The fields of some records; a bad record has any content."""

    text: Text
    following: Ints
    key_places: Ints
    key_lengths: Ints
    """-1 for null, here and of values."""
    value_places: Ints
    value_lengths: Ints
    headers_at: Ints
    header_counts: Ints
    timestamps_ms: Ints
    batch_of: Ints
    """Number of the batch in the group."""
    reasons: npt.NDArray[np.uint8]

    def headers(self) -> ArrowArray:
        """The headers column; sets the reasons of records whose headers are bad."""
        return _headers_column(
            self.text,
            self.headers_at,
            self.following,
            np.where(self.reasons != 0, 0, self.header_counts),
            self.reasons,
        )

    def columns(self) -> pa.RecordBatch:
        """As `RECORD_SCHEMA`."""
        # A bad record has a null key and value: its places can be anywhere.
        bad = self.reasons != 0
        return pa.RecordBatch.from_arrays(
            [
                binary_column(
                    self.text, self.key_places, self.key_lengths, (self.key_lengths < 0) | bad, pa.binary()
                ),
                binary_column(
                    self.text,
                    self.value_places,
                    self.value_lengths,
                    (self.value_lengths < 0) | bad,
                    pa.binary(),
                ),
                self.headers(),
                _timestamps_column(self.timestamps_ms),
            ],
            schema=RECORD_SCHEMA,
        )

    def raw_bytes(self) -> Ints:
        """Of each record, as `intake.records` counts; sets the reasons of records whose headers are bad."""
        sizes: Ints = np.maximum(self.key_lengths, 0) + np.maximum(self.value_lengths, 0)
        if not self.header_counts.any():
            return sizes
        spans = _header_spans(self.text, self.headers_at, self.following, self.header_counts, self.reasons)
        lengths = [span[:, 1] + np.maximum(span[:, 3], 0) for span in spans]
        sums = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
        ends = np.cumsum(self.header_counts)
        sizes += sums[ends] - sums[ends - self.header_counts]
        return sizes


def _decoded(group: _Group) -> list[pa.RecordBatch]:
    columns = concat_batches([portion.columns() for portion in group.portions()])
    rows, counts = group.rows.tolist(), group.counts.tolist()
    return [columns.slice(row, count) for row, count in zip(rows, counts, strict=True)]


def _decoded_with_gaps(group: _Group) -> list[tuple[pa.RecordBatch, Ints]]:
    found = _decoded(group)
    return [
        (columns, group.deltas[row : row + columns.num_rows])
        for columns, row in zip(found, group.rows.tolist(), strict=True)
    ]


def _measured(group: _Group) -> list[Measured]:
    raw_bytes, weights = [], []
    untimed = np.zeros(len(group.counts), np.bool_)
    for portion in group.portions():
        raw_bytes.append(portion.raw_bytes())
        weights.append(raw_bytes[-1] + HEADER_COST_BYTES * portion.header_counts)
        missing = portion.timestamps_ms == NO_TIMESTAMP
        if missing.any():
            untimed[portion.batch_of[missing]] = True
    sizes, weight_of = np.concatenate(raw_bytes), np.concatenate(weights)
    totals, heavy = (np.add.reduceat(one, group.rows).tolist() for one in (sizes, weight_of))
    largest = np.maximum.reduceat(weight_of, group.rows)
    # The first record of each batch that has its largest weight.
    found = np.flatnonzero(weight_of == np.repeat(largest, group.counts))
    at = found[np.searchsorted(found, group.rows)]
    places, their_bytes = (at - group.rows).tolist(), sizes[at].tolist()
    columns = totals, heavy, places, largest.tolist(), their_bytes, untimed.tolist()
    return [Measured(*one) for one in zip(*columns, strict=True)]


def _portion(
    text: Text,
    places: Ints,
    following: Ints,
    base_ms: Ints,
    deltas: Ints,
    gaps: bool,
    batch_of: Ints,
    headers_left: Ints,
    reasons: npt.NDArray[np.uint8],
) -> _Portion:
    """The fields of records, and the reasons why some are bad.

    Subtracts the headers of the records from `headers_left`, which has what each batch may still have. With
    `gaps`, the offsets of the records become `deltas`.
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
    if gaps:
        deltas[:] = offset_delta
    else:
        reasons[offset_delta != deltas] = _BAD_OFFSET
    timestamps_ms, bad_timestamps = _timestamps(base_ms, delta_ms)
    reasons[bad_timestamps] = _BAD_TIMESTAMP
    # Before the counts of headers are used, because wrong lengths make every other field meaningless.
    reasons[reader.bad] = _BAD_FIELDS
    # Headers of few bytes would take much more memory than the batch.
    counted = np.where(reader.bad, 0, header_counts)
    reasons[_beyond(counted, batch_of, headers_left) & ~reader.bad] = _TOO_MANY_HEADERS
    return _Portion(
        text,
        following,
        key_places,
        key_lengths,
        value_places,
        value_lengths,
        headers_at,
        np.where(reasons != 0, 0, header_counts),
        timestamps_ms,
        batch_of,
        reasons,
    )


def _beyond(counts: Ints, batch_of: Ints, left: Ints) -> Mask:
    """Which records have headers beyond those that are left for their batch; subtracts all of them."""
    if not counts.any():
        return np.zeros(len(counts), np.bool_)
    # The records of a batch are consecutive, and no batch is without one.
    batches = slice(int(batch_of[0]), int(batch_of[-1]) + 1)
    firsts = np.searchsorted(batch_of, np.arange(batches.start, batches.stop))
    if int(counts.sum()) <= int(left[batches].min()):
        left[batches] -= np.add.reduceat(counts, firsts)
        return np.zeros(len(counts), np.bool_)
    sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    rows = np.diff(np.append(firsts, len(counts)))
    beyond = sums[1:] - np.repeat(sums[firsts] + left[batch_of[firsts]], rows) > 0
    left[batch_of[firsts]] -= np.diff(sums[np.append(firsts, len(counts))])
    return beyond & (counts > 0)


def _timestamps(base_ms: Ints, delta_ms: Ints) -> tuple[Ints, Mask]:
    """Milliseconds, and which of them are out of range."""
    milliseconds = base_ms + delta_ms
    # A sum overflowed if its sign differs from those of both summands.
    bad = ((base_ms ^ milliseconds) & (delta_ms ^ milliseconds)) < 0
    bad |= (milliseconds < -(-TIMESTAMP_MIN_US // 1000)) | (milliseconds > TIMESTAMP_MAX_US // 1000)
    return milliseconds, bad


def _timestamps_column(milliseconds: Ints) -> ArrowArray:
    column: ArrowArray = pa.array(milliseconds * 1000, pa.int64(), mask=milliseconds == NO_TIMESTAMP)
    return column.view(TIMESTAMP)


def _headers_column(
    text: Text, places: Ints, ends: Ints, counts: Ints, reasons: npt.NDArray[np.uint8]
) -> ArrowArray:
    """The headers of records; sets the reasons of those whose headers are bad."""
    if not counts.any():
        return no_headers(len(counts))
    elements: list[ArrowArray] = []
    for span in _header_spans(text, places, ends, counts, reasons):
        names = binary_column(text, span[:, 0], span[:, 1], np.zeros(len(span), np.bool_), pa.string())
        values = binary_column(text, span[:, 2], span[:, 3], span[:, 3] < 0, pa.binary())
        elements.append(pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type)))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return list_array(offsets, pa.concat_arrays(elements), HEADERS)


def _header_spans(
    text: Text, places: Ints, ends: Ints, counts: Ints, reasons: npt.NDArray[np.uint8]
) -> Iterator[Ints]:
    """Place and length of the name and of the value of each header, a bounded number at a time. A name that
    is not UTF-8 has the length 0. Sets the reasons of records whose headers are bad.
    """
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
            bad_names = names_not_utf8(text, span[:, 0], span[:, 1])
            reasons[np.searchsorted(ends_of, before + first + bad_names, side="right")] = _BAD_NAME
            span[bad_names, 1] = 0
            yield span
        # Last, because a record with bad headers can have any names.
        reasons[portion][bad] = _BAD_HEADERS
        start = portion.stop
