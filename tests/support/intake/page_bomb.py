"""A page of an intake file that stands for far more than was written; and, as a program, what it takes to
read one.

`python -m tests.support.intake.page_bomb` prints by how many MiB the process grew, and the error.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from intake.format import INTAKE_SCHEMA, SegmentRows, write_intake_file
from intake.read.reader import IntakeReader
from intake.segments import FileRef
from tests.support.builders.refine_memory import peak_mib
from tests.support.objects.memory_store import MemoryObjectStore

TOPIC = TopicId("1" * 32)
BOMB_BYTES = 120 << 20
KEY = "intake/2026-01-01/00/bomb.parquet"


def intake_bytes(rows: int = 20, value_bytes: int = 60_000) -> tuple[bytes, bytes]:
    """A file of one row group, and its footer's digest; half of each value is random, so that pages are large
    and compress."""
    chance = random.Random(5)
    time_us = 1_700_000_000_000_000
    cells = [
        {
            "topic": "t",
            "partition": 0,
            "key": b"k%d" % row,
            "headers": [{"key": "h", "value": b"x"}] * (row % 3),
            "value": chance.randbytes(value_bytes // 2) + bytes(value_bytes // 2),
            "event_timestamp": time_us,
            "accept_timestamp": time_us + row,
            "batch": row,
        }
        for row in range(rows)
    ]
    table = pa.Table.from_pylist(cells, schema=INTAKE_SCHEMA)
    written = write_intake_file(
        table, [SegmentRows(TOPIC, 0, rows, rows * value_bytes, time_us + rows)], 1 << 30
    )
    return written.data, written.footer_sha256


def swollen(data: bytes, path: str = "value", size: int = BOMB_BYTES) -> bytes:
    """The file with the first page of a column replaced by one of `size` zeros, of the old stored length and
    with a right checksum."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    column = next(
        group.column(place)
        for place in range(group.num_columns)
        if group.column(place).path_in_schema == path
    )
    start = column.data_page_offset
    fields, at = [], start
    for _ in range(4):  # type, bytes, bytes compressed, checksum
        assert data[at] == 0x15, "a number that follows the one before"
        number, end = _varint(data, at + 1)
        fields.append((at + 1, end, number))
        at = end
    stored = fields[2][2] >> 1
    _, header_end = _header(data, start)
    frame = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    for filler in range(1000):
        rest = stored - len(frame) - 8
        body = (
            frame
            + struct.pack("<II", 0x184D2A50, rest)
            + bytes([filler % 256, filler // 256])
            + bytes(rest - 2)
        )  # a frame that is skipped
        checksum = struct.unpack("<i", struct.pack("<I", zlib.crc32(body)))[0]
        made = bytearray(data)
        made[header_end : header_end + stored] = body
        parts = [(fields[1], size << 1), (fields[3], (checksum << 1) ^ (checksum >> 31))]
        if all(len(_encoded(number)) == field[1] - field[0] for field, number in parts):
            for field, number in parts:
                made[field[0] : field[1]] = _encoded(number)
            return bytes(made)
    raise AssertionError("no checksum is as long as the old one")


def _header(data: bytes, start: int) -> tuple[object, int]:
    from intake.parquet_pages import _header_at

    header, length = _header_at(io.BytesIO(data), start)
    return header, start + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return found, at


def _encoded(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def read(data: bytes, digest: bytes) -> str | None:
    """Read the file as refinement, replay and `consume` do; the error, if it is damaged."""
    objects = MemoryObjectStore()
    objects.create(KEY, data)
    try:
        for _ in IntakeReader(objects).row_groups(FileRef(7, KEY, len(data), digest), [0]):
            pass
    except Corrupted as error:
        return str(error)
    return None


def main() -> None:
    """What the libraries need once is no part of the answer."""
    data, digest = intake_bytes()
    assert read(data, digest) is None
    bomb = swollen(data)
    objects_before = peak_mib()
    pa.Codec("zstd").compress(b"x")
    error = read(bomb, digest)
    print(json.dumps({"mib": peak_mib() - objects_before, "error": error}))


if __name__ == "__main__":
    main()
