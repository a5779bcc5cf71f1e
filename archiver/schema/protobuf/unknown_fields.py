"""Fields that the schema does not know: finds them in payloads, and extends trees by them.

It has the scanner of the wire form, and `Extension`, the found fields by message level. The fast engine
decodes with an extended tree instead of inspecting rows one by one. Only plain wire types are added. The
complete engine handles groups, numbers that descriptors may not use, and known numbers with another wire
type. The result is a guess that the engine proves for every single row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from archiver.schema.protobuf.tree import FieldTree, Kind, MessageTree, Shape

Path = tuple[int, ...]
"""Field numbers from the top to a message level: (6,) is the message in field 6, or in the values of the map
in field 6."""

EXTRAS_MAX: Final = 64
"""Most unknown fields of an extension, all levels together. Each costs a column of every batch."""

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = 0, 1, 2, 3, 4, 5
# For each wire type a kind that keeps every value of it.
_KINDS: Final[Mapping[int, Kind]] = {
    _VARINT: Kind.UINT64,
    _FIXED64: Kind.FIXED64,
    _LENGTH: Kind.BYTES,
    _FIXED32: Kind.FIXED32,
}
_NUMBER_MAX = 2**29 - 1
_RESERVED = range(19_000, 20_000)
"""Numbers that no descriptor may use."""
_VARINT_BYTES, _TAG_MAX = 10, 2**32
_RARE = 16
"""A field is learned if two records of the sample have it, and at least one sixteenth as many as have the
most frequent field."""


@dataclass(frozen=True)
class Extra:
    """An unknown field: its wire type, and whether a message may hold it more than once."""

    wire: int
    repeated: bool


Extension = Mapping[tuple[Path, int], Extra]
"""Unknown fields by message level and number."""


class _Malformed(Exception):
    """The payload is not in the wire form."""


@dataclass
class _Level:
    """What the scanner needs of a message: its path (None in a map's entry), and by number the messages
    inside.
    """

    path: Path | None
    known: frozenset[int]
    inside: dict[int, _Level] = field(default_factory=dict)


class Scanner:
    """Finds the fields of payloads that a tree does not know."""

    def __init__(self, tree: MessageTree) -> None:
        self._top = _level(tree, ())

    def unknown_fields(self, payload: bytes) -> dict[tuple[Path, int], Extra] | None:
        """The unknown fields of plain wire types in a payload, by level and number; None for a malformed
        payload.
        """
        found: dict[tuple[Path, int], Extra] = {}
        # A list instead of recursion: the payload decides how deep messages are nested.
        todo = [(self._top, 0, len(payload))]
        try:
            while todo:
                level, start, end = todo.pop()
                todo.extend(_scan(level, payload, start, end, found))
        except _Malformed:
            return None
        return found


def learned(known: Extension, samples: Iterable[Mapping[tuple[Path, int], Extra]]) -> Extension:
    """The extension with what occurs in enough of the samples; `known` itself if that is nothing new, or if
    it is full.
    """
    seen: dict[tuple[Path, int], list[Extra]] = {}
    for sample in samples:
        for where, extra in sample.items():
            seen.setdefault(where, []).append(extra)
    most = max(map(len, seen.values()), default=0)
    result = dict(known)
    # Most frequent first, so that the limit excludes the rarest fields.
    for where, extras in sorted(seen.items(), key=lambda one: -len(one[1])):
        if len(extras) < 2 or len(extras) * _RARE < most:
            break
        # No break: a known field may still change from single to repeated.
        if where not in result and len(result) >= EXTRAS_MAX:
            continue
        # The wire type of a learned field never changes. Records with another one go to the complete engine.
        wire = (
            result[where].wire
            if where in result
            else Counter(extra.wire for extra in extras).most_common(1)[0][0]
        )
        repeated = any(extra.repeated for extra in extras if extra.wire == wire)
        result[where] = Extra(wire, repeated or (where in result and result[where].repeated))
    return known if result == known else result


def extended(tree: MessageTree, extension: Extension, path: Path = ()) -> MessageTree:
    """The tree with the fields of the extension among its own, marked `unknown`; in the order of their
    numbers at every level.
    """
    # Levels without unknown fields keep the same tree object.
    if not any(at[: len(path)] == path for at, _ in extension):
        return tree
    own = [
        one
        if one.message is None
        else replace(one, message=extended(one.message, extension, (*path, one.number)))
        for one in tree.fields
    ]
    more = [_field(number, extra) for (at, number), extra in extension.items() if at == path]
    return MessageTree(tuple(sorted([*own, *more], key=lambda one: one.number)), tree.full_name)


def _field(number: int, extra: Extra) -> FieldTree:
    shape = Shape.REPEATED if extra.repeated else Shape.SINGLE
    return FieldTree(
        number, f"unknown_{number}", _KINDS[extra.wire], shape, presence=not extra.repeated, unknown=True
    )


def _level(tree: MessageTree, path: Path) -> _Level:
    result = _Level(path, frozenset(one.number for one in tree.fields))
    for one in tree.fields:
        # Groups are skipped as a whole, so the levels inside them are not needed.
        if one.message is None or one.delimited:
            continue
        inside = _level(one.message, (*path, one.number))
        result.inside[one.number] = (
            # The messages of a map are in field 2 of its entries.
            _Level(None, frozenset((1, 2)), {2: inside}) if one.shape is Shape.MAP else inside
        )
    return result


def _scan(
    level: _Level, data: bytes, at: int, end: int, found: dict[tuple[Path, int], Extra]
) -> list[tuple[_Level, int, int]]:
    """Scan one message and return the messages inside. Groups are skipped: the complete engine decodes
    records with them.
    """
    inside: list[tuple[_Level, int, int]] = []
    counts: Counter[int] = Counter()
    while at < end:
        number, wire, at = _tag(data, at, end)
        start, at = _content(data, number, wire, at, end)
        if number in level.inside and wire == _LENGTH:
            inside.append((level.inside[number], start, at))
        elif (
            number not in level.known
            # Entries of maps have no `__unrecognized__` column, so nothing is learned there.
            and level.path is not None
            and wire in _KINDS
            and number not in _RESERVED
        ):
            counts[number] += 1
            # If a number occurs with two wire types in one message, the later one stays. Such rows are never
            # exact.
            where = (level.path, number)
            found[where] = Extra(wire, counts[number] > 1 or (where in found and found[where].repeated))
    return inside


def _content(data: bytes, number: int, wire: int, at: int, end: int) -> tuple[int, int]:
    """Where a field's content starts and where the next field does."""
    start = at
    if wire == _LENGTH:
        length, start = _varint(data, at, end)
        at = start + length
    elif wire == _START:
        at = _group_end(data, number, at, end)
    else:
        at = _plain_end(data, wire, at, end)
    # The length leads out of the message.
    if at > end:
        raise _Malformed
    return start, at


def _group_end(data: bytes, number: int, at: int, end: int) -> int:
    """The place after the end tag of a group."""
    # A list instead of recursion: a payload may nest many thousand groups.
    open_groups = [number]
    while open_groups:
        number, wire, at = _tag(data, at, end)
        if wire == _START:
            open_groups.append(number)
        elif wire == _END:
            if open_groups.pop() != number:
                raise _Malformed
        elif wire == _LENGTH:
            length, at = _varint(data, at, end)
            at += length
        else:
            at = _plain_end(data, wire, at, end)
    return at


def _plain_end(data: bytes, wire: int, at: int, end: int) -> int:
    if wire == _VARINT:
        return _varint(data, at, end)[1]
    if wire == _FIXED64:
        return at + 8
    if wire == _FIXED32:
        return at + 4
    raise _Malformed


def _tag(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    tag, at = _varint(data, at, end)
    number = tag >> 3
    # Protobuf allows no such tag.
    if tag >= _TAG_MAX or not 1 <= number <= _NUMBER_MAX:
        raise _Malformed
    return number, tag & 7, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES):
        if at >= end:
            raise _Malformed
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise _Malformed
