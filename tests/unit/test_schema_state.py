"""The state machine of a topic's columns: which schemas are equal, what the next version is, what is
recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from archiver.ledger.entries import format_of
from archiver.proto import control_log_pb2
from archiver.runtime.errors import ConfigInvalid, Corrupted
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import (
    Decision,
    TopicSchema,
    arrow_schema,
    bounded_columns,
    column_tree,
    decide,
)
from archiver.schema.protobuf.descriptors import Envelope, Source
from tests.support.schema.protos import F, descriptor_set, field, order_file, source

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
    known = decide("t", (), ORDER, ORDER).schema
    assert decide("t", (known,), ORDER, ORDER) == Decision(known, ())
    assert decide("t", (known,), ORDER, ORDER).schema is known
    assert decide("t", (), ORDER, ORDER).schema == known
    assert known.version == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda file: setattr(file, "name", "moved/shop.proto"),
        lambda file: file.options.__setattr__("java_package", "com.shop"),
        lambda file: file.message_type.add(name="Unrelated").field.add(
            name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL
        ),
        lambda file: order_of(file).reserved_range.add(start=50, end=60),
        lambda file: setattr(field_of(file, "customer").options, "deprecated", True),
        lambda file: setattr(field_of(file, "customer"), "json_name", "who"),
        lambda file: setattr(order_of(file).oneof_decl[0], "name", "paid_by"),
        lambda file: order_of(file).field.sort(
            key=lambda one: -one.number if not one.HasField("oneof_index") else 0
        ),
    ],
)
def test_what_does_not_reach_columns_changes_nothing(change: Any) -> None:
    known = decide("t", (), None, ORDER).schema
    other = changed(change)
    assert other.descriptor_set != ORDER.descriptor_set
    assert decide("t", (known,), None, other).schema is known


def test_a_field_that_the_code_of_a_recorded_version_did_not_map_gets_its_column() -> None:
    """The recorded descriptors have the field, the recorded columns do not."""
    more = changed(lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32))
    known = decide("t", (), None, ORDER).schema
    assert known.value is not None
    recorded = replace(known, value=replace(known.value, descriptor_set=more.descriptor_set))
    decision = decide("t", (recorded,), None, more)
    assert [(one.what, one.field) for one in decision.changes] == [("added", "extra")]
    assert decide("t", (recorded, decision.schema), None, more).schema is decision.schema


def rename_nested(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[1].name = "Place"
    field_of(file, "address").type_name = ".shop.Place"


def test_a_renamed_nested_type_changes_nothing() -> None:
    known = decide("t", (), None, ORDER).schema
    assert decide("t", (known,), None, changed(rename_nested)).schema is known


@pytest.mark.parametrize(
    ("change", "what", "field_name", "column"),
    [
        (lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32), "added", "extra", "value.extra"),
        (
            lambda file: order_of(file).field.remove(field_of(file, "payload")),
            "dropped",
            "payload",
            "value.payload",
        ),
        (
            lambda file: setattr(field_of(file, "customer"), "name", "buyer"),
            "renamed",
            "buyer",
            "value.buyer",
        ),
        (
            lambda file: setattr(field_of(file, "customer"), "type", F.TYPE_BYTES),
            "new_column",
            "customer",
            "value.customer_v2",
        ),
        (
            lambda file: setattr(field_of(file, "customer"), "label", F.LABEL_REPEATED),
            "new_column",
            "customer",
            "value.customer_v2",
        ),
        (
            lambda file: setattr(field_of(file, "scores").options, "packed", False),
            "unchanged_column",
            "scores",
            "value.scores",
        ),
        (
            lambda file: file.enum_type[0].value.add(name="LOST", number=9),
            "unchanged_column",
            "status",
            "value.status",
        ),
        (
            lambda file: setattr(file.enum_type[0].value[1], "name", "FRESH"),
            "unchanged_column",
            "status",
            "value.status",
        ),
        (
            lambda file: field(file.message_type[0], "colour", 9, F.TYPE_STRING),
            "added",
            "lines.colour",
            "value.lines.colour",
        ),
        (
            lambda file: setattr(order_of(file).nested_type[0].field[0], "type", F.TYPE_INT32),
            "new_column",
            "labels",
            "value.labels_v2",
        ),
    ],
)
def test_a_difference_makes_one_change_and_the_next_version(
    change: Any, what: str, field_name: str, column: str
) -> None:
    known = decide("t", (), None, ORDER).schema
    decision = decide("orders", (known,), None, changed(change))
    assert decision.schema.version == 2
    (one,) = decision.changes
    assert (one.side, one.what, one.field, one.column) == ("value", what, field_name, column)


def test_presence_is_a_difference_without_another_column() -> None:
    plain = changed(lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32))
    optional = changed(lambda file: field(order_of(file), "extra", 30, F.TYPE_INT32, optional=True))
    known = decide("t", (), None, plain).schema
    decision = decide("t", (known,), None, optional)
    (one,) = decision.changes
    assert (one.what, one.was, one.now, one.compatible) == (
        "unchanged_column",
        "no presence",
        "presence",
        True,
    )
    assert (decision.schema.version, decision.schema.iceberg_json) == (2, known.iceberg_json)


def test_another_message_with_the_same_fields_is_the_next_version_with_the_same_columns() -> None:
    known = decide("t", (), None, ORDER).schema
    file = order_file()
    file.message_type.add(name="Sale").CopyFrom(order_of(file))
    file.message_type[-1].name = "Sale"
    for one in file.message_type[-1].field:
        if one.type_name.startswith(".shop.Order."):
            one.type_name = one.type_name.replace(".shop.Order.", ".shop.Sale.")
    other = source(file, "Sale")
    decision = decide("t", (known,), None, other)
    assert [(one.what, one.was, one.now) for one in decision.changes] == [
        ("message", "shop.Order", "shop.Sale")
    ]
    assert (decision.schema.version, decision.schema.iceberg_json) == (2, known.iceberg_json)
    assert decision.schema.value is not None and decision.schema.value.message == "shop.Sale"


def test_registry_ids_are_the_next_version_with_the_same_columns() -> None:
    known = decide("t", (), None, ORDER).schema
    enveloped = replace(ORDER, envelope=Envelope(((7, (0,)), (9, (1, 2)))))
    second = decide("t", (known,), None, enveloped)
    assert [(one.what, one.was, one.now) for one in second.changes] == [
        ("envelope", "no envelope", "ids 7, 9")
    ]
    assert (second.schema.version, second.schema.iceberg_json) == (2, known.iceberg_json)
    third = decide("t", (known, second.schema), None, replace(ORDER, envelope=Envelope(((7, (0,)),))))
    assert third.schema.version == 3
    assert third.schema.value is not None
    assert decide("t", (known, second.schema, third.schema), None, third.schema.value.source()).changes == ()


def test_a_first_version_reports_its_columns() -> None:
    decision = decide("t", (), ORDER, ORDER)
    assert {one.what for one in decision.changes} == {"added"}
    assert [one.path for one in decision.changes if one.side == "key"] == [
        one.path for one in decision.changes if one.side == "value"
    ]
    first = decision.changes[0]
    assert (first.path, first.field, first.column, first.now) == ("1", "id", "key.id", "decimal(20,0)")


def test_a_broken_source_names_the_topic_and_side() -> None:
    with pytest.raises(ConfigInvalid, match=r"topic t, value: .*|topic t, value has no message"):
        decide("t", (), None, Source("shop.Nope", descriptor_set(order_file())))


NAMES = (("customer", "buyer"), ("lines.sku", "article"))
RICH = replace(ORDER, recursion_depth=0, columns=NAMES, envelope=Envelope(((1, ()), (300, (2, 0)))))


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (ORDER, None), (None, ORDER), (ORDER, ORDER), (RICH, ORDER), (None, RICH)],
)
def test_entries_keep_everything(key: Source | None, value: Source | None) -> None:
    schema = decide("t", (), key, value).schema
    entry = control_log_pb2.SchemaChanged.FromString(schema.to_entry(TOPIC_ID).SerializeToString())
    assert entry.topic_id == TOPIC_ID
    assert TopicSchema.from_entry(entry) == schema
    assert decide("t", (TopicSchema.from_entry(entry),), key, value).schema == schema


def test_an_unreadable_entry_is_corruption() -> None:
    with pytest.raises(Corrupted):
        TopicSchema.from_entry(control_log_pb2.SchemaChanged(iceberg_schema="{nope"))
    with pytest.raises(Corrupted):
        TopicSchema.from_entry(control_log_pb2.SchemaChanged(iceberg_schema="[]"))


def test_rebuilding_refuses_what_this_version_never_wrote() -> None:
    schema = decide("t", (), None, ORDER).schema
    codec = RecordCodec(schema)
    key, value = codec.encode_columns(pa.array([b"k"]), pa.array([b"\x18\x02"]))

    column: Any = value

    def altered(name: str, item: Any) -> Any:
        [row] = column.to_pylist()
        return pa.array([{**row, name: item}], column.type)

    assert codec.rebuild(key, altered("__prefix__", b"\x00\x00\x00\x00\x07"))[1].to_pylist() == [
        b"\x00\x00\x00\x00\x07\x18\x02"
    ]
    for wrong in ("GREEN", "9999999999", ""):
        with pytest.raises(Corrupted, match="never wrote"):
            codec.rebuild(key, altered("status", wrong))
    with pytest.raises(Corrupted, match="no __raw__"):
        codec.rebuild(pa.array([{"x": 1}]), value)
    with pytest.raises(Corrupted, match="no field customer"):
        codec.rebuild(
            key,
            pa.array(
                [{"__raw__": None, "id": 1}],
                pa.struct([("__raw__", pa.binary()), ("id", pa.decimal128(20, 0))]),
            ),
        )
    with pytest.raises(Corrupted, match="without __raw__"):
        codec.rebuild(pa.array([{"__raw__": None}], pa.struct([("__raw__", pa.binary())])), value)


@pytest.mark.parametrize(
    ("schema", "entry_format"),
    [
        (decide("t", (), None, ORDER).schema, 1),
        (decide("t", (), None, None).schema, 1),
        (replace(decide("t", (), None, ORDER).schema, version=2), 2),
        (decide("t", (), None, replace(ORDER, recursion_depth=0)).schema, 2),
        (decide("t", (), replace(ORDER, columns=(("id", "number"),)), None).schema, 2),
        (decide("t", (), None, replace(ORDER, envelope=Envelope(()))).schema, 2),
    ],
)
def test_an_entry_has_the_oldest_format_that_suffices(schema: TopicSchema, entry_format: int) -> None:
    assert format_of(schema.to_entry(TOPIC_ID)) == entry_format


def test_archives_have_the_columns_that_the_message_has_now() -> None:
    first = decide("t", (), None, ORDER).schema

    def change(file: descriptor_pb2.FileDescriptorProto) -> None:
        for name in ("customer", "lines"):
            order_of(file).field.remove(field_of(file, name))

    without = changed(change)
    second = decide("t", (first,), None, without).schema
    before, after = (
        {one.name for one in arrow_schema(schema).field("value").type} for schema in (first, second)
    )
    assert before - after == {"customer", "lines"}
    assert "value.customer" not in {one.dotted for one in bounded_columns(second)}
    assert {one["name"] for one in second.schema()["fields"][1]["type"]["fields"]} == before
    none = decide("t", (first, second), None, None).schema
    assert [one.name for one in arrow_schema(none).field("value").type] == ["__raw__"]
    again = decide("t", (first, second, none), None, ORDER).schema
    assert arrow_schema(again).equals(arrow_schema(first), check_metadata=True)
    assert again.iceberg_json == first.iceberg_json


def test_a_column_tree_has_the_names_of_the_columns() -> None:
    first = decide("t", (), None, ORDER).schema

    def change(file: descriptor_pb2.FileDescriptorProto) -> None:
        field_of(file, "id").type = F.TYPE_STRING
        file.message_type[0].field[0].name = "article"

    second = decide("t", (first,), None, changed(change)).schema
    assert second.value is not None
    tree = column_tree(second.value, second.schema()["fields"][1]["type"])
    assert tree.by_number()[1].name == "id_v2"
    lines = next(one for one in tree.fields if one.name == "lines")
    assert lines.message is not None and lines.message.by_number()[1].name == "article"
    assert [one.number for one in tree.fields] == sorted(one.number for one in tree.fields)


def test_version_is_kept_by_equal_sources() -> None:
    known = replace(decide("t", (), None, ORDER).schema, version=7)
    assert decide("t", (known,), None, ORDER).schema.version == 7
