"""What runs in a Spark worker of the deep audit: files read through our own store, with its requests and its
credentials.

Spark's own reader takes a multiple of the CPU to read an archive and hand it over, and for a bucket it would
need Hadoop's file system and the credentials (decision 0051). Promises that page checksums are compared, that
rows of a file come in their order, and that memory stays within a batch. A file of somebody else that cannot
be read fails the job; an archive of ours comes back short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from intake.parquet_pages import checked_batches
from reconcile.audit.rows import FileRows, RowFile
from reconcile.audit.spark.fingerprint import check_coordinates
from reconcile.audit.spark.summary import ArchiveRows, Batches, packed, unhidden, unpacked

Worker = Callable[[Batches], Iterator[pa.RecordBatch]]
BATCH_ROWS = 16_384
"""What is in the processor's cache is looked at fastest; fewer rows have costs of their own."""
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_ROWS_MIN = 16
_POSITIONS = pa.schema([pa.field("file_path", pa.string())]).append(pa.field("pos", pa.int64()))
_COORDINATES = ("kafka.partition", "kafka.offset", "kafka.ingest_timestamp")


class StoredFiles:
    """Makes the functions for `mapInArrow`: rows with a column `task`, a packed list of files, in. Travels to
    the workers.
    """

    def __init__(self, place: StorePlace, cluster_id: str) -> None:
        self._place = place
        self._cluster_id = cluster_id

    def archives(self, schema: TopicSchema) -> Worker:
        """One `FileRows` per file out."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            codec = RecordCodec(schema)
            for objects, file in self.files(batches):
                yield packed(archive_rows(objects, file, codec))

        return work

    def coordinates(self) -> Worker:
        """`FOREIGN` rows out."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield from foreign_rows(objects, file)

        return work

    def counts(self) -> Worker:
        """A mapping from the uri to the number of rows out, by the footers."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield packed({file.uri: row_count(objects, file)})

        return work

    def positions(self) -> Worker:
        """Rows of position-delete files out: `file_path`, `pos`, `origin`."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self.files(batches):
                yield from position_rows(objects, file)

        return work

    def files(self, batches: Batches) -> Iterator[tuple[ObjectStore, RowFile]]:
        """The files of the tasks, each with the store to read it from."""
        objects = open_store(self._place, self._cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                for file in unpacked(cell.as_py()):
                    yield objects, file


def archive_rows(
    objects: ObjectStore, file: RowFile, codec: RecordCodec, batch_rows: int = BATCH_ROWS
) -> FileRows:
    """What the rows of one archive of ours are, as far as it can be read; `codec` is of its schema
    version.
    """
    found = ArchiveRows(file, codec)
    try:
        for rows in _rows(objects, file, None, batch_rows, ours=True):
            found.add(rows)
    except (ArchiverError, pa.ArrowException, OSError, ValueError, KeyError):
        pass  # it comes back short, which the audit looks at
    return found.finish()


def foreign_rows(objects: ObjectStore, file: RowFile) -> Iterator[pa.RecordBatch]:
    """`FOREIGN` rows of a file of somebody else. Raises whatever reading it raises."""
    return unhidden(file, _rows(objects, file, _COORDINATES))


def position_rows(objects: ObjectStore, file: RowFile) -> Iterator[pa.RecordBatch]:
    """Rows of a position-delete file, each with the file's origin. Raises what reading it raises."""
    for rows in _rows(objects, file, ("file_path", "pos")):
        places = rows.select(["file_path", "pos"]).cast(_POSITIONS)
        yield places.append_column("origin", pa.array([file.origin] * rows.num_rows, pa.int64()))


def row_count(objects: ObjectStore, file: RowFile) -> int:
    """By its footer. Raises whatever reading it raises."""
    with opened(objects, file) as source:
        return pq.read_metadata(source).num_rows


def batch_rows(metadata: pq.FileMetaData) -> int:
    """How many rows of a file are read at a time, by what its footer says of their size in memory."""
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
    """`ours`: the file's page headers have to be what its footer says."""
    at_a_time = max(_BATCH_ROWS_MIN, min(batch_rows, _BATCH_BYTES // max(1, file.row_bytes)))
    with opened(objects, file) as source, pq.ParquetFile(source, page_checksum_verification=True) as parquet:
        if file.coordinates is not None:
            check_coordinates(file.coordinates, parquet.schema_arrow)
        if ours:
            yield from checked_batches(
                source, parquet, at_a_time, range(parquet.num_row_groups), columns, use_threads=False
            )
            return
        yield from parquet.iter_batches(
            batch_size=at_a_time, columns=None if columns is None else list(columns), use_threads=False
        )


def opened(objects: ObjectStore, file: RowFile) -> pa.NativeFile:
    """The object behind a uri, however engines spell its scheme. Files of somebody else may also lie beside a
    local data folder.
    """
    key = key_of(objects, file.uri)
    if key is not None:
        return objects.open_input(key)
    path = local_path(file.uri)
    if path is None:
        raise NotFound(f"{excerpt(file.uri)} lies outside of the data folder")
    # Table metadata may name a FIFO, which is waited for without end, or a device.
    if Path(path).exists() and not Path(path).is_file():
        raise NotFound(f"{excerpt(file.uri)} is no regular file and is not opened")
    return pa.OSFile(path, "rb")
