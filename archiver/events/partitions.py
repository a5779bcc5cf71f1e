"""Partition tuples: the fields of a table's spec, their types and Avro forms, and values on the wire and in
JSON.

These are Iceberg's rules for a partition tuple in Avro. A type or value that does not fit raises
`InvalidInput` if the caller passed it, and `Corrupted` if it is in stored bytes. This module reads and writes
no Avro bytes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
import unicodedata
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archiver.events.avro import Fixed, Primitive, Schema, describe, shown
from archiver.events.types import PartitionField, PartitionValue
from archiver.runtime.errors import Corrupted, InvalidInput

# --- Types and their Avro forms
UUID_FIXED = {"type": "fixed", "name": "uuid_fixed", "namespace": "", "size": 16, "logicalType": "uuid"}
"""Java's schema of every uuid in an event."""

_DECIMAL_PRECISION_MAX = 38

_PLAIN: dict[str, str | dict[str, Any]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    # Only `adjust-to-utc` distinguishes timestamps with and without a zone.
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    "uuid": UUID_FIXED,
}
_WHOLE_NUMBERS = frozenset(
    {"int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"}
)
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)")
# At most nine digits, so that the size fits in 32 bits.
_FIXED = re.compile(r"fixed\[\s*([0-9]{1,9})\s*\]")


@dataclass(frozen=True, slots=True)
class PartitionType:
    """A parsed primitive type."""

    name: str
    """`decimal`, `fixed`, or the whole type."""
    precision: int = 0
    """Decimals only: digits."""
    scale: int = 0
    """Decimals only: digits after the point."""
    size: int = 0
    """Bytes of a fixed or decimal on the wire."""

    def __str__(self) -> str:
        """Iceberg's spelling."""
        if self.name == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return f"fixed[{self.size}]" if self.name == "fixed" else self.name


def parse_type(text: str) -> PartitionType:
    """Parse an Iceberg type name. Raises `InvalidInput` unless it is a primitive type that a partition can
    have.
    """
    if text in _PLAIN:
        return PartitionType(text)
    if found := _DECIMAL.fullmatch(text):
        return _decimal_type(int(found[1]), int(found[2]), text)
    if found := _FIXED.fullmatch(text):
        return PartitionType("fixed", size=int(found[1]))
    raise InvalidInput(f"{text!r:.80} is not an iceberg type that a partition field can have")


def _decimal_type(precision: int, scale: int, text: str) -> PartitionType:
    if not 1 <= precision <= _DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        raise InvalidInput(
            f"{text!r:.80} needs 1 to {_DECIMAL_PRECISION_MAX} digits, and a scale of at most as many"
        )
    # The fewest bytes that hold all numbers of that precision and a sign bit, as in Java.
    size = ((10**precision - 1).bit_length() + 8) // 8
    return PartitionType("decimal", precision, scale, size)


def avro_type(kind: PartitionType) -> str | dict[str, Any]:
    """The Avro schema, as JSON, that Java writes for this type."""
    if kind.name == "fixed":
        return {"type": "fixed", "name": f"fixed_{kind.size}", "namespace": "", "size": kind.size}
    if kind.name != "decimal":
        return _PLAIN[kind.name]
    return {
        "type": "fixed",
        "name": f"decimal_{kind.precision}_{kind.scale}",
        "namespace": "",
        "size": kind.size,
        "logicalType": "decimal",
        "precision": kind.precision,
        "scale": kind.scale,
    }


def type_of(node: Schema) -> PartitionType:
    """The Iceberg type of an Avro schema. Raises `Corrupted` if there is none."""
    if isinstance(node, Fixed):
        return _type_of_fixed(node)
    if isinstance(node, Primitive):
        logical, utc = node.properties.get("logicalType"), node.properties.get("adjust-to-utc")
        for name, form in _PLAIN.items():
            # All three attributes must match: timestamps differ only in the last two.
            full = {"type": form} if isinstance(form, str) else form
            if (
                full["type"] == node.kind
                and full.get("logicalType") == logical
                and full.get("adjust-to-utc") == utc
            ):
                return PartitionType(name)
    raise Corrupted(f"a partition field has the avro type {describe(node)}, which no iceberg type has")


def _type_of_fixed(node: Fixed) -> PartitionType:
    logical = node.properties.get("logicalType")
    if logical is None:
        return PartitionType("fixed", size=node.size)
    if logical == "uuid" and node.size == 16:
        return PartitionType("uuid")
    precision, scale = node.properties.get("precision"), node.properties.get("scale", 0)
    if logical == "decimal" and isinstance(precision, int) and isinstance(scale, int):
        try:
            kind = _decimal_type(precision, scale, f"decimal({precision}, {scale})")
        except InvalidInput as error:
            raise Corrupted(str(error)) from error
        # Java writes exactly this size; another one would not give the same bytes again.
        if kind.size == node.size:
            return kind
    raise Corrupted(f"a partition field has the avro type {describe(node)}, which no iceberg type has")


