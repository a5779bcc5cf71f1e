"""The fast engine, on ptars (Rust): whole batches, with the complete engine for the few records that need judgement.

Owns: the only import of ptars, and every guard against it: one bad record fails its batch, some bad records panic, and a record of many
thousand nested groups would overflow the stack and kill the process.
Promises: the same columns, errors and bytes as `engine_protobuf`, about 25 times faster while nothing is odd.
Odd records cost the slow way.
Must never: hand a record over `GUARDED_BYTES` to ptars that Protobuf's own parser has not accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import ptars
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.engine import Decoded
from archiver.schema.engine_protobuf import ProtobufEngine
from archiver.schema.tree import LENGTH_DELIMITED, FieldTree, Kind, MessageTree, Shape
from archiver.schema.wire import wire_descriptor
from archiver.schema.wire_columns import Doubts, list_parts, message_to_columns, message_to_wire, written_children

GUARDED_BYTES = 8192
"""Longer payloads pass Protobuf's parser first. A nested group takes at least a byte of payload and about 100 bytes of ptars's stack, so
shorter ones cannot overflow even a small one; ptars died between 80,000 and 160,000 levels on 8 MiB."""

_CHECKED_ROWS, _PIECES = 2048, 16
"""A failing batch of more rows is cut into that many pieces first: most of them are whole, and ptars is quicker than the parser."""

_BISECT_ROWS = 16
"""Below this many rows a failing batch goes to the complete engine as a whole."""


class _Failed(Exception):
    """ptars did not process the batch."""


class _Stage(Enum):
    """How far the search for the bad records of a failing batch has come."""

    WHOLE = "whole"
    PIECE = "piece"
    CHECKED = "checked"


class PtarsEngine:
    """An `Engine` for one message type. `message_type` is the struct of the columns it makes."""

    def __init__(self, tree: MessageTree, message_type: pa.StructType) -> None:
        self._tree = tree
        self._message_type = message_type
        self._judge = ProtobufEngine(tree, message_type)
        self._handler = _handler(tree)
        self._encoder = _Encoder(tree)

    @property
    def message_type(self) -> pa.StructType:
        """See `Engine`."""
        return self._message_type

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`."""
        rows = np.arange(len(payloads), dtype=np.int64)
        long = pc.greater(pc.binary_length(payloads), GUARDED_BYTES)
        if pc.any(long).as_py():
            refused = self._refused(payloads, np.flatnonzero(long.to_numpy(zero_copy_only=False)))
            rows = np.setdiff1d(rows, refused, assume_unique=True)
        parts: list[pa.StructArray] = []
        placed: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._decode_rows(payloads, rows, parts, placed)
        done = np.concatenate(placed) if placed else np.zeros(0, np.int64)
        if len(done) == len(payloads) and len(parts) == 1:
            return Decoded(parts[0], {})
        rest = np.setdiff1d(np.arange(len(payloads), dtype=np.int64), done, assume_unique=True)
        judged = self._judge.decode(payloads.take(arrow.array(rest)))
        order = np.argsort(np.concatenate([done, rest]), kind="stable")
        columns = arrow.concat_arrays([*parts, judged.columns]).take(arrow.array(order))
        return Decoded(columns, {int(rest[row]): why for row, why in judged.errors.items()})

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        """See `Engine`."""
        try:
            payloads: pa.BinaryArray = self._encoder.encode([columns.field(i) for i in range(len(self._tree.fields))])
            return payloads
        except _Failed:
            return self._judge.encode(columns)

    def _refused(
        self, payloads: pa.BinaryArray, rows: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Those of the rows that Protobuf's parser refuses."""
        items: Any = payloads.take(arrow.array(rows)).to_pylist()
        return np.array([row for row, item in zip(rows, items, strict=True) if self._judge.refusal(item) is not None], dtype=np.int64)

    def _decode_rows(
        self,
        payloads: pa.BinaryArray,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        parts: list[pa.StructArray],
        placed: list[np.ndarray[Any, np.dtype[np.int64]]],
        stage: _Stage = _Stage.WHOLE,
    ) -> None:
        """Decode the rows that ptars can, adding columns and their rows; the rest is left for the judge.

        A failing batch is cut into pieces; a failing piece is freed of what the parser refuses. If that was not the reason it is halved:
        rows that ptars refuses although Protobuf takes them (they are rare) end in batches of a few.
        """
        if len(rows) == 0:
            return
        try:
            columns, doubtful = self._decode_all(payloads if len(rows) == len(payloads) else payloads.take(arrow.array(rows)))
        except _Failed:
            if stage is _Stage.WHOLE and len(rows) > _CHECKED_ROWS:
                for piece in np.array_split(rows, _PIECES):
                    self._decode_rows(payloads, piece, parts, placed, _Stage.PIECE)
            elif stage is not _Stage.CHECKED:
                good = np.setdiff1d(rows, self._refused(payloads, rows), assume_unique=True)
                self._decode_rows(payloads, good, parts, placed, _Stage.CHECKED)
            elif len(rows) > _BISECT_ROWS:
                for half in np.array_split(rows, 2):
                    self._decode_rows(payloads, half, parts, placed, _Stage.CHECKED)
            return
        if doubtful:
            keep = np.ones(len(rows), np.bool_)
            keep[sorted(doubtful)] = False
            columns, rows = columns.filter(arrow.array(keep)), rows[keep]
        parts.append(columns)
        placed.append(rows)

    def _decode_all(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, set[int]]:
        """Columns of a batch, and the rows whose columns are not to be trusted. Raises _Failed."""
        batch = _guarded(self._handler.array_to_record_batch, payloads)
        doubts = Doubts()
        return message_to_columns(self._tree, batch.columns, self._message_type, doubts, None), doubts.rows


@dataclass(frozen=True)
class _Part:
    """Neighbouring fields that are encoded in one go: a run of fields, or one unpacked list (then element by element)."""

    tree: MessageTree
    places: tuple[int, ...]
    handler: Any
    schema: pa.Schema
    unpacked: bool


class _Encoder:
    """Encodes one message type.

    ptars packs every repeated number. Where the schema says unpacked, the elements are encoded as messages of one field and joined; a
    message that contains such a field is encoded on its own and enters its parent as bytes, which are the same on the wire.
    """

    def __init__(self, tree: MessageTree) -> None:
        self._tree = tree
        self._inner = {
            i: _Encoder(one.message) for i, one in enumerate(tree.fields) if one.message is not None and not _is_plain(one.message)
        }
        self._parts: list[_Part] = []
        run: list[int] = []
        for i, one in enumerate(tree.fields):
            if _is_unpacked(one):
                self._close(run)
                self._parts.append(
                    _part(MessageTree((replace(one, shape=Shape.SINGLE, presence=True),), tree.full_name), (i,), unpacked=True)
                )
            else:
                run.append(i)
        self._close(run)

    def encode(self, children: Sequence[Array]) -> Array:
        """Payloads of messages from their fields' columns, in the order of the tree. Raises _Failed."""
        payloads = [self._encode_part(part, children) for part in self._parts]
        return payloads[0] if len(payloads) == 1 else pc.binary_join_element_wise(*payloads, b"")

    def _close(self, run: list[int]) -> None:
        """End a run of fields: one part."""
        if run:
            fields = tuple(_opaque(self._tree.fields[i]) if i in self._inner else self._tree.fields[i] for i in run)
            self._parts.append(_part(MessageTree(fields, self._tree.full_name), tuple(run), unpacked=False))
            run.clear()

    def _encode_part(self, part: _Part, children: Sequence[Array]) -> Array:
        if part.unpacked:
            offsets, values = list_parts(children[part.places[0]])
            elements = _encode_batch(part, [values])
            return pc.binary_join(arrow.ListArray.from_arrays(arrow.array(offsets), elements), b"")
        return _encode_batch(part, [self._opaque_column(i, children[i]) if i in self._inner else children[i] for i in part.places])

    def _opaque_column(self, place: int, array: Array) -> Array:
        """A column of messages as a column of their payloads, of the same shape."""
        inner, shape = self._inner[place], self._tree.fields[place].shape
        if shape is Shape.SINGLE:
            return inner.payloads(array)
        offsets, values = list_parts(array)
        if shape is Shape.REPEATED:
            return arrow.ListArray.from_arrays(arrow.array(offsets), inner.payloads(values))
        return arrow.MapArray.from_arrays(arrow.array(offsets), values.field(0), inner.payloads(values.field(1)))

    def payloads(self, structs: Array) -> Array:
        """Payloads of messages; null where the struct is null."""
        payloads = self.encode(written_children(structs)[: len(self._tree.fields)])
        return payloads if structs.null_count == 0 else pc.if_else(structs.is_valid(), payloads, arrow.scalar(None, pa.binary()))


def _encode_batch(part: _Part, columns: list[Array]) -> Array:
    arrays = message_to_wire(part.tree, columns, list(part.schema))
    return _guarded(part.handler.record_batch_to_array, pa.RecordBatch.from_arrays(arrays, schema=part.schema))


def _part(tree: MessageTree, places: tuple[int, ...], unpacked: bool) -> _Part:
    handler = _handler(tree)
    return _Part(tree, places, handler, handler.schema(), unpacked)


def _opaque(tree: FieldTree) -> FieldTree:
    return replace(tree, kind=Kind.BYTES, message=None)


def _is_unpacked(tree: FieldTree) -> bool:
    return tree.shape is Shape.REPEATED and not tree.packed and tree.kind not in LENGTH_DELIMITED


def _is_plain(tree: MessageTree) -> bool:
    """Whether ptars alone encodes the message as declared."""
    return all(not _is_unpacked(one) and (one.message is None or _is_plain(one.message)) for one in tree.fields)


def _handler(tree: MessageTree) -> Any:
    descriptor = wire_descriptor(tree)
    return ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _guarded(call: Any, argument: Any) -> Any:
    """Call into ptars; raises _Failed for its errors and its panics (which are BaseExceptions of their own module)."""
    try:
        return call(argument)
    except Exception as error:
        raise _Failed(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise _Failed(f"panic: {error}") from error
