"""What runs in a Spark worker when the objects are in a bucket: files read through our own store, with its requests and its credentials.

Spark's own reader would need Hadoop's S3 file system among the user's jars, and the credentials in its configuration. Our store is on
every worker already, as the package is. What is made of the rows is the same as of Spark's (`summary.py`), and so are the promises: page
checksums compared, rows of a file in their order, memory within a batch. A file of somebody else that cannot be read fails the job; an
archive of ours comes back short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.errors import ArchiverError, NotFound
from archiver.objects.open import open_store
from archiver.objects.place import StorePlace
from archiver.objects.spelling import key_in_bucket
from archiver.objects.store import ObjectStore
from archiver.schema.codec import RecordCodec
from archiver.schema.state import TopicSchema
from reconcile.rows import FileRows, RowFile
from reconcile.spark.summary import ArchiveRows, Batches, packed, unhidden, unpacked

Worker = Callable[[Batches], Iterator[pa.RecordBatch]]
_ROWS = 4096
_POSITIONS = pa.schema([pa.field("file_path", pa.string())]).append(pa.field("pos", pa.int64()))
_COORDINATES = ("kafka.partition", "kafka.offset", "kafka.ingest_timestamp")


class StoredFiles:
    """Makes the functions for `mapInArrow`: rows with a column `task`, a packed list of files, in. Travels to the workers."""

    def __init__(self, place: StorePlace, cluster_id: str) -> None:
        self._place = place
        self._cluster_id = cluster_id

    def archives(self, schema: TopicSchema) -> Worker:
        """One `FileRows` per file out."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            codec = RecordCodec(schema)
            for objects, file in self._files(batches):
                yield packed(self._archive(objects, file, codec))

        return work

    def coordinates(self) -> Worker:
        """`FOREIGN` rows out."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self._files(batches):
                yield from unhidden([file])(_placed(file, self._rows(objects, file, _COORDINATES)))

        return work

    def counts(self) -> Worker:
        """A mapping from the uri to the number of rows out, by the footers."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self._files(batches):
                with objects.open_input(self._key(file)) as source:
                    yield packed({file.uri: pq.read_metadata(source).num_rows})

        return work

    def positions(self) -> Worker:
        """Rows of position-delete files out: `file_path`, `pos`."""

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            for objects, file in self._files(batches):
                for rows in self._rows(objects, file, ("file_path", "pos")):
                    yield rows.select(["file_path", "pos"]).cast(_POSITIONS)

        return work

    def _files(self, batches: Batches) -> Iterator[tuple[ObjectStore, RowFile]]:
        objects = open_store(self._place, self._cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                for file in unpacked(cell.as_py()):
                    yield objects, file

    def _archive(self, objects: ObjectStore, file: RowFile, codec: RecordCodec) -> FileRows:
        found = ArchiveRows(file, codec)
        try:
            for rows in _placed(file, self._rows(objects, file, None)):
                key = rows.schema.get_field_index("key")
                found.add(rows.set_column(key, "key", pc.struct_field(rows.column("key"), "__raw__")))
        except (ArchiverError, pa.ArrowException, OSError, ValueError, KeyError):
            pass  # it comes back short, which the audit looks at
        return found.finish()

    def _rows(self, objects: ObjectStore, file: RowFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        batch_rows = max(16, min(_ROWS, 16 * 1024 * 1024 // max(1, file.row_bytes)))
        with objects.open_input(self._key(file)) as source, pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            yield from parquet.iter_batches(batch_size=batch_rows, columns=None if columns is None else list(columns), use_threads=False)

    def _key(self, file: RowFile) -> str:
        """The object behind a uri, however engines spell its scheme."""
        key = key_in_bucket(file.uri, self._place.uri)
        if key is None:
            raise NotFound(f"{file.uri} lies outside of {self._place.uri}")
        return key


def _placed(file: RowFile, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with their positions, and the path in the first row, as Spark's reader gives them."""
    at = 0
    for batch in batches:
        first: list[str | None] = [file.uri if not at else None]
        paths = pa.array(first + [None] * (batch.num_rows - 1), pa.string()).slice(0, batch.num_rows)
        rows = pa.array(range(at, at + batch.num_rows), pa.int64())
        at += batch.num_rows
        yield pa.RecordBatch.from_arrays([paths, rows, *batch.columns], names=["path", "row", *batch.schema.names])
