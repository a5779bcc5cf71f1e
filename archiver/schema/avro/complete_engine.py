"""The complete engine for Avro: one datum at a time, in Python.

It decodes datums of one writer's schema into the columns of the table's newest schema, and encodes them
again, as a `Plan` says. It is the reference for the fast engine, which gives it every doubtful record. Bytes
behind a datum make the record undecodable. Columns hold what the record says: nothing is filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from archiver.schema.arrow import Array, arrow
from archiver.schema.avro.datum import (
    Malformed,
    TooMany,
    Walk,
    least_bytes,
    normal_of,
    read_block,
    read_index,
    read_int,
    read_long,
    read_size,
)
from archiver.schema.avro.mapping import DURATION
from archiver.schema.avro.model import Kind, Node, Schema
from archiver.schema.avro.pairing import WHOLE, Plan, pair_schemas
from archiver.schema.protobuf.decoded_size import VALUES_MAX, refusal_of
from archiver.schema.protobuf.engine import Decoded, decoded_singly
from archiver.schema.protobuf.error_causes import OUT_OF_YEARS

Value: TypeAlias = Any
Read: TypeAlias = Callable[[bytes, int, Walk], tuple[Value, int]]
Write: TypeAlias = Callable[[Value], bytes]

US_MIN: Final = -62_135_596_800_000_000
US_MAX: Final = 253_402_300_799_999_999
"""Microseconds since 1970 of the first and last moment of the years 1 to 9999."""
DAYS_MIN: Final = -719_162
DAYS_MAX: Final = 2_932_896
DAY_US: Final = 86_400_000_000
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1
_EPOCH, _FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_LOCAL_EPOCH = _EPOCH.replace(tzinfo=None)
_US = timedelta(microseconds=1)


class AvroEngine:
    """Decodes and encodes datums of one schema. Not thread-safe."""

    def __init__(self, writer: Schema, reader: Schema, message_type: pa.StructType) -> None:
        """`message_type`: the columns of `reader`, as in `Engine`."""
        self._name = writer.name
        self._definitions = writer.definitions
        self._type = message_type
        compiler = _Compiler()
        self._read, self._write = compiler.of(pair_schemas(writer, reader, message_type))

    @property
    def message_type(self) -> pa.StructType:
        """As in `Engine`."""
        return self._type

    def decode(self, payloads: Array) -> Decoded:
        """As in `Engine`."""
        return decoded_singly(payloads, self._type, self._decoded)

    def revise(self, payloads: pa.BinaryArray) -> Decoded:
        """As in `Engine`."""
        return self.decode(payloads)

    def error_of(self, payload: bytes) -> str | None:
        """Why a payload cannot be decoded; None if it can be."""
        return self._decoded(payload)[1]

    def value_of(self, payload: bytes) -> tuple[Value, str | None]:
        """The columns of a payload as Python values, or why there are none."""
        value, why = self._decoded(payload)
        return (None, why) if why is not None else (arrow.array([value], self._type)[0].as_py(), None)

    def _decoded(self, payload: bytes) -> tuple[Value, str | None]:
        try:
            value, at = self._read(payload, 0, Walk(self._definitions, VALUES_MAX))
            if at != len(payload):
                raise Malformed(f"{len(payload) - at} bytes are behind it")
        except TooMany:
            return None, refusal_of(self._name)
        except Malformed as error:
            return None, f"cannot be decoded as {self._name}: {error}"
        return value, None

    def encode(self, columns: Array) -> Array:
        """As in `Engine`."""
        try:
            return arrow.array([self._write(row) for row in columns.to_pylist()], pa.binary())
        except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
            raise pa.ArrowInvalid(f"a value does not fit the Avro schema {self._name}: {error}") from error


class _Compiler:
    """Makes a reading and a writing function of each part of a plan."""

    def of(self, plan: Plan) -> tuple[Read, Write]:
        if plan.type is None:
            return _over(plan.node)
        if plan.wrapped:
            return self._wrapped(plan)
        if plan.node.kind is Kind.UNION:
            return self._union(plan)
        if plan.node.is_empty:
            return _present(plan.node)
        if plan.node.kind is Kind.RECORD:
            return self._record(plan)
        if plan.node.kind is Kind.ARRAY:
            return self._array(plan)
        if plan.node.kind is Kind.MAP:
            return self._map(plan)
        return _scalar(plan.node, plan.type)

    def _record(self, plan: Plan) -> tuple[Read, Write]:
        parts = []
        for part, place in zip(plan.parts, plan.places, strict=True):
            name = None if place is None else plan.type.field(place).name
            parts.append((name, *self.of(part)))

        def read(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
            found: dict[str, Value] = {}
            for name, read_part, _ in parts:
                value, at = read_part(data, at, walk)
                if name is not None:
                    found[name] = value
            return found, at

        def write(value: Value) -> bytes:
            if value is None:
                raise ValueError("a record is null")
            return b"".join(
                [write_part(None if name is None else value[name]) for name, _, write_part in parts]
            )

        return read, write

    def _wrapped(self, plan: Plan) -> tuple[Read, Write]:
        place = plan.places[0]
        assert place is not None
        name = plan.type.field(place).name
        read_part, write_part = self.of(plan.parts[0])

        def read(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
            value, at = read_part(data, at, walk)
            return {name: value}, at

        return read, lambda value: write_part(None if value is None else value[name])

    def _union(self, plan: Plan) -> tuple[Read, Write]:
        node = plan.node
        parts = [self.of(part) for part in plan.parts]
        names = [None if place in (None, WHOLE) else plan.type.field(place).name for place in plan.places]

        def read(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
            index, at = read_index(data, at, len(parts), "branch")
            value, at = parts[index][0](data, at, walk)
            if plan.places[index] is None:
                return None, at
            name = names[index]
            return (value if name is None else {name: value}), at

        def write(value: Value) -> bytes:
            index = union_index(plan, value, names)
            name = names[index]
            inner = None if value is None else value if name is None else value[name]
            return write_long(index) + parts[index][1](inner)

        assert node.branches
        return read, write

    def _array(self, plan: Plan) -> tuple[Read, Write]:
        read_item, write_item = self.of(plan.parts[0])
        nothing = _can_be_nothing(plan.parts[0].node)

        def read(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
            found: list[Value] = []
            while True:
                count, at = read_block(data, at)
                if count == 0:
                    return found, at
                if count > len(data) - at and not nothing:
                    raise Malformed("it is cut off")
                walk.add(count)
                for _ in range(count):
                    value, at = read_item(data, at, walk)
                    found.append(value)

        def write(value: Value) -> bytes:
            if value is None:
                raise ValueError("an array is null")
            if not value:
                return b"\x00"
            return write_long(len(value)) + b"".join([write_item(one) for one in value]) + b"\x00"

        return read, write

    def _map(self, plan: Plan) -> tuple[Read, Write]:
        read_item, write_item = self.of(plan.parts[0])

        def read(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
            found: dict[str, Value] = {}
            while True:
                count, at = read_block(data, at)
                if count == 0:
                    return list(found.items()), at
                if count > len(data) - at:
                    raise Malformed("it is cut off")
                walk.add(count)
                for _ in range(count):
                    key, at = _read_text(data, at)
                    found[key], at = read_item(data, at, walk)

        def write(value: Value) -> bytes:
            if value is None:
                raise ValueError("a map is null")
            if not value:
                return b"\x00"
            parts = [write_long(len(value))]
            for key, one in value:
                parts += [_write_text(key), write_item(one)]
            return b"".join([*parts, b"\x00"])

        return read, write


def _can_be_nothing(node: Node) -> bool:
    return least_bytes(node) == 0


def union_index(plan: Plan, value: Value, names: list[str | None]) -> int:
    """The branch that a column's value is of. A value of which the column says nothing is of the first branch
    without a column; its bytes differ from the record's.
    """
    if value is None:
        return null_index(plan)
    for index, (place, name) in enumerate(zip(plan.places, names, strict=True)):
        if place is not None and (name is None or value[name] is not None):
            return index
    return null_index(plan)


def null_index(plan: Plan) -> int:
    """The branch of a null column."""
    kinds = [one.kind for one in plan.node.branches]
    if Kind.NULL in kinds:
        return kinds.index(Kind.NULL)
    if None in plan.places:
        return plan.places.index(None)
    raise ValueError("a union without null is null")


def _over(node: Node) -> tuple[Read, Write]:
    """Reads over a value without a column; writes the shortest value of its type."""
    normal, data = normal_of(node), shortest(node)
    return lambda given, at, walk: (None, walk.skip(normal, given, at)), lambda _: data


def shortest(node: Node) -> bytes:
    """The bytes of the shortest value of a type."""
    if node.kind is Kind.RECORD:
        return b"".join([shortest(one.type) for one in node.fields])
    if node.kind is Kind.UNION:
        return b"\x00" + shortest(node.branches[0])
    sizes = {Kind.NULL: 0, Kind.ENCODED: 0, Kind.FLOAT: 4, Kind.DOUBLE: 8, Kind.FIXED: node.size}
    return bytes(sizes.get(node.kind, 1))


def _present(node: Node) -> tuple[Read, Write]:
    value = True if node.kind is Kind.RECORD else None
    return lambda _, at, __: (value, at), lambda _: b""


# --- Values that hold no others
def write_long(value: int) -> bytes:
    """A zigzag varint. Raises OverflowError beyond 64 bits."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise OverflowError(f"{value} has more than 64 bits")
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    size, at = read_size(data, at)
    try:
        return data[at : at + size].decode("utf-8"), at + size
    except UnicodeDecodeError as error:
        raise Malformed(f"a text is not UTF-8: {error}") from error


