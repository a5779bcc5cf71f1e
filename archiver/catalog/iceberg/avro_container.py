"""Checks an Avro container before a decoder reads it, and decompresses it within a bound.

Manifests and manifest lists are remote bytes, and pyiceberg's decoder trusts them. After `plain`, each block
is complete, its size is within the bound, and no element of an array or map is empty. Pure.
"""

from __future__ import annotations

import bz2
import io
import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

from archiver.runtime.redaction import excerpt

MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_CODEC: Final = b"avro.codec"
_SCHEMA: Final = b"avro.schema"
# Ten bytes of seven bits hold 64 bits.
_VARINT_BYTES_MAX: Final = 10
_HEADER_ENTRIES_MAX: Final = 10_000
ENTRY_BYTES_MIN: Final = 64
"""The bound in bytes allows one entry for each so many. Decoded, an entry takes 600 bytes of memory, though
it may have only 12 bytes here. Entries with a path, sizes and bounds have more than 100."""
_DEPTH_MAX: Final = 64
"""Nesting of a schema. That of a manifest is 6."""


class DamagedContainer(ValueError):
    """The bytes are no complete Avro container, or one that no manifest needs."""


@dataclass(frozen=True, slots=True)
class Container:
    """A checked container."""

    header: dict[bytes, bytes]
    """Its metadata, `avro.schema` among them."""
    sync: bytes
    blocks: tuple[tuple[int, bytes], ...]
    """Number of entries, and their bytes without compression."""


def container_of(data: bytes, bytes_max: int) -> Container:
    """The parts of a container. Raises `DamagedContainer`; `bytes_max` bounds the blocks' bytes without
    compression, and their entries.
    """
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC:
        raise DamagedContainer("it is no Avro file")
    header = _header(reader)
    sync = reader.take(_SYNC_BYTES)
    _check_schema(header.get(_SCHEMA, b""))
    codec, left, entries_left = header.get(_CODEC, b"null"), bytes_max, bytes_max // ENTRY_BYTES_MIN
    blocks: list[tuple[int, bytes]] = []
    while not reader.at_end():
        count, size = reader.long(), reader.long()
        # pyiceberg would decompress without a bound, so a small file could fill the memory.
        block = _decompressed(codec, reader.take(size), left)
        # pyiceberg accepts a file that was cut after a block. The sync marker shows that a block is complete.
        if reader.take(_SYNC_BYTES) != sync:
            raise DamagedContainer(f"the block that ends at byte {reader.position} is damaged")
        left -= len(block)
        if left < 0:
            raise DamagedContainer(f"it has more than {bytes_max} bytes without compression")
        # An entry takes at least one byte. A larger count is false, and would keep the decoder busy.
        if not 0 <= count <= len(block):
            raise DamagedContainer(f"a block of {len(block)} bytes says that it holds {count} entries")
        entries_left -= count
        if entries_left < 0:
            raise DamagedContainer(
                f"it has more than {bytes_max // ENTRY_BYTES_MIN} entries, one for each "
                f"{ENTRY_BYTES_MIN} bytes that it may have"
            )
        blocks.append((count, block))
    return Container(header, sync, tuple(blocks))


def plain(data: bytes, bytes_max: int) -> bytes:
    """The same container without compression, for a decoder of others. Raises `DamagedContainer`."""
    found = container_of(data, bytes_max)
    pieces = [MAGIC, _encoded_header({**found.header, _CODEC: b"null"}), found.sync]
    for count, block in found.blocks:
        pieces += [_encoded_long(count), _encoded_long(len(block)), block, found.sync]
    return b"".join(pieces)


class _Reader:
    """Reads forward through bytes, and checks every length against the rest of them."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.position = 0

    def at_end(self) -> bool:
        return self.position == len(self._data)

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.position + size
        if size < 0 or end > len(self._data):
            raise DamagedContainer(f"it ends after {len(self._data)} bytes, in the middle of something")
        found = bytes(self._data[self.position : end])
        self.position = end
        return found

    def long(self) -> int:
        """A number in Avro's encoding: zigzag, seven bits a byte."""
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise DamagedContainer(f"the number before byte {self.position} is too long")


def _header(reader: _Reader) -> dict[bytes, bytes]:
    """The map of metadata at the head of a container."""
    entries: dict[bytes, bytes] = {}
    while count := reader.long():
        if count < 0:
            # Avro: a negative count is followed by the size of the block in bytes, which is not needed here.
            count = -count
            reader.long()
        if count + len(entries) > _HEADER_ENTRIES_MAX:
            raise DamagedContainer("its header has too many entries")
        for _ in range(count):
            key = reader.take(reader.long())
            entries[key] = reader.take(reader.long())
    return entries


