"""Conversion of whole messages between wire form and column form: structs, lists and maps, arrays at a time.

`values` converts single values; `wire` has the wire form. Lengths and order are kept; sliced arrays and
arrays read from Parquet are supported. The wire form allows more than the column form: duplicate map keys,
two members of a oneof, a timestamp out of range, a malformed Struct. Such rows, and those with a signaling
NaN, are reported as doubtful, never mapped silently. No Python code runs per row unless a row is doubtful or
a column is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.tree import FieldTree, Kind, MessageTree, Shape
from archiver.schema.protobuf.values import (
    FLOATS,
    Bools,
    filled,
    messages_of,
    signaling,
    stamps_to_column,
    stamps_to_wire,
    struct_of,
    texts_of,
    to_column,
    to_wire,
    under,
    without_zero,
)
from archiver.schema.protobuf.wire import is_opaque

Offsets = npt.NDArray[np.int32]


class Doubts:
    """Collects the rows of a batch that the column form cannot hold, from any depth of lists."""

    def __init__(self, above: Doubts | None = None, offsets: Offsets | None = None) -> None:
        self._above, self._offsets = above, offsets
        self.rows: set[int] = set()
        """Rows whose columns are not reliable."""
        self.unparsed: set[int] = set()
        """Rows that hold encoded messages or JSON, which ptars did not parse. `ProtobufEngine.refusal` of the
        payload finds bad ones."""

    def inside(self, offsets: Offsets) -> Doubts:
        """The same for the elements of a list column with these offsets."""
        return Doubts(self, offsets)

    def mark(self, doubtful: Bools | None) -> None:
        """Remember the rows of the elements that are true, of this level."""
        if doubtful is not None:
            self.root().rows.update(self.rows_of(np.flatnonzero(doubtful)))

    def mark_unparsed(self, encoded: Array) -> None:
        """Remember the rows of the elements that are not null, of this level."""
        if encoded.null_count < len(encoded):
            self.root().unparsed.update(
                self.rows_of(np.flatnonzero(encoded.is_valid().to_numpy(zero_copy_only=False)))
            )

    def root(self) -> Doubts:
        """The doubts about the rows themselves."""
        return self if self._above is None else self._above.root()

    def rows_of(self, elements: npt.NDArray[np.int64]) -> list[int]:
        """The rows of elements of this level."""
        if self._above is None or self._offsets is None:
            rows: list[int] = elements.tolist()
            return rows
        # The list that holds an element is the last one that begins at or before it.
        return self._above.rows_of(np.searchsorted(self._offsets, elements, side="right") - 1)


_FEW_ENTRIES = 8
"""Maps with at most this many entries are compared entry by entry, which is quicker than sorting."""

_FEWER_ENTRIES = 3
"""Up to this many, comparing the keys themselves is quicker than making codes of them first."""

Unrecognized: TypeAlias = "Callable[[MessageTree, Sequence[Array]], Array]"
"""Makes the `__unrecognized__` column of one message level from the level's tree and all its children (wire
form)."""


def message_to_columns(
    tree: MessageTree,
    children: Sequence[Array],
    target: Any,
    doubts: Doubts,
    like: Array | None,
    length: int,
    unrecognized: Unrecognized | None = None,
) -> Array:
    """A message's fields (wire form, in the order of the tree) as a struct of type `target`, null where
    `like` is null.

    `length`: rows, also of a message without fields. Fields that are `unknown` are no columns: `unrecognized`
    makes the `__unrecognized__` column of every level that has some.
    """
    # Known fields keep the order of the struct type; unknown ones are among them by number.
    known = [(one, child) for one, child in zip(tree.fields, children, strict=True) if not one.unknown]
    columns = [
        _to_columns(one, child, target.field(i).type, doubts, unrecognized)
        for i, (one, child) in enumerate(known)
    ]
    _mark_oneofs(tree, children, doubts, length)
    has_unknown = unrecognized is not None and len(known) < len(tree.fields)
    rest = (
        unrecognized(tree, children)
        if unrecognized is not None and has_unknown
        else arrow.nulls(length, pa.binary())
    )
    return struct_of([*columns, rest], target, like, length)


def message_to_wire(
    tree: MessageTree, children: Sequence[Array], fields: Sequence[pa.Field[Any]]
) -> list[Array]:
    """A message's columns (in the order of the tree) in wire form, of the types of `fields`."""
    return [
        _to_wire(one, child, field.type)
        for one, child, field in zip(tree.fields, children, fields, strict=True)
    ]


