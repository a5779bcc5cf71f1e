"""Intake files that hold record batches as they came: the same records as from rows, and damage is found."""

from __future__ import annotations

import base64
import functools
import operator
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.kafka import cached_intake
from archiver.kafka.cached_intake import CachedIntake
from archiver.proto import intake_file_pb2 as pb
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from intake.batches import chunks
from intake.batches.chunks import StoredBatch
from intake.format import (
    CHUNKS_FORMAT,
    FORMAT,
    INTAKE_SCHEMA,
    READ_SCHEMA,
    IntakeFileBytes,
    SegmentRows,
    write_intake_file,
)
from intake.read.reader import IntakeReader
from intake.records import UNKNOWN_BATCH
from intake.segments import FileRef, SegmentRef
from tests.support import amount
from tests.support.kafka.record_batches import CODECS, RawRecord, batch_bytes, records_bytes
from tests.support.objects.memory_store import MemoryObjectStore

TOPIC = TopicId("a" * 32)
BASE_MS = 1_700_000_000_000
ACCEPT_US = 1_800_000_000_000_123
RECORDS = (
    RawRecord(b"key", b"value", (("trace", b"\x01"), ("", None), ("trace", b""))),
    RawRecord(None, b"x" * 100, delta_ms=7),
    RawRecord(b"", None, (("ünï", b"v" * 70),), delta_ms=-5),
    RawRecord(),
    RawRecord(b"k" * 70, b"v" * 900, delta_ms=-BASE_MS - 1),
)
"""The last one has no time."""


def stored(
    count: int, number: int, codec: str = "none", *, append: bool = False, mirrored: bool = False
) -> StoredBatch:
    """A batch of `count` records, and other records for each number."""
    records = [RECORDS[(number + place) % len(RECORDS)] for place in range(count)]
    data = batch_bytes(records_bytes(records), codec=codec, base_timestamp=BASE_MS)
    return StoredBatch(data, count, ACCEPT_US + number, append, mirrored)


def rows_of(batch: StoredBatch, number: int) -> list[dict[str, Any]]:
    """What a reader gets of it."""
    found = []
    for place in range(batch.records):
        record = RECORDS[(number + place) % len(RECORDS)]
        time_ms = BASE_MS + record.delta_ms
        known = time_ms != -1 and not batch.log_append_time
        found.append(
            {
                "key": record.key,
                "value": record.value,
                "headers": [{"key": name, "value": value} for name, value in record.headers],
                "event_timestamp": time_ms * 1000 if known else batch.accept_us,
                "accept_timestamp": batch.accept_us,
                "batch": UNKNOWN_BATCH if batch.mirrored else place,
            }
        )
    return found


def segment(partition: int, batches: Sequence[StoredBatch] = (), rows: int = 0) -> SegmentRows:
    count = rows or sum(batch.records for batch in batches)
    return SegmentRows(TOPIC, partition, count, 100 * count, ACCEPT_US, batches=tuple(batches))


def table_of(rows: int) -> pa.Table:
    cells = [
        {
            "topic": "t",
            "partition": 0,
            "value": b"row %d" % number,
            "headers": [],
            "event_timestamp": number,
            "accept_timestamp": ACCEPT_US,
            "batch": number,
        }
        for number in range(rows)
    ]
    return pa.Table.from_pylist(cells, schema=INTAKE_SCHEMA)


def plain(records: pa.RecordBatch) -> list[dict[str, Any]]:
    assert records.schema.equals(READ_SCHEMA)
    names = ["event_timestamp", "accept_timestamp"]
    times: Any = {name: records.column(name).cast(pa.int64()).to_pylist() for name in names}
    return [
        row | {name: times[name][number] for name in names}
        for number, row in enumerate(records.drop_columns(names).to_pylist())
    ]


class File:
    """A written file in a store, and how the log names it."""

    def __init__(self, file: IntakeFileBytes, data: bytes | None = None) -> None:
        self.objects = MemoryObjectStore()
        self.ref = FileRef(7, "intake/one.parquet", len(file.data), file.footer_sha256)
        self.objects.create(self.ref.key, file.data if data is None else data)
        self.segments = [
            SegmentRef(
                self.ref, one.row_group, one.first_row, one.rows, 0, one.raw_bytes, one.accept_max_us, 0
            )
            for one in file.segments
        ]

    def read(self) -> list[list[dict[str, Any]]]:
        """The records of each segment, in the order of the segments."""
        found = {
            (one.row_group, one.first_row): plain(records)
            for one, records in IntakeReader(self.objects).read(self.ref, self.segments)
        }
        return [found[one.row_group, one.first_row] for one in self.segments]


@pytest.mark.parametrize("row_group_bytes", [1, 900, 1 << 20])
def test_segments_of_batches_and_of_rows_share_a_file(row_group_bytes: int) -> None:
    batches = [
        stored(
            1 + number % 4,
            number,
            CODECS[number % len(CODECS)],
            append=number % 7 == 3,
            mirrored=number % 5 > 2,
        )
        for number in range(20)
    ]
    table = table_of(9)
    segments = [
        segment(0, rows=4),
        segment(0, batches[:3]),
        segment(1, batches[3:4]),
        segment(2, rows=5),
        segment(3, batches[4:]),
    ]
    written = write_intake_file(table, segments, row_group_bytes, log_index=12)
    file = File(written)
    rows = plain(table.select(READ_SCHEMA.names).to_batches()[0].cast(READ_SCHEMA))
    of_batch = [rows_of(batch, number) for number, batch in enumerate(batches)]
    assert file.read() == [
        rows[:4],
        functools.reduce(operator.iadd, of_batch[:3], []),
        of_batch[3],
        rows[4:],
        functools.reduce(operator.iadd, of_batch[4:], []),
    ]
    assert written.data.startswith(b"PAR1" + batches[0].data + batches[1].data)
    chunk_numbers = sorted({one.row_group for one in written.segments if one.partition in (1, 3)})
    assert len(chunk_numbers) == (2 if row_group_bytes < 1 << 20 else 1)
    groups = sorted({one.row_group for one in file.segments})
    times = list(IntakeReader(file.objects).event_times(file.ref, groups))
    assert sorted(time for _, found in times for time in found.tolist()) == sorted(
        row["event_timestamp"] for one in file.read() for row in one
    )


