"""Injuries to encoded messages: everything a broken producer, a broken network or another schema may do to
the bytes.

Schema-aware: an injury may be done to the message itself or to any message inside it, whose lengths are then
made right again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tests.support.schema.protos import F
from tests.support.schema.random_protos import fields_of, fill
from tests.support.schema.wire_reading import (
    FIXED32,
    FIXED64,
    LENGTH,
    START,
    TIMESTAMP,
    VARINT,
    Malformed,
    WireRecord,
    is_map,
    item_of,
    read_varint,
    records,
    tag,
    varint,
)

DESCENT = 0.55
"""How often an injury goes one level deeper where it can."""

UNKNOWN_NUMBERS = (24, 25, 41, 49, 55, 300_000, 536_870_910, 15_000)
UNKNOWN_WIRES = (VARINT, VARINT, FIXED64, LENGTH, LENGTH, FIXED32, START)

Injury = Callable[[random.Random, Any, bytes], bytes]


def mutated(
    rng: random.Random, descriptor: Any, payload: bytes, others: Sequence[bytes]
) -> tuple[str, bytes]:
    """The payload with one to three injuries, and their names. `others`: payloads of other messages."""
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(NAMES)
        names.append(name)
        if name == "other message":
            payload = rng.choice(others)
        elif name in _BYTES:
            payload = _BYTES[name](rng, descriptor, payload)
        else:
            payload = _somewhere(rng, descriptor, payload, _LEVELS[name])
    return "+".join(names), payload


def _somewhere(rng: random.Random, descriptor: Any, data: bytes, injury: Injury) -> bytes:
    """Do the injury to a message, or to one inside it."""
    try:
        found = list(records(data))
    except Malformed:
        return injury(rng, descriptor, data)
    known = {one.number: one for one in fields_of(descriptor)}
    inside = [place for place, one in enumerate(found) if _is_message(known.get(one.number), one)]
    if not inside or rng.random() > DESCENT:
        return injury(rng, descriptor, data)
    place = rng.choice(inside)
    record = found[place]
    content = _somewhere(rng, known[record.number].message_type, record.content, injury)
    return b"".join(
        [
            *(one.whole for one in found[:place]),
            _wrapped(record, content),
            *(one.whole for one in found[place + 1 :]),
        ]
    )


def _is_message(one: Any, record: WireRecord) -> bool:
    return (
        one is not None
        and one.message_type is not None
        and record.wire == (START if one.type == F.TYPE_GROUP else LENGTH)
    )


def _wrapped(record: WireRecord, content: bytes) -> bytes:
    """The record with another content."""
    if record.wire == LENGTH:
        return tag(record.number, LENGTH) + varint(len(content)) + content
    if record.wire == START:
        return tag(record.number, START) + content + tag(record.number, START + 1)
    return tag(record.number, record.wire) + content


def _split(data: bytes) -> list[WireRecord]:
    try:
        return list(records(data))
    except Malformed:
        return []


def _doubled(rng: random.Random, _: Any, data: bytes) -> bytes:
    """A field stands there twice, or the other message's fields do."""
    found = _split(data)
    if not found:
        return data + data
    again = rng.sample(found, rng.randrange(1, min(3, len(found)) + 1))
    parts = [one.whole for one in found]
    for one in again:
        parts.insert(rng.randrange(len(parts) + 1), one.whole)
    return b"".join(parts)


