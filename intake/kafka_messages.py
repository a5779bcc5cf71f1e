"""Readers and writers of Kafka's messages, by the schemas that kio generates from Kafka's own (pure).

kio supplies the schemas alone. Its parser allocates what an array's length states and aborts the process when
that fails: a message of twenty bytes could end a daemon (decision 0076). Here every length is compared with
the bytes that are left before anything is made of it, and the elements of one message are bounded.

Values are plain: times are whole milliseconds, error codes are ints, and a record set is a view of the
message.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Union, get_args, get_origin

PIECE_BYTES_MIN: Final = 16 * 1024
"""Record batches of a response from this size on are pieces of their own. A smaller one is copied, which is
faster than a write to the socket."""
_UNSIGNED_VARINT_BYTES: Final = 5


class Malformed(Exception):
    """The bytes are no message of the stated API and version."""


class ManyElements(Exception):
    """The message has more elements than the caller reads now."""


class Cursor:
    """A position in the bytes of one message."""

    __slots__ = ("at", "data", "elements", "elements_max", "elements_now", "end")

    def __init__(self, data: memoryview, elements_max: int, elements_now: int) -> None:
        """`elements_max` is what a message may have, `elements_now` what the caller reads now."""
        self.data = data
        self.at = 0
        self.end = len(data)
        self.elements = 0
        self.elements_max = elements_max
        self.elements_now = elements_now

    def count(self, elements: int) -> None:
        """Count elements before they are read."""
        self.elements += elements
        if self.elements > self.elements_max:
            raise Malformed(f"more than {self.elements_max} elements")
        if self.elements > self.elements_now:
            raise ManyElements

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        at = self.at
        if count > self.end - at:
            raise Malformed(f"a field of {count} bytes where {self.end - at} are left")
        self.at = at + count
        return self.data[at : at + count]

    def number(self, form: struct.Struct) -> Any:
        """The next number."""
        if form.size > self.end - self.at:
            raise Malformed("the message ends inside a number")
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def varint(self) -> int:
        """The next unsigned varint."""
        at = self.at
        # Most have one byte.
        if at < self.end and (first := self.data[at]) < 0x80:
            self.at = at + 1
            return first
        value = 0
        for place in range(_UNSIGNED_VARINT_BYTES):
            if self.at == self.end:
                raise Malformed("the message ends inside a varint")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise Malformed("a varint of more than 5 bytes")


class Output(bytearray):
    """The bytes of one message, without its large record batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, bytes]] = []
        """Each with its place: the number of these bytes before it."""

    def pieces(self) -> list[bytes | memoryview]:
        """All bytes of the message, in order."""
        rest, start = memoryview(self), 0
        found: list[bytes | memoryview] = []
        for place, batch in self.batches:
            found += [rest[start:place], batch] if place > start else [batch]
            start = place
        return [*found, rest[start:]] if start < len(rest) else found


Read = Callable[[Cursor], Any]
Write = Callable[[Output, Any], None]
_Step = tuple[Callable[[Cursor, dict[str, Any]], None], Write]
"""Reads one or several fields of a struct into a dict, and writes them."""

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(form) for form in (">b", ">h", ">i", ">q"))
_UINT16, _FLOAT64 = struct.Struct(">H"), struct.Struct(">d")
_NUMBERS: Final[Mapping[str, struct.Struct]] = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint16": _UINT16,
    "float64": _FLOAT64,
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _number(form: struct.Struct) -> tuple[Read, Write]:
    def write(out: Output, value: int) -> None:
        out += form.pack(value)

    return (lambda cursor: cursor.number(form)), write


def _boolean() -> tuple[Read, Write]:
    return (lambda cursor: cursor.number(_INT8) != 0), (lambda out, value: out.append(1 if value else 0))


def _uuid() -> tuple[Read, Write]:
    def write(out: Output, value: uuid.UUID | None) -> None:
        out += bytes(16) if value is None else value.bytes

    return (lambda cursor: uuid.UUID(bytes=bytes(cursor.take(16)))), write


def _length(form: struct.Struct, *, flexible: bool) -> tuple[Read, Write]:
    """A length, -1 for null. Flexible versions write it as a varint of one more."""
    if not flexible:
        return _number(form)

    def write(out: Output, value: int) -> None:
        if value < 0x7F:
            out.append(value + 1)
        else:
            _write_varint(out, value + 1)

    return (lambda cursor: cursor.varint() - 1), write


