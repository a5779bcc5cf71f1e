"""Control events that Java's own builders can make, as the judge wants them: the content, the partition spec,
the table's schema.

What Java's classes hold is narrower than the wire: counts are not negative, a data file has no equality ids,
all files have the spec of their event. A value of `fixed` is null, because those classes fail when they write
one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from archiver.events import codec, json_form
from archiver.events.types import CommitToTable, DataFile, DataWritten, Event, PartitionField, TableReference
from tests.support.events.event_values import events

SPEC_ID = 3
_SOURCE_ID = 100
_SIZE_MAX = 2**62

Case = tuple[bytes, dict[str, Any]]
"""The bytes as we write them, and what the judge needs to write them."""


def cases(count: int, table_uuid: bool, seeded: int) -> list[Case]:
    """Events of all types, the same ones for the same seed."""
    found: list[Case] = []

    @seed(seeded)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(events())
    def collect(made: tuple[Event, tuple[PartitionField, ...]]) -> None:
        event, fields = made
        event = dataclasses.replace(event, payload=_java(event.payload, fields))
        data = codec.encode(event, fields, table_uuid=table_uuid)
        content = json_form.to_json(codec.read(data))
        found.append((data, {"name": f"{len(found):05}", "about": "", "event": content, **_table(fields)}))

    collect()
    return found


def _table(fields: tuple[PartitionField, ...]) -> dict[str, Any]:
    """A table that has a column for each partition field."""
    columns = [{"id": 1, "name": "first", "required": False, "type": "long"}]
    columns += [
        {"id": _SOURCE_ID + at, "name": f"source_{at}", "required": False, "type": field.type}
        for at, field in enumerate(fields)
    ]
    listed = [
        {
            "name": field.name,
            "transform": "identity",
            "source-id": _SOURCE_ID + at,
            "field-id": field.field_id,
        }
        for at, field in enumerate(fields)
    ]
    return {
        "table_schema": {"type": "struct", "schema-id": 0, "fields": columns},
        "partition_spec": {"spec-id": SPEC_ID, "fields": listed},
    }


def _java(payload: Any, fields: tuple[PartitionField, ...]) -> Any:
    if isinstance(payload, DataWritten):
        data, deletes = payload.data_files, payload.delete_files
        return dataclasses.replace(
            payload,
            table=_named(payload.table),
            data_files=None if data is None else tuple(_data_file(one, fields) for one in data),
            delete_files=None if deletes is None else tuple(_delete_file(one, fields) for one in deletes),
        )
    if isinstance(payload, CommitToTable):
        return dataclasses.replace(payload, table=_named(payload.table))
    return payload


def _named(table: TableReference) -> TableReference:
    return dataclasses.replace(
        table, name=f"t{table.name}", namespace=tuple(one.replace("\0", "") for one in table.namespace)
    )


def _file(file: DataFile, fields: tuple[PartitionField, ...]) -> DataFile:
    values = tuple(
        None if one.type.startswith("fixed") else value
        for one, value in zip(fields, file.partition, strict=True)
    )
    offsets = tuple(sorted(abs(one) % _SIZE_MAX for one in file.split_offsets or ()))
    return dataclasses.replace(
        file,
        spec_id=SPEC_ID,
        partition=values,
        record_count=abs(file.record_count) % _SIZE_MAX,
        file_size=_SIZE_MAX,
        split_offsets=offsets or None,
        sort_order_id=None if file.sort_order_id is None else abs(file.sort_order_id) % 1000,
    )


def _data_file(file: DataFile, fields: tuple[PartitionField, ...]) -> DataFile:
    row_id = None if file.first_row_id is None else abs(file.first_row_id) % _SIZE_MAX
    return dataclasses.replace(
        _file(file, fields),
        content=0,
        equality_ids=None,
        first_row_id=row_id,
        referenced_data_file=None,
        content_offset=None,
        content_size=None,
    )


def _delete_file(file: DataFile, fields: tuple[PartitionField, ...]) -> DataFile:
    """Equality deletes, position deletes, or (in Puffin) a deletion vector, which alone says where in the
    file it lies."""
    equality, vector = bool(file.equality_ids), file.file_format == "PUFFIN"
    return dataclasses.replace(
        _file(file, fields),
        content=2 if equality and not vector else 1,
        equality_ids=None if vector else file.equality_ids or None,
        sort_order_id=(file.sort_order_id or 0) % 1000 if equality and not vector else None,
        first_row_id=None,
        referenced_data_file=file.referenced_data_file or "x"
        if vector
        else None
        if equality
        else file.referenced_data_file,
        content_offset=abs(file.content_offset or 0) % _SIZE_MAX if vector else None,
        content_size=abs(file.content_size or 0) % _SIZE_MAX if vector else None,
    )
