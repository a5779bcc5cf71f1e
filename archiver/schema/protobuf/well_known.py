"""Which of Google's well-known types are not mapped as ordinary messages, and whether a message of such a
name really is one.

Owns: the shapes of Timestamp, the wrappers, Struct, Value and ListValue, as field numbers and types.
Promises: a message that only has the name of a well-known type is an ordinary message: its fields become
columns.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from archiver.schema.protobuf.tree import JsonForm

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
