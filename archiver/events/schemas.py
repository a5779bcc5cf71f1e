"""Builds the schema text that Java embeds in an event, byte for byte, and converts it to and from wire bytes.

This includes the order of keys, the choice between a full type and a name, Jackson's escapes and Java's
modified UTF-8 (characters beyond the basic plane as two three-byte surrogates, U+0000 as two bytes). The same
payload type, partition fields and switches always give the same bytes; the golden samples freeze them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from archiver.events.avro import shown
from archiver.events.event_fields import Field, Kind, ListOf, MapOf, Scalar, Struct, left_out, struct_of
from archiver.events.partitions import UUID_FIXED, avro_name, avro_type, parse_type
from archiver.events.types import EventType, PartitionField
from archiver.runtime.errors import Corrupted, InvalidInput

TEXT_BYTES_MAX = 65535
"""Java stores the length of the text in 16 bits."""

TEXTS_CACHED = 64
"""Texts kept; one per table and payload type is in use."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')

_SCALARS: dict[str, Any] = {
    "int": "int",
    "long": "long",
    "string": "string",
    "bytes": "bytes",
    "uuid": UUID_FIXED,
    "millis": "long",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


_LEGACY_UUID = UUID_FIXED | {"name": "uuid"}


@lru_cache(maxsize=TEXTS_CACHED)
def schema_text(
    event_type: EventType,
    partition_fields: tuple[PartitionField, ...],
    table_uuid: bool,
    legacy: bool = False,
) -> bytes:
    """The schema of an event of that type, as wire bytes.

    `table_uuid` False omits that field, for readers of release 1.10; `legacy` is the older vocabulary. Raises
    `InvalidInput` for partition fields that Iceberg could not have, and for a text longer than
    `TEXT_BYTES_MAX` bytes.
    """
    builder = _Builder(partition_fields, left_out(table_uuid, legacy), legacy)
    tree = builder.kind(struct_of(event_type, legacy), "")
    text = to_wire_text(_json(tree))
    if len(text) > TEXT_BYTES_MAX:
        names = len(partition_fields)
        raise InvalidInput(
            f"the schema of the event takes {len(text)} bytes, {TEXT_BYTES_MAX} fit; its {names} "
            "partition fields need shorter names"
        )
    return text


class _Builder:
    """Makes the JSON tree. Named types that it already contains are referred to by name."""

    def __init__(
        self, partition_fields: Sequence[PartitionField], left_out_ids: frozenset[int], legacy: bool
    ) -> None:
        self._partition_fields = partition_fields
        self._left_out = left_out_ids
        self._scalars = _SCALARS | ({"uuid": _LEGACY_UUID} if legacy else {})
        self._known: set[str] = set()

    def kind(self, kind: Kind, namespace: str) -> Any:
        if isinstance(kind, Scalar):
            return self._maybe_fixed(self._scalars[kind.name])
        if isinstance(kind, ListOf):
            listed = {"type": "array", "items": self.kind(kind.items, namespace)}
            return listed if kind.element_id is None else listed | {"element-id": kind.element_id}
        if isinstance(kind, MapOf):
            return {"type": "array", "items": self._entry(kind), "logicalType": "map"}
        if isinstance(kind, Struct):
            fields = [one for one in kind.fields if one.field_id not in self._left_out]
            space = kind.name.rpartition(".")[0]
            field = self._legacy_field if kind.by_name else self._field
            return self._record(kind.name, namespace, lambda: [field(one, space) for one in fields])
        return self._record(f"{namespace}.PartitionData", namespace, self._partition)

    def _record(self, full_name: str, namespace: str, fields: Any) -> Any:
        space, _, name = full_name.rpartition(".")
        if full_name in self._known:
            return name if space == namespace else full_name
        self._known.add(full_name)
        tree: dict[str, Any] = {"type": "record", "name": name}
        if space != namespace:
            tree["namespace"] = space
        tree["fields"] = fields()
        return tree

    def _field(self, field: Field, namespace: str) -> dict[str, Any]:
        kind = self.kind(field.kind, namespace)
        tree: dict[str, Any] = {"name": field.name, "type": ["null", kind] if field.optional else kind}
        if field.doc is not None:
            tree["doc"] = field.doc
        if field.optional:
            tree["default"] = None
        tree["field-id"] = field.field_id
        return tree

    def _legacy_field(self, field: Field, namespace: str) -> dict[str, Any]:
        kind = self.kind(field.kind, namespace)
        return {"name": field.name, "type": [kind, "null"] if field.optional else kind, "field-id": "-1"}

    def _entry(self, kind: MapOf) -> Any:
        def fields() -> list[Any]:
            key = {"name": "key", "type": "int", "field-id": kind.key_id}
            return [key, {"name": "value", "type": kind.values.name, "field-id": kind.value_id}]

        name = f"k{kind.key_id}_v{kind.value_id}"
        if name in self._known:
            return name
        self._known.add(name)
        return {"type": "record", "name": name, "namespace": "", "fields": fields()}

    def _partition(self) -> list[Any]:
        trees: list[Any] = []
        names: set[str] = set()
        _check_ids([one.field_id for one in self._partition_fields])
        for one in self._partition_fields:
            name = avro_name(one.name)
            if name in names:
                raise InvalidInput(f"two partition fields are named {name!r:.80} in avro; rename one of them")
            names.add(name)
            tree: dict[str, Any] = {
                "name": name,
                "type": ["null", self._maybe_fixed(avro_type(parse_type(one.type)))],
                "default": None,
            }
            if name != one.name:
                tree["iceberg-field-name"] = one.name
            trees.append(tree | {"field-id": one.field_id})
        return trees

    def _maybe_fixed(self, tree: Any) -> Any:
        if not isinstance(tree, dict) or tree["type"] != "fixed":
            return tree
        name = tree["name"]
        if name in self._known:
            return name
        self._known.add(name)
        return tree


def _check_ids(field_ids: list[int]) -> None:
    for at, field_id in enumerate(field_ids):
        if not 0 <= field_id < 2**31 or field_id in field_ids[:at]:
            raise InvalidInput(f"the partition field id {shown(field_id)} is out of range or used twice")


def _json(tree: Any) -> str:
    """JSON in Jackson's form: no blanks, only necessary escapes."""
    if isinstance(tree, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_json(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_json, tree)) + "]"
    if isinstance(tree, str):
        return _quoted(tree)
    if isinstance(tree, bool):
        return "true" if tree else "false"
    return "null" if tree is None else str(tree)


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}"), text) + '"'


def to_wire_text(text: str) -> bytes:
    """Java's modified UTF-8."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    units = text.encode("utf-16-be", "surrogatepass")
    characters = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    return b"".join(
        b"\xc0\x80" if one == "\0" else one.encode("utf-8", "surrogatepass") for one in characters
    )


def from_wire_text(data: bytes) -> str:
    """The inverse of `to_wire_text`. Raises `Corrupted` for anything that is not modified UTF-8."""
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        if max(units, default="") > "\uffff":
            raise Corrupted(
                "the schema text of the event is not java's modified utf-8: it holds a character of "
                "four bytes"
            )
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise Corrupted(f"the schema text of the event is not java's modified utf-8: {error}") from error
