"""A second, independent reading of Protobuf's wire format: records, and the bytes of a message that its
schema does not know.

Written from the published encoding alone and shared with no engine, so that it can judge them. Slow, and
without checks: it is asked about messages that Protobuf's own library has accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.schema.protos import F
from tests.support.schema.random_protos import fields_of

VARINT, FIXED64, LENGTH, START, END, FIXED32 = range(6)

_WIRE = {
    **dict.fromkeys((F.TYPE_DOUBLE, F.TYPE_FIXED64, F.TYPE_SFIXED64), FIXED64),
    **dict.fromkeys((F.TYPE_FLOAT, F.TYPE_FIXED32, F.TYPE_SFIXED32), FIXED32),
    **dict.fromkeys((F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE), LENGTH),
    F.TYPE_GROUP: START,
}
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_FORMS = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
TIMESTAMP = "google.protobuf.Timestamp"


class Malformed(Exception):
    """The bytes are no message."""


@dataclass(frozen=True)
class WireRecord:
    """One field on the wire."""

    number: int
    wire: int
    content: bytes
    """Without the tag; of a group what is inside."""
    whole: bytes


@dataclass
class Level:
    """What one message, or all parts of it that are merged, holds in addition to what the columns show."""

    unknown: bytes = b""
    inside: dict[int, Any] = field(default_factory=dict)
    """Field number to Level, list of Levels or dictionary of Levels by map key, of message fields that are
    columns of their own."""
    encoded: dict[int, Any] = field(default_factory=dict)
    """The same for fields that are cut: the bytes."""
    odd_keys: dict[int, set[Any]] = field(default_factory=dict)
    """Field number of a map to the keys of entries that hold something unknown: Python's library hides those
    entries."""
    odd_json: set[int] = field(default_factory=set)
    """Numbers of JSON fields that hold something unknown in a map's entry: the same."""
    keys: dict[int, set[Any]] = field(default_factory=dict)
    """Field number of a map to its keys."""
    since: dict[int, bytes] = field(default_factory=dict)
    """Number of a message in a oneof to its bytes since an unknown number of a closed enum replaced it. The
    columns show only these; Python's library merges them into what was there before."""
    replaces: bool = False
    """An entry of a map stands in the place of an earlier one."""

    def hides(self) -> bool:
        """Whether Python's library does not show an entry of a map, at this level or below."""
        below = [
            part
            for one in self.inside.values()
            for part in (one if isinstance(one, list) else one.values() if isinstance(one, dict) else [one])
        ]
        return bool(self.odd_keys) or self.replaces or any(one.hides() for one in below)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint at a place, and the place behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed(f"varint at {at}")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at


def varint(value: int) -> bytes:
    """The shortest varint of a number; negative ones take ten bytes."""
    value &= 2**64 - 1
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    result.append(value)
    return bytes(result)


def tag(number: int, wire: int) -> bytes:
    """The tag before a field."""
    return varint(number << 3 | wire)


def records(data: bytes) -> Iterator[WireRecord]:
    """The fields of a message in wire order. Raises Malformed where they cannot be separated."""
    at = 0
    while at < len(data):
        begin, (key, at) = at, read_varint(data, at)
        number, wire = key >> 3, key & 7
        start, end, at = _skip(data, at, number, wire)
        yield WireRecord(number, wire, data[start:end], data[begin:at])


def _skip(data: bytes, at: int, number: int, wire: int) -> tuple[int, int, int]:
    """Where a field's content begins and ends, and where the next field begins. Number 0 passes: in an empty
    message Protobuf lets it."""
    start = at
    if wire == VARINT:
        at = read_varint(data, at)[1]
    elif wire in (FIXED32, FIXED64):
        at += 4 if wire == FIXED32 else 8
    elif wire == LENGTH:
        length, start = read_varint(data, at)
        at = start + length
    elif wire == START:
        return _skip_group(data, at, number)
    else:
        raise Malformed(f"wire type {wire}")
    if at > len(data):
        raise Malformed("cut")
    return start, at, at


