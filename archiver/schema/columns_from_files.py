"""The columns of a table from its files alone: Parquet's types and field ids as an Iceberg schema.

Pure. Used if no ledger with a recorded schema exists. Every field id of every file becomes a column, with the
name and type of the newest version that has it. A column that some version lacks may be null. Two columns of
one struct never share a name. A field without an id in the files gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from archiver.runtime.errors import Corrupted
from archiver.schema.columns import Json, schema_text

_FIELD_ID = b"PARQUET:field_id"


def found_schema(newest_first: Sequence[pa.Schema]) -> str:
    """The table schema of files with these columns, one of each version; raises `Corrupted` for columns that
    no archive has.
    """
    merged: Json = {"type": "struct", "schema-id": 0, "fields": []}
    for columns in newest_first:
        _take_in(merged, [_column(field) for field in columns])
    return schema_text(merged)


def _take_in(struct: Json, columns: Sequence[Json]) -> None:
    """Add columns of an older version that the struct lacks, recursively."""
    fresh = not struct["fields"]
    have = {one["id"]: one for one in struct["fields"]}
    taken = {one["name"] for one in struct["fields"]}
    for column in columns:
        known = have.get(column["id"])
        if known is not None:
            for ours, theirs in zip(_structs(known["type"]), _structs(column["type"]), strict=False):
                _take_in(ours, theirs["fields"])
            continue
        name = column["name"]
        while name in taken:  # the name of a column that another one with its name replaced
            name = f"{name}_{column['id']}"
        taken.add(name)
        struct["fields"].append({**column, "name": name, "required": column["required"] and fresh})


def _structs(kind: Any) -> list[Json]:
    """The structs directly inside a type, through lists and maps, in the same order for every version of a
    column.
    """
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return [kind]
    if kind["type"] == "list":
        return _structs(kind["element"])
    return [*_structs(kind["key"]), *_structs(kind["value"])]


def _column(field: pa.Field[Any]) -> Json:
    return {
        "id": _id(field),
        "name": field.name,
        "required": not field.nullable,
        "type": _type(field.type, field.name),
    }


def _id(field: pa.Field[Any]) -> int:
    metadata = field.metadata or {}
    if _FIELD_ID not in metadata:
        raise Corrupted(f"column {field.name} has no field id; the file was not written by this archiver")
    return int(metadata[_FIELD_ID])


def _type(kind: Any, name: str) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_column(kind.field(index)) for index in range(kind.num_fields)]}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "key-id": _id(kind.key_field),
            "key": _type(kind.key_type, name),
            "value-id": _id(kind.item_field),
            "value": _type(kind.item_type, name),
            "value-required": not kind.item_field.nullable,
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return {
            "type": "list",
            "element-id": _id(element),
            "element": _type(kind.value_type, name),
            "element-required": not element.nullable,
        }
    return _primitive(kind, name)


def _primitive(kind: Any, name: str) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    for is_one, text in _PRIMITIVES:
        if is_one(kind):
            return text
    raise Corrupted(f"column {name} has type {kind}, which no archive has")


_PRIMITIVES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_date32, "date"),
    (pa.types.is_time64, "time"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
)
