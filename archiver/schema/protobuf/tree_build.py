"""Reads the tree of a message type from its linked descriptor.

`build_tree` maps each Protobuf type to a kind, or refuses it. Every field and every extension of the message
is in the tree, by number, or the message is refused by name. Only the wire form decides (presence, packing,
groups), in every syntax and edition. No field is omitted silently: a group beyond the recursion depth is in
`MessageTree.left_out`. A message that only has the name of a well-known type (Timestamp, the wrappers,
Struct, Value, ListValue) but not its shape is an ordinary message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.tree import (
    COLUMNS_MAX,
    DEPTH_MAX,
    LIBRARY_LEVELS_MAX,
    RECURSION_DEPTH,
    EnumTree,
    FieldTree,
    JsonForm,
    Kind,
    MessageTree,
    Shape,
)

_PACKAGE = "google.protobuf."

_WRAPPED: Mapping[str, int] = {
    "DoubleValue": FieldDescriptor.TYPE_DOUBLE,
    "FloatValue": FieldDescriptor.TYPE_FLOAT,
    "Int64Value": FieldDescriptor.TYPE_INT64,
    "UInt64Value": FieldDescriptor.TYPE_UINT64,
    "Int32Value": FieldDescriptor.TYPE_INT32,
    "UInt32Value": FieldDescriptor.TYPE_UINT32,
    "BoolValue": FieldDescriptor.TYPE_BOOL,
    "StringValue": FieldDescriptor.TYPE_STRING,
    "BytesValue": FieldDescriptor.TYPE_BYTES,
}

_FORMS: Mapping[str, JsonForm] = {"Struct": "struct", "Value": "value", "ListValue": "list"}

_VALUE: Mapping[int, int] = {
    1: FieldDescriptor.TYPE_ENUM,
    2: FieldDescriptor.TYPE_DOUBLE,
    3: FieldDescriptor.TYPE_STRING,
    4: FieldDescriptor.TYPE_BOOL,
    5: FieldDescriptor.TYPE_MESSAGE,
    6: FieldDescriptor.TYPE_MESSAGE,
}


def is_timestamp(descriptor: Descriptor) -> bool:
    """Whether it is google.protobuf.Timestamp."""
    return _short(descriptor) == "Timestamp" and _types(descriptor) == {
        1: FieldDescriptor.TYPE_INT64,
        2: FieldDescriptor.TYPE_INT32,
    }


def wrapped_scalar(descriptor: Descriptor) -> int | None:
    """The scalar type inside google.protobuf.Int32Value and the like; None for another message."""
    scalar = _WRAPPED.get(_short(descriptor))
    if scalar is None or _types(descriptor) != {1: scalar} or descriptor.fields[0].has_presence:
        return None
    return scalar


def json_form(descriptor: Descriptor) -> JsonForm | None:
    """Which of Struct, Value and ListValue it is; None for another message. All three are looked at: they
    hold one another.
    """
    form = _FORMS.get(_short(descriptor))
    if form is None:
        return None
    value = descriptor if form == "value" else _inner(descriptor, "fields" if form == "struct" else "values")
    if value is None or _short(value) != "Value" or _types(value) != _VALUE:
        return None
    if len(value.oneofs) != 1 or len(value.oneofs[0].fields) != len(_VALUE):
        return None
    struct, listed = value.fields_by_number[5].message_type, value.fields_by_number[6].message_type
    if _short(struct) != "Struct" or _short(listed) != "ListValue":
        return None
    return form if _short(_inner(struct, "fields")) == _short(_inner(listed, "values")) == "Value" else None


def _inner(descriptor: Descriptor | None, name: str) -> Descriptor | None:
    """The Value inside a Struct or a ListValue that has only the field it should have."""
    if descriptor is None or [(one.number, one.is_repeated) for one in descriptor.fields] != [(1, True)]:
        return None
    entry = descriptor.fields[0].message_type
    if entry is None:
        return None
    if name == "values":
        return entry
    if not entry.GetOptions().map_entry or entry.fields_by_number[1].type != FieldDescriptor.TYPE_STRING:
        return None
    return entry.fields_by_number[2].message_type


def _short(descriptor: Descriptor | None) -> str:
    """The name of a message of Google's package; empty for another one."""
    full = descriptor.full_name if descriptor is not None else ""
    return full.removeprefix(_PACKAGE) if full.startswith(_PACKAGE) else ""


def _types(descriptor: Descriptor) -> Mapping[int, int]:
    """The types of the fields by number; 0 for a repeated one, which none of the shapes above has."""
    return {one.number: 0 if one.is_repeated else one.type for one in descriptor.fields}


def build_tree(
    descriptor: Descriptor,
    recursion_depth: int = RECURSION_DEPTH,
    columns_max: int = COLUMNS_MAX,
    levels_max: int | None = LIBRARY_LEVELS_MAX,
) -> MessageTree:
    """The tree of a message type, with Protobuf's names (of an extension the full name, dots as underscores).

    A message type stands inside itself at most `recursion_depth` times (0 to 10); where it would stand once
    more, the field is ENCODED. Raises ConfigInvalid, naming file, message and field, for a message set and
    for messages that are deeper than DEPTH_MAX or have more than `columns_max` fields at all levels together,
    or more than `levels_max` levels as the libraries count them (None: not counted).
    """
    return _Builder(descriptor, recursion_depth, columns_max, levels_max).message(descriptor, "", ())


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

_LIST_LEVELS, _MAP_LEVELS = 2, 3