def avro_name(name: str) -> str:
    """Java's Avro name of a partition field: other characters become `_x` and their UTF-16 code, a leading
    digit is prefixed with `_`.
    """
    if not name:
        raise InvalidInput("a partition field has an empty name")
    try:
        # Java sees a character beyond U+FFFF as two UTF-16 units.
        units = name.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the partition field name {name!r:.80} is not valid unicode: {error}") from error
    characters = [chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2)]
    return "".join(_avro_character(character, first=at == 0) for at, character in enumerate(characters))


def _avro_character(character: str, first: bool) -> str:
    # The categories of Java's Character.isLetter and isDigit.
    category = unicodedata.category(character)
    if character == "_" or category[0] == "L" or (category == "Nd" and not first):
        return character
    return f"_{character}" if category == "Nd" else f"_x{ord(character):X}"


# --- Values
def to_wire(kind: PartitionType, value: PartitionValue) -> Any:
    """The value for the Avro writer, which checks plain types itself. Raises `InvalidInput`."""
    if value is None:
        return None
    if kind.name == "decimal":
        return _decimal_bytes(kind, value)
    if kind.name == "uuid":
        if not isinstance(value, uuid.UUID):
            raise InvalidInput(f"a uuid expected, got {shown(value)}")
        return value.bytes
    # Before `date`, because a datetime is a date in Python.
    if isinstance(value, dt.datetime):
        return _timestamp(kind, value)
    if isinstance(value, dt.date):
        if kind.name != "date":
            raise InvalidInput(f"a {kind} expected, got {shown(value)}")
        return value.toordinal() - dt.date(1970, 1, 1).toordinal()
    return value


def _timestamp(kind: PartitionType, value: dt.datetime) -> int:
    with_zone = value.tzinfo is not None
    name = kind.name.removesuffix("_ns")
    if name != ("timestamptz" if with_zone else "timestamp"):
        raise InvalidInput(f"a {kind} expected, got {shown(value)}")
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if with_zone else None)
    # Integer arithmetic, because a float is not exact to the microsecond.
    micros = (value - epoch) // dt.timedelta(microseconds=1)
    return micros if name == kind.name else micros * 1000


def _decimal_bytes(kind: PartitionType, value: PartitionValue) -> bytes:
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        raise InvalidInput(f"a {kind} expected, got {shown(value)}")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    # The significant digits are shifted as text, because decimal arithmetic would round to its context.
    significant = "".join(map(str, digits)).lstrip("0")
    shift = exponent + kind.scale
    if significant and shift < 0:
        significant, dropped = significant[:shift], significant[shift:]
        if dropped.strip("0"):
            raise InvalidInput(f"{shown(value)} has more than {kind.scale} digits after the point")
        shift = 0
    # Before the power below, because an exponent of the caller may be huge.
    if significant and len(significant) + shift > kind.precision:
        raise InvalidInput(f"{shown(value)} has too many digits for {kind}")
    unscaled = int(significant) * 10**shift if significant else 0
    return (-unscaled if sign else unscaled).to_bytes(kind.size, "big", signed=True)


def from_wire(kind: PartitionType, value: Any) -> PartitionValue:
    """The value in Python. Raises `Corrupted` for a decimal with too many digits."""
    if value is None:
        return None
    if kind.name == "uuid":
        return uuid.UUID(bytes=value)
    if kind.name == "decimal":
        unscaled = int.from_bytes(value, "big", signed=True)
        if abs(unscaled) >= 10**kind.precision:
            raise Corrupted(f"the unscaled value {unscaled} has too many digits for {kind}")
        # Built from digits, because decimal arithmetic would round to its context.
        digits = tuple(map(int, str(abs(unscaled))))
        return decimal.Decimal((int(unscaled < 0), digits, -kind.scale))
    result: PartitionValue = value
    return result


def to_json(kind: PartitionType, value: PartitionValue) -> bool | int | float | str | None:
    """The value in JSON: bytes as hex; decimals, uuids and non-finite numbers as text."""
    # Through the wire form, so that dates become numbers and wrong values are refused.
    wire = to_wire(kind, value)
    value = from_wire(kind, wire)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        # Without an exponent, which Decimal's own text may have.
        return f"{value:f}"
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind.name == "float" and isinstance(value, int | float):
        return _shortest(value)
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def _shortest(value: float) -> float:
    """The shortest number that is equal in 32 bits: 1.1, not 1.100000023841858."""
    # Nine digits distinguish all 32-bit floats, so one of them always matches.
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(one for one in candidates if _in_32_bits(one) == _in_32_bits(value))


