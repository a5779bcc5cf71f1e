"""Random Avro schemas, and datums of them by an encoder of its own.

`Datum` has the bytes, the value as fastavro reads it from a schema without logical types, and the value that
the columns should hold. The rules of the columns are written here a second time, from
docs/schema-mapping-avro.md.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

Schema = Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-nanos"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US_MIN, US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999


@dataclass(frozen=True)
class Datum:
    """One value of a schema."""

    data: bytes
    plain: Any
    """As fastavro reads it without logical types."""
    column: Any


def varint(value: int) -> bytes:
    """A zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    out = b""
    while rest > 0x7F:
        out += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return out + bytes([rest])


class Maker:
    """Makes one schema, and datums of it."""

    def __init__(self, rng: random.Random, depth: int = 3) -> None:
        self.rng = rng
        self._count = 0
        self._named: dict[str, Schema] = {}
        self.schema = self._record(depth, ())

    def _name(self) -> str:
        self._count += 1
        return f"{self.rng.choice(('a', 'b.c'))}.T{self._count}"

    def _record(self, depth: int, above: tuple[str, ...]) -> Schema:
        name = self._name()
        fields = []
        for number in range(self.rng.randint(0 if above else 1, 6)):
            kind = self._type(depth - 1, (*above, name))
            fields.append({"name": f"{self.rng.choice('abcXY')}{number}", "type": kind})
        if self.rng.random() < 0.3:
            # A record that holds itself.
            loop = self.rng.choice((*above, name))
            form: Schema = self.rng.choice((["null", loop], {"type": "array", "items": loop}))
            fields.append({"name": "again", "type": form})
        self._named[name] = {"type": "record", "name": name, "fields": fields}
        return self._named[name]

    def _type(self, depth: int, above: tuple[str, ...]) -> Schema:
        pick = self.rng.random()
        if depth <= 0 or pick < 0.35:
            return self._leaf()
        if pick < 0.5:
            return self._record(depth, above)
        if pick < 0.62:
            items = self._type(depth - 1, above)
            return {"type": "array", "items": "int" if nothing(items, self._named) else items}
        if pick < 0.7:
            return {"type": "map", "values": self._type(depth - 1, above)}
        if pick < 0.85:
            inner = self._no_union(depth - 1, above)
            return ["null", inner] if self.rng.random() < 0.8 else [inner, "null"]
        branches: list[Schema] = []
        for _ in range(self.rng.randint(2, 4)):
            one = self._no_union(depth - 1, above)
            if kind_of(one) not in {kind_of(each) for each in branches}:
                branches.append(one)
        if self.rng.random() < 0.5:
            branches.insert(self.rng.randint(0, len(branches)), "null")
        return branches

    def _no_union(self, depth: int, above: tuple[str, ...]) -> Schema:
        while True:
            found = self._type(depth, above)
            if not isinstance(found, list) and found != "null":
                return found

    def _leaf(self) -> Schema:
        pick = self.rng.random()
        if pick < 0.5:
            return self.rng.choice(PRIMITIVES)
        if pick < 0.8:
            return dict(self.rng.choice(LOGICAL))
        name = self._name()
        if pick < 0.9:
            symbols = [f"S{number}" for number in range(self.rng.randint(1, 5))]
            self._named[name] = {"type": "enum", "name": name, "symbols": symbols}
        else:
            self._named[name] = self._fixed(name)
        return self._named[name]

    def _fixed(self, name: str) -> Schema:
        pick = self.rng.random()
        if pick < 0.25:
            return {"type": "fixed", "name": name, "size": 12, "logicalType": "duration"}
        if pick < 0.5:
            return {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
        if pick < 0.75:
            size = self.rng.choice((5, 16, 20))
            more = {"logicalType": "decimal", "precision": {5: 11}.get(size, 38), "scale": 3}
            return {"type": "fixed", "name": name, "size": size, **more}
        return {"type": "fixed", "name": name, "size": self.rng.randint(1, 9)}

    # --- Datums
    def datum(self) -> Datum:
        """A random datum of the schema."""
        return self._value(self.schema, 4, ())

    def _value(self, kind: Schema, size: int, above: tuple[str, ...]) -> Datum:
        if isinstance(kind, list):
            return self._union(kind, size, above)
        if isinstance(kind, str):
            kind = self._named.get(kind, {"type": kind})
        name = kind["type"]
        if name == "record":
            return self._of_record(kind, size, above)
        if name == "array":
            items = [self._value(kind["items"], size - 1, above) for _ in range(self._length(size))]
            return Datum(
                block([one.data for one in items]),
                [one.plain for one in items],
                [one.column for one in items],
            )
        if name == "map":
            pairs = {
                self._text(): self._value(kind["values"], size - 1, above) for _ in range(self._length(size))
            }
            return Datum(
                block([text(key) + one.data for key, one in pairs.items()]),
                {key: one.plain for key, one in pairs.items()},
                [(key, one.column) for key, one in pairs.items()],
            )
        return self._scalar(kind)

    def _length(self, size: int) -> int:
        if size <= 0:
            return 0
        return self.rng.choice((0, 0, 1, 2, 3)) if self.rng.random() < 0.99 else self.rng.randint(4, 60)

    def _of_record(self, kind: Schema, size: int, above: tuple[str, ...]) -> Datum:
        name = kind["name"]
        # A record stands inside itself twice as columns.
        cut = above.count(name) > 2
        parts = [self._value(one["type"], size - 1, (*above, name)) for one in kind["fields"]]
        names = [one["name"] for one in kind["fields"]]
        data = b"".join(one.data for one in parts)
        column: Any = dict(zip(names, (one.column for one in parts), strict=True)) if names else True
        plain = dict(zip(names, (one.plain for one in parts), strict=True))
        return Datum(data, plain, data if cut else column)

    def _union(self, kinds: list[Schema], size: int, above: tuple[str, ...]) -> Datum:
        numbers = list(range(len(kinds)))
        if size <= 0 and "null" in kinds:
            numbers = [kinds.index("null")]
        number = self.rng.choice(numbers)
        value = self._value(kinds[number], size, above)
        rest = [one for one in kinds if one != "null"]
        column = value.column
        if kinds[number] != "null" and len(rest) > 1:
            column = dict.fromkeys(branch_columns(rest))
            column[branch_columns(rest)[rest.index(kinds[number])]] = value.column
        return Datum(varint(number) + value.data, value.plain, column)

    def _text(self) -> str:
        return "".join(self.rng.choice("abzé€𝄞\x00 ") for _ in range(self.rng.choice((0, 1, 3, 8, 200))))

    def _scalar(self, kind: Schema) -> Datum:
        name, logical = kind["type"], kind.get("logicalType", "")
        rng = self.rng
        if logical == "decimal":
            return self._decimal(kind)
        if name == "null":
            return Datum(b"", None, None)
        if name == "boolean":
            flag = rng.random() < 0.5
            return Datum(b"\x01" if flag else b"\x00", flag, flag)
        if name in ("int", "long"):
            return self._number(name, logical)
        if name in ("float", "double"):
            form = "<f" if name == "float" else "<d"
            data = struct.pack(form, rng.choice((0.0, -0.0, float("inf"), rng.random(), -1e30)))
            number = struct.unpack(form, data)[0]
            return Datum(data, number, number)
        if name == "string":
            found = self._text()
            return Datum(text(found), found, found)
        if name == "bytes":
            raw = rng.randbytes(rng.choice((0, 1, 5, 40)))
            return Datum(varint(len(raw)) + raw, raw, raw)
        if name == "enum":
            number = rng.randrange(len(kind["symbols"]))
            symbol = kind["symbols"][number]
            return Datum(varint(number), symbol, symbol)
        raw = rng.randbytes(kind["size"])
        column: Any = raw
        if logical == "uuid":
            digits = raw.hex()
            column = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        if logical == "duration":
            column = dict(zip(("months", "days", "millis"), struct.unpack("<III", raw), strict=True))
        return Datum(raw, raw, column)

    def _number(self, name: str, logical: str) -> Datum:
        rng = self.rng
        low, high = (-(2**31), 2**31 - 1) if name == "int" else (-(2**63), 2**63 - 1)
        if logical == "date":
            low, high = -719_162, 2_932_896
        elif logical.startswith("time-"):
            low, high = 0, 86_400 * (1000 if logical == "time-millis" else 1_000_000) - 1
        elif logical.endswith("millis"):
            low, high = US_MIN // 1000, US_MAX // 1000
        elif logical.endswith("micros"):
            low, high = US_MIN, US_MAX
        near = [one for one in (0, -1, 1, 63, -64, 64, low, high) if low <= one <= high]
        number = rng.choice(
            (rng.choice(near), rng.randint(low, high), rng.randint(max(low, -300), 300 + max(0, low)))
        )
        column: Any = number
        if logical == "date":
            column = date(1970, 1, 1) + timedelta(days=number)
        elif logical:
            micros = number * 1000 if logical.endswith("millis") else number
            micros = micros // 1000 if logical.endswith("nanos") else micros
            moment = EPOCH + timedelta(microseconds=micros)
            column = moment if logical.startswith("timestamp") else moment.replace(tzinfo=None)
            if logical.startswith("time-"):
                column = micros
        return Datum(varint(number), number, column)

    def _decimal(self, kind: Schema) -> Datum:
        most = 10 ** self.rng.randint(1, kind["precision"]) - 1
        number = self.rng.choice((0, 127, 128, -128, -129, most, -most, self.rng.randint(-most, most)))
        number = max(-most, min(most, number))
        column = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind["scale"]))
        if kind["type"] == "fixed":
            raw = number.to_bytes(kind["size"], "big", signed=True)
            return Datum(raw, raw, column)
        size = 1
        while not -(2 ** (8 * size - 1)) <= number < 2 ** (8 * size - 1):
            size += 1
        raw = number.to_bytes(size, "big", signed=True)
        return Datum(varint(size) + raw, raw, column)


