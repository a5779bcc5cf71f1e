"""A small Avro codec: parses schemas, and reads and writes single datums in Avro's binary encoding.

It has only what control events need: no container files, no schema resolution. Wrong bytes raise `Corrupted`,
wrong values raise `InvalidInput`, and no other error is raised. Work and memory are proportional to the
input: no count in a datum makes the reader loop or allocate beyond the datum's length.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archiver.runtime.errors import Corrupted, InvalidInput

# --- Schemas
DEPTH_MAX = 32
"""Most levels of nesting in a schema, with names replaced by their definitions. Events use ten."""
NODES_MAX = 20_000
"""Most types in a schema, with names replaced by their definitions. A short text can refer to a record twice,
inside a record that is referred to twice, and so on: its tree would exceed any memory. A manifest of a table
with 1,000 partition fields has fewer."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts; `properties` holds the logical type and all other attributes."""

    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `size` bytes."""

    name: str
    size: int
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Array:
    """A list; Iceberg's maps with integer keys are arrays of key and value records with the logical type
    `map`.
    """

    items: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Optional:
    """A union of null with one other type. `null_branch` is the position of null (0 or 1)."""

    null_branch: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record."""

    name: str
    schema: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A record; `name` includes the namespace. Its values are sequences in field order."""

    name: str
    fields: tuple[RecordField, ...]


Schema = Primitive | Fixed | Array | Optional | Record


def describe(schema: Schema) -> str:
    """A short description for messages. The text of a whole schema could be far larger than its source."""
    if isinstance(schema, Optional):
        return "an optional value"
    if isinstance(schema, Record):
        return f"the record {schema.name!r:.200}"
    name = {Fixed: "fixed", Array: "array"}.get(type(schema)) or (
        schema.kind if isinstance(schema, Primitive) else ""
    )
    logical = schema.properties.get("logicalType")
    return name if logical is None else f"{name} ({logical!r:.80})"


def parse_schema(text: str) -> Schema:
    """Parse a schema text. Raises `Corrupted` if it is not a schema that events can have."""
    try:
        tree = json.loads(text)
    # json.loads raises RecursionError for deeply nested text.
    except (ValueError, RecursionError) as error:
        raise Corrupted(f"the avro schema text is not json: {error}") from error
    return _SchemaParser().parse(tree, "", 0)


class _SchemaParser:
    """Holds the names defined so far, in text order."""

    def __init__(self) -> None:
        self._named: dict[str, Schema] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        """Levels and types of the schemas parsed so far, by `id`."""
        self._measured: list[Schema] = []
        """Those schemas, kept alive: Python reuses the `id` of a deleted object."""

    def parse(self, tree: object, namespace: str, depth: int) -> Schema:
        """The schema at one place in the text; `depth` is the number of levels above it."""
        schema = self._parsed(tree, namespace, depth)
        # Measured as soon as it is parsed, so that an exponential tree is refused early.
        self._measure(schema)
        return schema

    def _measure(self, schema: Schema) -> tuple[int, int]:
        """Levels and types of a schema. Work is proportional to its own fields, because each part is measured
        once.
        """
        # By `id`, because schemas hold dictionaries and cannot be hashed.
        known = self._sizes.get(id(schema))
        if known is not None:
            return known
        if isinstance(schema, Record):
            parts = [self._measure(one.schema) for one in schema.fields]
        else:
            inner = (
                schema.schema
                if isinstance(schema, Optional)
                else schema.items
                if isinstance(schema, Array)
                else None
            )
            parts = [] if inner is None else [self._measure(inner)]
        # A part counts at every use, as a walk over the tree would visit it.
        size = (1 + max((levels for levels, _ in parts), default=0), 1 + sum(types for _, types in parts))
        if size[0] > DEPTH_MAX + 1 or size[1] > NODES_MAX:
            raise Corrupted(
                f"the avro schema nests deeper than {DEPTH_MAX} levels, or has more than {NODES_MAX} types"
            )
        self._sizes[id(schema)] = size
        self._measured.append(schema)
        return size

    def _parsed(self, tree: object, namespace: str, depth: int) -> Schema:
        if depth > DEPTH_MAX:
            # Refused before Python's own stack overflows.
            raise Corrupted(f"the avro schema nests deeper than {DEPTH_MAX} levels")
        if isinstance(tree, str):
            return Primitive(tree) if tree in PRIMITIVES else self._lookup(tree, namespace)
        if isinstance(tree, list):
            return self._union(tree, namespace, depth)
        if isinstance(tree, dict):
            return self._object(tree, namespace, depth)
        raise Corrupted(f"the avro schema holds {tree!r:.80} where a type is expected")

    def _lookup(self, name: str, namespace: str) -> Schema:
        # This namespace first, then none: Java writes a name without a namespace bare, also inside one.
        found = None
        if "." not in name and namespace:
            found = self._named.get(f"{namespace}.{name}")
        found = found or self._named.get(name)
        if found is None:
            raise Corrupted(f"the avro schema refers to {name!r:.200}, which is not defined before it")
        return found

    def _union(self, branches: list[object], namespace: str, depth: int) -> Optional:
        # Events use unions for optional values only.
        if len(branches) != 2 or branches.count("null") != 1:
            raise Corrupted("the avro schema holds a union that is not null and one other type")
        null_branch = branches.index("null")
        inner = self.parse(branches[1 - null_branch], namespace, depth + 1)
        if isinstance(inner, Optional):
            raise Corrupted("the avro schema holds a union directly inside a union")
        return Optional(null_branch, inner)

    def _object(self, tree: dict[str, Any], namespace: str, depth: int) -> Schema:
        kind = tree.get("type")
        if not isinstance(kind, str):
            raise Corrupted(f"the avro schema holds an object whose type is {kind!r:.80}")
        if kind in PRIMITIVES:
            return Primitive(kind, _properties(tree, ("type",)))
        if kind == "array":
            if "items" not in tree:
                raise Corrupted("the avro schema holds an array without items")
            return Array(
                self.parse(tree["items"], namespace, depth + 1), _properties(tree, ("type", "items"))
            )
        if kind not in ("fixed", "record"):
            raise Corrupted(f"the avro schema holds the type {kind!r:.80}, which control events do not use")
        name, inside = _full_name(tree, namespace)
        # A record that contains itself is not defined yet here, so it is refused. Events have none.
        schema = self._record(tree, name, inside, depth) if kind == "record" else _fixed(tree, name)
        # Checked after the fields were read, because one of them may have defined the name.
        if name in self._named:
            raise Corrupted(f"the avro schema defines {name!r:.200} twice")
        self._named[name] = schema
        return schema

    def _record(self, tree: dict[str, Any], name: str, namespace: str, depth: int) -> Record:
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise Corrupted(f"the avro record {name!r:.200} has no list of fields")
        parsed: list[RecordField] = []
        names: set[str] = set()
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise Corrupted(f"the avro record {name!r:.200} holds a field without name or type")
            if one["name"] in names:
                raise Corrupted(f"the avro record {name!r:.200} holds the field {one['name']!r:.200} twice")
            names.add(one["name"])
            schema = self.parse(one["type"], namespace, depth + 1)
            parsed.append(RecordField(one["name"], schema, _properties(one, ("name", "type"))))
        return Record(name, tuple(parsed))


def _properties(tree: dict[str, Any], but: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in but}


def _full_name(tree: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The full name of a definition, and the namespace inside it."""
    name = tree.get("name")
    inside = tree.get("namespace", namespace)
    if not isinstance(name, str) or not name or not isinstance(inside, str):
        raise Corrupted(f"the avro schema holds a definition named {name!r:.80}")
    # A dotted name is a full name: Avro then ignores the attribute `namespace`.
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{inside}.{name}" if inside else name), inside


