"""The state machine of a topic's columns: what is equal, what halts, what a catalog's ids do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from archiver.errors import ConfigInvalid, Corrupted, Halt, TopicHalted
from archiver.proto import control_log_pb2
from archiver.schema.codec import RecordCodec
from archiver.schema.descriptors import Source
from archiver.schema.state import TopicSchema, adopt_table_ids, arrow_schema, decide
from tests.support.protos import F, descriptor_set, field, map_field, order_file, source

TOPIC_ID = bytes(range(16))
ORDER = source(order_file(), "Order")


def changed(change: Callable[[descriptor_pb2.FileDescriptorProto], object]) -> Source:
    file = order_file()
    change(file)
    return source(file, "Order")


def order_of(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.DescriptorProto:
    return next(one for one in file.message_type if one.name == "Order")


def field_of(file: descriptor_pb2.FileDescriptorProto, name: str) -> descriptor_pb2.FieldDescriptorProto:
    return next(one for one in order_of(file).field if one.name == name)


def test_the_same_source_keeps_the_same_object() -> None:
    known = decide("t", None, ORDER, ORDER)
    assert decide("t", known, ORDER, ORDER) is known
    assert decide("t", None, ORDER, ORDER) == known
    assert known.version == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda file: setattr(file, "name", "moved/shop.proto"),
        lambda file: file.options.__setattr__("java_package", "com.shop"),
        lambda file: file.message_type.add(name="Unrelated").field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL),
        lambda file: order_of(file).reserved_range.add(start=50, end=60),
        lambda file: setattr(field_of(file, "customer").options, "deprecated", True),
        lambda file: setattr(field_of(file, "customer"), "json_name", "who"),
        lambda file: setattr(order_of(file).oneof_decl[0], "name", "paid_by"),
        lambda file: order_of(file).field.sort(key=lambda one: -one.number if not one.HasField("oneof_index") else 0),
    ],
)
def test_what_does_not_reach_columns_changes_nothing(change: Any) -> None:
    known = decide("t", None, None, ORDER)
    other = changed(change)
    assert other.descriptor_set != ORDER.descriptor_set
    assert decide("t", known, None, other) is known


def rename_nested(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[1].name = "Place"
    field_of(file, "address").type_name = ".shop.Place"


def test_a_renamed_nested_type_changes_nothing() -> None:
    known = decide("t", None, None, ORDER)
    assert decide("t", known, None, changed(rename_nested)) is known


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32), "field extra = 30 was added"),
        (lambda file: order_of(file).field.remove(field_of(file, "payload")), "field payload = 12 was removed"),
        (lambda file: setattr(field_of(file, "customer"), "name", "buyer"), "field customer = 2 was renamed to buyer"),
        (lambda file: setattr(field_of(file, "customer"), "type", F.TYPE_BYTES), "field customer = 2 was string, now bytes"),
        (lambda file: setattr(field_of(file, "customer"), "label", F.LABEL_REPEATED), "field customer = 2 was single, now repeated"),
        (lambda file: setattr(field_of(file, "scores").options, "packed", False), "field scores = 10 changed packed encoding"),
        (lambda file: file.enum_type[0].value.add(name="LOST", number=9), "changed enum values LOST = 9"),
        (lambda file: setattr(file.enum_type[0].value[1], "name", "FRESH"), "field status = 3 changed enum values"),
        (lambda file: field(file.message_type[0], "colour", 9, F.TYPE_STRING), "field lines.colour = 9 was added"),
        (lambda file: setattr(field_of(file, "card"), "number", 80), "field card = 8 was removed"),
        (
            lambda file: setattr(order_of(file).nested_type[0].field[0], "type", F.TYPE_INT32),
            "field labels = 7 had keys of type string, now int32",
        ),
    ],
)
def test_any_difference_halts_the_topic_with_what_changed(change: Any, why: str) -> None:
    known = decide("t", None, None, ORDER)
    with pytest.raises(TopicHalted) as caught:
        decide("orders", known, None, changed(change))
    assert why in str(caught.value) and "orders" in str(caught.value) and "version 1" in str(caught.value)


def test_presence_is_a_difference() -> None:
    plain = changed(lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32))
    optional = changed(lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32, optional=True))
    with pytest.raises(TopicHalted, match="changed field presence"):
        decide("t", decide("t", None, None, plain), None, optional)


def test_a_schema_that_comes_or_goes_halts() -> None:
    with pytest.raises(TopicHalted, match="the value now has a schema"):
        decide("t", decide("t", None, None, None), None, ORDER)
    with pytest.raises(TopicHalted, match=r"the key has no schema any more, it was shop\.Order"):
        decide("t", decide("t", None, ORDER, None), None, None)
    with pytest.raises(TopicHalted, match=r"message is shop.Line, it was shop.Order"):
        decide("t", decide("t", None, None, ORDER), None, Source("shop.Line", ORDER.descriptor_set))


def test_many_changes_are_cut() -> None:
    other = changed(lambda file: [map_field(order_of(file), "shop.Order", f"m{n}", n, F.TYPE_STRING, F.TYPE_STRING) for n in range(40, 60)])
    with pytest.raises(TopicHalted, match="and 15 more"):
        decide("t", decide("t", None, None, ORDER), None, other)


def test_a_broken_source_names_the_topic_and_side() -> None:
    with pytest.raises(ConfigInvalid, match=r"topic t, value: .*|topic t, value has no message"):
        decide("t", None, None, Source("shop.Nope", descriptor_set(order_file())))


@pytest.mark.parametrize(("key", "value"), [(None, None), (ORDER, None), (None, ORDER), (ORDER, ORDER)])
def test_entries_keep_everything(key: Source | None, value: Source | None) -> None:
    schema = decide("t", None, key, value)
    entry = control_log_pb2.SchemaChanged.FromString(schema.to_entry(TOPIC_ID).SerializeToString())
    assert entry.topic_id == TOPIC_ID
    assert TopicSchema.from_entry(entry) == schema
    assert decide("t", TopicSchema.from_entry(entry), key, value) == schema


def test_an_unreadable_entry_is_corruption() -> None:
    with pytest.raises(Corrupted):
        TopicSchema.from_entry(control_log_pb2.SchemaChanged(iceberg_schema="{nope"))
    with pytest.raises(Corrupted):
        TopicSchema.from_entry(control_log_pb2.SchemaChanged(iceberg_schema="[]"))


def test_a_catalog_that_keeps_our_ids_changes_nothing() -> None:
    schema = decide("t", None, ORDER, ORDER)
    table = assign_fresh_schema_ids(Schema.model_validate_json(schema.iceberg_json)).model_dump_json()
    assert adopt_table_ids(schema, table) is schema


def test_a_catalog_that_gives_other_ids_is_followed_everywhere() -> None:
    schema = decide("t", None, ORDER, ORDER)
    numbers = iter(range(1001, 5000))
    table = assign_fresh_schema_ids(Schema.model_validate_json(schema.iceberg_json), lambda: next(numbers)).model_dump_json()
    adopted = adopt_table_ids(schema, table)
    assert adopted.version == schema.version
    assert Schema.model_validate_json(adopted.iceberg_json).as_struct() == Schema.model_validate_json(table).as_struct()
    assert adopted.value is not None and schema.value is not None
    assert {path: number + 1000 for path, number in schema.value.field_ids.items()} == adopted.value.field_ids
    assert b"1001" in (arrow_schema(adopted).field("key").metadata or {}).values()
    RecordCodec(adopted)
    assert decide("t", adopted, ORDER, ORDER) is adopted


def broken(change: Callable[[Any], object]) -> str:
    table = json.loads(decide("t", None, None, ORDER).iceberg_json)
    change(table)
    return json.dumps(table)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table["fields"].pop(1), "no column value"),
        (lambda table: table["fields"][1]["type"]["fields"].pop(3), "no column value.id"),
        (lambda table: table["fields"][1]["type"]["fields"][4].update(type="long"), "column value.customer of the table has type long"),
        (lambda table: table["fields"][1]["type"]["fields"][7].update(type="string"), "column value.address of the table has type string"),
        (lambda table: table["fields"][1]["type"]["fields"][4].update(type={"type": "struct", "fields": []}), "has type struct"),
    ],
)
def test_a_table_that_does_not_fit_halts(change: Any, why: str) -> None:
    with pytest.raises(Halt, match=why):
        adopt_table_ids(decide("t", None, None, ORDER), broken(change))


def test_other_columns_of_the_table_are_left_alone() -> None:
    schema = decide("t", None, None, ORDER)
    extra = {"id": 999, "name": "mine", "required": False, "type": "string"}
    assert adopt_table_ids(schema, broken(lambda table: table["fields"].append(extra))) is schema


def test_rebuilding_refuses_what_this_version_never_wrote() -> None:
    schema = decide("t", None, None, ORDER)
    codec = RecordCodec(schema)
    key, value = codec.encode_columns(pa.array([b"k"]), pa.array([b"\x18\x02"]))

    column: Any = value

    def altered(name: str, item: Any) -> Any:
        [row] = column.to_pylist()
        return pa.array([{**row, name: item}], column.type)

    assert codec.rebuild(key, altered("__prefix__", b"\x00\x00\x00\x00\x07"))[1].to_pylist() == [b"\x00\x00\x00\x00\x07\x18\x02"]
    with pytest.raises(Corrupted, match="__unrecognized__"):
        codec.rebuild(key, altered("__unrecognized__", b"\x08\x01"))
    with pytest.raises(Corrupted, match="__unrecognized__"):
        codec.rebuild(key, altered("lines", [{"sku": "", "quantity": 0, "price": 0.0, "__unrecognized__": b""}]))
    for wrong in ("GREEN", "9999999999", ""):
        with pytest.raises(Corrupted, match="never wrote"):
            codec.rebuild(key, altered("status", wrong))
    with pytest.raises(Corrupted, match="no __raw__"):
        codec.rebuild(pa.array([{"x": 1}]), value)
    with pytest.raises(Corrupted, match="no field customer"):
        codec.rebuild(key, pa.array([{"__raw__": None, "id": 1}], pa.struct([("__raw__", pa.binary()), ("id", pa.decimal128(20, 0))])))
    with pytest.raises(Corrupted, match="without __raw__"):
        codec.rebuild(pa.array([{"__raw__": None}], pa.struct([("__raw__", pa.binary())])), value)


def test_version_is_kept_by_equal_sources() -> None:
    known = replace(decide("t", None, None, ORDER), version=7)
    assert decide("t", known, None, ORDER).version == 7
