"""The complete engine, on the `protobuf` package: record by record, slow, and the reference for doubtful
records.

It defines the meaning of every unusual record: what is undecodable, what the columns hold if a field is
repeated on the wire, and which bytes are in `__unrecognized__`. It follows Protobuf's own rules (last one
wins, messages are merged, unknown fields are kept) with Protobuf's own parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from archiver.schema.arrow import arrow
from archiver.schema.protobuf.complete_wire import judge_descriptor
from archiver.schema.protobuf.decoded_size import lengths_of
from archiver.schema.protobuf.engine import Decoded
from archiver.schema.protobuf.error_causes import OUT_OF_YEARS
from archiver.schema.protobuf.tree import UNRECOGNIZED, EnumTree, FieldTree, Kind, MessageTree, Shape
from archiver.schema.protobuf.values import NANOS_MAX, SECONDS_MAX, SECONDS_MIN, text_of
from archiver.schema.protobuf.values import fill as fill_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSIGNED_64 = frozenset({Kind.UINT64, Kind.FIXED64})
_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
_INT32_RANGE = range(-(2**31), 2**31)
_ENUMS_KEPT = 1024
_PART_ROWS, _PART_BYTES = 256, 64 * 1024
"""Limits for the rows that are Python objects at the same time during decoding. The limit that is reached
first applies."""
_ENCODED_ROWS = 256

_DEFAULTS: Mapping[Kind, object] = {
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.BOOL: False,
    Kind.FLOAT: 0.0,
    Kind.DOUBLE: 0.0,
}


class _Unmappable(Exception):
    """The payload decodes, but a field does not fit its column."""


class ProtobufEngine:
    """An `Engine` for one message type. `message_type` is the struct of the columns it makes."""

    def __init__(self, tree: MessageTree, message_type: pa.StructType) -> None:
        self._tree = _column_tree(tree, message_type)
        self._message_type = message_type
        self._places = _places(self._tree)
        self._class: Any = GetMessageClass(judge_descriptor(tree, recursive=False))
        # Messages beyond the recursion depth stay bytes in `_class`. Only this second class parses inside
        # them.
        self._verdict: Any = (
            GetMessageClass(judge_descriptor(tree, recursive=True)) if _has_encoded(tree) else None
        )

    @property
    def message_type(self) -> pa.StructType:
        """See `Engine`."""
        return self._message_type

    def refusal(self, payload: bytes) -> str | None:
        """Why the parser refuses the payload, None if it does not; encoded messages are parsed too. Quick,
        because no columns are made.
        """
        try:
            (self._verdict or self._class).FromString(payload)
        except DecodeError as error:
            return _why(self._tree, error)
        return None

    def knows_all(self, payload: bytes) -> bool:
        """Whether the parser accepts the payload and finds no unknown field in it. Quick, because no columns
        are made.
        """
        try:
            message = self._class.FromString(payload)
        except DecodeError:
            return False
        # The library has no test for unknown fields at all levels, so two encodings are compared.
        before = message.SerializeToString()
        message.DiscardUnknownFields()
        return bool(message.SerializeToString() == before)

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`."""
        errors: dict[int, str] = {}
        parts: list[Any] = [
            self._part(payloads.slice(start, count), start, errors) for start, count in _parts(payloads)
        ]
        columns: Any = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return Decoded(columns, errors)

    def _part(self, payloads: Any, first: int, errors: dict[int, str]) -> Any:
        """The columns of a few rows. Their Python objects, about 100 bytes for each value, live only during
        this call.
        """
        rows: list[dict[str, Any] | None] = []
        for row, payload in enumerate(payloads.to_pylist(), first):
            try:
                rows.append(_columns(self._tree, self._parsed(payload)))
            except (DecodeError, UnicodeDecodeError, _Unmappable) as error:
                # One bad record must not affect the other rows of its batch.
                rows.append(None)
                errors[row] = _why(self._tree, error)
        return arrow.array(rows, type=self._message_type)

    def error_of(self, payload: bytes) -> str | None:
        """Why `decode` refuses the payload, None if it does not. Makes no columns, and reads only fields that
        may not fit one.
        """
        try:
            _check_places(self._places, self._parsed(payload))
        except (DecodeError, UnicodeDecodeError, _Unmappable) as error:
            return _why(self._tree, error)
        return None

    def _parsed(self, payload: bytes) -> Any:
        if self._verdict is not None:
            # Only for its errors: a column must never hold an encoded message that cannot be read.
            self._verdict.FromString(payload)
        return self._class.FromString(payload)

    def revise(self, payloads: pa.BinaryArray) -> Decoded:
        """See `Engine`. `decode` is complete already."""
        return self.decode(payloads)

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        """See `Engine`."""
        payloads: list[bytes] = []
        for row in _rows(columns):
            message = self._class()
            try:
                _fill(self._tree, row, message)
            except (DecodeError, ValueError) as error:
                raise pa.ArrowInvalid(
                    f"a row cannot be encoded as {self._tree.full_name}: {error}"
                ) from error
            payloads.append(message.SerializeToString())
        result: pa.BinaryArray = arrow.array(payloads, type=pa.binary())
        return result


