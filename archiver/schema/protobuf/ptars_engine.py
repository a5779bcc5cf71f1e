"""The fast engine, on ptars (Rust): whole batches, with the complete engine for doubtful records.

Columns, errors and bytes are those of `complete_engine`, about 25 times faster for ordinary records. Unusual
records take the slow path, except for properties that many records share. Those are unknown fields of plain
wire types, and values that columns do not hold completely, like nanoseconds.

ptars has weaknesses that this module works around. One bad record fails its batch, some bad records panic,
and unknown fields are dropped. A record with many thousand nested groups would overflow the stack and kill
the process. So ptars never gets a record over `GUARDED_BYTES` that Protobuf's own parser has not accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.engine import Decoded
from archiver.schema.protobuf.ptars_encoder import Encoder, Failed, Handler, Level, levels_with_unknown
from archiver.schema.protobuf.tree import Kind, MessageTree
from archiver.schema.protobuf.unknown_fields import Extension, Extra, Path, Scanner, extended, learned
from archiver.schema.protobuf.values import Bools
from archiver.schema.protobuf.wire_columns import Doubts, message_to_columns
from archiver.schema.splice import Rows, picked, spliced


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, decoded."""

    rows: Rows
    columns: pa.StructArray
    exact: Bools | None
    """Which rows are proven to be read whole; None: not checked."""


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
        # ptars keeps encoded messages and JSON as bytes. Protobuf's parser checks those rows here.
        doubts.rows.update(
            row for row in doubts.unparsed - doubts.rows if self._refusal(payloads[row].as_py()) is not None
        )
        exact = self._exact(wire, payloads) if check else None
        # Doubtful rows are in no piece, so the complete engine decodes them.
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
        # The wire form holds more than the columns. Equal bytes prove a whole read, not exact columns.
        again = self._wire_encoder.encode(wire, len(payloads))
        equal: Bools = pc.equal(again, payloads).to_numpy(zero_copy_only=False)
        return equal

    def _unrecognized(self, tree: MessageTree, children: Sequence[Array]) -> Array:
        """The unknown fields of one level as they are on the wire in canonical order; null without any."""
        # By identity: equal trees can stand at several levels with other encoders.
        places, encoder = self._unknown[id(tree)]
        length = len(children[0])
        payloads = encoder.encode([children[place] for place in places], length)
        # A level without unknown fields is null in the column, never empty bytes.
        empty = pc.equal(pc.binary_length(payloads), 0)
        if pc.all(empty, min_count=0).as_py():
            return arrow.nulls(length, pa.binary())
        return pc.if_else(empty, arrow.scalar(None, pa.binary()), payloads)


