"""What the columns of a record must hold, by the producer's own message class; and the bytes that they stand
for.

Written from docs/schema-mapping.md, and shared with no engine: `differences` compares a row with a message
that Protobuf's own library parsed, `canonical` encodes a row as the rebuild must.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.schema.protos import F
from tests.support.schema.wire_reading import FIXED32 as FOUR
from tests.support.schema.wire_reading import FIXED64 as EIGHT
from tests.support.schema.wire_reading import (
    JSON_FORMS,
    LENGTH,
    START,
    TIMESTAMP,
    VARINT,
    WRAPPERS,
    Level,
    is_cut,
    is_map,
    item_of,
    mapped_fields,
    tag,
    varint,
)

RESERVED = ("__raw__", "__prefix__", "__err__", "__unrecognized__")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Above = tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """How a topic's columns are to be read."""

    depth: int
    """How often a message may stand inside itself as columns."""
    renamed: Mapping[str, str]
    """Dotted path to configured name."""

    def columns(self, descriptor: Any, above: Above, path: str = "") -> list[tuple[Any, str, str]]:
        """The fields of a message, their columns' names, and their paths. `above` ends with the message
        itself."""
        used, result = set(RESERVED), []
        for one in mapped_fields(descriptor, above, self.depth):
            own = one.full_name.replace(".", "_") if one.is_extension else one.name
            inner = f"{path}.{own}" if path else own
            wanted = name = self.renamed.get(inner, own)
            number = 1
            while name.lower() in used:
                number += 1
                name = f"{wanted}_v{number}"
            used.add(name.lower())
            result.append((one, name, inner))
        return result

    def differences(
        self, row: Mapping[str, Any], message: Any, level: Level, above: Above = (), path: str = ""
    ) -> Iterator[str]:
        """Where the row of a message is not what it must be. `level`: what else the wire holds."""
        above = (*above, message.DESCRIPTOR.full_name)
        columns = self.columns(message.DESCRIPTOR, above, path)
        alongside = {"__unrecognized__"} | (set() if path else {"__raw__", "__prefix__", "__err__"})
        if set(row) != {name for _, name, _ in columns} | alongside:
            yield f"{path}: columns {sorted(row)}, expected {[name for _, name, _ in columns]}"
            return
        if (row["__unrecognized__"] or b"") != level.unknown or row["__unrecognized__"] == b"":
            yield f"{path}.__unrecognized__: {row['__unrecognized__']!r}, expected {level.unknown!r}"
        hidden = self._unsure_oneofs(message.DESCRIPTOR, columns, row)
        for one, name, inner in columns:
            if one.containing_oneof is not None and one.containing_oneof.name in hidden:
                continue
            yield from self._field(one, row[name], message, level, above, inner)

    def _unsure_oneofs(
        self, descriptor: Any, columns: list[tuple[Any, str, str]], row: Mapping[str, Any]
    ) -> set[str]:
        """Oneofs of which Protobuf's library sees another member than the columns: one that is unknown to
        either of them was set last."""
        shown = {one.number for one, _, _ in columns}
        return {
            *(
                one.name
                for one in descriptor.oneofs
                if not shown.issuperset(member.number for member in one.fields)
            ),
            *(
                one.containing_oneof.name
                for one, name, _ in columns
                if one.containing_oneof is not None and _is_hidden(one, row[name])
            ),
        }

    def _field(
        self, one: Any, shown: Any, message: Any, level: Level, above: Above, path: str
    ) -> Iterator[str]:
        if (
            not one.is_repeated
            and one.has_presence
            and not (message.HasExtension(one) if one.is_extension else message.HasField(one.name))
        ):
            if shown is not None and not _is_hidden(one, shown):
                yield f"{path}: {shown!r}, expected null"
            return
        value = message.Extensions[one] if one.is_extension else getattr(message, one.name)
        if one.number in level.since:
            parsed = type(value)()
            parsed.ParseFromString(level.since[one.number])
            value = parsed
        inside = level.encoded.get(one.number, level.inside.get(one.number))
        if is_map(one):
            yield from self._map(one, shown, value, level, above, path)
        elif one.is_repeated:
            items = [item for item in shown if not _is_hidden(one, item)] if shown is not None else None
            if items is None or len(items) != len(value):
                yield f"{path}: {shown!r}, expected {len(value)} elements"
                return
            for place, (item, each) in enumerate(
                zip(items, value, strict=True) if one.number not in level.odd_json else ()
            ):
                yield from self._value(one, item, each, inside[place] if inside else None, above, path)
        elif not _is_hidden(one, shown) and one.number not in level.odd_json:
            yield from self._value(one, shown, value, inside, above, path)

    def _map(self, one: Any, shown: Any, value: Any, level: Level, above: Above, path: str) -> Iterator[str]:
        item, inside = item_of(one), level.encoded.get(one.number, level.inside.get(one.number, {}))
        keys = [
            int(key) if one.message_type.fields_by_number[1].type in _UNSIGNED_64 else key
            for key, _ in shown or ()
        ]
        hidden = {key for key, (_, each) in zip(keys, shown or (), strict=True) if _is_hidden(item, each)}
        hidden |= level.odd_keys.get(one.number, set())
        if shown is None or len(set(keys)) != len(keys) or set(keys) - hidden != set(value) - hidden:
            yield f"{path}: keys {keys}, expected {list(value)}"
            return
        for key, (_, each) in zip(keys, shown, strict=True):
            if key not in hidden:
                yield from self._value(item, each, value[key], inside.get(key), above, path)

    def _value(self, one: Any, shown: Any, value: Any, inside: Any, above: Above, path: str) -> Iterator[str]:
        kind = one.message_type
        if shown is None:
            yield f"{path}: null, expected {value!r}"
        elif kind is not None and is_cut(one, above, self.depth):
            if shown != inside:
                yield f"{path}: {shown!r}, expected the encoded message {inside!r}"
        elif kind is not None and kind.full_name not in WRAPPERS | JSON_FORMS | {TIMESTAMP}:
            yield from self.differences(shown, value, inside or Level(), above, path)
        elif repr(_read(one, shown)) != repr(wanted := _wanted(one, value)):
            yield f"{path}: {shown!r}, expected {wanted!r}"

    def canonical(self, descriptor: Any, row: Mapping[str, Any], above: Above = (), path: str = "") -> bytes:
        """The bytes of a row's message: fields by number, maps in column order, then what was unknown."""
        above = (*above, descriptor.full_name)
        parts = [
            self._encoded(one, row[name], above, inner)
            for one, name, inner in self.columns(descriptor, above, path)
        ]
        return b"".join(parts) + (row["__unrecognized__"] or b"")

    def _encoded(self, one: Any, shown: Any, above: Above, path: str) -> bytes:
        if shown is None:
            return b""
        if is_map(one):
            key = one.message_type.fields_by_number[1]
            entries = [
                _scalar_field(key, 1, each[0])
                + self._item(item_of(one), 2, each[1], above, path)  # both, even where they hold a default
                for each in shown
            ]
            return b"".join(_delimited(one.number, entry) for entry in entries)
        if one.is_repeated:
            if one.is_packed:
                return (
                    _delimited(one.number, b"".join(_scalar(one, each) for each in shown)) if shown else b""
                )
            return b"".join(self._item(one, one.number, each, above, path) for each in shown)
        if not one.has_presence and one.message_type is None and _is_default(one, shown):
            return b""
        return self._item(one, one.number, shown, above, path)

    def _item(self, one: Any, number: int, shown: Any, above: Above, path: str) -> bytes:
        kind = one.message_type
        if kind is None:
            return _scalar_field(one, number, shown)
        if is_cut(one, above, self.depth):
            return _delimited(number, shown)
        if kind.full_name == TIMESTAMP:
            us = (shown - EPOCH) // timedelta(microseconds=1)
            seconds, nanos = us // 1_000_000, us % 1_000_000 * 1000
            content = (tag(1, VARINT) + varint(seconds) if seconds else b"") + (
                tag(2, VARINT) + varint(nanos) if nanos else b""
            )
        elif kind.full_name in WRAPPERS:
            content = self._encoded(kind.fields_by_number[1], shown, (), "")
        elif kind.full_name in JSON_FORMS:
            content = _JSON_ENCODERS[kind.full_name](_parsed(shown))
        else:
            content = self.canonical(kind, shown, above, path)
        if one.type == F.TYPE_GROUP:
            return tag(number, START) + content + tag(number, START + 1)
        return _delimited(number, content)


