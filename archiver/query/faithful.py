"""Converts values of a query result to JSON values without loss.

Decimal numbers and integers beyond 2^53 are text, because a JSON reader may have only doubles. Bytes are
base64. Times are ISO 8601; with a time zone they are in UTC with `Z`. Structs and maps are objects. NaN and
the infinities are text.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal

EXACT_MAX = 2**53


def faithful(value: object) -> object:
    """Convert a value for `json.dumps`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0:
        return faithful(int(value))  # DuckDB's sum of integers is such a decimal
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return f"PT{value.total_seconds():f}S"
    if isinstance(value, Mapping):
        return {_key(name): faithful(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [faithful(item) for item in value]
    return str(value)


def _key(name: object) -> str:
    """Key of a map as text, formatted as in JSON."""
    if isinstance(name, bool):
        return "true" if name else "false"
    return str(faithful(name))


def _moment(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
