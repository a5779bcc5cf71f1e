"""The size of a Protobuf payload after decoding, computed from its bytes before decoding.

Two bytes of payload may become a list element of a hundred columns. One rule limits this for refinement,
replay, audit, `consume` and intake validation. The unit is a value: one place in a column, one field on the
wire, or one list element, whichever count is highest.

The count does not depend on the engine or on other records. It is never below what Protobuf's parser
allocates before it stops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from archiver.schema.arrow import Array
from archiver.schema.protobuf.error_causes import TOO_MANY_VALUES
from archiver.schema.protobuf.tree import LENGTH_DELIMITED, FieldTree, JsonForm, Kind, MessageTree, Shape

VALUES_MAX: Final = 4 * 2**20
"""Limit for one record's key or value. Above it the columns are null, `__raw__` and `__err__` are kept. About
64 MiB of columns, and 400 MB of Python objects where the complete engine has to decode the record."""
BATCH_VALUES_MAX: Final = 16 * 2**20
"""Limit for the records that are decoded at a time. A batch of 8 MiB of ordinary records stays below it and
is never cut."""

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = 0, 1, 2, 3, 4, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_DEPTH_MAX: Final = 100
"""Protobuf's parser refuses deeper messages."""
# A varint has at most ten bytes; the last one begins at this bit.
_VARINT_BITS_MAX: Final = 63
_NAME_BYTES: Final = 16
"""Enums are columns of text: each part of a name of this size counts as one more value."""
_CHUNK_BYTES: Final = 128 * 1024
"""Bytes that are compared at a time, so that they stay in the processor's cache."""
_EIGHT: Final = frozenset({Kind.DOUBLE, Kind.FIXED64, Kind.SFIXED64})
_UNSIGNED_64: Final = frozenset({Kind.UINT64, Kind.FIXED64})
_FOUR: Final = frozenset({Kind.FLOAT, Kind.FIXED32, Kind.SFIXED32})

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Entry:
    """What one occurrence of a field adds."""

    weight: int
    """Values in addition to the one that every field on the wire counts."""
    node: _Node | None = None
    """The message inside."""
    packed: int = 0
    """Bytes of one element of a packed list; 1 for varints, which end at a byte below 128; 0: not packed."""


@dataclass(slots=True)
class _Node:
    """A message type at one place: its fields by their tag."""

    entries: dict[int, _Entry] = field(default_factory=dict)