def _write_text(value: str) -> bytes:
    data = value.encode()
    return write_long(len(data)) + data


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_size(data, at)
    return data[at : at + size], at + size


def _write_bytes(value: bytes) -> bytes:
    return write_long(len(value)) + value


def _read_fixed(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise Malformed("it is cut off")
    return data[at : at + size], at + size


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    found, at = _read_fixed(1, data, at)
    if found[0] > 1:
        raise Malformed(f"a boolean is {found[0]}")
    return found == b"\x01", at


def _read_float(form: str, size: int, data: bytes, at: int) -> tuple[float, int]:
    found, at = _read_fixed(size, data, at)
    return struct.unpack(form, found)[0], at


def _scalar(node: Node, column: Any) -> tuple[Read, Write]:
    read, write = _physical(node)
    there, back = _conversion(node, column)

    def converted(data: bytes, at: int, walk: Walk) -> tuple[Value, int]:
        if node.kind is Kind.ENCODED:
            end = walk.skip(node.name, data, at)
            return data[at:end], end
        value, at = read(data, at)
        return there(value), at

    def written(value: Value) -> bytes:
        if value is None:
            raise ValueError(f"a value of the type {node.text} is null")
        return write(back(value))

    return converted, written


def _physical(node: Node) -> tuple[Callable[[bytes, int], tuple[Value, int]], Write]:
    """How the bytes of a type are read and written, without its logical type."""
    kind = node.kind
    if kind is Kind.BOOLEAN:
        return _read_boolean, lambda value: b"\x01" if value else b"\x00"
    if kind is Kind.INT:
        return read_int, write_long
    if kind is Kind.LONG:
        return read_long, write_long
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        form, size = ("<f", 4) if kind is Kind.FLOAT else ("<d", 8)
        return partial(_read_float, form, size), partial(_packed, form)
    if kind is Kind.STRING:
        return _read_text, _write_text
    if kind is Kind.BYTES:
        return _read_bytes, _write_bytes
    if kind is Kind.FIXED:
        return partial(_read_fixed, node.size), partial(_fixed, node.size)
    if kind is Kind.ENUM:
        return _enum(node.symbols)
    return _read_bytes, bytes


def _packed(form: str, value: float) -> bytes:
    return struct.pack(form, value)


def _fixed(size: int, value: bytes) -> bytes:
    if len(value) != size:
        raise ValueError(f"a fixed of {size} bytes has {len(value)}")
    return value


def _enum(symbols: tuple[str, ...]) -> tuple[Callable[[bytes, int], tuple[Value, int]], Write]:
    numbers = {symbol: write_long(number) for number, symbol in enumerate(symbols)}

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = read_index(data, at, len(symbols), "symbol")
        return symbols[index], at

    return read, lambda value: numbers[value]


def _conversion(node: Node, column: Any) -> tuple[Callable[[Value], Value], Callable[[Value], Value]]:
    """From a type's own value to the column's, and back."""
    logical = node.logical
    if logical == "uuid":
        return (_uuid_text, _uuid_bytes) if node.kind is Kind.FIXED else (_same, _same)
    if logical == "decimal":
        return partial(_decimal, node), partial(_unscaled, node)
    if logical == "duration":
        return _duration, _duration_bytes
    if logical == "date":
        return _date, lambda value: (value - _FIRST_DAY).days
    if logical.startswith("time-"):
        factor = 1000 if logical.endswith("millis") else 1
        return partial(_time, factor), lambda value: value // factor
    if logical:
        return _timestamps(logical)
    if node.kind in (Kind.INT, Kind.LONG) and pa.types.is_floating(column):
        return float, _whole
    if node.kind is Kind.FLOAT:
        return _same, _same
    if node.kind is Kind.STRING and pa.types.is_binary(column):
        return lambda value: value.encode(), lambda value: value.decode("utf-8")
    if node.kind is Kind.BYTES and pa.types.is_string(column):
        return _text_of, lambda value: value.encode()
    return _same, _same


def _same(value: Value) -> Value:
    return value


def _whole(value: float) -> int:
    return max(_LONG_MIN, min(_LONG_MAX, int(value)))


def _text_of(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"a text is not UTF-8: {error}") from error


def _uuid_text(value: bytes) -> str:
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _uuid_bytes(value: str) -> bytes:
    return bytes.fromhex(value.replace("-", ""))


def _decimal(node: Node, value: bytes) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    if abs(number) >= 10**node.precision:
        raise Malformed(f"a decimal has more than {node.precision} digits")
    # From digits, because operations on decimals round to the context's precision.
    digits = tuple(int(digit) for digit in str(abs(number)))
    return Decimal((int(number < 0), digits, -node.scale))


def _unscaled(node: Node, value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + node.scale)
    number = -number if sign else number
    return _big_endian(node, number)


def _big_endian(node: Node, number: int) -> bytes:
    if node.kind is Kind.FIXED:
        return number.to_bytes(node.size, "big", signed=True)
    # The fewest bytes: one bit is the sign's. A negative number needs as many as its complement.
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _duration(value: bytes) -> Mapping[str, int]:
    return dict(zip(DURATION, struct.unpack("<III", value), strict=True))


def _duration_bytes(value: Mapping[str, int]) -> bytes:
    return struct.pack("<III", *(value[name] for name in DURATION))


def _date(days: int) -> int:
    if not DAYS_MIN <= days <= DAYS_MAX:
        raise Malformed(f"a date {OUT_OF_YEARS}")
    return days


def _time(factor: int, value: int) -> int:
    if not 0 <= value * factor < DAY_US:
        raise Malformed("a time is outside of a day")
    return value * factor


def _timestamps(logical: str) -> tuple[Callable[[Value], Value], Callable[[Value], Value]]:
    epoch = _LOCAL_EPOCH if logical.startswith("local-") else _EPOCH
    unit = logical.rpartition("-")[2]

    def there(value: int) -> int:
        micros = value * 1000 if unit == "millis" else value // 1000 if unit == "nanos" else value
        if not US_MIN <= micros <= US_MAX:
            raise Malformed(f"a timestamp {OUT_OF_YEARS}")
        return micros

    def back(value: datetime) -> int:
        micros = (value - epoch) // _US
        if unit == "nanos":
            # The first and last microsecond of 64 bits of nanoseconds are not whole.
            return max(_LONG_MIN, min(_LONG_MAX, micros * 1000))
        return micros // 1000 if unit == "millis" else micros

    return there, back
