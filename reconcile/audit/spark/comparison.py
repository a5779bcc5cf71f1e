"""Compares rows of other writers' files with archive rows at the same offsets.

Each row travels as its coordinates and its fingerprint. Memory is limited to one batch; results grow with the
number of runs of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from archiver.stream.rebuild import archive_records
from archiver.stream.records import STREAM_SCHEMA
from reconcile.audit.rows import Compared, RowFile
from reconcile.audit.spark.fingerprint import (
    Column,
    Fields,
    Items,
    Leaf,
    check_coordinates,
    columns_of,
    fingerprints,
    names_in,
)
from reconcile.audit.spark.stored import StoredFiles, Worker, batch_rows, opened_parquet
from reconcile.audit.spark.summary import Batches, hidden_rows, packed
from reconcile.snapshot.offset_coverage import Range

PRINTS = "partition long, offset long, origin long, print binary"
OURS = -1
"""Origin of archive rows. They sort before the rows of other writers, whose origins are not negative."""
PRINTS_PER_OFFSET_MAX = 1024
"""Most different fingerprints kept per offset. In a correct object store, fewer archives hold one offset."""

_RECORD_KINDS: dict[str, Leaf | Items] = {
    "offset": Leaf("long"),
    "event_timestamp": Leaf("timestamptz"),
    "ingest_timestamp": Leaf("timestamptz"),
    "batch_start": Leaf("long"),
    "key": Leaf("binary"),
    "value": Leaf("binary"),
    "headers": Items(Fields((Column(0, "key", Leaf("string")), Column(0, "value", Leaf("binary"))))),
}
_RECORD = tuple(Column(0, name, _RECORD_KINDS[name]) for name in STREAM_SCHEMA.names)


class ColumnPrints:
    """Fingerprints of all columns in the topic's newest recorded schema. Travels to the workers."""

    def __init__(self, newest: TopicSchema) -> None:
        self._columns = columns_of(newest.schema())

    def names(self, schema: pa.Schema) -> list[str] | None:
        """The top-level columns of a file to read; None: all."""
        return names_in(self._columns, schema)

    def of(self, file: RowFile, rows: pa.RecordBatch) -> Iterator[list[bytes]]:
        """One list, with a fingerprint for each row."""
        del file
        yield fingerprints(self._columns, rows)


class RecordPrints:
    """Fingerprints of the decoded records, under each recorded schema version. Travels to the workers."""

    def __init__(self, versions: Sequence[TopicSchema]) -> None:
        self._schemas = {one.version: one for one in versions}
        self._codecs: dict[int, RecordCodec] = {}

    def names(self, schema: pa.Schema) -> list[str] | None:
        """The top-level columns of a file to read; None: all."""
        del schema
        # Decoding needs every column, `__raw__` too.
        return None

    def of(self, file: RowFile, rows: pa.RecordBatch) -> Iterator[list[bytes]]:
        """One list for each version under which the rows are readable."""
        # An archive's footer has the version that decoded its rows; a file of another writer does not.
        for version in [file.schema_version] if file.key is not None else list(self._schemas):
            if version not in self._schemas:
                continue
            # Not `setdefault`, which would build a codec for each batch.
            codec = self._codecs.get(version)
            if codec is None:
                codec = self._codecs[version] = RecordCodec(self._schemas[version])
            try:
                records = archive_records(file.uri, codec, rows)
            except (ArchiverError, pa.ArrowException, ValueError, TypeError, KeyError):
                # Another version decoded these rows.
                continue
            yield fingerprints(_RECORD, records)


def printed_rows(
    objects: ObjectStore, file: RowFile, prints: ColumnPrints | RecordPrints
) -> Iterator[pa.RecordBatch]:
    """`PRINTS` of the visible rows of one file with a partition and an offset. Raises all read errors."""
    with opened_parquet(objects, file) as (_, parquet):
        if file.coordinates is not None:
            check_coordinates(file.coordinates, parquet.schema_arrow)
        names = prints.names(parquet.schema_arrow)
        # Statistics come from the file's writer, so only those of archives are trusted for pruning.
        groups = _groups(parquet.metadata, None if file.key is None else file.offsets)
        at = 0
        for batch in parquet.iter_batches(
            batch_rows(parquet.metadata), row_groups=groups, columns=names, use_threads=False
        ):
            kept = _kept(batch, file, at)
            # Positions of delete files count all rows of the file, so all row groups of such a file are read.
            at += batch.num_rows
            rows = batch.filter(pa.array(kept))
            if not rows.num_rows:
                continue
            kafka = rows.column("kafka")
            places = [pc.struct_field(kafka, name).cast(pa.int64()) for name in ("partition", "offset")]
            # All archives share one origin: a row may equal that of any archive.
            origins = pa.array([file.origin if file.key is None else OURS] * rows.num_rows, pa.int64())
            for found in prints.of(file, rows):
                yield pa.RecordBatch.from_arrays(
                    [*places, origins, pa.array(found, pa.binary())],
                    names=["partition", "offset", "origin", "print"],
                )


