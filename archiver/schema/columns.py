"""The columns of a topic's table: Protobuf trees to Iceberg's schema JSON, to the Arrow schema for Parquet,
and back from files to the JSON.

This module defines the names, order, types and optionality of all columns, the JSON form (frozen:
`tests/compat/golden_schema`), and the leaves with bounds. Columns are always made in the direction tree →
Iceberg → Arrow. The Arrow schema is a function of the JSON, so its field ids are those in force. A field id
is never reused, and Protobuf is not read after the JSON is made. `found_schema` is for a table that is
rebuilt from its files.

`key` and `value` and everything below are optional. `headers`, `kafka`, the header's key, partition, offset
and ingest_timestamp are required: a record always has them. The order in a message is `__raw__`,
`__prefix__`, `__err__` (top level only), the fields by number, `__unrecognized__`. Lists and maps of the
message are optional with optional elements and values.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from archiver.runtime.errors import Corrupted
from archiver.schema.protobuf.column_names import column_names
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED, FieldTree, Kind, MessageTree, Shape

FIELD_ID = b"PARQUET:field_id"
"""Metadata key by which Arrow reads and writes the field id of a Parquet column."""


# --- From the columns of files to a table schema
def found_schema(newest_first: Sequence[pa.Schema]) -> str:
    """The table schema of files with these columns, one file for each schema version. Raises `Corrupted` for
    columns that no archive has.
    """
    merged: Json = {"type": "struct", "schema-id": 0, "fields": []}
    for columns in newest_first:
        # The newest version goes first, so its names and types win.
        _take_in(merged, [_column_of_file(field) for field in columns])
    return schema_text(merged)


def _take_in(struct: Json, columns: Sequence[Json]) -> None:
    """Add columns of an older version that the struct lacks, recursively."""
    # A column that newer files lack becomes optional, because their rows have null in it.
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
        # Another column has taken over the name of this older one. The id makes the name unique.
        while name in taken:
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


def _column_of_file(field: pa.Field[Any]) -> Json:
    return {
        "id": _id(field),
        "name": field.name,
        "required": not field.nullable,
        "type": _type(field.type, field.name),
    }


def _id(field: pa.Field[Any]) -> int:
    metadata = field.metadata or {}
    if FIELD_ID not in metadata:
        raise Corrupted(f"column {field.name} has no field id; the file was not written by this archiver")
    return int(metadata[FIELD_ID])


def _type(kind: Any, name: str) -> Any:
    if pa.types.is_struct(kind):
        return {
            "type": "struct",
            "fields": [_column_of_file(kind.field(index)) for index in range(kind.num_fields)],
        }
    # Maps before lists: Arrow stores a map as a list of entries.
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
        # The same spelling as in `_TYPES`, because stored text is compared.
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
    # The large variants of Arrow are the same type in Iceberg.
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
)


# --- From Protobuf trees to Iceberg, and to Arrow
BOUNDED_LEAVES_MAX = 100
"""Leaves of key and value that get bounds and statistics; `kafka.*` always does."""

_TYPES: Mapping[Kind, str] = {
    Kind.DOUBLE: "double",
    Kind.FLOAT: "float",
    Kind.INT32: "int",
    Kind.INT64: "long",
    # Iceberg has no unsigned types: the next larger signed one holds all values.
    Kind.UINT32: "long",
    # The highest 64-bit number has 20 digits.
    Kind.UINT64: "decimal(20, 0)",
    Kind.SINT32: "int",
    Kind.SINT64: "long",
    Kind.FIXED32: "long",
    Kind.FIXED64: "decimal(20, 0)",
    Kind.SFIXED32: "int",
    Kind.SFIXED64: "long",
    Kind.BOOL: "boolean",
    Kind.STRING: "string",
    Kind.BYTES: "binary",
    # The name of the value; a number that the enum does not have is decimal text.
    Kind.ENUM: "string",
    Kind.TIMESTAMP: "timestamptz",
    Kind.ENCODED: "binary",
}

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp": pa.timestamp("us"),
    "date": pa.date32(),
}

Json = dict[str, Any]


@dataclass(frozen=True)
class BoundedColumn:
    """A leaf outside lists and maps that gets statistics in Parquet and bounds in the table's manifests."""

    path: tuple[str, ...]
    """Names from the top, as in ("kafka", "offset"); joined by dots it is the column's path in Parquet."""
    field_id: int
    type: str
    """Iceberg's name of the type."""

    @property
    def dotted(self) -> str:
        """The path as Parquet spells it."""
        return ".".join(self.path)


