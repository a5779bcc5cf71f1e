"""Defines messages and values for `bench.schema`: flat ones of 40 and 8 columns, a three-level one,
a group, and JSON. The flat and the three-level ones exist in Avro and JSON too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass

from archiver.schema.avro.fast_engine import FastAvroEngine
from archiver.schema.avro.model import Schema, parse_schema
from archiver.schema.avro.source import avro_source
from archiver.schema.evolution.state import arrow_schema, decide
from archiver.schema.protobuf.descriptors import Source

_F = descriptor_pb2.FieldDescriptorProto
_STAMP, _STRUCT = ".google.protobuf.Timestamp", ".google.protobuf.Struct"
_FLAT = (
    *(("number", _F.TYPE_INT64),) * 10,
    *(("count", _F.TYPE_INT32),) * 6,
    *(("text", _F.TYPE_STRING),) * 10,
    *(("amount", _F.TYPE_DOUBLE),) * 5,
    *(("flag", _F.TYPE_BOOL),) * 4,
    *(("at", _F.TYPE_MESSAGE),) * 2,
    *(("state", _F.TYPE_ENUM),) * 2,
    ("id", _F.TYPE_UINT64),
)
"""40 columns: name and type."""

STATES = ("STATE_UNKNOWN", "STATE_NEW", "STATE_PAID", "STATE_SHIPPED")

FLAT_TEXT = frozenset({"flat.text_17", "flat.text_18", "flat.text_19"})
"""Fields in the middle."""
FLAT_LAST = frozenset({"flat.state_39", "flat.id_40"})
"""The last fields, as a newer producer adds them."""
NESTED_LAST = frozenset({"product.price", "address.zip", "order.total"})
"""The last fields of every level except the lines."""


def file_of(without: Collection[str] = ()) -> descriptor_pb2.FileDescriptorProto:
    """Return all messages; `without` are fields (message.field) that the archiver's schema omits."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    for number, name in enumerate(STATES):
        state.value.add(name=name, number=number)
    flat = [
        (f"{name}_{number}", kind, _type_name(kind), False) for number, (name, kind) in enumerate(_FLAT, 1)
    ]
    text, number, amount = _F.TYPE_STRING, _F.TYPE_INT64, _F.TYPE_DOUBLE
    messages: dict[str, list[tuple[str, Any, str | None, bool]]] = {
        "flat": flat,
        "narrow": [
            ("id", number, None, False),
            ("text", text, None, False),
            ("state", _F.TYPE_ENUM, ".bench.State", False),
            ("at", _F.TYPE_MESSAGE, _STAMP, False),
            ("amount", amount, None, False),
            ("count", _F.TYPE_INT32, None, False),
            ("flag", _F.TYPE_BOOL, None, False),
            ("name", text, None, False),
        ],
        "product": [
            ("name", text, None, False),
            ("maker", text, None, False),
            ("price", amount, None, False),
        ],
        "address": [("city", text, None, False), ("street", text, None, False), ("zip", text, None, False)],
        "customer": [("name", text, None, False), ("address", _F.TYPE_MESSAGE, ".bench.address", False)],
        "line": [
            ("product", _F.TYPE_MESSAGE, ".bench.product", False),
            ("count", _F.TYPE_INT32, None, False),
        ],
        "order": [
            ("id", number, None, False),
            ("customer", _F.TYPE_MESSAGE, ".bench.customer", False),
            ("lines", _F.TYPE_MESSAGE, ".bench.line", True),
            ("at", _F.TYPE_MESSAGE, _STAMP, False),
            ("total", amount, None, False),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for place, (field, kind, type_name, repeated) in enumerate(fields, 1):
            if f"{name}.{field}" not in without:
                label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
                message.field.add(name=field, number=place, type=kind, label=label, type_name=type_name)
    return file


def odd_file() -> descriptor_pb2.FileDescriptorProto:
    """Return `odd.Grouped` with a group and `odd.Jsonish` with a Struct."""
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", package="odd", syntax="proto2")
    file.dependency.append("google/protobuf/struct.proto")
    grouped = file.message_type.add(name="Grouped")
    grouped.nested_type.add(name="Part").field.add(
        name="text", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL
    )
    jsonish = file.message_type.add(name="Jsonish")
    for message in (grouped, jsonish):
        message.field.add(name="id", number=1, type=_F.TYPE_INT64, label=_F.LABEL_OPTIONAL)
    grouped.field.add(
        name="part", number=2, type=_F.TYPE_GROUP, label=_F.LABEL_OPTIONAL, type_name=".odd.Grouped.Part"
    )
    jsonish.field.add(
        name="details", number=2, type=_F.TYPE_MESSAGE, label=_F.LABEL_OPTIONAL, type_name=_STRUCT
    )
    return file


def descriptor_set(file: descriptor_pb2.FileDescriptorProto) -> bytes:
    """Return the file's descriptor with its imports."""
    return descriptor_pb2.FileDescriptorSet(file=[*_imports(), file]).SerializeToString()


def handler(message: str, nanoseconds: bool = False) -> Any:
    """Return the ptars handler of a message of `file_of`."""
    import ptars

    config = ptars.PtarsConfig(timestamp_unit="ns" if nanoseconds else "us")
    found = _linked(file_of(), message)
    return ptars.HandlerPool([found.file], config=config).get_for_message(found)


def make_values(message: str, count: int, seed: int, nanoseconds: bool = False) -> pa.Array[Any]:
    """Return serialized random messages of `file_of`."""
    plain = handler(message, nanoseconds)
    values: pa.Array[Any] = plain.record_batch_to_array(_batch(plain, count, seed)).cast(pa.binary())
    return values


def _batch(plain: Any, count: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    arrays = [_random(field.type, field.name, count, rng) for field in plain.schema()]
    return pa.RecordBatch.from_arrays(arrays, schema=plain.schema())


_AVRO_TYPES = {
    _F.TYPE_INT64: "long",
    _F.TYPE_INT32: "int",
    # Avro has no unsigned numbers.
    _F.TYPE_UINT64: "long",
    _F.TYPE_STRING: "string",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_BOOL: "boolean",
}


def avro_schema(message: str) -> Schema:
    """Return the Avro schema of a message of `file_of`: the same fields in the same order."""
    messages = {one.name: one for one in file_of().message_type}
    text = json.dumps(_avro_record(messages, message.removeprefix("bench."), set()))
    return parse_schema(text.encode(), message)


def _avro_record(
    messages: Mapping[str, descriptor_pb2.DescriptorProto], name: str, defined: set[str]
) -> dict[str, Any]:
    fields = []
    for one in messages[name].field:
        kind: Any = _AVRO_TYPES.get(one.type)
        if one.type_name == _STAMP:
            kind = {"type": "long", "logicalType": "timestamp-micros"}
        elif one.type == _F.TYPE_ENUM:
            kind = {"type": "enum", "name": "State", "symbols": STATES} if "State" not in defined else "State"
            defined.add("State")
        elif kind is None:
            kind = _avro_record(messages, one.type_name.removeprefix(".bench."), defined)
        if one.label == _F.LABEL_REPEATED:
            kind = {"type": "array", "items": kind}
        fields.append({"name": one.name, "type": kind})
    return {"type": "record", "name": name, "namespace": "bench", "fields": fields}


def make_avro(message: str, count: int, seed: int) -> pa.Array[Any]:
    """Return the values of `make_values` as Avro datums."""
    schema = avro_schema(message)
    kind = value_type(avro_source(schema, message))
    batch = _batch(handler(message), count, seed)
    columns: Any = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    values: pa.Array[Any] = FastAvroEngine(schema, schema, kind).encode(_as_avro(columns, kind))
    return values


def value_type(source: Source) -> pa.StructType:
    """Return the columns of a schema's record, without those that each record has."""
    found: Any = arrow_schema(decide("orders", (), None, source).schema).field("value").type
    return pa.struct([field for field in found if not field.name.startswith("__")])


def _as_avro(column: Any, kind: Any) -> Any:
    """Return a column of ptars with the types of Avro's columns."""
    if pa.types.is_struct(kind):
        children = [_as_avro(column.field(place), kind.field(place).type) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, _as_avro(column.values, kind.value_type), type=kind)
    if pa.types.is_string(kind) and pa.types.is_integer(column.type):
        return pa.array(STATES).take(column)
    return column.cast(kind)


_JSON_TYPES: dict[Any, dict[str, Any]] = {
    _F.TYPE_INT64: {"type": "integer"},
    _F.TYPE_INT32: {"type": "integer", "format": "int32"},
    _F.TYPE_UINT64: {"type": "integer"},
    _F.TYPE_STRING: {"type": "string"},
    _F.TYPE_DOUBLE: {"type": "number"},
    _F.TYPE_BOOL: {"type": "boolean"},
    _F.TYPE_ENUM: {"enum": STATES},
}


def json_schema(message: str) -> bytes:
    """Return the JSON Schema of a message of `file_of`: the same properties in the same order."""
    messages = {one.name: one for one in file_of().message_type}
    return json.dumps(_json_object(messages, message.removeprefix("bench."))).encode()


def _json_object(messages: Mapping[str, descriptor_pb2.DescriptorProto], name: str) -> dict[str, Any]:
    properties = {}
    for one in messages[name].field:
        if one.type_name == _STAMP:
            kind: dict[str, Any] = {"type": "string", "format": "date-time"}
        elif one.type in _JSON_TYPES:
            kind = _JSON_TYPES[one.type]
        else:
            kind = _json_object(messages, one.type_name.removeprefix(".bench."))
        properties[one.name] = {"type": "array", "items": kind} if one.label == _F.LABEL_REPEATED else kind
    return {"type": "object", "properties": properties}


def make_json(message: str, count: int, seed: int) -> pa.Array[Any]:
    """Return the values of `make_values` as compact JSON, by the standard library."""
    rows = _batch(handler(message), count, seed).to_pylist()
    texts = [json.dumps(_as_json(row), separators=(",", ":")) for row in rows]
    return pa.array([text.encode() for text in texts], pa.binary())


def _as_json(value: Any, name: str = "") -> Any:
    """Return a value as a producer in JavaScript or Java writes it."""
    if isinstance(value, dict):
        return {key: _as_json(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, datetime):
        digits = f".{value.microsecond:06}".removesuffix("000") if value.microsecond else ""
        return f"{value:%Y-%m-%dT%H:%M:%S}{digits}Z"
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return STATES[value] if name.startswith("state") else value


def make_odd(message: str, count: int, seed: int) -> pa.Array[Any]:
    """Return serialized messages of `odd_file`; a thousand different ones repeat."""
    rng = random.Random(seed)
    make: Any = GetMessageClass(_linked(odd_file(), message))
    values = []
    for _ in range(1000):
        one = make(id=rng.randrange(1 << 40))
        if message == "odd.Grouped":
            one.part.text = f"part-{rng.randrange(100_000)}"
        else:
            one.details.fields["colour"].string_value = f"colour-{rng.randrange(100)}"
        values.append(one.SerializeToString())
    return pa.array([values[place % len(values)] for place in range(count)], pa.binary())


def _type_name(kind: Any) -> str | None:
    return {_F.TYPE_MESSAGE: _STAMP, _F.TYPE_ENUM: ".bench.State"}.get(kind)


def _imports() -> list[descriptor_pb2.FileDescriptorProto]:
    result = []
    for module in (timestamp_pb2, struct_pb2):
        one = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(one)
        result.append(one)
    return result


def _linked(file: descriptor_pb2.FileDescriptorProto, message: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for one in (*_imports(), file):
        pool.Add(one)
    return pool.FindMessageTypeByName(message)


def _random(kind: Any, name: str, count: int, rng: np.random.Generator) -> pa.Array[Any]:
    """Return a random column of that type."""
    found: Any
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        found = pa.StructArray.from_arrays(
            [_random(field.type, field.name, count, rng) for field in fields], fields=fields
        )
    elif pa.types.is_list(kind):
        offsets: Any = np.concatenate(([0], np.cumsum(rng.integers(1, 4, count)))).astype(np.int32)
        found = pa.ListArray.from_arrays(
            offsets, _random(kind.value_type, name, int(offsets[-1]), rng), type=kind
        )
    elif pa.types.is_string(kind):
        chosen: Any = pa.array(rng.integers(0, 5000, count))
        found = pa.array([f"{name}-{number:05}" for number in range(5000)]).take(chosen)
    elif pa.types.is_floating(kind):
        found = pa.array(np.round(rng.uniform(1, 900, count), 2))
    elif pa.types.is_boolean(kind):
        found = pa.array(rng.random(count) < 0.5)
    elif pa.types.is_timestamp(kind):
        unit = 1_000_000_000 if kind.unit == "ns" else 1_000_000
        found = pa.array(1_700_000_000 * unit + rng.integers(0, 1000 * unit, count))
    else:
        found = pa.array(rng.integers(0, 4 if name.startswith("state") else 1 << 20, count))
    result: pa.Array[Any] = found.cast(kind)
    return result
