"""Columns to JSON in its one compact form, whole batches at a time.

The form is frozen: archives are read back by it (docs/schema-mapping-json.md, "Nothing is lost"). Objects
have the properties of the schema in its order, then those of `__unrecognized__`; there is no white space, and
a text escapes only what it must. A piece is text of each row between two constants, since quotes and names
are the same in every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.json.model import Kind, Node
from archiver.schema.json.moments import written_moments
from archiver.schema.protobuf.decoded_size import data_of
from archiver.schema.protobuf.tree import UNRECOGNIZED

_END: Final = 2**31 - 1
_ESCAPED: Final = r'["\\\x00-\x1f]'
_PLAIN_MAX: Final = 1e21
"""From here on ECMAScript writes a number with an exponent."""


@dataclass(frozen=True)
class _Piece:
    """Text of each row; null where the value is null."""

    before: bytes
    rows: Array
    after: bytes

    def text(self) -> Array:
        if not self.before and not self.after:
            return self.rows
        return pc.binary_join_element_wise(self.before, self.rows, self.after, b"")


def encode_value(node: Node, column: Array) -> Array:
    """The documents of rows, as a binary array. A null value is `null`."""
    return _filled(_piece(node, column).text(), b"null")


def encode_object(node: Node, columns: Array) -> Array:
    """The documents of rows of an object at the top level."""
    return _object(node, columns)


def name_text(name: str) -> bytes:
    """A name or a text in JSON."""
    return encode_basestring(name).encode()


def _piece(node: Node, column: Array) -> _Piece:
    if node.kind is Kind.OBJECT:
        return _Piece(b"", _object(node, column), b"")
    if node.kind is Kind.ARRAY:
        return _Piece(b"[", _joined(column, _items(node, column.flatten())), b"]")
    if node.kind is Kind.MAP:
        return _Piece(b"{", _map(node, column), b"}")
    if node.kind is Kind.STRING:
        return _Piece(b'"', _escaped(column), b'"')
    if node.kind is Kind.TEXT:
        return _Piece(b"", column.cast(pa.binary()), b"")
    if node.kind is Kind.NUMBER:
        return _Piece(b"", _numbers(column), b"")
    if node.kind is Kind.DATE:
        return _Piece(b'"', column.cast(pa.string()).cast(pa.binary()), b'"')
    if node.kind is Kind.DATE_TIME:
        return _Piece(b'"', _moments(column), b'"')
    return _Piece(b"", column.cast(pa.string()).cast(pa.binary()), b"")


def _object(node: Node, columns: Array) -> Array:
    """Objects with their braces; null where the struct is null."""
    if columns.null_count * 2 > len(columns):
        # A null object is written with all its names below, before that is dropped. If there are more of
        # them than others, it may be far more than the document.
        there = columns.is_valid()
        texts = arrow.nulls(len(columns), pa.binary())
        given = columns.filter(there)
        return pc.replace_with_mask(texts, there, _object(node, given)) if len(given) else texts
    nulls = columns.is_null() if columns.null_count else None
    children = columns.flatten()
    parts: list[tuple[bytes, _Piece, bool]] = []
    for (name, inner), child in zip(node.fields, children, strict=False):
        piece = _piece(inner, child)
        if inner.nullable and child.null_count:
            piece = _Piece(b"", _filled(piece.text(), b"null"), b"")
        # In a null object everything is null, and nothing of it is used.
        parts.append((name_text(name) + b":", piece, inner.nullable or child.null_count == 0))
    place = columns.type.get_field_index(UNRECOGNIZED)
    if place >= 0 and children[place].null_count < len(columns):
        # Without its braces, behind the properties that the schema names.
        inside = pc.binary_slice(children[place], 1, -1)
        parts.append((b"", _Piece(b"", inside, b""), False))
    text = _members(parts, len(columns))
    return text if nulls is None else pc.if_else(nulls, arrow.scalar(None, pa.binary()), text)


def _members(parts: list[tuple[bytes, _Piece, bool]], rows: int) -> Array:
    """Members with commas between those that are there, in braces."""
    always = next((place for place, (_, _, there) in enumerate(parts) if there), None)
    words: list[Any] = [b"{" if always is not None else b""]
    for place, (name, piece, there) in enumerate(parts):
        # The first member that every row has needs no comma; those before it have one behind them.
        comma = always is None or place > always
        before = (b"," if comma else b"") + name + piece.before
        after = piece.after if comma or place == always else piece.after + b","
        if there:
            words = _added(words, before, piece.rows, after)
        else:
            optional = _filled(pc.binary_join_element_wise(before, piece.rows, after, b""), b"")
            words = _added(words, b"", optional, b"")
    if always is None:
        if not parts:
            return arrow.array([b"{}"] * rows, pa.binary())
        # The first member of each row has a comma before it.
        inside = pc.binary_slice(pc.binary_join_element_wise(*words, b""), 1, _END)
        return pc.binary_join_element_wise(b"{", inside, b"}", b"")
    return pc.binary_join_element_wise(*_added(words, b"}", None, b""), b"")


def _added(words: list[Any], before: bytes, rows: Array | None, after: bytes) -> list[Any]:
    """The words with more behind them; neighbouring constants are one."""
    *head, last = words
    if rows is None:
        return [*head, last + before]
    return [*head, last + before, rows, after]


def _items(node: Node, items: Array) -> Array:
    """Items of arrays; a null is `null`."""
    assert node.item is not None
    return _filled(_piece(node.item, items).text(), b"null")


def _joined(column: Array, items: Array) -> Array:
    """The items of each row with commas between them; null for a null row. `items` are those of all rows."""
    lengths = _lengths(column)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = arrow.ListArray.from_arrays(arrow.array(offsets), items)
    text = pc.binary_join(lists, b",")
    return (
        text
        if not column.null_count
        else pc.if_else(column.is_valid(), text, arrow.scalar(None, pa.binary()))
    )


def _lengths(column: Array) -> Any:
    counts = np.diff(column.offsets.to_numpy())
    if column.null_count:
        counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return counts


def _map(node: Node, column: Array) -> Array:
    if column.null_count:
        # Takes the entries under null rows away, which a file of another writer may have.
        column = column.take(arrow.array(np.arange(len(column))))
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys, items = column.keys.slice(start, end - start), column.items.slice(start, end - start)
    names = pc.binary_join_element_wise(b'"', _escaped(keys), b'":', b"")
    return _joined(column, pc.binary_join_element_wise(names, _items(node, items), b""))


def _filled(text: Array, value: bytes) -> Array:
    return pc.fill_null(text, value) if text.null_count else text


def _escaped(column: Array) -> Array:
    """Texts without their quotes."""
    plain = column.cast(pa.binary())
    data = data_of(plain)
    if not ((data < 32) | (data == 34) | (data == 92)).any():
        return plain
    mask = pc.fill_null(pc.match_substring_regex(column, _ESCAPED), False)
    texts = [encode_basestring(one)[1:-1].encode() for one in column.filter(mask).to_pylist()]
    return pc.replace_with_mask(plain, mask, arrow.array(texts, pa.binary()))


def number_text(value: float) -> str:
    """A finite double as ECMAScript writes it, but minus zero as `-0`."""
    if value == 0:
        return "-0" if str(value)[0] == "-" else "0"
    text = repr(value)
    head, _, exponent = text.partition("e")
    if not exponent and abs(value) < _PLAIN_MAX:
        return head.removesuffix(".0")
    number = int(exponent)
    if 1e-6 <= abs(value) < _PLAIN_MAX:
        sign, digits = ("-", head[1:]) if head[0] == "-" else ("", head)
        whole, _, fraction = digits.partition(".")
        if number < 0:
            return f"{sign}0.{'0' * (-number - 1)}{whole}{fraction}"
        return f"{sign}{whole}{fraction.ljust(number, '0')}"
    return f"{head.removesuffix('.0')}e{'+' if number > 0 else ''}{number}"


def _numbers(column: Array) -> Array:
    text = column.cast(pa.string())
    # Arrow writes the shortest digits; with an exponent it differs from ECMAScript in some ranges.
    odd = pc.fill_null(pc.match_substring(text, "e"), False)
    if pc.any(odd).as_py():
        values = [number_text(one) for one in column.filter(odd).to_pylist()]
        text = pc.replace_with_mask(text, odd, arrow.array(values, pa.string()))
    return text.cast(pa.binary())


def _moments(column: Array) -> Array:
    numbers = column.cast(pa.int64())
    text = written_moments(pc.fill_null(numbers, 0).to_numpy())
    return pc.if_else(column.is_valid(), text, arrow.scalar(None, pa.binary())) if column.null_count else text
