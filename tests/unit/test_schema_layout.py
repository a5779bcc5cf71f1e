"""Columns, Arrow types, field ids and bounds from a schema."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from archiver.runtime.errors import Corrupted
from archiver.schema.columns import BOUNDED_LEAVES_MAX, FIELD_ID, arrow_schema_of
from archiver.schema.evolution.state import TopicSchema, arrow_schema, bounded_columns, decide
from tests.support.schema.protos import (
    F,
    all_kinds_file,
    field,
    file_of,
    map_field,
    order_file,
    source,
    well_known_file,
)

ORDER = source(order_file(), "Order")


def field_id(one: Any) -> int:
    return int(one.metadata[FIELD_ID])


def ids_of(kind: Any) -> list[int]:
    """Field ids in an Arrow type, from the metadata, depth first."""
    if isinstance(kind, pa.Field):
        return [field_id(kind), *ids_of(kind.type)]
    if pa.types.is_struct(kind):
        return [one for child in kind for one in ids_of(child)]
    if pa.types.is_list(kind):
        return ids_of(kind.value_field)
    if pa.types.is_map(kind):
        return [*ids_of(kind.key_field), *ids_of(kind.item_field)]
    return []


def test_columns_of_a_topic_without_schema() -> None:
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    kafka = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("event_timestamp", pa.timestamp("us", "UTC")),
        pa.field("ingest_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("batch_start", pa.int64()),
    ]
    expected = pa.schema(
        [
            pa.field("key", pa.struct([pa.field("__raw__", pa.binary())])),
            pa.field("value", pa.struct([pa.field("__raw__", pa.binary())])),
            pa.field("headers", pa.list_(pa.field("element", header, nullable=False)), nullable=False),
            pa.field("kafka", pa.struct(kafka), nullable=False),
        ]
    )
    assert arrow_schema(decide("t", (), None, None).schema).equals(expected)


def test_names_and_order() -> None:
    schema = arrow_schema(decide("t", (), None, ORDER).schema)
    assert schema.names == ["key", "value", "headers", "kafka"]
    names = [one.name for one in schema.field("value").type]
    assert names[:5] == ["__raw__", "__prefix__", "__err__", "id", "customer"]
    assert names[-1] == "__unrecognized__"
    assert [one.name for one in schema.field("value").type.field("address").type] == [
        "city",
        "zip",
        "__unrecognized__",
    ]
    assert all(one.nullable for one in schema.field("value").type)


@pytest.mark.parametrize("value", [None, ORDER, source(all_kinds_file(), "AllKinds")])
def test_every_field_has_its_own_id(value: Any) -> None:
    schema = decide("t", (), value, value).schema
    ids = [one for top in arrow_schema(schema) for one in ids_of(top)]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    assert sorted(ids) == sorted(
        int(one) for one in re.findall(r'"(?:id|key-id|value-id|element-id)":(\d+)', schema.iceberg_json)
    )


def test_iceberg_reads_the_same_types() -> None:
    schema = decide("t", (), None, source(all_kinds_file(), "AllKinds")).schema
    theirs = schema_to_pyarrow(Schema.model_validate_json(schema.iceberg_json))
    for ours, other in zip(arrow_schema(schema), theirs, strict=True):
        assert str(ours.type) == str(other.type).replace("large_", "")


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (F.TYPE_UINT32, pa.int64()),
        (F.TYPE_FIXED32, pa.int64()),
        (F.TYPE_UINT64, pa.decimal128(20, 0)),
        (F.TYPE_FIXED64, pa.decimal128(20, 0)),
        (F.TYPE_SINT32, pa.int32()),
        (F.TYPE_SFIXED64, pa.int64()),
        (F.TYPE_ENUM, pa.string()),
        (F.TYPE_BYTES, pa.binary()),
    ],
)
def test_types(kind: int, arrow: pa.DataType) -> None:
    value = (
        arrow_schema(decide("t", (), None, source(all_kinds_file(), "AllKinds")).schema).field("value").type
    )
    assert value.field(f"single_{kind}").type == arrow
    assert value.field(f"repeated_{kind}").type.value_type == arrow


def type_names(kind: Any) -> Any:
    """An Arrow type as text, without ids."""
    return re.sub(r" not null|: '\w+'", "", str(kind))


def test_columns_of_well_known_types() -> None:
    value = (
        arrow_schema(decide("t", (), None, source(well_known_file(), "WellKnown")).schema).field("value").type
    )
    types = {one.name: type_names(one.type) for one in value}
    rest = "__unrecognized__: binary"
    assert types["at"] == "timestamp[us, tz=UTC]"
    assert types["wait"] == f"struct<seconds: int64, nanos: int32, {rest}>"
    assert types["any"] == f"struct<type_url: string, value: binary, {rest}>"
    assert types["mask"] == f"struct<paths: list<element: string>, {rest}>"
    assert types["nothing"] == f"struct<{rest}>"
    wrapped = (
        "a_double",
        "a_float",
        "an_int64",
        "a_uint64",
        "an_int32",
        "a_uint32",
        "a_bool",
        "a_string",
        "a_bytes",
    )
    arrows = ("double", "float", "int64", "decimal128(20, 0)", "int32", "int64", "bool", "string", "binary")
    assert [types[name] for name in wrapped] == list(arrows)
    assert [types[name] for name in ("object", "anything", "array")] == ["string"] * 3
    assert types["doubles"] == "list<element: double>" and types["anythings"] == "list<element: string>"
    assert types["bool_by_name"] == "map<string, bool>" and types["object_by_id"] == "map<int32, string>"


def test_columns_of_a_recursive_message() -> None:
    file = file_of()
    node = file.message_type.add(name="Node")
    field(node, "below", 1, F.TYPE_MESSAGE, type_name=".shop.Node")
    field(node, "all", 2, F.TYPE_MESSAGE, type_name=".shop.Node", repeated=True)
    map_field(node, "shop.Node", "named", 3, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Node")
    once = (
        "struct<below: binary, all: list<element: binary>, named: map<string, binary>, __unrecognized__: "
        "binary>"
    )
    for depth, below in ((0, "binary"), (1, once)):
        value = (
            arrow_schema(decide("t", (), None, replace(source(file, "Node"), recursion_depth=depth)).schema)
            .field("value")
            .type
        )
        assert [type_names(value.field(name).type) for name in ("below", "all", "named")] == [
            below,
            f"list<element: {below}>",
            f"map<string, {below}>",
        ]


def test_names_that_clash() -> None:
    file = file_of(syntax="proto2")
    inner = file.message_type.add(name="Inner")
    outer = file.message_type.add(name="Outer")
    for number, name in ((3, "id"), (2, "ID"), (1, "__err__"), (4, "__UNRECOGNIZED__")):
        field(inner, name, number, F.TYPE_INT32).json_name = f"j{number}"
        field(outer, name, number, F.TYPE_INT32).json_name = f"j{number}"
    field(outer, "inner", 9, F.TYPE_MESSAGE, type_name=".shop.Inner")
    value = arrow_schema(decide("t", (), None, source(file, "Outer")).schema).field("value").type
    names = ["__err___v2", "ID", "id_v2", "__UNRECOGNIZED___v2"]
    assert [one.name for one in value] == [
        "__raw__",
        "__prefix__",
        "__err__",
        *names,
        "inner",
        "__unrecognized__",
    ]
    assert [one.name for one in value.field("inner").type] == [*names, "__unrecognized__"]


def test_renamed_columns() -> None:
    columns = (("address.zip", "postcode"), ("id", "Customer"))
    value = arrow_schema(decide("t", (), None, replace(ORDER, columns=columns)).schema).field("value").type
    assert [one.name for one in value][3:5] == ["Customer", "customer_v2"]
    assert [one.name for one in value.field("address").type][:2] == ["city", "postcode"]


def test_bounds_are_for_leaves_outside_lists_and_maps() -> None:
    columns = {one.dotted: one for one in bounded_columns(decide("t", (), None, ORDER).schema)}
    assert {
        "key.__raw__",
        "value.id",
        "value.address.city",
        "value.status",
        "kafka.offset",
        "kafka.batch_start",
    } <= set(columns)
    assert not [
        name
        for name in columns
        if name.startswith(("headers", "value.lines", "value.labels", "value.scores"))
    ]
    assert columns["kafka.offset"].type == "long" and columns["kafka.offset"].path == ("kafka", "offset")
    schema = arrow_schema(decide("t", (), None, ORDER).schema)
    assert columns["kafka.offset"].field_id == field_id(schema.field("kafka").type.field("offset"))


def test_bounds_are_bounded_and_kafka_always_has_them() -> None:
    file = file_of()
    wide = file.message_type.add(name="Wide")
    for number in range(1, 301):
        field(wide, f"f{number}", number, F.TYPE_INT32)
    columns = bounded_columns(decide("t", (), None, source(file, "Wide")).schema)
    assert len(columns) == BOUNDED_LEAVES_MAX + 5
    assert [one.dotted for one in columns[-5:]] == [
        f"kafka.{name}"
        for name in ("partition", "offset", "event_timestamp", "ingest_timestamp", "batch_start")
    ]


@pytest.mark.parametrize("kind", ["variant", {"type": "union"}, "timestamptz_ns"])
def test_a_type_of_a_later_version_is_named(kind: Any) -> None:
    schema = json.loads(decide("t", (), None, None).schema.iceberg_json)
    schema["fields"][0]["type"] = kind
    with pytest.raises(Corrupted, match="does not know"):
        arrow_schema_of(schema)


def test_field_ids_of_the_wire_path() -> None:
    schema: TopicSchema = decide("t", (), None, ORDER).schema
    assert schema.value is not None
    value = {one["name"]: one for one in schema.schema()["fields"][1]["type"]["fields"]}
    ids = schema.value.field_ids
    assert ids["1"] == value["id"]["id"]
    assert ids["5/2"] == value["address"]["type"]["fields"][1]["id"]
    assert ids["6/3"] == value["lines"]["type"]["element"]["fields"][2]["id"]
    assert (ids["7/1"], ids["7/2"]) == (
        value["labels"]["type"]["key-id"],
        value["labels"]["type"]["value-id"],
    )
    assert len(set(ids.values())) == len(ids)
