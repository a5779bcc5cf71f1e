"""A small Avro codec: single datums in Avro's binary encoding, with a parsed schema (`avro_schema.py`).

It has only what control events need: no container files, no schema resolution. Wrong bytes raise `Corrupted`,
wrong values raise `InvalidInput`, and no other error is raised. Work and memory are proportional to the
input: no count in a datum makes the reader loop or allocate beyond the datum's length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from archiver.events.avro_schema import Array, Fixed, Optional, Primitive, Record, Schema
from archiver.runtime.errors import Corrupted, InvalidInput

_INT_RANGE = (-(2**31), 2**31 - 1)
_LONG_RANGE = (-(2**63), 2**63 - 1)


class _Reader:
    """A position in a datum, and the number of values that may still be read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        # A value takes at least one byte, except records and nulls, of which the schemas have a few per byte
        # at most.
        self._values_left = 8 * len(data) + 1024

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise Corrupted(
                f"the event ends early: {count} bytes expected at {self.position} of {len(self.data)}"
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, limits: tuple[int, int]) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self.data):
                raise Corrupted(f"the event ends inside a number at {self.position}")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise Corrupted(f"a number before {self.position} takes more than ten bytes")
        value = (value >> 1) ^ -(value & 1)
        if not limits[0] <= value <= limits[1]:
            raise Corrupted(f"the number {value} before {self.position} is out of range")
        return value

    def read(self, schema: Schema) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise Corrupted("the event claims more values than its bytes can hold")
        if isinstance(schema, Primitive):
            return _READ[schema.kind](self)
        if isinstance(schema, Optional):
            branch = self.number(_INT_RANGE)
            if branch not in (0, 1):
                raise Corrupted(f"branch {branch} before {self.position} does not exist")
            return None if branch == schema.null_branch else self.read(schema.schema)
        if isinstance(schema, Record):
            return [self.read(one.schema) for one in schema.fields]
        if isinstance(schema, Fixed):
            return self.take(schema.size)
        return self._array(schema)

    def _array(self, schema: Array) -> list[Any]:
        items: list[Any] = []
        while count := self.number(_LONG_RANGE):
            if count < 0:
                # A negative count is followed by the size of the block in bytes, which only a skipping reader
                # needs.
                count = -count
                self.number(_LONG_RANGE)
            if count > self._values_left:
                raise Corrupted(
                    f"an array before {self.position} claims {count} items, more than the event can hold"
                )
            items.extend(self.read(schema.items) for _ in range(count))
        return items


def _read_boolean(reader: _Reader) -> bool:
    byte = reader.take(1)[0]
    if byte > 1:
        raise Corrupted(f"a boolean before {reader.position} is {byte}")
    return byte == 1


def _read_bytes(reader: _Reader) -> bytes:
    return reader.take(reader.number(_LONG_RANGE))


def _read_string(reader: _Reader) -> str:
    data = _read_bytes(reader)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Corrupted(f"a string before {reader.position} is not utf-8: {error}") from error


_READ: dict[str, Callable[[_Reader], Any]] = {
    "null": lambda _: None,
    "boolean": _read_boolean,
    "int": lambda reader: reader.number(_INT_RANGE),
    "long": lambda reader: reader.number(_LONG_RANGE),
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": _read_bytes,
    "string": _read_string,
}


def read_datum(schema: Schema, data: bytes) -> Any:
    """Read one datum that fills `data` exactly: records and arrays as lists, null as None. Raises
    `Corrupted`.
    """
    reader = _Reader(data)
    value = reader.read(schema)
    if reader.position != len(data):
        raise Corrupted(f"{len(data) - reader.position} bytes follow the event")
    return value


def read_data(schema: Schema, data: bytes, count: int) -> list[Any]:
    """Read `count` datums that fill `data` exactly, as in a block of a container file. Raises `Corrupted`."""
    reader = _Reader(data)
    values = [reader.read(schema) for _ in range(min(count, len(data) + 1))]
    if len(values) != count or reader.position != len(data):
        raise Corrupted(f"a block of {len(data)} bytes does not hold the {count} values it claims")
    return values


def write_datum(schema: Schema, value: Any) -> bytes:
    """The bytes of one datum; arrays in one block, as Java writes them. Raises `InvalidInput` with the path
    of the wrong value.
    """
    out = bytearray()
    _write(schema, value, out)
    return bytes(out)


def _write(schema: Schema, value: Any, out: bytearray) -> None:
    if isinstance(schema, Primitive):
        _WRITE[schema.kind](value, out)
    elif isinstance(schema, Optional):
        branch = schema.null_branch if value is None else 1 - schema.null_branch
        out.append(branch << 1)
        if value is not None:
            _write(schema.schema, value, out)
    elif isinstance(schema, Record):
        _write_record(schema, value, out)
    elif isinstance(schema, Fixed):
        if not isinstance(value, bytes) or len(value) != schema.size:
            raise InvalidInput(f"{schema.size} bytes expected, got {shown(value)}")
        out += value
    else:
        _write_array(schema, value, out)


def _write_record(schema: Record, value: Any, out: bytearray) -> None:
    if not isinstance(value, Sequence) or len(value) != len(schema.fields):
        raise InvalidInput(f"{schema.name}: {len(schema.fields)} values expected, got {shown(value)}")
    for one, part in zip(schema.fields, value, strict=True):
        try:
            _write(one.schema, part, out)
        except InvalidInput as error:
            raise InvalidInput(f"{one.name}: {error}") from error


def _write_array(schema: Array, value: Any, out: bytearray) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"a list expected, got {shown(value)}")
    if value:
        _write_number(len(value), out)
        for item in value:
            _write(schema.items, item, out)
    out.append(0)


def _write_number(value: int, out: bytearray) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _integer_writer(limits: tuple[int, int]) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not limits[0] <= value <= limits[1]:
            raise InvalidInput(f"an integer from {limits[0]} to {limits[1]} expected, got {shown(value)}")
        _write_number(value, out)

    return write


def _float_writer(layout: str) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(f"a number expected, got {shown(value)}")
        try:
            out += struct.pack(layout, value)
        except (OverflowError, struct.error) as error:
            raise InvalidInput(f"the number {shown(value)} does not fit: {error}") from error

    return write


def shown(value: object) -> str:
    """The value for a message; Python has no text for very large integers."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.80}"


def _write_null(value: Any, _: bytearray) -> None:
    if value is not None:
        raise InvalidInput(f"null expected, got {shown(value)}")


def _write_boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"true or false expected, got {shown(value)}")
    out.append(value)


def _write_bytes(value: Any, out: bytearray) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput(f"bytes expected, got {shown(value)}")
    _write_number(len(value), out)
    out += value


def _write_string(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"text expected, got {shown(value)}")
    try:
        _write_bytes(value.encode("utf-8"), out)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the text {shown(value)} is not valid unicode: {error}") from error


_WRITE: dict[str, Callable[[Any, bytearray], None]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _integer_writer(_INT_RANGE),
    "long": _integer_writer(_LONG_RANGE),
    "float": _float_writer("<f"),
    "double": _float_writer("<d"),
    "bytes": _write_bytes,
    "string": _write_string,
}
