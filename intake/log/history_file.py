"""A history file: the segments and gaps of one span of the intake log, as one immutable Parquet file.

Frozen format 1. The rows of a partition are adjacent, in offset order; partitions are ordered by topic id and
number; after them comes a row for every intake file that they name. A row group holds `ROW_GROUP_ROWS` rows,
so the index of a row gives its row group. The footer's key `archiver.shelf` holds an index (`HistoryIndex`):
the rows of each partition, their sums, and a digest. So the footer alone finds a partition, and one or two
row groups hold it. The columns are in docs/data-layout.md.

The same span of the same log gives the same content. An altered bit is detected: the checkpoint has size and
digest of the object and of its footer, and the footer has digests of each partition's rows. Pure except for
the Parquet codec.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError

from archiver.objects.paths import history_key
from archiver.proto import intake_state_pb2 as pb
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, InvalidInput, passing
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from intake.format import footer_sha256
from intake.log.checkpoint import HistoryRef
from intake.log.fold import IntakeFold
from intake.log.state import Gap, merged
from intake.parquet_footer import check_footer_columns, footer_only
from intake.parquet_pages import check_pages
from intake.segments import (
    ACCEPT_MAX_US,
    BASE,
    END,
    LOG_INDEX,
    NONE,
    NUMBERS,
    RAW_BYTES,
    FileRef,
    Numbers,
    Segments,
)

FORMAT = 1
INDEX_KEY = b"archiver.shelf"
ROW_GROUP_ROWS = 8192
"""Part of the format. About 100 KB: small enough to read one partition, large enough to keep the footer
small."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic_id", pa.binary()),
    pa.field("partition", pa.int32()),
    *(pa.field(name, pa.int64()) for name in NUMBERS),
    pa.field("key", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("footer_sha256", pa.binary()),
]
SCHEMA = pa.schema(_FIELDS)
"""A segment has all columns up to `floor_us`; a gap only the first ones up to `end`; a file `log_index` and
the columns after `floor_us`."""

Rows = Numbers
"""Rows of a partition: one per segment and gap, as in `intake.segments`; -1 for null."""
_NULL = -1


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """One partition in a span of the log: offsets [start, end), each in a segment or in a gap."""

    start: int
    end: int
    segments: Segments = field(default_factory=lambda: NONE)
    gaps: Sequence[Gap] = ()


Content = dict[TopicPartition, PartitionHistory]
"""Of a history file: every partition that existed, in order of topic id and number."""


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """The index entry of one partition."""

    start: int
    end: int
    first_row: int
    segments: int
    gaps: int
    records: int
    raw_bytes: int
    first_accept_us: int
    newest_us: int
    first_floor_us: int
    digest: int


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The content of a history file's footer."""

    partitions: Mapping[TopicPartition, PartitionIndex]
    files: int
    files_digest: int
    rows: int
    """Of partitions; the rows of files follow them."""
    metadata: pq.FileMetaData = field(repr=False)


def decided(fold: IntakeFold) -> Content:
    """The content below the stable offsets of a fold: what the history file of its checkpoint must hold."""
    # Computed for all partitions at once: `stable_offset` visits every open transaction per call.
    stable = {tp: state.next_offset for tp, state in fold.state().partitions.items()}
    for transaction in fold.transactions:
        for tp, ranges in transaction.ranges.items():
            stable[tp] = min(stable[tp], ranges[0][0])
    content: Content = {}
    for tp in sorted(stable):
        state, end = fold.partition(tp), stable[tp]
        # No segment reaches across a stable offset, because a transaction never shares a segment.
        segments = state.segments[: state.segments.first_beyond(end)]
        # Adjacent gaps are joined, so the content does not depend on how the fold came to them.
        content[tp] = PartitionHistory(
            state.history_end, end, segments, merged(state.gaps, state.history_end, end)
        )
    return content


# --- writing


def encode(content: Content) -> bytes:
    """The object of a history file."""
    rows_of = {tp: _rows(part) for tp, part in content.items()}
    files = _files_of(content)
    index = _index_message(content, rows_of, files)
    sink = pa.BufferOutputStream()
    writer_class: Any = pq.ParquetWriter  # its published types know no list of dictionary columns
    with writer_class(
        sink,
        SCHEMA,
        compression="zstd",
        use_dictionary=["topic_id", "partition"],
        # Offsets, indexes and times rise slowly, so their differences take few bits.
        column_encoding=dict.fromkeys((*NUMBERS, "size"), "DELTA_BINARY_PACKED"),
        write_statistics=["topic_id", "partition"],
        write_page_checksum=True,
        # The Arrow schema would make the footer larger, and every reader knows it.
        store_schema=False,
    ) as writer:
        # Base64, because values in a Parquet footer are UTF-8 text.
        text = base64.b64encode(zlib.compress(index.SerializeToString(deterministic=True), 6))
        writer.add_key_value_metadata({INDEX_KEY.decode(): text.decode()})
        table = pa.concat_tables([_partition_table(rows_of), _file_table(files)])
        # For an empty table pyarrow would write a row group without rows.
        if table.num_rows:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def ref_of(start: int, end: int, data: bytes) -> HistoryRef:
    """The reference to the history file of entries [start, end) with these bytes."""
    return HistoryRef(start, end, len(data), hashlib.sha256(data).digest(), footer_sha256(data))


