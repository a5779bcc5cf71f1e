"""The wire form for the complete engine: like `wire`, but with all structure that Protobuf's own parser must
understand.

It translates a tree to a file of edition 2023. A message that occurs twice is merged, even if its column
holds it encoded. The parser accepts exactly the payloads that it would accept with the user's descriptor.
There is one exception: text that is not UTF-8 is refused in every syntax. Names are those of `wire`: `f` and
the number.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from archiver.schema.protobuf.tree import LENGTH_DELIMITED, FieldTree, JsonForm, Kind, MessageTree, Shape
from archiver.schema.protobuf.wire import NANOS, SECONDS, TYPES, has_wire_presence

_PACKAGE = "archiver.judge"
_ENTRY, _TIMESTAMP, _OPAQUE = "Entry", "Timestamp", "Opaque"
_JSON: dict[JsonForm, str] = {"struct": "Struct", "value": "Value", "list": "ListValue"}


def judge_descriptor(tree: MessageTree, recursive: bool) -> Descriptor:
    """The linked descriptor of the tree's wire form, in a pool of its own.

    With `recursive`, fields that the tree keeps encoded have the message's real type, so that the parser
    checks all of it. Without, they are a message without fields, which keeps and joins the bytes unchanged.
    """
    file = _new_file()
    name = _message(file, tree, (), recursive)
    return _linked(file, name)


def json_descriptor(form: JsonForm) -> Descriptor:
    """The linked descriptor of Struct, Value or ListValue in our wire form: a map is a list of entries."""
    return _linked(_new_file(), _JSON[form])


def _new_file() -> FileDescriptorProto:
    """A file with the messages that every tree may need."""
    # Only an edition lets one file mix packed, expanded, delimited and implicit fields.
    file = FileDescriptorProto(
        name="judge.proto", package=_PACKAGE, syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    # Fields with presence say so one by one, in `_present`.
    file.options.features.field_presence = FeatureSet.IMPLICIT
    # It has no fields: the parser keeps all bytes as unknown fields, and merges repetitions.
    file.message_type.add(name=_OPAQUE)
    stamp = file.message_type.add(name=_TIMESTAMP)
    _add(stamp, SECONDS, FieldDescriptor.TYPE_INT64)
    _add(stamp, NANOS, FieldDescriptor.TYPE_INT32)
    _add(file.message_type.add(name=_JSON["struct"]), 1, FieldDescriptor.TYPE_MESSAGE, _ENTRY, repeated=True)
    _add(
        file.message_type.add(name=_JSON["list"]),
        1,
        FieldDescriptor.TYPE_MESSAGE,
        _JSON["value"],
        repeated=True,
    )
    # A list of entries instead of a map keeps order and duplicate keys.
    entry = file.message_type.add(name=_ENTRY)
    _present(_add(entry, 1, FieldDescriptor.TYPE_STRING))
    _add(entry, 2, FieldDescriptor.TYPE_MESSAGE, _JSON["value"])
    value = file.message_type.add(name=_JSON["value"])
    # A real oneof: the parser keeps the last alternative, as the user's descriptor would.
    value.oneof_decl.add(name="kind")
    for number, kind in enumerate((Kind.ENUM, Kind.DOUBLE, Kind.STRING, Kind.BOOL), 1):
        _add(value, number, TYPES[kind]).oneof_index = 0
    for number, name in ((5, _JSON["struct"]), (6, _JSON["list"])):
        _add(value, number, FieldDescriptor.TYPE_MESSAGE, name).oneof_index = 0
    return file


def _linked(file: FileDescriptorProto, name: str) -> Descriptor:
    # A pool of its own, because the names are the same for every topic.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")


def _message(file: FileDescriptorProto, tree: MessageTree, above: tuple[str, ...], recursive: bool) -> str:
    """Add the message of a tree and those inside it; `above`: the names of the messages around it. Returns
    its name.
    """
    # Names do not depend on the user's schema: two topics may use the same ones.
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    inside = (*above, message.name)
    oneofs: dict[int, int] = {}
    for one in (*tree.fields, *(tree.left_out if recursive else ())):
        if one.shape is Shape.MAP:
            # No map entry of Protobuf: its parser would hide entries with unknown fields.
            entry = file.message_type.add(name=f"M{len(file.message_type)}")
            assert one.key is not None
            _present(_add(entry, 1, TYPES[one.key.kind]))
            _present(_item(file, entry, 2, one, inside, recursive))
            _add(message, one.number, FieldDescriptor.TYPE_MESSAGE, entry.name, repeated=True)
            continue
        field = _item(file, message, one.number, one, inside, recursive)
        if one.shape is Shape.REPEATED:
            field.label = FieldDescriptorProto.LABEL_REPEATED
            # A wrapper has the kind of its scalar, but is a message and never packed.
            if one.kind not in LENGTH_DELIMITED and not one.wrapped:
                field.options.features.repeated_field_encoding = (
                    FeatureSet.PACKED if one.packed else FeatureSet.EXPANDED
                )
        # A real oneof, so that the last member on the wire wins, as with the user's descriptor.
        elif one.oneof is not None:
            if one.oneof not in oneofs:
                oneofs[one.oneof] = len(message.oneof_decl)
                message.oneof_decl.add(name=f"o{one.oneof}")
            field.oneof_index = oneofs[one.oneof]
        elif has_wire_presence(one):
            _present(field)
    return message.name


def _item(
    file: FileDescriptorProto,
    message: DescriptorProto,
    number: int,
    tree: FieldTree,
    inside: tuple[str, ...],
    recursive: bool,
) -> FieldDescriptorProto:
    """Add a single field of the tree's type."""
    name = _type_name(file, tree, inside, recursive)
    field = _add(message, number, TYPES[tree.kind] if name is None else FieldDescriptor.TYPE_MESSAGE, name)
    if tree.delimited:
        field.options.features.message_encoding = FeatureSet.DELIMITED
    return field


def _type_name(
    file: FileDescriptorProto, tree: FieldTree, inside: tuple[str, ...], recursive: bool
) -> str | None:
    """The name of the message that a field holds; None for a scalar."""
    if tree.json is not None:
        return _JSON[tree.json]
    if tree.wrapped:
        name = f"Wrapped_{tree.kind.value}"
        # Made on first use; fields of one kind share it.
        if all(one.name != name for one in file.message_type):
            field = _add(file.message_type.add(name=name), 1, TYPES[tree.kind])
            if has_wire_presence(FieldTree(1, "", tree.kind)):
                _present(field)
        return name
    if tree.kind is Kind.TIMESTAMP:
        return _TIMESTAMP
    if tree.kind is Kind.ENCODED:
        # The enclosing message that has this type: the parser follows the recursion to any depth.
        return inside[-tree.above] if recursive and tree.above is not None else _OPAQUE
    return None if tree.message is None else _message(file, tree.message, inside, recursive)


def _add(
    message: DescriptorProto, number: int, kind: int, name: str | None = None, repeated: bool = False
) -> FieldDescriptorProto:
    field = message.field.add(name=f"f{number}", number=number)
    field.type = kind  # type: ignore[assignment]
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if name is not None:
        field.type_name = f".{_PACKAGE}.{name}"
    return field


def _present(field: FieldDescriptorProto) -> None:
    """Give a field presence, so that absent and default differ."""
    # A message has presence in any case.
    if field.type != FieldDescriptorProto.TYPE_MESSAGE:
        field.options.features.field_presence = FeatureSet.EXPLICIT
