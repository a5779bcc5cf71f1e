"""Descriptor sets: which are refused, and how the message states the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.descriptors import load_source, make_source, source_tree
from archiver.schema.protobuf.tree import COLUMNS_MAX
from tests.support.schema.protos import F, descriptor_set, extension, field, file_of, order_file, source


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "set.binpb"
    path.write_bytes(data)
    return path


def refused(files: Sequence[descriptor_pb2.FileDescriptorProto], message: str, why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        make_source(descriptor_set(*files), message, "set")


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
    with pytest.raises(
        ConfigInvalid, match=r"shop\.proto imports google/protobuf/timestamp\.proto.*--include_imports"
    ):
        load_source(path, "shop.Order")


def test_a_type_that_is_not_there_is_named() -> None:
    file = order_file()
    field(file.message_type[0], "ghost", 9, F.TYPE_MESSAGE, type_name=".shop.Ghost")
    refused(
        [file],
        "shop.Order",
        r"set: shop\.proto, message shop\.Line, field ghost: its type shop\.Ghost is not in the set",
    )
    other = file_of("ghosts.proto")
    field(other.message_type.add(name="Ghost"), "x", 1, F.TYPE_INT32)
    refused(
        [file, other],
        "shop.Order",
        r"field ghost: its type shop\.Ghost stands in ghosts\.proto, which shop\.proto does not import",
    )
    file.dependency.append("ghosts.proto")
    make_source(descriptor_set(file, other), "shop.Order")


def test_what_only_the_library_sees_names_the_file() -> None:
    file = order_file()
    file.syntax = "proto9"
    refused([file], "shop.Order", r"set: shop\.proto does not link: .*proto9")


def test_imports_in_a_circle() -> None:
    first, second = file_of("a.proto", "a"), file_of("b.proto", "b")
    field(first.message_type.add(name="A"), "x", 1, F.TYPE_INT32)
    first.dependency.append("b.proto")
    second.dependency.append("a.proto")
    refused([first, second], "a.A", r"set: a\.proto imports itself through a\.proto -> b\.proto -> a\.proto")


def test_a_long_chain_of_imports() -> None:
    files = []
    for number in range(2000):
        one = file_of(f"f{number}.proto", f"p{number}")
        field(one.message_type.add(name="M"), "x", 1, F.TYPE_INT32)
        one.dependency[:] = [f"f{number + 1}.proto"] if number < 1999 else []
        files.append(one)
    refused(files, "p0.M", r"f0\.proto reaches f200\.proto through more than 200 imports")
    assert make_source(descriptor_set(*files), "p1900.M").message == "p1900.M"


def test_two_files_that_define_one_name() -> None:
    first, second = order_file(), order_file()
    second.name = "copy.proto"
    refused(
        [first, second], "shop.Order", r"message shop\.Order is defined in shop\.proto and in copy\.proto"
    )
    first.dependency.append("enums.proto")
    third = file_of("enums.proto")
    third.enum_type.add(name="Status").value.add(name="X", number=0)
    refused([third, first], "shop.Order", r"shop\.Status is defined in enums\.proto and in shop\.proto")
    second.name = "shop.proto"
    refused([first, second], "shop.Order", r"holds two different files shop\.proto")
    assert make_source(descriptor_set(second, second), "shop.Order") == make_source(
        descriptor_set(second), "shop.Order"
    )


def test_an_unneeded_file_that_defines_a_name_again_does_no_harm() -> None:
    other = file_of("other.proto")
    other.message_type.add(name="Line")
    assert make_source(descriptor_set(other, order_file()), "shop.Order") == make_source(
        descriptor_set(order_file()), "shop.Order"
    )


def open_file() -> descriptor_pb2.FileDescriptorProto:
    """`shop.Open` with room for extensions."""
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Open")
    field(message, "x", 1, F.TYPE_INT32)
    message.extension_range.add(start=100, end=200)
    return file


def test_numbers_that_clash() -> None:
    file = open_file()
    extension(file, ".shop.Open", "first", 100, F.TYPE_INT32)
    other = file_of("more.proto", "more", "proto2")
    other.dependency.append("shop.proto")
    extension(other, ".shop.Open", "second", 100, F.TYPE_INT32)
    both = (
        r"message shop\.Open has two fields of number 100: extension first \(shop\.proto\) and extension "
        r"second \(more\.proto\)"
    )
    refused([file, other], "shop.Open", both)
    file = open_file()
    extension(file, ".shop.Open", "third", 1, F.TYPE_INT32)
    refused(
        [file],
        "shop.Open",
        r"two fields of number 1: field x \(shop\.proto\) and extension third \(shop\.proto\)",
    )
    file = order_file()
    field(file.message_type[0], "again", 2, F.TYPE_INT32)
    refused(
        [file], "shop.Order", r"message shop\.Line has two fields of number 2: field quantity .* field again"
    )


def test_files_that_extend_what_the_message_contains_are_needed() -> None:
    file = open_file()
    field(file.message_type.add(name="Holder"), "open", 1, F.TYPE_MESSAGE, type_name=".shop.Open")
    field(file.message_type.add(name="Other"), "x", 1, F.TYPE_INT32)
    more = file_of("more.proto", "more", "proto2")
    more.dependency.append("shop.proto")
    deep = more.message_type.add(name="Deep")
    field(deep, "y", 1, F.TYPE_INT32)
    deep.extension_range.add(start=5, end=6)
    extension(more, ".shop.Open", "deep", 150, F.TYPE_MESSAGE, ".more.Deep")
    last = file_of("last.proto", "last", "proto2")
    last.dependency.append("more.proto")
    extension(last.message_type.add(name="Scope"), ".more.Deep", "z", 5, F.TYPE_STRING)
    made = make_source(descriptor_set(last, more, file), "shop.Holder")
    names = [one.name for one in descriptor_pb2.FileDescriptorSet.FromString(made.descriptor_set).file]
    assert names == ["google/protobuf/timestamp.proto", "shop.proto", "more.proto", "last.proto"]
    [opened] = [one.message for one in source_tree(made).fields]
    assert opened is not None and [(one.number, one.name) for one in opened.fields] == [
        (1, "x"),
        (150, "more_deep"),
    ]
    assert opened.fields[1].message is not None
    assert [(one.number, one.name) for one in opened.fields[1].message.fields] == [
        (1, "y"),
        (5, "last_Scope_z"),
    ]
    other = make_source(descriptor_set(last, more, file), "shop.Other")
    assert b"more.proto" not in other.descriptor_set
    assert make_source(made.descriptor_set, "shop.Holder") == made


def test_renamed_columns_are_checked() -> None:
    data = descriptor_set(order_file())
    made = make_source(data, "shop.Order", columns=[("lines.sku", "article"), ("id", "order_id")])
    assert made.columns == (("id", "order_id"), ("lines.sku", "article"))
    for path, name, why in (
        ("lines.sk", "x", r"has no field 'lines\.sk' to rename; did you mean lines\.sku"),
        ("zzz", "x", r"has no field 'zzz' to rename; did you mean id, customer"),
        ("id", "order-id", r"field id: the column name 'order-id' must be letters"),
        ("id", "9id", "must be letters"),
        ("id", "", "must be letters"),
        ("id", "__ERR__", "belongs to a column the archiver adds itself"),
    ):
        with pytest.raises(ConfigInvalid, match=why):
            make_source(data, "shop.Order", columns=[(path, name)])


def test_message_sets() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Set")
    message.options.message_set_wire_format = True
    message.extension_range.add(start=4, end=2**31 - 1)
    field(file.message_type.add(name="Holder"), "all", 1, F.TYPE_MESSAGE, type_name=".shop.Set")
    refused(
        [file],
        "shop.Holder",
        r"shop\.proto, message shop\.Holder, field all: the message set shop\.Set is not mapped",
    )


def test_messages_too_wide_and_too_deep() -> None:
    file = file_of()
    for level in range(60):
        message = file.message_type.add(name=f"L{level}")
        field(message, "x", 1, F.TYPE_INT32)
        for number in (2, 3) if level else ():
            field(message, f"m{number}", number, F.TYPE_MESSAGE, type_name=f".shop.L{level - 1}")
    refused(
        [file],
        "shop.L59",
        r"shop\.proto, message shop\.L59, field m2\.m2.*: has more than 50 levels of messages",
    )
    refused(
        [file], "shop.L20", rf"shop\.proto, message shop\.L20, field m2.*: has more than {COLUMNS_MAX} fields"
    )


def wide_file(fields: int) -> descriptor_pb2.FileDescriptorProto:
    file = file_of()
    wide = file.message_type.add(name="Wide")
    for number in range(1, fields + 1):
        field(wide, f"f{number}", number, F.TYPE_INT32)
    return file


def test_a_message_of_5000_fields() -> None:
    refused(
        [wide_file(5000)],
        "shop.Wide",
        rf"shop\.proto, message shop\.Wide, field f{COLUMNS_MAX + 1}: has more than {COLUMNS_MAX} fields",
    )
    make_source(descriptor_set(wide_file(COLUMNS_MAX)), "shop.Wide")


def test_a_recorded_message_may_be_wider() -> None:
    assert len(source_tree(source(wide_file(5000), "Wide")).fields) == 5000
    with pytest.raises(ConfigInvalid, match="has more than 5000 fields"):
        source_tree(source(wide_file(5001), "Wide"))
