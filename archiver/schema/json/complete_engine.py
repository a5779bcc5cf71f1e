"""The complete engine for JSON: one document at a time, by the standard library.

It is the reference for the fast engine, which gives it every doubtful record. Columns hold what the document
says, or null where they cannot hold it; then the record keeps its bytes. A value of another JSON type than
the schema's, a name twice in an object, and text that is no JSON make a record undecodable.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa

from archiver.runtime.redaction import excerpt
from archiver.schema.arrow import Array
from archiver.schema.json.encoder import encode_object, encode_value
from archiver.schema.json.model import Kind, Node, Schema
from archiver.schema.json.resolve import shown_path
from archiver.schema.protobuf.engine import Decoded, decoded_singly
from archiver.schema.protobuf.error_causes import OTHER_TYPE, TWO_MEMBERS
from archiver.schema.protobuf.tree import UNRECOGNIZED

Value: TypeAlias = Any
Read: TypeAlias = Callable[[Value], Value]

NESTING_MAX: Final = 200
"""Most levels of arrays and objects in one document."""
# Possessive: a long text must not fill memory with places to go back to.
_BRACKETS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""What a lone surrogate begins with; only an escape can spell one."""
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_DIGITS_MAX: Final = 40
_ABSENT: Final = object()


class Wrong(Exception):
    """Why a document has no columns, and where."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []


class Digits(str):
    """A number as it was written."""

    __slots__ = ()


class Twice(dict[str, Value]):
    """An object with a name twice."""

    name: str


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    wrong = Twice(found)
    seen: set[str] = set()
    wrong.name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return wrong


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Digits, parse_float=Digits, parse_constant=_no_constant
)


def parsed(payload: bytes) -> Value:
    """The values of a document, numbers as `Digits`. Raises `Wrong`."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Wrong(f"it is not UTF-8: {error.reason} at byte {error.start} (utf-8)") from error
    if _nesting(text) > NESTING_MAX:
        raise Wrong(f"it is nested more than {NESTING_MAX} levels deep")
    try:
        value = _PARSER.decode(text)
    except ValueError as error:
        raise Wrong(f"it is not JSON: {error}") from error
    if _HALF.search(text) is not None:
        _check_surrogates(value)
    return value


def _nesting(text: str) -> int:
    if text.count("[") + text.count("{") <= NESTING_MAX:
        return 0
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        sign = text[found.start()]
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def _check_surrogates(value: Value) -> None:
    """Raises `Wrong` for a text that UTF-8 cannot spell."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Wrong("has half of a surrogate pair, which no text in UTF-8 can have") from None
    elif isinstance(value, list):
        for place, one in enumerate(value):
            _at(f"[{place}]", _check_surrogates, one)
    elif isinstance(value, dict):
        for name, one in value.items():
            _at(f".{name}", _check_surrogates, name)
            _at(f".{name}", _check_surrogates, one)


def _at(step: str, read: Read, value: Value) -> Value:
    try:
        return read(value)
    except Wrong as error:
        error.path.append(step)
        raise


# --- JSON text
def compact(value: Value) -> str:
    """A parsed value in compact form, its numbers as they were written. Raises `Wrong`."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, list):
        return "[" + ",".join([_at(f"[{place}]", compact, one) for place, one in enumerate(value)]) + "]"
    return _compact_object(_members(value))


def _compact_object(members: Mapping[str, Value]) -> str:
    parts = [f"{encode_basestring(name)}:{_at(f'.{name}', compact, one)}" for name, one in members.items()]
    return "{" + ",".join(parts) + "}"


def _members(value: dict[str, Value]) -> dict[str, Value]:
    if type(value) is Twice:
        raise Wrong(f"has the name {excerpt(value.name, 80)!r} twice; {TWO_MEMBERS}")
    return value


