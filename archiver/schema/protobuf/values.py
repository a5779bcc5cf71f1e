"""Conversion of single values between wire form and column form: numbers, enums, timestamps, defaults, JSON.

`wire_columns` has the rules for shapes (lists, maps, messages). Nothing is rounded or wrapped: `to_wire` of a
column gives its original value, or the caller finds a difference in the bytes. Whole arrays are converted at
a time; only for JSON does Python code run per value.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from archiver.runtime.redaction import excerpt
from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.complete_wire import json_descriptor
from archiver.schema.protobuf.tree import EnumTree, FieldTree, JsonForm, Kind

# --- JSON text of Struct, Value and ListValue
_EXACT = 2**53
"""Doubles below this hold every whole number."""


def decode(form: JsonForm, data: bytes) -> str | None:
    """The text of an encoded message; None if it is malformed."""
    try:
        return text_of(form, _class(form).FromString(data))
    except DecodeError:
        return None


def encode(form: JsonForm, text: str) -> bytes:
    """The message of a text, in canonical order. Raises ValueError for text that is no JSON of that form."""
    message = _class(form)()
    fill(form, text, message)
    result: bytes = message.SerializeToString()
    return result


def text_of(form: JsonForm, message: Any) -> str:
    """The text of a message with the fields of `complete_wire`."""
    return json.dumps(_READ[form](message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def fill(form: JsonForm, text: str, message: Any) -> None:
    """Set the fields of an empty message from a text. Raises ValueError for text that is no JSON of that
    form.
    """
    try:
        # Numbers of a Value are doubles. `NaN` and `Infinity` are no JSON, though Python accepts them.
        value = json.loads(text, parse_int=float, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError(f"{excerpt(text, 60)!r} is nested too deeply") from error
    if form != "value" and not isinstance(value, dict if form == "struct" else list):
        raise ValueError(f"{excerpt(text, 60)!r} is no JSON {'object' if form == 'struct' else 'array'}")
    _WRITE[form](value, message)


@cache
def _class(form: JsonForm) -> Any:
    return GetMessageClass(json_descriptor(form))


def _struct(message: Any) -> dict[str, Any]:
    return {entry.f1: _value(entry.f2) for entry in message.f1}


def _list(message: Any) -> list[Any]:
    return [_value(one) for one in message.f1]


def _value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    # Fields of google.protobuf.Value: 1 null, 2 number, 3 string, 4 bool, 5 struct, 6 list.
    if kind == "f2":
        return _number(message.f2)
    if kind == "f5":
        return _struct(message.f5)
    if kind == "f6":
        return _list(message.f6)
    # A Value without an alternative becomes null as well; its bytes then differ.
    return getattr(message, kind) if kind in ("f3", "f4") else None


def _number(value: float) -> float | int | str:
    # JSON has no such numbers. As text they stay visible; encoded again they are strings, so the bytes
    # differ.
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # Whole numbers are written without `.0`, but not -0.0, which would lose its sign.
    whole = value.is_integer() and abs(value) < _EXACT and not (value == 0 and math.copysign(1, value) < 0)
    return int(value) if whole else value


def _fill_struct(value: dict[str, Any], message: Any) -> None:
    for key, one in value.items():
        entry = message.f1.add(f1=key)
        entry.f2.SetInParent()
        _fill_value(one, entry.f2)


def _fill_list(value: list[Any], message: Any) -> None:
    for one in value:
        _fill_value(one, message.f1.add())


def _fill_value(value: Any, message: Any) -> None:
    if value is None:
        message.f1 = 0
    elif isinstance(value, bool):
        message.f4 = value
    elif isinstance(value, float):
        message.f2 = value
    elif isinstance(value, str):
        message.f3 = value
    elif isinstance(value, dict):
        message.f5.SetInParent()
        _fill_struct(value, message.f5)
    else:
        message.f6.SetInParent()
        _fill_list(value, message.f6)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


_READ: dict[JsonForm, Any] = {"struct": _struct, "value": _value, "list": _list}
_WRITE: dict[JsonForm, Any] = {"struct": _fill_struct, "value": _fill_value, "list": _fill_list}


# --- Scalars, enums and timestamps, as arrays
SECONDS_MIN, SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""The range of google.protobuf.Timestamp: years 1 to 9999."""

