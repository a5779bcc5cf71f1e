"""A truncated or altered intake file is refused by name; it never yields other records than were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.runtime.errors import Corrupted, Halt
from intake.format import (
    FOOTER_TAIL_BYTES,
    INTAKE_SCHEMA,
    READ_SCHEMA,
    SegmentRows,
    footer_length,
    footer_sha256,
    write_intake_file,
)
from intake.read.reader import IntakeReader
from intake.records import Record
from intake.segments import FileRef, SegmentRef
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.objects.memory_store import MemoryObjectStore

Read = tuple[FileRef, list[SegmentRef]]


class File:
    """One intake file as a writer left it, and what it holds."""

    def __init__(self, folder: Path) -> None:
        self.rig = IntakeRig(folder)
        topic = self.rig.topic("t", 3)
        with self.rig.writer(delay_max=60, row_group_bytes=4096) as writer:
            pending = [
                writer.send(
                    "t",
                    Record(
                        b"key-%d" % n,
                        None if n % 7 == 0 else b"value-%d" % n * 8,
                        (("h", b"%d" % n),) if n % 3 else (),
                        n,
                    ),
                    n % 3,
                )
                for n in range(150)
            ]
            writer.flush()
            assert {one.result(WAIT_S).outcome for one in pending} == {"ok"}
        fold = self.rig.reread()
        self.segments = [
            segment for partition in range(3) for segment in fold.segments((topic.topic_id, partition))
        ]
        self.ref = self.segments[0].file
        self.path = folder / "data" / self.ref.key
        self.data = self.path.read_bytes()
        self.records = self.read()

    def read(self) -> list[Any]:
        return [
            (segment.base, batch.to_pylist())
            for segment, batch in IntakeReader(self.rig.objects).read(self.ref, self.segments)
        ]

    def read_as(self, data: bytes) -> list[Any]:
        """Read as if the object held `data`."""
        objects = MemoryObjectStore()
        objects.create(self.ref.key, data)
        return [
            (segment.base, batch.to_pylist())
            for segment, batch in IntakeReader(objects).read(self.ref, self.segments)
        ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    file = File(tmp_path_factory.mktemp("damage"))
    yield file
    file.rig.close()


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def footer_start(data: bytes) -> int:
    length = footer_length(data[-FOOTER_TAIL_BYTES:])
    assert length is not None
    return len(data) - length


def test_an_untouched_file_is_read(file: File) -> None:
    assert [(base, len(rows)) for base, rows in file.records] == [(0, 50)] * 3
    assert file.records[1][1][1]["key"] == b"key-4"
    batches = [batch for _, batch in IntakeReader(file.rig.objects).read(file.ref, file.segments)]
    assert {batch.schema for batch in batches} == {READ_SCHEMA}


def test_segments_are_read_in_file_order_and_each_row_group_once(file: File) -> None:
    asked = [file.segments[2], file.segments[0]]
    read = [segment for segment, _ in IntakeReader(file.rig.objects).read(file.ref, asked)]
    assert read == [file.segments[0], file.segments[2]]
    assert list(IntakeReader(file.rig.objects).read(file.ref, [])) == []


@pytest.mark.parametrize("kept", [0, 3, 4, 100, -1, -8, -9])
def test_a_truncated_file_is_refused_by_name(file: File, kept: int) -> None:
    with pytest.raises(
        Corrupted,
        match=f"intake file {file.ref.key} .*entry 1 of the intake log.*bytes, the log says {file.ref.size}",
    ):
        file.read_as(file.data[:kept])


def test_a_longer_file_is_refused(file: File) -> None:
    with pytest.raises(Corrupted, match="bytes, the log says"):
        file.read_as(file.data + b"\0")


def test_a_file_of_other_records_is_refused(file: File) -> None:
    start = footer_start(file.data)
    with pytest.raises(
        Corrupted, match=r"its footer is not the one that was written|does not end in a Parquet footer"
    ):
        file.read_as(file.data[:start] + bytes(len(file.data) - start - 8) + file.data[-8:])


def test_a_missing_file_is_refused_by_name(file: File) -> None:
    with pytest.raises(Corrupted, match=f"intake file {file.ref.key} is gone; entry 1"):
        list(IntakeReader(MemoryObjectStore()).read(file.ref, file.segments))


def test_any_bit_of_the_beginning_is_seen(file: File) -> None:
    for at in range(4):
        with pytest.raises(Corrupted, match=file.ref.key):
            file.read_as(flipped(file.data, at, at))


def test_any_bit_of_the_footer_is_seen(file: File) -> None:
    for at in range(footer_start(file.data), len(file.data)):
        with pytest.raises(Corrupted, match=file.ref.key):
            file.read_as(flipped(file.data, at, at % 8))


def pages(file: File) -> Iterator[tuple[str, int, int]]:
    """Where the column chunks of the first row group lie: (column, start, end)."""
    group = pq.read_metadata(pa.BufferReader(file.data)).row_group(0)
    for number in range(group.num_columns):
        chunk = group.column(number)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        yield chunk.path_in_schema, start, start + chunk.total_compressed_size


@pytest.mark.parametrize(
    "column",
    [
        "key",
        "value",
        "headers.list.element.key",
        "headers.list.element.value",
        "event_timestamp",
        "accept_timestamp",
        "batch",
    ],
)
def test_a_bit_of_the_pages_is_seen_or_changes_no_record(file: File, column: str) -> None:
    # The data of a page is covered by its checksum. Its header is not: most of it is needed to find the data;
    # a few fields are never read.
    start, end = next((start, end) for name, start, end in pages(file) if name == column)
    seen = 0
    places = range(start, end, max(1, (end - start) // 150))
    for at in places:
        try:
            read = file.read_as(flipped(file.data, at, at % 8))
        except Corrupted:
            seen += 1
        else:
            assert read == file.records
    assert seen >= len(places) / 2


def test_a_bit_of_the_page_data_is_seen(file: File) -> None:
    _, _, end = next(chunk for chunk in pages(file) if chunk[0] == "value")
    for at in range(end - 200, end):  # far after the page header
        with pytest.raises(Corrupted, match=f"{file.ref.key}.*row group 0"):
            file.read_as(flipped(file.data, at, at % 8))


def test_neighbours_of_a_damaged_file_are_still_read(tmp_path: Path) -> None:
    rig = IntakeRig(tmp_path)
    topic = rig.topic("t", 1)
    with rig.writer() as writer:
        for number in range(3):
            writer.send("t", Record(None, b"%d" % number))
            writer.flush()
    segments = rig.reread().segments((topic.topic_id, 0))
    damaged = tmp_path / "data" / segments[1].file.key
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    reader = IntakeReader(rig.objects)
    assert [
        batch.column("value").to_pylist()
        for n in (0, 2)
        for _, batch in reader.read(segments[n].file, [segments[n]])
    ] == [
        [b"0"],
        [b"2"],
    ]
    with pytest.raises(Corrupted, match=segments[1].file.key):
        list(reader.read(segments[1].file, [segments[1]]))
    rig.close()


def test_a_log_that_states_places_beyond_the_file_is_refused(file: File) -> None:
    reader = IntakeReader(file.rig.objects)
    last = file.segments[-1]
    with pytest.raises(Corrupted, match="a segment beyond them"):
        list(reader.read(file.ref, [last._replace(rows=last.rows + 1)]))
    with pytest.raises(Corrupted, match="the log has a segment in row group 99"):
        list(reader.read(file.ref, [last._replace(row_group=99)]))


def test_a_file_of_another_format_halts(file: File) -> None:
    cells = {
        "topic": "t",
        "partition": 0,
        "headers": [],
        "event_timestamp": 0,
        "accept_timestamp": 0,
        "batch": 0,
    }
    segment = SegmentRows(file.rig.topic("t", 3).topic_id, 0, 1, 0, 0)
    data = write_intake_file(pa.Table.from_pylist([cells], schema=INTAKE_SCHEMA), [segment], 1).data
    newer = data.replace(b"archiver.intake_format\x18\x011", b"archiver.intake_format\x18\x013")
    assert newer != data
    objects = MemoryObjectStore()
    objects.create("intake/newer", newer)
    ref = FileRef(0, "intake/newer", len(newer), footer_sha256(newer))
    with pytest.raises(Halt, match="intake/newer has the format '3', this version knows '2'; upgrade"):
        list(IntakeReader(objects).read(ref, [file.segments[0]._replace(file=ref, rows=1)]))
