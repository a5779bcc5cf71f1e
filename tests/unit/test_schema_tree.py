"""Trees of every Protobuf feature: kinds, presence, packing, groups, extensions, recursion, well-known types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, duration_pb2, empty_pb2, struct_pb2, wrappers_pb2

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.column_names import column_names, wanted_names
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.tree import FieldTree, Kind, MessageTree, Shape
from tests.support.schema.protos import (
    SCALARS,
    TIMESTAMP,
    F,
    Features,
    descriptor_set,
    edition_file,
    extension,
    field,
    file_of,
    group_field,
    map_field,
    order_file,
    source,
    well_known_file,
)


def tree_of(file: descriptor_pb2.FileDescriptorProto, message: str, depth: int = 2) -> MessageTree:
    return source_tree(Source(f"{file.package}.{message}", descriptor_set(file), depth))


def fields_of(
    file: descriptor_pb2.FileDescriptorProto, message: str, depth: int = 2
) -> Mapping[str, FieldTree]:
    return {one.name: one for one in tree_of(file, message, depth).fields}


def test_fields_stand_in_the_order_of_their_numbers() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="M")
    for number in (7, 3, 5):
        field(message, f"f{number}", number, F.TYPE_INT32)
    message.extension_range.add(start=4, end=5)
    extension(file, ".shop.M", "four", 4, F.TYPE_INT32)
    assert [one.number for one in tree_of(file, "M").fields] == [3, 4, 5, 7]


@pytest.mark.parametrize(
    ("syntax", "presence", "packed"),
    [("proto2", True, False), ("proto3", False, True), ("editions", True, True)],
)
def test_presence_and_packing_follow_the_syntax(syntax: str, presence: bool, packed: bool) -> None:
    file = edition_file() if syntax == "editions" else file_of(syntax=syntax)
    message = file.message_type.add(name="M")
    for kind in SCALARS:
        field(message, f"one_{kind}", kind, kind)
        field(message, f"many_{kind}", 20 + kind, kind, repeated=True)
    fields = fields_of(file, "M")
    for kind in SCALARS:
        assert fields[f"one_{kind}"].presence is presence
        assert fields[f"many_{kind}"].packed is (packed and kind not in (F.TYPE_STRING, F.TYPE_BYTES))


@pytest.mark.parametrize("edition", [descriptor_pb2.EDITION_2023, descriptor_pb2.EDITION_2024])
def test_features_decide_in_editions(edition: Any) -> None:
    file = edition_file(edition)
    file.options.features.field_presence = Features.IMPLICIT
    file.options.features.repeated_field_encoding = Features.EXPANDED
    message = file.message_type.add(name="M")
    field(message, "plain", 1, F.TYPE_INT32)
    field(message, "present", 2, F.TYPE_INT32).options.features.field_presence = Features.EXPLICIT
    field(message, "required", 3, F.TYPE_INT32).options.features.field_presence = Features.LEGACY_REQUIRED
    field(message, "loose", 4, F.TYPE_INT32, repeated=True)
    field(
        message, "packed", 5, F.TYPE_INT32, repeated=True
    ).options.features.repeated_field_encoding = Features.PACKED
    fields = fields_of(file, "M")
    assert [fields[name].presence for name in ("plain", "present", "required")] == [False, True, True]
    assert [fields[name].packed for name in ("loose", "packed")] == [False, True]


def test_proto2_required_has_presence() -> None:
    file = file_of(syntax="proto2")
    field(file.message_type.add(name="M"), "needed", 1, F.TYPE_INT32).label = F.LABEL_REQUIRED
    assert fields_of(file, "M")["needed"] == FieldTree(1, "needed", Kind.INT32, presence=True)


def test_groups_and_delimited_fields() -> None:
    file = file_of(syntax="proto2")
    old = file.message_type.add(name="Old")
    group_field(old, "shop.Old", "part", 1)
    group_field(old, "shop.Old", "parts", 2, repeated=True)
    fields = fields_of(file, "Old")
    assert [(one.kind, one.shape, one.delimited) for one in fields.values()] == [
        (Kind.MESSAGE, Shape.SINGLE, True),
        (Kind.MESSAGE, Shape.REPEATED, True),
    ]
    assert fields["part"].message is not None and [one.name for one in fields["part"].message.fields] == ["x"]
    file = edition_file()
    file.options.features.message_encoding = Features.DELIMITED
    field(file.message_type.add(name="Inner"), "x", 1, F.TYPE_INT32)
    new = file.message_type.add(name="New")
    field(new, "inner", 1, F.TYPE_MESSAGE, type_name=".shop.Inner")
    field(new, "at", 2, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    field(
        new, "behind", 3, F.TYPE_MESSAGE, type_name=".shop.Inner"
    ).options.features.message_encoding = Features.LENGTH_PREFIXED
    map_field(new, "shop.New", "by_name", 4, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Inner")
    assert {name: one.delimited for name, one in fields_of(file, "New").items()} == {
        "inner": True,
        "at": True,
        "behind": False,
        "by_name": False,  # maps stay as they are
    }


def test_extensions_are_fields_by_their_full_name() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Open")
    field(message, "x", 1, F.TYPE_INT32)
    message.extension_range.add(start=100, end=200)
    extension(file, ".shop.Open", "priority", 100, F.TYPE_INT32)
    extension(file, ".shop.Open", "notes", 101, F.TYPE_STRING, repeated=True)
    extension(message, ".shop.Open", "inside", 102, F.TYPE_MESSAGE, ".shop.Open")
    assert [(one.number, one.name, one.shape, one.presence) for one in tree_of(file, "Open").fields] == [
        (1, "x", Shape.SINGLE, True),
        (100, "shop_priority", Shape.SINGLE, True),
        (101, "shop_notes", Shape.REPEATED, False),
        (102, "shop_Open_inside", Shape.SINGLE, True),
    ]


def levels(tree: MessageTree, name: str) -> list[Kind]:
    """The kinds of a field of that name, level by level."""
    one = next(one for one in tree.fields if one.name == name)
    return [one.kind] + (levels(one.message, name) if one.message is not None else [])


@pytest.mark.parametrize("depth", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("shape", ["single", "repeated", "map"])
def test_a_message_stands_inside_itself_so_often(depth: int, shape: str) -> None:
    file = file_of()
    node = file.message_type.add(name="Node")
    field(node, "x", 1, F.TYPE_INT32)
    if shape == "map":
        map_field(node, "shop.Node", "below", 2, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Node")
    else:
        field(node, "below", 2, F.TYPE_MESSAGE, type_name=".shop.Node", repeated=shape == "repeated")
    tree = tree_of(file, "Node", depth)
    assert levels(tree, "below") == [Kind.MESSAGE] * depth + [Kind.ENCODED]
    for _ in range(depth):
        [tree] = [one.message for one in tree.fields if one.message is not None]
    last = tree.fields[1]
    assert (last.above, last.shape.value, last.presence) == (1, shape, shape == "single")


def test_messages_that_contain_one_another() -> None:
    file = file_of()
    for name, other in (("A", "B"), ("B", "C"), ("C", "A")):
        message = file.message_type.add(name=name)
        field(message, "to", 1, F.TYPE_MESSAGE, type_name=f".shop.{other}")
    tree = tree_of(file, "A", 1)
    assert levels(tree, "to") == [Kind.MESSAGE] * 5 + [Kind.ENCODED]
    for _ in range(5):
        assert tree.fields[0].message is not None
        tree = tree.fields[0].message
    assert (tree.full_name, tree.fields[0].above) == ("shop.C", 3)


def test_a_group_beyond_the_depth_is_left_out() -> None:
    file = edition_file()
    node = file.message_type.add(name="Node")
    field(
        node, "below", 1, F.TYPE_MESSAGE, type_name=".shop.Node"
    ).options.features.message_encoding = Features.DELIMITED
    field(node, "x", 2, F.TYPE_INT32)
    [below, _] = tree_of(file, "Node", 1).fields
    assert below.message is not None and [one.name for one in below.message.fields] == ["x"]


def test_recursion_that_grows_too_wide_says_what_to_do() -> None:
    file = file_of()
    node = file.message_type.add(name="Node")
    for number in (1, 2, 3):
        field(node, f"f{number}", number, F.TYPE_MESSAGE, type_name=".shop.Node")
    assert len(tree_of(file, "Node", 2).fields) == 3
    with pytest.raises(ConfigInvalid, match="choose a smaller message or recursion_depth"):
        tree_of(file, "Node", 10)


def test_well_known_types() -> None:
    file = well_known_file()
    tree = source_tree(Source("shop.WellKnown", descriptor_set(file)))
    fields = {one.name: one for one in tree.fields}
    assert fields["at"].kind is Kind.TIMESTAMP
    wrapped = {name: one.kind.value for name, one in fields.items() if one.wrapped}
    assert wrapped == {
        "a_double": "double",
        "a_float": "float",
        "an_int64": "int64",
        "a_uint64": "uint64",
        "an_int32": "int32",
        "a_uint32": "uint32",
        "a_bool": "bool",
        "a_string": "string",
        "a_bytes": "bytes",
        "doubles": "double",
        "bool_by_name": "bool",
    }
    assert all(one.presence is (one.shape is Shape.SINGLE) for one in fields.values())
    json = {name: one.json for name, one in fields.items() if one.json}
    assert json == {
        "object": "struct",
        "anything": "value",
        "array": "list",
        "anythings": "value",
        "object_by_id": "struct",
    }
    assert all(fields[name].kind is Kind.STRING for name in json)
    plain = {
        name: [each.name for each in one.message.fields]
        for name, one in fields.items()
        if one.message is not None
    }
    assert plain == {
        "wait": ["seconds", "nanos"],
        "any": ["type_url", "value"],
        "mask": ["paths"],
        "nothing": [],
    }


def test_a_false_well_known_type_is_an_ordinary_message() -> None:
    for name, number_one in (
        ("Timestamp", F.TYPE_STRING),
        ("Int32Value", F.TYPE_INT64),
        ("Struct", F.TYPE_STRING),
        ("Value", F.TYPE_BOOL),
    ):
        false = file_of("google/protobuf/false.proto", "google.protobuf")
        del false.dependency[:]
        field(false.message_type.add(name=name), "own", 1, number_one)
        file = file_of()
        file.dependency[:] = [false.name]
        field(file.message_type.add(name="M"), "one", 1, F.TYPE_MESSAGE, type_name=f".google.protobuf.{name}")
        one = source_tree(Source("shop.M", descriptor_set(false, file, timestamp=False))).fields[0]
        assert one.message is not None and [each.name for each in one.message.fields] == ["own"], name


@pytest.mark.parametrize(
    "message",
    [struct_pb2.Struct, struct_pb2.Value, duration_pb2.Duration, empty_pb2.Empty, wrappers_pb2.BoolValue],
)
def test_a_well_known_type_as_the_topics_message_has_its_own_fields(message: Any) -> None:
    home = descriptor_pb2.FileDescriptorProto()
    message.DESCRIPTOR.file.CopyToProto(home)
    tree = source_tree(Source(message.DESCRIPTOR.full_name, descriptor_set(home, timestamp=False)))
    assert [one.name for one in tree.fields] == [one.name for one in message.DESCRIPTOR.fields]


def test_names_that_clash_get_a_suffix() -> None:
    def names(wanted: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
        return column_names(wanted, taken)

    assert names(["id", "name"]) == ["id", "name"]
    assert names(["total", "TOTAL", "Total"]) == ["total", "TOTAL_v2", "Total_v3"]
    assert names(["price", "PRICE_v2"], ["Price"]) == ["price_v2", "PRICE_v2_v2"]
    assert names(["a", "a_v2", "A"]) == ["a", "a_v2", "A_v3"]
    for reserved in ("__raw__", "__ERR__", "__Prefix__", "__unrecognized__"):
        assert names([reserved]) == [f"{reserved}_v2"]
    assert names(["select", "order", "value", "key"]) == ["select", "order", "value", "key"]
    assert names([]) == []


def test_renamed_fields() -> None:
    tree = tree_of(order_file(), "Order")
    assert wanted_names(tree, ()) is tree
    renamed = wanted_names(tree, {"lines": "positions", "lines.sku": "article", "address.zip": "postcode"})
    fields = renamed.by_number()
    assert fields[6].name == "positions" and fields[6].message is not None and fields[5].message is not None
    assert [one.name for one in fields[6].message.fields] == ["article", "quantity", "price"]
    assert [one.name for one in fields[5].message.fields] == ["city", "postcode"]
    assert [one.name for one in renamed.fields][:3] == [one.name for one in tree.fields][:3]


def test_a_rename_reaches_one_place_of_a_recursive_message() -> None:
    file = file_of()
    node = file.message_type.add(name="Node")
    field(node, "x", 1, F.TYPE_INT32)
    field(node, "below", 2, F.TYPE_MESSAGE, type_name=".shop.Node")
    tree = wanted_names(source_tree(source(file, "Node")), {"below.x": "y"})
    below = tree.fields[1].message
    assert tree.fields[0].name == "x" and below is not None and below.fields[0].name == "y"
    assert below.fields[1].message is not None and below.fields[1].message.fields[0].name == "x"
