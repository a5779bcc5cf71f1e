"""What the fields of a message that changes mean, kept apart from the archiver: which values belong to one
column for ever, and which value of a record must be found in which column.

A field is known by its number inside of its message. As long as its type fits (whole numbers of any width are
one type, so are float and double), it goes on in its column; if it does not, in the column it had last with a
fitting type, else in a new one. `Level.advance` follows that rule from descriptors alone. `Level.claim` then
holds the ids that the archiver recorded against it: one column, one id, for ever, and no id for two. `wanted`
is the row by ids that a message must give, `found` is the row that an engine read.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

ALONGSIDE = ("__raw__", "__prefix__", "__err__", "__unrecognized__")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_KINDS: Mapping[str, tuple[int, ...]] = {
    "whole": (
        *(
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_SINT32,
            FieldDescriptor.TYPE_SFIXED32,
            FieldDescriptor.TYPE_UINT32,
        ),
        *(
            FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_SINT64,
            FieldDescriptor.TYPE_SFIXED64,
            FieldDescriptor.TYPE_FIXED32,
        ),
    ),
    "unsigned": (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64),
    "real": (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE),
    "truth": (FieldDescriptor.TYPE_BOOL,),
    "text": (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_ENUM),
    "bytes": (FieldDescriptor.TYPE_BYTES,),
}
_NARROW = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32)
_TIMESTAMP = "google.protobuf.Timestamp"


@dataclass
class Column:
    """One column that a field has or had."""

    kind: tuple[str, ...]
    inside: Level | None
    """Of a struct, also as the element of a list or the value of a map."""
    ids: dict[str, int] = field(default_factory=dict)
    """Under "" the column's, under "1" and "2" those of a map's keys and values."""


@dataclass
class Level:
    """The columns of one message, at one place."""

    columns: dict[int, list[Column]] = field(default_factory=dict)
    """By field number: the column that was in use last stands first."""
    active: dict[int, Column] = field(default_factory=dict)

    def advance(self, descriptor: Descriptor) -> None:
        """The message has this shape from now on."""
        self.active = {}
        for one in descriptor.fields:
            known, kind = self.columns.setdefault(one.number, []), kind_of(one)
            column = next((column for column in known if column.kind == kind), None)
            if column is None:
                column = Column(kind, Level() if kind[-1] == "struct" else None)
            else:
                known.remove(column)
            known.insert(0, column)
            self.active[one.number] = column
            if column.inside is not None:
                column.inside.advance(_item(one).message_type)

    def claim(self, field_ids: Mapping[str, int], owners: dict[int, tuple[int, str]]) -> None:
        """The archiver recorded these ids for the fields of the message: each must be its column's own.
        `owners`: whose each id is."""
        paths = dict(self._paths(""))
        assert set(field_ids) == set(paths), f"paths differ: {sorted(set(field_ids) ^ set(paths))}"
        for path, (column, part) in paths.items():
            number = field_ids[path]
            assert column.ids.setdefault(part, number) == number, (
                f"path {path} had id {column.ids[part]} and has {number}"
            )
            assert owners.setdefault(number, (id(column), part)) == (id(column), part), (
                f"path {path} has id {number} of another field"
            )

    def _paths(self, above: str) -> Iterator[tuple[str, tuple[Column, str]]]:
        for number, column in self.active.items():
            path = f"{above}{number}"
            yield path, (column, "")
            if column.kind[0] == "map":
                yield f"{path}/1", (column, "1")
                yield f"{path}/2", (column, "2")
            if column.inside is not None:
                yield from column.inside._paths(f"{path}/2/" if column.kind[0] == "map" else f"{path}/")


def kind_of(one: Any) -> tuple[str, ...]:
    """What fits what: two types of a field share a column exactly if this is the same."""
    if _is_map(one):
        key = one.message_type.fields_by_number[1]
        narrow = "narrow" if key.type in _NARROW else "wide"  # keys of maps never widen
        return ("map", narrow, _scalar(key), _scalar(_item(one)))
    return ("list", _scalar(one)) if one.is_repeated else (_scalar(one),)


def _scalar(one: Any) -> str:
    if one.message_type is not None:
        return "time" if one.message_type.full_name == _TIMESTAMP else "struct"
    return next(name for name, kinds in _KINDS.items() if one.type in kinds)


def _is_map(one: Any) -> bool:
    return one.message_type is not None and one.message_type.GetOptions().map_entry


def _item(one: Any) -> Any:
    return one.message_type.fields_by_number[2] if _is_map(one) else one


def wanted(level: Level, message: Any) -> dict[int, Any]:
    """The row of a message: values by column id, without those that are null."""
    row: dict[int, Any] = {}
    for one in message.DESCRIPTOR.fields:
        column, value = level.active[one.number], getattr(message, one.name)
        if _is_map(one):
            key = one.message_type.fields_by_number[1]
            row[column.ids[""]] = _entries(
                (_wanted(key, column, at), _wanted(_item(one), column, value[at])) for at in value
            )
        elif one.is_repeated:
            row[column.ids[""]] = [_wanted(one, column, item) for item in value]
        elif not one.has_presence or message.HasField(one.name):
            row[column.ids[""]] = _wanted(one, column, value)
    return row


def _wanted(one: Any, column: Column, value: Any) -> Any:
    kind = _scalar(one)
    if kind == "struct":
        assert column.inside is not None
        return wanted(column.inside, value)
    if kind == "time":
        return value.seconds * 1_000_000 + value.nanos // 1000
    if one.type == FieldDescriptor.TYPE_ENUM:
        return next((each.name for each in one.enum_type.values if each.number == value), str(value))
    return _real(value) if kind == "real" else value


def found(kind: Any, value: Any) -> Any:
    """What an engine read, by the ids of the table's type `kind` (Iceberg's JSON), without nulls and without
    what is no field of a message.

    Lists and maps stay lists; numbers of every width are whole numbers; times are microseconds since 1970.
    """
    if value is None:
        return None
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            assert set(value) == {one["name"] for one in kind["fields"]}, f"columns {sorted(value)} were read"
            items = (
                (one["id"], found(one["type"], value[one["name"]]))
                for one in kind["fields"]
                if one["name"] not in ALONGSIDE
            )
            return {number: item for number, item in items if item is not None}
        if kind["type"] == "list":
            return [found(kind["element"], item) for item in value]
        pairs = value.items() if isinstance(value, Mapping) else value
        return _entries((found(kind["key"], at), found(kind["value"], item)) for at, item in pairs)
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if kind in ("float", "double"):
        return _real(value)
    return int(value) if kind in ("int", "long") or str(kind).startswith("decimal") else value


def _real(value: float) -> str:
    """Bits, so that -0.0 is itself and NaN equals NaN."""
    return "NaN" if math.isnan(value) else struct.pack(">d", value).hex()


def _entries(pairs: Iterator[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return sorted(pairs, key=lambda pair: repr(pair[0]))
