"""Record batches of Kafka: what clients write is read, what they may not write is refused, and they read ours.

Judges are the format's definition (`tests.support.kafka.record_batches`, golden bytes) and two clients with
their own implementations: aiokafka (Cython) and kafka-python.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder
from kafka.record.memory_records import MemoryRecords as PythonRecords

from archiver.kafka import record_batch
from archiver.kafka.record_batch import encode
from archiver.stream.records import STREAM_SCHEMA
from intake.batches import decoding, record_fields
from intake.batches.decoding import BatchRefused, Measured, decode, measure, read_header
from intake.records import RECORD_SCHEMA, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, normalise_batch
from tests.support.kafka.record_batches import (
    CODECS,
    XERIAL,
    RawRecord,
    batch_bytes,
    compressed,
    raw_varint,
    records_bytes,
    slow_crc32c,
    snappy,
    stream_compressed,
    varint,
    with_length,
)

BASE_MS = 1_700_000_000_000
MAX = 1 << 24
POOL = pa.proxy_memory_pool(pa.default_memory_pool())
"""Outlives the arrays, which do not keep their pool."""

# Timestamp in ms (None: no timestamp), key, value, headers.
Row = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def decoded(*batches: bytes, uncompressed_max: int = MAX) -> list[pa.RecordBatch | BatchRefused]:
    return decode([(read_header(data), data) for data in batches], uncompressed_max=uncompressed_max)


def rows_of(result: pa.RecordBatch | BatchRefused) -> list[Row]:
    assert isinstance(result, pa.RecordBatch), result
    assert result.schema.equals(RECORD_SCHEMA)
    result.validate(full=True)
    columns: Any = result
    times = columns.column("event_timestamp").cast(pa.int64()).to_pylist()
    return [
        (None if time is None else time // 1000, key, value, [(h["key"], h["value"]) for h in headers])
        for time, key, value, headers in zip(
            times, *(columns.column(name).to_pylist() for name in ("key", "value", "headers")), strict=True
        )
    ]


def refusal(data: bytes, *, uncompressed_max: int = MAX) -> BatchRefused:
    """Of the header or of the records."""
    try:
        (result,) = decoded(data, uncompressed_max=uncompressed_max)
    except BatchRefused as refused:
        return refused
    assert isinstance(result, BatchRefused), rows_of(result)
    return result


def random_bytes(rng: random.Random) -> bytes | None:
    kind = rng.random()
    if kind < 0.15:
        return None
    if kind < 0.3:
        return b""
    return rng.randbytes(
        rng.choice([1, 3, 11, 12, 13, 62, 63, 64, 65, 200, 9000] if kind > 0.9 else [5, 20, 90])
    )


def random_rows(rng: random.Random, count: int, headers: bool = True) -> list[Row]:
    return [
        (
            rng.choice([None, BASE_MS, BASE_MS + rng.randint(-10, 10), rng.randint(0, 2 * BASE_MS), 0]),
            random_bytes(rng),
            random_bytes(rng),
            [
                (rng.choice(["", "a", "a", "ünï", "n" * 70]), random_bytes(rng))
                for _ in range(rng.choice([0, 0, 1, 2, 5]) if headers else 0)
            ],
        )
        for _ in range(count)
    ]


def written(builder: Any, rows: Sequence[Row]) -> bytes:
    """A batch as a client's own code writes it."""
    for offset, (time, key, value, headers) in enumerate(rows):
        assert builder.append(offset, -1 if time is None else time, key, value, headers) is not None
    return bytes(builder.build())


CLIENTS = (AioRecords, PythonRecords)