_UNSIGNED_64 = frozenset({F.TYPE_UINT64, F.TYPE_FIXED64})
_PACKED: dict[int, str] = {
    F.TYPE_DOUBLE: "<d",
    F.TYPE_FIXED64: "<Q",
    F.TYPE_SFIXED64: "<q",
    F.TYPE_FLOAT: "<f",
    F.TYPE_FIXED32: "<I",
    F.TYPE_SFIXED32: "<i",
}


def _is_hidden(one: Any, shown: Any) -> bool:
    """A number that a closed enum has no value of: Protobuf's library hides it, the column shows it."""
    return (
        one.type == F.TYPE_ENUM
        and one.enum_type.is_closed
        and isinstance(shown, str)
        and shown.lstrip("-").isdigit()
    )


def _read(one: Any, shown: Any) -> Any:
    """A column's value for comparing."""
    kind = one.message_type
    if kind is not None and kind.full_name in JSON_FORMS:
        return _sorted(_parsed(shown))
    if kind is not None and kind.full_name in WRAPPERS:
        one = kind.fields_by_number[1]
    if isinstance(shown, datetime):
        return shown.astimezone(UTC)
    return int(shown) if one.type in _UNSIGNED_64 else shown


def _wanted(one: Any, value: Any) -> Any:
    """What `_read` must give for a value of the message."""
    kind = one.message_type
    if kind is not None and kind.full_name == TIMESTAMP:
        in_range = -62_135_596_800 <= value.seconds <= 253_402_300_799 and 0 <= value.nanos < 10**9
        return (
            EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
            if in_range
            else "a refusal"
        )
    if kind is not None and kind.full_name in WRAPPERS:
        return value.value
    if kind is not None:
        return _sorted(_JSON_READERS[kind.full_name](value))
    if one.enum_type is not None:
        names = [each.name for each in one.enum_type.values if each.number == value]
        return names[0] if names else str(value)
    return value