class _Builder:
    """Walks one message type; counts fields so that a wide one is refused before it fills memory."""

    def __init__(
        self, root: Descriptor, recursion_depth: int, columns_max: int, levels_max: int | None
    ) -> None:
        self._root = root
        self._columns_max = columns_max
        self._levels_max = levels_max
        self._level = 0
        """Of the message that is being walked, as the libraries count."""
        self._depth = recursion_depth
        self._count = 0
        self._oneofs: dict[str, int | None] = {}
        """By full name, the number that stands for a oneof; None for one with a single member."""

    def message(self, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> MessageTree:
        """The tree of `descriptor`, met at `path` (dotted names) inside the messages `above`."""
        if len(above) >= DEPTH_MAX:
            raise self._refused(
                path,
                f"has more than {DEPTH_MAX} levels of messages; choose a flatter message or a smaller "
                "recursion_depth",
            )
        if descriptor.GetOptions().message_set_wire_format:
            raise self._refused(
                path,
                f"the message set {descriptor.full_name} is not mapped; archive the topic without a "
                "schema, or use a message without it",
            )
        fields = self._fields(descriptor, path, (*above, descriptor.full_name))
        left_out = tuple(one for one in fields if one.kind is Kind.ENCODED and one.delimited)
        return MessageTree(
            tuple(one for one in fields if one not in left_out), descriptor.full_name, left_out
        )

    def _fields(self, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> list[FieldTree]:
        """The fields and extensions of a message by number; `above` ends with the message itself."""
        named = [(one, one.name) for one in descriptor.fields]
        if descriptor.is_extendable:
            named += [
                (one, one.full_name.replace(".", "_"))
                for one in descriptor.file.pool.FindAllExtensions(descriptor)
            ]
        named.sort(key=lambda pair: pair[0].number)
        return [self._leveled(one, name, f"{path}.{name}".lstrip("."), above) for one, name in named]

    def _leveled(
        self, descriptor: FieldDescriptor, name: str, path: str, above: tuple[str, ...]
    ) -> FieldTree:
        """The field, with what is inside it so many levels deeper."""
        entry = descriptor.message_type
        is_map = entry is not None and entry.GetOptions().map_entry
        levels = _MAP_LEVELS if is_map else _LIST_LEVELS if descriptor.is_repeated else 1
        self._level += levels
        found = self._field(descriptor, name, path, above)
        # A Timestamp and a wrapper are messages on the wire, which is the form that passes between the
        # libraries.
        deepest = self._level + (1 if found.kind is Kind.TIMESTAMP or found.wrapped else 0)
        if self._levels_max is not None and deepest > self._levels_max:
            raise self._refused(
                path,
                f"is {deepest} levels deep as Arrow counts them (a message is 1, a list 2, a map 3), "
                f"at most {self._levels_max} work; "
                "choose a flatter message, or a smaller recursion_depth if it holds itself",
            )
        self._level -= levels
        return found

    def _field(self, descriptor: FieldDescriptor, name: str, path: str, above: tuple[str, ...]) -> FieldTree:
        self._count += 1
        if self._count > self._columns_max:
            raise self._refused(
                path,
                f"has more than {self._columns_max} fields at all levels together; choose a smaller "
                "message or recursion_depth",
            )
        entry = descriptor.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = self._field(entry.fields_by_number[1], "key", f"{path}.key", above)
            value = self._item(entry.fields_by_number[2], path, above)
            return replace(
                value, number=descriptor.number, name=name, shape=Shape.MAP, key=FieldTree(1, "key", key.kind)
            )
        item = replace(self._item(descriptor, path, above), number=descriptor.number, name=name)
        if descriptor.is_repeated:
            return replace(item, shape=Shape.REPEATED, packed=descriptor.is_packed)
        return replace(item, presence=descriptor.has_presence, oneof=self._oneof(descriptor))

    def _oneof(self, descriptor: FieldDescriptor) -> int | None:
        oneof = descriptor.containing_oneof  # proto3 `optional` has a hidden one with a single member
        if oneof is None:
            return None
        if oneof.full_name not in self._oneofs:
            numbers = [one.number for one in oneof.fields]
            self._oneofs[oneof.full_name] = min(numbers) if len(numbers) > 1 else None
        return self._oneofs[oneof.full_name]

    def _item(self, descriptor: FieldDescriptor, path: str, above: tuple[str, ...]) -> FieldTree:
        """What one value of a field is; shape, presence and name are the caller's."""
        scalar = _SCALARS.get(descriptor.type)
        if scalar is not None:
            return FieldTree(0, "", scalar, enum=_enum(descriptor.enum_type) if scalar is Kind.ENUM else None)
        message = descriptor.message_type
        if message is None:
            raise self._refused(path, f"Protobuf type {descriptor.type} is not mapped")
        item = FieldTree(0, "", Kind.MESSAGE, delimited=descriptor.type == FieldDescriptor.TYPE_GROUP)
        form, wrapped = json_form(message), wrapped_scalar(message)
        if is_timestamp(message):
            return replace(item, kind=Kind.TIMESTAMP)
        if form is not None:
            return _json(item, form)
        if wrapped is not None:
            return replace(item, kind=_SCALARS[wrapped], wrapped=True)
        if above.count(message.full_name) > self._depth:
            nearest = above[::-1].index(message.full_name) + 1
            return replace(item, kind=Kind.ENCODED, above=nearest)
        return replace(item, message=self.message(message, path, above))

    def _refused(self, path: str, why: str) -> ConfigInvalid:
        where = f", field {path}" if path else ""
        return ConfigInvalid(f"{self._root.file.name}, message {self._root.full_name}{where}: {why}")


def _json(item: FieldTree, form: JsonForm) -> FieldTree:
    return replace(item, kind=Kind.STRING, json=form)


def _enum(descriptor: EnumDescriptor | None) -> EnumTree:
    assert descriptor is not None
    names: dict[int, str] = {}
    for value in descriptor.values:
        names.setdefault(value.number, value.name)
    return EnumTree(tuple(sorted(names.items())))