# --- Values
def _said(value: Value) -> str:
    """The JSON type of a value, for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, Digits):
        return "a number"
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, list) else "an object"


def _other(value: Value, expected: str) -> Wrong:
    return Wrong(f"is {_said(value)} where the schema has {expected}; {OTHER_TYPE}")


def _read_boolean(value: Value) -> Value:
    if value is None or isinstance(value, bool):
        return value
    raise _other(value, "a boolean")


def _read_text(value: Value) -> Value:
    if value is None or (isinstance(value, str) and not isinstance(value, Digits)):
        return value
    raise _other(value, "a string")


def _read_number(value: Value) -> Value:
    if value is None:
        return None
    if not isinstance(value, Digits):
        raise _other(value, "a number")
    number = float(value)
    return number if math.isfinite(number) else None


def _integer(low: int, high: int) -> Read:
    def read(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, Digits):
            raise _other(value, "an integer")
        # A fraction or an exponent, even of a whole number, is none of the column's values.
        if len(value) > _DIGITS_MAX or not value.lstrip("-").isdecimal():
            return None
        number = int(value)
        return number if low <= number <= high else None

    return read


def _read_date(value: Value) -> Value:
    text = _read_text(value)
    if text is None or _DATE.fullmatch(text) is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _read_moment(value: Value) -> Value:
    text = _read_text(value)
    found = None if text is None else _MOMENT.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction, sign, hours, minutes = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
        # Digits beyond microseconds are in the record's bytes only.
        moment += timedelta(microseconds=int((fraction or "0")[:6].ljust(6, "0")))
        if sign:
            away = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - away if sign == "+" else moment + away
    except (ValueError, OverflowError):
        return None
    return (moment - _EPOCH) // _US


def _array(item: Read) -> Read:
    def read(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _other(value, "an array")
        return [_at(f"[{place}]", item, one) for place, one in enumerate(value)]

    return read


def _map(item: Read) -> Read:
    def read(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _other(value, "an object")
        return [(name, _at(f".{name}", item, one)) for name, one in _members(value).items()]

    return read


def _struct(node: Node, kind: pa.StructType) -> Read:
    parts = [
        (name, kind.field(place).name, _reader(inner, kind.field(place).type))
        for place, (name, inner) in enumerate(node.fields)
    ]
    known = {name for name, _, _ in parts}

    def read(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _other(value, "an object")
        members = _members(value)
        found: dict[str, Value] = {}
        count = 0
        for name, column, read_part in parts:
            one = members.get(name, _ABSENT)
            if one is not _ABSENT:
                count += 1
                found[column] = _at(f".{name}", read_part, one)
        if count < len(members):
            others = {name: one for name, one in members.items() if name not in known}
            found[UNRECOGNIZED] = _compact_object(others).encode()
        return found

    return read


def _reader(node: Node, kind: Any) -> Read:
    if node.kind is Kind.OBJECT:
        return _struct(node, kind)
    if node.item is not None:
        inner = _reader(node.item, kind.value_type if node.kind is Kind.ARRAY else kind.item_type)
        return _array(inner) if node.kind is Kind.ARRAY else _map(inner)
    if node.kind is Kind.INTEGER:
        # The column's type and not the node's: a column that was wider once stays so.
        if pa.types.is_decimal(kind):
            most = 10**kind.precision - 1
            return _integer(-most, most)
        return _integer(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    return _READERS[node.kind]


_READERS: Final[Mapping[Kind, Read]] = {
    Kind.BOOLEAN: _read_boolean,
    Kind.NUMBER: _read_number,
    Kind.STRING: _read_text,
    Kind.DATE: _read_date,
    Kind.DATE_TIME: _read_moment,
    Kind.TEXT: compact,
}


class JsonEngine:
    """Decodes and encodes documents of one schema. Not thread-safe."""

    def __init__(self, schema: Schema, message_type: pa.StructType) -> None:
        self._schema = schema
        self._type = message_type
        node = schema.node
        if node.kind is Kind.OBJECT:
            self._read = _required(_struct(node, message_type))
        else:
            column, read = message_type.field(0), _reader(node, message_type.field(0).type)
            self._read = lambda value: {column.name: read(value)}

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

    def encode(self, columns: Array) -> Array:
        """As in `Engine`."""
        node = self._schema.node
        if node.kind is Kind.OBJECT:
            return encode_object(node, columns)
        return encode_value(node, columns.field(0))

    def _decoded(self, payload: bytes) -> tuple[Value, str | None]:
        try:
            return self._read(parsed(payload)), None
        except Wrong as error:
            path = shown_path("".join(reversed(error.path)).lstrip("."))
            at = f"{path} " if path else "" if error.why.startswith("it ") else "it "
            return None, f"cannot be decoded as {self._schema.name}: {at}{error.why}"


def _required(read: Read) -> Read:
    def checked(value: Value) -> Value:
        if value is None:
            raise _other(value, "an object")
        return read(value)

    return checked