def _encoded_header(entries: dict[bytes, bytes]) -> bytes:
    parts = [_encoded_long(len(entries))]
    for key, value in entries.items():
        parts += [_encoded_long(len(key)), key, _encoded_long(len(value)), value]
    return b"".join([*parts, _encoded_long(0)])


def _encoded_long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _decompressed(codec: bytes, block: bytes, bytes_max: int) -> bytes:
    """A block without its compression; at most one byte more than the bound is produced."""
    # One byte more than allowed, so that the caller can see an excess.
    bound = max(bytes_max, 0) + 1
    try:
        match codec:
            case b"null" | b"":
                return block
            case b"deflate":
                # Avro uses raw deflate: a negative window size means no zlib header.
                deflated = zlib.decompressobj(-15)
                return _whole(deflated.decompress(block, bound), bound, ended=deflated.eof)
            case b"bzip2":
                stream = bz2.BZ2Decompressor()
                return _whole(stream.decompress(block, bound), bound, ended=stream.eof)
            case b"zstandard":
                return _zstandard(block, bound)
    except (zlib.error, OSError, ValueError, EOFError) as error:
        raise DamagedContainer(f"a block cannot be decompressed ({error})") from error
    raise DamagedContainer(
        f"its compression {excerpt(codec[:64].decode('utf-8', 'replace'))!r} is not supported"
    )


def _whole(found: bytes, bound: int, *, ended: bool) -> bytes:
    """What was decompressed, unless its stream was cut; beyond the bound the caller refuses it."""
    if not ended and len(found) < bound:
        raise DamagedContainer("a block is cut off in the middle of its compressed bytes")
    return found


def _zstandard(block: bytes, bound: int) -> bytes:
    # Imported here: few manifests use this codec.
    import zstandard

    try:
        # The window is memory too: at most 128 MiB, the default limit of the zstd tool.
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(block)) as stream:
            return bytes(stream.read(bound))
    except zstandard.ZstdError as error:
        raise DamagedContainer(f"a block cannot be decompressed ({error})") from error


def _check_schema(text: bytes) -> None:
    """Refuse a schema in which an element of an array or map may take no bytes."""
    # For such elements a count alone would keep a decoder busy for ever.
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedContainer("its schema is no JSON") from error
    _takes_bytes(schema, {}, 0)


def _takes_bytes(schema: Any, named: dict[str, bool], depth: int) -> bool:
    """Whether each value of the schema takes at least one byte."""
    if depth > _DEPTH_MAX:
        raise DamagedContainer(f"its schema is nested deeper than {_DEPTH_MAX} levels")
    if isinstance(schema, list):
        for branch in schema:
            _takes_bytes(branch, named, depth + 1)
        # A union is written with the number of its branch.
        return True
    if isinstance(schema, str):
        # Other names are primitive types, of which only `null` takes no byte, or are refused by pyiceberg.
        return named.get(schema, schema != "null")
    if not isinstance(schema, dict):
        raise DamagedContainer("its schema is none of Avro's")
    kind = schema.get("type")
    if kind in ("array", "map"):
        if (
            not _takes_bytes(schema.get("items" if kind == "array" else "values"), named, depth + 1)
            # A map is safe: each entry has a key, which takes at least its length byte.
            and kind == "array"
        ):
            raise DamagedContainer("its schema has an array whose elements take no bytes")
        # Also an empty array or map is written with its count.
        return True
    if kind == "fixed":
        size = schema.get("size")
        return isinstance(size, int) and size > 0
    if kind == "record":
        return _record_takes_bytes(schema, named, depth)
    return _takes_bytes(kind, named, depth + 1)


def _record_takes_bytes(schema: dict[str, Any], named: dict[str, bool], depth: int) -> bool:
    name, fields = str(schema.get("name")), schema.get("fields")
    if not isinstance(fields, list):
        raise DamagedContainer("its schema has a record without fields")
    # A record that contains itself, without any other bytes, has no finite value. So it counts as empty.
    named[name] = False
    found = [
        _takes_bytes(field.get("type") if isinstance(field, dict) else None, named, depth + 1)
        for field in fields
    ]
    named[name] = any(found)
    return named[name]