def _content(kind: str, *, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    """Text, bytes or a record set."""
    text = kind == "string"
    read_length, write_length = _length(_INT16 if text else _INT32, flexible=flexible)

    def read(cursor: Cursor) -> str | memoryview | None:
        length = read_length(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"a {kind} of length {length}")
        found = cursor.take(length)
        if not text:
            return found
        try:
            return str(found, "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"text that is not UTF-8: {error.reason}") from error

    def write(out: Output, value: str | bytes | Sequence[bytes] | None) -> None:
        if value is None:
            write_length(out, -1)
            return
        if isinstance(value, list):
            write_length(out, sum(map(len, value)))
            for batch in value:
                if len(batch) >= PIECE_BYTES_MIN:
                    out.batches.append((len(out), batch))
                else:
                    out += batch
            return
        if isinstance(value, str):
            value = value.encode()
        write_length(out, len(value))
        out += value  # type: ignore[arg-type]

    return read, write


def _array(item: tuple[Read, Write], *, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_item, write_item = item
    read_length, write_length = _length(_INT32, flexible=flexible)

    def read(cursor: Cursor) -> list[Any] | None:
        length = read_length(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"an array of length {length}")
        # Every element takes at least a byte, so a length beyond the bytes left is false.
        if length > cursor.end - cursor.at:
            raise Malformed(f"an array of {length} elements where {cursor.end - cursor.at} bytes are left")
        cursor.count(length)
        return [read_item(cursor) for _ in range(length)]

    def write(out: Output, value: Sequence[Any] | None) -> None:
        if value is None:
            write_length(out, -1)
            return
        write_length(out, len(value))
        for one in value:
            write_item(out, one)

    return read, write


def _nullable_struct(item: tuple[Read, Write]) -> tuple[Read, Write]:
    # A struct that may be null has a byte before it: -1 for null, 1 else (KIP-893).
    def read(cursor: Cursor) -> Any:
        return None if cursor.number(_INT8) < 0 else item[0](cursor)

    def write(out: Output, value: Any) -> None:
        out += _INT8.pack(-1 if value is None else 1)
        if value is not None:
            item[1](out, value)

    return read, write


@dataclass(frozen=True, slots=True)
class _Member:
    """One field of a message."""

    name: str
    tag: int | None
    read: Read
    write: Write
    default: Any
    """Value of a field that a response leaves out; `MISSING` if it must not."""
    form: struct.Struct | None
    """Of a number."""


def _plain(value: Any) -> Any:
    """A default of kio as the plain value that this module uses."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


_ZERO: Final[Mapping[str, Any]] = {"bool": False, "string": "", "bytes": b"", "uuid": None, "float64": 0.0}


def _member(field: Field[Any], *, flexible: bool, in_header: bool) -> _Member:
    kind = field.metadata.get("kafka_type", "")
    tag = field.metadata.get("tag")
    declared = field.type
    # A tagged field is left out where it has no value, so its content is never null.
    nullable = False
    if get_origin(declared) in (UnionType, Union):
        nullable = tag is None
        (declared,) = (one for one in get_args(declared) if one is not NoneType)
    is_array = get_origin(declared) is tuple
    element: Any = get_args(declared)[0] if is_array else declared
    if is_dataclass(element):
        schema: Any = element
        item = codec(schema)
        if not is_array and nullable:
            item = _nullable_struct(item)
    elif kind in _NUMBERS:
        item = _number(_NUMBERS[kind])
    elif kind == "bool":
        item = _boolean()
    elif kind == "uuid":
        item = _uuid()
    else:
        # The client id keeps its old form in every version (KIP-511).
        flexible_text = flexible and not (in_header and field.name == "client_id")
        item = _content(kind, flexible=flexible_text, nullable=nullable and not is_array)
    if is_array:
        item = _array(item, flexible=flexible, nullable=nullable)
    default = _plain(field.default) if field.default is not MISSING else MISSING
    if default is None and kind == "datetime_i64":
        # No time.
        default = -1
    if kind.startswith("timedelta") and default is MISSING:
        default = 0
    if tag is not None and default is MISSING:
        default = () if is_array else _ZERO.get(kind, 0)
    return _Member(field.name, tag, *item, default, None if is_array else _NUMBERS.get(kind))


def _adjacent_numbers(schema: str, members: Sequence[_Member], form: struct.Struct) -> _Step:
    """Numbers that follow each other: one call takes as long for all of them as for one."""
    names = tuple(one.name for one in members)
    values_of = [(one.name, one.default) for one in members]

    def read(cursor: Cursor, found: dict[str, Any]) -> None:
        at = cursor.at
        if form.size > cursor.end - at:
            raise Malformed("the message ends inside a number")
        found.update(zip(names, form.unpack_from(cursor.data, at), strict=True))
        cursor.at = at + form.size

    def write(out: Output, message: Mapping[str, Any]) -> None:
        values = [message.get(name, default) for name, default in values_of]
        try:
            out += form.pack(*values)
        except struct.error:
            for name, value in zip(names, values, strict=True):
                if value is MISSING:
                    raise KeyError(f"{schema} needs {name}") from None
            raise

    return read, write


def _single(schema: str, member: _Member) -> _Step:
    name, default, read_value, write_value = member.name, member.default, member.read, member.write

    def read(cursor: Cursor, found: dict[str, Any]) -> None:
        found[name] = read_value(cursor)

    def write(out: Output, message: Mapping[str, Any]) -> None:
        value = message.get(name, default)
        if value is MISSING:
            raise KeyError(f"{schema} needs {name}")
        write_value(out, value)

    return read, write


def _steps(schema: str, members: Sequence[_Member]) -> list[_Step]:
    """What reads and writes the fields that have no tag, in their order."""
    steps: list[_Step] = []
    for numbers, run in groupby(members, key=lambda one: one.form is not None):
        found = list(run)
        if numbers and len(found) > 1:
            forms = "".join(one.form.format[1:] for one in found if one.form is not None)
            steps.append(_adjacent_numbers(schema, found, struct.Struct(">" + forms)))
        else:
            steps += [_single(schema, one) for one in found]
    return steps


@cache
def codec(schema: Any) -> tuple[Read, Write]:
    """Reader and writer of one struct of a schema."""
    flexible = bool(schema.__flexible__)
    in_header = schema.__name__ == "RequestHeader"
    members = [_member(field, flexible=flexible, in_header=in_header) for field in fields(schema)]
    tagged = {one.tag: one for one in sorted(members, key=lambda one: one.tag or 0) if one.tag is not None}
    steps = _steps(schema.__name__, [one for one in members if one.tag is None])
    readers, writers = [read for read, _ in steps], [write for _, write in steps]

    def read(cursor: Cursor) -> SimpleNamespace:
        found: dict[str, Any] = {}
        for one in readers:
            one(cursor, found)
        message = SimpleNamespace(**found)
        if flexible:
            for member in tagged.values():
                setattr(message, member.name, member.default)
            _read_tags(cursor, tagged, message)
        return message

    def write(out: Output, message: Mapping[str, Any]) -> None:
        for one in writers:
            one(out, message)
        if flexible:
            _write_tags(out, tagged, message)

    return read, write


def _write_tags(out: Output, tagged: Mapping[int, _Member], message: Mapping[str, Any]) -> None:
    found = [(tag, one) for tag, one in tagged.items() if message.get(one.name, one.default) != one.default]
    _write_varint(out, len(found))
    for tag, one in found:
        content = Output()
        one.write(content, message[one.name])
        _write_varint(out, tag)
        _write_varint(out, len(content))
        out += content


def _read_tags(cursor: Cursor, tagged: Mapping[int, _Member], message: SimpleNamespace) -> None:
    count = cursor.varint()
    if not count:
        return
    # A tag takes at least two bytes.
    if 2 * count > cursor.end - cursor.at:
        raise Malformed(f"{count} tagged fields where {cursor.end - cursor.at} bytes are left")
    cursor.count(count)
    before = -1
    for _ in range(count):
        tag, size = cursor.varint(), cursor.varint()
        if tag <= before:
            raise Malformed("tagged fields are not in ascending order")
        before = tag
        content = cursor.take(size)
        # Unknown tags are skipped: newer clients may send them in any flexible version.
        if tag in tagged:
            inner = Cursor(content, cursor.elements_max, cursor.elements_now)
            inner.elements = cursor.elements
            setattr(message, tagged[tag].name, tagged[tag].read(inner))
            cursor.elements = inner.elements
            if inner.at != inner.end:
                raise Malformed(f"tagged field {tag} has {inner.end - inner.at} bytes too many")
