"""The .proto files that registries know without a reference equal the public definitions. Files of the same
name replace them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.config.settings import (
    CompileSettings,
    ConfluentSettings,
    ProtosSettings,
    SchemaRegistrySettings,
    SchemaSettings,
)
from archiver.registry.compile import FOLDER, ProtoCompiler, builtin_descriptors, builtin_texts
from archiver.registry.fetch import SchemaFetcher
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.evolution.evolve import type_text
from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import Source
from tests.support.schema.registry_server import RegistryServer

GOOGLE_TYPES = {
    "calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval", "latlng", "localized_text",
    "money", "month", "phone_number", "postal_address", "quaternion", "timeofday",
}  # fmt: skip
CONFLUENT = {
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
    "confluent/type/variant.proto",
    "confluent/types/decimal.proto",
}
SUBJECT = SchemaSettings(subject="prices-value")
HEAD = 'syntax = "proto3"; package shop; '
PRICE = HEAD + 'import "confluent/type/decimal.proto"; message Price { confluent.type.Decimal price = 1; }'
TAGGED = (
    HEAD
    + """
import "confluent/meta.proto";
option (confluent.file_meta).doc = "prices";
message Price {
  option (confluent.message_meta) = { doc: "a price" tags: "PII" params: [{ key: "connect.version" value: "1" }] };
  int32 small = 1 [(confluent.field_meta) = { params: [{ key: "connect.type" value: "int16" }] }];
  Kind kind = 2 [(confluent.field_meta).tags = "PII"];
}
enum Kind { option (confluent.enum_meta).doc = "kinds"; NONE = 0 [(confluent.enum_value_meta).doc = "none"]; }
"""
)


def fetched(server: RegistryServer) -> Source:
    confluent = ConfluentSettings(url=server.url, backoff=0.001, attempts_max=2, down_pause=0.0, timeout=5.0)
    return SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down="wait"), SystemClock())(
        SUBJECT, None
    ).source


def registered(text: str) -> Source:
    """The source of a subject without references."""
    with RegistryServer() as server:
        server.add("prices-value", 1, 11, text)
        return fetched(server)


def columns(source: Source) -> dict[str, str]:
    """The columns of the value with their types, without those that every message has."""
    struct = json.loads(decide("prices", [], None, source).schema.iceberg_json)["fields"][1]["type"]
    return {one["name"]: text_of(one["type"]) for one in struct["fields"] if not one["name"].startswith("__")}


def text_of(kind: Any) -> str:
    """A column's type, with the fields of a struct."""
    if not isinstance(kind, dict) or kind["type"] != "struct":
        return type_text(kind)
    inside = ", ".join(f"{one['name']} {text_of(one['type'])}" for one in kind["fields"])
    return f"struct<{inside}>"


