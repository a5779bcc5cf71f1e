"""Rebuilds records from one archive, or from segments of intake.

Guarantees: the offsets follow each other without a hole, except for the gaps that an archive's footer names.
Keys and values are the producer's bytes. Ingest times from intake are those that refinement writes: the
running maximum of the accept times, never below the segment's floor. Holds one batch of an archive, or one
row group of intake, at a time; of an archive of up to `VERIFY_BYTES_MAX` also the bytes, and up to
`KEPT_BYTES_MAX` of its records while they are given for the first time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, NotFound, passing
from archiver.runtime.ids import TopicId
from archiver.schema.codec import RecordCodec
from archiver.stream.archives import FoundArchive, FoundFooter, check_footer
from archiver.stream.records import STREAM_SCHEMA
from archiver.stream.seal import check_seal
from intake.parquet_pages import checked_batches
from intake.read.digest import RecordsDigest
from intake.read.reader import IntakeReader
from intake.records import UNKNOWN_BATCH
from intake.segments import SegmentRef

_INGEST_TYPE = STREAM_SCHEMA.field("ingest_timestamp").type

BATCH_ROWS = 16_384
"""Rows of an archive that are decoded at a time."""

VERIFY_BYTES_MAX = 16 * 1024 * 1024
"""An archive of up to this size is held in memory and verified as a whole before its first record is given.
"""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Records of such an archive are kept from its verification if they take no more, and else decoded again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one schema version of a topic's archives, and the codec that rebuilds their records."""

    columns: pa.Schema
    codec: RecordCodec


@dataclass(slots=True)
class HeldBytes:
    """About how much memory a read of an archive holds between two batches, for callers that keep many reads
    open.
    """

    count: int = 0


class Vanished(Corrupted):
    """An archive was listed and is gone: deleted by an operator, or by cleaning, because other archives hold
    its records.
    """


Layouts = Callable[[TopicId, int], Layout]
"""The layout of a topic's schema version."""

_Range = tuple[int, int]


