"""Reads files in a Spark worker of the deep audit, through the archiver's own store.

Spark's own reader needs a multiple of the CPU for an archive, and for a bucket also Hadoop's file system and
the credentials (decision 0051). An unreadable file of another writer fails the job; an unreadable archive is
reported as incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.path_normalization import key_of, local_path
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError, NotFound
from archiver.runtime.redaction import excerpt
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from intake.parquet_footer import read_unverified_metadata
from intake.parquet_pages import checked_batches
from reconcile.audit.rows import FileRows, RowFile
from reconcile.audit.spark.fingerprint import check_coordinates
from reconcile.audit.spark.summary import ArchiveRows, Batches, packed, unhidden, unpacked

Worker = Callable[[Batches], Iterator[pa.RecordBatch]]
BATCH_ROWS = 16_384
"""A batch of this size fits the CPU cache; smaller ones have more overhead."""
# Rows may be large, so the bytes of a batch are limited too.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_ROWS_MIN = 16
_POSITIONS = pa.schema([pa.field("file_path", pa.string())]).append(pa.field("pos", pa.int64()))
_COORDINATES = ("kafka.partition", "kafka.offset", "kafka.ingest_timestamp")


class StoredFiles:
    """Makes the functions for `mapInArrow`, whose input rows have a column `task`, a packed list of files.
    Travels to the workers.
    """

    def __init__(self, place: StorePlace, cluster_id: str) -> None:
        self._place = place
        self._cluster_id = cluster_id

    def archives(self, schema: TopicSchema) -> Worker:
        """Returns one `FileRows` per file."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            codec = RecordCodec(schema)
            for objects, file in self.files(batches):
                yield packed(archive_rows(objects, file, codec))

        return work

    def coordinates(self) -> Worker:
        """Returns `EXTERNAL` rows."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield from external_rows(objects, file)

        return work

    def counts(self) -> Worker:
        """Returns a mapping from uri to row count, from the footers."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield packed({file.uri: row_count(objects, file)})

        return work

    def positions(self) -> Worker:
        """Returns rows of position-delete files: `file_path`, `pos`, `origin`."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield from position_rows(objects, file)

        return work

    def files(self, batches: Batches) -> Iterator[tuple[ObjectStore, RowFile]]:
        """The files of the tasks, each with its store."""
        # Opened in the worker: connections and locks cannot be pickled.
        objects = open_store(self._place, self._cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                for file in unpacked(cell.as_py()):
                    yield objects, file


def archive_rows(
    objects: ObjectStore, file: RowFile, codec: RecordCodec, batch_rows: int = BATCH_ROWS
) -> FileRows:
    """The rows of one archive as far as it is readable; `codec` is of its schema version."""
    found = ArchiveRows(file, codec)
    try:
        for rows in _rows(objects, file, None, batch_rows, ours=True):
            found.add(rows)
    except (ArchiverError, pa.ArrowException, OSError, ValueError, KeyError):
        # The result is incomplete, and the driver finds the reason by a second read. An exception would make
        # Spark discard the results of the task's other files.
        pass
    return found.finish()


def external_rows(objects: ObjectStore, file: RowFile) -> Iterator[pa.RecordBatch]:
    """`EXTERNAL` rows of a file of another writer. Raises all read errors."""
    return unhidden(file, _rows(objects, file, _COORDINATES))


def position_rows(objects: ObjectStore, file: RowFile) -> Iterator[pa.RecordBatch]:
    """Rows of a position-delete file, each with the file's origin. Raises all read errors."""
    for rows in _rows(objects, file, ("file_path", "pos")):
        # Other writers may store paths and positions in other string and integer types.
        places = rows.select(["file_path", "pos"]).cast(_POSITIONS)
        yield places.append_column("origin", pa.array([file.origin] * rows.num_rows, pa.int64()))


def row_count(objects: ObjectStore, file: RowFile) -> int:
    """The row count in its footer. Raises all read errors."""
    with opened(objects, file) as source:
        return read_unverified_metadata(source).num_rows


def batch_rows(metadata: pq.FileMetaData) -> int:
    """Rows per batch, from the row size in memory in the file's footer."""
    # The uncompressed size: compressed bytes say little about memory.
    memory = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(_BATCH_ROWS_MIN, min(BATCH_ROWS, _BATCH_BYTES // max(1, memory // max(1, metadata.num_rows))))


def _rows(
    objects: ObjectStore,
    file: RowFile,
    columns: Sequence[str] | None,
    batch_rows: int = BATCH_ROWS,
    *,
    ours: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Batches of a file. `ours`: its page headers must match its footer."""
    at_a_time = max(_BATCH_ROWS_MIN, min(batch_rows, _BATCH_BYTES // max(1, file.row_bytes)))
    with opened_parquet(objects, file) as (source, parquet):
        if file.coordinates is not None:
            check_coordinates(file.coordinates, parquet.schema_arrow)
        # Page headers have no checksum. Those of archives must match the sealed footer before pages are read.
        if ours:
            yield from checked_batches(
                source, parquet, at_a_time, range(parquet.num_row_groups), columns, use_threads=False
            )
            return
        # Without threads, because Spark runs one task per core already.
        yield from parquet.iter_batches(
            batch_size=at_a_time, columns=None if columns is None else list(columns), use_threads=False
        )


@contextmanager
def opened_parquet(objects: ObjectStore, file: RowFile) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    """A file and its reader. Archives are read as those of other writers: the driver has checked their seals,
    but they may be altered since.
    """
    with opened(objects, file) as source:
        metadata = read_unverified_metadata(source)
        with pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True) as parquet:
            yield source, parquet


def opened(objects: ObjectStore, file: RowFile) -> pa.NativeFile:
    """The object of a uri in any engine's spelling of its scheme. Files of other writers may also be next to
    a local data folder.
    """
    key = key_of(objects, file.uri)
    if key is not None:
        return objects.open_input(key)
    path = local_path(file.uri)
    if path is None:
        raise NotFound(f"{excerpt(file.uri)} is outside of the data folder")
    # Table metadata may name a FIFO, whose open would block forever, or a device.
    if Path(path).exists() and not Path(path).is_file():
        raise NotFound(f"{excerpt(file.uri)} is not a regular file and is not opened")
    return pa.OSFile(path, "rb")
