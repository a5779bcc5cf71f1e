"""Messages for people: whatever a record holds, something is said and nothing raised."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.errors import ConfigInvalid
from archiver.settings import TopicSettings
from archiver.settings_topics import SchemaSettings
from archiver.stream.decode import Decoder
from tests.support.orders import DESCRIPTOR_SET, order


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> SchemaSettings:
    path = tmp_path_factory.mktemp("decode") / "shop.binpb"
    path.write_bytes(DESCRIPTOR_SET)
    return SchemaSettings.model_construct(descriptor_set=path, message="shop.Order", subject=None)


def decoder(key: SchemaSettings | None = None, value: SchemaSettings | None = None) -> Decoder:
    return Decoder(TopicSettings.model_construct(name="t", partitions=1, key=key, value=value))


def test_the_protobuf_json_of_each_side(schema: SchemaSettings) -> None:
    expected = {"id": "7", "customer": "bob", "lines": [{"sku": "sku-0", "quantity": 1}]}
    data = order(7, "bob")
    assert decoder(value=schema).decode(data, data) == {"key": None, "value": expected}
    assert decoder(key=schema).decode(data, data) == {"key": expected, "value": None}
    assert decoder(schema, schema).decode(data, None) == {"key": expected, "value": None}
    assert decoder(schema, schema).decode(b"", b"") == {"key": {}, "value": {}}


def test_without_a_schema_nothing_is_decoded() -> None:
    assert Decoder(None).decode(b"\x08\x01", b"x") == decoder().decode(None, b"x") == {"key": None, "value": None}


@given(data=st.binary(max_size=60))
def test_never_fails_on_a_record(schema: SchemaSettings, data: bytes) -> None:
    found = decoder(value=schema).decode(None, data)
    assert list(found) == ["key", "value"]
    value = found["value"]
    assert isinstance(value, dict)
    assert "error" not in value or list(value) == ["error"]


def test_what_does_not_decode_is_said(schema: SchemaSettings) -> None:
    value = decoder(value=schema).decode(None, b"\xff\xff")["value"]
    assert isinstance(value, dict)
    assert list(value) == ["error"]
    assert value["error"]


def test_a_schema_that_is_not_there(schema: SchemaSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"nowhere\.binpb"):
        decoder(value=schema.model_copy(update={"descriptor_set": tmp_path / "nowhere.binpb"}))
    with pytest.raises(ConfigInvalid, match=r"shop\.Nothing"):
        decoder(value=schema.model_copy(update={"message": "shop.Nothing"}))
