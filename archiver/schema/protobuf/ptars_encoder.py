"""Calls ptars to decode and encode, and adds to its encoding what the schema needs.

`Handler` guards the calls into ptars, and encodes messages level by level. `Encoder` adds what ptars does not
write: unpacked repeated numbers, groups, and unknown fields after the known ones. The bytes are those of
`complete_engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf.descriptor import Descriptor

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.tree import LENGTH_DELIMITED, FieldTree, Kind, MessageTree, Shape
from archiver.schema.protobuf.wire import flat_descriptors, wire_descriptor
from archiver.schema.protobuf.wire_columns import list_parts, message_to_wire, written_children


class Failed(Exception):
    """ptars did not process the batch."""


class Handler:
    """Decodes and encodes the wire form of one tree. Groups are not among what ptars reads: the tree must
    have no delimited fields.
    """

    def __init__(self, tree: MessageTree) -> None:
        self._descriptor = descriptor = wire_descriptor(tree)
        self._handler: Any = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
        self.schema: pa.Schema = self._handler.schema()
        """The wire form's Arrow types, fields in the order of the tree."""

    def decode(self, payloads: Array) -> list[Array]:
        """The message's fields. Raises Failed if any payload is refused."""
        columns: list[Array] = _guarded(self._handler.array_to_record_batch, payloads).columns
        return columns

    def encode(self, columns: list[Array]) -> Array:
        """Payloads from the message's fields, of the types of `schema` and at least one. Raises Failed."""
        return self._levels.encode(columns, len(columns[0]))

    @cached_property
    def _levels(self) -> _Levels:
        # Made by the first call, because most readers only decode.
        flat = flat_descriptors(self._descriptor)
        pool = ptars.HandlerPool([next(iter(flat.values())).file])
        return _Levels(self._descriptor, {name: pool.get_for_message(one) for name, one in flat.items()})


_NULLS_MAX = 4096
"""Fewer nulls are encoded as empty messages and discarded, which takes less time than to leave them out."""


class _Levels:
    """Encodes a message of the wire form, and before it the messages inside, which enter it as bytes.

    ptars allocates memory for every message inside another, which takes longer than to encode most of them.
    """

    def __init__(self, descriptor: Descriptor, handlers: dict[str, Any]) -> None:
        """`handlers`: by message name, for messages whose inner messages are bytes."""
        self._handler = handlers[descriptor.name]
        self._schema: pa.Schema = self._handler.schema()
        self._inner = [
            None if one.message_type is None else _Levels(one.message_type, handlers)
            for one in descriptor.fields
        ]

    def encode(self, columns: list[Array], length: int) -> Array:
        """Payloads of `length` messages from their fields; never null. Raises Failed."""
        if not columns:
            return arrow.repeat(arrow.scalar(b"", pa.binary()), length)
        plain = [
            column if inner is None else inner.inside(column, field.type)
            for inner, column, field in zip(self._inner, columns, self._schema, strict=True)
        ]
        return _guarded(
            self._handler.record_batch_to_array, pa.RecordBatch.from_arrays(plain, schema=self._schema)
        )

    def inside(self, array: Array, target: pa.DataType) -> Array:
        """A column of these messages, or of lists of them, as one of their payloads, of type `target`."""
        if pa.types.is_list(array.type):
            offsets, values = list_parts(array)
            return arrow.ListArray.from_arrays(arrow.array(offsets), self._payloads(values), type=target)
        if array.null_count == 0:
            return self._payloads(array)
        if array.null_count == len(array):
            return arrow.nulls(len(array), target)
        valid = array.is_valid()
        if array.null_count < _NULLS_MAX:
            return pc.if_else(valid, self._payloads(array), arrow.scalar(None, target))
        present = valid.to_numpy(zero_copy_only=False)
        places = arrow.array(np.cumsum(present) - 1, mask=~present)
        return self._payloads(array.filter(valid)).take(places)

    def _payloads(self, structs: Array) -> Array:
        children = [structs.field(place) for place in range(structs.type.num_fields)]
        return self.encode(children, len(structs))


def _guarded(call: Any, argument: Any) -> Any:
    """Call into ptars; raises Failed for its errors and its panics (which are BaseExceptions of their own
    module).
    """
    try:
        return call(argument)
    except Exception as error:
        raise Failed(str(error)) from error
    # A Rust panic derives from BaseException, and its class cannot be imported: its name is compared.
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Failed(f"panic: {error}") from error


