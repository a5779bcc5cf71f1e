"""Messages inside others are encoded on their own, and the outer bytes are those of Protobuf: present, empty,
missing, in lists and in maps, few or many of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.schema.codec import RecordCodec
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.ptars_encoder import _NULLS_MAX
from tests.support.schema.engine_rows import schema_for, values_of
from tests.support.schema.protos import TIMESTAMP, F, field, file_of, map_field, message_class, source


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = file_of()
    file.message_type.add(name="Empty")
    part = file.message_type.add(name="Part")
    field(part, "number", 1, F.TYPE_INT32)
    field(part, "empty", 2, F.TYPE_MESSAGE, type_name=".shop.Empty")
    field(part, "at", 3, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    field(part, "never", 4, F.TYPE_MESSAGE, type_name=".shop.Inner")
    inner = file.message_type.add(name="Inner")
    field(inner, "text", 1, F.TYPE_STRING)
    field(inner, "amount", 2, F.TYPE_DOUBLE)
    field(inner, "numbers", 3, F.TYPE_INT32, repeated=True)
    map_field(inner, "shop.Inner", "named", 4, F.TYPE_STRING, F.TYPE_BYTES)
    whole = file.message_type.add(name="Whole")
    field(whole, "id", 1, F.TYPE_INT64)
    field(whole, "part", 2, F.TYPE_MESSAGE, type_name=".shop.Part")
    field(whole, "parts", 3, F.TYPE_MESSAGE, type_name=".shop.Part", repeated=True)
    map_field(whole, "shop.Whole", "named", 4, F.TYPE_STRING, F.TYPE_MESSAGE, type_name=".shop.Part")
    field(whole, "at", 5, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    field(whole, "never", 6, F.TYPE_MESSAGE, type_name=".shop.Part")
    return file


VALUE = source(_file(), "Whole")


def _fill(rng: random.Random, part: Any) -> None:
    part.SetInParent()
    part.number = rng.choice([0, 0, 7, -1])
    if rng.random() < 0.5:
        part.empty.SetInParent()
    if rng.random() < 0.5:
        part.at.seconds = rng.choice([0, 1, 1_700_000_000])


def _records(count: int, present: float) -> list[bytes]:
    rng, kind = random.Random(count), message_class(VALUE)
    found = []
    for number in range(count):
        whole = kind(id=number)
        if rng.random() < present:
            _fill(rng, whole.part)
        for _ in range(rng.choice([0, 0, 1, 3])):
            _fill(rng, whole.parts.add())
        if rng.random() < present:
            _fill(rng, whole.named["a"])
        if rng.random() < present:
            whole.at.SetInParent()
            whole.at.seconds = rng.choice([0, number])
        found.append(whole.SerializeToString(deterministic=True))
    return found


def _fails(*_: Any) -> Any:
    raise AssertionError("the fast engine encodes these messages by itself")


@pytest.mark.parametrize("present", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [10, 3 * _NULLS_MAX])
def test_the_bytes_are_the_same(present: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would write the same bytes, slowly.
    monkeypatch.setattr(ProtobufEngine, "encode", _fails)
    items = _records(count, present)
    codec = RecordCodec(schema_for(VALUE))
    keys = values_of([None] * count)
    key, value = codec.encode_columns(keys, values_of(items))
    # No record keeps its bytes: its columns gave them back.
    assert value.field("__raw__").null_count == count
    assert codec.rebuild(key, value)[1].to_pylist() == items
    # The same of a part, whose arrays have an offset.
    assert codec.rebuild(key[3:], value[3:])[1].to_pylist() == items[3:]
