"""Our own tree of a Protobuf message: what is mapped to columns, and nothing else of the descriptor.

Owns: the dataclasses `MessageTree`, `FieldTree`, `EnumTree`, and `build_tree`, which reads them from a descriptor.
Promises: two trees are equal exactly if they give the same columns and the same bytes. Comments, options, file names, the names of nested
message types and default values are not in the tree. Fields stand in the order of their numbers, which is the order of the columns.
Must never: leave out a field it does not know how to map. What this version does not map is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from archiver.errors import ConfigInvalid

RAW, PREFIX, ERR, UNRECOGNIZED = "__raw__", "__prefix__", "__err__", "__unrecognized__"
"""The columns that stand beside the fields of a message: the original bytes, registry envelope, decode error, unknown fields."""

RESERVED_NAMES = (RAW, PREFIX, ERR, UNRECOGNIZED)
"""Not allowed as field names at any level."""

COLUMNS_MAX = 5000
"""Most fields of one message, all levels together: messages that contain one another widely grow exponentially."""

DEPTH_MAX = 50
"""Most levels of messages. Protobuf itself stops reading at 100."""

_TIMESTAMP = "google.protobuf.Timestamp"


class Kind(Enum):
    """The type of one field, by its Protobuf name. The wire form follows from it."""

    DOUBLE = "double"
    FLOAT = "float"
    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    SINT32 = "sint32"
    SINT64 = "sint64"
    FIXED32 = "fixed32"
    FIXED64 = "fixed64"
    SFIXED32 = "sfixed32"
    SFIXED64 = "sfixed64"
    BOOL = "bool"
    STRING = "string"
    BYTES = "bytes"
    ENUM = "enum"
    TIMESTAMP = "timestamp"
    MESSAGE = "message"


class Shape(Enum):
    """How often a field occurs."""

    SINGLE = "single"
    REPEATED = "repeated"
    MAP = "map"


LENGTH_DELIMITED = frozenset({Kind.STRING, Kind.BYTES, Kind.TIMESTAMP, Kind.MESSAGE})
"""Kinds that cannot be packed."""


@dataclass(frozen=True)
class EnumTree:
    """The values of an enum: number to name. Of several names of one number the first declared stands."""

    names: tuple[tuple[int, str], ...]
    """In the order of the numbers."""


@dataclass(frozen=True)
class FieldTree:
    """One field of a message."""

    number: int
    name: str
    kind: Kind
    shape: Shape = Shape.SINGLE
    presence: bool = False
    """Absent and default are different things: proto3 `optional`, proto2, members of a oneof, messages."""
    packed: bool = False
    """Of a repeated number: the encoder writes one block."""
    oneof: int | None = None
    """Smallest field number of the oneof it shares with others; None without one."""
    enum: EnumTree | None = None
    message: MessageTree | None = None
    key: FieldTree | None = None
    """Of a map: the entry's key (number 1). `kind`, `enum` and `message` describe the entry's value (number 2)."""


@dataclass(frozen=True)
class MessageTree:
    """A message: its fields in the order of their numbers."""

    fields: tuple[FieldTree, ...]
    full_name: str = field(compare=False)
    """For messages to people only; renaming a nested type changes no column."""

    def by_number(self) -> Mapping[int, FieldTree]:
        """The fields by number."""
        return {one.number: one for one in self.fields}


def build_tree(descriptor: Descriptor) -> MessageTree:
    """The tree of a message type.

    Raises ConfigInvalid, naming the field, for whatever this version does not map: recursive and empty messages, groups, extensions,
    well-known types other than Timestamp, names that clash, and messages that are too wide or too deep.
    """
    return _Builder(descriptor.full_name).message(descriptor, "", ())


_SCALARS: Mapping[int, Kind] = {
    FieldDescriptor.TYPE_DOUBLE: Kind.DOUBLE,
    FieldDescriptor.TYPE_FLOAT: Kind.FLOAT,
    FieldDescriptor.TYPE_INT32: Kind.INT32,
    FieldDescriptor.TYPE_INT64: Kind.INT64,
    FieldDescriptor.TYPE_UINT32: Kind.UINT32,
    FieldDescriptor.TYPE_UINT64: Kind.UINT64,
    FieldDescriptor.TYPE_SINT32: Kind.SINT32,
    FieldDescriptor.TYPE_SINT64: Kind.SINT64,
    FieldDescriptor.TYPE_FIXED32: Kind.FIXED32,
    FieldDescriptor.TYPE_FIXED64: Kind.FIXED64,
    FieldDescriptor.TYPE_SFIXED32: Kind.SFIXED32,
    FieldDescriptor.TYPE_SFIXED64: Kind.SFIXED64,
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
    FieldDescriptor.TYPE_ENUM: Kind.ENUM,
}


class _Builder:
    """Walks one message type; counts fields so that a wide one is refused before it fills memory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._fields = 0

    def message(self, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> MessageTree:
        """The tree of `descriptor`, met at `path` (dotted names) inside the messages `above`."""
        if descriptor.full_name in above:
            raise self._unmapped(path, f"the recursive message {descriptor.full_name}")
        if len(above) >= DEPTH_MAX:
            raise ConfigInvalid(f"message {self._root}, field {path}: more than {DEPTH_MAX} levels of messages; choose a flatter message")
        if not descriptor.fields:
            raise self._unmapped(path or "(the message itself)", f"the empty message {descriptor.full_name}")
        if descriptor.GetOptions().message_set_wire_format:
            raise self._unmapped(path or "(the message itself)", f"the message set {descriptor.full_name}")
        extensions = descriptor.file.pool.FindAllExtensions(descriptor) if descriptor.is_extendable else []
        if extensions:
            raise self._unmapped(f"{path}.[{extensions[0].full_name}]".lstrip("."), "extensions")
        self._refuse_clashes(descriptor, path)
        inside = (*above, descriptor.full_name)
        ordered = sorted(descriptor.fields, key=lambda one: one.number)
        fields = tuple(self._field(one, f"{path}.{one.name}".lstrip("."), inside) for one in ordered)
        return MessageTree(fields, descriptor.full_name)

    def _field(self, descriptor: FieldDescriptor, path: str, above: tuple[str, ...]) -> FieldTree:
        self._fields += 1
        if self._fields > COLUMNS_MAX:
            raise ConfigInvalid(f"message {self._root} has more than {COLUMNS_MAX} fields at all levels together; choose a smaller message")
        entry = descriptor.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = self._field(entry.fields_by_number[1], f"{path}.key", above)
            kind, enum, message = self._type(entry.fields_by_number[2], path, above)
            return FieldTree(descriptor.number, descriptor.name, kind, Shape.MAP, enum=enum, message=message, key=_entry_key(key))
        kind, enum, message = self._type(descriptor, path, above)
        if descriptor.is_repeated:
            packed = descriptor.is_packed
            return FieldTree(descriptor.number, descriptor.name, kind, Shape.REPEATED, packed=packed, enum=enum, message=message)
        oneof = descriptor.containing_oneof  # proto3 `optional` has a hidden one with a single member
        return FieldTree(
            descriptor.number,
            descriptor.name,
            kind,
            presence=descriptor.has_presence,
            oneof=min(one.number for one in oneof.fields) if oneof is not None and len(oneof.fields) > 1 else None,
            enum=enum,
            message=message,
        )

    def _type(self, descriptor: FieldDescriptor, path: str, above: tuple[str, ...]) -> tuple[Kind, EnumTree | None, MessageTree | None]:
        if descriptor.type == FieldDescriptor.TYPE_GROUP:
            raise self._unmapped(path, "groups (delimited encoding)")
        scalar = _SCALARS.get(descriptor.type)
        if scalar is Kind.ENUM:
            assert descriptor.enum_type is not None
            return scalar, _enum(descriptor.enum_type), None
        if scalar is not None:
            return scalar, None, None
        message = descriptor.message_type
        if message is None:
            raise self._unmapped(path, f"Protobuf type {descriptor.type}")
        if message.full_name == _TIMESTAMP and _is_timestamp(message):
            return Kind.TIMESTAMP, None, None
        if message.full_name.startswith("google.protobuf."):
            raise self._unmapped(path, f"the well-known type {message.full_name}")
        return Kind.MESSAGE, None, self.message(message, path, above)

    def _refuse_clashes(self, descriptor: Descriptor, path: str) -> None:
        seen: dict[str, str] = {name.lower(): name for name in RESERVED_NAMES}
        for one in descriptor.fields:
            other = seen.get(one.name.lower())
            if other is not None:
                where = f"{path}.{one.name}".lstrip(".")
                kind = (
                    "a column the archiver adds itself"
                    if other in RESERVED_NAMES
                    else f"its neighbour {other} but for upper and lower case"
                )
                raise ConfigInvalid(
                    f"message {self._root}, field {where}: the name is the same as {kind}; table columns need distinct names"
                )
            seen[one.name.lower()] = one.name

    def _unmapped(self, path: str, what: str) -> ConfigInvalid:
        return ConfigInvalid(
            f"message {self._root}, field {path}: this version does not map {what} yet; "
            "archive the topic without a schema, or use a message without it"
        )


def _entry_key(key: FieldTree) -> FieldTree:
    """A map's key as part of an entry: never packed, always present."""
    return FieldTree(key.number, key.name, key.kind)


def _enum(descriptor: EnumDescriptor) -> EnumTree:
    names: dict[int, str] = {}
    for value in descriptor.values:
        names.setdefault(value.number, value.name)
    return EnumTree(tuple(sorted(names.items())))


def _is_timestamp(descriptor: Descriptor) -> bool:
    """Whether a message of that name really is the well-known one."""
    fields = {one.number: one.type for one in descriptor.fields}
    return fields == {1: FieldDescriptor.TYPE_INT64, 2: FieldDescriptor.TYPE_INT32}
