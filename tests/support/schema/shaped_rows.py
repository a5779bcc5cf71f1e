"""Values of one Iceberg type, as several engines hand them over and as the mapping's page spells them, in one
form to be compared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Binary = Callable[[Any], bytes]
"""What bytes come as."""
_WHOLE = ("int", "long")


def shaped(value: Any, kind: Any, binary: Binary = bytes) -> Any:
    """Structs as dicts by name, without a null `__unrecognized__`; maps as pairs in an order of their own;
    leaves as plain values.

    A struct may be a dict or a sequence in the order of its fields. A map may be a dict or pairs. A number
    may be its text.
    """
    if value is None:
        return None
    if isinstance(kind, Mapping):
        return _nested(value, kind, binary)
    if kind == "binary":
        return binary(value)
    if kind in _WHOLE:
        return int(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind in ("float", "double"):
        return repr(float(value))  # by which NaN is itself and -0.0 is not 0.0
    if kind == "boolean":
        return value if isinstance(value, bool) else {"true": True, "false": False}[value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, dt.date) else value


def _nested(value: Any, kind: Mapping[str, Any], binary: Binary) -> Any:
    if kind["type"] == "list":
        return [shaped(item, kind["element"], binary) for item in value]
    if kind["type"] == "map":
        pairs = value.items() if isinstance(value, Mapping) else value
        return sorted(
            ([shaped(key, kind["key"], binary), shaped(item, kind["value"], binary)] for key, item in pairs),
            key=repr,
        )
    names = [field["name"] for field in kind["fields"]]
    items = value if isinstance(value, Mapping) else dict(zip(names, value, strict=True))
    found = {
        field["name"]: shaped(items.get(field["name"]), field["type"], binary) for field in kind["fields"]
    }
    return {name: item for name, item in found.items() if name != "__unrecognized__" or item is not None}
