"""Messages as JSON for people: Protobuf in its own JSON mapping, Avro and JSON as their columns.

A record that cannot be decoded, or that has too many values (`archiver.schema.protobuf.decoded_size`), gives
the reason instead of a message. For display only; records are never rebuilt from this form.
"""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Protocol

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from archiver.schema.envelope import opened
from archiver.schema.evolution.state import arrow_schema, column_tree, decide
from archiver.schema.protobuf.decoded_size import Meter, refusal_of
from archiver.schema.protobuf.descriptors import Envelope, Source, source_tree
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, MessageTree
from archiver.schema.side_reader import side_reader

_ANY = "google.protobuf.Any"
ANY_BYTES_MAX = 2**20
"""The record names the type of an Any's content, so its decoded size has no other bound than the encoded
size."""


class Decoder:
    """Decodes the keys and values of one topic."""

    def __init__(self, key: Source | None, value: Source | None) -> None:
        """A side without a schema is not decoded."""
        self._key = None if key is None else _side(key)
        self._value = None if value is None else _side(value)

    def decode(self, key: bytes | None, value: bytes | None) -> dict[str, object]:
        """`{"key": …, "value": …}`: the message's JSON; null without a schema or a message, `{"error": …}` if
        it does not decode.
        """
        return {"key": _decoded(self._key, key), "value": _decoded(self._value, value)}


class _Decoder(Protocol):
    """Decodes keys or values."""

    def decoded(self, data: bytes) -> dict[str, object]:
        """The JSON, or why there is none."""
        ...


def _side(source: Source) -> _Decoder:
    return _ProtobufSide(source) if source.format == "protobuf" else _ColumnsSide(source)


class _ColumnsSide:
    """Avro and JSON records, as the columns of the newest schema."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # The types of columns of a topic without a past are those of the schema alone.
        schema = decide("decode", (), None, replace(source, columns=())).schema
        assert schema.value is not None, "the source is the value's"
        columns = [
            one for one in arrow_schema(schema).field("value").type if one.name not in (RAW, PREFIX, ERR)
        ]
        tree = column_tree(schema.value, schema.schema()["fields"][1]["type"])
        self._reader = side_reader(source, tree, pa.struct(columns), "protobuf")

    def decoded(self, data: bytes) -> dict[str, object]:
        """The JSON, or why there is none."""
        messages, prefixes = pa.array([data], pa.binary()), pa.nulls(1, pa.binary())
        if self._source.envelope is not None:
            found = opened(messages, self._source.envelope)
            if found.errors:
                return {"error": found.errors[0]}
            messages, prefixes = found.messages, found.prefixes
        if self._reader.beyond(messages, prefixes):
            return {"error": refusal_of(self._source.message)}
        columns, _, errors = self._reader.decode_exactly(messages, prefixes)
        if errors:
            return {"error": errors[0]}
        shown = _plain(columns[0].as_py())
        assert isinstance(shown, dict)
        return shown


def _plain(value: object) -> object:
    """A column's value in JSON: bytes in base64, as Protobuf's JSON has them; times in ISO 8601."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        # Arrow gives a map as pairs.
        if value and all(isinstance(one, tuple) for one in value):
            return {name: _plain(one) for name, one in value}
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal) else value


class _ProtobufSide:
    """The message of the keys or the values, in a pool of its own."""

    def __init__(self, source: Source) -> None:
        self._envelope = source.envelope
        # Not the default pool: two topics may have different messages of the same name.
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(source.descriptor_set).file:
            self._pool.Add(file)
        tree = source_tree(source)
        self._meter = Meter(tree)
        self._has_any = _has_any(tree)
        self._kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(source.message))

    def decoded(self, data: bytes) -> dict[str, object]:
        """The JSON, or why there is none."""
        if self._envelope is not None:
            data, why = _without_envelope(data, self._envelope)
            if why is not None:
                return {"error": why}
        # Before decoding, because the decoded form may be far larger than the bytes.
        if (why := self._meter.too_many(data)) is not None:
            return {"error": why}
        if self._has_any and len(data) > ANY_BYTES_MAX:
            return {
                "error": f"a message with google.protobuf.Any is shown up to {ANY_BYTES_MAX} bytes, this one "
                f"has {len(data)}"
            }
        try:
            found = self._kind.FromString(data)
            # Field names as in the schema, and not in Protobuf's camel case.
            return json_format.MessageToDict(
                found, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        # An Any of an unknown type is a TypeError.
        except (message.DecodeError, json_format.Error, ValueError, TypeError) as error:
            return {"error": str(error)}


def _without_envelope(data: bytes, envelope: Envelope) -> tuple[bytes, str | None]:
    """The message, or why the envelope is not one of this topic."""
    found = opened(pa.array([data], pa.binary()), envelope)
    return found.messages[0].as_py(), found.errors.get(0)


def _has_any(tree: MessageTree) -> bool:
    return tree.full_name == _ANY or any(
        one.message is not None and _has_any(one.message) for one in tree.fields
    )


def _decoded(side: _Decoder | None, data: bytes | None) -> object:
    return None if side is None or data is None else side.decoded(data)
