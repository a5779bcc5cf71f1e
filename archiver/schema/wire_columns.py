"""Whole messages between wire form and column form: structs, lists and maps, arrays at a time.

Owns: the shapes. `values` owns single values, `wire` the wire form.
Promises: lengths and order are kept; sliced arrays and arrays read from Parquet are fine. Rows for which the wire form allows more than
the column form (double map keys, two members of a oneof, a timestamp out of range) are reported as doubtful, never mapped silently.
Must never: run Python code per row while no row is doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.tree import FieldTree, Kind, MessageTree, Shape
from archiver.schema.values import Bools, filled, stamps_to_column, stamps_to_wire, struct_of, to_column, to_wire, without_zero
from archiver.schema.wire import has_wire_presence

Offsets = npt.NDArray[np.int32]


class Doubts:
    """Collects the rows of a batch that the column form cannot hold, from any depth of lists."""

    def __init__(self, above: Doubts | None = None, offsets: Offsets | None = None) -> None:
        self._above, self._offsets = above, offsets
        self.rows: set[int] = set()

    def inside(self, offsets: Offsets) -> Doubts:
        """The same for the elements of a list column with these offsets."""
        return Doubts(self, offsets)

    def mark(self, doubtful: Bools | None) -> None:
        """Remember the rows of the elements that are true, of this level."""
        if doubtful is not None:
            self.remember(np.flatnonzero(doubtful))

    def remember(self, elements: npt.NDArray[np.int64]) -> None:
        """Remember the rows of these elements of this level."""
        if self._above is None or self._offsets is None:
            self.rows.update(elements.tolist())
        else:
            self._above.remember(np.searchsorted(self._offsets, elements, side="right") - 1)


def message_to_columns(tree: MessageTree, children: Sequence[Array], target: Any, doubts: Doubts, like: Array | None) -> Array:
    """A message's fields (wire form, in the order of the tree) as a struct of type `target`, null where `like` is null."""
    length = len(children[0])
    columns = [
        _to_columns(one, child, target.field(i).type, doubts) for i, (one, child) in enumerate(zip(tree.fields, children, strict=True))
    ]
    _mark_oneofs(tree, children, doubts)
    return struct_of([*columns, arrow.nulls(length, pa.binary())], target, like)


def message_to_wire(tree: MessageTree, children: Sequence[Array], fields: Sequence[pa.Field[Any]]) -> list[Array]:
    """A message's columns (in the order of the tree) in wire form, of the types of `fields`."""
    return [_to_wire(one, child, field.type) for one, child, field in zip(tree.fields, children, fields, strict=True)]


def list_parts(array: Array) -> tuple[Offsets, Array]:
    """A list or map array as offsets from 0 and exactly the values between them; a null list counts as empty."""
    if array.null_count:
        lengths = filled(pc.list_value_length(array) if pa.types.is_list(array.type) else _map_lengths(array), Kind.INT32)
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int32)])
        kept = array.filter(array.is_valid())
        return offsets, list_parts(kept)[1]
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    values = (
        arrow.StructArray.from_arrays([array.keys, array.items], names=["key", "value"]) if pa.types.is_map(array.type) else array.values
    )
    return (offsets - offsets[0] if first else offsets), values.slice(first, last - first)


def _map_lengths(array: Array) -> Array:
    offsets = array.offsets.to_numpy()
    mask = array.is_null().to_numpy(zero_copy_only=False)
    return arrow.array(np.diff(offsets), mask=mask)


def _to_columns(tree: FieldTree, array: Array, target: Any, doubts: Doubts) -> Array:
    if tree.shape is Shape.SINGLE:
        column = _item_to_column(tree, array, target, doubts)
        return (
            column
            if tree.presence or not has_wire_presence(tree) or tree.kind in (Kind.TIMESTAMP, Kind.MESSAGE)
            else filled(column, tree.kind)
        )
    offsets, values = list_parts(array)
    inside = doubts.inside(offsets)
    if tree.shape is Shape.REPEATED:
        items = _item_to_column(tree, values, target.value_type, inside)
        return arrow.ListArray.from_arrays(arrow.array(offsets), items, type=target)
    assert tree.key is not None
    keys = to_column(tree.key, filled(values.field(0), tree.key.kind), target.key_type)
    inside.mark(_double_keys(offsets, keys))
    items = _item_to_column(tree, _present(values.field(1), tree.kind), target.item_type, inside)
    return arrow.MapArray.from_arrays(arrow.array(offsets), keys, items, type=target)