def _in_32_bits(value: float) -> float:
    try:
        packed: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        # Python refuses what Java rounds to infinity.
        return math.copysign(math.inf, value)
    return packed


def from_json(kind: PartitionType, value: Any) -> PartitionValue:
    """The inverse of `to_json`. Raises `InvalidInput`."""
    try:
        if isinstance(value, str):
            return _from_text(kind, value)
    except (ValueError, decimal.DecimalException) as error:
        raise InvalidInput(f"{shown(value)} is not a {kind}: {error}") from error
    if value is None:
        return None
    if kind.name in _WHOLE_NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind.name == "boolean" and isinstance(value, bool):
        return value
    if kind.name in ("float", "double") and isinstance(value, int | float) and not isinstance(value, bool):
        return _floating(kind, value)
    raise InvalidInput(f"{shown(value)} is not a {kind}")


def _floating(kind: PartitionType, value: float) -> float:
    try:
        found = _in_32_bits(value) if kind.name == "float" else float(value)
    except OverflowError as error:
        raise InvalidInput(f"{shown(value)} does not fit in a {kind}") from error
    # Infinity is written as text, so a number that becomes infinite is out of range.
    if math.isinf(found):
        raise InvalidInput(f"{shown(value)} does not fit in a {kind}")
    return found


def _from_text(kind: PartitionType, value: str) -> PartitionValue:
    if kind.name == "string":
        return value
    if kind.name in ("binary", "fixed"):
        # The inverse of `to_json`, which writes bytes as hex.
        return bytes.fromhex(value)
    if kind.name == "decimal":
        return decimal.Decimal(value)
    if kind.name == "uuid":
        return uuid.UUID(value)
    if kind.name in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise ValueError("text is not expected here")


# --- The fields of a partition spec
_FIRST_FIELD_ID = 1000
"""Old specs have no field ids: their fields are numbered from here on."""
# Iceberg's result types. A day is a date, and the others are counts since 1970.
_RESULTS = {"year": "int", "month": "int", "day": "date", "hour": "int"}
_TRUNCATE = re.compile(r"truncate\[[0-9]+\]")
_BUCKET = re.compile(r"bucket\[[0-9]+\]")
_NESTED = ("fields", "type", "element", "key", "value")


def partition_fields(spec: object, schema: object) -> tuple[PartitionField, ...]:
    """The fields of `spec`, in order, each with the result type of its transform. Raises only
    `InvalidInput`.
    """
    listed = spec.get("fields") if isinstance(spec, Mapping) else None
    if not isinstance(listed, list):
        raise InvalidInput(f"a partition spec has a list of fields, got {shown(spec)}")
    # A source may be nested in structs.
    sources = dict(_columns(schema))
    return tuple(_field(one, _FIRST_FIELD_ID + at, sources) for at, one in enumerate(listed))


def _field(tree: object, field_id: int, sources: Mapping[int, object]) -> PartitionField:
    if not isinstance(tree, Mapping):
        raise InvalidInput(f"a partition field is an object, got {shown(tree)}")
    name, transform, source_id = tree.get("name"), tree.get("transform"), tree.get("source-id")
    # Format 1 of Iceberg may omit the ids.
    given_id = tree.get("field-id", field_id)
    if (
        not isinstance(name, str)
        or not isinstance(transform, str)
        or not isinstance(source_id, int)
        or not isinstance(given_id, int)
    ):
        raise InvalidInput(
            f"a partition field has a name, a transform, a source-id and a field-id, got {shown(tree)}"
        )
    if source_id not in sources:
        raise InvalidInput(
            f"the partition field {name!r:.80} has the source {shown(source_id)}, which the table's "
            "schema lacks"
        )
    return PartitionField(given_id, name, str(parse_type(_result(transform, sources[source_id]))))


def _result(transform: str, source: object) -> str:
    if not isinstance(source, str):
        raise InvalidInput("a partition field cannot have a struct, list or map as its source")
    # These transforms keep the type of their source.
    if transform in ("identity", "void") or _TRUNCATE.fullmatch(transform):
        return source
    if _BUCKET.fullmatch(transform):
        return "int"
    if transform not in _RESULTS:
        raise InvalidInput(
            f"{transform!r:.80} is not a transform of iceberg; known are identity, void, bucket[N], "
            "truncate[N], year to hour"
        )
    return _RESULTS[transform]


def _columns(tree: object) -> Iterator[tuple[int, object]]:
    """Field id and type of every field of a struct, at any depth."""
    if isinstance(tree, list):
        for one in tree:
            yield from _columns(one)
    elif isinstance(tree, Mapping):
        field: Mapping[str, Any] = tree
        if isinstance(field.get("id"), int):
            yield field["id"], field.get("type")
        # Structs, lists and maps keep their parts under these keys.
        for key in _NESTED:
            if isinstance(field.get(key), Mapping | list):
                yield from _columns(field[key])
