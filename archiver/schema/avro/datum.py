"""Walks over Avro datums without columns: where a value ends, and how many values it holds.

`Walk` reads a value of any type, of a recursive record to its real end. It counts what it reads, so that a
small datum cannot become millions of values (`archiver.schema.avro.size`). Every fault is `Malformed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from archiver.schema.avro.model import Kind, Node

NESTING_MAX: Final = 100
"""Most levels of records inside themselves that a datum may have."""
_VARINT_BITS: Final = 64
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1

Json = Any


class Malformed(Exception):
    """The bytes are no datum of the schema."""


class TooMany(Exception):
    """The datum holds more values than allowed."""


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise Malformed("it is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= _VARINT_BITS + 6:
            raise Malformed("a number is longer than 10 bytes")
    if value >= 2**_VARINT_BITS:
        raise Malformed("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits."""
    value, at = read_long(data, at)
    if not _INT_MIN <= value <= _INT_MAX:
        raise Malformed(f"{value} is no 32-bit number")
    return value, at


def read_size(data: bytes, at: int) -> tuple[int, int]:
    """The length of text or bytes, all of which are there."""
    size, at = read_long(data, at)
    if size < 0:
        raise Malformed(f"a length is {size}")
    if size > len(data) - at:
        raise Malformed("it is cut off")
    return size, at


def read_index(data: bytes, at: int, count: int, what: str) -> tuple[int, int]:
    """The number of a symbol or a branch."""
    index, at = read_long(data, at)
    if not 0 <= index < count:
        raise Malformed(f"{what} {index} does not exist; there are {count}")
    return index, at


def read_block(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in the next block of an array or a map; 0: the last."""
    count, at = read_long(data, at)
    if count < 0:
        # A negative count is followed by the bytes of the block.
        size, at = read_long(data, at)
        if not 0 <= size <= len(data) - at:
            raise Malformed("it is cut off")
        count = -count
    return count, at


class Walk:
    """Reads over values, and counts them."""

    def __init__(self, definitions: Mapping[str, Json], limit: int) -> None:
        """`definitions`: the named types in normal form. Beyond `limit` values `TooMany` is raised."""
        self._definitions = definitions
        self._limit = limit
        self.count = 0

    def add(self, values: int) -> None:
        """Count values."""
        self.count += values
        if self.count > self._limit:
            raise TooMany

    def skip(self, given: Json, data: bytes, at: int, depth: int = 0) -> int:
        """The end of a value of a type in normal form."""
        self.add(1)
        if isinstance(given, list):
            index, at = read_index(data, at, len(given), "branch")
            return self.skip(given[index], data, at, depth)
        kind = given if isinstance(given, str) else given["type"]
        if kind in self._definitions:
            given = self._definitions[kind]
            kind = given["type"]
        if kind == "record":
            if depth >= NESTING_MAX:
                raise Malformed(f"it is nested deeper than {NESTING_MAX} records")
            for one in given["fields"]:
                at = self.skip(one["type"], data, at, depth + 1)
            return at
        if kind in ("array", "map"):
            return self._skip_items(given, data, at, depth)
        return skip_scalar(Kind(kind), given, data, at)

    def _skip_items(self, given: Json, data: bytes, at: int, depth: int) -> int:
        part = given["items" if given["type"] == "array" else "values"]
        while True:
            count, at = read_block(data, at)
            if count == 0:
                return at
            if count > len(data) - at and not self._takes_nothing(part):
                raise Malformed("it is cut off")
            # Each item is a value.
            if count > self._limit - self.count:
                raise TooMany
            for _ in range(count):
                if given["type"] == "map":
                    size, at = read_size(data, at)
                    at += size
                at = self.skip(part, data, at, depth)

    def _takes_nothing(self, given: Json) -> bool:
        """Whether a value may take no bytes."""
        if isinstance(given, list):
            return False
        kind = given if isinstance(given, str) else given["type"]
        if kind in self._definitions:
            given = self._definitions[kind]
            kind = given["type"]
        if kind == "record":
            # A record that holds itself takes a byte, since a union or an array ends it.
            return all(
                one["type"] != given["name"] and self._takes_nothing(one["type"]) for one in given["fields"]
            )
        return bool(kind == "null" or (kind == "fixed" and given["size"] == 0))


def skip_scalar(kind: Kind, given: Json, data: bytes, at: int) -> int:
    """The end of a value that holds no other."""
    if kind is Kind.NULL:
        return at
    if kind in (Kind.STRING, Kind.BYTES):
        size, at = read_size(data, at)
        return at + size
    if kind is Kind.LONG:
        return read_long(data, at)[1]
    if kind is Kind.INT:
        return read_int(data, at)[1]
    if kind is Kind.ENUM:
        return read_index(data, at, len(given["symbols"]), "symbol")[1]
    size = given["size"] if kind is Kind.FIXED else {Kind.BOOLEAN: 1, Kind.FLOAT: 4, Kind.DOUBLE: 8}[kind]
    if size > len(data) - at:
        raise Malformed("it is cut off")
    if kind is Kind.BOOLEAN and data[at] > 1:
        raise Malformed(f"a boolean is {data[at]}")
    return int(at + size)


def normal_of(node: Node) -> Json:
    """The normal form of a node; named types by their name."""
    if node.kind is Kind.UNION:
        return [normal_of(one) for one in node.branches]
    if node.item is not None:
        part = "items" if node.kind is Kind.ARRAY else "values"
        return {"type": node.kind.value, part: normal_of(node.item)}
    return node.name or node.kind.value


def least_bytes(node: Node) -> int:
    """The fewest bytes that a value takes."""
    if node.kind is Kind.RECORD:
        return sum(least_bytes(one.type) for one in node.fields)
    if node.kind is Kind.UNION:
        return 1 + min(least_bytes(one) for one in node.branches)
    sizes = {Kind.NULL: 0, Kind.FIXED: node.size, Kind.FLOAT: 4, Kind.DOUBLE: 8}
    return sizes.get(node.kind, 1)
