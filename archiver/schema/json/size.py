"""The size of a JSON document after decoding, bounded from its bytes before decoding.

Three bytes of a document, `{},`, may become a list element of a hundred columns, and so may `null,`. The
limits are those of `archiver.schema.protobuf.decoded_size`. A value is one place in a column or one list
element. Every 16 bytes that an object is written with for absent properties (`"name":null,`) count as one
more. So the form that is written of a batch has at most its own bytes and 25 for each value: no number is
longer, and nothing else grows. A document whose values in JSON, unknown ones too, exceed the limit is never
parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from archiver.schema.arrow import Array, pc
from archiver.schema.json.complete_engine import Wrong, parsed
from archiver.schema.json.encoder import name_text
from archiver.schema.json.model import Kind, Node, Schema
from archiver.schema.protobuf.decoded_size import (
    BATCH_VALUES_MAX,
    VALUES_MAX,
    Counts,
    data_of,
    lengths_of,
)

_NAME_BYTES: Final = 16
_NULL_ITEM: Final = r"[\[,:][ \t\n\r]*null"
"""A null of an array or a map; of a property too, where maps have to be counted."""
_NULL_ELEMENT: Final = r"[\[,][ \t\n\r]*null"
_QUOTE: Final = ord('"')
_STARTS: Final = np.zeros(256, np.bool_)
"""What a value begins behind, or begins with."""
_STARTS[list(b"[{,")] = True


@dataclass(frozen=True)
class _Place:
    """A value at one place."""

    slots: int
    """Places in columns, without the items of its lists."""
    names: int
    """The most bytes that absent properties are written with, without those of its items."""
    fields: tuple[tuple[str, int, _Place], ...] = ()
    """Of an object: name, bytes that are written if it is absent, place."""
    item: _Place | None = None
    each: int = 0
    """What an item counts, without its absent properties."""


class JsonMeter:
    """Counts the values of documents of one schema."""

    def __init__(self, schema: Schema) -> None:
        top = _place(schema.node)
        items = list(_items(top))
        self._top = top
        self._row = top.slots + top.names // _NAME_BYTES
        self._object = max((_most(each, one) for each, one in items if one.fields), default=0)
        """The most values of an item that is an object or null."""
        self._other = max((each for each, one in items if not one.fields), default=1)
        """The most values of another item."""
        # An item takes two bytes with its comma, and an object three.
        self._byte = max(1.0, self._other / 2)
        self._rate = self._byte + self._object / 3
        self._null = _NULL_ITEM if _has_maps(schema.node) else _NULL_ELEMENT

    def beyond(self, payloads: Array, limit: int = VALUES_MAX) -> list[int]:
        """The rows of a binary array (no nulls) that have more values."""
        suspects = np.flatnonzero(self._row + lengths_of(payloads) * self._rate > limit)
        return [row for row in suspects.tolist() if self._values(payloads[row].as_py(), limit) > limit]

    def bounds(self, payloads: Array, limit: int = BATCH_VALUES_MAX) -> Counts | None:
        """For each row a number that its values do not exceed; None if all rows together are within the
        limit.
        """
        found = self._bounds(payloads, 0, limit)
        # A row beyond `VALUES_MAX` is not decoded.
        return None if found is None else np.minimum(found, VALUES_MAX)

    def bounds_of_reads(self, payloads: Array, limit: int = BATCH_VALUES_MAX) -> Counts | None:
        """As `bounds`, of what a reader makes that takes a row for several documents, and reads one that is
        no JSON up to the fault. So a row may be beyond `VALUES_MAX`; None only if there is no such row.
        """
        longest = int(lengths_of(payloads).max(initial=0))
        if self._row + longest * (self._rate + self._row / 2) > VALUES_MAX:
            limit = 0
        return self._bounds(payloads, self._row, limit)

    def _bounds(self, payloads: Array, document: int, limit: int) -> Counts | None:
        """`document`: what each object counts if it may be a document of its own."""
        lengths = lengths_of(payloads)
        size = len(lengths) * self._row + int(lengths.sum()) * self._byte
        weight = self._object + document
        # Three steps, each more exact and slower: lengths alone, all rows together, then each row.
        if size + int(lengths.sum()) * (self._object / 3 + document / 2) <= limit:
            return None
        data = data_of(payloads)
        size += int(np.count_nonzero(data == ord("{"))) * weight
        # Every null has this letter, and counting one byte is quickest.
        size += int(np.count_nonzero(data == ord("u"))) * self._object if self._object else 0
        if size <= limit:
            return None
        counts = pc.fill_null(pc.count_substring(payloads, "{"), 0).to_numpy().astype(np.int64) * weight
        if self._object:
            nulls = pc.fill_null(pc.count_substring_regex(payloads, self._null), 0).to_numpy()
            counts += nulls.astype(np.int64) * self._object
        found: Counts = self._row + counts + np.ceil(lengths * self._byte).astype(np.int64)
        return found if int(found.sum()) > limit else None

    def _values(self, payload: bytes, limit: int) -> int:
        """The values of a payload, or a number that they do not exceed."""
        values = _json_values(payload)
        if values > limit:
            return values
        objects = payload.count(b"{") + payload.count(b"null") if self._object else 0
        most = max(values, self._row + objects * self._object + values * self._other)
        if most <= limit:
            return most
        try:
            return max(values, self._top.slots + _count(self._top, parsed(payload)))
        except Wrong:
            # The complete engine refuses it, and the fast one does not read what may be too large.
            return 0


def _place(node: Node) -> _Place:
    if node.item is not None:
        item = _place(node.item)
        return _Place(1, 0, item=item, each=1 + item.slots + (1 if node.kind is Kind.MAP else 0))
    if node.kind is not Kind.OBJECT:
        return _Place(2 if node.column.startswith("decimal") else 1, 0)
    fields = tuple(
        (name, len(name_text(name)) + len(b":null,") if one.nullable else 0, _place(one))
        for name, one in node.fields
    )
    return _Place(
        2 + sum(one.slots for _, _, one in fields),
        sum(size + one.names for _, size, one in fields),
        fields,
    )


def _items(place: _Place) -> Iterator[tuple[int, _Place]]:
    """The items of all lists and maps, with what each counts."""
    if place.item is not None:
        yield place.each, place.item
        yield from _items(place.item)
    for _, _, one in place.fields:
        yield from _items(one)


def _most(each: int, item: _Place) -> int:
    return each + item.names // _NAME_BYTES


def _has_maps(node: Node) -> bool:
    inner = [one for _, one in node.fields] if node.item is None else [node.item]
    return node.kind is Kind.MAP or any(_has_maps(one) for one in inner)


def _json_values(payload: bytes) -> int:
    """A number that the values of a document in JSON do not exceed, names apart. Costs no objects."""
    if b"\\" in payload:
        # Then every quote is one that begins or ends a text.
        payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    data = np.frombuffer(payload, np.uint8)
    starts = _STARTS[data]
    # Up to each byte; an odd number of quotes is inside a text.
    inside = np.cumsum(data == _QUOTE, dtype=np.uint8) & 1
    return 1 + int(np.count_nonzero(starts & (inside == 0)))


def _count(place: _Place, value: Any) -> int:
    """The items of lists and maps inside a value, with their columns, and the names of absent properties."""
    if place.item is not None and isinstance(value, dict | list):
        items = list(value.values()) if isinstance(value, dict) else value
        return len(items) * place.each + sum(_count(place.item, one) for one in items)
    if not place.fields or not isinstance(value, dict):
        return 0
    found = absent = 0
    for name, size, one in place.fields:
        if name not in value:
            absent += size
        elif one.fields or one.item is not None:
            found += _count(one, value[name])
    return found + absent // _NAME_BYTES