def iceberg_schema(key: MessageTree | None, value: MessageTree | None) -> Json:
    """The schema of a new table, schema id 0, ids fresh from 1. None: no Protobuf schema, only `__raw__`."""
    schema: Json = {
        "type": "struct",
        "schema-id": 0,
        "fields": [_column("key", _record(key)), _column("value", _record(value)), *_fixed()],
    }
    # Catalogs assign ids from 1 at table creation and ignore those that a client sends.
    _number(schema, itertools.count(1))
    return schema


def schema_text(schema: Json) -> str:
    """The one spelling of a schema that is stored."""
    # Stored text is compared byte for byte, so it has one form.
    return json.dumps(schema, separators=(",", ":"))


def _column(name: str, kind: str | Json, required: bool = False) -> Json:
    # 0 stands for an id that `_number` or the caller assigns later.
    return {"id": 0, "name": name, "required": required, "type": kind}


def _struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def _list(element: str | Json, required: bool = False) -> Json:
    return {"type": "list", "element-id": 0, "element": element, "element-required": required}


def _fixed() -> tuple[Json, Json]:
    headers = _struct(_column("key", "string", required=True), _column("value", "binary"))
    kafka = _struct(
        _column("partition", "int", required=True),
        _column("offset", "long", required=True),
        _column("event_timestamp", "timestamptz"),
        _column("ingest_timestamp", "timestamptz", required=True),
        _column("batch_start", "long"),
    )
    return _column("headers", _list(headers, required=True), required=True), _column(
        "kafka", kafka, required=True
    )


def _record(tree: MessageTree | None) -> Json:
    """The struct of a key or a value."""
    raw = _column(RAW, "binary")
    if tree is None:
        return _struct(raw)
    # The order of these columns is frozen: it decides their ids in new tables.
    return _struct(raw, _column(PREFIX, "binary"), _column(ERR, "string"), *_message(tree))


def _message(tree: MessageTree) -> list[Json]:
    names = column_names([one.name for one in tree.fields], ())
    columns = [_column(name, _field_type(one)) for name, one in zip(names, tree.fields, strict=True)]
    return columns if tree.closed else [*columns, _column(UNRECOGNIZED, "binary")]


def _field_type(tree: FieldTree) -> str | Json:
    kind: str | Json = _struct(*_message(tree.message)) if tree.message is not None else _scalar(tree)
    # From the innermost container outwards; only Avro has containers directly inside others.
    for shape in reversed((tree.shape, *tree.inner)):
        if shape is Shape.REPEATED:
            kind = _list(kind)
        elif shape is Shape.MAP:
            key = "string" if tree.key is None else _TYPES[tree.key.kind]
            kind = {
                "type": "map",
                "key-id": 0,
                "key": key,
                "value-id": 0,
                "value": kind,
                "value-required": False,
            }
    return kind


def _scalar(tree: FieldTree) -> str:
    return tree.column or _TYPES[tree.kind]


def _number(kind: str | Json, ids: Iterator[int]) -> None:
    """Give every id inside `kind` a number, in the order catalogs use."""
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        # First all fields of the struct, then their contents: catalogs number level by level.
        for one in kind["fields"]:
            one["id"] = next(ids)
        for one in kind["fields"]:
            _number(one["type"], ids)
    elif kind["type"] == "list":
        kind["element-id"] = next(ids)
        _number(kind["element"], ids)
    else:
        kind["key-id"], kind["value-id"] = next(ids), next(ids)
        _number(kind["value"], ids)


def column_type(tree: FieldTree) -> str | Json:
    """The type of a field's column, without ids."""
    return _field_type(tree)


def new_column(tree: FieldTree, ids: Iterator[int]) -> Json:
    """An optional column of the tree's name for a field that has none yet, with fresh ids for it and for what
    is inside.
    """
    column = _column(tree.name, _field_type(tree))
    # The column first, then what is inside, as catalogs assign ids when a column is added.
    column["id"] = next(ids)
    _number(column["type"], ids)
    return column


def message_columns(struct: Json, ids: Iterator[int], *, closed: bool = False) -> None:
    """Add to the struct of a key or a value, in place, the archiver's own columns for a message that are
    missing; `closed` as in `MessageTree`.
    """
    have = {one["name"] for one in struct["fields"]}
    # A topic that had no schema has only `__raw__`. A field can never have one of these names.
    for name, kind in ((PREFIX, "binary"), (ERR, "string"), (UNRECOGNIZED, "binary")):
        if name not in have and not (closed and name == UNRECOGNIZED):
            struct["fields"].append({**_column(name, kind), "id": next(ids)})