def _fixed(tree: dict[str, Any], name: str) -> Fixed:
    size = tree.get("size")
    # JSON's true is an int in Python.
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Corrupted(f"the avro fixed {name!r:.200} has the size {size!r:.80}")
    return Fixed(name, size, _properties(tree, ("type", "name", "namespace", "size")))


# --- Datums
_INT_RANGE = (-(2**31), 2**31 - 1)
_LONG_RANGE = (-(2**63), 2**63 - 1)


class _Reader:
    """A position in a datum, and the number of values that may still be read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        # A value takes at least one byte, except nulls and empty records. Event schemas have few of those per
        # byte.
        self._values_left = 8 * len(data) + 1024

    def take(self, count: int) -> bytes:
        end = self.position + count
        # The count comes from the input and may be negative or huge.
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
            # Without this bound, a long run of high bytes would build a huge integer.
            if shift > 63:
                raise Corrupted(f"a number before {self.position} takes more than ten bytes")
        # Avro's zigzag encoding: even values are positive, odd ones negative.
        value = (value >> 1) ^ -(value & 1)
        if not limits[0] <= value <= limits[1]:
            raise Corrupted(f"the number {value} before {self.position} is out of range")
        return value

    def read(self, schema: Schema) -> Any:
        self._values_left -= 1
        # Arrays of values without bytes could otherwise claim any number of items.
        if self._values_left < 0:
            raise Corrupted("the event claims more values than its bytes can hold")
        if isinstance(schema, Primitive):
            return _READ[schema.kind](self)
        if isinstance(schema, Optional):
            # A union starts with the position of its branch.
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
                # A negative count is followed by the block's size, which only a skipping reader needs.
                count = -count
                self.number(_LONG_RANGE)
            # Checked before the loop, which would allocate items first.
            if count > self._values_left:
                raise Corrupted(
                    f"an array before {self.position} claims {count} items, more than the event can hold"
                )
            items.extend(self.read(schema.items) for _ in range(count))
        return items


def _read_boolean(reader: _Reader) -> bool:
    byte = reader.take(1)[0]
    # Other bytes are refused: encoding them again would give other bytes.
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
    # Floats are little endian in Avro, unlike the length in an event's header.
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
    # Bytes after the datum would be lost when the event is written again.
    if reader.position != len(data):
        raise Corrupted(f"{len(data) - reader.position} bytes follow the event")
    return value


def read_data(schema: Schema, data: bytes, count: int) -> list[Any]:
    """Read `count` datums that fill `data` exactly, as in a block of a container file. Raises `Corrupted`."""
    reader = _Reader(data)
    # A datum may take no bytes at all, so the count needs a bound of its own.
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
        # The zigzag form of 0 or 1 is a single byte.
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
            # Each level adds its name, so the message has the path of the value.
            raise InvalidInput(f"{one.name}: {error}") from error


def _write_array(schema: Array, value: Any, out: bytearray) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"a list expected, got {shown(value)}")
    # An empty array has no block, only the end mark.
    if value:
        _write_number(len(value), out)
        for item in value:
            _write(schema.items, item, out)
    out.append(0)


def _write_number(value: int, out: bytearray) -> None:
    # Zigzag encoding; the shift gives -1 for negative numbers and 0 for others.
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _integer_writer(limits: tuple[int, int]) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        # A bool is an int in Python, and would be written as 0 or 1.
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
    """The value for a message."""
    # Python refuses to convert integers of more than 4,300 digits to text.
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