NANOS_MAX = 999_999_999

FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
"""Kinds in which 0.0 and -0.0 are equal and differ in bytes. Only 0.0 is the default."""

_US = 1_000_000

_DEFAULTS: dict[Kind, object] = {Kind.STRING: "", Kind.BYTES: b"", Kind.BOOL: False}

Bools = npt.NDArray[np.bool_]


def filled(array: Array, kind: Kind) -> Array:
    """The array with the kind's default in place of nulls (wire form)."""
    if array.null_count == 0:
        return array
    return pc.fill_null(array, arrow.scalar(_DEFAULTS.get(kind, 0), array.type))


def to_column(tree: FieldTree, array: Array, target: Any) -> Array:
    """Values of the wire form (not Timestamp, not message) converted to the column type `target`."""
    if tree.kind is Kind.ENUM:
        assert tree.enum is not None
        return _enum_names(tree.enum, array)
    return array if array.type == target else array.cast(target)


def to_wire(tree: FieldTree, array: Array, target: Any) -> Array:
    """The opposite of `to_column`. Raises pyarrow.ArrowInvalid for text that is no value of the enum and for
    numbers out of range.
    """
    if tree.kind is Kind.ENUM:
        assert tree.enum is not None
        return _enum_numbers(tree.enum, array)
    return array if array.type == target else array.cast(target)


def without_zero(array: Array) -> Array:
    """Floats with null for +0.0, which an encoder leaves out; -0.0 and NaN stay."""
    # Compared as bits, because 0.0 == -0.0 and NaN != NaN.
    bits = array.view(pa.int64() if array.type == pa.float64() else pa.int32())
    zero = pc.equal(bits, arrow.scalar(0, bits.type))
    if not pc.any(zero).as_py():
        return array
    return pc.if_else(zero, arrow.scalar(None, array.type), array)


def signaling(array: Array) -> Bools | None:
    """Which 4-byte floats are signaling NaNs; None if there is none."""
    # A Python float, and so the complete engine, cannot hold them: conversion to a double changes their bits.
    bits = numbers(array.view(pa.int32()))
    found: Bools = ((bits & 0x7FC00000) == 0x7F800000) & ((bits & 0x003FFFFF) != 0)
    return found if found.any() else None


def stamps_to_column(struct: Array, target: Any) -> tuple[Array, Bools | None]:
    """Timestamps as microseconds, rounded down; nulls of the struct stay.

    Second result: which are out of range, None for none. Their value has no meaning.
    """
    seconds, nanos = numbers(struct.field(0)), numbers(struct.field(1))
    good = (seconds >= SECONDS_MIN) & (seconds <= SECONDS_MAX) & (nanos >= 0) & (nanos <= NANOS_MAX)
    bad = None
    if not good.all():
        bad = ~good
        # Out of range, the product below would overflow 64 bits.
        seconds = np.where(good, seconds, 0)
        nanos = np.where(good, nanos, 0)
    us = seconds * _US + nanos // 1000
    mask = None if struct.null_count == 0 else struct.is_null().to_numpy(zero_copy_only=False)
    if bad is not None and mask is not None:
        # Values under a null struct do not count.
        bad &= ~mask
    return arrow.array(us, mask=mask).view(target), bad


def stamps_to_wire(array: Array, target: Any) -> Array:
    """Microseconds as seconds and nanoseconds; nulls stay."""
    us = numbers(array.view(pa.int64()))
    seconds = us // _US
    # Floor division above: nanoseconds of a Timestamp are never negative, also before 1970.
    nanos = ((us - seconds * _US) * 1000).astype(np.int32)
    return struct_of([arrow.array(seconds), arrow.array(nanos)], target, array, len(array))