def _parts(payloads: pa.BinaryArray) -> list[tuple[int, int]]:
    """(first, count) of groups of rows that become Python objects together: so few bytes, or one row."""
    # Bytes bound the number of values, and so the memory of the Python objects.
    sums = np.concatenate(([0], np.cumsum(lengths_of(payloads))))
    found, start = [], 0
    while start < len(payloads):
        end = min(
            start + _PART_ROWS,
            max(start + 1, int(np.searchsorted(sums, sums[start] + _PART_BYTES, side="right")) - 1),
        )
        found.append((start, end - start))
        start = end
    # pyarrow.concat_arrays needs at least one array.
    return found or [(0, 0)]


def _rows(columns: pa.StructArray) -> Iterator[Any]:
    """The rows as Python objects, a few at a time."""
    for start in range(0, len(columns), _ENCODED_ROWS):
        # The stub of pyarrow has no type for rows of structs.
        yield from columns.slice(start, _ENCODED_ROWS).to_pylist()  # type: ignore[misc]


_Place = tuple[FieldTree, str, tuple[Any, ...]]
"""A field whose value a column may not hold, or a message with such fields: also its name on the wire, and
the places inside."""


def _places(tree: MessageTree) -> tuple[_Place, ...]:
    """The fields that have to be read to know whether the columns hold a message that the parser takes."""
    found: list[_Place] = []
    for one in tree.fields:
        inside = () if one.message is None else _places(one.message)
        # Only timestamps and JSON can hold values that the parser accepts and a column does not.
        if inside or one.kind is Kind.TIMESTAMP or one.json is not None:
            found.append((one, f"f{one.number}", inside))
    return tuple(found)


def _check_places(places: tuple[_Place, ...], message: Any) -> None:
    """Raise `_Unmappable` where a column cannot hold the value."""
    for one, name, inside in places:
        if one.shape is Shape.SINGLE:
            if message.HasField(name):
                _check_value(one, inside, getattr(message, name))
        elif one.shape is Shape.REPEATED:
            for item in getattr(message, name):
                _check_value(one, inside, item)
        else:
            # As in `_map`: the last value of a key wins, but each value is converted.
            for entry in getattr(message, name):
                _check_value(one, inside, entry.f2)


def _check_value(one: FieldTree, inside: tuple[_Place, ...], value: Any) -> None:
    if inside:
        _check_places(inside, value)
    else:
        _value(one, value)


def _why(tree: MessageTree, error: Exception) -> str:
    """The text of `__err__`."""
    # The library puts the name of our wire message first, which means nothing to a reader of the table.
    reason = str(error).rpartition("': ")[2]
    return f"cannot be decoded as {tree.full_name}: {reason}"


def _column_tree(tree: MessageTree, struct: Any) -> MessageTree:
    """The tree with the names of the struct's columns, which are in the same order."""
    fields: list[FieldTree] = []
    # The last column is `__unrecognized__`, which is no field.
    for one, column in zip(tree.fields, list(struct)[:-1], strict=True):
        kind = column.type
        if one.shape is not Shape.SINGLE:
            kind = kind.value_type if one.shape is Shape.REPEATED else kind.item_type
        fields.append(
            replace(
                one,
                name=column.name,
                message=None if one.message is None else _column_tree(one.message, kind),
            )
        )
    return replace(tree, fields=tuple(fields))


def _has_encoded(tree: MessageTree) -> bool:
    return bool(tree.left_out) or any(
        one.kind is Kind.ENCODED or (one.message is not None and _has_encoded(one.message))
        for one in tree.fields
    )


def _columns(tree: MessageTree, message: Any) -> dict[str, Any]:
    """One message as the values of its columns, by name. Clears fields of the message if it has unknown
    ones.
    """
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
    # Last, because it clears the known fields of the message.
    result[UNRECOGNIZED] = _unrecognized(tree, message)
    return result


def _unrecognized(tree: MessageTree, message: Any) -> bytes | None:
    """The unknown fields of this level as they were on the wire; None without any."""
    if len(UnknownFieldSet(message)) == 0:
        return None
    # The library does not return the bytes of unknown fields, so what remains is encoded.
    for one in tree.fields:
        message.ClearField(f"f{one.number}")
    result: bytes = message.SerializeToString()
    return result