def nothing(kind: Schema, named: dict[str, Schema]) -> bool:
    """Whether a value takes no bytes."""
    if isinstance(kind, list):
        return False
    found = named.get(kind, kind) if isinstance(kind, str) else kind
    if found == "null":
        return True
    return (
        isinstance(found, dict)
        and found["type"] == "record"
        and all(nothing(one["type"], named) for one in found["fields"])
    )


def kind_of(kind: Schema) -> str:
    """What makes two branches of a union the same."""
    return kind if isinstance(kind, str) else kind.get("name", kind["type"])


def branch_columns(kinds: list[Schema]) -> list[str]:
    """The columns of a union's branches."""
    short = [kind_of(one).rpartition(".")[2] for one in kinds]
    return [
        name if short.count(name) == 1 else kind_of(one).replace(".", "_")
        for name, one in zip(short, kinds, strict=True)
    ]


def block(items: list[bytes]) -> bytes:
    """An array or a map in one block."""
    return (varint(len(items)) + b"".join(items) if items else b"") + b"\x00"


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    return varint(len(data)) + data


def without_logical(kind: Schema) -> Schema:
    """The schema without its logical types."""
    if isinstance(kind, list):
        return [without_logical(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    return {
        name: without_logical(one)
        for name, one in kind.items()
        if name not in ("logicalType", "precision", "scale")
    }