def _parsed(text: str) -> Any:
    """JSON with objects as lists of pairs behind a mark, and every number as a float."""
    return json.loads(
        text, parse_int=float, object_pairs_hook=lambda pairs: ("object", pairs), parse_constant=_refused
    )


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _sorted(value: Any) -> Any:
    """With the fields of objects in the order of their names."""
    if isinstance(value, tuple):
        return ("object", sorted((name, repr(_sorted(each))) for name, each in value[1]))
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _json_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    if kind == "number_value" and not math.isfinite(value.number_value):
        return (
            "NaN" if math.isnan(value.number_value) else "Infinity" if value.number_value > 0 else "-Infinity"
        )
    if kind == "struct_value":
        return _json_struct(value.struct_value)
    return _json_list(value.list_value) if kind == "list_value" else getattr(value, kind)


def _json_struct(value: Any) -> Any:
    return ("object", [(name, _json_value(value.fields[name])) for name in value.fields])


def _json_list(value: Any) -> Any:
    return [_json_value(each) for each in value.values]


def _encoded_value(value: Any) -> bytes:
    if value is None:
        return tag(1, VARINT) + b"\x00"
    if isinstance(value, bool):
        return tag(4, VARINT) + bytes([value])
    if isinstance(value, float):
        return tag(2, EIGHT) + struct.pack("<d", value)
    if isinstance(value, str):
        return _delimited(3, value.encode())
    return (
        _delimited(5, _encoded_struct(value))
        if isinstance(value, tuple)
        else _delimited(6, _encoded_list(value))
    )


def _encoded_struct(value: Any) -> bytes:
    return b"".join(
        _delimited(1, _delimited(1, name.encode()) + _delimited(2, _encoded_value(each)))
        for name, each in value[1]
    )


def _encoded_list(value: Any) -> bytes:
    return b"".join(_delimited(1, _encoded_value(each)) for each in value)


_JSON_READERS: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Value": _json_value,
    "google.protobuf.Struct": _json_struct,
    "google.protobuf.ListValue": _json_list,
}
_JSON_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "google.protobuf.Value": _encoded_value,
    "google.protobuf.Struct": _encoded_struct,
    "google.protobuf.ListValue": _encoded_list,
}


def _delimited(number: int, content: bytes) -> bytes:
    return tag(number, LENGTH) + varint(len(content)) + content


def _is_default(one: Any, shown: Any) -> bool:
    return not shown if one.type in (F.TYPE_STRING, F.TYPE_BYTES) else not any(_scalar(one, shown))


def _scalar_field(one: Any, number: int, shown: Any) -> bytes:
    if one.type in (F.TYPE_STRING, F.TYPE_BYTES):
        return _delimited(number, shown.encode() if isinstance(shown, str) else shown)
    wire = VARINT if one.type not in _PACKED else FOUR if struct.calcsize(_PACKED[one.type]) == 4 else EIGHT
    return tag(number, wire) + _scalar(one, shown)


def _scalar(one: Any, shown: Any) -> bytes:
    """A value without its tag."""
    if one.type in (F.TYPE_STRING, F.TYPE_BYTES):
        return shown.encode() if isinstance(shown, str) else bytes(shown)
    if one.type == F.TYPE_ENUM:
        numbers = {each.name: each.number for each in one.enum_type.values}
        return varint(numbers[shown] if shown in numbers else int(shown))
    if one.type in _PACKED:
        return struct.pack(
            _PACKED[one.type], shown if one.type in (F.TYPE_DOUBLE, F.TYPE_FLOAT) else int(shown)
        )
    value = int(shown)
    return varint(value << 1 ^ value >> 63 if one.type in (F.TYPE_SINT32, F.TYPE_SINT64) else value)
