"""Records rebuilt from one archive, or from segments of intake.

Promises that the offsets of what it yields follow each other without a hole (but for the gaps that an archive's footer names), that keys
and values are the producer's bytes, and that ingest times from intake are those that refinement writes: the running maximum of the accept
times, never below the segment's floor. Holds one batch of an archive, or one row group of intake, at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.errors import Corrupted, NotFound
from archiver.ids import TopicId
from archiver.objects.store import ObjectStore
from archiver.schema.codec import RecordCodec
from archiver.stream.archives import FoundArchive, check_footer
from archiver.stream.records import STREAM_SCHEMA
from intake.fold import SegmentRef
from intake.reader import IntakeReader

BATCH_ROWS = 16_384
"""Rows of an archive that are decoded at a time."""

Codecs = Callable[[TopicId, int], RecordCodec]
"""The codec of a topic's schema version."""

_Range = tuple[int, int]


def from_archive(
    objects: ObjectStore, found: FoundArchive, start: int, stop: int, cluster_id: str, codecs: Codecs, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The records in [start, stop) of one archive that covers `start`, as `STREAM_SCHEMA`.

    Raises `Corrupted` if the object is gone, is not what its key says, or lacks an offset.
    """
    try:
        source = objects.open_input(found.key)
    except NotFound as error:
        raise Corrupted(f"{found.key} was listed and is gone; offsets {start} to {found.end - 1} cannot be read from it") from error
    try:
        with source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            footer = check_footer(found, file.metadata, cluster_id)
            chain = _Chain(found.key, start, min(stop, found.end), footer.gaps)
            codec = codecs(found.topic_id, footer.schema_version)
            groups = _row_groups(file.metadata, start, chain.stop)
            for batch in file.iter_batches(batch_size=max(1, min(batch_rows, chain.stop - start)), row_groups=groups):
                kept = chain.take(batch, _offsets(found, batch))
                if kept.num_rows:
                    yield _archive_records(codec, kept)
                if chain.complete:
                    return
            chain.finish()
    except (pa.ArrowException, OSError, KeyError) as error:
        # KeyError: a column that every archive has is not there.
        raise Corrupted(f"{found.key} cannot be read ({error}); offsets {start} to {found.end - 1} are in it") from error


def _offsets(found: FoundArchive, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The offsets of an archive's rows; every row must be of the archive's partition."""
    partitions, offsets = pc.struct_field(batch.column("kafka"), "partition"), pc.struct_field(batch.column("kafka"), "offset")
    if offsets.null_count or partitions.null_count or not pc.all(pc.equal(partitions, pa.scalar(found.partition)), min_count=0).as_py():
        raise Corrupted(f"{found.key} holds rows without an offset or of another partition; the object was altered")
    result: npt.NDArray[np.int64] = offsets.to_numpy(zero_copy_only=False)
    return result


class _Chain:
    """Holds rows to the offsets that must come: from `start` to `stop` without the gaps, each once, in order."""

    def __init__(self, key: str, start: int, stop: int, gaps: Sequence[_Range]) -> None:
        self._key = key
        self._gaps = gaps
        self.stop = stop
        self._next = self._after_gaps(start)
        self._last = -1

    @property
    def complete(self) -> bool:
        """Nothing more is to come."""
        return self._next >= self.stop

    def take(self, batch: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The rows of `batch` in the range; raises `Corrupted` if they are not the next ones."""
        if not len(offsets):
            return batch
        if int(offsets[0]) <= self._last or not bool((np.diff(offsets) > 0).all()):
            raise Corrupted(f"{self._key}: its offsets are not in order; the object was altered")
        self._last = int(offsets[-1])
        low, high = (int(place) for place in np.searchsorted(offsets, [self._next, self.stop]))
        if low == high:
            return batch.slice(0, 0)
        wanted = self._expected(int(offsets[high - 1]) + 1, high - low)
        if wanted is None or not np.array_equal(wanted, offsets[low:high]):
            raise Corrupted(f"{self._key}: {self._lost(offsets[low:high])}")
        self._next = self._after_gaps(int(offsets[high - 1]) + 1)
        return batch.slice(low, high - low)

    def finish(self) -> None:
        """Raise `Corrupted` if offsets are still to come."""
        if not self.complete:
            raise Corrupted(f"{self._key}: offsets {self._next} to {self.stop - 1} are missing; the object was altered")

    def _expected(self, end: int, count: int) -> npt.NDArray[np.int64] | None:
        """The offsets from the next one to `end` without gaps, if there are `count` of them."""
        in_gaps = sum(max(0, min(high, end) - max(low, self._next)) for low, high in self._gaps)
        if end - self._next - in_gaps != count:
            return None
        wanted = np.arange(self._next, end, dtype=np.int64)
        for low, high in self._gaps:
            wanted = wanted[(wanted < low) | (wanted >= high)]
        return wanted

    def _lost(self, offsets: npt.NDArray[np.int64]) -> str:
        holes = np.flatnonzero(np.diff(offsets) > 1)
        first = self._next if int(offsets[0]) > self._next else int(offsets[holes[0]]) + 1 if len(holes) else int(offsets[0])
        following = int(offsets[np.searchsorted(offsets, first)])
        if following == first:
            return f"it holds rows inside the gaps that its footer names, from offset {first} on; the object was altered"
        return f"offsets {first} to {following - 1} are missing; the object was altered"

    def _after_gaps(self, offset: int) -> int:
        for low, high in sorted(self._gaps):
            if low <= offset < high:
                offset = high
        return offset


def _row_groups(metadata: pq.FileMetaData, start: int, stop: int) -> list[int]:
    """The row groups that can hold offsets in [start, stop), by the statistics of `kafka.offset`; all where there are none."""
    column = next((place for place in range(metadata.num_columns) if metadata.schema.column(place).path == "kafka.offset"), None)
    chosen: list[int] = []
    for group in range(metadata.num_row_groups):
        statistics: Any = None if column is None else metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.max >= start and statistics.min < stop):
            chosen.append(group)
    return chosen


def _archive_records(codec: RecordCodec, batch: pa.RecordBatch) -> pa.RecordBatch:
    keys, values = codec.rebuild(batch.column("key"), batch.column("value"))
    kafka = batch.column("kafka")
    columns: dict[str, Any] = {
        name: pc.struct_field(kafka, name) for name in ("offset", "event_timestamp", "ingest_timestamp", "batch_start")
    }
    return _stream_batch({**columns, "key": keys, "value": values, "headers": batch.column("headers")})


def from_intake(reader: IntakeReader, segments: Sequence[SegmentRef], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The records in [start, stop) from consecutive segments of one topic partition, as `STREAM_SCHEMA`.

    Raises `Corrupted` if an intake file is gone or altered, or if the segments leave a hole.
    """
    reached = start
    for run in _by_file([segment for segment in segments if segment.end > start and segment.base < stop]):
        try:
            for segment, records in reader.read(run[0].file, run):
                if segment.base > reached:
                    break
                if records.num_rows != segment.rows:
                    raise Corrupted(
                        f"{segment.file.key} has {records.num_rows} rows from offset {segment.base} on; the log says {segment.rows}"
                    )
                low, high = max(segment.base, reached), min(segment.end, stop)
                if low < high:
                    yield _intake_records(segment, records).slice(low - segment.base, high - low)
                    reached = high
        except NotFound as error:
            raise Corrupted(
                f"offsets {run[0].base} to {run[-1].end - 1} are in no archive, and their intake file {run[0].file.key} is gone; restore it"
            ) from error
    if reached < stop:
        raise Corrupted(
            f"offsets {reached} to {stop - 1} are in no archive and in no intake file; restore what is missing from the data folder"
        )


def _by_file(segments: Sequence[SegmentRef]) -> Iterator[list[SegmentRef]]:
    """Runs of segments that stand in the same file."""
    run: list[SegmentRef] = []
    for segment in segments:
        if run and run[-1].file.key != segment.file.key:
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def ingest_times(segment: SegmentRef, accept_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The system's ingest times of a whole segment: the running maximum of its accept times, from its floor on."""
    result: npt.NDArray[np.int64] = np.maximum(np.maximum.accumulate(accept_us), segment.floor_us)
    return result


def _intake_records(segment: SegmentRef, records: pa.RecordBatch) -> pa.RecordBatch:
    offsets = pa.array(np.arange(segment.base, segment.end, dtype=np.int64))
    accept_us = records.column("accept_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    columns: dict[str, Any] = {
        "offset": offsets,
        "ingest_timestamp": pa.array(ingest_times(segment, accept_us)),
        "batch_start": pc.subtract(offsets, records.column("batch").cast(pa.int64())),
        **{name: records.column(name) for name in ("event_timestamp", "key", "value", "headers")},
    }
    return _stream_batch(columns)


def _stream_batch(columns: dict[str, Any]) -> pa.RecordBatch:
    arrays = []
    for field in STREAM_SCHEMA:
        array = columns[field.name]
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=STREAM_SCHEMA)
