"""Decoding with ptars under one extension: payloads to columns, with the unknown fields of the extension.

It converts ptars's wire form to columns, fills `__unrecognized__`, and proves that nothing was lost. An
`exact` row was read as Protobuf reads it, and completely: its wire form, encoded again in canonical order, is
the payload. Rows whose columns may hold something else (`Doubts`) are left out: the complete engine decodes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.ptars_encoder import Encoder
from archiver.schema.protobuf.ptars_handler import Failed, Handler
from archiver.schema.protobuf.tree import MessageTree
from archiver.schema.protobuf.unknown_fields import Extension, extended
from archiver.schema.protobuf.values import Bools
from archiver.schema.protobuf.wire_columns import Doubts, message_to_columns
from archiver.schema.splice import Rows


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, decoded."""

    rows: Rows
    columns: pa.StructArray
    exact: Bools | None
    """Which rows are proven to be read whole; None: not looked at."""


class Reader:
    """Decodes messages of one tree under one extension."""

    def __init__(
        self,
        tree: MessageTree,
        message_type: pa.StructType,
        extension: Extension,
        refusal: Callable[[bytes], str | None],
    ) -> None:
        """`refusal`: why Protobuf's parser refuses a payload, None if it does not."""
        self.extension = extension
        self._refusal = refusal
        self._tree = extended(tree, extension)
        self._message_type = message_type
        self._handler = Handler(self._tree)
        self._wire_encoder: Encoder | None = None
        self._unknown: dict[int, tuple[tuple[int, ...], Encoder]] = {}
        _unknown_encoders(self._tree, self._unknown)

    def decode(self, payloads: Array, rows: Rows, check: bool) -> Piece:
        """Columns of the payloads, which are those of `rows`; rows that the columns may not hold are left
        out.

        `check`: find out which rows are exact. Raises Failed if ptars refuses any.
        """
        wire = self._handler.decode(payloads)
        length = len(payloads)
        doubts = Doubts()
        columns = message_to_columns(
            self._tree, wire, self._message_type, doubts, None, length, self._unrecognized
        )
        doubts.rows.update(
            row for row in doubts.unparsed - doubts.rows if self._refusal(payloads[row].as_py()) is not None
        )
        exact = self._exact(wire, payloads) if check else None
        if doubts.rows:
            keep = np.ones(length, np.bool_)
            keep[sorted(doubts.rows)] = False
            columns, rows, exact = (
                columns.filter(arrow.array(keep)),
                rows[keep],
                None if exact is None else exact[keep],
            )
        return Piece(rows, columns, exact)

    def takes(self, payloads: Array) -> bool:
        """Whether ptars refuses none of the payloads."""
        try:
            self._handler.decode(payloads)
        except Failed:
            return False
        return True

    def _exact(self, wire: list[Array], payloads: Array) -> Bools:
        if self._wire_encoder is None:
            self._wire_encoder = Encoder(self._tree, wire=True)
        again = self._wire_encoder.encode(wire, len(payloads))
        equal: Bools = pc.equal(again, payloads).to_numpy(zero_copy_only=False)
        return equal

    def _unrecognized(self, tree: MessageTree, children: Sequence[Array]) -> Array:
        """The unknown fields of one level as they are on the wire in canonical order; null without any."""
        places, encoder = self._unknown[id(tree)]
        length = len(children[0])
        payloads = encoder.encode([children[place] for place in places], length)
        empty = pc.equal(pc.binary_length(payloads), 0)
        if pc.all(empty, min_count=0).as_py():
            return arrow.nulls(length, pa.binary())
        return pc.if_else(empty, arrow.scalar(None, pa.binary()), payloads)


def _unknown_encoders(tree: MessageTree, into: dict[int, tuple[tuple[int, ...], Encoder]]) -> None:
    """Encoders of the unknown fields of every level, by the level's tree (which lives as long as its reader),
    and these fields' places.
    """
    places = tuple(place for place, one in enumerate(tree.fields) if one.unknown)
    if places:
        into[id(tree)] = (
            places,
            Encoder(MessageTree(tuple(tree.fields[place] for place in places), tree.full_name), wire=True),
        )
    for one in tree.fields:
        if one.message is not None:
            _unknown_encoders(one.message, into)