Level = tuple[int, ...]
"""A message level by the places of the fields on the way to it; () is the top."""

_START, _END = 3, 4


class _How(Enum):
    """How a part is encoded."""

    RUN = "run"
    UNPACKED = "unpacked"
    GROUP = "group"


@dataclass(frozen=True)
class _Part:
    """Neighbouring fields that are encoded in one go: a run of fields, or one that ptars does not write as
    declared.
    """

    how: _How
    tree: MessageTree
    places: tuple[int, ...]
    handler: Handler | None
    """None for a group: its messages are encoded on their own."""


class Encoder:
    """Encodes one message type.

    ptars packs every repeated number and writes no groups. `levels` are the message levels with unknown
    fields. With `wire` the arrays are in ptars's wire form: no level has `__unrecognized__`, and a delimited
    field is a placeholder.
    """

    def __init__(self, tree: MessageTree, levels: frozenset[Level] = frozenset(), wire: bool = False) -> None:
        self._tree, self._wire, self._joins = tree, wire, () in levels
        self._inner: dict[int, Encoder] = {}
        for place, one in enumerate(tree.fields):
            if one.message is not None and not (one.delimited and wire):
                below = frozenset(level[1:] for level in levels if level[:1] == (place,))
                if below or one.delimited or not self._is_plain(one.message):
                    # ptars cannot write this message as declared: it enters its parent as bytes, equal on the
                    # wire.
                    self._inner[place] = Encoder(one.message, below, wire)
        self._parts: list[_Part] = []
        run: list[int] = []
        for place, one in enumerate(tree.fields):
            # Fields are encoded in number order, so a field that ptars cannot write ends the run before it.
            if one.delimited and not wire:
                self._close(run)
                self._parts.append(_Part(_How.GROUP, tree, (place,), None))
            elif _is_unpacked(one):
                self._close(run)
                # Each element is encoded as a message of one field. Presence writes a zero too.
                single = MessageTree((replace(one, shape=Shape.SINGLE, presence=True),), tree.full_name)
                self._parts.append(_Part(_How.UNPACKED, single, (place,), Handler(single)))
            else:
                run.append(place)
        self._close(run)

    def encode(self, children: Sequence[Array], length: int) -> Array:
        """Payloads of `length` messages from their fields' columns, in the order of the tree, and
        `__unrecognized__` after them.

        Raises Failed, and pyarrow.ArrowInvalid for columns that no decode has made.
        """
        payloads = [self._encode_part(part, children) for part in self._parts]
        if self._joins:
            # Protobuf's libraries write unknown fields after the known ones of their message.
            payloads.append(pc.fill_null(children[len(self._tree.fields)], b""))
        # A message without fields has nothing to join.
        if not payloads:
            return pc.fill_null(arrow.nulls(length, pa.binary()), b"")
        return payloads[0] if len(payloads) == 1 else pc.binary_join_element_wise(*payloads, b"")

    def payloads(self, structs: Array) -> Array:
        """Payloads of messages; null where the struct is null."""
        # In the wire form a default stands under a null struct, because a null is not allowed there.
        children = (
            [structs.field(i) for i in range(structs.type.num_fields)]
            if self._wire
            else written_children(structs)
        )
        payloads = self.encode(children, len(structs))
        return (
            payloads
            if structs.null_count == 0
            else pc.if_else(structs.is_valid(), payloads, arrow.scalar(None, pa.binary()))
        )

    def _is_plain(self, tree: MessageTree) -> bool:
        """Whether ptars alone encodes the message as declared."""
        return all(
            not _is_unpacked(one)
            and (self._wire or not one.delimited)
            and (one.message is None or (one.delimited and self._wire) or self._is_plain(one.message))
            for one in tree.fields
        )

    def _close(self, run: list[int]) -> None:
        """End a run of fields: one part."""
        if run:
            fields = tuple(
                _opaque(self._tree.fields[place]) if place in self._inner else self._tree.fields[place]
                for place in run
            )
            tree = MessageTree(fields, self._tree.full_name)
            self._parts.append(_Part(_How.RUN, tree, tuple(run), Handler(tree)))
            run.clear()

    def _encode_part(self, part: _Part, children: Sequence[Array]) -> Array:
        first = part.places[0]
        if part.handler is None:
            return self._groups(first, children[first])
        if part.how is _How.UNPACKED:
            # All elements of the batch are encoded at once, and joined list by list.
            offsets, values = list_parts(children[first])
            return pc.binary_join(
                arrow.ListArray.from_arrays(
                    arrow.array(offsets), self._encode_batch(part, part.handler, [values])
                ),
                b"",
            )
        columns = [
            self._opaque_column(place, children[place], field.type)
            if place in self._inner
            else children[place]
            for place, field in zip(part.places, part.handler.schema, strict=True)
        ]
        return self._encode_batch(part, part.handler, columns)

    def _encode_batch(self, part: _Part, handler: Handler, columns: list[Array]) -> Array:
        return handler.encode(
            columns if self._wire else message_to_wire(part.tree, columns, list(handler.schema))
        )

    def _groups(self, place: int, array: Array) -> Array:
        """The bytes of a delimited field: each message between its tags."""
        one = self._tree.fields[place]
        if place not in self._inner:
            return _no_groups(one, array)
        # A group stands between two tags of its number, without a length.
        start, end = (arrow.scalar(_varint(one.number << 3 | wire), pa.binary()) for wire in (_START, _END))
        if one.shape is Shape.SINGLE:
            # A null message makes the whole join null, so an absent group writes no tags.
            joined = pc.binary_join_element_wise(start, self._inner[place].payloads(array), end, b"")
            return pc.fill_null(joined, b"")
        offsets, values = list_parts(array)
        # A null element is an empty message, as everywhere in lists.
        items = pc.binary_join_element_wise(
            start, pc.fill_null(self._inner[place].payloads(values), b""), end, b""
        )
        return pc.binary_join(arrow.ListArray.from_arrays(arrow.array(offsets), items), b"")

    def _opaque_column(self, place: int, array: Array, target: pa.DataType) -> Array:
        """A column of messages as a column of their payloads, of the same shape; of type `target` in the wire
        form.
        """
        inner, shape = self._inner[place], self._tree.fields[place].shape
        if shape is Shape.SINGLE:
            return inner.payloads(array)
        offsets, values = list_parts(array)
        if shape is Shape.REPEATED:
            items = inner.payloads(values)
        elif self._wire:
            entry = target.value_type  # type: ignore[attr-defined]
            # In the wire form a map is a list of entries.
            items = arrow.StructArray.from_arrays(
                [values.field(0), inner.payloads(values.field(1))], fields=list(entry)
            )
        else:
            return arrow.MapArray.from_arrays(
                arrow.array(offsets), values.field(0), inner.payloads(values.field(1))
            )
        return arrow.ListArray.from_arrays(
            arrow.array(offsets), items, **({"type": target} if self._wire else {})
        )


