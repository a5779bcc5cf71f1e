"""Converts records to columns and back, byte for byte.

`rebuild(*encode_columns(keys, values))` gives the same keys and values, byte for byte, null for null.
`value.__raw__` is null only if the other columns were encoded again, by the code of `rebuild`, and were equal
to the original. A bad record never raises and never affects its neighbours.

A payload that cannot be decoded has `__err__` and `__raw__`, and everything else is null, including its
envelope's `__prefix__`. `__prefix__` and `__unrecognized__` are filled whether or not `__raw__` is kept.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from archiver.runtime.errors import Corrupted
from archiver.runtime.text import counted
from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.columns import Json
from archiver.schema.envelope import opened
from archiver.schema.evolution.state import SourceSchema, TopicSchema, arrow_schema, column_tree
from archiver.schema.protobuf.decoded_size import Counts, portions, refusal_of
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from archiver.schema.protobuf.values import Bools
from archiver.schema.side_reader import EngineName, SideReader, side_reader

_EXTRA = (RAW, PREFIX, ERR)

READ_COLUMNS: tuple[str, ...] = (f"key.{RAW}", "value")
"""The columns that `rebuild` needs, as paths for pyarrow.parquet.ParquetFile.read. (The dataset reader has
another syntax.)"""

Column: TypeAlias = "Array | pa.ChunkedArray[Any]"


class RecordCodec:
    """Encodes and rebuilds the records of one topic under one schema version. Not thread-safe.

    The caller limits batches: at most 2 GiB of keys or values in a call (64 MiB are enough), in the parts
    that `portions` returns.
    """

    def __init__(self, schema: TopicSchema, engine: EngineName = "ptars") -> None:
        columns = arrow_schema(schema)
        structs = {one["name"]: one["type"] for one in schema.schema()["fields"]}
        self._key = _Side("key", columns, schema.key, structs["key"], engine)
        self._value = _Side("value", columns, schema.value, structs["value"], engine)

    def portions(self, keys: Column, values: Column) -> list[tuple[int, int]]:
        """[start, end) of the parts in which to encode these records, so that the columns of each are
        bounded; mostly one.
        """
        bounds = [self._key.bounds(_binary(keys)), self._value.bounds(_binary(values))]
        return portions(len(values), bounds)

    def encode_columns(self, keys: Column, values: Column) -> tuple[pa.StructArray, pa.StructArray]:
        """The `key` and `value` columns of records, of exactly the types in the topic's Arrow schema.

        `keys` and `values` are binary arrays of one length; null is a null key or a tombstone.
        """
        return self._key.encode(_binary(keys), keep_all=True), self._value.encode(
            _binary(values), keep_all=False
        )

    def rebuild(self, keys: Column, values: Column) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The original keys and values from the `key` and `value` columns, as read from an archive.

        Of the key only `__raw__` need be there. Raises Corrupted if columns are missing or hold what this
        version never wrote.
        """
        return self._key.rebuild(_one(keys)), self._value.rebuild(_one(values))


