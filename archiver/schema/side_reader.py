"""Reads and writes the payloads of a topic's keys or values: one engine for Protobuf and JSON, for Avro one
for each schema id of a registry.

`SideReader` is what the record codec and the check at intake use. It is given messages without envelopes, and
the envelopes as they were, since an Avro message means nothing without its schema id.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, pc
from archiver.schema.avro.complete_engine import AvroEngine
from archiver.schema.avro.fast_engine import FastAvroEngine
from archiver.schema.avro.model import Schema
from archiver.schema.avro.pairing import pair_schemas
from archiver.schema.avro.size import AvroMeter
from archiver.schema.avro.source import avro_schemas
from archiver.schema.json.complete_engine import JsonEngine
from archiver.schema.json.fast_engine import FastJsonEngine
from archiver.schema.json.size import JsonMeter
from archiver.schema.json.source import json_schema
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.decoded_size import VALUES_MAX, Counts, Meter
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.engine import Engine
from archiver.schema.protobuf.tree import MessageTree
from archiver.schema.protobuf.values import Bools
from archiver.schema.splice import Rows, blocks, picked, replaced, spliced

EngineName = Literal["ptars", "protobuf"]
"""The fast engine, or the complete one."""


class SideReader(Protocol):
    """Decodes and encodes the messages of a key or a value. Not thread-safe."""

    @property
    def message_type(self) -> pa.StructType:
        """The columns of the message."""
        ...

    def beyond(self, messages: Array, prefixes: Array, limit: int | None = None) -> list[int]:
        """The rows that have too many values to be decoded."""
        ...

    def bounds(self, payloads: Array) -> Counts | None:
        """As `Meter.bounds`; of payloads with their envelopes."""
        ...

    def decode_exactly(self, messages: Array, prefixes: Array) -> tuple[Array, Bools, dict[int, str]]:
        """Columns of messages, a mask of those that encode to the message again, and the errors of the
        others.
        """
        ...

    def errors(self, messages: Array, prefixes: Array) -> dict[int, str]:
        """Why rows cannot be decoded."""
        ...

    def encode(self, columns: Array, prefixes: Array) -> Array:
        """The messages of rows. Raises pyarrow.ArrowInvalid for columns that no decode has made."""
        ...


def side_reader(source: Source, tree: MessageTree, columns: pa.StructType, engine: EngineName) -> SideReader:
    """The reader of a source; `tree` has the names of `columns`."""
    if source.format == "avro":
        return _AvroReader(source, columns, engine)
    if source.format == "json":
        schema = json_schema(source)
        kind = FastJsonEngine if engine == "ptars" else JsonEngine
        return _OneSchemaReader(kind(schema, columns), JsonMeter(schema), trusted=False)
    return _OneSchemaReader(_engine(tree, columns, engine), Meter(tree), trusted=True)


class _Meter(Protocol):
    """Bounds the size of messages after decoding."""

    def beyond(self, payloads: Array, limit: int = ...) -> list[int]:
        """The rows that have more values."""
        ...

    def bounds(self, payloads: Array) -> Counts | None:
        """For each row a number that its values do not exceed; None if there is no need to divide them."""
        ...


class _OneSchemaReader:
    """The newest schema reads all records, and their envelopes are kept."""

    def __init__(self, engine: Engine, meter: _Meter, *, trusted: bool) -> None:
        """`trusted`: whether `Engine.decode` alone finds every error."""
        self._engine = engine
        self._meter = meter
        self._trusted = trusted

    @property
    def message_type(self) -> pa.StructType:
        return self._engine.message_type

    def beyond(self, messages: Array, prefixes: Array, limit: int | None = None) -> list[int]:  # noqa: ARG002 - no id is needed
        return self._meter.beyond(messages) if limit is None else self._meter.beyond(messages, limit)

    def bounds(self, payloads: Array) -> Counts | None:
        return self._meter.bounds(payloads)

    def decode_exactly(self, messages: Array, prefixes: Array) -> tuple[Array, Bools, dict[int, str]]:  # noqa: ARG002 - no id is needed
        return decode_exactly(self._engine, messages)

    def errors(self, messages: Array, prefixes: Array) -> dict[int, str]:  # noqa: ARG002 - no id is needed
        if self._trusted:
            return dict(self._engine.decode(messages).errors)
        return decode_exactly(self._engine, messages)[2]

    def encode(self, columns: Array, prefixes: Array) -> Array:  # noqa: ARG002 - no id is needed
        return self._engine.encode(columns)


def _engine(tree: MessageTree, message: pa.StructType, engine: EngineName) -> Engine:
    if engine == "protobuf":
        return ProtobufEngine(tree, message)
    # Imported only here: the complete engine works where ptars cannot be installed.
    from archiver.schema.protobuf.ptars_engine import PtarsEngine

    return PtarsEngine(tree, message)


class _AvroReader:
    """Each record is read by the schema that its envelope names; without envelopes by the only one."""

    def __init__(self, source: Source, columns: pa.StructType, engine: EngineName) -> None:
        schemas = avro_schemas(source, "recorded schema")
        self._schemas = schemas
        # None: the payloads have no envelope.
        self._ids: set[int | None] = {None} if source.envelope is None else set(schemas.texts)
        self._columns = columns
        self._fast = engine == "ptars"
        # Made when the first record of an id comes: a subject may have a thousand versions.
        self._engines: dict[int | None, Engine] = {}
        self._meters: dict[int | None, AvroMeter] = {}

    @property
    def message_type(self) -> pa.StructType:
        return self._columns

    def beyond(self, messages: Array, prefixes: Array, limit: int | None = None) -> list[int]:
        found: list[int] = []
        for number, rows in self._groups(prefixes):
            found += rows[self._meter(number).beyond(picked(messages, rows), limit or VALUES_MAX)].tolist()
        return sorted(found)

    def bounds(self, payloads: Array) -> Counts | None:
        ids: list[int | None] = [None]
        if None not in self._ids:
            heads = pc.binary_slice(payloads, 1, 5).unique().drop_null().to_pylist()
            ids = [int.from_bytes(one, "big") for one in heads]
        meters = [self._meter(number) for number in ids if number in self._ids]
        found = [one for meter in meters if (one := meter.bounds(payloads)) is not None]
        # The widest of the schemas counts for every row.
        return np.max(found, axis=0) if found else None

    def decode_exactly(self, messages: Array, prefixes: Array) -> tuple[Array, Bools, dict[int, str]]:
        whole = np.zeros(len(messages), np.bool_)
        errors: dict[int, str] = {}
        parts: list[tuple[Rows, Array]] = []
        for number, rows in self._groups(prefixes):
            columns, exact, wrong = decode_exactly(self._engine(number), picked(messages, rows))
            whole[rows] = exact
            errors.update({int(rows[row]): why for row, why in wrong.items()})
            parts.append((rows, columns))
        return spliced(parts), whole, errors

    def errors(self, messages: Array, prefixes: Array) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, rows in self._groups(prefixes):
            wrong = self._engine(number).decode(picked(messages, rows)).errors
            found.update({int(rows[row]): why for row, why in wrong.items()})
        return found

    def encode(self, columns: Array, prefixes: Array) -> Array:
        parts: list[tuple[Rows, Array]] = []
        for number, rows in self._groups(prefixes):
            if number not in self._ids:
                raise pa.ArrowInvalid(
                    f"a row has the schema id {number}, which its schema version does not have"
                )
            parts.append((rows, self._engine(number).encode(picked(columns, rows))))
        return spliced(parts)

    def _groups(self, prefixes: Array) -> list[tuple[int | None, Rows]]:
        """The rows of each schema id, ascending. Rows without an envelope go with the newest schema."""
        every = np.arange(len(prefixes), dtype=np.int64)
        if None in self._ids or not len(prefixes):
            return [(next(iter(self._ids), None), every)]
        newest = max(number for number in self._ids if number is not None)
        codes = prefixes.dictionary_encode()
        ids = [int.from_bytes(one[1:5], "big") for one in codes.dictionary.to_pylist()]
        # A row without an envelope is an empty message here, and its error is known.
        if not ids:
            return [(newest, every)]
        numbers = np.array([*ids, newest], np.int64)[pc.fill_null(codes.indices, len(ids)).to_numpy()]
        return [(int(number), np.flatnonzero(numbers == number)) for number in np.unique(numbers)]

    def _engine(self, number: int | None) -> Engine:
        if number not in self._engines:
            kind = FastAvroEngine if self._fast else AvroEngine
            self._engines[number] = kind(self._writer(number), self._schemas.newest, self._columns)
        return self._engines[number]

    def _meter(self, number: int | None) -> AvroMeter:
        if number not in self._meters:
            writer = self._writer(number)
            plan = pair_schemas(writer, self._schemas.newest, self._columns)
            self._meters[number] = AvroMeter(writer, plan)
        return self._meters[number]

    def _writer(self, number: int | None) -> Schema:
        return self._schemas.newest if number is None else self._schemas.writer(number)


def decode_exactly(engine: Engine, messages: Array) -> tuple[Array, Bools, dict[int, str]]:
    """Columns of messages, a mask of those that encode to the message again, and the errors of the others."""
    decoded = engine.decode(messages)
    columns, errors = decoded.columns, dict(decoded.errors)
    whole = _gives_back(engine, columns, messages)
    if decoded.settled is None:
        return columns, whole, errors
    # Settled rows come out of `revise` unchanged, so they keep their bytes without it.
    odd = np.flatnonzero(~whole & ~decoded.settled)
    if len(odd) == 0:
        return columns, whole, errors
    odd_messages = picked(messages, odd)
    revised = engine.revise(odd_messages)
    # The same columns encode to the same bytes, so no row has become exact.
    if len(odd) == len(messages) and revised.columns.equals(columns):
        return columns, whole, errors
    columns = replaced(columns, odd, revised.columns)
    whole[odd] = _gives_back(engine, revised.columns, odd_messages)
    errors.update({int(odd[row]): why for row, why in revised.errors.items()})
    return columns, whole, errors


def _gives_back(engine: Engine, columns: Array, messages: Array) -> Bools:
    """Whether each row encodes to its message again; False for rows that could not be decoded."""
    try:
        return _compared(engine, columns, messages)
    except pa.ArrowCapacityError:
        # The meters keep what is written far below 2 GiB. If one were wrong, records would keep their bytes.
        return np.zeros(len(messages), np.bool_)


def _compared(engine: Engine, columns: Array, messages: Array) -> Bools:
    if columns.null_count == 0:
        again = engine.encode(columns)
        # Nearly always every message matches. Comparing all bytes at once takes half the time of a comparison
        # row by row.
        return (
            np.ones(len(messages), np.bool_) if messages.equals(again) else _bools(pc.equal(messages, again))
        )
    # Engines cannot encode null rows, so only the others are compared.
    good = np.flatnonzero(_bools(columns.is_valid()))
    result = np.zeros(len(columns), np.bool_)
    for rows in blocks(good):
        result[rows] = _bools(pc.equal(picked(messages, rows), engine.encode(picked(columns, rows))))
    return result


def _bools(array: Array) -> Bools:
    """A numpy copy, because callers change it."""
    return np.array(array.to_numpy(zero_copy_only=False), np.bool_)
