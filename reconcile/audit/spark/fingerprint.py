"""Computes a fingerprint for each row of a data file of any writer.

Two rows have the same fingerprint if and only if they have the same values in the columns of the recorded
schema. Columns of other programs are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from reconcile.audit.rows import Coordinates

# Size of a SHA-256: the rows come from a writer that is not trusted, so collisions must be hard to make.
PRINT_BYTES = 32
_FIELD_ID = b"PARQUET:field_id"
# 64-bit offsets, so the joined bytes of a batch have no limit of 2 GiB.
_LARGE = pa.large_binary()
_NULL = b"\x00"
_VALUE = b"\x01"
_NUMBERS = frozenset({"boolean", "int", "long", "date", "time", "timestamp", "timestamptz"})
_FLOATS = frozenset({"float", "double"})
_BYTES = frozenset({"string", "binary", "uuid"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column without parts; `kind` is Iceberg's type name."""

    kind: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list; a map is a list of its entries, in their order."""

    item: Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A named column, at top level or in a struct."""

    field_id: int
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Fields:
    """A struct."""

    columns: tuple[Column, ...]
    entries: bool = False
    """Whether these are the key and value of a map's entries, which are identified by position."""


Kind = Leaf | Items | Fields


def columns_of(schema: dict[str, Any]) -> tuple[Column, ...]:
    """The top-level columns of an Iceberg schema in JSON form."""
    return tuple(Column(one["id"], one["name"], _kind(one["type"])) for one in schema["fields"])


def _kind(kind: Any) -> Kind:
    if isinstance(kind, str):
        return Leaf(kind)
    if kind["type"] == "struct":
        return Fields(columns_of(kind))
    if kind["type"] == "list":
        return Items(_kind(kind["element"]))
    return Items(
        Fields(
            (
                Column(kind["key-id"], "key", _kind(kind["key"])),
                Column(kind["value-id"], "value", _kind(kind["value"])),
            ),
            entries=True,
        )
    )


def names_in(columns: Sequence[Column], file: pa.Schema) -> list[str]:
    """The file's names of the top-level columns that it has. Raises `ValueError` like `fingerprints`."""
    # Engines ignore a column without an id if other columns of the file have one, so names count only in
    # files without ids.
    by_id = has_ids(file)
    found = (_place(column, list(file), by_id=by_id) for column in columns)
    return [file.field(place).name for place in found if place is not None]


def fingerprints(columns: Sequence[Column], rows: pa.RecordBatch) -> list[bytes]:
    """One fingerprint per row. Raises `ValueError` (pyarrow's errors are subclasses) if a column has another
    type than in the schema, or exists twice.
    """
    fields, by_id = list(rows.schema), has_ids(rows.schema)
    parts = []
    for column in columns:
        place = _place(column, fields, by_id=by_id)
        parts.append(
            # A missing column is null, as in every engine.
            _encoded(None if place is None else rows.column(place), column.kind, rows.num_rows, by_id=by_id)
        )
    return [hashlib.sha256(one).digest() for one in _values(_joined(parts, rows.num_rows))]


def check_coordinates(ids: Coordinates, file: pa.Schema) -> None:
    """Raise `ValueError` unless the columns named `kafka.partition` and so on are exactly those with these
    ids.
    """
    # Engines read such a file by name, as the audit does.
    if not has_ids(file):
        return
    # Coordinates are read by name, engines use ids. A second `kafka` column could hide the real coordinates.
    kafka = _named("kafka", ids.kafka, list(file))
    inside = (
        [kafka.type.field(number) for number in range(kafka.type.num_fields)]
        if pa.types.is_struct(kafka.type)
        else []
    )
    for name, number in (
        ("partition", ids.partition),
        ("offset", ids.offset),
        ("ingest_timestamp", ids.ingest_timestamp),
    ):
        _named(name, number, inside)


def _named(name: str, field_id: int, fields: Sequence[pa.Field[Any]]) -> pa.Field[Any]:
    found = [field for field in fields if field.name == name or _id_of(field) == field_id]
    if len(found) != 1 or found[0].name != name or _id_of(found[0]) != field_id:
        raise ValueError(f"the column {name} is not the one with field id {field_id}, or not the only one")
    return found[0]


