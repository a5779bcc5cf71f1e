"""The messages of Kafka's Fetch (version 11), and what the record batches of a response mean (pure).

A consumer of committed records leaves out what aborted transactions wrote. The response lists these by
producer and first offset; a control batch ends each. Such batches, and those that compaction has emptied,
have no record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from intake.batches.decoding import (
    BATCH_HEADER,
    BATCH_MAGIC,
    CRC_FROM,
    LENGTH_END,
    BatchHeader,
    BatchRefused,
    read_header,
)
from intake.sources.kafka.single_records import read_records
from intake.sources.kafka.upstream import Place

_REQUEST = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqqi")
_LENGTH = struct.Struct(">i")
_NAME = struct.Struct(">h")
_RESPONSE = struct.Struct(">ihi")
_RESULT = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_REPLICA = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")
_CHECKSUM = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAGIC_AT, _CHECKSUM_AT, _ATTRIBUTES_AT, _PRODUCER_AT = 16, 17, 21, 43
_TRANSACTIONAL = 0x10
_ABORT_MARKER = 0
_MARKER_BYTES_MAX = 64 * 1024
"""Of the records of a control batch, after decompression: brokers write less than a hundred bytes."""
READ_COMMITTED = 1
NO_PRODUCER = -1


@dataclass(frozen=True, slots=True)
class Wish:
    """One partition of a request."""

    place: Place
    leader_epoch: int
    """-1 if unknown."""
    offset: int


@dataclass(frozen=True, slots=True)
class Result:
    """One partition of a response."""

    place: Place
    error: int
    high: int
    last_stable: int
    aborted: list[tuple[int, int]]
    """First offset and producer of transactions."""
    records: memoryview


class BadResponse(Exception):
    """The bytes are no response to a Fetch."""


def fetch_request(wishes: Iterable[Wish], wait_ms: int, bytes_max: int, partition_bytes_max: int) -> bytes:
    """The body of a request without a session, in this order: a broker fills its response in it."""
    # A topic may come several times.
    topics: list[tuple[str, list[bytes]]] = []
    for wish in wishes:
        topic, partition = wish.place
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(
            _PARTITION.pack(partition, wish.leader_epoch, wish.offset, -1, partition_bytes_max)
        )
    parts = [_REQUEST.pack(-1, wait_ms, 1, bytes_max, READ_COMMITTED, 0, -1), _LENGTH.pack(len(topics))]
    for topic, partitions in topics:
        name = topic.encode()
        parts += [_NAME.pack(len(name)), name, _LENGTH.pack(len(partitions)), *partitions]
    # No forgotten topics, and no rack.
    parts.append(_LENGTH.pack(0) + _NAME.pack(0))
    return b"".join(parts)


def read_response(data: memoryview) -> tuple[int, list[Result]]:
    """The error of a response, and its partitions. Raises `BadResponse`."""
    try:
        _, error, _ = _RESPONSE.unpack_from(data)
        results: list[Result] = []
        at = _RESPONSE.size
        (topics,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        for _ in range(topics):
            (size,) = _NAME.unpack_from(data, at)
            name = str(_part(data, at + _NAME.size, size), "utf-8")
            at += _NAME.size + size
            (partitions,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            for _ in range(partitions):
                result, at = _read_result(data, at, name)
                results.append(result)
    except (struct.error, UnicodeDecodeError) as wrong:
        raise BadResponse(str(wrong)) from None
    return error, results


def _read_result(data: memoryview, at: int, topic: str) -> tuple[Result, int]:
    partition, error, high, last_stable, _ = _RESULT.unpack_from(data, at)
    at += _RESULT.size
    (count,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(data, at)
        aborted.append((first_offset, producer_id))
        at += _ABORTED.size
    at += _REPLICA.size
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    records = _part(data, at, max(0, size))
    return Result((topic, partition), error, high, last_stable, aborted, records), at + len(records)


def _part(data: memoryview, at: int, size: int) -> memoryview:
    if size < 0 or at + size > len(data):
        raise BadResponse("it ends within a field")
    return data[at : at + size]


# --- record batches


@dataclass(slots=True)
class Committed:
    """The record batches of a response that a consumer of committed records gets."""

    batches: list[tuple[BatchHeader, memoryview]] = field(default_factory=list)
    end: int = 0
    """One past the last offset that was read."""
    leader_epoch: int = -1
    """Of the last batch that was read, with or without records; -1 if unknown."""
    damage: str | None = None
    """Why nothing can be read from `end` on."""
    is_old: bool = False
    """At `end` are records in a format of Kafka before 0.11."""


def committed(records: memoryview, offset: int, aborted: Sequence[tuple[int, int]]) -> Committed:
    """The batches with records from `offset` on. A last batch that is cut off is not read."""
    found = Committed(end=offset)
    waiting = sorted(aborted, reverse=True)
    open_aborted: set[int] = set()
    for data in _batches(records, found):
        base, leader_epoch, delta, producer_id, count = _scan(data)
        last = base + delta
        try:
            if delta < 0 or base < 0:
                raise BatchRefused("invalid_record", "its offsets are wrong")
            header = None if count == 0 else read_header(data)
            if header is None:
                _check_empty(data)
            marker = None if header is None or not header.control else _marker(header, data)
        except BatchRefused as refused:
            found.damage = f"the batch at offset {found.end}: {refused}"
            break
        # Those that begin with or before this batch.
        while waiting and waiting[-1][0] <= last:
            open_aborted.add(waiting.pop()[1])
        if header is not None and header.control:
            if marker == _ABORT_MARKER:
                open_aborted.discard(producer_id)
        elif (
            header is not None
            and last >= offset
            and not (header.transactional and producer_id in open_aborted)
        ):
            found.batches.append((header, data))
        found.end = max(found.end, last + 1)
        found.leader_epoch = leader_epoch
    return found


def _batches(records: memoryview, found: Committed) -> Iterator[memoryview]:
    at = 0
    while len(records) - at > _MAGIC_AT:
        (length,) = _LENGTH.unpack_from(records, at + LENGTH_END - _LENGTH.size)
        magic = records[at + _MAGIC_AT]
        if magic < BATCH_MAGIC:
            found.is_old = True
            return
        if magic > BATCH_MAGIC or length < BATCH_HEADER.size - LENGTH_END:
            found.damage = f"the batch at offset {found.end} has magic {magic} and declares {length} bytes"
            return
        if length > len(records) - at - LENGTH_END:
            return
        yield records[at : at + LENGTH_END + length]
        at += LENGTH_END + length


def _scan(data: memoryview) -> tuple[int, int, int, int, int]:
    fields = BATCH_HEADER.unpack_from(data)
    return fields[0], fields[2], fields[6], fields[9], fields[12]


def _check_empty(data: memoryview) -> None:
    (checksum,) = _CHECKSUM.unpack_from(data, _CHECKSUM_AT)
    if crc32c(data[CRC_FROM:]) != checksum:
        raise BatchRefused("corrupt_message", "it has no records, and a wrong checksum")


def _marker(header: BatchHeader, data: memoryview) -> int | None:
    """The type of a control record: 0 ends an aborted transaction, 1 a committed one."""
    # Only the first record: a marker is alone in its batch.
    key = next(read_records(header, data, _MARKER_BYTES_MAX)).key
    return None if key is None or len(key) < _NAME.size * 2 else _NAME.unpack_from(key, _NAME.size)[0]


def remove_producer(header: BatchHeader, data: memoryview) -> None:
    """Remove the producer and the transaction of its cluster from a batch, which mean nothing elsewhere.

    In place: a copy of every batch costs more than all else that is done here.
    """
    if header.producer_id == NO_PRODUCER and not header.transactional:
        return
    (attributes,) = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes & ~_TRANSACTIONAL)
    _PRODUCER.pack_into(data, _PRODUCER_AT, NO_PRODUCER, -1, -1)
    _CHECKSUM.pack_into(data, _CHECKSUM_AT, crc32c(data[CRC_FROM:]))