def _map(tree: FieldTree, entries: Any) -> list[tuple[Any, Any]]:
    """A map's entries without duplicate keys: the last value of a key wins, at the place of the first."""
    assert tree.key is not None
    result: dict[Any, Any] = {}
    for entry in entries:
        # A dict keeps the place of the first insertion.
        result[_value(tree.key, entry.f1)] = _value(tree, entry.f2)
    return list(result.items())


def _value(tree: FieldTree, value: Any) -> Any:
    """One value in its column form."""
    if tree.message is not None:
        return _columns(tree.message, value)
    if tree.json is not None:
        return text_of(tree.json, value)
    if tree.kind is Kind.ENCODED:
        return value.SerializeToString()
    if tree.kind is Kind.TIMESTAMP:
        seconds, nanos = value.f1, value.f2
        if not (SECONDS_MIN <= seconds <= SECONDS_MAX and 0 <= nanos <= NANOS_MAX):
            raise _Unmappable(f"field {tree.name}: timestamp of {seconds} s and {nanos} ns {OUT_OF_YEARS}")
        # Columns hold microseconds. The bytes then differ, so the record keeps `__raw__`.
        return seconds * 1_000_000 + nanos // 1000
    if tree.wrapped:
        value = value.f1
    if tree.enum is not None:
        # A number that the enum does not have is kept as decimal text.
        return _names(tree.enum).get(value, str(value))
    return Decimal(value) if tree.kind in _UNSIGNED_64 else value


def _fill(tree: MessageTree, row: Mapping[str, Any], message: Any) -> None:
    """Set a message's fields from the values of its columns, and put its unknown fields after them."""
    for one in tree.fields:
        value, name = row[one.name], f"f{one.number}"
        if value is None:
            continue
        if one.shape is Shape.SINGLE:
            # Without presence, Protobuf's libraries do not write a default.
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
            elif _is_message(one):
                _set_message(one, item, repeated.add())
            else:
                repeated.append(_scalar(one, item))
    if row[UNRECOGNIZED] is not None:
        # The library keeps unknown fields after the known ones, which is the canonical order.
        message.MergeFromString(row[UNRECOGNIZED])


def _is_message(tree: FieldTree) -> bool:
    """Whether a value of the field is a message on the wire."""
    return (
        tree.message is not None
        or tree.wrapped
        or tree.json is not None
        or tree.kind in (Kind.TIMESTAMP, Kind.ENCODED)
    )


def _set(tree: FieldTree, value: Any, message: Any, name: str) -> None:
    """Set a single field; present even when it holds its default. None: the default (only in map entries)."""
    if _is_message(tree):
        child = getattr(message, name)
        # An empty message must be present too.
        child.SetInParent()
        _set_message(tree, value, child)
    else:
        setattr(message, name, _scalar(tree, value))


def _set_message(tree: FieldTree, value: Any, message: Any) -> None:
    """Fill an empty message from its column's value."""
    if tree.message is not None:
        _fill(tree.message, value, message)
    elif tree.json is not None:
        fill_json(tree.json, value, message)
    elif tree.kind is Kind.ENCODED:
        message.MergeFromString(value)
    elif tree.kind is Kind.TIMESTAMP:
        # Integer arithmetic: `timestamp()` is a float, which is not exact for distant years.
        us = (value - _EPOCH) // timedelta(microseconds=1)
        message.f1, message.f2 = us // 1_000_000, us % 1_000_000 * 1000
    # A wrapper has no presence inside: its default is not written.
    elif not _is_default(tree, value):
        message.f1 = _scalar(tree, value)


def _scalar(tree: FieldTree, value: Any) -> Any:
    """A column's value in the wire form. Raises pyarrow.ArrowInvalid for text that is no value of the
    enum.
    """
    if tree.enum is not None:
        numbers = _numbers(tree.enum)
        if value in numbers:
            return numbers[value]
        # Decimal text is a number that the enum did not have.
        number = int(value) if value.lstrip("-").isdigit() else None
        if number is None or number not in _INT32_RANGE:
            raise pa.ArrowInvalid(f"field {tree.name}: {value!r} is no value of its enum")
        return number
    return int(value) if tree.kind in _UNSIGNED_64 else value


@lru_cache(_ENUMS_KEPT)
def _names(enum: EnumTree) -> Mapping[int, str]:
    return dict(enum.names)


@lru_cache(_ENUMS_KEPT)
def _numbers(enum: EnumTree) -> Mapping[str, int]:
    return {name: number for number, name in enum.names}


def _is_default(tree: FieldTree, value: Any) -> bool:
    if tree.kind in _FLOATS:
        # -0.0 equals 0.0 but is written on the wire.
        return bool(value == 0.0 and math.copysign(1.0, value) > 0)
    if tree.enum is not None:
        return bool(_scalar(tree, value) == 0)
    return bool(value == _DEFAULTS.get(tree.kind, 0))
