"""The bytes of an intake file, and the description of its segments for the log entry.

Frozen format 1: one Parquet file, zstd level 1, every page with its checksum, rows sorted by topic, partition
and arrival. A *segment* is the run of rows of one topic partition. A row group closes at the first segment
boundary at which it holds `row_group_bytes` raw bytes, so a segment never spans row groups. Rows of one
partition form several segments where a batch of an idempotent producer begins or ends. The columns of
producers and transactions are null where there is none.

Frozen format 2: also holds record batches of Kafka clients as they came, in chunks before the first row group
(`intake.batches.chunks`). Chunks close as row groups do, and are numbered after them. For a segment of
batches, the row group in the log is the number of its chunk, and its rows are records.

The footer's key `archiver.intake_format` is `1`, or `2` if the file has chunks. Its key `archiver.log_index`
states how many log entries the writer had read before it stored the file. That proves that the log was that
long. Arrow schema and page indexes are left out to keep the footer small.

Pure except for the Parquet codec: the same rows give a file with the same records, and no clock is read.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.ids import TopicId
from intake.batches.chunks import CHUNKS_KEY, StoredBatch, chunk_index
from intake.batches.decoding import Bytes
from intake.producers import Stamp
from intake.records import HEADERS, TIMESTAMP

FORMAT_KEY = "archiver.intake_format"
FORMAT, CHUNKS_FORMAT = "1", "2"
FORMATS = (FORMAT, CHUNKS_FORMAT)
"""Oldest first; a file is of the oldest that suffices."""
LOG_INDEX_KEY = "archiver.log_index"
INTAKE_ZSTD_LEVEL = -1
"""Measured on half random, half repeating values: a fifth faster than level 1 for 3 % more bytes. Not part of
the format."""
MAGIC = b"PAR1"
FOOTER_TAIL_BYTES = 8
"""After the footer: its length (4 bytes, little-endian) and the magic `PAR1`."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", HEADERS, nullable=False),
    pa.field("event_timestamp", TIMESTAMP, nullable=False),
    pa.field("accept_timestamp", TIMESTAMP, nullable=False),
    pa.field("batch", pa.int32(), nullable=False),
    pa.field("producer_id", pa.int64()),
    pa.field("producer_epoch", pa.int16()),
    pa.field("sequence", pa.int32()),
    pa.field("transactional", pa.bool_()),
]
INTAKE_SCHEMA = pa.schema(_FIELDS)
"""`batch`: rows since the first record of the producer's batch, so that its first offset is `offset - batch`;
`UNKNOWN_BATCH` where an upstream hides it."""

PRODUCER_COLUMNS = ("producer_id", "producer_epoch", "sequence", "transactional")
READ_COLUMNS = ("key", "value", "headers", "event_timestamp", "accept_timestamp", "batch")
"""The columns that a reader of records needs; the log entry has the rest."""
READ_SCHEMA = pa.schema([INTAKE_SCHEMA.field(name) for name in READ_COLUMNS])


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """A segment before it is written."""

    topic_id: TopicId
    partition: int
    rows: int
    """0: its batch covers sequence numbers and has no records."""
    raw_bytes: int
    accept_max_us: int
    stamp: Stamp | None = None
    """Its producer batch; None without an idempotent producer."""
    offset: int | None = None
    """Of its first record, in a mirrored topic; the others follow it."""
    log_append_time: bool = False
    """The accept times replaced the event times of its records."""
    batches: tuple[StoredBatch, ...] = ()
    """Its records as batches; none: they are rows."""


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment and its place in the file."""

    topic_id: TopicId
    partition: int
    row_group: int
    first_row: int
    rows: int
    raw_bytes: int
    accept_max_us: int
    stamp: Stamp | None = None
    offset: int | None = None
    log_append_time: bool = False


@dataclass(frozen=True, slots=True)
class IntakeFileBytes:
    """A complete intake file in memory."""

    data: bytes
    footer_sha256: bytes
    segments: tuple[PlacedSegment, ...]
    """Those of one topic are adjacent, with ascending partitions. Those of a partition are in file order."""


def write_intake_file(
    rows: pa.Table, segments: Sequence[SegmentRows], row_group_bytes: int, log_index: int | None = None
) -> IntakeFileBytes:
    """Write `rows` (columns of `INTAKE_SCHEMA`, sorted). Their runs are the segments without batches, in
    order and without a gap.

    `log_index` is the index of the next entry of the intake log as its writer knows it; None leaves it out.
    """
    # A programming error here would give records wrong offsets, so it must not reach the log.
    in_rows = [segment for segment in segments if not segment.batches]
    counted = sum(segment.rows for segment in in_rows)
    if counted != rows.num_rows or not segments:
        raise ValueError(
            f"{len(segments)} segments with {counted} rows do not cover a table of {rows.num_rows} rows"
        )
    groups = _row_groups(in_rows, row_group_bytes)
    chunks = _row_groups([segment for segment in segments if segment.batches], row_group_bytes)
    # The file is made in memory: its digest must be known before the entry, and a flush is bounded.
    pieces = _Pieces()
    sink = pa.PythonFile(pieces, mode="w")
    stamped = any(segment.stamp is not None for segment in in_rows)
    stored_groups = 0
    with _parquet_writer(sink, CHUNKS_FORMAT if chunks else FORMAT, stamped=stamped) as writer:
        if log_index is not None:
            writer.add_key_value_metadata({LOG_INDEX_KEY: str(log_index)})
        if chunks:
            batches = [[batch for segment in chunk for batch in segment.batches] for chunk in chunks]
            writer.add_key_value_metadata({CHUNKS_KEY: chunk_index(batches)})
            # Behind the magic, which the writer has written. It asks the sink where a row group begins.
            for batch in (batch for chunk in batches for batch in chunk):
                sink.write(batch.data)
                pieces.keep(batch.data)
        start = 0
        for group in groups:
            count = sum(segment.rows for segment in group)
            # Segments without rows, which only state sequence numbers, may be all there is.
            if count == 0:
                continue
            # One row group per call, because the entry names segments by row group and first row.
            writer.write_table(rows.slice(start, count), row_group_size=count)
            start += count
            stored_groups += 1
    # In the order of the segments; those of a group are in their order, so each is the next of its kind.
    places = {True: _places(chunks, stored_groups), False: _places(groups, 0)}
    placed = [_placed(segment, *next(places[bool(segment.batches)])) for segment in segments]
    data = pieces.joined()
    return IntakeFileBytes(data, footer_sha256(data), tuple(placed))


class _Pieces(io.RawIOBase):
    """What Arrow writes. It is joined once: a buffer that grows copies large files several times."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Bytes] = []

    def writable(self) -> bool:
        """Arrow asks."""
        return True

    def write(self, data: Any) -> int:
        """Called by Arrow."""
        # What is not `bytes` may be overwritten by its owner.
        self._pieces.append(bytes(data))
        return len(data)

    def keep(self, data: Bytes) -> None:
        """Put the original in the place of its copy, whose memory can be used for the next one."""
        assert len(self._pieces[-1]) == len(data), "Arrow passes each write on at once"
        self._pieces[-1] = data

    def joined(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)