def read_by(client: Any, data: bytes) -> list[tuple[int, Row]]:
    """Offsets and records as a client's own code reads batches."""
    found: list[tuple[int, Row]] = []
    batches = client(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        assert not batch.is_control_batch
        before = len(found)
        for record in batch:
            time = None if record.timestamp == -1 else record.timestamp
            found.append((record.offset, (time, record.key, record.value, list(record.headers))))
        assert batch.next_offset == found[-1][0] + 1
        assert batch.max_timestamp == max(-1 if row[0] is None else row[0] for _, row in found[before:])
    return found


# --- What clients write

GOLDEN_ROWS: list[Row] = [
    (1_000, b"k", b"value", []),
    (None, None, None, [("h", b""), ("h", None)]),
    (1_300, b"", b"", []),
]
GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000054"  # bytes after this field
    "ffffffff"  # leader epoch
    "02"  # magic
    "f526ce50"  # CRC-32C
    "0010"  # attributes: transactional
    "00000002"  # last offset delta
    "00000000000003e8"  # base timestamp
    "0000000000000514"  # max timestamp
    "0000000000000007"  # producer id
    "0003"  # producer epoch
    "0000002a"  # base sequence
    "00000003"  # records
    # length 12, attributes, timestamp +0, offset +0, key of 1, value of 5, no headers
    "18 00 00 00 02 6b 0a 76616c7565 00"
    # length 13, attributes, timestamp -1001, offset +1, null key, null value, 2 headers
    "1a 00 d10f 02 01 01 04 02 68 00 02 68 01"
    # length 7, attributes, timestamp +300, offset +2, empty key, empty value, no headers
    "0e 00 d804 04 00 00 00"
)


def test_golden_bytes_written_by_hand() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283
    assert slow_crc32c(GOLDEN[21:]) == int.from_bytes(GOLDEN[17:21], "big")
    header = read_header(GOLDEN)
    assert (header.size, header.codec, header.count, header.last_offset_delta) == (len(GOLDEN), "none", 3, 2)
    assert (header.transactional, header.control, header.log_append_time) == (True, False, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 42)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.leader_epoch) == (1000, 1300, -1)
    (result,) = decoded(GOLDEN)
    assert rows_of(result) == GOLDEN_ROWS
    assert [read_by(client, GOLDEN) for client in CLIENTS] == [[*enumerate(GOLDEN_ROWS)]] * 2


def test_what_aiokafka_and_kafka_python_write_is_read() -> None:
    rng = random.Random(1)
    batches, expected = [], []
    for count in (1, 2, 70, 300):
        for codec in (0, 1):
            # aiokafka takes a first timestamp of -1 for none yet.
            rows = [(BASE_MS, b"first", None, []), *random_rows(rng, count - 1)]
            batches.append(written(AioBuilder(2, codec, 0, -1, -1, -1, 1 << 30), rows))
            expected.append(rows)
        # kafka-python writes gzip, lz4 and zstd with the libraries of its users.
        for codec in (0, 1, 3, 4):
            rows = random_rows(rng, count)
            batches.append(written(PythonBuilder(2, codec, True, 5, 6, 7, 1 << 30), rows))
            expected.append(rows)
            assert read_header(batches[-1]).producer_id == 5
    assert {read_header(data).codec for data in batches} == {"none", "gzip", "lz4", "zstd"}
    assert [rows_of(result) for result in decoded(*batches)] == expected


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec: str) -> None:
    records = [RawRecord(b"key", b"value" * place, (("h", b"x"),), place) for place in range(2000)]
    (result,) = decoded(batch_bytes(records_bytes(records), codec=codec))
    assert rows_of(result) == [
        (BASE_MS + record.delta_ms, record.key, record.value, [*record.headers]) for record in records
    ]


def frames_of(codec: str, parts: Sequence[bytes]) -> bytes:
    if codec == "xerial":
        # The header is repeated where streams of snappy-java were joined.
        return b"".join(XERIAL + struct.pack(">i", len(snappy(part))) + snappy(part) for part in parts)
    if codec == "xerial-blocks":
        return XERIAL + b"".join(struct.pack(">i", len(snappy(part))) + snappy(part) for part in parts)
    if codec == "raw-snappy":
        return snappy(b"".join(parts))
    return b"".join(compressed(codec, part) for part in parts)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "xerial", "xerial-blocks", "raw-snappy"])
def test_several_frames_and_both_forms_of_snappy(codec: str) -> None:
    parts = records_bytes([RawRecord(value=bytes([place]) * 50) for place in range(10)])
    number = 2 if "snappy" in codec or "xerial" in codec else CODECS.index(codec)
    data = batch_bytes(frames_of(codec, [parts[0], b"".join(parts[1:7]), *parts[7:]]), codec=number, count=10)
    (result,) = decoded(data)
    assert [row[2] for row in rows_of(result)] == [bytes([place]) * 50 for place in range(10)]


