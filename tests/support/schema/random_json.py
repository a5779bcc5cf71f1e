"""Random JSON Schemas, and documents of them with the columns that they should have.

The rules of columns and of the compact form are written here a second time, from docs/schema-mapping-json.md.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

Schema = Any
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("id", "name", "First Name", "ID", "a.b", "x/y", "ünï", "__raw__", "2nd", "", "n", "when", 'q"uote')
LETTERS = (
    "a",
    "B",
    "7",
    " ",
    "ż",
    "😀",
    '"',
    "\\",
    "/",
    "\n",
    "\t",
    "\x01",
    "\x7f",
    "\u2028",
    "{",
    "}",
    ",",
    ":",
)


@dataclass(frozen=True)
class Document:
    """A record."""

    data: bytes
    column: dict[str, Any]
    """By position of the properties in the schema; the last is `__unrecognized__`."""
    exact: bool
    """Whether it is in compact form, so that the columns alone give it back."""


class Maker:
    """Makes one schema, and documents of it."""

    def __init__(self, rng: random.Random, *, plain: bool = False) -> None:
        """`plain`: without maps and text, which the fast engine leaves to the other."""
        self._rng = rng
        self._plain = plain
        self.schema: Schema = {"title": "Thing", **self._object(0)}
        self._exact = True
        self._odd = 0.0

    def document(self, odd: float = 0.0) -> Document:
        """A document; `odd` is how often a value, an order or a space is not that of the compact form."""
        self._exact, self._odd = True, odd
        text, column = self._value(self.schema)
        return Document(text.encode(), column, self._exact)

    # --- Schemas
    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(NAMES, self._rng.randint(1, 6))
        return {"type": "object", "properties": {name: self._schema(depth + 1) for name in names}}

    def _schema(self, depth: int) -> Schema:
        made = self._one(depth)
        pick = self._rng.random()
        if pick < 0.2:
            return {"oneOf": [{"type": "null"}, made]}
        if pick < 0.3 and isinstance(made.get("type"), str):
            return {**made, "type": [made["type"], "null"]}
        return made

    def _one(self, depth: int) -> Schema:
        kinds = ["boolean", "int", "long", "decimal", "number", "string", "date", "date-time", "enum"]
        if depth < 4:
            kinds += ["array", "object"]
        if not self._plain:
            kinds += ["text", "map"]
        kind = self._rng.choice(kinds)
        if kind == "object":
            return self._object(depth)
        if kind == "array":
            return {"type": "array", "items": self._schema(depth + 1)}
        if kind == "map":
            return {"type": "object", "additionalProperties": self._schema(depth + 1)}
        if kind == "text":
            return self._rng.choice(({"type": ["string", "integer"]}, {"type": "object"}, {"type": "array"}))
        return {
            "boolean": {"type": "boolean"},
            "int": {"type": "integer", "minimum": -5, "maximum": 2**31 - 1},
            "long": {"type": "integer"},
            "decimal": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
            "number": {"type": "number"},
            "string": {"type": "string"},
            "date": {"type": "string", "format": "date"},
            "date-time": {"type": "string", "format": "date-time"},
            "enum": {"enum": ["NEW", "PAID"]},
        }[kind]

    # --- Values: compact or odd text, and the column
    def _value(self, schema: Schema) -> tuple[str, Any]:
        nullable = "oneOf" in schema or isinstance(schema.get("type"), list)
        inner = schema["oneOf"][1] if "oneOf" in schema else schema
        if _is_text(inner):
            return self._text()
        if nullable and self._rng.random() < 0.3:
            return "null", None
        kind = inner.get("type", "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            extra = inner.get("additionalProperties")
            return self._struct(inner) if extra is None else self._map(extra)
        if kind == "array":
            parts = [self._value(inner["items"]) for _ in range(self._rng.choice((0, 1, 2, 5)))]
            return f"[{','.join(one for one, _ in parts)}]", [one for _, one in parts]
        return self._scalar(kind, inner)

    def _struct(self, schema: Schema) -> tuple[str, Any]:
        members: list[str] = []
        column: dict[str, Any] = {}
        for name, inner in schema["properties"].items():
            column[name] = None
            nullable = "oneOf" in inner or (isinstance(inner.get("type"), list) and "null" in inner["type"])
            # A text column holds null as text, so such a property is left out like any other.
            nullable &= not _is_text(inner.get("oneOf", [None, inner])[1])
            if self._rng.random() < (0.02 * self._odd if nullable else 0.2):
                self._exact &= not nullable
                continue
            text_of, column[name] = self._value(inner)
            members.append(f"{self._string(name)}:{self._space()}{text_of}")
        unknown = self._unknown(set(schema["properties"]))
        column["__unrecognized__"] = f"{{{','.join(unknown)}}}".encode() if unknown else None
        if len(members) > 1 and self._is_odd():
            before = list(members)
            self._rng.shuffle(members)
            self._exact &= before == members
        return f"{{{','.join([*members, *unknown])}{self._space()}}}", column

    def _unknown(self, known: set[str]) -> list[str]:
        if self._rng.random() > 0.1:
            return []
        names = self._rng.sample([one for one in ("new", "other", "Name") if one not in known], 2)
        # In compact form, as the column has them.
        return [f"{json.dumps(name)}:{self._compact(0)}" for name in names]

    def _map(self, inner: Schema) -> tuple[str, Any]:
        names = self._rng.sample(NAMES, self._rng.choice((0, 1, 2, 4)))
        parts = [(name, *self._value(inner)) for name in names]
        members = [f"{self._string(name)}:{self._space()}{text}" for name, text, _ in parts]
        return f"{{{','.join(members)}}}", [(name, one) for name, _, one in parts]

    def _text(self) -> tuple[str, Any]:
        text = self._compact(0)
        if self._is_odd():
            self._exact = False
            return f"[ {text} ]", f"[{text}]"
        return text, text

    def _compact(self, depth: int) -> str:
        """Any value in compact form."""
        pick = self._rng.randrange(8 if depth < 3 else 6)
        if pick < 6:
            return ("null", "true", "-12", "1.50", "1e400", _quoted(self._letters()))[pick]
        parts = [self._compact(depth + 1) for _ in range(self._rng.randrange(3))]
        if pick == 6:
            return f"[{','.join(parts)}]"
        members = [f'"{place}":{one}' for place, one in enumerate(parts)]
        return f"{{{','.join(members)}}}"

    def _scalar(self, kind: str, schema: Schema) -> tuple[str, Any]:
        rng = self._rng
        if kind == "boolean":
            return rng.choice((("true", True), ("false", False)))
        if kind == "integer":
            return self._integer(schema)
        if kind == "number":
            if self._is_odd():
                self._exact = False
                return rng.choice((("1.10", 1.1), ("1e400", None), ("2.0", 2.0), ("1E2", 100.0)))
            if rng.random() < 0.3:
                whole = rng.randint(-(10**9), 10**9)
                return str(whole), float(whole)
            value = rng.randint(-(10**6), 10**6) + rng.choice((0.5, 0.25, 0.1))
            return repr(value), value
        if "enum" in schema:
            value = rng.choice(schema["enum"])
            return self._string(value), value
        return self._time(schema["format"]) if "format" in schema else self._any_text()

    def _integer(self, schema: Schema) -> tuple[str, Any]:
        high = schema.get("maximum", 2**63 - 1)
        if self._is_odd():
            self._exact = False
            over = 10**20 if high > 2**63 else high + 1
            return self._rng.choice(
                (("1.0", None), ("1e3", None), (str(over), None), ("-0", self._whole(0, high)))
            )
        value = self._rng.choice((0, 1, -1, high, self._rng.randint(0, high)))
        return str(value), self._whole(value, high)

    def _whole(self, value: int, high: int) -> Any:
        return Decimal(value) if high > 2**63 else value

    def _time(self, form: str) -> tuple[str, Any]:
        rng = self._rng
        if self._is_odd():
            self._exact = False
            if form == "date":
                return rng.choice(('"2026-02-30"', '"soon"', '"2026-1-01"')), None
            moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
            return rng.choice(
                (
                    ('"2026-01-02T03:04:05+00:00"', moment),
                    ('"2026-01-02t05:04:05.000+02:00"', moment),
                    ('"2026-01-02T03:04:05"', None),
                    ('"2026-01-02T03:04:05.0000009Z"', moment),
                    ('"today"', None),
                )
            )
        if form == "date":
            day = date.fromordinal(rng.randint(1, date.max.toordinal()))
            return f'"{day.isoformat()}"', day
        moment = EPOCH + timedelta(seconds=rng.randint(-(10**9), 10**10))
        digits = rng.choice((0, 0, 3, 6))
        fraction = {0: 0, 3: rng.randint(1, 999) * 1000, 6: rng.randint(1, 999) + 1000 * rng.randint(0, 999)}[
            digits
        ]
        moment += timedelta(microseconds=fraction)
        tail = f".{fraction:06d}"[: digits + 1] if digits else ""
        return f'"{moment.strftime("%Y-%m-%dT%H:%M:%S")}{tail}Z"', moment

    def _any_text(self) -> tuple[str, Any]:
        value = self._letters()
        return self._string(value), value

    def _letters(self) -> str:
        return "".join(self._rng.choices(LETTERS, k=self._rng.choice((0, 1, 3, 9))))

    def _string(self, value: str) -> str:
        text = _quoted(value)
        if self._is_odd():
            other = json.dumps(value).replace("/", "\\/")
            self._exact &= other == text
            return other
        return text

    def _is_odd(self) -> bool:
        return self._rng.random() < 0.1 * self._odd

    def _space(self) -> str:
        if self._is_odd():
            self._exact = False
            return self._rng.choice((" ", "\n", "\t "))
        return ""


def _is_text(schema: Schema) -> bool:
    """Whether a value is kept as JSON text."""
    kinds = schema.get("type", "string")
    kinds = set(kinds if isinstance(kinds, list) else [kinds]) - {"null"}
    inside = {"properties", "additionalProperties", "items"} & set(schema)
    return len(kinds) > 1 or (kinds <= {"object", "array"} and not inside)


def _quoted(value: str) -> str:
    """A text with the least escapes."""
    return json.dumps(value, ensure_ascii=False)
