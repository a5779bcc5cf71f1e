"""Kafka record batches written field by field from the definition of the format, right or wrong on purpose."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from crc32c import crc32c

XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def varint(value: int) -> bytes:
    """A zigzag varint of any size."""
    return raw_varint((value << 1) if value >= 0 else ((-value << 1) - 1))


def raw_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass(frozen=True)
class RawRecord:
    """A record as it is sent."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    delta_ms: int = 0

    def body(self, offset_delta: int) -> bytes:
        """Without its length."""
        headers = b"".join(blob(name.encode()) + blob(value) for name, value in self.headers)
        return b"".join(
            (
                b"\x00",
                varint(self.delta_ms),
                varint(offset_delta),
                blob(self.key),
                blob(self.value),
                varint(len(self.headers)),
                headers,
            )
        )


def records_bytes(records: Sequence[RawRecord]) -> list[bytes]:
    return [with_length(record.body(delta)) for delta, record in enumerate(records)]


def with_length(body: bytes) -> bytes:
    return varint(len(body)) + body


def slow_crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def batch_bytes(
    records: Sequence[bytes] | bytes,
    *,
    codec: str | int = "none",
    count: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int = 1_700_000_000_000,
    flags: int = 0,
    magic: int = 2,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch; `records` as bytes are compressed already and need a count."""
    if not isinstance(records, bytes):
        count = len(records) if count is None else count
        records = compressed(str(codec), b"".join(records))
    assert count is not None
    number = codec if isinstance(codec, int) else CODECS.index(codec)
    last = count - 1 if last_offset_delta is None else last_offset_delta
    rest = struct.pack(">hiqqqhii", number | flags, last, base_timestamp, max_timestamp, *producer, count)
    rest += records
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, magic, crc32c(rest)) + rest


def with_checksum(data: bytes) -> bytes:
    """The same with a right length and checksum."""
    if len(data) < 21:
        return data
    return (
        data[:8]
        + struct.pack(">i", len(data) - 12)
        + data[12:17]
        + struct.pack(">I", crc32c(data[21:]))
        + data[21:]
    )


def compressed(codec: str, data: bytes) -> bytes:
    """As one frame, and with snappy as snappy-java's blocks."""
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        return XERIAL + b"".join(
            struct.pack(">i", len(block)) + block
            for block in (snappy(data[at : at + 32768]) for at in range(0, len(data), 32768))
        )
    assert codec in ("lz4", "zstd")
    return stream_compressed("lz4" if codec == "lz4" else "zstd", data)


def snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True))


def stream_compressed(codec: Literal["lz4", "zstd"], data: bytes) -> bytes:
    """One frame of lz4 or zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())
