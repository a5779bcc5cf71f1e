"""The archiver's own descriptor of a message's wire form, made from its tree; ptars gets it instead of the
user's descriptor.

It translates a tree to a proto3 file of messages `M0`, `M1`, … with fields `f1`, `f2`, … by number;
`complete_wire` makes that of the complete engine. It reads and writes the same bytes as the user's message,
and loses nothing on the way to the library. Names do not depend on the user's schema: two topics may use the
same ones.

Groups. ptars accepts a descriptor with groups but neither reads nor writes them: it skips them, and accepts a
length-delimited message instead. So a delimited field is a placeholder of bytes here. A record with the group
loses it in ptars, does not match its bytes and is revised by the complete engine. A record with the
placeholder (to Protobuf an unknown field) is marked doubtful by `wire_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from archiver.schema.protobuf.tree import LENGTH_DELIMITED, FieldTree, Kind, MessageTree, Shape

_PACKAGE = "archiver.wire"
SECONDS, NANOS = 1, 2
"""The field numbers of a Timestamp."""

TYPES: Mapping[Kind, int] = {
    Kind.DOUBLE: FieldDescriptor.TYPE_DOUBLE,
    Kind.FLOAT: FieldDescriptor.TYPE_FLOAT,
    Kind.INT32: FieldDescriptor.TYPE_INT32,
    Kind.INT64: FieldDescriptor.TYPE_INT64,
    Kind.UINT32: FieldDescriptor.TYPE_UINT32,
    Kind.UINT64: FieldDescriptor.TYPE_UINT64,
    Kind.SINT32: FieldDescriptor.TYPE_SINT32,
    Kind.SINT64: FieldDescriptor.TYPE_SINT64,
    Kind.FIXED32: FieldDescriptor.TYPE_FIXED32,
    Kind.FIXED64: FieldDescriptor.TYPE_FIXED64,
    Kind.SFIXED32: FieldDescriptor.TYPE_SFIXED32,
    Kind.SFIXED64: FieldDescriptor.TYPE_SFIXED64,
    Kind.BOOL: FieldDescriptor.TYPE_BOOL,
    Kind.STRING: FieldDescriptor.TYPE_STRING,
    Kind.BYTES: FieldDescriptor.TYPE_BYTES,
    # As a number, so that numbers that the enum does not have are kept, closed or open.
    Kind.ENUM: FieldDescriptor.TYPE_INT32,
    Kind.TIMESTAMP: FieldDescriptor.TYPE_MESSAGE,
    Kind.MESSAGE: FieldDescriptor.TYPE_MESSAGE,
    Kind.ENCODED: FieldDescriptor.TYPE_BYTES,
}
"""The wire type of a kind, unless another property of the field changes it."""


def wire_descriptor(tree: MessageTree) -> Descriptor:
    """The linked descriptor of the tree's wire form, in a pool of its own.

    Members of a oneof are separate fields with presence, so that a record that sets several is detected.
    """
    file = descriptor_pb2.FileDescriptorProto(name="wire.proto", package=_PACKAGE, syntax="proto3")
    stamp = file.message_type.add(name="Timestamp")
    _add(stamp, SECONDS, FieldDescriptor.TYPE_INT64)
    _add(stamp, NANOS, FieldDescriptor.TYPE_INT32)
    name = _message(file, tree)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")


def flat_descriptors(descriptor: Descriptor) -> dict[str, Descriptor]:
    """Every message of the descriptor's file by its name, with bytes in place of the messages inside it. The
    bytes of a message are the same in both forms.
    """
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    for message in file.message_type:
        for field in message.field:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                field.ClearField("type_name")
                field.type = FieldDescriptor.TYPE_BYTES  # type: ignore[assignment]
                if field.label == FieldDescriptor.LABEL_OPTIONAL:
                    # An empty message is not the same as none.
                    _make_optional(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in names}


def has_wire_presence(tree: FieldTree) -> bool:
    """Whether absent and default differ for a single field of the wire form."""
    # Floats always have presence, so that -0.0 does not count as absent.
    return tree.presence or tree.kind in (Kind.DOUBLE, Kind.FLOAT, Kind.TIMESTAMP, Kind.MESSAGE)


def is_opaque(tree: FieldTree) -> bool:
    """Whether a value of the field is a message that stays bytes in the wire form, or a placeholder."""
    return tree.delimited or tree.json is not None or tree.kind is Kind.ENCODED


def _message(file: descriptor_pb2.FileDescriptorProto, tree: MessageTree) -> str:
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for one in tree.fields:
        if one.shape is Shape.MAP:
            # A list of entries instead of a map, so that order and duplicate keys are visible.
            entry = file.message_type.add(name=f"M{len(file.message_type)}")
            assert one.key is not None
            _add(entry, 1, TYPES[one.key.kind], optional=True)
            _typed(file, _add(entry, 2, _type(one), optional=True), one)
            field = _add(message, one.number, FieldDescriptor.TYPE_MESSAGE, repeated=True)
            field.type_name = f".{_PACKAGE}.{entry.name}"
            continue
        repeated = one.shape is Shape.REPEATED
        field = _add(
            message, one.number, _type(one), repeated, optional=not repeated and has_wire_presence(one)
        )
        # A wrapper has the kind of its scalar, but is a message and never packed.
        if repeated and one.kind not in LENGTH_DELIMITED and not one.wrapped:
            field.options.packed = one.packed
        _typed(file, field, one)
    return message.name


def _type(tree: FieldTree) -> int:
    if is_opaque(tree):
        # JSON and encoded messages stay bytes; a group is a placeholder that is never written.
        return FieldDescriptor.TYPE_BYTES
    return FieldDescriptor.TYPE_MESSAGE if tree.wrapped else TYPES[tree.kind]


def _typed(
    file: descriptor_pb2.FileDescriptorProto, field: descriptor_pb2.FieldDescriptorProto, tree: FieldTree
) -> None:
    if is_opaque(tree):
        return
    if tree.wrapped:
        field.type_name = f".{_PACKAGE}.{_wrapper(file, tree.kind)}"
    elif tree.kind is Kind.TIMESTAMP:
        field.type_name = f".{_PACKAGE}.Timestamp"
    elif tree.message is not None:
        field.type_name = f".{_PACKAGE}.{_message(file, tree.message)}"


def _wrapper(file: descriptor_pb2.FileDescriptorProto, kind: Kind) -> str:
    """The message of one scalar, made when it is first needed."""
    name = f"Wrapped_{kind.value}"
    if all(one.name != name for one in file.message_type):
        _add(file.message_type.add(name=name), 1, TYPES[kind], optional=kind in (Kind.DOUBLE, Kind.FLOAT))
    return name


def _add(
    message: descriptor_pb2.DescriptorProto,
    number: int,
    kind: int,
    repeated: bool = False,
    optional: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    field = message.field.add(name=f"f{number}", number=number)
    field.type = kind  # type: ignore[assignment]
    field.label = (
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if repeated
        else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    )
    if optional and kind != FieldDescriptor.TYPE_MESSAGE:
        _make_optional(message, field)
    return field


def _make_optional(
    message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto
) -> None:
    # proto3 stores presence as a oneof with a single member.
    field.proto3_optional = True
    field.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name=f"_{field.name}")