def _skip_group(data: bytes, at: int, number: int) -> tuple[int, int, int]:
    start, open_groups = at, [number]
    while True:
        end, (key, at) = at, read_varint(data, at)
        if key & 7 == START:
            open_groups.append(key >> 3)
        elif key & 7 == END:
            if open_groups.pop() != key >> 3:
                raise Malformed("group end")
            if not open_groups:
                return start, end, at
        else:
            at = _skip(data, at, key >> 3, key & 7)[2]


def is_map(one: Any) -> bool:
    """Whether a field is a map."""
    return one.message_type is not None and bool(one.message_type.GetOptions().map_entry)


def is_cut(one: Any, above: tuple[str, ...], depth: int) -> bool:
    """Whether a field's message (`one`: the field, or the value of a map's entry) stands too often inside
    itself to be columns."""
    kind = one.message_type
    if kind is None or kind.full_name in WRAPPERS | JSON_FORMS | {TIMESTAMP}:
        return False
    return above.count(kind.full_name) > depth


def item_of(one: Any) -> Any:
    """The field that says what a field's values are: of a map the entry's value, else itself."""
    return one.message_type.fields_by_number[2] if is_map(one) else one


def mapped_fields(descriptor: Any, above: tuple[str, ...], depth: int) -> list[Any]:
    """The fields of a message that are columns. `above`: the messages it stands in, itself last."""
    return [
        one
        for one in fields_of(descriptor)
        if not (item_of(one).type == F.TYPE_GROUP and is_cut(item_of(one), above, depth))
    ]


def scan(
    descriptor: Any, data: bytes, above: tuple[str, ...], depth: int, level: Level | None = None
) -> Level:
    """What a message holds that no column of a field shows. `above`: full names from the outermost message to
    this one."""
    level = level or Level()
    known = {one.number: one for one in mapped_fields(descriptor, above, depth)}
    for record in records(data):
        one = known.get(record.number)
        if one is None or not _fits(one, record.wire):
            level.unknown += record.whole
            continue
        if one.containing_oneof is not None:
            _replace_members(one, record, level)
        if is_map(one):
            key, _, is_odd = _entry(one.message_type, record.content)
            level.replaces |= key in level.keys.setdefault(one.number, set())
            level.keys[one.number].add(key)
            if is_odd:
                level.odd_keys.setdefault(one.number, set()).add(key)
        if item_of(one).message_type is not None:
            _enter(one, record, above, depth, level)
    return level


def _replace_members(one: Any, record: WireRecord, level: Level) -> None:
    """A member of a oneof replaces the others."""
    passed_over = _is_hidden_number(one, record.content)
    for other in one.containing_oneof.fields:
        if other.number == one.number:
            continue
        level.inside.pop(other.number, None)
        level.encoded.pop(other.number, None)
        if not passed_over:
            level.since.pop(other.number, None)
        elif other.message_type is not None:
            level.since[other.number] = b""
    if one.number in level.since:
        level.since[one.number] += record.content


def _fits(one: Any, wire: int) -> bool:
    """Whether Protobuf takes a value of this wire type for the field's."""
    own = _WIRE.get(one.type, VARINT)
    packable = one.is_repeated and own in (VARINT, FIXED32, FIXED64)
    return wire == own or (packable and wire == LENGTH)


def _enter(one: Any, record: WireRecord, above: tuple[str, ...], depth: int, level: Level) -> None:
    item = item_of(one)
    kind, inside = item.message_type, (*above, item.message_type.full_name)
    if is_map(one):
        key, parts, _ = _entry(one.message_type, record.content)
        if is_cut(item, above, depth):
            level.encoded.setdefault(one.number, {})[key] = b"".join(parts)
        elif kind.full_name in JSON_FORMS and any(_has_unknown(kind, part) for part in parts):
            level.odd_keys.setdefault(one.number, set()).add(key)
        elif is_columns(kind):
            found = Level()
            for part in parts:
                scan(kind, part, inside, depth, found)
            level.inside.setdefault(one.number, {})[key] = found
    elif is_cut(item, above, depth):
        if one.is_repeated:
            level.encoded.setdefault(one.number, []).append(record.content)
        else:
            level.encoded[one.number] = level.encoded.get(one.number, b"") + record.content
    elif not is_columns(kind):
        if kind.full_name in JSON_FORMS and _has_unknown(kind, record.content):
            level.odd_json.add(one.number)
    elif one.is_repeated:
        level.inside.setdefault(one.number, []).append(scan(kind, record.content, inside, depth, Level()))
    else:
        level.inside[one.number] = scan(
            kind, record.content, inside, depth, level.inside.get(one.number) or Level()
        )


