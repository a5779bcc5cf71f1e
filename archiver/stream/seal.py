"""The checksum of an archive's footer, compared before the Parquet library reads the file.

Page checksums cover an archive's pages, but not its footer. A footer with one wrong bit can give other
columns or other records, or end the process. So the footer holds its own checksum. After `check_seal`, every
byte of the footer, of its length and of the magic is as it was written. Nothing may be parsed before it is
checked.

Frozen format: the footer key `archiver.footer_sha256` has 64 hex digits: the SHA-256 of the end of the
object, with `0` in place of these 64 digits. The end is the footer, its length (4 bytes, little endian) and
the magic `PAR1`. The key occurs once in a footer.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import pyarrow as pa

from archiver.runtime.errors import Corrupted

SEAL_KEY = "footer_sha256"
"""The footer key, without the prefix `archiver.`."""
UNSEALED = "0" * 64
"""The placeholder that a writer puts there, for `seal` to replace."""

_TAIL_BYTES = 8
_MAGIC = b"PAR1"
_MARK = b"archiver." + SEAL_KEY.encode() + b"\x18" + bytes([len(UNSEALED)])
"""How the key is encoded in Parquet's Thrift form: the header of the next field and the length of the value
come before the value."""


def seal(file: BinaryIO) -> None:
    """Write the checksum into a complete Parquet file that was written with `UNSEALED`; raises `Corrupted` if
    it was not.
    """
    tail, start = _tail(file, "the spooled archive")
    place = _place(tail, "the spooled archive")
    # In place: the digits have the length of the placeholder, so nothing else moves.
    file.seek(start + place)
    file.write(_checksum(tail, place))


def check_seal(source: BinaryIO | pa.NativeFile, key: str) -> None:
    """Compare the footer with its checksum; raises `Corrupted` naming `key`. The position of `source`
    changes.
    """
    tail, _ = _tail(source, key)
    place = _place(tail, key)
    if tail[place : place + len(UNSEALED)] != _checksum(tail, place):
        raise Corrupted(
            f"{key}: its footer is not what its checksum says; the object was altered, restore it"
        )


def _tail(source: BinaryIO | pa.NativeFile, key: str) -> tuple[bytes, int]:
    """Footer, length and magic, and where they begin."""
    size = source.seek(0, 2)
    # Magic at both ends and a length are the least that a Parquet file has.
    if size < 2 * len(_MAGIC) + 4:
        raise Corrupted(f"{key} has {size} bytes: it is no archive, or was cut off; restore it")
    source.seek(size - _TAIL_BYTES)
    end = bytes(source.read(_TAIL_BYTES))
    start = size - _TAIL_BYTES - int.from_bytes(end[:4], "little")
    # The length is not trusted: it must leave room for the magic at the beginning.
    if end[4:] != _MAGIC or start < len(_MAGIC):
        raise Corrupted(
            f"{key} does not end as a Parquet file does: it is no archive, or was cut off; restore it"
        )
    source.seek(start)
    return bytes(source.read(size - start)), start


def _place(tail: bytes, key: str) -> int:
    """Where the checksum's digits begin."""
    before, mark, after = tail.partition(_MARK)
    # A second occurrence would leave open which of them is the checksum.
    if not mark or _MARK in after or len(after) < len(UNSEALED) + _TAIL_BYTES:
        raise Corrupted(
            f"{key}: its footer has no checksum archiver.{SEAL_KEY}: it is no archive, or was altered; "
            "restore it"
        )
    return len(before) + len(mark)


def _checksum(tail: bytes, place: int) -> bytes:
    digest = hashlib.sha256(tail[:place])
    # As if the placeholder were still there, because the checksum cannot contain itself.
    digest.update(UNSEALED.encode())
    digest.update(tail[place + len(UNSEALED) :])
    return digest.hexdigest().encode()