def _rows(part: PartitionHistory) -> Rows:
    if not part.gaps:
        return part.segments.numbers
    # A gap has only the columns `base` and `end`.
    gaps = np.array([(base, end, *[_NULL] * (len(NUMBERS) - 2)) for base, end in part.gaps], np.int64)
    rows = np.concatenate([part.segments.numbers, gaps])
    return rows[np.argsort(rows[:, BASE], kind="stable")]


def _files_of(content: Content) -> list[FileRef]:
    found: dict[int, FileRef] = {}
    for part in content.values():
        # The mapping of a view may hold more files than these segments name.
        found.update((index, part.segments.files[index]) for index in part.segments.indexes.difference(found))
    return [found[index] for index in sorted(found)]


def _partition_table(rows_of: Mapping[TopicPartition, Rows]) -> pa.Table:
    counts = [len(rows) for rows in rows_of.values()]
    topic_ids = np.repeat(np.arange(len(rows_of), dtype=np.int32), counts)
    names = pa.array([bytes.fromhex(topic_id) for topic_id, _ in rows_of], pa.binary())
    partitions = np.repeat(np.array([number for _, number in rows_of], np.int32), counts)
    # The empty part gives the right shape if there is no partition.
    whole: Rows = np.concatenate([*rows_of.values(), np.zeros((0, len(NUMBERS)), np.int64)])
    gap = whole[:, LOG_INDEX] == _NULL
    columns: list[Any] = [names.take(topic_ids), pa.array(partitions)]
    columns += [
        pa.array(whole[:, place], mask=gap if place >= LOG_INDEX else None) for place in range(len(NUMBERS))
    ]
    nothing = [pa.nulls(len(whole), item.type) for item in list(SCHEMA)[len(columns) :]]
    return pa.Table.from_arrays([*columns, *nothing], schema=SCHEMA)


