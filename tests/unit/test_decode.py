"""Messages as text for people: for any record the decoder shows something and raises nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import any_pb2, descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from archiver.schema.protobuf.descriptors import Envelope, Source, make_source
from archiver.stream.decode import Decoder
from tests.support.schema.orders import DESCRIPTOR_SET, order
from tests.support.schema.protos import F, descriptor_set, field, file_of

SCHEMA = make_source(DESCRIPTOR_SET, "shop.Order")


@pytest.fixture(scope="module")
def schema() -> Source:
    return SCHEMA


def decoder(key: Source | None = None, value: Source | None = None) -> Decoder:
    return Decoder(key, value)


def test_the_protobuf_json_of_each_side(schema: Source) -> None:
    expected = {"id": "7", "customer": "bob", "lines": [{"sku": "sku-0", "quantity": 1}]}
    data = order(7, "bob")
    assert decoder(value=schema).decode(data, data) == {"key": None, "value": expected}
    assert decoder(key=schema).decode(data, data) == {"key": expected, "value": None}
    assert decoder(schema, schema).decode(data, None) == {"key": expected, "value": None}
    assert decoder(schema, schema).decode(b"", b"") == {"key": {}, "value": {}}


def test_without_a_schema_nothing_is_decoded() -> None:
    assert (
        Decoder(None, None).decode(b"\x08\x01", b"x")
        == decoder().decode(None, b"x")
        == {"key": None, "value": None}
    )


@given(data=st.binary(max_size=60))
def test_never_fails_on_a_record(schema: Source, data: bytes) -> None:
    found = decoder(value=schema).decode(None, data)
    assert list(found) == ["key", "value"]
    value = found["value"]
    assert isinstance(value, dict)
    assert "error" not in value or list(value) == ["error"]


def test_what_does_not_decode_is_said(schema: Source) -> None:
    value = decoder(value=schema).decode(None, b"\xff\xff")["value"]
    assert isinstance(value, dict)
    assert list(value) == ["error"]
    assert value["error"]


def test_the_envelope_is_taken_off_or_said_to_be_wrong() -> None:
    """The rule is that of archiving: the id must be one of the subject's, and the indexes must name the
    topic's message."""
    one = decoder(value=replace(SCHEMA, envelope=Envelope(((7, (0,)), (9, (1,))))))
    data = order(7, "bob")
    plain = one.decode(None, data)["value"]
    assert isinstance(plain, dict)
    assert plain["customer"] == "bob"
    assert one.decode(None, b"\0" + (7).to_bytes(4, "big") + b"\0" + data)["value"] == plain
    assert one.decode(None, b"\0" + (9).to_bytes(4, "big") + b"\2\2" + data)["value"] == plain
    for wrong, why in (
        (b"\0" + (8).to_bytes(4, "big") + b"\0" + data, "8"),
        (b"\0" + (9).to_bytes(4, "big") + b"\0" + data, "message"),
        (b"\0\0", "cut"),
    ):
        value = one.decode(None, wrong)["value"]
        assert isinstance(value, dict)
        assert list(value) == ["error"]
        assert why in str(value["error"])


def test_an_any_of_an_unknown_type_is_said() -> None:
    file = file_of()
    file.dependency.append("google/protobuf/any.proto")
    field(file.message_type.add(name="Order"), "what", 1, F.TYPE_MESSAGE, type_name=".google.protobuf.Any")
    known = descriptor_pb2.FileDescriptorProto.FromString(any_pb2.DESCRIPTOR.serialized_pb)
    packed = any_pb2.Any(type_url="type.googleapis.com/nobody.Told", value=b"x").SerializeToString()
    found = decoder(value=make_source(descriptor_set(known, file), "shop.Order")).decode(
        None, b"\x0a" + bytes([len(packed)]) + packed
    )
    value = found["value"]
    assert isinstance(value, dict)
    assert "nobody.Told" in str(value["error"])
