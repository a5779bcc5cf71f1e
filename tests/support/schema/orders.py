"""A small Protobuf topic for tests of refinement: descriptors made in place, messages built with `protobuf`
itself."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.protobuf.descriptors import Source

_F = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    line.field.add(name="quantity", number=2, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=_F.TYPE_INT64, label=_F.LABEL_OPTIONAL)
    order.field.add(name="customer", number=2, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    order.field.add(
        name="lines", number=3, type=_F.TYPE_MESSAGE, type_name=".shop.Line", label=_F.LABEL_REPEATED
    )
    return file


DESCRIPTOR_SET = descriptor_pb2.FileDescriptorSet(file=[_file()]).SerializeToString()


def order(number: int, customer: str = "ada", lines: int = 1) -> bytes:
    """A serialized order in canonical form."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    parts = [{"sku": f"sku-{index}", "quantity": index + 1} for index in range(lines)]
    data: bytes = kind(id=number, customer=customer, lines=parts).SerializeToString(deterministic=True)
    return data


def order_schema() -> TopicSchema:
    """Columns of a topic whose values are orders."""
    return decide("orders", (), None, Source("shop.Order", DESCRIPTOR_SET)).schema


def raw_schema() -> TopicSchema:
    """Columns of a topic without Protobuf."""
    return decide("raw", (), None, None).schema


def rows_of(column: Any) -> list[Any]:
    """The values of an Arrow column, without the stubs' opinion on what they may be."""
    values: list[Any] = column.to_pylist()
    return values