def _places(groups: Sequence[Sequence[SegmentRows]], first_number: int) -> Iterator[tuple[int, int]]:
    """Row group and first row of each segment of the groups."""
    for number, group in enumerate(groups, first_number):
        first_row = 0
        for segment in group:
            yield number, first_row
            first_row += segment.rows


def _placed(segment: SegmentRows, row_group: int, first_row: int) -> PlacedSegment:
    return PlacedSegment(
        segment.topic_id,
        segment.partition,
        row_group,
        first_row,
        segment.rows,
        segment.raw_bytes,
        segment.accept_max_us,
        segment.stamp,
        segment.offset,
        segment.log_append_time,
    )


def _parquet_writer(sink: pa.NativeFile, file_format: str, *, stamped: bool) -> pq.ParquetWriter:
    writer_class: Any = pq.ParquetWriter  # its published types lack lists of dictionary columns
    writer: pq.ParquetWriter = writer_class(
        sink,
        INTAKE_SCHEMA,
        compression="zstd",
        compression_level=INTAKE_ZSTD_LEVEL,
        # Only where values repeat; the reader refuses dictionaries of keys and values.
        use_dictionary=["topic", "partition", "headers.list.element.key"],
        column_encoding={
            "event_timestamp": "DELTA_BINARY_PACKED",
            "accept_timestamp": "DELTA_BINARY_PACKED",
            "batch": "DELTA_BINARY_PACKED",
            **({"sequence": "DELTA_BINARY_PACKED"} if stamped else {}),
        },
        # Statistics of keys and values would put parts of them into the footer.
        write_statistics=["topic", "partition"],
        write_page_checksum=True,
        # Keeps the footer small: the format number stands for the schema.
        store_schema=False,
    )
    writer.add_key_value_metadata({FORMAT_KEY: file_format})
    return writer


def _row_groups(segments: Sequence[SegmentRows], row_group_bytes: int) -> list[list[SegmentRows]]:
    groups: list[list[SegmentRows]] = []
    # Full at the start, so that the first segment opens a row group.
    held_bytes = row_group_bytes
    for segment in segments:
        if held_bytes >= row_group_bytes:
            groups.append([])
            held_bytes = 0
        groups[-1].append(segment)
        held_bytes += segment.raw_bytes
    return groups


def footer_length(tail: bytes) -> int | None:
    """Bytes of the footer with its length and magic, from the last `FOOTER_TAIL_BYTES` of a file; None if
    these are no Parquet tail.
    """
    if len(tail) != FOOTER_TAIL_BYTES or tail[4:] != b"PAR1":
        return None
    return int.from_bytes(tail[:4], "little") + FOOTER_TAIL_BYTES


def footer_sha256(data: bytes) -> bytes:
    """SHA-256 of the footer with its length and magic, of a whole file."""
    length = footer_length(data[-FOOTER_TAIL_BYTES:])
    if length is None or length > len(data):
        raise ValueError("these bytes do not end in a Parquet footer")
    # The footer has the places and sizes of all column chunks, so its digest pins the layout of the file.
    return hashlib.sha256(data[-length:]).digest()