def struct_of(children: list[Array], target: Any, like: Array | None, length: int) -> Array:
    """A struct of type `target`, null where `like` is null. `length`: rows, also of a struct without
    children.
    """
    nulls = like is not None and like.null_count > 0
    if children:
        return arrow.StructArray.from_arrays(
            children, fields=list(target), mask=like.is_null() if like is not None and nulls else None
        )
    if like is None or not nulls:
        # StructArray.from_arrays takes the length from its children, and there is none.
        return arrow.Array.from_buffers(target, length, [None], 0)
    valid = like.is_valid()
    return arrow.Array.from_buffers(target, length, [valid.buffers()[1]], like.null_count, valid.offset)


def under(array: Array, struct: Array) -> Array:
    """The array with nulls where the struct is null."""
    return (
        array
        if struct.null_count == 0
        else pc.if_else(struct.is_valid(), array, arrow.scalar(None, array.type))
    )


def texts_of(form: JsonForm, array: Array) -> tuple[Array, Bools | None]:
    """Encoded Structs, Values or ListValues as JSON text; nulls stay. Second: which are malformed, None for
    none.
    """
    # Per value, because Arrow cannot parse Protobuf.
    texts = [None if one is None else decode(form, one) for one in array.to_pylist()]
    column = arrow.array(texts, pa.string())
    # No text is null where the message is not: all are well-formed.
    if column.null_count == array.null_count:
        return column, None
    return column, (
        column.is_null().to_numpy(zero_copy_only=False) & array.is_valid().to_numpy(zero_copy_only=False)
    )


def messages_of(form: JsonForm, array: Array) -> Array:
    """The opposite of `texts_of`. Raises pyarrow.ArrowInvalid for text that is no JSON of that form."""
    try:
        return arrow.array(
            [None if one is None else encode(form, one) for one in array.to_pylist()], pa.binary()
        )
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error


def numbers(array: Array) -> npt.NDArray[Any]:
    """An integer array as numpy, 0 for null."""
    result: npt.NDArray[Any] = filled(array, Kind.INT64).to_numpy(zero_copy_only=False)
    return result


def _enum_names(enum: EnumTree, array: Array) -> Array:
    texts = arrow.array([name for _, name in enum.names], pa.string())
    names = texts.take(_places(enum, array))
    if names.null_count == array.null_count:
        return names
    # Numbers that the enum does not have become decimal text.
    return pc.coalesce(names, array.cast(pa.string()))


def _places(enum: EnumTree, array: Array) -> Array:
    """The places of numbers among those of the enum; null of an unknown one."""
    if _counts_up(enum):
        ends = pc.min_max(array).as_py()
        if ends["min"] is None or (ends["min"] >= 0 and ends["max"] < len(enum.names)):
            # Each number is its own place, which saves the lookup.
            return array
    return pc.index_in(array, value_set=arrow.array([number for number, _ in enum.names], pa.int32()))


def _counts_up(enum: EnumTree) -> bool:
    """Whether the numbers are 0, 1, 2 … without a hole, as in most enums. Then each number is its own
    place.
    """
    return all(number == place for place, (number, _) in enumerate(enum.names))


def _enum_numbers(enum: EnumTree, array: Array) -> Array:
    texts = arrow.array([name for _, name in enum.names], pa.string())
    index = pc.index_in(array, value_set=texts)
    result = (
        index
        if _counts_up(enum)
        else arrow.array([number for number, _ in enum.names], pa.int32()).take(index)
    )
    if result.null_count == array.null_count:
        return result
    # Text that is no name must be decimal; the cast raises for other text.
    unknown = pc.and_(pc.is_null(index), pc.is_valid(array))
    return pc.replace_with_mask(result, unknown, array.filter(unknown).cast(pa.int32()))