def test_timestamps_of_any_delta() -> None:
    longest = (1 << 63) - 1
    for base, delta, expected in (
        (0, -1, None),
        (-1, 0, None),
        (BASE_MS, 0, BASE_MS),
        (TIMESTAMP_MAX_US // 1000, 0, TIMESTAMP_MAX_US // 1000),
        (TIMESTAMP_MIN_US // 1000, 0, TIMESTAMP_MIN_US // 1000),
        # Deltas of nine and ten bytes.
        (-longest, longest, 0),
        (1 << 61, -(1 << 61) + 5, 5),
        (longest, -longest, 0),
        (-longest - 1, longest, None),
    ):
        data = batch_bytes(records_bytes([RawRecord(delta_ms=delta)]), base_timestamp=base)
        assert rows_of(decoded(data)[0])[0][0] == expected, (base, delta)
    for base, delta in (
        (TIMESTAMP_MAX_US // 1000, 1),
        (TIMESTAMP_MIN_US // 1000, -1),
        (longest, 1),
        # Sums that overflow into the range.
        (longest, longest),
        (-longest - 1, -longest - 1),
        (0, -longest - 1),
    ):
        refused = refusal(batch_bytes(records_bytes([RawRecord(delta_ms=delta)]), base_timestamp=base))
        assert refused.code == "invalid_timestamp", (base, delta)


def test_longer_varints_than_needed_are_read() -> None:
    """Java accepts them."""
    zero_10, zero_5, null_2 = b"\x80" * 9 + b"\x00", b"\x80\x80\x80\x80\x00", b"\x81\x00"
    body = b"\x00" + zero_10 + zero_5 + null_2 + null_2 + zero_5
    length = bytes([2 * len(body) | 128, 0x80, 0])
    (result,) = decoded(batch_bytes([length + body]))
    assert rows_of(result) == [(BASE_MS, None, None, [])]


# --- What is refused


def one(body: bytes, **fields: Any) -> bytes:
    return batch_bytes([with_length(body)], **fields)


GOOD = RawRecord(b"key", b"value", (("name", b"x"), ("", None))).body(0)
BAD_RECORDS = {
    "empty": b"",
    "record length too small": varint(len(GOOD) - 1) + GOOD,
    "record length too large": varint(len(GOOD) + 1) + GOOD,
    "record length negative": varint(-len(GOOD)) + GOOD,
    "record length of six bytes": b"\xff\xff\xff\xff\xff\x01" + GOOD,
    "record length beyond the data": varint((1 << 31) - 1) + GOOD,
    "byte left in the record": with_length(GOOD + b"\x00"),
    "byte left in a record without headers": with_length(RawRecord(b"key").body(0) + b"\x00"),
    "byte left in the batch": with_length(GOOD) + b"\x00",
    "key length -2": with_length(b"\x00\x00\x00" + varint(-2) + varint(0) + varint(0)),
    "key length beyond": with_length(b"\x00\x00\x00" + varint(100) + varint(0) + varint(0)),
    "key length maximal": with_length(b"\x00\x00\x00" + varint((1 << 31) - 1) + varint(0) + varint(0)),
    "key length over 32 bits": with_length(b"\x00\x00\x00" + raw_varint(1 << 32) + varint(0) + varint(0)),
    "key length of six bytes": with_length(
        b"\x00\x00\x00" + b"\x80\x80\x80\x80\x80\x00" + varint(0) + varint(0)
    ),
    "value length -2": with_length(b"\x00\x00\x00" + varint(0) + varint(-2) + varint(0)),
    "value length beyond": with_length(b"\x00\x00\x00" + varint(0) + varint(7) + varint(0)),
    "timestamp of eleven bytes": with_length(b"\x00" + b"\x80" * 10 + b"\x00" + b"\x00\x01\x01\x00"),
    "timestamp over 64 bits": with_length(b"\x00" + b"\x80" * 9 + b"\x02" + b"\x00\x01\x01\x00"),
    "header count -1": with_length(b"\x00\x00\x00\x01\x01" + varint(-1)),
    "header count beyond": with_length(b"\x00\x00\x00\x01\x01" + varint(2) + b"\x00\x01"),
    "header count maximal": with_length(b"\x00\x00\x00\x01\x01" + varint((1 << 31) - 1) + b"\x00\x01"),
    "header count too small": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + b"\x00\x01\x00\x01"),
    "header name null": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + b"\x01\x01"),
    "header name beyond": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + varint(9) + b"\x01"),
    "header name to the end": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + varint(1) + b"n"),
    "header name length of six bytes": with_length(
        b"\x00\x00\x00\x01\x01" + varint(1) + b"\x80\x80\x80\x80\x80\x00" + b"\x01"
    ),
    "header value length -2": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + b"\x00" + varint(-2)),
    "header value length -2 and a byte": with_length(
        b"\x00\x00\x00\x01\x01" + varint(1) + b"\x00" + varint(-2) + b"a"
    ),
    "header name maximal before another": with_length(
        b"\x00\x00\x00\x01\x01" + varint(2) + varint((1 << 31) - 1) + b"\x01\x00\x01"
    ),
    "header value beyond": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + b"\x00" + varint(3) + b"ab"),
    "header name not UTF-8": with_length(b"\x00\x00\x00\x01\x01" + varint(1) + varint(2) + b"\xc3\x28\x01"),
    "header name half a surrogate": with_length(
        b"\x00\x00\x00\x01\x01" + varint(1) + varint(3) + b"\xed\xa0\x80\x01"
    ),
    "offset delta 1": with_length(RawRecord(b"key").body(1)),
    "offset delta -1": with_length(RawRecord(b"key").body(-1)),
}