class Meter:
    """Counts the values of payloads of one message type."""

    def __init__(self, tree: MessageTree, *, columns: bool = True) -> None:
        """Without `columns`, only fields on the wire and list elements count: a measure of the time that a
        check takes.
        """
        self.message = tree.full_name
        self._tree = tree
        self._light: dict[int, _Node] = {}
        self._json: dict[str, _Node] = {}
        self._seen: list[_Node] = []
        # Even an empty message fills its columns, so each row starts with this count.
        self._slots = _slots(tree) if columns else 1
        self._top = self._node(tree, ()) if columns else self._light_node(tree, ())
        weights: dict[int, int] = {}
        packed = 0
        for tag, entry in ((tag, entry) for node in self._seen for tag, entry in node.entries.items()):
            if entry.packed:
                # Rounded up: the bound must never be below the count.
                packed = max(packed, -(-(1 + entry.weight) // entry.packed))
            elif entry.weight:
                # The first byte of a tag is seen without decoding. Several tags share it, so the largest
                # weight counts.
                low = tag & 0x7F
                weights[low] = max(weights.get(low, 0), entry.weight)
        self._weights = weights
        """By the low seven bits of a tag's first byte: the most that such a field adds."""
        self._packed = packed
        """The most that one byte of a packed list adds."""
        self._rate = max((1 + max(weights.values(), default=0)) / 2, float(packed))
        """No byte of a payload adds more: a field takes two at least."""

    def values(self, payload: bytes, limit: int = VALUES_MAX) -> int:
        """The values of a payload; beyond `limit` the count stops, at a number above it."""
        # Three steps, each more exact and slower: length alone, counts of bytes, then the walk.
        if self._slots + len(payload) * self._rate <= limit:
            return self._slots
        if int(self._bounds(np.frombuffer(payload, np.uint8), np.zeros(1, np.int64))[0]) <= limit:
            return self._slots
        return self._slots + _walk(self._top, payload, limit - self._slots)

    def too_many(self, payload: bytes, limit: int = VALUES_MAX) -> str | None:
        """Why the payload is not decoded; None if it may be."""
        return refusal_of(self.message, limit) if self.values(payload, limit) > limit else None

    def beyond(self, payloads: Array, limit: int = VALUES_MAX) -> list[int]:
        """The rows of a binary array (no nulls) that have more values. Costs nothing where no payload is
        long.
        """
        lengths = lengths_of(payloads)
        # The rate bounds a row by its length alone, so short rows are never walked.
        suspects = np.flatnonzero(self._slots + lengths * self._rate > limit)
        return [row for row in suspects.tolist() if self.values(payloads[row].as_py(), limit) > limit]

    def bounds(self, payloads: Array, limit: int = BATCH_VALUES_MAX) -> Counts | None:
        """For each row a number that its values do not exceed; None if all rows together are within the limit
        in any case.
        """
        lengths = lengths_of(payloads)
        rows, size = len(lengths), int(lengths.sum())
        # Cheap bounds of the whole batch first: ordinary batches are never counted row by row.
        if rows * self._slots + size * self._rate <= limit:
            return None
        data = data_of(payloads)
        if rows * self._slots + self._bound(data) <= limit:
            return None
        ends = np.cumsum(lengths)
        return self._bounds(data, ends - lengths)

    def _bound(self, data: npt.NDArray[np.uint8]) -> float:
        """As `_bounds`, of all bytes together and without the rows' own values. Quick: a few comparisons for
        each byte.
        """
        # A field takes at least two bytes; an element of a packed list may take one.
        total = len(data) * max(0.5, float(self._packed))
        for start in range(0, len(data), _CHUNK_BYTES):
            # Bit 7 only says that the tag continues, so it is ignored.
            low = data[start : start + _CHUNK_BYTES] & 0x7F
            total += sum(
                int(np.count_nonzero(low == byte)) * weight for byte, weight in self._weights.items()
            )
        return total

    def _bounds(self, data: npt.NDArray[np.uint8], starts: Counts) -> Counts:
        """Every byte that could begin the tag of a heavy field counts as one."""
        table = np.zeros(256, np.int64)
        for byte, weight in self._weights.items():
            # The same tag byte with and without the continuation bit.
            table[[byte, byte | 0x80]] = weight
        ends = np.append(starts[1:], len(data))
        sums = np.zeros(len(starts), np.int64)
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = table[data[start : start + _CHUNK_BYTES]]
            # A running sum gives the count of every row in this chunk without a loop over rows.
            running = np.concatenate(([0], np.cumsum(chunk)))
            first, last = (
                int(np.searchsorted(ends, start, side="right")),
                int(np.searchsorted(starts, start + len(chunk))),
            )
            low = np.clip(starts[first:last] - start, 0, len(chunk))
            high = np.clip(ends[first:last] - start, 0, len(chunk))
            sums[first:last] += running[high] - running[low]
        fields: Counts = np.ceil((ends - starts) * max(0.5, self._packed)).astype(np.int64)
        return fields + sums + self._slots

    def _node(self, tree: MessageTree, above: tuple[MessageTree, ...]) -> _Node:
        """A message that is columns."""
        node, inside = _Node(), (*above, tree)
        self._seen.append(node)
        # Groups without a column count too: the parser allocates them.
        for one in (*tree.fields, *tree.left_out):
            child = self._child(one, inside, light=False)
            self._add(
                node,
                one,
                child,
                # Single fields are in the row's slots. An element adds its own slots, and a map entry its key
                # and itself.
                0 if one.shape is Shape.SINGLE else _item_slots(one) - 1 + (0 if one.key is None else 2),
            )
        return node

    def _light_node(self, tree: MessageTree, above: tuple[MessageTree, ...]) -> _Node:
        """A message that stays bytes: its fields and elements count, for the parser goes through them."""
        known = self._light.get(id(tree))
        # Recursive messages: without this the nodes would never end.
        if known is not None:
            return known
        node = self._light[id(tree)] = _Node()
        self._seen.append(node)
        for one in (*tree.fields, *tree.left_out):
            self._add(node, one, self._child(one, (*above, tree), light=True), 0)
        return node

    def _child(self, one: FieldTree, inside: tuple[MessageTree, ...], *, light: bool) -> _Node | None:
        if one.message is not None:
            return self._light_node(one.message, inside) if light else self._node(one.message, inside)
        if one.kind is Kind.ENCODED:
            assert one.above is not None
            # `above` counts from the innermost message outwards.
            place = len(inside) - one.above
            return self._light_node(inside[place], inside[:place])
        return None if one.json is None else self._json_node(one.json)

    def _json_node(self, form: JsonForm) -> _Node:
        # The four messages contain one another, so all nodes exist before they are linked.
        if not self._json:
            self._json = {name: _Node() for name in ("struct", "list", "value", "entry")}
            struct, items, value, entry = self._json.values()
            struct.entries[1 << 3 | _LENGTH] = _Entry(0, entry)
            entry.entries[2 << 3 | _LENGTH] = _Entry(0, value)
            items.entries[1 << 3 | _LENGTH] = _Entry(0, value)
            value.entries[5 << 3 | _LENGTH], value.entries[6 << 3 | _LENGTH] = (
                _Entry(0, struct),
                _Entry(0, items),
            )
            self._seen += self._json.values()
        return self._json[form]

    def _add(self, node: _Node, one: FieldTree, child: _Node | None, weight: int) -> None:
        """The field under every tag by which the parser takes it."""
        if one.shape is Shape.MAP:
            entry = _Node(
                {}
                if child is None
                # The value is field 2 of an entry. As a group it begins with a start tag.
                else {2 << 3 | _LENGTH: _Entry(0, child), 2 << 3 | _START: _Entry(0, child)}
            )
            self._seen.append(entry)
            node.entries[one.number << 3 | _LENGTH] = _Entry(weight, entry)
            return
        if one.delimited:
            node.entries[one.number << 3 | _START] = _Entry(weight, child)
            return
        scalar = one.kind not in LENGTH_DELIMITED and not one.wrapped and one.json is None
        if scalar and one.shape is Shape.REPEATED:
            size = 8 if one.kind in _EIGHT else 4 if one.kind in _FOUR else 1
            wire = {8: _FIXED64, 4: _FIXED32, 1: _VARINT}[size]
            node.entries[one.number << 3 | wire] = _Entry(weight)
            # The parser accepts both encodings of a repeated number, regardless of the declaration.
            node.entries[one.number << 3 | _LENGTH] = _Entry(weight, packed=size)
        elif weight or child is not None:
            node.entries[one.number << 3 | _LENGTH] = _Entry(weight, child)


def refusal_of(message: str, limit: int = VALUES_MAX) -> str:
    """The text of `__err__` for a record with more values."""
    return f"cannot be decoded as {message}: more than {limit} {TOO_MANY_VALUES}"


def portions(
    rows: int, bounds: Iterable[Counts | None], limit: int = BATCH_VALUES_MAX
) -> list[tuple[int, int]]:
    """[start, end) of parts of a batch whose values stay within the limit, or that are one row; `bounds` as
    `Meter.bounds` gives them.
    """
    known = [one for one in bounds if one is not None]
    if not known:
        return [(0, rows)]
    # Key and value of a row are decoded together, so their bounds add up.
    sums = np.concatenate(([0], np.cumsum(np.sum(known, axis=0))))
    found, start = [], 0
    while start < rows:
        # A single row over the limit is a part of its own: it cannot be divided.
        end = max(start + 1, int(np.searchsorted(sums, sums[start] + limit, side="right")) - 1)
        found.append((start, end))
        start = end
    # An empty batch is one empty part, so that callers still get typed columns.
    return found or [(0, 0)]


def lengths_of(payloads: Array) -> Counts:
    """The length of each payload of a binary array; nulls have 0."""
    found: Counts = np.diff(_offsets(payloads)).astype(np.int64)
    if payloads.null_count:
        # The offsets under a null may span bytes.
        found[payloads.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def data_of(payloads: Array) -> npt.NDArray[np.uint8]:
    """The bytes of all payloads, one behind the other."""
    if payloads.null_count:
        payloads = payloads.fill_null(b"")
    offsets = _offsets(payloads)
    if len(offsets) < 2 or offsets[0] == offsets[-1]:
        # The data buffer may be absent if there are no bytes.
        return np.zeros(0, np.uint8)
    return np.frombuffer(payloads.buffers()[2], np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _offsets(payloads: Array) -> npt.NDArray[np.int32]:
    # The offsets are read from the buffer directly, which works for slices without a copy.
    buffer = payloads.buffers()[1]
    if buffer is None or len(payloads) == 0:
        return np.zeros(len(payloads) + 1, np.int32)
    return np.frombuffer(buffer, np.int32, len(payloads) + 1, payloads.offset * 4)


def _slots(tree: MessageTree) -> int:
    """Places in columns that a message takes even if it is empty: all its columns outside lists, and
    itself.
    """
    return 2 + sum(_item_slots(one) if one.shape is Shape.SINGLE else 1 for one in tree.fields)


def _item_slots(one: FieldTree) -> int:
    if one.message is not None:
        return _slots(one.message)
    if one.enum is not None:
        return 1 + max((len(name) for _, name in one.enum.names), default=0) // _NAME_BYTES
    # A decimal takes 16 bytes, twice the size of other numbers.
    return 2 if one.kind in _UNSIGNED_64 else 1


def _walk(node: _Node, data: bytes, limit: int) -> int:  # noqa: PLR0912 - one loop without calls: four million fields a second
    """The values of a payload; beyond `limit` the count stops, at a number above it."""
    # The walk follows the bytes in the parser's order and ends where the parser refuses the payload.
    total, at, end = 0, 0, len(data)
    entries, group = node.entries, 0
    stack: list[tuple[dict[int, _Entry], int, int]] = []
    """For each enclosing message: its fields, its end, and its group number."""
    try:
        while total <= limit:
            if at >= end:
                # The payload ends. Or a field crosses its message's end, or a group has no end tag: refused.
                if at > end or group or not stack:
                    break
                entries, end, group = stack.pop()
                continue
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1)
            wire = tag & 7
            if wire == _END:
                # An end tag that does not match the open group is malformed.
                if group != tag >> 3 or not stack:
                    break
                entries, end, group = stack.pop()
                continue
            # Every field counts, unknown ones too: the parser stores them.
            total += 1
            entry = entries.get(tag)
            if entry is not None:
                total += entry.weight
            if wire == _VARINT:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif wire == _LENGTH:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = _varint(data, at - 1)
                stop = at + length
                # The length leads out of the enclosing message.
                if stop > end:
                    break
                if entry is not None and length:
                    if entry.packed:
                        total += _elements(data, at, stop, entry.packed) * (1 + entry.weight)
                    elif entry.node is not None:
                        if len(stack) > _DEPTH_MAX:
                            break
                        stack.append((entries, end, group))
                        entries, end, group = entry.node.entries, stop, 0
                        continue
                at = stop
            elif wire == _START:
                if len(stack) > _DEPTH_MAX:
                    break
                # A group has no length, so its end stays that of the message around it.
                stack.append((entries, end, group))
                entries = {} if entry is None or entry.node is None else entry.node.entries
                group = tag >> 3
            elif wire in _FIXED_BYTES:
                at += _FIXED_BYTES[wire]
            else:
                break
    except IndexError:
        # The payload ends inside a field, where the parser refuses it.
        pass
    return total


def _elements(data: bytes, start: int, stop: int, size: int) -> int:
    """How many elements a packed list has."""
    if size > 1:
        return (stop - start) // size
    # The last byte of a varint is below 0x80, so these bytes count the elements.
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop - start, start) < 0x80))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _VARINT_BITS_MAX:
            # Handled like a payload that is cut off: the parser refuses both.
            raise IndexError
