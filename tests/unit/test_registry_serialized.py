"""Registered schemas that are base64 of a FileDescriptorProto: parsed without a compiler, with references,
within bounds."""

from __future__ import annotations

import base64
import importlib.util
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from archiver.config.settings import ConfluentSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry import subjects
from archiver.registry.fetch import SchemaFetcher
from archiver.registry.subjects import Fetched, is_serialized, parse_serialized
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.side_reader import EngineName
from tests.support.schema.protos import F, field
from tests.support.schema.registry_server import RegistryServer

File = descriptor_pb2.FileDescriptorProto
SALE = "CgdzLnByb3RvEgNsYWIiKgoEU2FsZRIOCgJpZBgBIAEoA1ICaWQSEgoEbm90ZRgCIAEoCVIEbm90ZWIGcHJvdG8z"
SUBJECT = SchemaSettings(subject="sales-value")
ENGINES: tuple[EngineName, ...] = ("ptars", "protobuf")


def fetched(server: RegistryServer, **more: Any) -> Fetched:
    confluent = ConfluentSettings(
        **{"url": server.url, "backoff": 0.001, "attempts_max": 2, "down_pause": 0.0, "timeout": 5.0, **more}
    )
    return SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down="wait"), SystemClock())(
        SUBJECT, None
    )


def text_of(file: File) -> str:
    return base64.standard_b64encode(file.SerializeToString()).decode()


def file_of(name: str, *imports: str, package: str = "shop") -> File:
    return File(name=name, package=package, syntax="proto3", dependency=imports)


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "grpc_tools" else found(name)
    )


def files_of(one: Fetched) -> list[str]:
    return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(one.source.descriptor_set).file]


def money_file() -> File:
    money = file_of("money.proto", "google/type/date.proto")
    message = money.message_type.add(name="Money")
    field(message, "units", 1, F.TYPE_INT64)
    field(message, "day", 2, F.TYPE_MESSAGE, type_name=".google.type.Date")
    return money


def order_file() -> File:
    """It imports a reference, a built-in file, and a well-known one."""
    order = file_of(
        "order.proto", "pay/money.proto", "confluent/type/decimal.proto", "google/protobuf/timestamp.proto"
    )
    order.message_type.add(name="Before")
    message = order.message_type.add(name="Order")
    field(message, "total", 1, F.TYPE_MESSAGE, type_name=".shop.Money")
    field(message, "price", 2, F.TYPE_MESSAGE, type_name=".confluent.type.Decimal")
    field(message, "at", 3, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    return order


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_of_a_serialized_schema(engine: EngineName, monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    with RegistryServer() as server:
        server.add("sales-value", 1, 1, SALE)
        source = fetched(server).source
    assert source.message == "lab.Sale"
    codec = RecordCodec(decide("sales", (), None, source).schema, engine)
    values: Any = pa.array([b"\0\0\0\0\1\0\x08\x07"], pa.binary())
    column: Any = codec.encode_columns(pa.nulls(1, pa.binary()), values)[1]
    (row,) = column.to_pylist()
    assert (row["id"], row["note"], row["__err__"]) == (7, "", None)


def test_references_and_message_indexes_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    with RegistryServer() as server:
        server.add("money", 4, 10, text_of(money_file()))
        server.add("sales-value", 1, 11, text_of(order_file()), ("pay/money.proto", "money", 4))
        one = fetched(server)
        assert one.source.envelope is not None
        assert one.source.message == "shop.Before"
        assert one.source.envelope.ids == ((11, (0,)),)
        wanted = SUBJECT.model_copy(update={"message": "shop.Order"})
        confluent = ConfluentSettings(url=server.url)
        order = SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down="wait"), SystemClock())(
            wanted, None
        )
    assert order.source.envelope is not None
    assert order.source.envelope.ids == ((11, (1,)),)
    assert {
        "pay/money.proto",
        "google/type/date.proto",
        "confluent/type/decimal.proto",
        "google/protobuf/timestamp.proto",
    } < set(files_of(order))