class _Side:
    """The key or the value."""

    def __init__(
        self, name: str, columns: pa.Schema, source: SourceSchema | None, struct: Json, engine: EngineName
    ) -> None:
        self._name = name
        self._type: pa.StructType = columns.field(name).type
        tree = None if source is None else column_tree(source, struct)
        self._reader: SideReader | None = None
        if source is not None and tree is not None:
            message = pa.struct([field for field in self._type if field.name not in _EXTRA])
            self._reader = side_reader(source.source(), tree, message, engine)
        self._message = "" if source is None else source.message
        self._envelope = None if source is None else source.envelope

    def bounds(self, payloads: Array) -> Counts | None:
        return None if self._reader is None else self._reader.bounds(payloads)

    def encode(self, payloads: Array, keep_all: bool) -> Array:
        nulls = payloads.is_null() if payloads.null_count else None
        if self._reader is None:
            return arrow.StructArray.from_arrays([payloads], fields=list(self._type), mask=nulls)
        # Engines accept no nulls. The mask hides the empty messages that stand in for them.
        dense = payloads if nulls is None else pc.fill_null(payloads, b"")
        messages, prefix, bad = dense, arrow.nulls(len(dense), pa.binary()), {}
        if self._envelope is not None:
            found = opened(dense, self._envelope)
            messages, prefix = found.messages, found.prefixes
            bad = {row: f"cannot be decoded as {self._message}: {why}" for row, why in found.errors.items()}
        # Emptied before decoding, because a small payload may become millions of values.
        if large := self._reader.beyond(messages, prefix):
            bad.update(dict.fromkeys(large, refusal_of(self._message)))
            messages = emptied(messages, large)
        columns, whole, errors = self._reader.decode_exactly(messages, prefix)
        # These rows were decoded as empty messages, without an error of their own.
        errors = {**errors, **bad}
        if nulls is not None and errors:
            # The empty message that stands in for a null may be an error, which is none of the record.
            errors = {row: why for row, why in errors.items() if not nulls[row].as_py()}
        # flatten() applies the nulls of undecodable rows to every field.
        fields = columns.flatten()
        texts = arrow.nulls(len(dense), pa.string())
        if errors:
            wrong = np.zeros(len(dense), np.bool_)
            wrong[list(errors)] = True
            # A record that cannot be decoded always keeps its bytes.
            whole &= ~wrong
            mask = arrow.array(wrong)
            texts = pc.replace_with_mask(
                texts, mask, arrow.array([errors[row] for row in sorted(errors)], pa.string())
            )
            prefix = pc.if_else(mask, arrow.scalar(None, pa.binary()), prefix)
            # The empty messages of these rows have columns, which must be null.
            if bad:
                fields = _struct(fields, columns.type, mask).flatten()
        # No decoder is trusted: a value that its columns do not encode to keeps its bytes.
        raw = payloads if keep_all else _without(payloads, whole)
        return arrow.StructArray.from_arrays(
            [raw, prefix, texts, *fields], fields=list(self._type), mask=nulls
        )

    def rebuild(self, column: Array) -> Array:
        names = [column.type.field(i).name for i in range(column.type.num_fields)]
        if RAW not in names:
            raise Corrupted(
                f"the {self._name} column has no {RAW}; read the columns {', '.join(READ_COLUMNS)}"
            )
        raw = _binary(pc.struct_field(column, [RAW]))
        # A null column is a null key or a tombstone, and needs no rebuilding.
        missing = pc.and_(column.is_valid(), raw.is_null())
        count = pc.sum(missing).as_py() or 0
        if count == 0:
            return raw
        if self._reader is None:
            raise Corrupted(
                f"{counted(count, 'record has', 'records have')} a {self._name} without {RAW} and "
                "without a schema; restore the file"
            )
        rows = column if count == len(column) else column.filter(missing)
        return _scattered(raw, missing, self._from_fields(rows))

    def _from_fields(self, rows: Array) -> Array:
        """Payloads of rows without `__raw__`: prefix and message."""
        assert self._reader is not None
        columns = _message_columns(rows, self._reader.message_type, self._name)
        prefix = (
            _binary(rows.field(PREFIX))
            if rows.type.get_field_index(PREFIX) >= 0
            else arrow.nulls(len(rows), pa.binary())
        )
        try:
            payloads = self._reader.encode(columns, prefix)
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            raise Corrupted(
                f"the {self._name} column holds what the archiver never wrote: {error}; restore the file"
            ) from error
        if prefix.null_count == len(prefix):
            return payloads
        return pc.binary_join_element_wise(pc.fill_null(prefix, b""), payloads, b"")


def emptied(messages: Array, rows: list[int]) -> Array:
    """The messages, with empty bytes in these rows."""
    mask = np.zeros(len(messages), np.bool_)
    mask[rows] = True
    return pc.if_else(arrow.array(mask), arrow.scalar(b"", pa.binary()), messages)


def _struct(fields: list[Array], kind: pa.StructType, nulls: Array) -> Array:
    return arrow.StructArray.from_arrays(fields, fields=list(kind), mask=nulls)


def _without(payloads: Array, rows: Bools) -> Array:
    """The payloads, null in these rows."""
    if rows.all():
        return arrow.nulls(len(payloads), pa.binary())
    return (
        pc.if_else(arrow.array(rows), arrow.scalar(None, pa.binary()), payloads) if rows.any() else payloads
    )


def _scattered(base: Array, places: Array, values: Array) -> Array:
    """`base` with `values` at the places, in order."""
    if len(values) == len(base):
        return values
    return pc.replace_with_mask(base, places, values)


def _message_columns(rows: Array, message: pa.StructType, name: str) -> Array:
    """The message's fields of a column as a struct of the engine's type; other columns are omitted, and types
    are converted.
    """
    children = []
    for field in message:
        index = rows.type.get_field_index(field.name)
        if index < 0:
            raise Corrupted(
                f"the {name} column has no field {field.name}; read the columns {', '.join(READ_COLUMNS)}"
            )
        child = rows.field(index)
        try:
            # A reader may return another Arrow type for the same column, for example a large one.
            children.append(child if child.type == field.type else child.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise Corrupted(
                f"field {field.name} of the {name} column is {child.type}, not {field.type}; restore the file"
            ) from error
    return arrow.StructArray.from_arrays(children, fields=list(message))


def _one(column: Column) -> Array:
    """A column as one array."""
    # Engines work on one array; a column of a file may have several chunks.
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _binary(column: Column) -> Array:
    """A binary column as one array of plain binary."""
    array = _one(column)
    return array if array.type == pa.binary() else array.cast(pa.binary())