def _unknown_encoders(tree: MessageTree, into: dict[int, tuple[tuple[int, ...], Encoder]]) -> None:
    """Encoders of the unknown fields of every level, and the places of these fields.

    The key is the identity of the level's tree, which lives as long as its reader.
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


GUARDED_BYTES = 8192
"""Longer payloads pass Protobuf's parser first. A nested group takes at least a byte of payload and about 100
bytes of ptars's stack. So shorter ones cannot overflow even a small stack; ptars died between 80,000 and
160,000 levels on 8 MiB."""

_WHOLE_ROWS, _PIECE_ROWS, _PARSED_ROWS, _BISECT_ROWS = 65_536, 8192, 256, 16
"""A batch is decoded in one, up to the first size. A batch that fails, and those after it, are decoded in
pieces of the second. So a bad record costs no more than its piece. ptars narrows down the bad record of a
piece to the third size, which is quicker than the parser. Below the fourth, a whole failing piece goes to the
complete engine."""

_SINGLE_FINDS = 2
"""So many bad records of a piece are searched one by one; if there are more, the parser checks the whole
piece."""

_FEW_ROWS, _FEW_BYTES = 64, 256 * 1024
"""Fewer rows, and bytes, are not searched for shared properties: the complete engine decodes them in a few
milliseconds."""

_ROUNDS = 4
"""Extensions tried on one batch: a field that few rows have is seen when those with the frequent ones are
done."""

_SAMPLE_ROWS, _SAMPLE_BYTES = 64, 128 * 1024
"""What the scanner reads in one round: rows, and bytes of all of them."""

_SHARE = 8
"""What at least one row in that many needs is done from the start in the following batches."""

_FORGET_BATCHES = 64
"""Batches after which a habit ends, to find out whether it is still needed."""

_ENCODERS_MAX = 32
"""Encoders that are kept, one per set of message levels with unknown fields."""


class PtarsEngine:
    """An `Engine` for one message type. `message_type` is the struct of the columns it makes."""

    def __init__(self, tree: MessageTree, message_type: pa.StructType) -> None:
        self._tree = tree
        self._message_type = message_type
        self._judge = ProtobufEngine(tree, message_type)
        # Two readers: extra columns cost time for batches without unknown fields.
        self._plain = self._learned = Reader(tree, message_type, {}, self._judge.refusal)
        self._scanner = Scanner(tree)
        self._mergeable = not _has_opaque(tree)
        self._encoders: dict[frozenset[Level], Encoder] = {frozenset(): Encoder(tree)}
        self._habit = _Habit()

    @property
    def message_type(self) -> pa.StructType:
        """See `Engine`."""
        return self._message_type

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`."""
        self._habit.next_batch(len(payloads))
        reader = self._learned if self._habit.extended else self._plain
        pieces = list(self._pieces(reader, payloads, self._habit.checked))
        return self._completed(payloads, pieces)

    def errors(self, payloads: pa.BinaryArray) -> dict[int, str]:
        """The errors that `decode` and `revise` report, without their columns: row to reason.

        Rows that are read whole have none. The complete engine decides about every other row.
        """
        self._habit.next_batch(len(payloads))
        rest = np.ones(len(payloads), np.bool_)
        for piece in self._pieces(self._plain, payloads, check=True):
            rest[piece.rows] = ~piece.exact if piece.exact is not None else True
        found: dict[int, str] = {}
        for row in np.flatnonzero(rest).tolist():
            why = self._judge.error_of(payloads[row].as_py())
            if why is not None:
                found[row] = why
        return found

    def revise(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`."""
        rows = np.arange(len(payloads), dtype=np.int64)
        # Learning and decoding again would take longer than the complete engine.
        if _few(payloads):
            return self._completed(payloads, [])
        done: list[Piece] = []
        rest: list[Piece] = []
        for _ in range(_ROUNDS):
            batch = picked(payloads, rows)
            exact, rest = _divided(
                [_placed(piece, rows) for piece in self._pieces(self._learned, batch, check=True)]
            )
            # Exact rows are final. Only the others are decoded again, with a larger extension.
            done += exact
            rows = _others(rows, *(piece.rows for piece in exact))
            if _few(picked(payloads, rows)) or not self._learn(payloads, rows):
                break
        self._habit.needed(sum(len(piece.rows) for piece in done), bool(self._learned.extension))
        # Bytes of the other rows differ by order or repetition. Both libraries read those alike, except for
        # opaque fields.
        if self._mergeable:
            done += [
                known
                for known in (self._without_unknown(payloads, piece) for piece in rest)
                if len(known.rows)
            ]
        return self._completed(payloads, done)

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        """See `Engine`."""
        children = [columns.field(i) for i in range(columns.type.num_fields)]
        try:
            encoder = self._encoder(frozenset(levels_with_unknown(self._tree, children)))
            payloads: pa.BinaryArray = encoder.encode(children, len(columns))
            return payloads
        except Failed:
            # For example a well-known type between group tags, which only the complete engine writes.
            return self._judge.encode(columns)

    def _encoder(self, levels: frozenset[Level]) -> Encoder:
        found = self._encoders.get(levels)
        if found is None:
            # Records choose the combination of levels, so the cache needs a bound.
            if len(self._encoders) >= _ENCODERS_MAX:
                self._encoders = {frozenset(): self._encoders[frozenset()]}
            found = self._encoders[levels] = Encoder(self._tree, levels)
        return found

    def _completed(self, payloads: pa.BinaryArray, pieces: list[Piece]) -> Decoded:
        """The batch of these pieces; the complete engine decodes the rows that are in none of them."""
        settled = np.ones(len(payloads), np.bool_)
        for piece in pieces:
            settled[piece.rows] = False
        # Rows of no piece stay settled: a second decode by the complete engine changes nothing.
        rest = np.flatnonzero(settled)
        for piece in pieces:
            if piece.exact is not None:
                settled[piece.rows] = piece.exact
        parts = [(piece.rows, piece.columns) for piece in pieces]
        errors: dict[int, str] = {}
        # An empty batch needs columns of the right type too.
        if len(rest) or not parts:
            judged = self._judge.decode(picked(payloads, rest))
            parts.append((rest, judged.columns))
            errors = {int(rest[row]): why for row, why in judged.errors.items()}
        return Decoded(spliced(parts), errors, settled)

    def _pieces(self, reader: Reader, payloads: pa.BinaryArray, check: bool) -> Iterator[Piece]:
        """The rows that ptars decodes without doubt, in pieces."""
        rows = np.arange(len(payloads), dtype=np.int64)
        lengths = pc.binary_length(payloads)
        # Protobuf's parser stops at 100 levels, so ptars cannot overflow its stack on what it accepts.
        if (pc.max(lengths).as_py() or 0) > GUARDED_BYTES:
            refused = self._refused(
                payloads, np.flatnonzero(lengths.to_numpy(zero_copy_only=False) > GUARDED_BYTES)
            )
            rows = _others(rows, refused)
        yield from self._in_pieces(
            reader, payloads, rows, check, _PIECE_ROWS if self._habit.cut else _WHOLE_ROWS
        )

    def _in_pieces(
        self, reader: Reader, payloads: pa.BinaryArray, rows: Rows, check: bool, size: int
    ) -> Iterator[Piece]:
        for start in range(0, len(rows), size):
            yield from self._decoded(reader, payloads, rows[start : start + size], check, _SINGLE_FINDS)

    def _decoded(
        self, reader: Reader, payloads: pa.BinaryArray, rows: Rows, check: bool, finds: int
    ) -> Iterator[Piece]:
        """Pieces of these rows. `finds`: how many bad records are still searched one by one; below 0 the rows
        are halved.
        """
        if len(rows) == 0:
            return
        try:
            yield reader.decode(picked(payloads, rows), rows, check)
            return
        except Failed:
            # ptars does not say which row failed, so the rows are divided.
            pass
        if len(rows) > _PIECE_ROWS:
            # The batches that follow are likely to have bad records too, and start in pieces.
            self._habit.cut = True
            yield from self._in_pieces(reader, payloads, rows, check, _PIECE_ROWS)
        elif finds >= 0:
            # The parser is slow, so at first it gets only the few rows at which ptars stops.
            suspects = rows if finds == 0 else self._stumbling(reader, payloads, rows)
            refused = self._refused(payloads, suspects)
            # If the parser accepts all suspects, the next attempt checks every row of the piece.
            finds = finds - 1 if len(refused) or finds == 0 else 0
            yield from self._decoded(reader, payloads, _others(rows, refused), check, finds)
        # ptars refuses rows that Protobuf accepts (they are rare). Rows of the last failing half are in no
        # piece.
        elif len(rows) > _BISECT_ROWS:
            for half in np.array_split(rows, 2):
                yield from self._decoded(reader, payloads, half, check, finds)

    def _stumbling(self, reader: Reader, payloads: pa.BinaryArray, rows: Rows) -> Rows:
        """A few neighbours among the rows of a failing piece, one of which makes it fail."""
        while len(rows) > _PARSED_ROWS:
            # If the first half passes, the row that fails is in the second.
            half = len(rows) // 2
            rows = rows[half:] if reader.takes(picked(payloads, rows[:half])) else rows[:half]
        return rows

    def _refused(self, payloads: pa.BinaryArray, rows: Rows) -> Rows:
        """Those of the rows that Protobuf's parser refuses."""
        items = picked(payloads, rows).to_pylist()
        return np.array(
            [row for row, item in zip(rows, items, strict=True) if self._judge.refusal(item) is not None],
            dtype=np.int64,
        )

    def _without_unknown(self, payloads: pa.BinaryArray, piece: Piece) -> Piece:
        """The rows of the piece that Protobuf's parser accepts without unknown fields: only their encoding is
        not canonical.
        """
        items = picked(payloads, piece.rows).to_pylist()
        return _kept(
            piece, np.fromiter((self._judge.knows_all(item) for item in items), np.bool_, len(items))
        )

    def _learn(self, payloads: pa.BinaryArray, rows: Rows) -> bool:
        """Extend the learned reader by what a sample of the rows has; whether there was anything new."""
        sample = picked(payloads, rows[:: max(1, len(rows) // _SAMPLE_ROWS)][:_SAMPLE_ROWS])
        found: list[dict[tuple[Path, int], Extra]] = []
        size = 0
        for payload in sample.to_pylist():
            if size + len(payload) <= _SAMPLE_BYTES:
                size += len(payload)
                found.append(self._scanner.unknown_fields(payload) or {})
        # `learned` returns the same object if there is nothing new, which ends the rounds.
        extension: Extension = learned(self._learned.extension, found)
        if extension is self._learned.extension:
            return False
        try:
            self._learned = Reader(self._tree, self._message_type, extension, self._judge.refusal)
        except pa.ArrowInvalid:
            # A list in the deepest message is one level more than Arrow supports. The complete engine decodes
            # these rows.
            return False
        return True


class _Habit:
    """What the rows of recent batches had in common, so that the next batch starts with it."""

    def __init__(self) -> None:
        self.extended = False
        """Batches are decoded with the learned extension."""
        self.checked = False
        """Batches are checked for exact rows at once: most of their rows are read whole, but columns do not
        hold them completely."""
        self.cut = False
        """Batches are decoded in pieces: one had a record that fails."""
        self._rows = self._batches = 0

    def next_batch(self, rows: int) -> None:
        """A batch of so many rows is about to be decoded."""
        self._rows = rows
        self._batches += 1
        # Producers change. Without an end, one unusual batch would slow down all later ones.
        if self._batches > _FORGET_BATCHES:
            self.extended = self.checked = self.cut = False
            self._batches = 0

    def needed(self, rows: int, extension: bool) -> None:
        """So many rows of the batch were found exact afterwards, with or without an extension."""
        # Rare rows do not justify a slower path for all.
        if rows == 0 or rows * _SHARE < self._rows:
            return
        if extension and not self.extended:
            self.extended = True
        else:
            self.checked = True
        # The habit was needed, so it lasts for another _FORGET_BATCHES batches.
        self._batches = 0


def _few(payloads: Array) -> bool:
    return len(payloads) < _FEW_ROWS and (pc.sum(pc.binary_length(payloads)).as_py() or 0) < _FEW_BYTES


def _others(rows: Rows, *without: Rows) -> Rows:
    """The rows (ascending) that are in none of the others, which are among them."""
    if not any(len(one) for one in without):
        return rows
    keep = np.ones(len(rows), np.bool_)
    for one in without:
        # Both are ascending, so a search finds the place of each row.
        keep[np.searchsorted(rows, one)] = False
    return rows[keep]


def _divided(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """The exact rows of checked pieces, and the others."""
    exact: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        assert piece.exact is not None
        if piece.exact.all():
            exact.append(piece)
        elif not piece.exact.any():
            rest.append(piece)
        else:
            exact.append(_kept(piece, piece.exact))
            rest.append(_kept(piece, ~piece.exact))
    return exact, rest


def _kept(piece: Piece, keep: Bools) -> Piece:
    return Piece(
        piece.rows[keep],
        piece.columns.filter(arrow.array(keep)),
        None if piece.exact is None else piece.exact[keep],
    )


def _placed(piece: Piece, rows: Rows) -> Piece:
    """A piece of a selection of rows as a piece of all of them."""
    return Piece(rows[piece.rows], piece.columns, piece.exact)


def _has_opaque(tree: MessageTree) -> bool:
    """Whether the two libraries read anything in the tree differently: messages as bytes (which Protobuf
    merges), and groups.
    """
    return any(
        one.delimited
        or one.json is not None
        or one.kind is Kind.ENCODED
        or (one.message is not None and _has_opaque(one.message))
        for one in tree.fields
    )
