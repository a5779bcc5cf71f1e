"""Schemas registered as base64 of a serialized FileDescriptorProto, as Confluent's Python client does.

A schema is read in bounded memory. The Protobuf library needs far more memory than the bytes, so the messages
are counted on the wire first.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from archiver.registry.builtin import builtin_descriptors
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt

ELEMENTS_MAX = 100_000
"""Messages, fields and enum values that one serialized schema may declare. Each can take 100 bytes of memory
for 2 bytes of the schema."""
_DEPTH_MAX = 64
_BASE64 = re.compile(rb"[A-Za-z0-9+/\s]++={0,2}+\s*+")
"""Matches no `.proto` text with a declaration: each has a semicolon or a brace."""
_LENGTH_DELIMITED = 2

File = descriptor_pb2.FileDescriptorProto


def is_serialized(text: bytes) -> bool:
    """Whether a registered schema is base64 and not the text of a `.proto` file."""
    return _BASE64.fullmatch(text) is not None


def parse_serialized(text: bytes, name: str, where: str) -> File:
    """Parse a text for which `is_serialized` holds, under the import name `name`.

    Raises `ConfigInvalid`; its message begins with `where`.
    """
    try:
        data = base64.b64decode(b"".join(text.split()), validate=True)
        _check(data, File.DESCRIPTOR)
        file = File.FromString(data)
    except (binascii.Error, DecodeError, ValueError) as error:
        raise ConfigInvalid(
            f"{where} is neither the text of a .proto file nor base64 of a FileDescriptorProto: {error}"
        ) from error
    file.name = name
    file.ClearField("source_code_info")
    return file


def complete_set(files: Mapping[str, File], root: str, where: str) -> bytes:
    """The descriptor set of `root` with all its imports, from `files` and the built-in files. Raises
    `ConfigInvalid`.
    """
    result = descriptor_pb2.FileDescriptorSet()
    seen = {root}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        file = files.get(name) or builtin_descriptors()[name]
        result.file.add().CopyFrom(file)
        for imported in file.dependency:
            if imported not in files and imported not in builtin_descriptors():
                raise ConfigInvalid(
                    f"{where}: {name} imports {excerpt(imported)!r}, for which there is no reference; "
                    "register the schema again with one"
                )
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return result.SerializeToString()


def _check(data: bytes, top: Descriptor) -> None:
    """Raise `ValueError` if a serialized message has too many messages, too deep nesting, or a string that is
    not UTF-8.

    The Protobuf library accepts such a string and then returns bytes for a name.
    """
    found = 0
    waiting: list[tuple[Descriptor, int, int, int]] = [(top, 0, len(data), 0)]
    while waiting:
        descriptor, at, end, depth = waiting.pop()
        while at < end:
            tag, at = _varint(data, at, end)
            wire = tag & 7
            if wire == _LENGTH_DELIMITED:
                length, at = _varint(data, at, end)
                if length > end - at:
                    raise ValueError("it is cut off")
                field = descriptor.fields_by_number.get(tag >> 3)
                if field is not None and field.type == FieldDescriptor.TYPE_STRING:
                    data[at : at + length].decode("utf-8")
                if field is not None and field.message_type is not None:
                    found += 1
                    if found > ELEMENTS_MAX:
                        raise ValueError(f"it declares more than {ELEMENTS_MAX:,} elements")
                    if depth >= _DEPTH_MAX:
                        raise ValueError(f"it is nested deeper than {_DEPTH_MAX} levels")
                    waiting.append((field.message_type, at, at + length, depth + 1))
                at += length
            else:
                at = _passed(data, wire, at, end)


def _passed(data: bytes, wire: int, at: int, end: int) -> int:
    """The position after a value that is not length-delimited."""
    if wire == 0:
        return _varint(data, at, end)[1]
    size = {1: 8, 5: 4}.get(wire)
    if size is None:
        raise ValueError(f"it has a field of wire type {wire}")
    return at + size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("it is cut off")
