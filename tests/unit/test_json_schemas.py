"""JSON Schemas as trees of columns: what is combined, what is refused, and what is recorded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.errors import ConfigInvalid, Corrupted
from archiver.schema.json.mapping import json_tree
from archiver.schema.json.model import Kind, Node, node_json, node_of, parse_schema
from archiver.schema.json.resolve import Resolver
from archiver.schema.json.resources import recursive
from archiver.schema.json.source import json_schema, json_source, load_json_source


def parsed(schema: Any, depth: int = 2, references: dict[str, Any] | None = None) -> Node:
    texts = {name: json.dumps(one).encode() for name, one in (references or {}).items()}
    found = parse_schema(json.dumps(schema).encode(), "test", depth, texts).node
    assert node_of(json.loads(json.dumps(node_json(found)))) == found
    return found


def kinds(node: Node) -> dict[str, str]:
    return {name: one.text for name, one in node.fields}


def test_references_of_every_form() -> None:
    money = {
        "$id": "https://example.org/money.json",
        "title": "Money",
        "type": "integer",
        "maximum": 9,
        "minimum": 0,
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/order.json",
        "type": "object",
        "properties": {
            "local": {"$ref": "#/definitions/a~1b"},
            "spelled": {"$ref": "#/definitions/a%20c"},
            "anchor": {"$ref": "#named"},
            "whole": {"$ref": "money.json"},
            "absolute": {"$ref": "https://example.org/money.json"},
            "inside": {"$ref": "money2.json#/$defs/x"},
            "listed": {"$ref": "#/allOf/0/properties/listed"},
            "bundled": {"$ref": "part.json"},
        },
        "definitions": {
            "a/b": {"type": "boolean"},
            "a c": {"type": "string"},
            "n": {"$anchor": "named", "type": "number"},
            "p": {"$id": "https://example.org/part.json", "type": "integer"},
        },
        "allOf": [{"properties": {"listed": {"type": "string", "format": "date"}}}],
    }
    references = {
        "money.json": money,
        "money2.json": {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "string"}}},
    }
    assert kinds(parsed(schema, 2, references)) == {
        "local": "boolean",
        "spelled": "string",
        "anchor": "number",
        "whole": "int integer",
        "absolute": "int integer",
        "inside": "string",
        "listed": "date",
        "bundled": "long integer",
    }


def test_branches_of_unions() -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "pet": {"oneOf": [{"type": "null"}, cat, dog]},
            "size": {"anyOf": [{"type": "integer", "maximum": 5, "minimum": 0}, {"type": "integer"}]},
            "small": {"oneOf": [{"enum": [1, 2]}, {"enum": [7]}]},
            "wide": {"oneOf": [{"enum": [-(2**40), 0]}, {"enum": [7]}]},
            "when": {"oneOf": [{"type": "string", "format": "date"}, {"type": "string"}]},
            "mixed": {"oneOf": [cat, {"type": "string"}]},
            "list": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array"}]},
            "map": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "object"}]
            },
            "never": False,
            "one": {"oneOf": [{"type": "string"}, False]},
            "nothing": {"type": "null"},
        },
    }
    node = parsed(schema)
    assert kinds(node) == {
        "pet": "object or null",
        "size": "long integer",
        "small": "int integer",
        "wide": "long integer",
        "when": "string",
        "mixed": "text",
        "list": "text",
        "map": "text",
        "one": "string",
        "nothing": "text",
    }
    assert kinds(node.fields[0][1]) == {"kind": "string", "lives": "long integer", "name": "string"}


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_schema_inside_itself(depth: int) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}}
    node, levels = parsed(schema, depth), 0
    while node.kind is Kind.OBJECT:
        node, levels = node.fields[1][1], levels + 1
    assert (levels, node) == (depth + 1, Node(Kind.TEXT, "string"))


def test_names_of_columns_and_what_identifies_them() -> None:
    names = ["First Name", "a/b", "~", "", "2nd", "żółw", "x" * 300]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    tree = json_tree(parse_schema(json.dumps(schema).encode(), "test"))
    assert [one.name for one in tree.fields] == [
        "First_Name", "a_b", "_", "_", "_2nd", "____w".replace("_w", "w"), "x" * 255
    ]  # fmt: skip
    steps = [one.step for one in tree.fields]
    assert steps[:4] == ["First Name", "a~1b", "~0", "~2"]
    assert len(set(steps)) == len(names)


def wide(count: int) -> Any:
    return {"type": "object", "properties": {f"f{number}": {"type": "integer"} for number in range(count)}}


def nested(count: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(count):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(levels: int, properties: int = 1) -> Any:
    """A schema that references double at each level."""
    defs: dict[str, Any] = {"d0": wide(properties)}
    for number in range(1, levels):
        defs[f"d{number}"] = {"allOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": defs}


def ways(levels: int) -> Any:
    """A schema inside itself, with twice as many ways to it at each level."""
    defs: dict[str, Any] = {
        f"{side}{number}": {"allOf": [{"$ref": f"#/$defs/a{number - 1}"}, {"$ref": f"#/$defs/b{number - 1}"}]}
        for number in range(1, levels)
        for side in "ab"
    }
    defs["a0"] = defs["b0"] = {"properties": {"x": {"$ref": f"#/$defs/a{levels - 1}"}}}
    return {"$ref": f"#/$defs/a{levels - 1}", "$defs": defs}


def chained(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"allOf": [schema]}
    return schema


def events(count: int, properties: int = 0) -> Any:
    """A union of events that share their kind and a head."""
    head = {"$ref": "#/$defs/head"}
    own = [
        {f"p{(one + each) % 300}": {"type": "integer"} for each in range(properties)} for one in range(count)
    ]
    branches = [
        {"type": "object", "properties": {"kind": {"const": f"k{one}"}, "head": head, **own[one]}}
        for one in range(count)
    ]
    return {"oneOf": branches, "$defs": {"head": wide(10)}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (5, r"test: the schema 5 is no JSON Schema"),
        ({"properties": {"a": {"type": "text"}}}, r'property a has the type "text", which JSON Schema does not have'),
        ({"properties": {"a": {"items": {"type": 5}}}}, r"property a\[\] has the type 5"),
        ({"properties": []}, r"the schema has properties that are no object"),
        ({"properties": {"a": 7}}, r"property a 7 is no JSON Schema"),
        ({"allOf": []}, r"the schema has allOf without a list of schemas"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, r"property a refers to '#/\$defs/x', which the schema does not define"),
        ({"properties": {"a": {"$ref": "#/$defs/x/0"}}, "$defs": {"x": []}}, r"property a refers to '#/\$defs/x/0'"),
        ({"properties": {"a": {"$ref": "money.json"}}}, r"property a refers to 'money.json', which is not part of .* register"),
        ({"properties": {"a": {"$ref": 5}}}, r"property a has a \$ref that is no text"),
        ({"$ref": "#"}, r"the schema refers to itself by '#' without a level between"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
            r"the schema refers to itself by '#/\$defs/a' without a level",
        ),
        (
            {"properties": {"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}},
            r"property a has parts that exclude each other, so no value is valid; correct `type` in its `allOf`",
        ),
        (wide(4001), r"property f4000 is behind more than 4000 properties"),
        (nested(70), r"is more than 50 objects or 63 levels deep .* use a flatter schema"),
        (ways(60), r"the schema is behind more than 1,000,000 steps of combining schemas; use fewer branches of oneOf"),
        (chained(151), r"the schema combines more than 150 schemas inside one another; use fewer levels of \$ref"),
        ({"oneOf": [1, *events(200)["oneOf"]]}, r"the schema 1 is no JSON Schema; correct it"),
        ({"$id": "http://[x", "type": "object"}, r"the schema has the \$id 'http://\[x', which is no URL: .*; correct it"),
        ({"properties": {"a": {"$id": "http://[x"}}}, r"property a has the \$id 'http://\[x', which is no URL"),
        ({"$id": "https://e/" + "a" * 1100}, r"the schema has the \$id .* it has more than 1,024 characters; correct it"),
        ({"properties": {"a": {"$ref": "http://[x#/a"}}}, r"property a refers to 'http://\[x#/a', which is no URL here: .*; correct it"),
        ({"properties": {"a\n\x1b": {"type": 5}}}, r"test: property a\\n\\u001b has the type 5"),
        ({"properties": {"a" * 1025: {}}}, r"has a name of 1025 characters; at most 1024 are possible"),
        ({"properties": {"\ud800": {}}}, r"has half of a surrogate pair in its name"),
    ],
)  # fmt: skip
def test_what_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        parsed(schema)


def test_a_wide_schema_is_accepted_within_the_limits() -> None:
    assert len(parsed(wide(3000)).fields) == 3000
    assert parsed(nested(50)).kind is Kind.OBJECT


def steps_of(monkeypatch: pytest.MonkeyPatch, schema: Any) -> int:
    """The work on an accepted schema."""
    made: list[Resolver] = []

    class Noted(Resolver):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("archiver.schema.json.model.Resolver", Noted)
    parsed(schema)
    return made[0].steps


def test_a_schema_is_combined_once_for_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = steps_of(monkeypatch, wide(2000))
    assert steps_of(monkeypatch, doubling(60, 2000)) < 1.3 * alone
    many = {"allOf": [{"$ref": "#/$defs/w"}] * 40, "$defs": {"w": wide(2000)}}
    assert steps_of(monkeypatch, many) < 1.3 * alone


def test_the_work_on_branches_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        steps_of(monkeypatch, {"oneOf": [{"properties": {f"p{each}": {}}} for each in range(count)]})
        for count in (1000, 3000)
    )
    assert many < 3.1 * few
    assert steps_of(monkeypatch, events(1200)) < 12.1 * steps_of(monkeypatch, events(100))


def test_an_enum_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def type_of(value: Any) -> frozenset[str]:
        read.append(value)
        return frozenset({"string"})

    monkeypatch.setattr("archiver.schema.json.resolve._type_of", type_of)
    names = {f"p{number}": {"$ref": "#/$defs/e"} for number in range(50)}
    found = kinds(parsed({"properties": names, "$defs": {"e": {"enum": ["x"] * 100}}}))
    assert set(found.values()) == {"string"}
    assert len(read) == 100


def test_a_union_of_many_events() -> None:
    node = parsed(events(1200, 20))
    found = kinds(node)
    assert (len(found), found["kind"], found["head"], found["p7"]) == (
        302,
        "string",
        "object",
        "long integer",
    )
    assert len(dict(node.fields)["head"].fields) == 10


def test_text_of_any_depth_is_refused_or_read() -> None:
    for levels in range(200, 1100, 5):
        for before, after in (("[", "]"), ('{"a":', "}"), ('{"allOf":[', "]}"), ('{"items":', "}")):
            for around in ('{"type":%s}', '{"properties":{"a":%s}}', '{"allOf":%s}', "%s"):
                text = around % (before * levels + "1" + after * levels)
                with contextlib.suppress(ConfigInvalid):
                    parse_schema(text.encode(), "test")


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({1: [2], 2: [3], 3: []}, set()),
        ({1: [1]}, {1}),
        ({1: [2, 4], 2: [3, 5], 3: [2], 4: [2], 5: []}, {2, 3}),
    ],
)
def test_what_may_be_inside_itself(edges: dict[int, list[int]], found: set[int]) -> None:
    assert recursive(edges) == found


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


@pytest.mark.parametrize("top", [{"$ref": "https://e/a"}, {"$ref": "#/$defs/a"}, {"$ref": "a#"}])
def test_a_pointer_in_an_embedded_schema_starts_there(top: Any) -> None:
    inner = {"$id": "https://e/a", "properties": {"q": {"$ref": "#/$defs/x"}}, "$defs": {"x": INTEGER}}
    schema = {"$id": "https://e/root", **top, "$defs": {"a": inner, "x": TEXT}}
    assert kinds(parsed(schema)) == {"q": "long integer"}


@pytest.mark.parametrize("anchor", [{"$anchor": "n"}, {"$id": "#n"}, {"$id": "a#n"}])
def test_anchors_of_embedded_schemas_are_their_own(anchor: dict[str, str]) -> None:
    other = {"$id": "#n"} if "$id" in anchor else anchor
    schema = {
        "$id": "https://e/root#",
        "properties": {"v": {"$ref": "a#n"}, "w": {"$ref": "b#n"}, "x": {"$ref": "#/definitions/a"}},
        "definitions": {
            "a": {"$id": "https://e/a", "properties": {"y": {"$ref": "#n"}}, "definitions": {"q": {**anchor, **INTEGER}}},
            "b": {"$id": "https://e/b", "definitions": {"q": {**other, **TEXT}}},
        },
    }  # fmt: skip
    node = parsed(schema)
    assert kinds(node) == {"v": "long integer", "w": "string", "x": "object"}
    assert kinds(dict(node.fields)["x"]) == {"y": "long integer"}


def test_relative_references_start_from_the_embedded_schema() -> None:
    schema = {
        "$id": "https://e/root",
        "properties": {"v": {"$ref": "https://e/sub/a"}, "w": {"$id": "sub/c", "items": {"$ref": "b"}}},
        "$defs": {
            "a": {"$id": "https://e/sub/a", "$ref": "b"},
            "b1": {"$id": "https://e/sub/b", **INTEGER},
            "b2": {"$id": "https://e/b", **TEXT},
        },
    }
    assert kinds(parsed(schema)) == {"v": "long integer", "w": "array of long integer"}


@pytest.mark.parametrize("word", ["default", "const", "examples", "enum", "x-note"])
@pytest.mark.parametrize("name", [{"$anchor": "n"}, {"$id": "#n"}])
def test_data_has_no_names(word: str, name: dict[str, str]) -> None:
    data: Any = {**name, "type": "string"}
    data = [data] if word in ("examples", "enum") else data
    noted = {"z": {word: data}}
    for first in (True, False):
        properties = {"v": {"$ref": "#n"}, **noted}
        defs = {"q": {**name, **INTEGER}}
        schema = (
            {"$defs": defs, "properties": properties} if first else {"properties": properties, "$defs": defs}
        )
        assert kinds(parsed(schema))["v"] == "long integer"
    with pytest.raises(ConfigInvalid, match="which the schema does not define"):
        parsed({"properties": {"v": {"$ref": "#n"}, **noted}})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[", "test is not a JSON Schema in JSON: "),
        (b'{"type":"object","type":"object"}', "an object has 'type' twice"),
        (b'{"maximum": NaN}', "NaN is not JSON"),
        (b"[" * 5000, "is not a JSON Schema in JSON"),
        (b" " * (4 * 2**20 + 1), "test has 4,194,305 bytes, more than 4,194,304"),
        (b"\xff", "is not a JSON Schema in JSON"),
    ],
)
def test_text_that_is_no_schema(text: bytes, why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        parse_schema(text, "test")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    with pytest.raises(ConfigInvalid, match=r"JSON Schema .*order\.json cannot be read: No such file"):
        load_json_source(path, None, 2)
    path.write_text('{"title": "Order", "properties": {"a b": {"type": "integer"}}}', encoding="utf-8")
    source = load_json_source(path, "Order", 2, (("a_b", "c"),))
    assert (source.message, source.format, source.envelope, source.columns) == (
        "Order",
        "json",
        None,
        (("a_b", "c"),),
    )
    with pytest.raises(ConfigInvalid, match="is the schema of 'Order', not of 'Other'; correct `message`"):
        load_json_source(path, "Other", 2)
    with pytest.raises(ConfigInvalid, match=r"order\.json: message Order has no field 'a' to rename"):
        load_json_source(path, None, 2, (("a", "c"),))


def test_descriptions_change_nothing_and_the_order_does() -> None:
    one = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    other = {
        "properties": {"a": {"type": "integer", "description": "x", "minimum": -7}, "b": {"type": "string"}}
    }
    turned = {"properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    first, second, third = (json_source(json.dumps(each).encode(), "test") for each in (one, other, turned))
    assert first == second
    assert first != third
    assert json_schema(first).node.fields[0][0] == "a"


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"kind":"other"}', b'{"kind":"object","properties":[1]}']
)
def test_a_recorded_document_that_no_version_wrote(document: bytes) -> None:
    from dataclasses import replace

    with pytest.raises(Corrupted, match="the JSON Schema of a SCHEMA entry cannot be read"):
        json_schema(replace(json_source(b"true", "test"), descriptor_set=document))