def _merged(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """Another message of the type behind it: other values of the same fields, other members of the oneofs,
    the same keys of maps."""
    other = GetMessageClass(descriptor)()
    fill(rng, other)
    more: bytes = other.SerializePartialToString()
    return data + more


def _reordered(rng: random.Random, _: Any, data: bytes) -> bytes:
    parts = [one.whole for one in _split(data)]
    rng.shuffle(parts)
    return b"".join(parts) if parts else data


def _padded(value: bytes, bytes_more: int) -> bytes:
    """A varint with zeros behind it that change nothing."""
    return (
        value[:-1] + bytes([value[-1] | 128]) + b"\x80" * (bytes_more - 1) + b"\x00" if bytes_more else value
    )


def _padding(rng: random.Random, _: Any, data: bytes) -> bytes:
    """A tag, a length or a value is written longer than need be."""
    found = _split(data)
    if not found:
        return data
    place = rng.randrange(len(found))
    one, parts = found[place], [each.whole for each in found]
    head = tag(one.number, one.wire)
    if rng.random() < 0.3 and len(head) < 5:
        parts[place] = _padded(head, rng.randrange(1, 6 - len(head))) + one.whole[len(head) :]
    elif one.wire == VARINT:
        parts[place] = head + _padded(one.content, rng.randrange(0, 11 - len(one.content)))
    elif one.wire == LENGTH:
        parts[place] = head + _padded(varint(len(one.content)), rng.randrange(1, 4)) + one.content
    return b"".join(parts)


def _wrong_wire_type(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """A known number with the wire type of another kind."""
    numbers = [one.number for one in fields_of(descriptor)]
    if not numbers:
        return data
    wrong = _unknown_field(rng, rng.choice(numbers))
    return _inserted(rng, data, wrong)


def _unknown(rng: random.Random, _: Any, data: bytes) -> bytes:
    """Fields that a newer schema, or an extension, has."""
    for _turn in range(rng.choice((1, 1, 2, 4))):
        data = _inserted(rng, data, _unknown_field(rng, rng.choice(UNKNOWN_NUMBERS)))
    return data


def _inserted(rng: random.Random, data: bytes, more: bytes) -> bytes:
    """With more between two fields; at the end half of the time."""
    parts = [one.whole for one in _split(data)]
    if not parts or rng.random() < 0.5:
        return data + more
    parts.insert(rng.randrange(len(parts)), more)
    return b"".join(parts)


def _unknown_field(rng: random.Random, number: int, depth: int = 0) -> bytes:
    return _field_of(rng, number, rng.choice((VARINT, FIXED64, LENGTH, LENGTH, START, FIXED32)), depth)


def _field_of(rng: random.Random, number: int, wire: int, depth: int = 0) -> bytes:
    if wire == VARINT:
        return tag(number, wire) + varint(rng.choice((0, 1, 300, 2**32, 2**64 - 1)))
    if wire == LENGTH:
        content = rng.choice((b"", b"abc", b"\x08\x01", b"\xff\xfe", bytes(200)))
        return tag(number, wire) + varint(len(content)) + content
    if wire == START:
        inside = (
            b""
            if depth > 3
            else b"".join(
                _unknown_field(rng, rng.randrange(1, 9), depth + 1) for _ in range(rng.randrange(3))
            )
        )
        return tag(number, wire) + inside + tag(number, wire + 1)
    return tag(number, wire) + rng.randbytes(8 if wire == FIXED64 else 4)


def _broken_group(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """A group that is not closed, is closed as another, or closes without having been opened."""
    number = rng.choice([*UNKNOWN_NUMBERS, *(one.number for one in fields_of(descriptor))])
    return _inserted(
        rng, data, rng.choice((tag(number, 3), tag(number, 4), tag(number, 3) + tag(number + 1, 4)))
    )


def _not_utf8(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """Text that is not valid UTF-8: cut characters, surrogates, overlong forms, zeros."""
    bad = rng.choice(
        (
            b"\xff",
            b"\xc3",
            b"\xed\xa0\x80",
            b"\xc0\x80",
            b"a\x80",
            b"\xf4\x90\x80\x80",
            b"\x00",
            "né\x00".encode(),
        )
    )
    texts = [one for one in fields_of(descriptor) if one.type == F.TYPE_STRING]
    number = rng.choice(texts).number if texts else rng.randrange(1, 20)
    return _inserted(rng, data, tag(number, LENGTH) + varint(len(bad)) + bad)


def _deep(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """Messages inside messages, or groups inside groups, about as deep as Protobuf reads, or much deeper."""
    depth, number = (
        rng.choice((3, 40, 47, 48, 49, 50, 51, 97, 98, 99, 100, 101, 150, 5000)),
        rng.choice(UNKNOWN_NUMBERS),
    )
    rings = _rings(descriptor)
    if rings and depth < 1000:
        ring, inner = rng.choice(rings), b""
        for _ in range(depth):
            for one in reversed(ring):
                inner = _wrapped(_record_of(one), inner)
        return _inserted(rng, data, inner)
    return _inserted(rng, data, tag(number, START) * depth + tag(number, START + 1) * depth)


def _rings(descriptor: Any) -> list[tuple[Any, ...]]:
    """Fields, or pairs of them, through which a message stands inside itself."""
    messages = [one for one in fields_of(descriptor) if one.message_type is not None and not is_map(one)]
    pairs = [
        (one, two)
        for one in messages
        for two in fields_of(one.message_type)
        if two.message_type is descriptor and not is_map(two)
    ]
    return [*((one,) for one in messages if one.message_type is descriptor), *pairs]


def _huge_length(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    number = rng.choice(
        [
            7,
            *(
                one.number
                for one in fields_of(descriptor)
                if item_of(one).type in (F.TYPE_STRING, F.TYPE_MESSAGE)
            ),
        ]
    )
    return (
        data
        + tag(number, LENGTH)
        + varint(rng.choice((5000, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1)))
        + b"abc"
    )


def _cut(rng: random.Random, _: Any, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _bit_flips(rng: random.Random, _: Any, data: bytes) -> bytes:
    changed = bytearray(data)
    for _turn in range(rng.randrange(1, 4) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _garbage(rng: random.Random, _: Any, data: bytes) -> bytes:
    return rng.choice((b"", data)) + rng.randbytes(rng.randrange(1, 30))


def _enum_numbers(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """Numbers that no value of the enum has."""
    enums = [one.number for one in fields_of(descriptor) if one.type == F.TYPE_ENUM]
    if not enums:
        return data
    return _inserted(
        rng,
        data,
        tag(rng.choice(enums), VARINT) + varint(rng.choice((77, -7, 2**31 - 1, 2**35 + 1, -(2**40)))),
    )


def newer(rng: random.Random, descriptor: Any, payload: bytes, fields: Sequence[tuple[int, int]]) -> bytes:
    """The payload as a producer of a newer schema writes it: with `fields` (numbers and wire types) behind
    those of some message."""

    def appended(rng: random.Random, _: Any, data: bytes) -> bytes:
        return data + b"".join(_field_of(rng, number, wire) for number, wire in fields if rng.random() < 0.9)

    return _somewhere(rng, descriptor, payload, appended)


def _odd_time(rng: random.Random, descriptor: Any, data: bytes) -> bytes:
    """A timestamp at or beyond an end of its range."""
    seconds = rng.choice(
        (0, 253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801, 2**63 - 1, -(2**63))
    )
    nanos = rng.choice((0, 999_999_999, 1_000_000_000, -1, 2**31 - 1, -(2**31)))
    time = b"".join(
        tag(number, VARINT) + varint(value) for number, value in ((1, seconds), (2, nanos)) if value
    )
    inside = time if descriptor.full_name == TIMESTAMP else _around(rng, descriptor, time, 3)
    if inside is None:
        return data
    return inside if rng.random() < 0.5 else _inserted(rng, data, inside)


def _around(rng: random.Random, descriptor: Any, time: bytes, levels: int) -> bytes | None:
    """The timestamp in a field of the message, or of one inside it; None if there is no room for one so
    near."""
    messages = [one for one in fields_of(descriptor) if one.message_type is not None and not is_map(one)]
    for one in rng.sample(messages, len(messages)):
        inside = time if one.message_type.full_name == TIMESTAMP else None
        if inside is None and levels > 1:
            inside = _around(rng, one.message_type, time, levels - 1)
        if inside is not None:
            return _wrapped(_record_of(one), inside)
    return None


def _record_of(one: Any) -> WireRecord:
    """An empty message in that field."""
    return WireRecord(one.number, START if one.type == F.TYPE_GROUP else LENGTH, b"", b"")


def enveloped(
    rng: random.Random, ids: Sequence[tuple[int, tuple[int, ...]]], payload: bytes
) -> tuple[str, bytes]:
    """The payload behind a registry's envelope, usually a right one."""
    number, indexes = rng.choice(ids)
    kind = rng.choice(("right", "right", "right", "wrong id", "other indexes", "cut", "magic alone"))
    if kind == "wrong id":
        number += 5
    if kind == "other indexes":
        indexes = rng.choice(((*indexes, 0), (indexes[0] + 1,), (-1,)))
    numbers = [len(indexes), *indexes]
    spelled = b"".join(varint((one << 1) ^ (one >> 63)) for one in numbers)
    if indexes == (0,) and rng.random() < 0.7:
        spelled = b"\x00"
    head = b"\x00" + number.to_bytes(4, "big") + spelled
    if kind == "cut":
        return kind, head[: rng.randrange(1, len(head))]
    return kind, b"\x00" + payload if kind == "magic alone" else head + payload


def read_envelope(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Message indexes and length of the envelope that a payload begins with; None if it is cut."""
    try:
        count, at = read_varint(data, 5)
        count = count >> 1 ^ -(count & 1)
        if count == 0:
            return (0,), at
        indexes: list[int] = []
        while len(indexes) < count:
            value, at = read_varint(data, at)
            indexes.append(value >> 1 ^ -(value & 1))
    except Malformed:
        return None
    return (tuple(indexes), at) if count > 0 else None


_LEVELS: dict[str, Injury] = {
    "doubled": _doubled,
    "merged": _merged,
    "reordered": _reordered,
    "padded": _padding,
    "wrong wire type": _wrong_wire_type,
    "unknown": _unknown,
    "unknown again": _unknown,
    "broken group": _broken_group,
    "not utf-8": _not_utf8,
    "deep": _deep,
    "enum number": _enum_numbers,
    "odd time": _odd_time,
    "garbage inside": _garbage,
}
"""Done to a message at any level."""

_BYTES: dict[str, Injury] = {
    "cut": _cut,
    "bit flips": _bit_flips,
    "garbage": _garbage,
    "huge length": _huge_length,
}
"""Done to the payload as a whole."""

NAMES: tuple[str, ...] = (*_LEVELS, *_BYTES, "other message")
