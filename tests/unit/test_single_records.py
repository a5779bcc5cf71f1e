"""Records read one by one are those that are decoded together; and those that only this way can be read."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from intake.batches.decoding import BatchRefused, decode, decode_with_gaps, read_header
from intake.sources.kafka.single_records import SingleRecord, read_records
from tests.support.kafka.record_batches import (
    CODECS,
    RawRecord,
    batch_bytes,
    blob,
    records_bytes,
    varint,
    with_length,
)

BASE_MS = 1_700_000_000_000
MAX = 2**20


def drawn(chance: random.Random) -> RawRecord:
    def some(size: int) -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(size))])

    headers = tuple(
        (chance.choice(["", "a", "ü" * 70]), some(100)) for _ in range(chance.choice([0, 0, 1, 3]))
    )
    return RawRecord(some(70), some(300), headers, chance.choice([0, 5, -5, 10**9, -BASE_MS - 1]))


def read(data: bytes) -> list[SingleRecord]:
    return list(read_records(read_header(data), memoryview(data), MAX))


@pytest.mark.parametrize("codec", CODECS)
def test_they_are_the_records_that_are_decoded_together(codec: str) -> None:
    chance = random.Random(codec)
    for _ in range(30):
        records = [drawn(chance) for _ in range(chance.randrange(1, 40))]
        data = batch_bytes(records_bytes(records), codec=codec, base_timestamp=BASE_MS)
        (columns,) = decode([(read_header(data), data)], uncompressed_max=10**7)
        assert isinstance(columns, pa.RecordBatch)
        times = columns.column("event_timestamp").cast(pa.int64()).to_pylist()
        expected = [
            (number, None if time is None else time // 1000, row["key"], row["value"], _pairs(row["headers"]))
            for number, (row, time) in enumerate(zip(columns.to_pylist(), times, strict=True))
        ]
        found = [
            (
                one.offset,
                None if one.timestamp_ms == -1 else one.timestamp_ms,
                one.key,
                one.value,
                one.headers,
            )
            for one in read(data)
        ]
        assert found == expected


def _pairs(headers: list[dict[str, Any]]) -> list[tuple[str, bytes | None]]:
    return [(one["key"], one["value"]) for one in headers]


def test_offsets_with_gaps_are_read_and_decoded() -> None:
    bodies = [with_length(RawRecord(value=b"%d" % delta).body(delta)) for delta in (1, 4, 5)]
    data = batch_bytes(bodies, last_offset_delta=7)
    header = replace(read_header(data), base_offset=100)
    found = list(read_records(header, memoryview(data), MAX))
    assert [(one.offset, one.value) for one in found] == [(101, b"1"), (104, b"4"), (105, b"5")]
    whole = batch_bytes(records_bytes([RawRecord(value=b"w")] * 2))
    given = [(read_header(one), one) for one in (data, whole, data)]
    both = decode_with_gaps(given, uncompressed_max=MAX, total_max=10**6)
    assert [one[1].tolist() for one in both if not isinstance(one, BatchRefused)] == [
        [1, 4, 5],
        [0, 1],
        [1, 4, 5],
    ]
    assert not isinstance(both[2], BatchRefused)
    assert both[2][0].column("value").to_pylist() == [b"1", b"4", b"5"]
    assert len(decode_with_gaps(given, uncompressed_max=MAX, total_max=1)) == 1


@pytest.mark.parametrize("deltas", [(1, 1), (2, 1), (0, 9), (-1, 0)])
def test_offsets_that_do_not_ascend_within_the_batch_are_damage(deltas: tuple[int, int]) -> None:
    data = batch_bytes([with_length(RawRecord().body(delta)) for delta in deltas], last_offset_delta=7)
    with pytest.raises(BatchRefused):
        read(data)
    (refused,) = decode_with_gaps([(read_header(data), data)], uncompressed_max=MAX, total_max=10**6)
    assert isinstance(refused, BatchRefused)


def test_a_time_of_the_broker_is_that_of_every_record() -> None:
    records = records_bytes([RawRecord(delta_ms=5), RawRecord(delta_ms=-7)])
    data = batch_bytes(records, flags=0x08, max_timestamp=BASE_MS + 99)
    assert [one.timestamp_ms for one in read(data)] == [BASE_MS + 99] * 2


def test_a_header_whose_name_is_no_text_is_said_and_the_next_record_is_read() -> None:
    bad = b"\x00" + varint(0) + varint(0) + blob(None) + blob(b"v") + varint(1) + blob(b"\xff") + blob(b"x")
    first, second = read(batch_bytes([with_length(bad), with_length(RawRecord(value=b"w").body(1))]))
    assert first.broken is not None and first.headers is None
    assert second.broken is None and second.value == b"w"


def test_bytes_that_are_no_records_are_refused_and_never_read_beyond() -> None:
    chance = random.Random(3)
    good = b"".join(records_bytes([drawn(chance) for _ in range(5)]))
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        wrong = batch_bytes(bytes(data[: chance.randrange(1, len(data) + 1)]), count=5)
        try:
            header = read_header(wrong)
        except BatchRefused:
            continue
        try:
            assert len(list(read_records(header, memoryview(wrong), MAX))) == 5
        except BatchRefused:
            refused += 1
    assert refused > 1000


def test_records_that_become_too_large_are_not_decompressed() -> None:
    data = batch_bytes(records_bytes([RawRecord(value=bytes(2**20))] * 3), codec="zstd")
    assert len(data) < 2000
    with pytest.raises(BatchRefused) as refused:
        next(read_records(read_header(data), memoryview(data), MAX))
    assert refused.value.code == "message_too_large"
    found = decode_with_gaps([(read_header(data), data)], uncompressed_max=MAX, total_max=10**9)
    assert isinstance(found[0], BatchRefused) and found[0].code == "message_too_large"