def _file_table(files: Sequence[FileRef]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "log_index": [file.log_index for file in files],
        "key": [file.key for file in files],
        "size": [file.size for file in files],
        "footer_sha256": [file.footer_sha256 for file in files],
    }
    arrays = [
        pa.array(columns[item.name], item.type) if item.name in columns else pa.nulls(len(files), item.type)
        for item in list(SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _index_message(
    content: Content, rows_of: Mapping[TopicPartition, Rows], files: Sequence[FileRef]
) -> pb.ShelfIndex:
    topic_ids = sorted({topic_id for topic_id, _ in content})
    places = {topic_id: place for place, topic_id in enumerate(topic_ids)}
    index = pb.ShelfIndex(format=FORMAT, topic_ids=[bytes.fromhex(topic_id) for topic_id in topic_ids])
    first_row = 0
    for (topic_id, partition), part in content.items():
        rows = rows_of[topic_id, partition]
        segments = part.segments
        first = segments[0] if segments else None
        index.topics.append(places[topic_id])
        index.partitions.append(partition)
        index.starts.append(part.start)
        index.ends.append(part.end)
        index.first_rows.append(first_row)
        index.segments.append(len(segments))
        index.gaps.append(len(part.gaps))
        index.records.append(int((segments.ends - segments.bases).sum()))
        index.raw_bytes.append(int(segments.raw_bytes.sum()))
        index.first_accept_us.append(first.accept_max_us if first else 0)
        index.newest_us.append(int(segments.numbers[:, ACCEPT_MAX_US].max()) if segments else 0)
        index.first_floor_us.append(first.floor_us if first else 0)
        index.digests.append(_digest(rows))
        first_row += len(rows)
    index.files = len(files)
    index.files_digest = _files_digest(files)
    return index


def _digest(rows: Rows) -> int:
    # Eight bytes find damage; the checkpoint has the full digest of the object. The byte order is fixed.
    return int.from_bytes(hashlib.sha256(rows.astype("<i8").tobytes()).digest()[:8], "little")


def _files_digest(files: Iterable[FileRef]) -> int:
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.log_index} {file.key} {file.size} {file.footer_sha256.hex()}\n".encode())
    return int.from_bytes(whole.digest()[:8], "little")


# --- reading


def read_index(ref: HistoryRef, footer: bytes) -> HistoryIndex:
    """Parse the footer (with its length and magic). Its digest was checked before, where there is one.

    Raises `Corrupted` if it is not of a history file, `Halt` if a newer version wrote it.
    """
    try:
        # A file that stands at its place before its checkpoint has no digest to be compared with.
        check_footer_columns(footer)
        metadata = pq.read_metadata(pa.BufferReader(footer_only(footer)))
        text = (metadata.metadata or {}).get(INDEX_KEY, b"")
        message = pb.ShelfIndex.FromString(zlib.decompress(base64.b64decode(text)))
    except (OSError, pa.ArrowException, InvalidInput, ValueError, zlib.error, DecodeError) as error:
        raise _unreadable(ref, f"its footer cannot be read ({error})", error) from error
    if message.format != FORMAT:
        raise Halt(
            f"history file {history_key(ref.start, ref.end)} has the format {message.format}, this version "
            f"knows {FORMAT}; upgrade"
        )
    topic_ids = [TopicId(topic_id.hex()) for topic_id in message.topic_ids]
    tps = [
        (topic_ids[topic], partition)
        for topic, partition in zip(message.topics, message.partitions, strict=True)
    ]
    columns = (
        *(
            message.starts,
            message.ends,
            message.first_rows,
            message.segments,
            message.gaps,
            message.records,
            message.raw_bytes,
        ),
        *(message.first_accept_us, message.newest_us, message.first_floor_us, message.digests),
    )
    partitions = {tp: PartitionIndex(*line) for tp, line in zip(tps, zip(*columns, strict=True), strict=True)}
    rows = sum(one.segments + one.gaps for one in partitions.values())
    # The index and the footer must agree before rows are found by their number.
    if metadata.num_rows != rows + message.files:
        raise damaged(
            ref, f"it has {counted(metadata.num_rows, 'row')}, its index says {rows + message.files}"
        )
    return HistoryIndex(partitions, message.files, message.files_digest, rows, metadata)


def groups_of(place: PartitionIndex) -> range:
    """The row groups that hold a partition's rows."""
    rows = place.segments + place.gaps
    return (
        range(place.first_row // ROW_GROUP_ROWS, -(-(place.first_row + rows) // ROW_GROUP_ROWS))
        if rows
        else range(0)
    )


def read_group(ref: HistoryRef, index: HistoryIndex, source: pa.NativeFile, number: int) -> Rows:
    """The partition rows of one row group, unchecked."""
    first = number * ROW_GROUP_ROWS
    return _matrix(ref, index, source, first, min(ROW_GROUP_ROWS, index.rows - first))


def rows_of(ref: HistoryRef, index: HistoryIndex, tp: TopicPartition, groups: Sequence[Rows]) -> Rows:
    """The rows of one partition, from the row groups that hold them; `Corrupted` if their digest does not
    match.
    """
    place = index.partitions[tp]
    # Every row group but the last holds exactly `ROW_GROUP_ROWS` rows.
    first = place.first_row % ROW_GROUP_ROWS
    whole = (
        groups[0] if len(groups) == 1 else np.concatenate([np.empty((0, len(NUMBERS)), np.int64), *groups])
    )
    return _checked(ref, tp, place, whole[first : first + place.segments + place.gaps])


def _matrix(ref: HistoryRef, index: HistoryIndex, source: pa.NativeFile, first: int, count: int) -> Rows:
    table = _table(ref, index, source, first, count, NUMBERS)
    # Column by column into one matrix, so no second copy of the whole is needed.
    rows: Rows = np.empty((count, len(NUMBERS)), np.int64)
    for number, name in enumerate(NUMBERS):
        column: Any = table.column(name)
        rows[:, number] = column.fill_null(_NULL).to_numpy()
    return rows


def _checked(ref: HistoryRef, tp: TopicPartition, place: PartitionIndex, rows: Rows) -> Rows:
    if _digest(rows) != place.digest:
        raise damaged(
            ref, f"the rows of partition {tp[1]} of topic id {tp[0]} are not those that were written"
        )
    return rows


def read_files(ref: HistoryRef, index: HistoryIndex, source: pa.NativeFile) -> list[FileRef]:
    """The intake files that the history file names, in log order; `Corrupted` if the digest differs."""
    table = _table(ref, index, source, index.rows, index.files, ("log_index", "key", "size", "footer_sha256"))
    columns = [table.column(name).to_pylist() for name in ("log_index", "key", "size", "footer_sha256")]
    try:
        files = [FileRef(*line) for line in zip(*columns, strict=True)]
        digest = _files_digest(files)
    # A damaged page may decode to nulls where a name or digest belongs.
    except (TypeError, AttributeError) as error:
        raise damaged(ref, f"the names of its files cannot be read ({error})") from error
    if digest != index.files_digest:
        raise damaged(ref, "the names of its files are not those that were written")
    return files


def inside(rows: Rows, start: int, end: int, bytes_max: int | None) -> tuple[Rows, int]:
    """The segments that reach beyond `start` and end by `end`, until their bytes reach `bytes_max`; and their
    bytes.
    """
    # Gaps are excluded: they have no log index.
    found = rows[(rows[:, LOG_INDEX] != _NULL) & (rows[:, END] > start) & (rows[:, END] <= end)]
    reached = np.cumsum(found[:, RAW_BYTES])
    if bytes_max is not None:
        # The segment that reaches the limit is included, so a call never returns nothing while there is more.
        reached = reached[: int(np.searchsorted(reached, bytes_max)) + 1]
    return found[: len(reached)], int(reached[-1]) if len(reached) else 0


def segments_of(rows: Rows, file_of: Mapping[int, FileRef]) -> Segments:
    """The segments among the rows; `file_of` maps a log index to its file."""
    return Segments(rows[rows[:, LOG_INDEX] != _NULL], file_of)


def gaps_of(rows: Rows) -> list[Gap]:
    """The gaps among the rows."""
    return [(base, end) for base, end in rows[rows[:, LOG_INDEX] == _NULL][:, :2].tolist()]


def decode(ref: HistoryRef, data: bytes) -> Content:
    """The inverse of `encode` for the referenced file. Raises as `read_index`, and `Corrupted` if a bit is
    wrong.
    """
    # The reference is in a verified checkpoint, so it proves every bit of the file.
    if len(data) != ref.size or hashlib.sha256(data).digest() != ref.sha256:
        raise damaged(
            ref, f"{len(data)} bytes do not match the checkpoint's digest and size ({ref.size} bytes)"
        )
    return content_of(ref, data)


def content_of(ref: HistoryRef, data: bytes) -> Content:
    """Parse the bytes; only their own digests are checked."""
    # A Parquet file ends with the length of its footer and the magic.
    length = int.from_bytes(data[-8:-4], "little") + 8
    if data[-4:] != b"PAR1" or length > len(data):
        raise damaged(ref, "it does not end in a Parquet footer")
    index = read_index(ref, data[-length:])
    source = pa.BufferReader(data)
    file_of = {file.log_index: file for file in read_files(ref, index, source)}
    whole = _matrix(ref, index, source, 0, index.rows)
    content: Content = {}
    for tp, place in index.partitions.items():
        rows = _checked(
            ref, tp, place, whole[place.first_row : place.first_row + place.segments + place.gaps]
        )
        content[tp] = PartitionHistory(place.start, place.end, segments_of(rows, file_of), gaps_of(rows))
    return content


def _table(
    ref: HistoryRef,
    index: HistoryIndex,
    source: pa.NativeFile,
    first: int,
    count: int,
    columns: Sequence[str],
) -> pa.Table:
    """`count` rows from row `first` on."""
    groups = range(first // ROW_GROUP_ROWS, (first + count - 1) // ROW_GROUP_ROWS + 1) if count else range(0)
    try:
        # The metadata was verified with the footer. Page headers have no checksum, so they are checked before
        # decoding.
        parquet = pq.ParquetFile(
            source, metadata=index.metadata, page_checksum_verification=True, pre_buffer=False
        )
        for group in groups:
            check_pages(source, index.metadata, group, columns)
        table = parquet.read_row_groups(list(groups), columns=list(columns), use_threads=False)
        table = table.slice(first - groups.start * ROW_GROUP_ROWS, count) if count else table
    except (OSError, pa.ArrowException, InvalidInput) as error:
        raise _unreadable(ref, str(error), error) from error
    if table.num_rows != count:
        raise damaged(ref, f"{counted(table.num_rows, 'row')} where there should be {count}")
    return table


def _unreadable(ref: HistoryRef, why: str, error: Exception) -> ArchiverError:
    # A lack of memory, of open files or of a connection is no damage of the file.
    return passing(error, f"history file {history_key(ref.start, ref.end)}") or damaged(ref, why)


def damaged(ref: HistoryRef, why: str) -> Corrupted:
    """The error for a history file whose content is not what was written."""
    return Corrupted(
        f"history file {history_key(ref.start, ref.end)} is damaged: {why}; restore it from a copy; until "
        "then its records cannot be archived"
    )
