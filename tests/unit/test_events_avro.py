"""Does the Avro codec follow the specification, and does hostile input cost no more than its own length?"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from archiver.events.avro import (
    Array,
    Fixed,
    Optional,
    Primitive,
    Record,
    RecordField,
    describe,
    parse_schema,
    read_datum,
    write_datum,
)
from archiver.runtime.errors import Corrupted, InvalidInput
from tests.support.events.event_values import INTS, LONGS, TEXTS

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXTS,
    "bytes": st.binary(max_size=20),
}


@st.composite
def _case(draw: st.DrawFn, depth: int = 0, in_union: bool = False) -> tuple[Any, Any]:
    """A schema as JSON and a value that fits it."""
    kind = draw(st.sampled_from([*_VALUES, *(("array", "optional", "record") if depth < 3 else ())]))
    if kind == "array":
        inner, value = draw(_case(depth + 1))
        return {"type": "array", "items": inner}, [value] * draw(st.integers(0, 3))
    if kind == "record":
        parts = draw(st.lists(_case(depth + 1), max_size=3))
        name = f"r{depth}_{draw(st.integers(0, 10**9))}"
        fields = [{"name": f"f{at}", "type": inner} for at, (inner, _) in enumerate(parts)]
        return {"type": "record", "name": name, "fields": fields}, [value for _, value in parts]
    if kind == "optional" and not in_union:
        inner, value = draw(_case(depth + 1, in_union=True).filter(lambda case: case[0] != "null"))
        branches = draw(st.permutations(["null", inner]))
        return branches, draw(st.sampled_from([None, value]))
    if kind in ("optional", "null") and in_union:
        kind = "long"
    return kind if kind != "optional" else "long", draw(_VALUES[kind if kind != "optional" else "long"])


def _named(tree: Any, value: Any) -> Any:
    """The value with records as objects, for the independent codec."""
    if isinstance(tree, list):
        return None if value is None else _named(next(one for one in tree if one != "null"), value)
    if isinstance(tree, dict) and tree["type"] == "array":
        return [_named(tree["items"], one) for one in value]
    if isinstance(tree, dict):
        return {
            one["name"]: _named(one["type"], part) for one, part in zip(tree["fields"], value, strict=True)
        }
    return value


@settings(deadline=None)
@given(_case())
def test_the_bytes_are_those_of_an_independent_codec(case: tuple[Any, Any]) -> None:
    tree, value = case
    text = json.dumps(tree)
    names = re.findall(r'"r\d_\d+"', text)
    assume(len(names) == len(set(names)))
    schema = parse_schema(text)
    data = write_datum(schema, value)
    assert read_datum(schema, data) == value
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(json.dumps(tree)), _named(tree, value))
    assert out.getvalue() == data


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ("long", 0, "00"),
        ("long", -1, "01"),
        ("int", 64, "8001"),
        ("long", -(2**63), "ffffffffffffffffff01"),
        ("boolean", True, "01"),
        ("string", "é", "04c3a9"),
    ],
)
def test_known_bytes(kind: str, value: object, data: str) -> None:
    assert write_datum(Primitive(kind), value).hex() == data
    assert read_datum(Primitive(kind), bytes.fromhex(data)) == value


def test_an_array_may_come_in_several_blocks_with_sizes() -> None:
    schema = Array(Primitive("int"))
    assert read_datum(schema, bytes.fromhex("02 02 03 04 04 06 00")) == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("long", "", "ends inside a number at 0"),
        ("long", "80", "ends inside a number at 1"),
        ("long", "ff" * 11, "takes more than ten bytes"),
        ("long", "ffffffffffffffffff7f", "is out of range"),
        ("int", "8080808020", "the number 4294967296 before 5 is out of range"),
        ("boolean", "02", "a boolean before 1 is 2"),
        ("string", "02ff", "a string before 2 is not utf-8"),
        ("string", "04c3", "2 bytes expected at 1 of 2"),
        ("bytes", "01", "-1 bytes expected"),
        ("bytes", "feffffffffffffffff01", "ends early"),
        ("float", "0000", "4 bytes expected"),
        ("null", "00", "1 bytes follow the event"),
    ],
)
def test_wrong_bytes_are_named(kind: str, data: str, message: str) -> None:
    with pytest.raises(Corrupted, match=message):
        read_datum(Primitive(kind), bytes.fromhex(data))


def test_a_branch_that_does_not_exist_is_corrupted() -> None:
    with pytest.raises(Corrupted, match="branch 2 before 1 does not exist"):
        read_datum(Optional(0, Primitive("int")), b"\x04\x00")


def test_a_count_of_values_without_bytes_ends_soon() -> None:
    schema = Array(Record("empty", ()))
    huge = bytes.fromhex("feffffffffffffffff01")
    with pytest.raises(Corrupted, match=r"claims \d+ items, more than the event can hold"):
        read_datum(schema, huge + b"\0")
    # The smallest long has no positive counterpart of the same width.
    with pytest.raises(Corrupted, match="items"):
        read_datum(schema, bytes.fromhex("ffffffffffffffffff01") + b"\0\0")
    with pytest.raises(Corrupted, match=r"more values than its bytes can hold|more than the event can hold"):
        read_datum(
            Array(
                Record("two", (RecordField("a", Record("empty", ())), RecordField("b", Primitive("null"))))
            ),
            bytes.fromhex("800f00"),
        )


def test_a_schema_that_unfolds_without_end_costs_little() -> None:
    fields = [{"name": "r0", "type": {"type": "record", "name": "x0", "fields": []}}]
    for level in range(1, 25):
        pair = [{"name": "a", "type": f"x{level - 1}"}, {"name": "b", "type": f"x{level - 1}"}]
        fields.append({"name": f"r{level}", "type": {"type": "record", "name": f"x{level}", "fields": pair}})
    with pytest.raises(Corrupted, match="has more than 20000 types"):
        parse_schema(json.dumps({"type": "record", "name": "top", "fields": fields}))
    schema = parse_schema(json.dumps({"type": "record", "name": "top", "fields": fields[:10]}))
    assert len(describe(schema)) < 100
    with pytest.raises(Corrupted, match="more values than its bytes can hold"):
        read_datum(schema, b"")


def test_names_do_not_hide_how_deep_a_schema_nests() -> None:
    """Each definition is shallow by itself and refers to the one before it. A reader descends through all of
    them."""
    fields = [{"name": "r0", "type": {"type": "record", "name": "x0", "fields": []}}]
    for level in range(1, 600):
        inner = {"type": "record", "name": f"x{level}", "fields": [{"name": "a", "type": f"x{level - 1}"}]}
        fields.append({"name": f"r{level}", "type": inner})
    with pytest.raises(Corrupted, match="nests deeper than 32 levels"):
        parse_schema(json.dumps({"type": "record", "name": "top", "fields": fields}))
    parse_schema(json.dumps({"type": "record", "name": "top", "fields": fields[:25]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not json"),
        ("[" * 60000, "is not json"),
        ('{"type":"array","items":' * 40 + '"int"' + "}" * 40, "nests deeper than 32 levels"),
        ("7", "holds 7 where a type is expected"),
        ('"other"', "refers to 'other', which is not defined before it"),
        ('["null","int","long"]', "a union that is not null and one other type"),
        ('["int","long"]', "a union that is not null and one other type"),
        ('["null","null"]', "a union that is not null and one other type"),
        ('["null",["null","int"]]', "a union directly inside a union"),
        ('{"type":"array"}', "an array without items"),
        ('{"type":"map","values":"int"}', "the type 'map', which control events do not use"),
        ('{"type":"fixed","name":"f","size":-1}', "the avro fixed 'f' has the size -1"),
        ('{"type":"fixed","name":"f","size":true}', "has the size True"),
        ('{"type":"fixed","size":1}', "a definition named None"),
        ('{"type":"record","name":"r"}', "'r' has no list of fields"),
        ('{"type":"record","name":"r","fields":[{"name":"a"}]}', "a field without name or type"),
        ('{"type":"record","name":"r","fields":[{"name":"a","type":"r"}]}', "refers to 'r'"),
        (
            '{"type":"record","name":"r","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
            "the field 'a' twice",
        ),
        (
            '{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"fixed","name":"r","size":1}}]}',
            "defines 'r' twice",
        ),
    ],
)
def test_wrong_schemas_are_named(text: str, message: str) -> None:
    with pytest.raises(Corrupted, match=message):
        parse_schema(text)


def test_a_name_is_looked_up_in_its_namespace_first_and_then_without_one() -> None:
    bare = '{"type":"fixed","name":"f","namespace":"","size":1}'
    inside = '{"type":"fixed","name":"f","size":2}'
    types = {"a": bare, "b": '"f"', "c": inside, "d": '"f"', "e": '"n.f"'}
    fields = ",".join(f'{{"name":"{name}","type":{kind}}}' for name, kind in types.items())
    schema = parse_schema(f'{{"type":"record","name":"r","namespace":"n","fields":[{fields}]}}')
    assert isinstance(schema, Record)
    assert [one.schema.name for one in schema.fields if isinstance(one.schema, Fixed)] == [
        "f",
        "f",
        "n.f",
        "n.f",
        "n.f",
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("int", 1.0),
        ("int", None),
        ("float", 1e300),
        ("double", "1"),
        ("double", 10**400),
        ("boolean", 1),
        ("null", 0),
        ("bytes", "x"),
        ("string", b"x"),
    ],
)
def test_values_that_do_not_fit_are_invalid(kind: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        write_datum(Primitive(kind), value)


def test_a_wrong_value_is_named_by_its_path() -> None:
    schema = Record(
        "outer", (RecordField("list", Array(Record("inner", (RecordField("number", Primitive("int")),)))),)
    )
    with pytest.raises(
        InvalidInput, match=r"list: number: an integer from -2147483648 to 2147483647 expected, got 'x'"
    ):
        write_datum(schema, [[["x"]]])
    with pytest.raises(InvalidInput, match="outer: 1 values expected"):
        write_datum(schema, [])
    with pytest.raises(InvalidInput, match="2 bytes expected, got b'x'"):
        write_datum(Fixed("f", 2), b"x")