def has_ids(file: pa.Schema) -> bool:
    """Whether a file has any field id. Engines then find all its columns by id."""
    return any(_has_ids(field) for field in file)


def _has_ids(field: pa.Field[Any]) -> bool:
    kind = field.type
    return _id_of(field) is not None or any(_has_ids(kind.field(number)) for number in range(kind.num_fields))


def _id_of(field: pa.Field[Any]) -> int | None:
    number = (field.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)


def _place(column: Column, fields: Sequence[pa.Field[Any]], *, by_id: bool) -> int | None:
    """The position of a column among fields: by id, or by name in a file without ids. Raises `ValueError` if
    there are two.
    """
    found = [
        place
        for place, field in enumerate(fields)
        if (_id_of(field) == column.field_id if by_id else field.name == column.name)
    ]
    if len(found) > 1:
        raise ValueError(f"the column {column.name} (field id {column.field_id}) exists {len(found)} times")
    return found[0] if found else None


def _encoded(array: Array | None, kind: Kind, rows: int, *, by_id: bool) -> Array:
    """Bytes for each value, prefix-free: one byte for null; otherwise one byte and the value."""
    if array is None or pa.types.is_null(array.type):
        return _repeated(_NULL, rows)
    # Prefix-free bytes can be joined without separators: different values have different bytes.
    found = _joined([_repeated(_VALUE, rows), *_parts(array, kind, rows, by_id=by_id)], rows)
    # Neither the bytes stored behind a null nor the presence of an all-null column may change the
    # fingerprint.
    return pc.if_else(array.is_valid(), found, arrow.scalar(_NULL, _LARGE)) if array.null_count else found


def _parts(array: Array, kind: Kind, rows: int, *, by_id: bool) -> list[Array]:
    """The bytes of the values, in parts; arbitrary for a null."""
    if isinstance(kind, Leaf):
        return _leaf(array, kind.kind)
    if isinstance(kind, Fields):
        if not pa.types.is_struct(array.type):
            raise ValueError(f"a struct is stored as {array.type}")
        fields = [array.type.field(number) for number in range(array.type.num_fields)]
        # The entries of a map have no ids here: `_items` removed them and gave them fixed names.
        ids_here = by_id and not kind.entries
        places = [(_place(column, fields, by_id=ids_here), column.kind) for column in kind.columns]
        # flatten() applies the nulls of the struct to its children.
        children = array.flatten()
        return [
            _encoded(None if place is None else children[place], one, rows, by_id=by_id)
            for place, one in places
        ]
    # A list of structs could otherwise pass as a map with the same entries.
    if isinstance(kind.item, Fields) and kind.item.entries and not pa.types.is_map(array.type):
        raise ValueError(f"a map is stored as {array.type}")
    lengths, items = _items(array)
    # Items are encoded in one array, then cut at list boundaries: no Python loop per row.
    ends = np.concatenate(([0], np.cumsum(lengths)))
    item_ends, data = _buffers(_encoded(items, kind.item, len(items), by_id=by_id))
    together = arrow.LargeBinaryArray.from_buffers(
        _LARGE, rows, [None, arrow.py_buffer(np.ascontiguousarray(item_ends[ends])), data]
    )
    # The length keeps `[[a], [b]]` and `[[a, b]]` apart.
    return [_fixed(lengths, 8), together]


def _items(array: Array) -> tuple[npt.NDArray[np.int64], Array]:
    """The number of items of each list, and all items in sequence; for a map, its entries."""
    if pa.types.is_map(array.type):
        keys, values = array.type.key_field.with_name("key"), array.type.item_field.with_name("value")
        # A slice of a map array keeps the offsets of the whole array.
        ends: npt.NDArray[np.int32] = array.offsets.to_numpy()
        # Field metadata has the file's ids, which entries do not use.
        entries = arrow.StructArray.from_arrays(
            [array.keys[ends[0] : ends[-1]], array.items[ends[0] : ends[-1]]],
            fields=[keys.remove_metadata(), values.remove_metadata()],
        )
        starts = arrow.array(ends - ends[0], pa.int32())
        # `flatten` of a list array skips items behind a null, which `array.items` of a map does not.
        array = arrow.ListArray.from_arrays(starts, entries, mask=array.is_null())
    elif not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise ValueError(f"a list is stored as {array.type}")
    counts = pc.list_value_length(array)
    lengths: npt.NDArray[np.int64] = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths, array.flatten()


