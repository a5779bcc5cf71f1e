"""Avro schemas that are refused, with messages that say where and what to do; and the normal form."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.avro.model import Kind, parse_schema
from archiver.schema.avro.source import avro_source, load_avro_source


def record(*fields: Any, name: str = "shop.Order", **more: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named, **more}


def with_default(kind: Any, default: Any, name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "v", "type": kind, "default": default}]}


def deep(levels: int) -> Any:
    return record("int") if levels == 0 else record(deep(levels - 1), name=f"R{levels}")


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not an Avro schema in JSON"),
    "a key twice": ('{"type": "int", "type": "long"}', "an object has 'type' twice"),
    "NaN": ('{"type": "int", "x": NaN}', "NaN is not JSON"),
    "deep JSON": ("[" * 100_000, "is not an Avro schema in JSON"),
    "no type": (record({"name": "x"}), "field f0 .* is no type of Avro"),
    "an unknown type": (
        record("Address"),
        "field f0 its type 'shop.Address' is not defined; .* register the schema with a reference",
    ),
    "used before its definition": (record("B", record(name="B")), "its type 'shop.B' is not defined"),
    "defined twice": (record(record(name="B"), record(name="B")), "field f1 defines 'shop.B' a second time"),
    "a long name": (record(name="a" * 1025), "has a name of 1025 characters; at most 1024"),
    "a long field": (
        {**record(), "fields": [{"name": "a" * 1025, "type": "int"}]},
        "has a name of 1025 characters",
    ),
    "a bad name": (record(name="a-b"), "'a-b', which Avro does not allow"),
    "a bad field": (
        {"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]},
        "has a field 'a b', a name that Avro does not allow",
    ),
    "a field twice": (
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
        "field a is there twice",
    ),
    "no fields": ({"type": "record", "name": "R"}, "is a record without a list of fields"),
    "aliases": (
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": "b"}]},
        "field a has aliases that are no list",
    ),
    "an empty union": (record([]), "field f0 is a union without types"),
    "a union in a union": (record([["int"]]), "field f0 is a union directly inside a union"),
    "a type twice": (record(["int", "int"]), "field f0 is a union with the type int twice"),
    "two arrays": (
        record([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}]),
        "a union with the type array twice",
    ),
    "no items": (record({"type": "array"}), "is of the type array without 'items'"),
    "items of nothing": (
        record({"type": "array", "items": "null"}),
        "whose items take no bytes; archive the",
    ),
    "a fixed without size": (record({"type": "fixed", "name": "F"}), "is a fixed whose size is none"),
    "no symbols": (record({"type": "enum", "name": "E", "symbols": []}), "an enum without a list of symbols"),
    "a symbol twice": (record({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "a symbol twice"),
    "a default of another type": (
        with_default("int", "5"),
        'field v has the default "5", which is no int; correct the default or remove it',
    ),
    "a default of a union": (
        with_default(["null", "string"], 5),
        r"field v has the default 5, which is no \[null, string\]; correct",
    ),
    "a default in a list": (
        with_default({"type": "array", "items": "long"}, [1, None]),
        r"field v has the default \[1, null\], which is no array; correct",
    ),
    "a default of a record": (
        with_default(record("int", name="In"), {"f0": True}),
        "field v has the default .*, which is no shop.In; correct",
    ),
    "a default inside": (
        record({"type": "map", "values": with_default("boolean", 1, "In")}),
        r"field f0.values.v has the default 1, which is no boolean; correct",
    ),
    "a number of 33 bits": (with_default("int", 2**31), "has the default 2147483648, which is no int"),
    "a fraction": (with_default("long", 0.5), "has the default 0.5, which is no long"),
    "5,000 fields": (record(*["int"] * 5000), "field f4000 is behind more than 4000 fields"),
    "fields that double": (
        record(
            *(
                record(*(f"shop.R{n - 1}" for _ in range(9)) if n else ("int",), name=f"shop.R{n}")
                for n in range(9)
            )
        ),
        "is behind more than 4000 fields",
    ),
    "deep records": (deep(60), "has more than 50 levels of records"),
    "deep arrays": (
        json.loads('{"type":"array","items":' * 40 + '"int"' + "}" * 40),
        "levels deep as Arrow counts them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    given, why = REFUSED[case]
    text = given if isinstance(given, str) else json.dumps(given)
    with pytest.raises(ConfigInvalid, match=f"version 3 of subject orders-value.*{why}"):
        parse_schema(text.encode(), "version 3 of subject orders-value", defaults=True)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (["null", "int"], None),
        (["null", "int"], 5),
        (["string", "null"], None),
        ("double", 0),
        ("long", -(2**63)),
        ("int", 2.0),
        ("bytes", "\u00ff"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab"),
        ({"type": "array", "items": ["null", "string"]}, ["a", None]),
        ({"type": "map", "values": "float"}, {"a": 1.5, "b": 2}),
        (record("int", "string", name="In"), {"f0": 1}),
        ({"type": "int", "connect.default": 0, "logicalType": "date"}, 0),
    ],
)
def test_a_default_of_the_fields_type(kind: Any, default: Any) -> None:
    text = json.dumps(with_default(kind, default)).encode()
    found = parse_schema(text, "test", defaults=True)
    # Defaults change no column, so the normal form has none.
    assert found == parse_schema(text, "test")
    assert "default" not in found.text


def test_defaults_that_take_long_to_judge() -> None:
    """A value that many branches could be, at each of many levels."""
    # Of no branch at its end, so that each combination of them is tried.
    deep: Any = 5
    for _ in range(30):
        deep = {"v": deep}
    tree = {
        "type": "record",
        "name": "T",
        "fields": [{"name": "v", "type": ["null", "T", {"type": "map", "values": "T"}]}],
    }
    given = with_default(tree, deep)
    began = time.process_time()
    parse_schema(json.dumps(given).encode(), "test", defaults=True)
    assert time.process_time() - began < 5


def test_the_normal_form_has_full_names_and_nothing_that_changes_no_column() -> None:
    given = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "doc": "an order",
        "fields": [
            {"name": "line", "type": record("int", name="Line"), "doc": "one"},
            {"name": "more", "type": {"type": "array", "items": "Line"}, "default": []},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "order": "ignore"},
            {"name": "bad", "type": {"type": "int", "logicalType": "timestamp-millis"}},
            {"name": "id", "type": {"type": "string"}, "aliases": ["key"]},
        ],
    }
    found = json.loads(parse_schema(json.dumps(given).encode(), "test").text)
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "f0", "type": "int"}]}
    assert found == {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "line", "type": line},
            {"name": "more", "type": {"type": "array", "items": "shop.Line"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "bad", "type": "int"},
            {"name": "id", "type": "string", "aliases": ["key"]},
        ],
    }
    again = parse_schema(json.dumps(found).encode(), "test")
    assert json.loads(again.text) == found


def test_definitions_of_references_are_written_where_they_are_used() -> None:
    line = json.loads(parse_schema(json.dumps(record("int", name="shop.Line")).encode(), "test").text)
    found = parse_schema(json.dumps(record("Line", "Line")).encode(), "test", definitions={"shop.Line": line})
    assert json.loads(found.text)["fields"] == [
        {"name": "f0", "type": line},
        {"name": "f1", "type": "shop.Line"},
    ]


def test_recursion_is_cut_at_the_depth() -> None:
    node = record(["null", "Node"], name="Node")
    for depth in (0, 1, 3):
        found = parse_schema(json.dumps(node).encode(), "test", depth).node
        levels = 0
        while found.kind is Kind.RECORD:
            found, levels = found.fields[0].type.core, levels + 1
        assert (found.kind, found.name, levels) == (Kind.ENCODED, "Node", depth + 1)


def test_an_avsc_file(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    with pytest.raises(ConfigInvalid, match=r"order.avsc cannot be read: No such file"):
        load_avro_source(path, None, 2)
    path.write_text(json.dumps(record("int")), encoding="utf-8")
    assert load_avro_source(path, None, 2).message == "shop.Order"
    with pytest.raises(ConfigInvalid, match=r"is the schema of 'shop.Order', not of 'shop.Other'; correct"):
        load_avro_source(path, "shop.Other", 2)
    with pytest.raises(ConfigInvalid, match=r"order.avsc: .*'nope'"):
        load_avro_source(path, None, 2, [("nope", "x")])


def test_equal_content_gives_equal_bytes() -> None:
    one = parse_schema(json.dumps(record("int")).encode(), "test")
    other = parse_schema(json.dumps({**record("int"), "doc": "more"}, indent=2).encode(), "test")
    writers = {2: one.text, 1: other.text}
    assert avro_source(one, "x", writers=writers) == avro_source(
        other, "y", writers=dict(sorted(writers.items()))
    )