def facts(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """A copy of a file without the facts that no column depends on: language options, source text and JSON
    names. JSON names follow from the field names."""
    result = descriptor_pb2.FileDescriptorProto()
    result.CopyFrom(file)
    result.ClearField("options")
    result.ClearField("source_code_info")
    waiting = [*result.message_type]
    fields = [*result.extension]
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        fields += message.field
    for field in fields:
        field.ClearField("json_name")
    return result


def confluent_original(name: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor in a module of Confluent's client for Python. The module is not imported, because it
    needs more packages."""
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None and spec.origin is not None
    module = Path(spec.origin).parent / "schema_registry" / name.replace(".proto", "_pb2.py")
    calls = [
        node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    (data,) = [
        ast.literal_eval(one.args[0])
        for one in calls
        if isinstance(one.func, ast.Attribute) and one.func.attr == "AddSerializedFile"
    ]
    return descriptor_pb2.FileDescriptorProto.FromString(data)


@pytest.mark.parametrize("name", sorted(GOOGLE_TYPES))
def test_google_types_equal_the_public_definitions(name: str) -> None:
    original = importlib.import_module(f"google.type.{name}_pb2").DESCRIPTOR
    ours = builtin_descriptors()[f"google/type/{name}.proto"]
    assert facts(ours) == facts(descriptor_pb2.FileDescriptorProto.FromString(original.serialized_pb))


@pytest.mark.parametrize("name", sorted(CONFLUENT))
def test_confluent_types_equal_the_public_definitions(name: str) -> None:
    assert facts(builtin_descriptors()[name]) == facts(confluent_original(name))


def test_texts_and_descriptors_have_the_same_names_and_no_copied_comments() -> None:
    names = CONFLUENT | {f"google/type/{name}.proto" for name in GOOGLE_TYPES}
    assert set(builtin_texts()) == names
    assert {name for name in builtin_descriptors() if not name.startswith("google/protobuf/")} == names
    assert [name for name, text in builtin_texts().items() if b"//" in text or b"/*" in text] == []
    assert "Apache License 2.0" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_a_decimal_without_a_reference_has_typed_columns() -> None:
    """A uint32 is a long, as everywhere (docs/schema-mapping.md)."""
    assert columns(registered(PRICE)) == {
        "price": "struct<value binary, precision long, scale int, __unrecognized__ binary>"
    }


def test_options_of_confluent_are_ignored() -> None:
    plain = HEAD + "message Price { int32 small = 1; Kind kind = 2; } enum Kind { NONE = 0; }"
    assert columns(registered(TAGGED)) == columns(registered(plain))
    with RegistryServer() as server:
        server.add("prices-value", 1, 11, plain)
        first = decide("prices", [], None, fetched(server)).schema
        server.subjects["prices-value"][1].schema = TAGGED
        assert decide("prices", [first], None, fetched(server)).changes == ()


@pytest.mark.parametrize(
    "name", sorted({*CONFLUENT, *(f"google/type/{name}.proto" for name in GOOGLE_TYPES)})
)
def test_every_builtin_file_can_be_imported(name: str) -> None:
    source = registered(HEAD + f'import "{name}"; message Price {{ int64 id = 1; }}')
    assert columns(source) == {"id": "long"}


def test_a_reference_takes_precedence_over_the_builtin_file() -> None:
    other = 'syntax = "proto3"; package confluent.type; message Decimal { string digits = 1; }'
    with RegistryServer() as server:
        server.add("decimals", 1, 10, other)
        server.add("prices-value", 1, 11, PRICE, ("confluent/type/decimal.proto", "decimals", 1))
        assert columns(fetched(server)) == {"price": "struct<digits string, __unrecognized__ binary>"}


def test_a_folder_of_protos_uses_builtin_files_after_its_own(tmp_path: Path) -> None:
    (tmp_path / "price.proto").write_text(PRICE)
    settings = SchemaSettings(protos=ProtosSettings(folder=tmp_path), message="shop.Price")
    fetch = SchemaFetcher(SchemaRegistrySettings(), SystemClock())
    assert columns(fetch(settings, None).source)["price"].startswith("struct<value binary, ")
    own = tmp_path / "confluent/type/decimal.proto"
    own.parent.mkdir(parents=True)
    own.write_text('syntax = "proto3"; package confluent.type; message Decimal { int64 cents = 1; }')
    assert columns(fetch(settings, None).source) == {"price": "struct<cents long, __unrecognized__ binary>"}
    included = tmp_path / "included"
    (tmp_path / "confluent").rename(included)  # the folder now contains `type/decimal.proto`
    own = included / "confluent/type/decimal.proto"
    own.parent.mkdir(parents=True)
    own.write_text('syntax = "proto3"; package confluent.type; message Decimal { bool is_zero = 1; }')
    settings = SchemaSettings(
        protos=ProtosSettings(folder=tmp_path, files=("price.proto",), include=(included,)),
        message="shop.Price",
    )
    assert columns(fetch(settings, None).source) == {
        "price": "struct<is_zero boolean, __unrecognized__ binary>"
    }


def test_a_file_that_is_not_builtin_is_still_missing(tmp_path: Path) -> None:
    (tmp_path / "a.proto").write_text(HEAD + 'import "google/type/nothing.proto"; message A {}')
    with pytest.raises(ConfigInvalid, match=r'Import "google/type/nothing\.proto" was not found'):
        ProtoCompiler(CompileSettings()).folder(ProtosSettings(folder=tmp_path))