def is_columns(kind: Any) -> bool:
    """Whether a message type is mapped to a struct."""
    return kind.full_name not in WRAPPERS | JSON_FORMS | {TIMESTAMP}


def _has_unknown(descriptor: Any, data: bytes) -> bool:
    """Whether a message has unknown fields at any level."""
    known = {one.number: one for one in descriptor.fields}
    for record in records(data):
        one = known.get(record.number)
        if one is None or not _fits(one, record.wire):
            return True
        if one.message_type is not None and _has_unknown(one.message_type, record.content):
            return True
    return False


def _entry(entry: Any, data: bytes) -> tuple[Any, list[bytes], bool]:
    """The key of a map's entry, the parts of its value, and whether it holds something unknown."""
    key_field, is_odd = entry.fields_by_number[1], False
    key, parts = "" if key_field.type == F.TYPE_STRING else 0, []
    for record in records(data):
        if record.number == 1 and _fits(key_field, record.wire):
            key = _key(key_field.type, record)
        elif record.number == 2 and _fits(entry.fields_by_number[2], record.wire):
            parts.append(record.content)
            is_odd |= _is_hidden_number(entry.fields_by_number[2], record.content)
        else:
            is_odd = True
    return (bool(key) if key_field.type == F.TYPE_BOOL else key), parts, is_odd


def _is_hidden_number(one: Any, content: bytes) -> bool:
    """Whether a value is a number that its closed enum does not have."""
    if one.enum_type is None or not one.enum_type.is_closed:
        return False
    number = read_varint(content, 0)[0] & (2**32 - 1)
    return number - (2**32 if number >= 2**31 else 0) not in one.enum_type.values_by_number


def _key(kind: int, record: WireRecord) -> Any:
    if record.wire == LENGTH:
        return record.content.decode()
    if record.wire != VARINT:
        return int.from_bytes(record.content, "little", signed=kind in (F.TYPE_SFIXED32, F.TYPE_SFIXED64))
    value = read_varint(record.content, 0)[0]
    if kind in (F.TYPE_UINT64, F.TYPE_BOOL):
        return value
    if kind == F.TYPE_INT64:
        return value - 2**64 if value >= 2**63 else value
    value = value if kind == F.TYPE_SINT64 else value & (2**32 - 1)
    if kind in (F.TYPE_SINT32, F.TYPE_SINT64):
        return value >> 1 ^ -(value & 1)
    return value - 2**32 if kind == F.TYPE_INT32 and value >= 2**31 else value


def holds_bad_text(descriptor: Any, data: bytes) -> bool:
    """Whether a text field at any level is not UTF-8, be it in a value that a later one replaces."""
    known = {one.number: one for one in fields_of(descriptor)}
    for record in records(data):
        one = known.get(record.number)
        if one is None or not _fits(one, record.wire):
            continue
        if one.message_type is not None and holds_bad_text(one.message_type, record.content):
            return True
        if one.type == F.TYPE_STRING and record.content.decode(errors="ignore").encode() != record.content:
            return True
    return False


def holds_number_zero(descriptor: Any, data: bytes) -> bool:
    """Whether a message at any level has a field of number 0, which Protobuf's library lets pass in some
    messages without fields."""
    known = {one.number: one for one in fields_of(descriptor)}
    for record in records(data):
        one = known.get(record.number)
        is_message = one is not None and one.message_type is not None and _fits(one, record.wire)
        if record.number == 0 or (
            one is not None and is_message and holds_number_zero(one.message_type, record.content)
        ):
            return True
    return False
