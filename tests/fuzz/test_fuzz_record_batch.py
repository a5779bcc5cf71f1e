"""Fuzz target: record batches from Kafka producers, with a right checksum around altered bytes.

A batch is decoded or refused, never anything else. Other batches of the call are not affected, and the memory
is bounded by the sizes of the input and the limit.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.kafka.record_batch import encode
from archiver.stream.records import STREAM_SCHEMA
from intake.batches.decoding import BatchRefused, decode, measure, read_header
from intake.records import RECORD_SCHEMA
from tests.support.fuzzing import fuzzing
from tests.support.kafka.record_batches import (
    CODECS,
    RawRecord,
    batch_bytes,
    compressed,
    raw_varint,
    records_bytes,
    varint,
    with_checksum,
)

UNCOMPRESSED_MAX = 1 << 20
ALLOCATED_MAX = 48 << 20
RECORDS = (
    RawRecord(b"key", b"value", (("trace", b"\x01\x02"), ("", None), ("trace", b""))),
    RawRecord(None, b"x" * 100, delta_ms=1 << 40),
    RawRecord(b"", None, (("ünï", b"v" * 70),), delta_ms=-5),
    RawRecord(),
    RawRecord(b"k" * 70, b"v" * 9000),
)


@cache
def valid(count: int) -> bytes:
    return b"".join(records_bytes([RECORDS[place % len(RECORDS)] for place in range(count)]))


GOOD = batch_bytes(valid(20), count=20)
PIECES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.integers(-(1 << 63), 1 << 63).map(varint),
    st.integers(0, 1 << 70).map(raw_varint),
    st.sampled_from(
        [b"\xff" * 9, b"\x80" * 11, b"\x01", b"\x00" * 8, varint((1 << 31) - 1), varint(-(1 << 31))]
    ),
)


@st.composite
def altered(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "set", "insert", "cut", "truncate"]))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            piece = draw(PIECES)
            data[at : at + len(piece)] = piece
        elif kind == "insert":
            data[at:at] = draw(PIECES)
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "truncate":
            del data[at:]
    return bytes(data)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch whose records, compressed bytes or header were altered."""
    count = draw(st.sampled_from([1, 5, 20, 200]))
    codec = draw(st.sampled_from(CODECS))
    records = draw(st.one_of(altered(valid(count)), st.lists(PIECES, max_size=50).map(b"".join)))
    packed = compressed(codec, records)
    if codec != "none" and draw(st.booleans()):
        packed = draw(altered(packed))
    declared = draw(st.sampled_from([count, count, count, count + 1, 1, 1 << 30, -1]))
    data = batch_bytes(
        packed,
        codec=CODECS.index(codec),
        count=declared,
        base_timestamp=draw(st.sampled_from([0, -1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63)])),
    )
    if draw(st.integers(0, 4)) == 0:
        data = draw(altered(data[:61])) + data[61:]
    return with_checksum(data)


BOMB = batch_bytes(compressed("zstd", bytes(16 << 20)), codec=4, count=1)
POOL = pa.proxy_memory_pool(pa.default_memory_pool())
"""Outlives the arrays, which do not keep their pool."""
HEADERS = b"\x00\x00\x00\x01\x01" + varint(300_000) + b"\x00\x01" * 300_000


@fuzzing(4)
@given(st.lists(batches(), min_size=1, max_size=4))
@example([BOMB, batch_bytes(varint(len(HEADERS)) + HEADERS, count=1)])
@example([batch_bytes(b"\x0c\x00\x00\x00\x01\x01\x00" * 140_000, count=140_000, codec=0)])
def test_an_altered_batch_is_decoded_or_refused(inputs: list[bytes]) -> None:
    previous = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    try:
        accepted = []
        for data in inputs:
            try:
                accepted.append((read_header(data), data))
            except BatchRefused:
                continue
        good = (read_header(GOOD), GOOD)
        # Together with the same batches: lengths that lead out of a batch are read in the one after it.
        together = [good, *accepted, good]
        first, *results, last = decode(together, uncompressed_max=UNCOMPRESSED_MAX)
        _, *measured, _ = measure(together, uncompressed_max=UNCOMPRESSED_MAX)
    finally:
        pa.set_memory_pool(previous)
    assert isinstance(first, pa.RecordBatch)
    assert isinstance(last, pa.RecordBatch)
    assert first.num_rows == 20
    assert first.equals(last)
    assert len(results) == len(accepted)
    for (header, _), result, sizes in zip(accepted, results, measured, strict=True):
        assert isinstance(sizes, BatchRefused) == isinstance(result, BatchRefused)
        if isinstance(result, BatchRefused):
            assert str(sizes) == str(result)
            assert len(str(result)) < 400
            assert result.record is None or 0 <= result.record < header.count
        else:
            result.validate(full=True)
            assert result.num_rows == header.count
            assert_encodes_back(result)
    assert (POOL.max_memory() or 0) < ALLOCATED_MAX


def assert_encodes_back(records: pa.RecordBatch) -> None:
    """What was accepted can be served to consumers unchanged."""
    rows = records.num_rows
    assert records.schema.equals(RECORD_SCHEMA)
    key, value, headers, times = records.columns
    offsets = pa.array(range(rows), pa.int64())
    starts = pa.array([0] * rows, pa.int64())
    stream = pa.RecordBatch.from_arrays(
        [offsets, times, starts.cast(times.type), starts, key, value, headers], schema=STREAM_SCHEMA
    )
    (encoded,) = encode(stream)
    (again,) = decode([(read_header(encoded.data), encoded.data)], uncompressed_max=1 << 24)
    assert isinstance(again, pa.RecordBatch)
    assert again.equals(records)
