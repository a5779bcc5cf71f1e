"""Descriptor sets: what is refused, and how the message tells what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, duration_pb2

from archiver.errors import ConfigInvalid
from archiver.schema.descriptors import Source, load_source, source_tree
from archiver.schema.tree import COLUMNS_MAX
from tests.support.protos import F, descriptor_set, field, file_of, map_field, order_file, source


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "set.binpb"
    path.write_bytes(data)
    return path


def refused(file: descriptor_pb2.FileDescriptorProto, message: str, *why: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        source_tree(source(file, message), "set")
    for one in why:
        assert one in str(caught.value)


def test_a_good_set_is_cut_down_to_what_is_needed(tmp_path: Path) -> None:
    file = order_file()
    file.source_code_info.location.add(leading_comments="long text")
    other = file_of("other.proto", "other")
    path = written(tmp_path, descriptor_set(other, file))
    loaded = load_source(path, "shop.Order")
    names = [one.name for one in descriptor_pb2.FileDescriptorSet.FromString(loaded.descriptor_set).file]
    assert names == ["google/protobuf/timestamp.proto", "shop.proto"]
    assert b"long text" not in loaded.descriptor_set
    assert load_source(written(tmp_path, descriptor_set(file)), "shop.Order") == loaded
    assert [one.name for one in source_tree(loaded).fields][:3] == ["id", "customer", "status"]


def test_nested_messages_are_found(tmp_path: Path) -> None:
    file = order_file()
    field(file.message_type[0].nested_type.add(name="Part"), "x", 1, F.TYPE_INT32)
    assert load_source(written(tmp_path, descriptor_set(file)), "shop.Line.Part").message == "shop.Line.Part"


@pytest.mark.parametrize("data", [b"", b"not a set", b"\x0a\x02\xff\xff", b'{"file": []}', b"\x0a\x00"])
def test_not_a_descriptor_set(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigInvalid, match=r"set\.binpb is not a FileDescriptorSet.*protoc"):
        load_source(written(tmp_path, data), "shop.Order")


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"missing\.binpb cannot be read: No such file"):
        load_source(tmp_path / "missing.binpb", "shop.Order")
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        load_source(tmp_path, "shop.Order")


def test_the_message_is_not_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, descriptor_set(order_file()))
    with pytest.raises(ConfigInvalid, match=r"no message 'shop.Oder'; did you mean shop\.Order"):
        load_source(path, "shop.Oder")
    with pytest.raises(ConfigInvalid, match="did you mean"):
        load_source(path, "zzz")
    with pytest.raises(ConfigInvalid, match="no message"):
        load_source(path, "shop.Order.LabelsEntry")


def test_a_missing_import_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, descriptor_set(order_file(), timestamp=False))
    with pytest.raises(ConfigInvalid, match=r"shop\.proto imports google/protobuf/timestamp\.proto.*--include_imports"):
        load_source(path, "shop.Order")


def test_a_set_that_does_not_link(tmp_path: Path) -> None:
    file = order_file()
    field(file.message_type[0], "ghost", 9, F.TYPE_MESSAGE, type_name=".shop.Ghost")
    with pytest.raises(ConfigInvalid, match="does not link"):
        load_source(written(tmp_path, descriptor_set(file)), "shop.Order")


def test_imports_in_a_circle(tmp_path: Path) -> None:
    first, second = file_of("a.proto", "a"), file_of("b.proto", "b")
    field(first.message_type.add(name="A"), "x", 1, F.TYPE_INT32)
    first.dependency.append("b.proto")
    second.dependency.append("a.proto")
    with pytest.raises(ConfigInvalid, match="imports itself"):
        load_source(written(tmp_path, descriptor_set(first, second)), "a.A")


def test_recursive_messages() -> None:
    file = file_of()
    node = file.message_type.add(name="Node")
    field(node, "children", 1, F.TYPE_MESSAGE, type_name=".shop.Node", repeated=True)
    refused(file, "Node", "field children", "does not map the recursive message shop.Node yet")
    file = file_of()
    tree = file.message_type.add(name="Tree")
    map_field(tree, "shop.Tree", "below", 1, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Tree")
    refused(file, "Tree", "field below", "recursive")


def test_empty_messages() -> None:
    file = file_of()
    file.message_type.add(name="Nothing")
    field(file.message_type.add(name="Holder"), "nothing", 1, F.TYPE_MESSAGE, type_name=".shop.Nothing")
    refused(file, "Nothing", "the empty message shop.Nothing")
    refused(file, "Holder", "field nothing", "the empty message shop.Nothing")


def test_other_well_known_types() -> None:
    file = file_of()
    file.dependency.append("google/protobuf/duration.proto")
    field(file.message_type.add(name="Wait"), "for", 1, F.TYPE_MESSAGE, type_name=".google.protobuf.Duration")
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(file))
    duration_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    with pytest.raises(ConfigInvalid, match=r"field for: this version does not map the well-known type google\.protobuf\.Duration yet"):
        source_tree(Source("shop.Wait", files.SerializeToString()))


def test_a_false_timestamp() -> None:
    false = descriptor_pb2.FileDescriptorProto(name="google/protobuf/timestamp.proto", package="google.protobuf", syntax="proto3")
    field(false.message_type.add(name="Timestamp"), "text", 1, F.TYPE_STRING)
    with pytest.raises(ConfigInvalid, match="well-known type"):
        source_tree(Source("shop.Order", descriptor_set(false, order_file(), timestamp=False)))


def test_groups() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Old")
    field(message.nested_type.add(name="Part"), "x", 1, F.TYPE_INT32)
    field(message, "part", 1, F.TYPE_GROUP, type_name=".shop.Old.Part")
    refused(file, "Old", "field part", "groups")


def test_extensions_and_message_sets() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Open")
    field(message, "x", 1, F.TYPE_INT32)
    message.extension_range.add(start=100, end=200)
    assert len(source_tree(source(file, "Open")).fields) == 1
    extension = file.extension.add(name="more", number=100, extendee=".shop.Open", label=F.LABEL_OPTIONAL)
    extension.type = F.TYPE_INT32
    refused(file, "Open", "[shop.more]", "extensions")


@pytest.mark.parametrize("name", ["__raw__", "__err__", "__prefix__", "__unrecognized__", "__RAW__"])
def test_names_of_our_own_columns(name: str) -> None:
    file = file_of()
    field(file.message_type.add(name="Clash"), name, 1, F.TYPE_INT32)
    field(file.message_type.add(name="Outer"), "inner", 1, F.TYPE_MESSAGE, type_name=".shop.Clash", repeated=True)
    refused(file, "Clash", f"field {name}", "a column the archiver adds itself")
    refused(file, "Outer", f"field inner.{name}", "a column the archiver adds itself")


def test_names_that_differ_in_case_only() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Clash")
    field(message, "total", 1, F.TYPE_INT32)
    field(message, "TOTAL", 2, F.TYPE_INT32)
    refused(file, "Clash", "field TOTAL", "its neighbour total")


def test_messages_too_wide_and_too_deep() -> None:
    file = file_of()
    for level in range(60):
        message = file.message_type.add(name=f"L{level}")
        field(message, "x", 1, F.TYPE_INT32)
        for number in (2, 3) if level else ():
            field(message, f"m{number}", number, F.TYPE_MESSAGE, type_name=f".shop.L{level - 1}")
    refused(file, "L59", "levels")
    refused(file, "L20", f"more than {COLUMNS_MAX} fields")


@pytest.mark.parametrize("change", [lambda file: file, lambda file: file.message_type[-1].field.reverse()])
def test_fields_stand_in_the_order_of_their_numbers(change: Callable[[Any], object]) -> None:
    file = file_of()
    message = file.message_type.add(name="M")
    for number in (7, 3, 5):
        field(message, f"f{number}", number, F.TYPE_INT32)
    change(file)
    assert [one.number for one in source_tree(source(file, "M")).fields] == [3, 5, 7]