def _leaf(array: Array, kind: str) -> list[Array]:
    """The value's bytes, empty or zeros for a null, prefixed with their length if it varies."""
    if kind in _BYTES or kind.startswith("fixed"):
        values = pc.fill_null(array.cast(_LARGE), b"")
        return [_fixed(pc.binary_length(values).to_numpy(zero_copy_only=False), 8), values]
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        # The widest precision: a promotion of `decimal` changes the precision and not the scale.
        whole = arrow.array(array.cast(pa.decimal128(38, scale)))
        zeros = pc.fill_null(whole, arrow.scalar(0, pa.decimal128(38, scale)))
        # The 16 bytes of each value from the buffer; a conversion to Python decimals would be slow.
        data = np.frombuffer(zeros.buffers()[1], np.uint8)[zeros.offset * 16 :][: len(zeros) * 16]
        return [_fixed(data, 16)]
    if kind in _FLOATS:
        if not pa.types.is_floating(array.type):
            raise ValueError(f"a {kind} is stored as {array.type}")
        # Floats are compared by their bits: NaN payloads and -0.0 are part of the record.
        numbers = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        return [_fixed(numbers, 8)]
    if kind not in _NUMBERS:
        raise ValueError(f"a column of type {kind} cannot be compared")
    # All integers as int64: an engine may promote `int` to `long`.
    return [_fixed(pc.fill_null(_whole(array, kind), 0).to_numpy(zero_copy_only=False), 8)]


def _whole(array: Array, kind: str) -> Array:
    """A number, time or boolean as int64."""
    types = pa.types
    if kind.startswith("timestamp"):
        # Units may differ between writers; Iceberg has microseconds.
        fits, array = (
            types.is_timestamp(array.type),
            array.cast(pa.timestamp("us")) if types.is_timestamp(array.type) else array,
        )
    elif kind == "time":
        fits, array = (
            types.is_time(array.type),
            array.cast(pa.time64("us")) if types.is_time(array.type) else array,
        )
    elif kind == "date":
        fits, array = (
            types.is_date32(array.type),
            array.cast(pa.int32()) if types.is_date32(array.type) else array,
        )
    elif kind == "boolean":
        fits, array = (
            types.is_boolean(array.type),
            array.cast(pa.int8()) if types.is_boolean(array.type) else array,
        )
    else:
        fits = types.is_integer(array.type)
    if not fits:
        raise ValueError(f"a {kind} is stored as {array.type}")
    return array.cast(pa.int64())


def _fixed(values: npt.NDArray[Any], width: int) -> Array:
    """Values with the same number of bytes each."""
    # `from_buffers` needs the values without strides.
    data = np.ascontiguousarray(values)
    count = data.nbytes // width
    ends = np.arange(count + 1, dtype=np.int64) * width
    return arrow.LargeBinaryArray.from_buffers(
        _LARGE, count, [None, arrow.py_buffer(ends), arrow.py_buffer(data)]
    )


def _repeated(value: bytes, rows: int) -> Array:
    return arrow.repeat(arrow.scalar(value, _LARGE), rows)


def _joined(parts: Sequence[Array], rows: int) -> Array:
    if not parts:
        return _repeated(b"", rows)
    return pc.binary_join_element_wise(*parts, arrow.scalar(b"", _LARGE))


def _buffers(array: Array) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """The offsets of the values of an array without nulls, and their bytes."""
    # An empty array may have no buffers.
    if len(array) == 0:
        return np.zeros(1, np.int64), pa.py_buffer(b"")
    _, ends, data = array.buffers()
    return np.frombuffer(ends, np.int64)[array.offset :][: len(array) + 1], pa.py_buffer(
        b""
    ) if data is None else data


def _values(array: Array) -> Iterator[memoryview]:
    ends, data = _buffers(array)
    # Slices of a memoryview do not copy.
    view = memoryview(data)
    places = ends.tolist()
    for low, high in pairwise(places):
        yield view[low:high]
