"""google.protobuf.Struct, Value and ListValue as JSON text and back.

Keys are in wire order (of a duplicate key the last value, at the position of the first). A number is the
shortest text of the same double, without a fraction if it has none. NaN and the infinities are the texts
"NaN", "Infinity", "-Infinity". An empty Value is null, like a null. The text has exactly one spelling, and
`encode` makes the canonical message from it. A value that reads the same but was written differently (a NaN,
an empty Value, a duplicate key) is not restored byte for byte: such records keep their bytes. This is Python
per value, so it must not run unless a column is JSON.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from archiver.runtime.redaction import excerpt
from archiver.schema.protobuf.complete_wire import json_descriptor
from archiver.schema.protobuf.tree import JsonForm

_EXACT = 2**53


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
    """The text of a message with the fields of `wire_judge`."""
    return json.dumps(_READ[form](message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def fill(form: JsonForm, text: str, message: Any) -> None:
    """Set the fields of an empty message from a text. Raises ValueError for text that is no JSON of that
    form.
    """
    try:
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
    if kind == "f2":
        return _number(message.f2)
    if kind == "f5":
        return _struct(message.f5)
    if kind == "f6":
        return _list(message.f6)
    return getattr(message, kind) if kind in ("f3", "f4") else None


def _number(value: float) -> float | int | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
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
