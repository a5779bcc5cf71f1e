"""Events as the JSON people read, in the form of the golden samples.

Owns that form: uuids as text, bytes as hex, maps as objects with the field id as text, each time as ISO text with six decimals and as a
number (`..._micros`). Only the number is read back. The partition type and the presence of `table_uuid` are part of it, so that the same
bytes can be made of it.
Promises: `from_json` raises `InvalidInput` and nothing else. An event of the older vocabulary comes out in the current one.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from archiver.errors import InvalidInput
from archiver.events import layout, partitions
from archiver.events.avro import shown
from archiver.events.codec import Decoded
from archiver.events.layout import Kind, ListOf, MapOf, PartitionTuple, Scalar, Struct
from archiver.events.types import Event, EventType, PartitionField

_FIELD_ID = re.compile("-?[0-9]{1,10}")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def iso_time(time_us: int | None) -> str | None:
    """ISO text with six decimals; years that ISO text of four digits cannot hold give the number with `us` behind it."""
    if time_us is None:
        return None
    try:
        return (_EPOCH + dt.timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    except OverflowError:
        return f"{time_us}us"


def to_json(decoded: Decoded) -> dict[str, Any]:
    """The event as JSON values. Raises `InvalidInput` for an event that could not be encoded either."""
    event = decoded.event
    writer = _Writer(decoded)
    struct = layout.PAYLOADS[event.type]
    return {
        "id": str(event.id),
        "type": int(event.type),
        "type_name": event.type.name,
        "timestamp": iso_time(event.timestamp_us),
        "timestamp_micros": event.timestamp_us,
        "group_id": event.group_id,
        "payload": {"class": struct.name.rpartition(".")[2]} | writer.struct(struct, event.payload),
    }


class _Writer:
    def __init__(self, decoded: Decoded) -> None:
        self._fields = [(one, partitions.parse_type(one.type)) for one in decoded.partition_fields]
        self._table_uuid = decoded.table_uuid

    def struct(self, struct: Struct, value: Any) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for one in struct.fields:
            if one.field_id == layout.TABLE_UUID_ID and not self._table_uuid:
                continue
            part = getattr(value, one.attribute)
            if one.name == "data_files":
                tree["partition_type"] = [{"id": field.field_id, "name": field.name, "type": field.type} for field, _ in self._fields]
            if one.kind == Scalar("timestamp"):
                tree[one.name] = iso_time(part)
                tree[f"{one.name}_micros"] = part
            else:
                tree[one.name] = self._value(one.kind, part)
        return tree

    def _value(self, kind: Kind, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(kind, ListOf):
            return [self._value(kind.items, item) for item in value]
        if isinstance(kind, MapOf):
            return {str(key): self._value(kind.values, value[key]) for key in sorted(value)}
        if isinstance(kind, PartitionTuple):
            if len(value) != len(self._fields):
                raise InvalidInput(f"partition: {len(self._fields)} values expected, got {shown(value)}")
            pairs = zip(self._fields, value, strict=True)
            return {field.name: partitions.to_json(form, part) for (field, form), part in pairs}
        if isinstance(kind, Struct):
            return self.struct(kind, value)
        if kind.name == "bytes":
            return value.hex()
        return str(value) if kind.name == "uuid" else value


def from_json(tree: Mapping[str, Any]) -> Decoded:
    """The event that `to_json` would turn into `tree`. Raises `InvalidInput` with the key that is missing or wrong."""
    payload = _get(tree, "payload", Mapping)
    name = _get(payload, "class", str)
    kinds = {struct.name.rpartition(".")[2]: kind for kind, struct in layout.PAYLOADS.items()}
    if name not in kinds:
        raise InvalidInput(f"the payload class {name!r:.80} is unknown; known are {', '.join(kinds)}")
    kind = kinds[name]
    struct = layout.PAYLOADS[kind]
    if _get(tree, "type", int) != kind:
        raise InvalidInput(f"the type number of {name} is {kind.value}, not {shown(tree['type'])}")
    fields = tuple(map(_partition_field, _get(payload, "partition_type", list))) if kind is EventType.DATA_WRITTEN else ()
    value = _Reader(fields).struct(struct, payload)
    event = Event(_uuid(_get(tree, "id", str)), _get(tree, "timestamp_micros", int), _get(tree, "group_id", str), value)
    reference = payload.get("table_reference")
    return Decoded(event, fields, isinstance(reference, Mapping) and "table_uuid" in reference, False)


def _get(tree: object, key: str, kind: Any) -> Any:
    if not isinstance(tree, Mapping) or key not in tree:
        raise InvalidInput(f"the event lacks the key {key}")
    value = tree[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(f"{key} is {shown(value)}, which is of the wrong type")
    return value


def _partition_field(tree: object) -> PartitionField:
    return PartitionField(_get(tree, "id", int), _get(tree, "name", str), _get(tree, "type", str))


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not a uuid") from error


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not hex") from error


_SCALARS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "int": (int, int),
    "long": (int, int),
    "timestamp": (int, int),
    "string": (str, str),
    "uuid": (str, _uuid),
    "bytes": (str, _hex),
}


class _Reader:
    def __init__(self, fields: tuple[PartitionField, ...]) -> None:
        self._fields = [(one.name, partitions.parse_type(one.type)) for one in fields]

    def struct(self, struct: Struct, tree: object) -> Any:
        if not isinstance(tree, Mapping):
            raise InvalidInput(f"an object expected for {struct.name}, got {shown(tree)}")
        values: dict[str, Any] = {}
        for one in struct.fields:
            key = f"{one.name}_micros" if one.kind == Scalar("timestamp") else one.name
            if tree.get(key) is None:
                if not one.optional:
                    raise InvalidInput(f"{struct.name} lacks the key {key}")
                values[one.attribute] = one.if_null
            else:
                values[one.attribute] = self._value(one.kind, tree[key])
        return struct.make(**values)

    def _value(self, kind: Kind, tree: Any) -> Any:
        if isinstance(kind, ListOf):
            if not isinstance(tree, list):
                raise InvalidInput(f"a list expected, got {shown(tree)}")
            return tuple(self._value(kind.items, item) for item in tree)
        if isinstance(kind, MapOf):
            return self._map(kind, tree)
        if isinstance(kind, PartitionTuple):
            return tuple(partitions.from_json(form, _get(tree, name, object)) for name, form in self._fields)
        if isinstance(kind, Struct):
            return self.struct(kind, tree)
        expected, convert = _SCALARS[kind.name]
        if not isinstance(tree, expected) or isinstance(tree, bool):
            raise InvalidInput(f"a {kind.name} expected, got {shown(tree)}")
        return convert(tree)

    def _map(self, kind: MapOf, tree: Any) -> dict[int, Any]:
        if not isinstance(tree, Mapping) or not all(isinstance(key, str) and _FIELD_ID.fullmatch(key) for key in tree):
            raise InvalidInput(f"an object with field ids as keys expected, got {shown(tree)}")
        return {int(key): self._value(kind.values, value) for key, value in tree.items()}
