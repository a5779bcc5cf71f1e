"""Avro schemas that change: which column a field goes on in, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from archiver.ledger.entries import format_of
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.avro.model import parse_schema
from archiver.schema.avro.source import avro_source
from archiver.schema.evolution.state import TopicSchema, arrow_schema, column_tree, decide
from archiver.schema.protobuf.descriptors import Source
from archiver.status.mapping import first_version, mapping_of, plan_of
from tests.support.schema.protos import F, field, file_of, source

Field = tuple[str, Any] | tuple[str, Any, list[str]]


def schema(*fields: Field) -> Any:
    return {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": one[0], "type": one[1], **({"aliases": one[2]} if len(one) == 3 else {})}
            for one in fields
        ],
    }


def registered(*versions: Any) -> Source:
    """A subject with these versions under the ids 1, 2, …"""
    parsed = [parse_schema(json.dumps(one).encode(), "test") for one in versions]
    return avro_source(parsed[-1], "test", writers={number: one.text for number, one in enumerate(parsed, 1)})


def walked(*versions: Any) -> list[TopicSchema]:
    """The history of a topic whose subject got one version after another."""
    history: list[TopicSchema] = []
    for count in range(1, len(versions) + 1):
        decision = decide("t", history, None, registered(*versions[:count]))
        history.append(TopicSchema.from_entry(decision.schema.to_entry(bytes(16))))
        assert history[-1] == decision.schema
        assert decide("t", history, None, registered(*versions[:count])).schema is history[-1]
        arrow_schema(history[-1])
        struct = history[-1].schema()["fields"][1]["type"]
        side = history[-1].value
        assert side is not None
        column_tree(side, struct)
    return history


def changes(history: Sequence[TopicSchema], *versions: Any) -> list[tuple[str, str, str, bool]]:
    found = decide("t", history[:-1], None, registered(*versions)).changes
    return [(one.what, one.field, one.column, one.compatible) for one in found if one.what != "envelope"]


def test_added_dropped_widened_and_another_type() -> None:
    first = schema(("a", "int"), ("b", "string"), ("c", "int"), ("d", ["null", "float"]))
    second = schema(
        ("c", "string"), ("d", ["null", "double"]), ("a", "long"), ("e", {"type": "array", "items": "int"})
    )
    history = walked(first, second)
    assert changes(history, first, second) == [
        ("new_column", "c", "value.c_v2", False),
        ("widened", "d", "value.d", True),
        ("widened", "a", "value.a", True),
        ("added", "e", "value.e", True),
        ("dropped", "b", "value.b", True),
    ]
    names = [one.name for one in arrow_schema(history[-1]).field("value").type]
    assert names == ["__raw__", "__prefix__", "__err__", "c_v2", "d", "a", "e"]
    back = walked(first, second, first)
    ids = [{one.name: one.metadata for one in arrow_schema(version).field("value").type} for version in back]
    assert ids[2] == {name: ids[0][name] for name in ids[2]}, "each field goes on in its former column"


def test_an_alias_renames_the_column() -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
    renamed = {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "code", "type": "string", "aliases": ["sku"]}],
    }
    first = schema(("id", "int"), ("lines", {"type": "array", "items": line}))
    second = schema(("number", "int", ["id"]), ("lines", {"type": "array", "items": renamed}))
    third = schema(("number", "int"), ("id", "int"), ("lines", {"type": "array", "items": renamed}))
    history = walked(first, second, third)
    assert changes(history[:2], first, second) == [
        ("renamed", "number", "value.number", True),
        ("renamed", "lines.code", "value.lines.code", True),
    ]
    # Without its alias the field is still the one that it was, and a new field has the old name.
    assert changes(history, first, second, third) == [("added", "id", "value.id", True)]
    paths = {one.column: one.path for one in mapping_of(history)}
    assert paths == {
        "value.number": "id",
        "value.id": "id~",
        "value.lines": "lines",
        "value.lines.code": "lines/sku",
    }


def test_a_former_name_that_is_still_a_field_is_no_former_name() -> None:
    first = schema(("a", "int"))
    second = schema(("x", "int", ["a"]), ("a", "int"))
    history = walked(first, second)
    assert changes(history, first, second) == [("added", "x", "value.x", True)]
    assert {one.column: one.path for one in mapping_of(history)} == {"value.x": "x", "value.a": "a"}


def test_a_swap_of_two_names() -> None:
    first = schema(("a", "int"), ("b", "string"))
    second = schema(("b", "int", ["a"]), ("a", "string", ["b"]))
    # Names that are in use are no former names, so both fields go on by name, in columns of their types.
    assert [one[0] for one in changes(walked(first, second), first, second)] == ["new_column", "new_column"]


def test_unions_and_records_do_not_share_a_column() -> None:
    one = {"type": "record", "name": "One", "fields": [{"name": "x", "type": "int"}]}
    two = {"type": "record", "name": "Two", "fields": [{"name": "x", "type": "int"}]}
    first, second = schema(("v", one)), schema(("v", [one, two]))
    third = schema(("v", [two, one, "string"]))
    history = walked(first, second, third)
    assert changes(history[:2], first, second) == [("new_column", "v", "value.v_v2", False)]
    assert changes(history, first, second, third) == [
        ("unchanged_column", "v", "value.v_v2", True),
        ("added", "v.string", "value.v_v2.string", True),
    ]


def test_times_and_plain_numbers_do_not_share_a_column() -> None:
    millis, micros = (
        {"type": kind, "logicalType": f"time-{unit}"}
        for kind, unit in (("int", "millis"), ("long", "micros"))
    )
    first, second, third = schema(("v", "int")), schema(("v", millis)), schema(("v", micros))
    history = walked(first, second, third, first)
    assert changes(history[:2], first, second) == [("new_column", "v", "value.v_v2", False)]
    # Both units are microseconds in the column.
    assert [
        one.compatible for one in decide("t", history[:2], None, registered(first, second, third)).changes
    ]
    assert changes(history[:3], first, second, third) == [("unchanged_column", "v", "value.v_v2", True)]
    names = [[one.name for one in arrow_schema(version).field("value").type][3:] for version in history]
    assert names == [["v"], ["v_v2"], ["v_v2"], ["v"]]


def test_lists_of_maps_have_ids_at_each_level() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
    more = {
        "type": "record",
        "name": "In",
        "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "int"}],
    }
    first, second = (
        schema(("m", {"type": "map", "values": {"type": "array", "items": {"type": "map", "values": one}}}))
        for one in (inner, more)
    )
    history = walked(first, second)
    side = history[0].value
    assert side is not None
    assert sorted(side.field_ids) == ["m", "m/1", "m/2", "m/2/1", "m/2/2", "m/2/2/x"]
    assert [one[:2] for one in changes(history, first, second)] == [("widened", "m.x"), ("added", "m.y")]


def test_entries_that_older_versions_must_not_read() -> None:
    [version] = walked(schema(("a", "int")))
    assert format_of(version.to_entry(bytes(16))) == 5


def test_from_protobuf_to_avro_and_back() -> None:
    file = file_of()
    field(file.message_type.add(name="Order"), "a", 1, F.TYPE_INT32)
    proto = source(file, "Order")
    avro = registered(schema(("a", "int")))
    history: list[TopicSchema] = []
    for one in (proto, avro, proto):
        history.append(decide("t", history, None, one).schema)
        arrow_schema(history[-1])
    names = [[one.name for one in arrow_schema(one).field("value").type][3:] for one in history]
    assert names == [["a", "__unrecognized__"], ["a_v2"], ["a", "__unrecognized__"]]
    assert [one.path for one in mapping_of(history)] == ["1", "a"]


def bare(given: Any) -> Source:
    return avro_source(parse_schema(json.dumps(given).encode(), "test"), "test")


def test_a_schema_file_must_not_change_what_it_reads() -> None:
    first = schema(("a", "int"))
    history = [decide("t", (), None, bare(first)).schema]
    same = {**first, "doc": "an order"}
    same["fields"] = [{**first["fields"][0], "doc": "a", "aliases": ["z"]}]
    history.append(decide("t", history, None, bare(same)).schema)
    for other in (schema(("a", "long")), schema(("a", "int"), ("b", ["null", "int"]))):
        with pytest.raises(
            ConfigInvalid, match=r"topic t, value: the Avro schema Order has changed.*With `subject`"
        ):
            decide("t", history, None, bare(other))
    with pytest.raises(ConfigInvalid, match="have been read without a registry's envelope"):
        decide("t", history, None, registered(first))
    with pytest.raises(ConfigInvalid, match="have been read with a registry's envelope"):
        decide("t", walked(first), None, bare(first))


def test_a_plan_between_two_schemas() -> None:
    first, second = schema(("a", "int")), schema(("a", "string"))
    plan = plan_of("orders", first_version(registered(first), "value"), None, registered(first, second))
    assert not plan.decision.compatible
    [change] = [one for one in plan.decision.changes if one.what == "new_column"]
    assert (change.was, change.now) == ("int", "string")
    assert change.why.startswith(
        "field a of message Order was int and is string, which does not fit column value.a"
    )