def list_parts(array: Array) -> tuple[Offsets, Array]:
    """A list or map array as offsets from 0 and exactly the values between them; a null list counts as
    empty.
    """
    if (
        array.null_count
        and np.diff(array.offsets.to_numpy())[array.is_null().to_numpy(zero_copy_only=False)].any()
    ):
        # Arrow allows values under a null list. They must not become elements.
        lengths = filled(
            pc.list_value_length(array) if pa.types.is_list(array.type) else _map_lengths(array), Kind.INT32
        )
        offsets = np.concatenate(
            [np.zeros(1, np.int32), np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int32)]
        )
        kept = array.filter(array.is_valid())
        return offsets, list_parts(kept)[1]
    offsets = array.offsets.to_numpy()
    # A slice keeps the offsets and values of its parent array.
    first, last = int(offsets[0]), int(offsets[-1])
    values = (
        arrow.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        if pa.types.is_map(array.type)
        else array.values
    )
    return (offsets - offsets[0] if first else offsets), values.slice(first, last - first)


def _map_lengths(array: Array) -> Array:
    offsets = array.offsets.to_numpy()
    mask = array.is_null().to_numpy(zero_copy_only=False)
    return arrow.array(np.diff(offsets), mask=mask)


def _to_columns(
    tree: FieldTree, array: Array, target: Any, doubts: Doubts, unrecognized: Unrecognized | None
) -> Array:
    if tree.shape is Shape.SINGLE:
        column = _item_to_column(tree, array, target, doubts, unrecognized)
        # Floats have presence in the wire form even where the schema gives them none (-0.0).
        return filled(column, tree.kind) if tree.kind in FLOATS and not tree.presence else column
    offsets, values = list_parts(array)
    inside = doubts.inside(offsets)
    if tree.shape is Shape.REPEATED:
        items = _item_to_column(tree, values, target.value_type, inside, unrecognized)
        return arrow.ListArray.from_arrays(arrow.array(offsets), items, type=target)
    assert tree.key is not None
    keys = to_column(tree.key, filled(values.field(0), tree.key.kind), target.key_type)
    # ptars keeps both entries; in a column the last one must win, which the complete engine does.
    inside.mark(_double_keys(offsets, keys))
    items = _item_to_column(tree, _present(values.field(1), tree), target.item_type, inside, unrecognized)
    return arrow.MapArray.from_arrays(arrow.array(offsets), keys, items, type=target)


def _to_wire(tree: FieldTree, array: Array, target: Any) -> Array:
    if tree.shape is Shape.SINGLE:
        if tree.message is not None and array.null_count == len(array):
            # Nothing inside is encoded, so it needs no defaults.
            return arrow.nulls(len(array), target)
        if tree.presence or tree.kind in (Kind.TIMESTAMP, Kind.MESSAGE):
            return _item_to_wire(tree, array, target)
        values = filled(_item_to_wire(tree, array, target), tree.kind)
        # Presence in the wire form would write +0.0, which a field without presence omits.
        return without_zero(values) if tree.kind in FLOATS else values
    offsets, values = list_parts(array)
    if tree.shape is Shape.REPEATED:
        # A Parquet file may have null elements, and the wire form has none.
        items = _present(_item_to_wire(tree, values, target.value_type), tree)
    else:
        assert tree.key is not None
        entry = target.value_type
        key = to_wire(tree.key, values.field(0), entry.field(0).type)
        value = _present(_item_to_wire(tree, values.field(1), entry.field(1).type), tree)
        items = arrow.StructArray.from_arrays([key, value], fields=list(entry))
    return arrow.ListArray.from_arrays(arrow.array(offsets), items, type=target)


def _item_to_column(
    tree: FieldTree, array: Array, target: Any, doubts: Doubts, unrecognized: Unrecognized | None
) -> Array:
    if tree.delimited:
        # A placeholder (see `wire`): a value in it is an unknown field to Protobuf, so the row is doubtful.
        doubts.mark(
            array.is_valid().to_numpy(zero_copy_only=False) if array.null_count < len(array) else None
        )
        return arrow.nulls(len(array), target)
    if tree.message is not None:
        return message_to_columns(
            tree.message, _children(array), target, doubts, array, len(array), unrecognized
        )
    if tree.kind is Kind.TIMESTAMP:
        column, bad = stamps_to_column(array, target)
        doubts.mark(bad)
        return column
    if tree.kind is Kind.FLOAT:
        # The complete engine cannot hold a signaling NaN. Both engines must agree, so it decodes the row.
        doubts.mark(signaling(array.field(0) if tree.wrapped else array))
    if tree.wrapped:
        return under(to_column(tree, filled(array.field(0), tree.kind), target), array)
    if tree.json is not None:
        # The parser's level limit counts the messages around the JSON too, so the whole payload is checked.
        doubts.mark_unparsed(array)
        column, bad = texts_of(tree.json, array)
        doubts.mark(bad)
        return column
    if tree.kind is Kind.ENCODED:
        doubts.mark_unparsed(array)
    return to_column(tree, array, target)