def _groups(metadata: pq.FileMetaData, offsets: Sequence[Range] | None) -> list[int]:
    """The row groups that may hold these offsets, by their statistics; all without statistics."""
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
        statistics: Any = (
            None if column is None or offsets is None else metadata.row_group(group).column(column).statistics
        )
        known = statistics is not None and statistics.has_min_max
        # A group without statistics may hold any offset.
        if not known or any(low <= statistics.max and statistics.min < high for low, high in offsets or ()):
            chosen.append(group)
    return chosen


def _kept(batch: pa.RecordBatch, file: RowFile, at: int) -> npt.NDArray[np.bool_]:
    kafka = batch.column("kafka")
    partitions, offsets = (pc.struct_field(kafka, name) for name in ("partition", "offset"))
    found = pc.and_(partitions.is_valid(), offsets.is_valid()).to_numpy(zero_copy_only=False)
    if file.offsets is not None:
        # Nulls would make numpy convert the offsets to floats, which lose precision above 2^53.
        numbers = pc.fill_null(offsets, -1).to_numpy(zero_copy_only=False)
        within = np.zeros(len(numbers), np.bool_)
        for low, high in file.offsets:
            within |= (numbers >= low) & (numbers < high)
        found = found & within
    # Hidden rows of an archive count too: a row that replaces them is compared with them.
    if file.key is None:
        hidden = hidden_rows(np.arange(at, at + batch.num_rows), file.hidden)
        found = found if hidden is None else found & ~hidden
    return np.asarray(found, np.bool_)


def printing(stored: StoredFiles, prints: ColumnPrints | RecordPrints) -> Worker:
    """The function for `mapInArrow`: from rows with a column `task`, a packed list of files, to `PRINTS`."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        for objects, file in stored.files(batches):
            yield from printed_rows(objects, file, prints)

    return work


def summary_of(*, records: bool) -> Worker:
    """The function for `mapInArrow`: from `PRINTS` sorted by partition, offset and origin to one `Compared`.

    With `records` a row has several fingerprints, and one of them must equal that of an archive row.
    """

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        sums = _Sums(records)
        for batch in batches:
            # Plain Python values: the loop below compares one row at a time.
            columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "origin", "print")]
            for row in zip(*columns, strict=True):
                sums.add(*row)
        yield packed(sums.finish())

    return work


class _Sums:
    """Goes from offset to offset and holds the fingerprints of one offset."""

    def __init__(self, records: bool) -> None:
        self._records = records
        self._found = Compared()
        self._place = (-1, -1)
        self._ours: set[bytes] = set()
        self._matched: set[int] = set()
        self._unmatched: set[int] = set()

    def add(self, partition: int, offset: int, origin: int, row: bytes) -> None:
        if (partition, offset) != self._place:
            self.finish()
            self._place = (partition, offset)
            self._ours, self._matched, self._unmatched = set(), set(), set()
        if origin != OURS:
            # Archive rows were added before, because they sort first.
            (self._matched if row in self._ours else self._unmatched).add(origin)
        elif len(self._ours) < PRINTS_PER_OFFSET_MAX:
            self._ours.add(row)

    def finish(self) -> Compared:
        partition, offset = self._place
        into = self._found.altered if self._ours else self._found.alone
        # By record, one equal version suffices. By columns, each row of a duplicate offset must be equal.
        for origin in self._unmatched - self._matched if self._records else self._unmatched:
            _extend(into.setdefault((origin, partition), []), offset)
        return self._found


def merged_comparison(parts: Iterable[Compared]) -> Compared:
    """The merged results of several workers."""
    whole = Compared()
    for part in parts:
        for into, found in ((whole.altered, part.altered), (whole.alone, part.alone)):
            for place, runs in found.items():
                into.setdefault(place, []).extend(runs)
        whole.trouble = whole.trouble or part.trouble
    return whole


def _extend(runs: list[Range], offset: int) -> None:
    if runs and runs[-1][1] == offset:
        runs[-1] = (runs[-1][0], offset + 1)
    # Several rows of one offset count once.
    elif not runs or runs[-1][1] < offset:
        runs.append((offset, offset + 1))