def levels_with_unknown(tree: MessageTree, children: Sequence[Array], level: Level = ()) -> Iterator[Level]:
    """The message levels of columns that have unknown fields in some row. `children`: the fields' columns,
    then `__unrecognized__`.
    """
    rest = children[len(tree.fields)]
    # Levels without unknown fields keep the fast encoding of the whole message.
    if rest.null_count < len(rest):
        yield level
    for place, one in enumerate(tree.fields):
        if one.message is None:
            continue
        array = children[place]
        if one.shape is not Shape.SINGLE:
            array = list_parts(array)[1]
            array = array if one.shape is Shape.REPEATED else array.field(1)
        yield from levels_with_unknown(
            one.message, [array.field(i) for i in range(array.type.num_fields)], (*level, place)
        )


def _no_groups(tree: FieldTree, array: Array) -> Array:
    """The empty bytes of a well-known type as a group. Raises Failed if any value is set.

    Only editions have such fields. They are rare, so the complete engine encodes their rows.
    """
    values = array if tree.shape is Shape.SINGLE else list_parts(array)[1]
    if values.null_count < len(values):
        raise Failed(f"field {tree.name} is a well-known type between tags")
    return pc.fill_null(arrow.nulls(len(array), pa.binary()), b"")


def _opaque(tree: FieldTree) -> FieldTree:
    return replace(tree, kind=Kind.BYTES, message=None)


def _is_unpacked(tree: FieldTree) -> bool:
    return (
        tree.shape is Shape.REPEATED
        and not tree.packed
        # Length-delimited elements are never packed, so ptars writes them as declared.
        and tree.kind not in LENGTH_DELIMITED
        and not tree.wrapped
    )


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
