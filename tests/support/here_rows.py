"""Rows for the deep audit, read with pyarrow in the process of the test: the workers' own code, without Spark around it.

For what cannot be provoked with Spark in reasonable time: a file that goes while it is read, a reader that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.objects.store import ObjectStore
from archiver.schema.state import TopicSchema
from reconcile.coverage import Range
from reconcile.rows import FileRows, ForeignRows, IntakeRange, RowFile
from reconcile.spark.intake_digests import digests
from reconcile.spark.summary import archive_summary, merged_foreign, sorted_summary, unhidden, unpacked


class HereRows:
    """The `RowReader`; `meanwhile` happens before each reading of archives."""

    def __init__(self, objects: ObjectStore, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._objects = objects
        self._meanwhile = meanwhile
        self.asked: list[str] = []
        """Uris of the archives that were to be read."""
        self.compared: list[str] = []
        """Uris of those whose intake was."""

    def positions(self, files: Sequence[RowFile]) -> Mapping[str, tuple[Range, ...]]:
        assert not files
        return {}

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        self._meanwhile()
        self.asked += [file.uri for file in files]
        batches = (batch for file in files for batch in rows_of_uri(file.uri))
        return [unpacked(packed.column(0)[0].as_py()) for packed in archive_summary(files, schema)(batches)]

    def foreign(self, files: Sequence[RowFile]) -> ForeignRows:
        batches = list(unhidden(files)(batch for file in files for batch in rows_of_uri(file.uri)))
        rows = pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])
        parts = [unpacked(packed.column(0)[0].as_py()) for packed in sorted_summary(rows.to_batches(max_chunksize=7))]
        return merged_foreign(parts, {file.uri: pq.read_metadata(file.uri.removeprefix("file://")).num_rows for file in files})

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        self.compared += [one.uri for one in ranges]
        return digests(self._objects, ranges)


def rows_of_uri(uri: str, batch_rows: int = 7) -> Iterator[pa.RecordBatch]:
    """As Spark hands them to a worker; nothing, of a file that is not there."""
    try:
        file = pq.ParquetFile(uri.removeprefix("file://"))
    except FileNotFoundError:
        return
    at = 0
    with file:
        for batch in file.iter_batches(batch_size=batch_rows):
            paths = pa.array([uri if at + place == 0 else None for place in range(batch.num_rows)], pa.string())
            columns = {
                "path": paths,
                "row": pa.array(range(at, at + batch.num_rows), pa.int64()),
                "key": pc.struct_field(batch.column("key"), "__raw__"),
                **{name: batch.column(name) for name in ("value", "headers", "kafka")},
            }
            yield pa.RecordBatch.from_pydict(columns)
            at += batch.num_rows