@pytest.mark.parametrize("what", BAD_RECORDS)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_bad_record_is_refused_and_spoils_no_other_batch(what: str, codec: str) -> None:
    good = batch_bytes(records_bytes([RawRecord(b"k%d" % place, b"v", (("a", b"b"),)) for place in range(3)]))
    data = batch_bytes(compressed(codec, BAD_RECORDS[what]), codec=codec and CODECS.index(codec), count=1)
    refused = refusal(data)
    assert refused.code == "invalid_record"
    assert refused.record in ((None,) if not BAD_RECORDS[what] else (0,))
    # Where the header shows it already, there is nothing to decode.
    if not BAD_RECORDS[what] and codec == "none":
        return
    header = read_header(data)
    results = decode(
        [(read_header(good), good), (header, data), (read_header(good), good)], uncompressed_max=MAX
    )
    assert isinstance(results[1], BatchRefused)
    assert str(results[1]) == str(refused)
    (alone,) = decoded(good)
    assert [rows_of(results[0]), rows_of(results[2])] == [rows_of(alone)] * 2


def test_the_first_bad_record_is_named() -> None:
    records = records_bytes([RawRecord(b"k", b"v") for _ in range(300)])
    records[120] = with_length(RawRecord(b"k").body(121))
    records[200] = with_length(b"\x00\x00\x90\x03" + varint(-5) + b"\x00\x00")
    refused = refusal(batch_bytes(records))
    assert (refused.record, refused.code) == (120, "invalid_record")
    assert "record 120" in str(refused)
    assert "offset delta" in str(refused)
    records[7] = with_length(b"\x00\x00" + varint(7) + b"\x01\x01" + varint(1) + varint(1) + b"\xff\x01")
    refused = refusal(batch_bytes(records))
    assert refused.record == 7
    assert "UTF-8" in str(refused)