def test_a_registered_file_takes_precedence_over_a_builtin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serializers with `skip.known.types: false` also register the well-known files."""
    without_compiler(monkeypatch)
    decimal = file_of("confluent/type/decimal.proto", package="confluent.type")
    field(decimal.message_type.add(name="Decimal"), "digits", 1, F.TYPE_STRING)
    stamp = File.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    sale = file_of("s.proto", "confluent/type/decimal.proto", "google/protobuf/timestamp.proto")
    field(sale.message_type.add(name="Sale"), "price", 1, F.TYPE_MESSAGE, type_name=".confluent.type.Decimal")
    with RegistryServer() as server:
        server.add("decimal", 1, 1, text_of(decimal))
        server.add("timestamp", 1, 2, text_of(stamp))
        references = [
            ("confluent/type/decimal.proto", "decimal", 1),
            ("google/protobuf/timestamp.proto", "timestamp", 1),
        ]
        server.add("sales-value", 1, 3, text_of(sale), *references)
        assert b"digits" in fetched(server).source.descriptor_set


@pytest.mark.parametrize("root_is_text", [True, False])
def test_texts_and_serialized_schemas_refer_to_each_other(root_is_text: bool) -> None:
    """Also where one of them replaces a built-in file."""
    date = file_of("google/type/date.proto", package="google.type")
    field(date.message_type.add(name="Date"), "julian", 1, F.TYPE_INT64)
    money_text = (
        'syntax = "proto3"; package shop; import "google/type/date.proto"; message Money { '
        "google.type.Date day = 1; }"
    )
    order_text = (
        'syntax = "proto3"; package shop; import "pay/money.proto"; message Order { Money total = 1; }'
    )
    order = file_of("o.proto", "pay/money.proto")
    field(order.message_type.add(name="Order"), "total", 1, F.TYPE_MESSAGE, type_name=".shop.Money")
    with RegistryServer() as server:
        server.add("date", 1, 1, text_of(date))
        money = text_of(money_file()) if root_is_text else money_text
        server.add("money", 1, 2, money, ("google/type/date.proto", "date", 1))
        server.add(
            "sales-value",
            1,
            3,
            order_text if root_is_text else text_of(order),
            ("pay/money.proto", "money", 1),
        )
        one = fetched(server)
    assert one.source.message == "shop.Order"
    assert b"julian" in one.source.descriptor_set


def test_an_older_text_and_a_newer_serialized_version_are_one_subject() -> None:
    with RegistryServer() as server:
        server.add(
            "sales-value",
            1,
            1,
            'syntax = "proto3"; package lab; message First {} message Sale { int64 id = 1; }',
        )
        server.add("sales-value", 2, 2, SALE)
        one = fetched(server)
    assert one.source.envelope is not None
    assert one.source.envelope.ids == ((1, (1,)), (2, (0,)))


def cut(text: str) -> str:
    return base64.standard_b64encode(base64.standard_b64decode(text)[:-9]).decode()


def invalid_name() -> str:
    data = order_file().SerializeToString()
    return base64.standard_b64encode(data.replace(b"Order", b"Or\xffer")).decode()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (text_of(file_of("a.proto")), "declares no message"),
        (cut(SALE), "nor base64 of a FileDescriptorProto"),
        (SALE[:-1], "nor base64 of a FileDescriptorProto"),
        (text_of(order_file()), r"imports 'pay/money\.proto', for which there is no reference"),
        (invalid_name(), "nor base64 of a FileDescriptorProto"),
        (base64.standard_b64encode(b"\x22\x00" * 200).decode(), "message"),
        (base64.standard_b64encode(b"\x22\x00" * 100_001).decode(), "declares more than 100,000 elements"),
        ("abcd", "nor base64 of a FileDescriptorProto"),
        ("", "declares no message"),
    ],
)
def test_what_is_wrong_with_a_serialized_schema(schema: str, why: str) -> None:
    with RegistryServer() as server:
        server.add("sales-value", 1, 1, schema)
        with pytest.raises(ConfigInvalid, match=why):
            fetched(server)


def nested(levels: int) -> bytes:
    """A message inside a message, and so on."""
    data = b""
    for _ in range(levels):
        head = len(data)
        length = bytes([head & 0x7F | 0x80, head >> 7 & 0x7F | 0x80, head >> 14])
        data = b"\x1a" + length + data
    head = len(data)
    return b"\x22" + bytes([head & 0x7F | 0x80, head >> 7 & 0x7F | 0x80, head >> 14]) + data


def test_nesting_is_bounded() -> None:
    with pytest.raises(ConfigInvalid, match="nested deeper than 64 levels"):
        parse_serialized(base64.standard_b64encode(nested(5000)), "a.proto", "here")


def test_bytes_are_bounded_together_with_the_references() -> None:
    big = money_file()
    for number in range(200):
        big.message_type.add(name=f"M{number}")
    with RegistryServer() as server:
        server.add("money", 1, 1, text_of(big))
        server.add("sales-value", 1, 2, text_of(order_file()), ("pay/money.proto", "money", 1))
        with pytest.raises(ConfigInvalid, match="schema_bytes_max"):
            fetched(server, schema_bytes_max=1024)


def test_no_text_of_a_proto_file_is_taken_for_base64() -> None:
    for text in ('syntax="proto3";', "message A{}", "package a;", "enum E{A=0;}", 'import "a";', "// b\n;"):
        assert not is_serialized(text.encode())
    assert is_serialized(SALE.encode())
    assert is_serialized(b"\n".join((SALE[:40].encode(), SALE[40:].encode())) + b"\n")
    assert not is_serialized(b"")


def test_work_grows_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted: one for each field on the wire."""
    steps: list[int] = []
    varint = subjects._varint

    def counted(data: bytes, at: int, end: int) -> tuple[int, int]:
        steps.append(at)
        return varint(data, at, end)

    monkeypatch.setattr(subjects, "_varint", counted)
    counts = []
    for size in (2000, 4000):
        steps.clear()
        parse_serialized(base64.standard_b64encode(b"\x2a\x00" * size), "a.proto", "here")
        counts.append(len(steps))
    assert counts == [4000, 8000]