def _item_to_wire(tree: FieldTree, array: Array, target: Any) -> Array:
    if tree.delimited:
        # The placeholder is never written; `ptars_encoder` writes groups.
        return arrow.nulls(len(array), target)
    if tree.message is not None:
        return struct_of(
            # Without `__unrecognized__`, which the encoder appends.
            message_to_wire(tree.message, written_children(array)[:-1], list(target)),
            target,
            array,
            len(array),
        )
    if tree.kind is Kind.TIMESTAMP:
        return stamps_to_wire(array, target)
    if tree.wrapped:
        values = filled(to_wire(tree, array, target.field(0).type), tree.kind)
        # A wrapper has no presence inside, so +0.0 is omitted there.
        return struct_of([without_zero(values) if tree.kind in FLOATS else values], target, array, len(array))
    if tree.json is not None:
        return messages_of(tree.json, array)
    return to_wire(tree, array, target)


def _children(struct: Array) -> list[Array]:
    """The children without the struct's own nulls: values under a null struct are not read."""
    return [struct.field(i) for i in range(struct.type.num_fields)]


def written_children(struct: Array) -> list[Array]:
    """The children with the struct's own nulls."""
    # In a column any value may be under a null struct, even text that is no enum value.
    children: list[Array] = struct.flatten()
    return children


def _present(array: Array, tree: FieldTree) -> Array:
    """The elements with defaults in place of nulls, because elements of lists and maps are never absent in
    the wire form. The default of a message is the empty one.
    """
    if array.null_count == 0:
        return array
    if pa.types.is_struct(array.type):
        return struct_of(_children(array), array.type, None, len(array))
    return filled(array, Kind.BYTES if is_opaque(tree) else tree.kind)


def _mark_oneofs(tree: MessageTree, children: Sequence[Array], doubts: Doubts, length: int) -> None:
    """Mark rows with several members of a oneof: on the wire a later one replaces an earlier one."""
    groups: dict[int, list[Array]] = {}
    for one, child in zip(tree.fields, children, strict=True):
        if one.oneof is not None:
            groups.setdefault(one.oneof, []).append(child)
    for members in groups.values():
        # Quick check: if at most one member is ever set, no row can have two.
        if sum(len(child) - child.null_count for child in members) <= 1:
            continue
        count = np.zeros(length, np.int32)
        for child in members:
            count += child.is_valid().to_numpy(zero_copy_only=False)
        if (count > 1).any():
            doubts.mark(count > 1)


def _double_keys(offsets: Offsets, keys: Array) -> Bools | None:
    """Which map entries repeat an earlier key of their map."""
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest < 2:
        return None
    # Codes make keys of any type comparable as integers.
    codes = None if longest <= _FEWER_ENTRIES else keys.dictionary_encode().indices.to_numpy()
    if codes is None or longest <= _FEW_ENTRIES:
        double = np.zeros(len(keys), np.bool_)
        # An empty map at the end begins after the last entry.
        begins = np.zeros(len(keys) + 1, np.bool_)
        begins[offsets[:-1]] = True
        begins = begins[:-1]
        within = ~begins
        # Compares each entry with the one `apart` places before it, if both are in one map.
        for apart in range(1, longest):
            same = (
                pc.equal(keys[apart:], keys[:-apart]).to_numpy(zero_copy_only=False)
                if codes is None
                else codes[apart:] == codes[:-apart]
            )
            double[apart:] |= same & within[apart:]
            # No map may begin in any of the places between.
            within[apart:] &= ~begins[:-apart]
        return double if double.any() else None
    # Map and key as one number; `return_index` gives the first entry of each.
    rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    _, first = np.unique(rows * (int(codes.max()) + 1) + codes, return_index=True)
    if len(first) == len(codes):
        return None
    double = np.ones(len(codes), np.bool_)
    double[first] = False
    return double