def _to_wire(tree: FieldTree, array: Array, target: Any) -> Array:
    if tree.shape is Shape.SINGLE:
        if tree.presence or tree.kind in (Kind.TIMESTAMP, Kind.MESSAGE):
            return _item_to_wire(tree, array, target)
        values = filled(_item_to_wire(tree, array, target), tree.kind)
        return without_zero(values) if has_wire_presence(tree) else values
    offsets, values = list_parts(array)
    if tree.shape is Shape.REPEATED:
        items = _present(_item_to_wire(tree, values, target.value_type), tree.kind)
    else:
        assert tree.key is not None
        entry = target.value_type
        key = to_wire(tree.key, values.field(0), entry.field(0).type)
        value = _present(_item_to_wire(tree, values.field(1), entry.field(1).type), tree.kind)
        items = arrow.StructArray.from_arrays([key, value], fields=list(entry))
    return arrow.ListArray.from_arrays(arrow.array(offsets), items, type=target)


def _item_to_column(tree: FieldTree, array: Array, target: Any, doubts: Doubts) -> Array:
    if tree.message is not None:
        return message_to_columns(tree.message, _children(array), target, doubts, array)
    if tree.kind is Kind.TIMESTAMP:
        column, bad = stamps_to_column(array, target)
        doubts.mark(bad)
        return column
    return to_column(tree, array, target)


def _item_to_wire(tree: FieldTree, array: Array, target: Any) -> Array:
    if tree.message is not None:
        return struct_of(message_to_wire(tree.message, written_children(array)[:-1], list(target)), target, array)
    if tree.kind is Kind.TIMESTAMP:
        return stamps_to_wire(array, target)
    return to_wire(tree, array, target)


def _children(struct: Array) -> list[Array]:
    """The children without the struct's own nulls: what stands under a null struct is not looked at."""
    return [struct.field(i) for i in range(struct.type.num_fields)]


def written_children(struct: Array) -> list[Array]:
    """The children with the struct's own nulls: in a column anything may stand under a null struct, even text that is no enum value."""
    children: list[Array] = struct.flatten()
    return children


def _present(array: Array, kind: Kind) -> Array:
    """Elements of lists and maps are never absent (wire form): the default in place of null."""
    if array.null_count == 0:
        return array
    if pa.types.is_struct(array.type):
        return arrow.StructArray.from_arrays(_children(array), fields=list(array.type))
    return filled(array, kind)


def _mark_oneofs(tree: MessageTree, children: Sequence[Array], doubts: Doubts) -> None:
    """At most one member of a oneof is set; more means that a later one replaces an earlier one on the wire."""
    groups: dict[int, list[Array]] = {}
    for one, child in zip(tree.fields, children, strict=True):
        if one.oneof is not None:
            groups.setdefault(one.oneof, []).append(child)
    for members in groups.values():
        if sum(len(child) - child.null_count for child in members) <= 1:
            continue
        count = np.zeros(len(children[0]), np.int32)
        for child in members:
            count += child.is_valid().to_numpy(zero_copy_only=False)
        if (count > 1).any():
            doubts.mark(count > 1)


def _double_keys(offsets: Offsets, keys: Array) -> Bools | None:
    """Which map entries repeat an earlier key of their map."""
    lengths = np.diff(offsets)
    if len(lengths) == 0 or lengths.max() < 2:
        return None
    codes = keys.dictionary_encode()
    rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    pairs = rows * len(codes.dictionary) + codes.indices.to_numpy()
    if pc.count_distinct(arrow.array(pairs)).as_py() == len(pairs):
        return None
    _, first = np.unique(pairs, return_index=True)
    double = np.ones(len(pairs), np.bool_)
    double[first] = False
    return double