def from_archive(
    objects: ObjectStore,
    found: FoundArchive,
    start: int,
    stop: int,
    cluster_id: str,
    layouts: Layouts,
    batch_rows: int = BATCH_ROWS,
    verified: set[str] | None = None,
    held: HeldBytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records in [start, stop) of one archive that covers `start`, as `STREAM_SCHEMA`.

    Before the first record these are checked: the footer against its checksum and the archive's key, and its
    columns against the topic's schema. While reading: the checksums of pages, and that the offsets are the
    expected ones. The records must also have the digest that the footer names:

    - An archive of up to `VERIFY_BYTES_MAX` is first read and compared as a whole, even if only a part is
      requested.
    - A larger one that is read from its base to its end is compared on the way, before its last batch. A
      wrong digest then invalidates records that were already given.
    - For a larger one that is read in part, no digest is known. Its page headers have no checksum, so damage
      to them can go unnoticed.

    Keys whose digest was right are added to `verified`; a key that is in it is not compared again. Raises
    `Corrupted` if the object is gone, is not what its key says, lacks an offset, or fails a check.
    """
    known = set() if verified is None else verified
    held = HeldBytes() if held is None else held
    kept: deque[pa.RecordBatch] | None = None
    with (
        _reading(found, start),
        _opened(objects, found) as source,
        _archive(source, found, cluster_id, layouts) as archive,
    ):
        # A small archive is in memory, of a larger one the row group that is read.
        held.count = found.size if found.size <= VERIFY_BYTES_MAX else archive.group_bytes
        # Before the first record is given, so that a wrong digest invalidates nothing.
        if found.key not in known and found.size <= VERIFY_BYTES_MAX:
            kept = archive.verify(KEPT_BYTES_MAX)
            known.add(found.key)
        if kept is None:
            # The digest is over all records, so a part of a large archive cannot be compared.
            whole = found.key not in known and start <= found.base and stop >= found.end
            yield from archive.records(
                start, min(stop, found.end), batch_rows, archive.empty_digest() if whole else None
            )
            # Reached only if all of it was read and its digest was right.
            if whole:
                known.add(found.key)
    # After the archive is closed: its bytes are not held as well.
    if kept is not None:
        held.count = sum(records.nbytes for records in kept)
        yield from _between(kept, start, stop, batch_rows)
    held.count = 0


def whole_archive(
    objects: ObjectStore, found: FoundArchive, cluster_id: str, layouts: Layouts
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The rows of one archive as they are in the file, and the records rebuilt from them, batch by batch.

    Checks all that `from_archive` checks. The digest is compared before the last batch, so the caller must
    not use anything before the end. Raises as `from_archive`.
    """
    with (
        _reading(found, found.base),
        _opened(objects, found) as source,
        _archive(source, found, cluster_id, layouts) as archive,
    ):
        yield from archive.rows(found.base, found.end, BATCH_ROWS, archive.empty_digest())


def check_records(source: pa.NativeFile, found: FoundArchive, cluster_id: str, layouts: Layouts) -> None:
    """Rebuild every record of an archive that is not stored yet; raises `Corrupted` if they do not have the
    digest in its footer.
    """
    with _reading(found, found.base), _archive(source, found, cluster_id, layouts) as archive:
        archive.verify()


def _between(
    batches: deque[pa.RecordBatch], start: int, stop: int, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The records in [start, stop), at most `batch_rows` at a time; takes the batches."""
    while batches:
        records = batches.popleft()
        offsets = records.column("offset").to_numpy()
        low, high = (int(place) for place in np.searchsorted(offsets, [start, stop]))
        for place in range(low, high, batch_rows):
            yield records.slice(place, min(batch_rows, high - place))


@contextmanager
def _reading(found: FoundArchive, start: int) -> Iterator[None]:
    """Turns the errors of libraries inside into `Corrupted`, unless they are temporary."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        # ValueError: text in the footer that is no UTF-8, among others.
        damage = Corrupted(
            f"{found.key} cannot be read ({error}); offsets {start} to {found.end - 1} are in it"
        )
        # A lack of memory or files says nothing about the bytes.
        raise passing(error, found.key) or damage from error


@contextmanager
def _archive(
    source: pa.NativeFile, found: FoundArchive, cluster_id: str, layouts: Layouts
) -> Iterator[_Archive]:
    """An open archive, after its footer was checked."""
    # Before the Parquet library parses anything: a damaged footer can end the process.
    check_seal(source, found.key)
    source.seek(0)
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        yield _Archive(found, source, file, check_footer(found, file.metadata, cluster_id), layouts)


def _opened(objects: ObjectStore, found: FoundArchive) -> pa.NativeFile:
    """The archive to read from; a small one, which is read twice, is fetched once."""
    try:
        source = objects.open_input(found.key)
    # An error of its own, because a reader may find the records in another archive.
    except NotFound as error:
        raise Vanished(
            f"{found.key} was listed and is gone; offsets {found.base} to {found.end - 1} cannot be "
            "read from it"
        ) from error
    if found.size > VERIFY_BYTES_MAX:
        return source
    # In memory, because it is read twice: to compare the digest, and to give the records.
    with source:
        return pa.BufferReader(source.read(found.size))


class _Archive:
    """An open archive whose footer was checked."""

    def __init__(
        self,
        found: FoundArchive,
        source: pa.NativeFile,
        file: pq.ParquetFile,
        footer: FoundFooter,
        layouts: Layouts,
    ) -> None:
        self._found = found
        self._source = source
        self._file = file
        self._footer = footer
        layout = layouts(found.topic_id, footer.schema_version)
        self._codec = layout.codec
        # The codec rebuilds records from exactly these columns.
        _check_columns(found.key, file.schema_arrow, layout.columns)

    @property
    def group_bytes(self) -> int:
        """Bytes of a row group at the mean."""
        return self._found.size // max(1, self._file.metadata.num_row_groups)

    def empty_digest(self) -> RecordsDigest:
        """A digest to compare with the footer's."""
        return RecordsDigest(self._footer.digest_version)

    def verify(self, kept_bytes_max: int = 0) -> deque[pa.RecordBatch] | None:
        """Rebuild all records and compare them; returns them unless they take more than `kept_bytes_max`."""
        kept: deque[pa.RecordBatch] | None = deque()
        size = 0
        for _, records in self.rows(self._found.base, self._found.end, BATCH_ROWS, self.empty_digest()):
            size += records.nbytes
            if size > kept_bytes_max:
                kept = None
            if kept is not None:
                kept.append(records)
        return kept

    def records(
        self, start: int, stop: int, batch_rows: int, digest: RecordsDigest | None
    ) -> Iterator[pa.RecordBatch]:
        """The records in [start, stop). With `digest`, which needs all records, they are compared before the
        last batch.
        """
        for _, records in self.rows(start, stop, batch_rows, digest):
            yield records

    def rows(
        self, start: int, stop: int, batch_rows: int, digest: RecordsDigest | None
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """The rows as they are in the file, and the records rebuilt from them."""
        found = self._found
        chain = _Chain(found.key, start, stop, self._footer.gaps)
        groups = _row_groups(self._file.metadata, start, stop)
        for batch in checked_batches(self._source, self._file, max(1, min(batch_rows, stop - start)), groups):
            kept = chain.take(batch, _offsets(found, batch))
            records = archive_records(found.key, self._codec, kept)
            if digest is not None:
                digest.update(records)
                # Before the last batch is given: the caller must not get an end that is not confirmed.
                if chain.complete:
                    self._compare(digest)
            if records.num_rows:
                yield kept, records
            if chain.complete:
                return
        # The file has ended; offsets that are still expected are missing.
        chain.finish()

    def _compare(self, digest: RecordsDigest) -> None:
        if digest.digest() != self._footer.records_digest:
            raise Corrupted(
                f"{self._found.key}: the digest of its records is {digest.digest().hex()}, its footer says "
                f"{self._footer.records_digest.hex()}; the object was altered, restore it"
            )


def _same(found: pa.Field[Any], expected: pa.Field[Any], *, named: bool = True) -> bool:
    """Whether two fields are equal, with all fields inside of them."""
    if (named and found.name != expected.name) or found.nullable != expected.nullable:
        return False
    if (found.metadata or {}) != (expected.metadata or {}):
        return False
    theirs: Any = found.type
    ours: Any = expected.type
    # Without names: pyarrow gives the values of a map the map's own name when it reads one.
    if pa.types.is_map(ours):
        inside = pa.types.is_map(theirs) and _same(theirs.key_field, ours.key_field, named=False)
        return inside and _same(theirs.item_field, ours.item_field, named=False)
    if pa.types.is_struct(ours):
        inside = pa.types.is_struct(theirs) and theirs.num_fields == ours.num_fields
        return inside and all(
            _same(theirs.field(number), ours.field(number)) for number in range(ours.num_fields)
        )
    if pa.types.is_list(ours):
        return pa.types.is_list(theirs) and _same(theirs.value_field, ours.value_field)
    return bool(theirs == ours)


def _check_columns(key: str, found: pa.Schema, expected: pa.Schema) -> None:
    """Names, types, field ids and which columns can be null must be those of the topic's schema."""
    if found.names == expected.names and all(
        _same(theirs, ours) for theirs, ours in zip(found, expected, strict=True)
    ):
        return
    theirs, ours = {field.name: field for field in found}, {field.name: field for field in expected}
    wrong = [name for name in [*ours, *theirs] if name not in theirs or name not in ours]
    wrong += [name for name in ours if name in theirs and not _same(theirs[name], ours[name])]
    raise Corrupted(
        f"{key}: its columns ({', '.join(wrong) or 'their order'}) are not those of the topic's "
        "schema; the object was altered"
    )


def _offsets(found: FoundArchive, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The offsets of an archive's rows; every row must be of the archive's partition."""
    partitions, offsets = (
        pc.struct_field(batch.column("kafka"), "partition"),
        pc.struct_field(batch.column("kafka"), "offset"),
    )
    if (
        offsets.null_count
        or partitions.null_count
        # `min_count=0`: an empty batch has no wrong row.
        or not pc.all(pc.equal(partitions, pa.scalar(found.partition)), min_count=0).as_py()
    ):
        raise Corrupted(
            f"{found.key} holds rows without an offset or of another partition; the object was altered"
        )
    result: npt.NDArray[np.int64] = offsets.to_numpy(zero_copy_only=False)
    return result


class _Chain:
    """Checks that rows have the expected offsets: from `start` to `stop` without the gaps, each once, in
    order.
    """

    def __init__(self, key: str, start: int, stop: int, gaps: Sequence[_Range]) -> None:
        self._key = key
        self._gaps = sorted(gaps)
        self.stop = stop
        self._next = self._after_gaps(start)
        self._last = -1

    @property
    def complete(self) -> bool:
        """Whether nothing more is expected."""
        return self._next >= self.stop

    def take(self, batch: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The rows of `batch` in the range; raises `Corrupted` if they are not the next ones."""
        if not len(offsets):
            return batch
        # Over all rows and not only those of the range, because the search below needs sorted offsets.
        if int(offsets[0]) <= self._last or not bool((np.diff(offsets) > 0).all()):
            raise Corrupted(f"{self._key}: its offsets are not in order; the object was altered")
        self._last = int(offsets[-1])
        low, high = (int(place) for place in np.searchsorted(offsets, [self._next, self.stop]))
        # No row of the range: the batch is below it, or above it if the rest is a gap.
        if low >= high:
            return batch.slice(0, 0)
        # Every offset of the range up to here must be present, except for the gaps.
        expected = self._expected(int(offsets[high - 1]) + 1, high - low)
        if expected is None or not np.array_equal(expected, offsets[low:high]):
            raise Corrupted(f"{self._key}: {self._lost(offsets[low:high])}")
        self._next = self._after_gaps(int(offsets[high - 1]) + 1)
        return batch.slice(low, high - low)

    def finish(self) -> None:
        """Raise `Corrupted` if offsets are missing at the end."""
        if not self.complete:
            raise Corrupted(
                f"{self._key}: offsets {self._next} to {self.stop - 1} are missing; the object was altered"
            )

    def _expected(self, end: int, count: int) -> npt.NDArray[np.int64] | None:
        """The offsets from the next one to `end` without gaps, if there are `count` of them."""
        gaps = self._gaps_in(self._next, end)
        in_gaps = sum(min(high, end) - max(low, self._next) for low, high in gaps)
        # A count first: an altered offset could ask for an array of any size.
        if end - self._next - in_gaps != count:
            return None
        offsets = np.arange(self._next, end, dtype=np.int64)
        kept = np.ones(len(offsets), dtype=bool)
        for low, high in gaps:
            kept[max(0, low - self._next) : high - self._next] = False
        return offsets[kept]

    def _gaps_in(self, start: int, end: int) -> list[_Range]:
        """The gaps that reach into [start, end)."""
        # The gap before may reach into the range.
        first = max(0, bisect_right(self._gaps, start, key=lambda gap: gap[0]) - 1)
        last = bisect_left(self._gaps, end, key=lambda gap: gap[0])
        return [gap for gap in self._gaps[first:last] if gap[1] > start]

    def _lost(self, offsets: npt.NDArray[np.int64]) -> str:
        holes = np.flatnonzero(np.diff(offsets) > 1)
        first = (
            self._next
            if int(offsets[0]) > self._next
            else int(offsets[holes[0]]) + 1
            if len(holes)
            else int(offsets[0])
        )
        following = int(offsets[np.searchsorted(offsets, first)])
        # The offset is there, so the file has more rows than it should.
        if following == first:
            return (
                f"it holds rows inside the gaps that its footer names, from offset {first} on; the object "
                "was altered"
            )
        return f"offsets {first} to {following - 1} are missing; the object was altered"

    def _after_gaps(self, offset: int) -> int:
        return behind_gaps(self._gaps, offset)


def behind_gaps(gaps: Sequence[_Range], offset: int) -> int:
    """The first offset, from `offset` on, that is in no gap."""
    if not gaps:
        return offset
    # Gaps may touch each other, so one may follow at the end of another.
    for low, high in gaps[max(0, bisect_right(gaps, offset, key=lambda gap: gap[0]) - 1) :]:
        if low > offset:
            break
        offset = max(offset, high)
    return offset


def _row_groups(metadata: pq.FileMetaData, start: int, stop: int) -> list[int]:
    """The row groups that can hold offsets in [start, stop), by the statistics of `kafka.offset`; all if
    there are none.
    """
    column = next(
        (
            place
            for place in range(metadata.num_columns)
            if metadata.schema.column(place).path == "kafka.offset"
        ),
        None,
    )
    chosen: list[int] = []
    for group in range(metadata.num_row_groups):
        # Statistics are not proof: the chain checks what is read.
        statistics: Any = None if column is None else metadata.row_group(group).column(column).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or (statistics.max >= start and statistics.min < stop)
        ):
            chosen.append(group)
    return chosen


def archive_records(key: str, codec: RecordCodec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records of an archive's rows, as `STREAM_SCHEMA`: keys and values are rebuilt, byte for byte.
    Raises `Corrupted` with `key`.
    """
    keys, values = codec.rebuild(batch.column("key"), batch.column("value"))
    kafka = batch.column("kafka")
    batch.column("headers").validate(full=True)  # names are UTF-8
    if batch.column("headers").null_count or pc.struct_field(kafka, "ingest_timestamp").null_count:
        raise Corrupted(f"{key} holds rows without headers or without an ingest time; the object was altered")
    columns: dict[str, Any] = {
        name: pc.struct_field(kafka, name)
        for name in ("offset", "event_timestamp", "ingest_timestamp", "batch_start")
    }
    return _stream_batch({**columns, "key": keys, "value": values, "headers": batch.column("headers")})


def from_intake(
    reader: IntakeReader, segments: Sequence[SegmentRef], gaps: Sequence[_Range], start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """The records in [start, stop) from the segments of one topic partition, as `STREAM_SCHEMA`; offsets in
    `gaps` have none.

    Raises `Corrupted` if an intake file is gone or altered, or if segments and gaps leave a hole.
    """
    # Gaps at the start have no segment.
    reached = behind_gaps(gaps, start)
    for run in _by_file([segment for segment in segments if segment.end > start and segment.base < stop]):
        try:
            for segment, records in reader.read(run[0].file, run):
                # A hole, which is reported after the loop.
                if segment.base > reached:
                    break
                if records.num_rows != segment.rows:
                    raise Corrupted(
                        f"{segment.file.key} has {records.num_rows} rows from offset {segment.base} "
                        f"on; the log says {segment.rows}"
                    )
                # The first and the last segment may reach beyond the range.
                low, high = max(segment.base, reached), min(segment.end, stop)
                if low < high:
                    yield from_segment(segment, records).slice(low - segment.base, high - low)
                    reached = behind_gaps(gaps, high)
        # No archive covers these offsets, so the intake file is the only copy.
        except NotFound as error:
            raise Corrupted(
                f"offsets {run[0].base} to {run[-1].end - 1} are in no archive, and their intake file "
                f"{run[0].file.key} is gone; restore it"
            ) from error
    # Also for a hole between two segments: the stream never skips an offset.
    if reached < stop:
        raise Corrupted(
            f"offsets {reached} to {stop - 1} are in no archive and in no intake file; restore what is "
            "missing from the data folder"
        )


def _by_file(segments: Sequence[SegmentRef]) -> Iterator[list[SegmentRef]]:
    """Runs of segments that are in the same file."""
    # One read per file, because a file may hold many segments of the partition.
    run: list[SegmentRef] = []
    for segment in segments:
        if run and run[-1].file.key != segment.file.key:
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def ingest_times(segment: SegmentRef, accept_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ingest times of a whole segment: the running maximum of its accept times, not below its floor."""
    # Refinement raises the first row to the floor before the running maximum, which gives the same times.
    result: npt.NDArray[np.int64] = np.maximum(np.maximum.accumulate(accept_us), segment.floor_us)
    return result


def from_segment(segment: SegmentRef, records: pa.RecordBatch) -> pa.RecordBatch:
    """The records of a whole segment as `IntakeReader` gives them, as `STREAM_SCHEMA`."""
    accept_us = records.column("accept_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    offsets = np.arange(segment.base, segment.end, dtype=np.int64)
    return placed(offsets, records, ingest_times(segment, accept_us))


def placed(
    places: npt.NDArray[np.int64], records: pa.RecordBatch, ingest_us: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """Intake records with their offsets and their ingest times, as `STREAM_SCHEMA`."""
    batch: Any = records.column("batch")
    if batch.null_count:
        batch = pc.fill_null(batch, UNKNOWN_BATCH)
    columns: dict[str, Any] = {
        "offset": pa.array(places),
        "ingest_timestamp": pa.array(ingest_us).view(_INGEST_TYPE),
        "batch_start": _batch_starts(places, batch.to_numpy().astype(np.int64)),
        **{name: records.column(name) for name in ("event_timestamp", "key", "value", "headers")},
    }
    return _stream_batch(columns)


def _batch_starts(places: npt.NDArray[np.int64], batch: npt.NDArray[np.int64]) -> Any:
    """The first offset of each record's batch; null where the upstream source hides it."""
    # A mirrored source may not show where a batch begins.
    hidden = batch == UNKNOWN_BATCH
    return pa.array(places - batch, mask=hidden if hidden.any() else None)


def _stream_batch(columns: dict[str, Any]) -> pa.RecordBatch:
    arrays = []
    for field in STREAM_SCHEMA:
        array = columns[field.name]
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=STREAM_SCHEMA)
