"""The complete engine, on the `protobuf` package: record by record, slow, and the judge of what the fast one cannot tell.

Owns: the meaning of every odd record: what is undecodable, and what the columns hold when the wire says something twice.
Promises: follows Protobuf's own rules (last one wins, unknown fields are skipped) by Protobuf's own parser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from archiver.schema.arrow import arrow
from archiver.schema.engine import Decoded
from archiver.schema.tree import FieldTree, Kind, MessageTree, Shape
from archiver.schema.values import NANOS_MAX, SECONDS_MAX, SECONDS_MIN
from archiver.schema.wire import wire_descriptor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSIGNED_64 = frozenset({Kind.UINT64, Kind.FIXED64})
_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
_INT32_RANGE = range(-(2**31), 2**31)

_DEFAULTS: Mapping[Kind, object] = {Kind.STRING: "", Kind.BYTES: b"", Kind.BOOL: False, Kind.FLOAT: 0.0, Kind.DOUBLE: 0.0}


class _Unmappable(Exception):
    """The payload decodes, but a field does not fit its column."""


class ProtobufEngine:
    """An `Engine` for one message type. `message_type` is the struct of the columns it makes."""

    def __init__(self, tree: MessageTree, message_type: pa.StructType) -> None:
        self._tree = tree
        self._message_type = message_type
        self._class: Any = GetMessageClass(wire_descriptor(tree, oneofs=True))

    @property
    def message_type(self) -> pa.StructType:
        """See `Engine`."""
        return self._message_type

    def refusal(self, payload: bytes) -> str | None:
        """Why the parser refuses the payload, None if it does not. Quick: nothing is mapped."""
        try:
            self._class.FromString(payload)
        except DecodeError as error:
            return _why(self._tree, error)
        return None

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`."""
        rows: list[dict[str, Any] | None] = []
        errors: dict[int, str] = {}
        items: Any = payloads.to_pylist()
        for row, payload in enumerate(items):
            message = self._class()
            try:
                message.ParseFromString(payload)
                rows.append(_columns(self._tree, message))
            except (DecodeError, UnicodeDecodeError, _Unmappable) as error:
                rows.append(None)
                errors[row] = _why(self._tree, error)
        return Decoded(arrow.array(rows, type=self._message_type), errors)

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        """See `Engine`."""
        payloads: list[bytes] = []
        rows: Any = columns.to_pylist()  # type: ignore[misc]  # the stub knows no rows of structs
        for row in rows:
            message = self._class()
            _fill(self._tree, row, message)
            payloads.append(message.SerializeToString())
        result: pa.BinaryArray = arrow.array(payloads, type=pa.binary())
        return result


def _why(tree: MessageTree, error: Exception) -> str:
    """The text of `__err__`. The library names our wire form: only what follows is of use."""
    reason = str(error).rpartition("': ")[2]
    return f"cannot be decoded as {tree.full_name}: {reason}"


def _columns(tree: MessageTree, message: Any) -> dict[str, Any]:
    """One message as the values of its columns, by name."""
    result: dict[str, Any] = {}
    for one in tree.fields:
        name = f"f{one.number}"
        if one.shape is Shape.MAP:
            result[one.name] = _map(one, getattr(message, name))
        elif one.shape is Shape.REPEATED:
            result[one.name] = [_value(one, item) for item in getattr(message, name)]
        elif one.presence:
            result[one.name] = _value(one, getattr(message, name)) if message.HasField(name) else None
        else:
            result[one.name] = _value(one, getattr(message, name))
    return result


def _map(tree: FieldTree, entries: Any) -> list[tuple[Any, Any]]:
    """A map's entries without double keys: the last value of a key stands, at the place of the first."""
    assert tree.key is not None
    result: dict[Any, Any] = {}
    for entry in entries:
        result[_value(tree.key, entry.f1)] = _value(tree, entry.f2)
    return list(result.items())


def _value(tree: FieldTree, value: Any) -> Any:
    """One value as it stands in its column."""
    if tree.message is not None:
        return _columns(tree.message, value)
    if tree.kind is Kind.TIMESTAMP:
        seconds, nanos = value.f1, value.f2
        if not (SECONDS_MIN <= seconds <= SECONDS_MAX and 0 <= nanos <= NANOS_MAX):
            raise _Unmappable(f"field {tree.name}: timestamp of {seconds} s and {nanos} ns is outside the years 1 to 9999")
        return seconds * 1_000_000 + nanos // 1000
    if tree.enum is not None:
        return dict(tree.enum.names).get(value, str(value))
    return Decimal(value) if tree.kind in _UNSIGNED_64 else value


def _fill(tree: MessageTree, row: Mapping[str, Any], message: Any) -> None:
    """Set a message's fields from the values of its columns."""
    for one in tree.fields:
        value, name = row[one.name], f"f{one.number}"
        if value is None:
            continue
        if one.shape is Shape.SINGLE:
            if one.presence or not _is_default(one, value):
                _set(one, value, message, name)
            continue
        repeated = getattr(message, name)
        for item in value:
            if one.shape is Shape.MAP:
                assert one.key is not None
                entry = repeated.add()
                _set(one.key, item[0], entry, "f1")
                _set(one, item[1], entry, "f2")
            elif one.message is not None:
                _fill(one.message, item, repeated.add())
            elif one.kind is Kind.TIMESTAMP:
                _stamp(item, repeated.add())
            else:
                repeated.append(_scalar(one, item))


def _set(tree: FieldTree, value: Any, message: Any, name: str) -> None:
    """Set a single field; present even when it holds its default. None: the default (only in map entries)."""
    if tree.message is not None or tree.kind is Kind.TIMESTAMP:
        child = getattr(message, name)
        child.SetInParent()
        if tree.message is None:
            _stamp(value, child)
        else:
            _fill(tree.message, value, child)
    else:
        setattr(message, name, _scalar(tree, value))


def _stamp(value: datetime, message: Any) -> None:
    us = (value - _EPOCH) // timedelta(microseconds=1)
    message.f1, message.f2 = us // 1_000_000, us % 1_000_000 * 1000


def _scalar(tree: FieldTree, value: Any) -> Any:
    """A column's value as the wire form wants it. Raises pyarrow.ArrowInvalid for text that is no value of the enum."""
    if tree.enum is not None:
        numbers = {name: number for number, name in tree.enum.names}
        if value in numbers:
            return numbers[value]
        number = int(value) if value.lstrip("-").isdigit() else None
        if number is None or number not in _INT32_RANGE:
            raise pa.ArrowInvalid(f"field {tree.name}: {value!r} is no value of its enum")
        return number
    return int(value) if tree.kind in _UNSIGNED_64 else value


def _is_default(tree: FieldTree, value: Any) -> bool:
    if tree.kind in _FLOATS:
        return bool(value == 0.0 and math.copysign(1.0, value) > 0)
    if tree.enum is not None:
        return bool(_scalar(tree, value) == 0)
    return bool(value == _DEFAULTS.get(tree.kind, 0))