def test_a_batch_whose_header_is_wrong_is_refused() -> None:
    good = records_bytes([RawRecord(b"key", b"value"), RawRecord()])
    data = batch_bytes(good)
    corrupt = bytearray(data)
    corrupt[-3] ^= 1
    for bad, code in (
        (b"", "invalid_record"),
        (data[:60], "invalid_record"),
        (data[:-1], "invalid_record"),
        (data + b"\x00", "invalid_record"),
        (data + data, "invalid_record"),
        (bytes(corrupt), "corrupt_message"),
        (batch_bytes(good, magic=0), "unsupported_for_message_format"),
        (batch_bytes(good, magic=1), "unsupported_for_message_format"),
        (batch_bytes(good, magic=3), "invalid_record"),
        (batch_bytes(b"".join(good), codec=5, count=2), "unsupported_compression_type"),
        (batch_bytes(b"".join(good), codec=7, count=2), "unsupported_compression_type"),
        (batch_bytes([]), "invalid_record"),
        (batch_bytes(good, count=0), "invalid_record"),
        (batch_bytes(good, count=-1), "invalid_record"),
        (batch_bytes(good, count=1), "invalid_record"),
        (batch_bytes(good, count=3), "invalid_record"),
        (batch_bytes(good, count=(1 << 31) - 1), "invalid_record"),
        (batch_bytes(good, codec="zstd", count=(1 << 31) - 1), "invalid_record"),
        (batch_bytes(good, last_offset_delta=2), "invalid_record"),
        (batch_bytes(good, last_offset_delta=0), "invalid_record"),
        (batch_bytes(good, flags=0x20), "invalid_record"),
        (batch_bytes(good, flags=0x08), "invalid_timestamp"),
    ):
        assert refusal(bad).code is code, bad.hex()
    # Magic 0 and 1 have shorter messages.
    assert refusal(data[:16] + b"\x01" + b"\x00" * 5).code == "unsupported_for_message_format"


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_records_that_cannot_be_decompressed_are_refused(codec: str) -> None:
    whole = compressed(codec, b"".join(records_bytes([RawRecord(value=b"value" * 99)] * 9)))
    for data in (
        b"",
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"\x01",
        b"\xff" * 40,
        whole[:9] + whole[8:],
    ):
        refused = refusal(batch_bytes(data, codec=CODECS.index(codec), count=9))
        assert refused.code == "invalid_record"


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy", "raw-snappy"])
def test_decompression_is_bounded(codec: str) -> None:
    limit = 1 << 20
    number = 2 if "snappy" in codec else CODECS.index(codec)
    make = snappy if codec == "raw-snappy" else lambda data: compressed(codec, data)
    for size, fits in ((limit, True), (limit + 1, False)):
        # The lengths of the record and of the value have three bytes each.
        value = bytes(size - 11)
        record = with_length(RawRecord(value=value).body(0))
        assert len(record) == size
        data = batch_bytes(make(record), codec=number, count=1)
        if fits:
            assert rows_of(decoded(data, uncompressed_max=limit)[0])[0][2] == value
        else:
            assert refusal(data, uncompressed_max=limit).code == "message_too_large"


def test_a_decompression_bomb_allocates_little() -> None:
    block = snappy(bytes(1 << 20))
    bombs = [
        batch_bytes(XERIAL + (struct.pack(">i", len(block)) + block) * 40, codec=2, count=1),
        batch_bytes(stream_compressed("zstd", bytes(256 << 20)), codec=4, count=1),
        batch_bytes(compressed("gzip", bytes(64 << 20)), codec=1, count=1),
        batch_bytes(raw_varint(1 << 31) + bytes(20), codec=2, count=1),
        batch_bytes(raw_varint(1 << 20) + bytes(20), codec=2, count=1),
        batch_bytes(XERIAL + struct.pack(">i", 20) + raw_varint(1 << 20) + bytes(17), codec=2, count=1),
    ]
    previous = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    tracemalloc.start()
    try:
        codes = [refusal(data, uncompressed_max=4 << 20).code for data in bombs]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(previous)
    assert codes == ["message_too_large"] * 3 + ["invalid_record"] * 3
    assert peak + (POOL.max_memory() or 0) < 16 << 20


# --- Many at once


def test_many_batches_at_once_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    batches = []
    for place in range(300):
        records = [
            RawRecord(key, value, tuple(headers))
            for _, key, value, headers in random_rows(rng, rng.choice([1, 2, 30]), headers=place % 3 == 0)
        ]
        parts = records_bytes(records)
        if place % 10 == 9:
            at = rng.randrange(len(parts))
            broken = bytearray(parts[at])
            broken[rng.randrange(4)] ^= 2
            parts[at] = bytes(broken)
        batches.append(batch_bytes(parts, codec=rng.choice(CODECS)))
    # A long batch goes on when all others are finished.
    batches.append(batch_bytes(records_bytes([RawRecord(b"%d" % place) for place in range(3000)])))

    def outcome(result: pa.RecordBatch | BatchRefused) -> Any:
        if isinstance(result, BatchRefused):
            return result.code, result.record, str(result)
        return rows_of(result)

    alone = [outcome(decoded(data)[0]) for data in batches]
    assert 10 <= sum(isinstance(result, tuple) for result in alone) <= 30
    assert [outcome(result) for result in decoded(*batches)] == alone
    monkeypatch.setattr(decoding, "_GROUP_ROWS", 7)
    monkeypatch.setattr(decoding, "_GROUP_BYTES", 20_000)
    assert [outcome(result) for result in decoded(*batches)] == alone
    monkeypatch.setattr(record_fields, "_RECORDS_OF_STEP", 1)
    monkeypatch.setattr(record_fields, "_LOCKSTEP_ROWS", 1)
    assert [outcome(result) for result in decoded(*batches)] == alone
    assert decode([], uncompressed_max=MAX) == []


