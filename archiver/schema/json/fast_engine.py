"""The fast engine for JSON: batches by Arrow's reader, doubtful records by the complete engine.

Nothing of the reader is trusted. A row counts only if its columns encode to its bytes again, which
`side_reader.decode_exactly` compares, or to its bytes without white space (`revise`). The reader takes a
piece of the batch as documents one behind the other, and refuses it as a whole: then the piece is divided, up
to a number of attempts. A record of two documents, or of none, makes the count of a piece wrong.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.json.complete_engine import JsonEngine
from archiver.schema.json.model import Kind, Node, Schema
from archiver.schema.json.moments import read_dates, read_moments
from archiver.schema.json.size import JsonMeter
from archiver.schema.json.spacing import without_spaces
from archiver.schema.protobuf.decoded_size import BATCH_VALUES_MAX, VALUES_MAX, Counts, data_of, lengths_of
from archiver.schema.protobuf.engine import Decoded
from archiver.schema.protobuf.tree import UNRECOGNIZED
from archiver.schema.protobuf.values import Bools
from archiver.schema.splice import Rows, picked, spliced

FEW_ROWS: Final = 8
"""So few rows go to the complete engine, which needs no set-up."""
PIECE_ROWS: Final = 4096
PIECE_BYTES: Final = 4 * 2**20
ATTEMPTS_MAX: Final = 40
"""Reads of one piece; after them its undecided rows go to the complete engine."""
_ROW: Final = re.compile(r"in row ([0-9]{1,9})$")


class FastJsonEngine:
    """Decodes and encodes documents of one schema. Not thread-safe."""

    def __init__(self, schema: Schema, message_type: pa.StructType) -> None:
        self._node = schema.node
        self._type = message_type
        self._complete = JsonEngine(schema, message_type)
        self._meter = JsonMeter(schema)
        self._options: Any = None
        # Arrow's reader has neither maps nor text of a value's own.
        if schema.node.kind is Kind.OBJECT and schema.node.fields and _readable(schema.node):
            read = _read_type(schema.node, message_type)
            self._options = arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(read)), unexpected_field_behavior="ignore"
            )

    @property
    def message_type(self) -> pa.StructType:
        """As in `Engine`."""
        return self._type

    def decode(self, payloads: Array) -> Decoded:
        """As in `Engine`. Columns of rows that are not `settled` are right only if they encode to the row."""
        if self._options is None or len(payloads) <= FEW_ROWS:
            return self._complete.decode(payloads)
        doubtful, pieces = self._prepared(payloads)
        parts: list[Array] = []
        for rows in pieces:
            parts += self._read_piece(payloads, rows, doubtful)
        return self._with_others(payloads, doubtful, parts)

    def revise(self, payloads: Array) -> Decoded:
        """As in `Engine`. What differs from its columns by white space alone is read by Arrow, all else by
        the complete engine.
        """
        if self._options is None or len(payloads) <= FEW_ROWS:
            return self._complete.decode(payloads)
        doubtful, pieces = self._prepared(payloads)
        parts: list[Array] = []
        for rows in pieces:
            found = self._read_piece(payloads, rows, doubtful)
            if not found:
                continue
            columns, read = arrow.concat_arrays(found), rows[~doubtful[rows]]
            texts, certain = without_spaces(picked(payloads, read))
            same = certain & pc.equal(self.encode(columns), texts).to_numpy(zero_copy_only=False)
            doubtful[read[~same]] = True
            parts.append(columns if same.all() else columns.filter(arrow.array(same)))
        return self._with_others(payloads, doubtful, parts)

    def _prepared(self, payloads: Array) -> tuple[Any, list[Rows]]:
        """The doubtful rows, and the others in pieces."""
        doubtful = _doubtful(payloads)
        values = self._meter.bounds_of_reads(payloads)
        if values is not None:
            doubtful |= values > VALUES_MAX
        return doubtful, _pieces(payloads, np.flatnonzero(~doubtful), values)

    def _with_others(self, payloads: Array, doubtful: Bools, parts: list[Array]) -> Decoded:
        """The columns that were read, and those of doubtful rows by the complete engine."""
        odd, even = np.flatnonzero(doubtful), np.flatnonzero(~doubtful)
        if not len(odd):
            return Decoded(arrow.concat_arrays(parts), {}, doubtful)
        found = self._complete.decode(picked(payloads, odd))
        errors = {int(odd[row]): why for row, why in found.errors.items()}
        if not len(even):
            return Decoded(found.columns, errors)
        columns = spliced([(even, arrow.concat_arrays(parts)), (odd, found.columns)])
        return Decoded(columns, errors, doubtful)

    def encode(self, columns: Array) -> Array:
        """As in `Engine`."""
        return self._complete.encode(columns)

    def _read_piece(self, payloads: Array, rows: Rows, doubtful: Any) -> list[Array]:
        """The columns of the rows of a piece that can be read, in order; the others become doubtful."""
        found: list[Array] = []
        attempts = 0
        todo = [rows]
        while todo:
            part = todo.pop()
            if attempts >= ATTEMPTS_MAX:
                doubtful[part] = True
                continue
            attempts += 1
            columns, bad = self._read(picked(payloads, part))
            if columns is not None:
                found.append(columns)
            elif len(part) == 1:
                doubtful[part] = True
            elif bad is not None and 0 <= bad < len(part):
                doubtful[part[bad]] = True
                todo += [one for one in (part[bad + 1 :], part[:bad]) if len(one)]
            else:
                todo += [part[len(part) // 2 :], part[: len(part) // 2]]
        return found

    def _read(self, payloads: Array) -> tuple[Array | None, int | None]:
        """The columns of rows, or the place of the first that is refused, if the reader names it."""
        data = data_of(payloads)
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = arrow_json.read_json(
                arrow.BufferReader(arrow.py_buffer(data)), read_options=options, parse_options=self._options
            )
        except pa.ArrowInvalid as error:
            row = _ROW.search(str(error))
            return None, None if row is None else int(row[1])
        if len(table) != len(payloads):
            return None, None
        children = [_one(column) for column in table.columns]
        return _struct(self._node, children, self._type, None), None


def _one(column: Any) -> Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _doubtful(payloads: Array) -> Any:
    """The rows that must not be read with others: they are not UTF-8, or not one object from end to end."""
    framed = pc.and_(pc.starts_with(payloads, "{"), pc.ends_with(payloads, "}"))
    found = ~framed.to_numpy(zero_copy_only=False)
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                payload.decode()
            except UnicodeDecodeError:
                found[row] = True
    return found


def _pieces(payloads: Array, rows: Rows, values: Counts | None) -> list[Rows]:
    """The rows in pieces of bounded size. `values`: bounds of all rows; None if they need no division."""
    if not len(rows):
        return []
    limits = [(np.cumsum(lengths_of(payloads)[rows]), PIECE_BYTES)]
    if values is not None:
        limits.append((np.cumsum(values[rows]), BATCH_VALUES_MAX))
    found: list[Rows] = []
    start = 0
    while start < len(rows):
        end = start + PIECE_ROWS
        for sums, most in limits:
            before = int(sums[start - 1]) if start else 0
            end = min(end, max(start + 1, int(np.searchsorted(sums, before + most, side="right"))))
        found.append(rows[start:end])
        start = end
    return found


def _readable(node: Node) -> bool:
    if node.kind in (Kind.MAP, Kind.TEXT) or (node.kind is Kind.OBJECT and not node.fields):
        return False
    return all(_readable(one) for _, one in node.fields) and (node.item is None or _readable(node.item))


def _read_type(node: Node, kind: Any) -> Any:
    """The type as which Arrow reads a value; `kind` is the column's."""
    if node.kind is Kind.OBJECT:
        return pa.struct(
            [(name, _read_type(one, kind.field(place).type)) for place, (name, one) in enumerate(node.fields)]
        )
    if node.item is not None:
        return pa.list_(_read_type(node.item, kind.value_type))
    return pa.string() if node.kind in (Kind.DATE, Kind.DATE_TIME) else kind


def _struct(node: Node, children: list[Array], kind: Any, nulls: Array | None) -> Array:
    found = [
        _column(one, child, kind.field(place).type)
        for place, ((_, one), child) in enumerate(zip(node.fields, children, strict=True))
    ]
    for place in range(len(found), kind.num_fields):
        assert kind.field(place).name == UNRECOGNIZED
        found.append(arrow.nulls(len(children[0]), kind.field(place).type))
    return arrow.StructArray.from_arrays(found, fields=list(kind), mask=nulls)


def _column(node: Node, array: Array, kind: Any) -> Array:
    """A column as its table has it."""
    nulls = array.is_null() if array.null_count else None
    if node.kind is Kind.OBJECT:
        return _struct(node, [array.field(place) for place in range(len(node.fields))], kind, nulls)
    if node.item is not None:
        items = _column(node.item, array.values, kind.value_type)
        return arrow.ListArray.from_arrays(array.offsets, items, type=kind, mask=nulls)
    if node.kind is Kind.DATE:
        return read_dates(array)
    return read_moments(array, kind) if node.kind is Kind.DATE_TIME else array
