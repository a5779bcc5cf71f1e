"""The differences between a field and its former version apart from its column: its wire bytes and their
meaning. Pure.

It also says whether each schema reads the other's records correctly. Nested messages are not compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from archiver.schema.protobuf.tree import EnumTree, FieldTree, Kind, Shape

_VALUES_SHOWN = 5

_ON_THE_WIRE: Final[Mapping[Kind, str]] = {
    Kind.INT32: "varint",
    Kind.INT64: "varint",
    Kind.UINT32: "varint",
    Kind.UINT64: "varint",
    Kind.BOOL: "varint",
    Kind.ENUM: "varint",
    Kind.SINT32: "zigzag",
    Kind.SINT64: "zigzag",
    Kind.FIXED32: "4 bytes",
    Kind.SFIXED32: "4 bytes",
    Kind.FIXED64: "8 bytes",
    Kind.SFIXED64: "8 bytes",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "length",
    Kind.BYTES: "length",
    Kind.ENCODED: "length",
    Kind.MESSAGE: "length",
    Kind.TIMESTAMP: "length",
}
"""Kinds of one form read each other's values, as far as they fit."""

_JSON: Final[Mapping[str, str]] = {
    "struct": "google.protobuf.Struct",
    "value": "google.protobuf.Value",
    "list": "google.protobuf.ListValue",
}


@dataclass(frozen=True)
class Difference:
    """Two fields that share a column and are not the same."""

    was: str
    now: str
    compatible: bool
    """Whether records of either are read rightly by the other, to the same values."""


def field_text(field: FieldTree) -> str:
    """A field's type in the words of Protobuf."""
    kind = _kind_text(field)
    if field.key is not None:
        return f"map<{_kind_text(field.key)},{kind}>"
    return f"repeated {kind}" if field.shape is Shape.REPEATED else kind


def wire_difference(was: FieldTree, now: FieldTree, names: bool) -> Difference | None:
    """What differs between two fields of one number that fit one column, their names only with `names`; None
    if nothing does.
    """
    before: list[str] = []
    after: list[str] = []
    pairs = _pairs(was, now)
    if names:
        pairs.append((f"named {was.name}", f"named {now.name}"))
    for a, b in pairs:
        if a != b:
            before.append(a)
            after.append(b)
    if not before:
        return None
    keys_alike = was.key is None or now.key is None or _form(was.key) == _form(now.key)
    compatible = _form(was) == _form(now) and keys_alike and _names_stay(was.enum, now.enum)
    return Difference(", ".join(before), ", ".join(after), compatible)


def _pairs(was: FieldTree, now: FieldTree) -> list[tuple[str, str]]:
    pairs = [
        (field_text(was), field_text(now)),
        ("presence" if was.presence else "no presence", "presence" if now.presence else "no presence"),
        ("packed" if was.packed else "not packed", "packed" if now.packed else "not packed"),
        (_oneof_text(was), _oneof_text(now)),
    ]
    if was.enum is not None and now.enum is not None and was.enum != now.enum:
        pairs.append((_values_text(was.enum, now.enum), _values_text(now.enum, was.enum)))
    return pairs


def _names_stay(was: EnumTree | None, now: EnumTree | None) -> bool:
    """Whether every number that both enums name has one name: rows hold the names."""
    before = {} if was is None or now is None else dict(was.names)
    return now is None or all(before.get(number, name) == name for number, name in now.names)


def _kind_text(field: FieldTree) -> str:
    if field.json is not None:
        return _JSON[field.json]
    if field.wrapped:
        return f"wrapped {field.kind.value}"
    return "group" if field.delimited else field.kind.value


def _form(field: FieldTree) -> str:
    """What two fields must share to read each other's records."""
    if field.json is not None:
        return _JSON[field.json]
    form = "group" if field.delimited else _ON_THE_WIRE[field.kind]
    return f"wrapped {form}" if field.wrapped else form


def _oneof_text(field: FieldTree) -> str:
    return "in no oneof" if field.oneof is None else f"in the oneof of field {field.oneof}"


def _values_text(mine: EnumTree, other: EnumTree) -> str:
    """The enum values that the other does not have."""
    only = sorted(set(mine.names) - set(other.names))
    shown = [f"{name} = {number}" for number, name in only[:_VALUES_SHOWN]]
    more = [f"{len(only) - _VALUES_SHOWN} more"] if len(only) > _VALUES_SHOWN else []
    return f"enum values {', '.join([*shown, *more])}" if only else "no other enum values"
