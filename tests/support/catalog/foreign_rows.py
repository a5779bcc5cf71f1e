"""External changes of the rows of a deployment's table: rewrite all files, remove rows, or hide them behind a
position-delete file.

Played with pyiceberg, whose own way of doing this needs a native library that we do not install.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestWriter, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record

from archiver.catalog.iceberg.values import data_file_of
from archiver.catalog.table_layout import stream_fields
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import catalog_table
from tests.support.catalog.foreign_hands import _Replace, live
from tests.support.catalog.tables import data_file

Keep = Callable[[int], bool]
"""Whether the row with that offset is kept."""


def rewrite(
    deployment: Deployment,
    operation: str,
    keep: Keep = lambda _: True,
    table: str = "shop.clicks",
    *,
    remove: bool = True,
) -> int:
    """Write the kept rows of all files into a new file for each partition, in place of the present files (or
    in addition to them).

    Returns the snapshot's id.
    """
    with catalog_table(deployment, table) as found:
        rows = pa.concat_tables([pq.read_table(_path(file)) for file in live(found)])
        rows = rows.filter(pa.array([keep(offset) for offset in _offsets(rows)], pa.bool_()))
        transaction = Transaction(found, autocommit=True)
        maker = _Replace if operation == "replace" else _OverwriteFiles
        producer: Any = maker(
            Operation.OVERWRITE if operation == "replace" else Operation(operation), transaction, found.io
        )
        partitions = _partitions(rows)
        for partition in sorted(set(partitions)):
            of_partition = rows.filter(pa.array([one == partition for one in partitions], pa.bool_()))
            producer.append_data_file(_stored(found, of_partition, partition))
        for old in live(found) if remove else []:
            producer.delete_data_file(old)
        producer.commit()
        return _newest(found)


def hide(deployment: Deployment, hidden: Keep, table: str = "shop.clicks") -> int:
    """Hide rows behind a position-delete file, as Trino deletes; the snapshot's id."""
    with catalog_table(deployment, table) as found:
        places = [
            (file.file_path, row)
            for file in live(found)
            for row, offset in enumerate(_offsets(pq.read_table(_path(file))))
            if hidden(offset)
        ]
        ids = [{b"PARQUET:field_id": number} for number in (b"2147483546", b"2147483545")]
        fields: list[pa.Field[Any]] = [
            pa.field("file_path", pa.string(), False, ids[0]),
            pa.field("pos", pa.int64(), False, ids[1]),
        ]
        schema = pa.schema(fields)
        path = _new_path(found)
        pq.write_table(
            pa.table([[name for name, _ in places], [row for _, row in places]], schema=schema), path
        )
        deletes = IcebergDataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(live(found)[0].partition[0]),
            record_count=len(places),
            file_size_in_bytes=path.stat().st_size,
            sort_order_id=None,
            spec_id=found.spec().spec_id,
        )
        deletes.spec_id = found.spec().spec_id
        producer = _HideRows(Operation.OVERWRITE, Transaction(found, autocommit=True), found.io)
        producer.append_data_file(deletes)
        producer.commit()
        return _newest(found)


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _HideRows(_FastAppendFiles):
    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return _DeletesWriter(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )


def _stored(table: Table, rows: pa.Table, partition: int) -> IcebergDataFile:
    path = _new_path(table)
    pq.write_table(rows, path)
    offsets = _offsets(rows)
    fields = stream_fields(table.schema().model_dump_json())
    day = live(table)[0].partition[0]
    made = data_file(
        f"file://{path}", fields, partition, min(offsets), max(offsets) + 1, path.stat().st_size, day
    )
    return data_file_of(replace(made, record_count=len(offsets)), table.spec().spec_id)


def _new_path(table: Table) -> Path:
    folder = Path(table.location().removeprefix("file://")) / "data"
    return folder / f"foreign-{len(table.metadata.snapshots)}-{len(list(folder.glob('foreign-*')))}.parquet"


def _path(file: IcebergDataFile) -> str:
    return str(file.file_path).removeprefix("file://")


def _offsets(rows: pa.Table) -> list[int]:
    found: list[int] = pc.struct_field(rows["kafka"].combine_chunks(), "offset").to_pylist()
    return found


def _partitions(rows: pa.Table) -> list[int]:
    found: list[int] = pc.struct_field(rows["kafka"].combine_chunks(), "partition").to_pylist()
    return found


def _newest(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return int(snapshot.snapshot_id)