def test_the_rows_are_ordinary_parquet_for_everyone_else() -> None:
    table = table_of(5)
    written = write_intake_file(table, [segment(0, rows=5), segment(1, [stored(3, 0)])], 1, log_index=12)
    parquet = pq.ParquetFile(pa.BufferReader(written.data), page_checksum_verification=True)
    assert parquet.read().cast(INTAKE_SCHEMA).equals(table)
    keys = parquet.metadata.metadata or {}
    assert keys[b"archiver.intake_format"].decode() == CHUNKS_FORMAT
    assert keys[b"archiver.log_index"] == b"12"


def test_a_file_without_batches_has_the_old_format() -> None:
    written = write_intake_file(table_of(5), [segment(0, rows=5)], 1)
    assert pq.read_metadata(pa.BufferReader(written.data)).metadata == {
        b"archiver.intake_format": FORMAT.encode()
    }


def test_a_file_of_batches_alone() -> None:
    written = write_intake_file(table_of(0), [segment(1, [stored(3, 0), stored(2, 1)])], 1 << 20)
    assert [one.row_group for one in written.segments] == [0]
    assert File(written).read() == [rows_of(stored(3, 0), 0) + rows_of(stored(2, 1), 1)]


def small() -> IntakeFileBytes:
    segments = [segment(0, rows=2), segment(1, [stored(3, 0, "lz4")]), segment(2, [stored(4, 1)])]
    return write_intake_file(table_of(2), segments, 1)


def test_a_reader_of_consumers_remembers_where_chunks_are_and_sees_another_size() -> None:
    written = small()
    file = File(written)
    reader = CachedIntake(file.objects, 0)
    numbers = [one.row_group for one in written.segments]
    sizes = [None if (one := reader.batches(file.ref, number)) is None else one.size for number in numbers]
    assert sizes == [None, *(len(one.data) for one in (stored(3, 0, "lz4"), stored(4, 1)))]
    assert list(reader._places) == [file.ref]
    file.objects.delete(file.ref.key)
    file.objects.create(file.ref.key, written.data[:-1])
    for number in numbers:
        with pytest.raises(Corrupted, match="bytes, the log says"):
            reader.batches(file.ref, number)


def test_a_reader_of_consumers_remembers_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_intake, "_CHUNKS_PLACED_MAX", 7)
    written = small()
    file = File(written)
    reader = CachedIntake(file.objects, 0)
    refs = [replace(file.ref, key=f"intake/{number}.parquet") for number in range(5)]
    for ref in refs:
        file.objects.create(ref.key, written.data)
        assert reader.batches(ref, 1) is not None
    # Each file has two chunks.
    assert list(reader._places) == refs[-2:] and reader._placed == 6


def test_no_flipped_bit_gives_another_record() -> None:
    written = small()
    true = File(written).read()
    bits = range(8 * len(written.data))
    rng = random.Random(5)
    chosen = bits if amount.WHOLE else sorted(rng.sample(bits, 2500))
    refused = 0
    for bit in chosen:
        data = bytearray(written.data)
        data[bit // 8] ^= 1 << bit % 8
        try:
            found = File(written, bytes(data)).read()
        except Corrupted as error:
            refused += "intake/one.parquet" in str(error)
        else:
            # Offsets and leader epochs of batches are not read.
            assert found == true, f"bit {bit}"
    assert refused > 0.8 * len(chosen)


def changed(index: pb.Chunks) -> IntakeFileBytes:
    """A file with this index of its two chunks; its digest is right."""
    text = base64.b64encode(zlib.compress(index.SerializeToString()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intake.format.chunk_index", lambda _: text.decode())
        return small()


def index_of(**changes: Any) -> pb.Chunks:
    first, second = stored(3, 0, "lz4"), stored(4, 1)
    message = pb.Chunks()
    for batch in (first, second):
        message.chunks.add(
            size=len(batch.data),
            records=batch.records,
            runs=[pb.Run(batches=1, accept_us=batch.accept_us)],
        )
    for name, value in changes.items():
        setattr(message.chunks[0], name, value)
    return message


def test_an_index_that_fits_is_accepted() -> None:
    assert File(changed(index_of())).read() == File(small()).read()


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (index_of(size=1 << 62), "beyond the file"),
        (index_of(size=10), "its bytes end within"),
        (index_of(size=0), "its bytes end within a batch"),
        (index_of(records=2), "it has 1 batches with 3 records, the index says 1 with 2"),
        (pb.Chunks(), "has 1 row groups, the log has a segment in row group 1"),
    ],
    ids=["beyond", "cut", "empty", "records", "none"],
)
def test_an_index_that_does_not_fit_is_damage(index: pb.Chunks, why: str) -> None:
    with pytest.raises(Corrupted, match=why):
        File(changed(index)).read()


def test_an_index_that_is_none_is_damage() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(1 << 20)))
    for text in (b"", b"?", base64.b64encode(b"no zlib"), bomb):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("intake.format.chunk_index", lambda _, text=text: text.decode())
            file = File(small())
            patch.setattr(chunks, "_INDEX_BYTES_MAX", 1 << 16)
            with pytest.raises(Corrupted, match="the index of its record batches"):
                file.read()
