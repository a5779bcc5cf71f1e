"""Translation between pyiceberg's values and ours. Pure; only for `adapter.py`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    UNSORTED_SORT_ORDER_ID,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.table.update import AddSortOrderUpdate, TableUpdate
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, Transform
from pyiceberg.typedef import Record

from archiver.catalog.table_layout import (
    PARTITION_FIELD_ID,
    PARTITION_NAMES,
    SORT_ORDER_ID,
    StreamFields,
    bound_number,
    partition_of,
    stream_fields,
)
from archiver.catalog.tables import Identifier, LiveFile, SnapshotView, SpecView, TableView
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime.errors import Halt

_TRANSFORMS: dict[Granularity, type[Transform[Any, Any]]] = {
    "day": DayTransform,
    "hour": HourTransform,
    "month": MonthTransform,
}

_NO_SNAPSHOT = -1
"""Some writers state this as the parent of the first snapshot. pyiceberg corrects it for the current snapshot
only."""


def partition_spec(
    fields: StreamFields, granularity: Granularity, spec_id: int = 0, field_id: int = PARTITION_FIELD_ID
) -> PartitionSpec:
    """One field: day, hour or month of the ingest timestamp."""
    field = PartitionField(
        fields.ingest_timestamp, field_id, _TRANSFORMS[granularity](), PARTITION_NAMES[granularity]
    )
    return PartitionSpec(field, spec_id=spec_id)


def sort_order(fields: StreamFields) -> SortOrder:
    """By ingest timestamp, then offset."""
    sources = (fields.ingest_timestamp, fields.offset)
    sort_fields = [
        SortField(
            source,
            transform=IdentityTransform(),
            direction=SortDirection.ASC,
            null_order=NullOrder.NULLS_FIRST,
        )
        for source in sources
    ]
    return SortOrder(*sort_fields, order_id=SORT_ORDER_ID)


def unlisted_orders(metadata: TableMetadata) -> tuple[AddSortOrderUpdate, ...]:
    """Adds sort order 0, unsorted, to a table that does not list it.

    A table is created with the default order alone. Iceberg 1.11 and newer then refuse a `rewrite_data_files`
    by another order, whose files get order 0: "Cannot use output sort order id 0".
    """
    listed = {order.order_id for order in metadata.sort_orders}
    return () if UNSORTED_SORT_ORDER_ID in listed else (AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),)


def adds_order(updates: Iterable[TableUpdate]) -> bool:
    """Whether an update among them adds a sort order."""
    return any(isinstance(update, AddSortOrderUpdate) for update in updates)


def parse_schema(schema_json: str) -> Schema:
    """The schema behind Iceberg's JSON form; raises `Halt` if it is none."""
    try:
        return Schema.model_validate_json(schema_json)
    except ValueError as error:
        raise Halt(f"the computed table schema is not one that pyiceberg understands: {error}") from error


def view_of(identifier: Identifier, table: Table) -> TableView:
    """The part of a table that the archiver uses."""
    metadata = table.metadata
    schema = metadata.schema()
    schema_json = schema.model_dump_json()
    spec = metadata.spec()
    current = metadata.current_snapshot()
    return TableView(
        identifier=identifier,
        uuid=metadata.table_uuid,
        location=metadata.location,
        metadata_location=table.metadata_location,
        schema_json=schema_json,
        schema_id=schema.schema_id,
        last_column_id=metadata.last_column_id,
        format_version=metadata.format_version,
        spec_id=spec.spec_id,
        granularity=partition_of(
            schema_json, [(field.source_id, str(field.transform)) for field in spec.fields]
        ),
        snapshot_id=None if current is None else current.snapshot_id,
        # Format version 1 has no sequence numbers. `mismatch` refuses such a table later.
        sequence_number=0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number,
        properties=dict(metadata.properties),
        snapshots=tuple(_snapshot(item) for item in metadata.snapshots),
        pinned=frozenset(ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH),
        schemas=len(metadata.schemas),
        specs=tuple(_spec(schema_json, one) for one in metadata.partition_specs),
        handle=table,
    )


def _spec(schema_json: str, spec: PartitionSpec) -> SpecView:
    granularity = partition_of(
        schema_json, [(field.source_id, str(field.transform)) for field in spec.fields]
    )
    return SpecView(spec.spec_id, granularity, 0 if granularity is None else spec.fields[0].field_id)


def _snapshot(snapshot: Snapshot) -> SnapshotView:
    summary = snapshot.summary
    return SnapshotView(
        snapshot_id=snapshot.snapshot_id,
        parent_id=None if snapshot.parent_snapshot_id == _NO_SNAPSHOT else snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        timestamp_ms=snapshot.timestamp_ms,
        operation="" if summary is None else summary.operation.value,
        summary={} if summary is None else dict(summary.additional_properties),
    )


def data_file_of(item: DataFile, spec_id: int) -> IcebergDataFile:
    """A data file of ours as pyiceberg appends it; raises `Halt` if it was written for another partition spec
    than `spec_id`.
    """
    if item.spec_id != spec_id or item.content != 0:
        raise Halt(
            f"archive {item.path} was written for partition spec {item.spec_id}, not for {spec_id}; "
            "restore that spec"
        )
    file = IcebergDataFile.from_args(
        content=DataFileContent.DATA,
        file_path=item.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(value) for value in item.partition)),
        record_count=item.record_count,
        file_size_in_bytes=item.file_size,
        column_sizes=_dict(item.column_sizes),
        value_counts=_dict(item.value_counts),
        null_value_counts=_dict(item.null_value_counts),
        nan_value_counts=_dict(item.nan_value_counts),
        lower_bounds=_dict(item.lower_bounds),
        upper_bounds=_dict(item.upper_bounds),
        key_metadata=item.key_metadata,
        split_offsets=None if item.split_offsets is None else list(item.split_offsets),
        equality_ids=None,
        sort_order_id=item.sort_order_id,
    )
    # `from_args` does not set it, and the producers group files by it.
    file.spec_id = spec_id
    return file


def _dict(values: Mapping[int, Any] | None) -> dict[int, Any] | None:
    return None if values is None else dict(values)


def _partition_value(value: object) -> object:
    # A datetime is a date in Python, and is left as it is.
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - dt.date(1970, 1, 1).toordinal()
    return value


def fields_of(view: TableView) -> StreamFields:
    """Field ids of the stream's coordinates in the view's schema."""
    return stream_fields(view.schema_json)


def live_file_of(
    entry: ManifestEntry, fields: StreamFields, spec_id: int, has_deletes: bool, nulls_of: Collection[int]
) -> LiveFile:
    """One manifest entry, as far as its bounds show."""
    file = entry.data_file
    lower, upper = file.lower_bounds, file.upper_bounds
    # pyiceberg builds a dictionary at the first access, so null counts are accessed only on request.
    nulls = (file.null_value_counts or {}).items() if nulls_of else ()
    return LiveFile(
        path=file.file_path,
        record_count=file.record_count,
        file_size=file.file_size_in_bytes,
        spec_id=spec_id,
        partition=tuple(file.partition[position] for position in range(len(file.partition))),
        offset_min=bound_number(lower, fields.offset),
        offset_max=bound_number(upper, fields.offset),
        partition_min=bound_number(lower, fields.partition),
        partition_max=bound_number(upper, fields.partition),
        # pyiceberg has filled in what the entry inherits from its manifest. 0 if that has none either.
        snapshot_id=entry.snapshot_id or 0,
        sequence_number=entry.sequence_number or 0,
        has_deletes=has_deletes,
        null_counts=tuple((key, count) for key, count in nulls if key in nulls_of),
    )
