"""Our own descriptor of a message's wire form, made from its tree: what both engines give to their library, not the user's descriptor.

Owns: the translation of a tree to a proto3 file of messages `M0`, `M1`, … with fields `f1`, `f2`, … by number.
Promises: reads and writes the same bytes as the user's message, with nothing lost on the way to the library: enums are int32 (so unknown
numbers stay, closed or open), a Timestamp is its seconds and nanoseconds, a map is a list of entries (so order and double keys are seen),
and floats without presence have it (so -0.0 is not taken for absent).
Must never: depend on names in the user's schema; two topics may use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from archiver.schema.tree import LENGTH_DELIMITED, FieldTree, Kind, MessageTree, Shape

_PACKAGE = "archiver.wire"
_SECONDS, _NANOS = 1, 2

_TYPES: Mapping[Kind, int] = {
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
    Kind.ENUM: FieldDescriptor.TYPE_INT32,
    Kind.TIMESTAMP: FieldDescriptor.TYPE_MESSAGE,
    Kind.MESSAGE: FieldDescriptor.TYPE_MESSAGE,
}


def wire_descriptor(tree: MessageTree, oneofs: bool = False) -> Descriptor:
    """The linked descriptor of the tree's wire form, in a pool of its own.

    Members of a oneof are separate fields with presence, so that a record that sets several is seen; with `oneofs` they are one, and the
    library lets the last one win.
    """
    file = descriptor_pb2.FileDescriptorProto(name="wire.proto", package=_PACKAGE, syntax="proto3")
    stamp = file.message_type.add(name="Timestamp")
    _add(stamp, _SECONDS, FieldDescriptor.TYPE_INT64)
    _add(stamp, _NANOS, FieldDescriptor.TYPE_INT32)
    name = _message(file, tree, oneofs)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")


def has_wire_presence(tree: FieldTree) -> bool:
    """Whether a single field of the wire form tells absent from default."""
    return tree.presence or tree.kind in (Kind.DOUBLE, Kind.FLOAT, Kind.TIMESTAMP, Kind.MESSAGE)


def _message(file: descriptor_pb2.FileDescriptorProto, tree: MessageTree, oneofs: bool) -> str:
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for one in tree.fields:
        if one.shape is Shape.MAP:
            entry = file.message_type.add(name=f"M{len(file.message_type)}")
            assert one.key is not None
            _add(entry, 1, _TYPES[one.key.kind], optional=True)
            _typed(file, _add(entry, 2, _TYPES[one.kind], optional=True), one, oneofs)
            field = _add(message, one.number, FieldDescriptor.TYPE_MESSAGE, repeated=True)
            field.type_name = f".{_PACKAGE}.{entry.name}"
            continue
        repeated = one.shape is Shape.REPEATED
        field = _add(message, one.number, _TYPES[one.kind], repeated, optional=not repeated and has_wire_presence(one))
        if repeated and one.kind not in LENGTH_DELIMITED:
            field.options.packed = one.packed
        _typed(file, field, one, oneofs)
    if oneofs:
        _join_oneofs(message, tree)
    return message.name


def _join_oneofs(message: descriptor_pb2.DescriptorProto, tree: MessageTree) -> None:
    """Make the members of each oneof members of one in the wire form as well. Hidden oneofs must come after real ones."""
    groups = {one.number: one.oneof for one in tree.fields if one.oneof is not None}
    del message.oneof_decl[:]
    index: dict[int, int] = {}
    for group in sorted(set(groups.values())):
        index[group] = len(message.oneof_decl)
        message.oneof_decl.add(name=f"o{group}")
    for field in message.field:
        if field.number in groups:
            field.ClearField("proto3_optional")
            field.oneof_index = index[groups[field.number]]
        elif field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_f{field.number}")


def _typed(file: descriptor_pb2.FileDescriptorProto, field: descriptor_pb2.FieldDescriptorProto, tree: FieldTree, oneofs: bool) -> None:
    if tree.kind is Kind.TIMESTAMP:
        field.type_name = f".{_PACKAGE}.Timestamp"
    elif tree.message is not None:
        field.type_name = f".{_PACKAGE}.{_message(file, tree.message, oneofs)}"


def _add(
    message: descriptor_pb2.DescriptorProto, number: int, kind: int, repeated: bool = False, optional: bool = False
) -> descriptor_pb2.FieldDescriptorProto:
    field = message.field.add(name=f"f{number}", number=number)
    field.type = kind  # type: ignore[assignment]
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED if repeated else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    if optional and kind != FieldDescriptor.TYPE_MESSAGE:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_f{number}")
    return field
