"""Decompresses the records of Kafka's batches, within a bound (pure)."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from intake.batches.record_fields import PADDING, read_varint

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_READ_BYTES = 1 << 20
_SNAPPY = pa.Codec("snappy")
_SNAPPY_RATIO_MAX = 22
"""Snappy's best element makes 64 bytes of 3."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class TooLarge(Exception):
    """There are more bytes than the bound."""


class BadBlock(Exception):
    """The lengths of the compressed blocks are wrong."""


class BadFrame(Exception):
    """The codec cannot decompress the bytes: they are wrong, or memory is short."""


def uncompressed(codec: Codec, data: memoryview, size_max: int) -> bytes | memoryview:
    """The uncompressed bytes; never allocates much more than `size_max`.

    Raises `TooLarge`, `BadBlock` and `BadFrame`.
    """
    try:
        if codec == "none":
            records: bytes | memoryview = data
        elif codec == "snappy":
            records = _snappy(data, size_max)
        else:
            records = _streamed(codec, data, size_max)
    # Arrow's own error of that name is an `ArrowException` too.
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise BadFrame(f"the records are not valid {codec}: {str(error)[:200]}") from error
    if len(records) > size_max:
        raise TooLarge
    return records


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
            raise BadBlock("the records end within a snappy block")
        records += _snappy_block(data[position : position + block_size], size_max - len(records))
        position += block_size
    return bytes(records)


def _snappy_block(block: memoryview, size_max: int) -> bytes:
    # The length is checked before the memory for it is allocated.
    declared, _ = read_varint(bytes(block[:5]) + PADDING, 0)
    if declared > _SNAPPY_RATIO_MAX * len(block):
        raise BadBlock(
            f"a snappy block of {len(block)} bytes declares {declared} bytes, more than it can hold"
        )
    if declared > size_max:
        raise TooLarge
    return bytes(_SNAPPY.decompress(block, decompressed_size=declared, asbytes=True))