def field_ids(tree: MessageTree, struct: Json) -> dict[str, int]:
    """Field ids by path of Protobuf field numbers: "3" a field, "3/1" a field of its message (or a map's
    key), "3/2" a map's value. For Avro by path of names, where "1" and "2" lead into maps as well.

    `struct` is the Iceberg struct of `tree`; its names are those of the columns, or the requested ones of a
    first schema.
    """
    result: dict[str, int] = {}
    by_name = {one["name"]: one for one in struct["fields"]}
    names = column_names([one.name for one in tree.fields], ())
    for one, name in zip(tree.fields, names, strict=True):
        column = by_name[name]
        result[one.step] = column["id"]
        result.update(container_ids(one, column))
        if one.message is not None:
            inner = innermost(column["type"])
            result.update(
                {
                    f"{one.step}{one.below}{path}": number
                    for path, number in field_ids(one.message, inner).items()
                }
            )
    return result


def container_ids(field: FieldTree, column: Json) -> dict[str, int]:
    """The ids of the keys and values of the maps of a field, by path."""
    result: dict[str, int] = {}
    kind, path = column["type"], field.step
    for shape in (field.shape, *field.inner):
        if shape is Shape.MAP:
            result[f"{path}/1"], result[f"{path}/2"] = kind["key-id"], kind["value-id"]
            kind, path = kind["value"], f"{path}/2"
        elif shape is Shape.REPEATED:
            # A list element has no number of its own: its id is in the JSON only.
            kind = kind["element"]
    return result


def innermost(kind: str | Json) -> Any:
    """The type inside all lists and maps of a column's type."""
    while isinstance(kind, dict) and kind["type"] != "struct":
        kind = kind["element"] if kind["type"] == "list" else kind["value"]
    return kind


def arrow_schema_of(schema: Json) -> pa.Schema:
    """The Arrow schema with field ids in the metadata of every field, list element, map key and map value.

    Raises Corrupted for a type that this version does not write.
    """
    return pa.schema(
        [_arrow_field(one["name"], one["type"], one["id"], one["required"]) for one in schema["fields"]]
    )


def _arrow_field(name: str, kind: str | Json, field_id: int, required: bool) -> pa.Field[Any]:
    return pa.field(
        name, _arrow_type(kind), nullable=not required, metadata={FIELD_ID: str(field_id).encode()}
    )


def _arrow_type(kind: str | Json) -> pa.DataType:
    if isinstance(kind, str):
        return _arrow_primitive(kind)
    if kind["type"] == "struct":
        return pa.struct(
            [_arrow_field(one["name"], one["type"], one["id"], one["required"]) for one in kind["fields"]]
        )
    if kind["type"] == "list":
        return pa.list_(
            _arrow_field("element", kind["element"], kind["element-id"], kind["element-required"])
        )
    if kind["type"] == "map":
        key = _arrow_field("key", kind["key"], kind["key-id"], required=True)
        value = _arrow_field("value", kind["value"], kind["value-id"], kind["value-required"])
        # The stub of pa.map_ accepts types only, but fields carry the ids.
        make_map: Any = pa.map_
        result: pa.DataType = make_map(key, value)
        return result
    raise Corrupted(
        f"the recorded schema has the type {kind['type']!r}, which this version does not know; use the "
        "version that wrote it"
    )


def _arrow_primitive(kind: str) -> pa.DataType:
    if kind in _ARROW:
        return _ARROW[kind]
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
    if decimal is None:
        raise Corrupted(
            f"the recorded schema has the type {kind!r}, which this version does not know; use the "
            "version that wrote it"
        )
    return pa.decimal128(int(decimal[1]), int(decimal[2]))


def bounded_columns_of(schema: Json) -> tuple[BoundedColumn, ...]:
    """The leaves with bounds: the first 100 of key and value in the order of the schema, then all of `kafka`.

    None is inside a list or a map.
    """
    leaves = list(_leaves((), schema["fields"]))
    kafka = [one for one in leaves if one.path[0] == "kafka"]
    # The limit does not apply to `kafka`: the audit proves offsets by its bounds.
    others = [one for one in leaves if one.path[0] != "kafka"]
    return (*others[:BOUNDED_LEAVES_MAX], *kafka)


def _leaves(above: tuple[str, ...], fields: list[Json]) -> Iterator[BoundedColumn]:
    for one in fields:
        path = (*above, one["name"])
        if isinstance(one["type"], str):
            yield BoundedColumn(path, one["id"], one["type"])
        # Iceberg keeps no bounds for values inside lists and maps.
        elif one["type"]["type"] == "struct":
            yield from _leaves(path, one["type"]["fields"])
