"""The bytes of an intake file, and the description of its segments for the log entry.

Frozen format 1: one Parquet file, zstd level 1, every page with its checksum, rows sorted by topic, partition
and arrival. A *segment* is the run of rows of one topic partition. A row group closes at the first segment
boundary at which it holds `row_group_bytes` raw bytes, so a segment never spans row groups. Rows of one
partition form several segments where a batch of an idempotent producer begins or ends. The columns of
producers and transactions are null where there is none.

The footer's key `archiver.intake_format` is `1`. Its key `archiver.log_index` states how many log entries the
writer had read before it stored the file. That proves that the log was that long. Arrow schema and page
indexes are left out to keep the footer small.

Pure except for the Parquet codec: the same rows give a file with the same records, and no clock is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.ids import TopicId
from intake.producers import Stamp
from intake.records import HEADERS, TIMESTAMP

FORMAT_KEY = "archiver.intake_format"
FORMAT = "1"
LOG_INDEX_KEY = "archiver.log_index"
INTAKE_ZSTD_LEVEL = -1
"""Measured on half random, half repeating values: a fifth faster than level 1 for 3 % more bytes. Not part of
the format."""
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
UNKNOWN_BATCH = -1

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
    """In file order: those of one topic are adjacent, with ascending partitions."""


def write_intake_file(
    rows: pa.Table, segments: Sequence[SegmentRows], row_group_bytes: int, log_index: int | None = None
) -> IntakeFileBytes:
    """Write `rows` (columns of `INTAKE_SCHEMA`, sorted), whose runs are `segments`, in order and without a
    gap.

    `log_index` is the index of the next entry of the intake log as its writer knows it; None leaves it out.
    """
    # A programming error here would give records wrong offsets, so it must not reach the log.
    if sum(segment.rows for segment in segments) != rows.num_rows or not segments:
        raise ValueError(
            f"{len(segments)} segments with {sum(s.rows for s in segments)} rows do not cover a table "
            f"of {rows.num_rows} rows"
        )
    # The file is made in memory: its digest must be known before the entry, and a flush is bounded.
    placed: list[PlacedSegment] = []
    sink = pa.BufferOutputStream()
    with _parquet_writer(sink, stamped=any(segment.stamp is not None for segment in segments)) as writer:
        if log_index is not None:
            writer.add_key_value_metadata({LOG_INDEX_KEY: str(log_index)})
        start = 0
        for row_group, group in enumerate(_row_groups(segments, row_group_bytes)):
            first_row = 0
            for segment in group:
                placed.append(
                    PlacedSegment(
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
                )
                first_row += segment.rows
            # Segments without rows, which only state sequence numbers, may be all there is.
            if first_row == 0:
                continue
            # One row group per call, because the entry names segments by row group and first row.
            writer.write_table(rows.slice(start, first_row), row_group_size=first_row)
            start += first_row
    data = sink.getvalue().to_pybytes()
    return IntakeFileBytes(data, footer_sha256(data), tuple(placed))


def _parquet_writer(sink: pa.NativeFile, *, stamped: bool) -> pq.ParquetWriter:
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
    writer.add_key_value_metadata({FORMAT_KEY: FORMAT})
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
