"""Defines the nested order that the benches refine: lines, tags and a state, on average 130 bytes
with its key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

_F = descriptor_pb2.FieldDescriptorProto


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of an order with lines, tags and a state."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("STATE_UNKNOWN", "STATE_NEW", "STATE_PAID", "STATE_SHIPPED")):
        state.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    _field(line, "sku", 1, _F.TYPE_STRING)
    _field(line, "quantity", 2, _F.TYPE_INT32)
    _field(line, "price_cents", 3, _F.TYPE_INT64)
    order = file.message_type.add(name="Order")
    _field(order, "id", 1, _F.TYPE_INT64)
    _field(order, "customer", 2, _F.TYPE_STRING)
    _field(order, "state", 3, _F.TYPE_ENUM, ".bench.State")
    _field(order, "created", 4, _F.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    _field(order, "lines", 5, _F.TYPE_MESSAGE, ".bench.Line", repeated=True)
    entry = order.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    _field(entry, "key", 1, _F.TYPE_STRING)
    _field(entry, "value", 2, _F.TYPE_STRING)
    _field(order, "tags", 6, _F.TYPE_MESSAGE, ".bench.Order.TagsEntry", repeated=True)
    _field(order, "total", 7, _F.TYPE_DOUBLE)
    _field(order, "gift", 8, _F.TYPE_BOOL)
    return file


def _field(
    message: Any, name: str, number: int, kind: Any, type_name: str | None = None, repeated: bool = False
) -> None:
    label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)


def descriptor_set() -> bytes:
    """Return the order's descriptor with its imports."""
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    return descriptor_pb2.FileDescriptorSet(file=[imported, order_file()]).SerializeToString()


def handler(**options: Any) -> Any:
    """Return the ptars handler of the order; `options` are those of `PtarsConfig`."""
    import ptars

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    message = pool.FindMessageTypeByName("bench.Order")
    config = ptars.PtarsConfig(timestamp_unit="us", **options)
    return ptars.HandlerPool([message.file], config=config).get_for_message(message)


def make_values(count: int, seed: int) -> pa.Array[Any]:
    """Return `count` serialized orders, on average 118 bytes each."""
    random = np.random.default_rng(seed)
    lines = random.integers(1, 5, count)
    tags = random.integers(0, 3, count)
    schema = handler().schema()
    columns: dict[str, Any] = {
        "id": pa.array(random.integers(1, 1 << 40, count)),
        "customer": pa.array([f"customer-{n:06}" for n in random.integers(0, 200_000, count).tolist()]),
        "state": pa.array(random.integers(0, 4, count).astype(np.int32)),
        "created": pa.array(
            1_700_000_000_000_000 + np.cumsum(random.integers(0, 2000, count)), pa.timestamp("us", tz="UTC")
        ),
        "lines": _lists(schema.field("lines").type, lines, _line_columns(random, int(lines.sum()))),
        "tags": _map(schema.field("tags").type, tags, random),
        "total": pa.array(np.round(random.uniform(1, 900, count), 2)),
        "gift": pa.array(random.random(count) < 0.1),
    }
    arrays = [columns[field.name].cast(field.type) for field in schema]
    values: pa.Array[Any] = (
        handler().record_batch_to_array(pa.RecordBatch.from_arrays(arrays, schema=schema)).cast(pa.binary())
    )
    return values


def _line_columns(random: Any, count: int) -> dict[str, pa.Array[Any]]:
    return {
        "sku": pa.array([f"sku-{n:05}" for n in random.integers(0, 20_000, count).tolist()]),
        "quantity": pa.array(random.integers(1, 9, count).astype(np.int32)),
        "price_cents": pa.array(random.integers(99, 99_999, count)),
    }


def _lists(kind: Any, lengths: Any, children: dict[str, pa.Array[Any]]) -> pa.Array[Any]:
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    fields = list(kind.value_type)
    items = pa.StructArray.from_arrays(
        [children[field.name].cast(field.type) for field in fields], fields=fields
    )
    found: pa.Array[Any] = pa.ListArray.from_arrays(offsets, items, type=kind)
    return found


def _map(kind: Any, lengths: Any, random: Any) -> pa.Array[Any]:
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    names = ("channel", "campaign")
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys: Any = pa.array([names[n] for n in within.tolist()])
    items = pa.array([f"value-{n:03}" for n in random.integers(0, 500, len(within)).tolist()])
    found: pa.Array[Any] = pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    return found