@pytest.mark.parametrize("group_rows", [1 << 16, 7])
def test_measuring_refuses_the_same_batches_and_counts_the_same_bytes(
    group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    batches = []
    for place in range(200):
        rows = random_rows(rng, rng.choice([1, 2, 30]), headers=place % 3 == 0)
        parts = records_bytes([RawRecord(key, value, tuple(headers)) for _, key, value, headers in rows])
        if place % 10 == 9:
            at = rng.randrange(len(parts))
            broken = bytearray(parts[at])
            broken[rng.randrange(4)] ^= 2
            parts[at] = bytes(broken)
        batches.append(batch_bytes(parts, codec=rng.choice(CODECS)))
    monkeypatch.setattr(decoding, "_GROUP_ROWS", group_rows)
    headed = [(read_header(data), data) for data in batches]
    refused = 0
    for result, sizes in zip(decoded(*batches), measure(headed, uncompressed_max=MAX), strict=True):
        if isinstance(result, BatchRefused):
            assert isinstance(sizes, BatchRefused)
            assert (sizes.code, sizes.record, str(sizes)) == (result.code, result.record, str(result))
            refused += 1
            continue
        normal = normalise_batch(result, MAX)
        heaviest = int(normal.weights.argmax())
        assert sizes == Measured(
            int(normal.raw_bytes.sum()),
            int(normal.weights.sum()),
            heaviest,
            int(normal.weights[heaviest]),
            int(normal.raw_bytes[heaviest]),
            result.column("event_timestamp").null_count > 0,
        )
    assert refused >= 5
    assert len(measure(headed, uncompressed_max=MAX, total_max=1)) == 1


@pytest.mark.parametrize("rows", [1, 500])
@pytest.mark.parametrize("what", [what for what in BAD_RECORDS if "header" in what])
def test_bad_headers_are_found_at_every_place(what: str, rows: int) -> None:
    """The first headers of many records are read in numpy, the last ones of few records in a loop."""
    headers: tuple[tuple[str, bytes | None], ...] = (("trace", b"x" * 16), ("", None), ("n" * 100, b""))
    records = [RawRecord(b"k", b"v", headers[: 1 + place % 3]).body(place) for place in range(rows)]
    good = batch_bytes([with_length(body) for body in records])
    assert [len(row[3]) for row in rows_of(decoded(good)[0])] == [1 + place % 3 for place in range(rows)]
    bad_body = BAD_RECORDS[what][len(varint(len(BAD_RECORDS[what]))) :]
    for at in (0, rows // 2, rows - 1):
        body = bad_body[:2] + varint(at) + bad_body[3:]
        parts = [with_length(body) for body in [*records[:at], body, *records[at + 1 :]]]
        refused = refusal(batch_bytes(parts))
        assert (refused.record, refused.code) == (at, "invalid_record")


def test_a_record_can_have_many_headers_but_not_without_bound() -> None:
    headers = tuple((f"name {place}", b"%d" % place) for place in range(70_000))
    (result,) = decoded(batch_bytes(records_bytes([RawRecord(headers=headers), RawRecord(b"key")])))
    assert [row[3] for row in rows_of(result)] == [[*headers], []]
    data = batch_bytes(records_bytes([RawRecord(headers=(("", None),) * 1025)]))
    refused = refusal(data, uncompressed_max=16 * 1024)
    assert (refused.code, refused.record) == ("message_too_large", 0)
    assert rows_of(decoded(data, uncompressed_max=16 * 1025)[0])[0][3] == [("", None)] * 1025


def test_headers_are_bounded_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records with few headers each take as much memory as one with many."""
    monkeypatch.setattr(decoding, "HEADERS_MAX", 100)
    bare = RawRecord(b"key")

    def batch(*counts: int) -> bytes:
        return batch_bytes(
            records_bytes([RawRecord(headers=(("", None),) * count) if count else bare for count in counts])
        )

    good = [batch(40, 0, 60, 0), batch(0), batch(100), batch(*[1] * 100)]
    over = [(batch(40, 0, 60, 0, 1, 0), 4), (batch(101), 0), (batch(*[1] * 300), 100)]
    alone = [rows_of(decoded(data)[0]) for data in good]
    for rows in (1 << 16, 7):
        monkeypatch.setattr(decoding, "_GROUP_ROWS", rows)
        results = decoded(good[0], over[0][0], good[1], over[1][0], over[2][0], good[2], good[3])
        assert [rows_of(results[place]) for place in (0, 2, 5, 6)] == alone
        for place, (_, record) in zip((1, 3, 4), over, strict=True):
            refused = results[place]
            assert isinstance(refused, BatchRefused)
            assert (refused.code, refused.record) == ("message_too_large", record)
    # The last records of the first batch, which has no headers left, are in a portion with others that have.
    monkeypatch.setattr(decoding, "_GROUP_ROWS", 4)
    first, *others = decoded(over[0][0], batch(0), batch(1))
    assert isinstance(first, BatchRefused) and first.record == over[0][1]
    assert [len(rows_of(one)) for one in others] == [1, 1]


def test_a_bound_of_all_records_ends_the_decoding_early() -> None:
    batches = [batch_bytes(records_bytes([RawRecord(b"k", b"v" * 1000)]), codec="zstd") for _ in range(5)]
    bad = batch_bytes(b"\x00" * 20, count=1)
    pairs = [(read_header(data), data) for data in [bad, *batches]]

    def results(total_max: int) -> list[int]:
        found = decode(pairs, uncompressed_max=MAX, total_max=total_max)
        return [0 if isinstance(one, BatchRefused) else one.num_rows for one in found]

    assert results(1) == [0]
    assert results(21) == [0, 1]
    assert results(1021) == [0, 1]
    assert results(1100) == [0, 1, 1]
    assert results(1 << 30) == [0, 1, 1, 1, 1, 1]


# --- What consumers get


def stream(rows: Sequence[Row], offsets: Sequence[int], starts: Sequence[int | None]) -> pa.RecordBatch:
    times: list[Any] = [None if row[0] is None else row[0] * 1000 + 999 for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([0] * len(rows), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(starts, pa.int64()),
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], pa.binary()),
            pa.array(
                [[{"key": name, "value": value} for name, value in row[3]] for row in rows],
                STREAM_SCHEMA.field("headers").type,
            ),
        ],
        schema=STREAM_SCHEMA,
    )


@pytest.mark.parametrize("headers", [True, False])
def test_clients_read_what_is_encoded(headers: bool) -> None:
    rng = random.Random(3)
    for _ in range(20):
        count = rng.choice([1, 2, 50, 400])
        rows = random_rows(rng, count, headers)
        offset = rng.choice([0, 1 << 40])
        offsets: list[int] = []
        starts: list[int | None] = []
        start: int | None = None
        for _ in rows:
            # Gaps inside batches, and batches whose first records are missing.
            offset += rng.choice([1, 1, 1, 2, 100, 70_000])
            if not offsets or rng.random() < 0.1:
                start = rng.choice([None, offset, offset - min(offset, rng.choice([1, 50]))])
                if start is not None and offsets and start <= offsets[-1]:
                    start = offset
            offsets.append(offset)
            starts.append(start)
        batch = stream(rows, offsets, starts)
        for part, first in ((batch, 0), (batch.slice(count // 2), count // 2)):
            encoded = encode(part)
            data = b"".join(one.data for one in encoded)
            expected = [*zip(offsets, rows, strict=True)][first:]
            for client in CLIENTS:
                assert read_by(client, data) == expected
            for one in encoded:
                header = read_header(one.data)
                assert (header.base_offset, header.count) == (one.base_offset, one.records)
                assert header.base_offset + header.last_offset_delta == one.last_offset
                assert header.max_timestamp_ms == one.max_timestamp_ms
                assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
            known = [start for start in starts[first:] if start is not None]
            assert {*known} <= {one.base_offset for one in encoded}


def test_what_is_encoded_is_decoded() -> None:
    rng = random.Random(4)
    rows = random_rows(rng, 500)
    (one,) = encode(stream(rows, range(7, 507), [7] * 500))
    assert rows_of(decoded(one.data)[0]) == rows


def spans(batch: pa.RecordBatch, **bounds: Any) -> list[tuple[int, int, int]]:
    return [(one.base_offset, one.last_offset, one.records) for one in encode(batch, **bounds)]


def test_each_batch_of_a_producer_is_one_batch() -> None:
    row: Row = (BASE_MS, b"k", b"v" * 100, [])

    def given(
        offsets: Sequence[int], starts: Sequence[int | None], **bounds: int
    ) -> list[tuple[int, int, int]]:
        return spans(stream([row] * len(offsets), offsets, starts), **bounds)

    assert given([], []) == []
    assert given([5, 6, 7, 9], [5, 5, 7, 7]) == [(5, 6, 2), (7, 9, 2)]
    # A reader that starts inside gets the whole batch: its base offset is that of the producer's.
    assert given([6, 8], [5, 5]) == [(5, 8, 2)]
    # Without batches: consecutive offsets, up to the bounds, which known batches ignore.
    assert given([5, 6, 8, 9], [None] * 4) == [(5, 6, 2), (8, 9, 2)]
    assert given(range(5), [None] * 5, rows_max=2) == [(0, 1, 2), (2, 3, 2), (4, 4, 1)]
    assert given(range(5), [None] * 5, bytes_max=300) == [(0, 1, 2), (2, 3, 2), (4, 4, 1)]
    assert given(range(5), [None] * 5, bytes_max=1) == [(place, place, 1) for place in range(5)]
    assert given(range(5), [0] * 5, rows_max=1, bytes_max=1) == [(0, 4, 5)]
    assert given([3, 4, 5], [3, None, None]) == [(3, 3, 1), (4, 5, 2)]
    # A delta has 31 bits.
    far = (1 << 31) - 1
    assert given([0, far], [0, 0]) == [(0, far, 2)]
    assert given([0, far + 1, far + 2], [0, 0, 0]) == [(0, 0, 1), (far + 1, far + 2, 2)]
    assert given([far + 1], [0]) == [(far + 1, far + 1, 1)]


def test_a_large_batch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "SIZE_MAX", 1000)
    rows: list[Row] = [(BASE_MS, None, bytes(300), [])] * 7
    assert spans(stream(rows, range(7), [0] * 7)) == [(0, 1, 2), (2, 3, 2), (4, 5, 2), (6, 6, 1)]


def test_append_times_are_in_batches_of_one_time() -> None:
    """A client gives each record of such a batch the newest time of the batch."""
    times = [5, 5, 7, 7, 8, 9, 9, 1, 2]
    rows: list[Row] = [(BASE_MS + one, b"k", None, []) for one in times]
    starts: list[int | None] = [10, 10, 10, None, None, 15, 15, 15, 15]
    batch = stream(rows, range(10, 19), starts)
    types = np.array([False, True, True, True, True, True, True, False, False])
    encoded = encode(batch, append_times=types)
    assert [(one.base_offset, one.last_offset) for one in encoded] == [
        (10, 10),
        (11, 11),
        (12, 12),
        (13, 13),
        (14, 14),
        (15, 16),
        (17, 18),
    ]
    headers = [read_header(one.data) for one in encoded]
    assert [one.log_append_time for one in headers] == [False, True, True, True, True, True, False]
    data = b"".join(one.data for one in encoded)
    for client in CLIENTS:
        assert read_by(client, data) == [*zip(range(10, 19), rows, strict=True)]
    judged: Any = AioRecords(encoded[5].data).next_batch()
    assert [record.timestamp_type for record in judged] == [1, 1]
    # Without the types these are the batches of the producers.
    assert [one.base_offset for one in encode(batch)] == [10, 13, 15]


def test_timestamps_that_consumers_see() -> None:
    rows: list[Row] = [(None, None, None, []), (BASE_MS, None, None, []), (None, None, None, [])]
    (one,) = encode(stream(rows, [0, 1, 2], [0, 0, 0]))
    assert one.max_timestamp_ms == BASE_MS
    for client in CLIENTS:
        assert read_by(client, one.data) == [*enumerate(rows)]
    (one,) = encode(stream(rows[:1], [0], [0]))
    assert (one.max_timestamp_ms, read_header(one.data).base_timestamp_ms) == (-1, -1)
    for power in range(47):
        deltas: list[Row] = [(time, None, None, []) for time in (0, 1 << power, -(1 << power) - 1)]
        (one,) = encode(stream(deltas, [0, 1, 2], [0, 0, 0]))
        assert read_by(PythonRecords, one.data) == [*enumerate(deltas)]
    far: list[Row] = [
        (TIMESTAMP_MIN_US // 1000, None, None, []),
        (TIMESTAMP_MAX_US // 1000, None, None, []),
        (TIMESTAMP_MIN_US // 1000, None, None, []),
    ]
    (one,) = encode(stream(far, [0, 1, 2], [0, 0, 0]))
    assert read_by(PythonRecords, one.data) == [*enumerate(far)]
