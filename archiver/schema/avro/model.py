"""Parses Avro schemas into trees of bounded size.

`parse_schema` reads and checks a schema's JSON, with the definitions that its references bring, and spells it
in one normal, self-contained form. `Schema.node` is that form as a tree: names are resolved, and a record
that holds itself is cut at a set depth (`Kind.ENCODED`). Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeGuard

from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt
from archiver.schema.avro.defaults import Default, check_defaults, refused
from archiver.schema.protobuf.tree import COLUMNS_MAX, DEPTH_MAX, LIBRARY_LEVELS_MAX, RECURSION_DEPTH
from archiver.schema.schema_text import parsed_schema

_JSON_DEPTH_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_MAX: Final = 1024
"""Most characters of a full name and of a field's name. The name of a schema is in the error text of each
record that does not decode."""
_FIXED_SIZE_MAX: Final = 2**24
DECIMAL_DIGITS_MAX: Final = 38
"""Most digits of a decimal column in Iceberg. A wider Avro decimal stays bytes."""
_DURATION_SIZE: Final = 12
_UUID_SIZE: Final = 16

Json = Any


class Kind(Enum):
    """The type of a value, by its Avro name."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    FIXED = "fixed"
    ENUM = "enum"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"
    RECORD = "record"
    ENCODED = "encoded"
    """A record beyond the recursion depth: its datum, not parsed into columns."""


_PRIMITIVES: Final[Mapping[str, Kind]] = {
    one.value: one
    for one in (
        Kind.NULL,
        Kind.BOOLEAN,
        Kind.INT,
        Kind.LONG,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.BYTES,
        Kind.STRING,
    )
}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})

_LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {
            "time-micros",
            *(
                f"{prefix}timestamp-{unit}"
                for prefix in ("", "local-")
                for unit in ("millis", "micros", "nanos")
            ),
        }
    ),
    "string": frozenset({"uuid"}),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "duration", "uuid"}),
}
"""The logical types that become columns of their own, by the type that they annotate."""


@dataclass(frozen=True)
class Field:
    """One field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: Node


@dataclass(frozen=True)
class Node:
    """One type at one place of a schema."""

    kind: Kind
    name: str = ""
    """Full name of a record, an enum or a fixed."""
    logical: str = ""
    """The logical type, if the archiver knows it and it is valid there."""
    precision: int = 0
    scale: int = 0
    size: int = 0
    """Of a fixed."""
    symbols: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    branches: tuple[Node, ...] = ()
    item: Node | None = None
    """Of an array or a map."""

    @property
    def core(self) -> Node:
        """The type without `null`: of a union of null and one type that type; NULL if nothing else is
        left.
        """
        if self.kind is not Kind.UNION:
            return self
        rest = self.values
        if not rest:
            return Node(Kind.NULL)
        return rest[0] if len(rest) == 1 else self

    @property
    def values(self) -> tuple[Node, ...]:
        """The branches of a union without `null`."""
        return tuple(one for one in self.branches if one.kind is not Kind.NULL)

    @property
    def is_empty(self) -> bool:
        """Whether a value of this type takes no bytes and says nothing but that it is there."""
        return self.kind is Kind.NULL or (self.kind is Kind.RECORD and not self.fields)

    @property
    def branch(self) -> str:
        """What names the type as a branch of a union."""
        return self.name or self.kind.value

    @property
    def text(self) -> str:
        """The type for people."""
        if self.kind is Kind.UNION:
            return f"[{', '.join(one.text for one in self.branches)}]"
        if self.item is not None:
            return f"{self.kind.value}<{self.item.text}>"
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.logical:
            return self.logical
        return self.name if self.kind in (Kind.RECORD, Kind.ENCODED) else self.kind.value


@dataclass(frozen=True)
class Schema:
    """A checked schema in its normal form."""

    text: str
    """Self-contained JSON with full names; without what does not affect columns or bytes."""
    definitions: Mapping[str, Json] = field(compare=False, repr=False)
    """The named types by full name, as in `text`."""
    node: Node = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Full name of the record, or the name of another type."""
        return self.node.branch


def parse_schema(
    text: bytes,
    where: str,
    recursion_depth: int = RECURSION_DEPTH,
    definitions: Mapping[str, Json] | None = None,
    *,
    columns_max: int = COLUMNS_MAX,
    levels_max: int | None = LIBRARY_LEVELS_MAX,
    defaults: bool = False,
) -> Schema:
    """The schema of a text; `definitions` are those of its references. `where` opens the messages of errors.
    With `defaults`, a default must be of its field's type.

    Raises `ConfigInvalid`, which names the path inside the schema, for a text that is no Avro schema, a type
    that is not defined, and a schema that is too large or too deep.
    """
    normal, found = normalized(text, where, definitions or {}, defaults=defaults)
    builder = _Builder(where, found, recursion_depth, columns_max, levels_max)
    node = builder.build(normal, "", (), 1)
    # The definitions of references are written where they are used first, so the text stands alone.
    whole = _inlined(normal, found, set())
    return Schema(json.dumps(whole, separators=(",", ":"), ensure_ascii=False), found, node)


def normalized(
    text: bytes, where: str, definitions: Mapping[str, Json], *, defaults: bool = False
) -> tuple[Json, dict[str, Json]]:
    """The JSON of a schema with full names, and all named types: those given and its own."""
    parsed = parsed_schema(text, where, "an Avro schema")
    reader = _Normalizer(where, dict(definitions))
    normal = reader.type(parsed, "", "", 0)
    if defaults:
        check_defaults(reader.defaults, reader.definitions, where)
    return normal, reader.definitions


# --- Names and attributes
class _Normalizer:
    """Resolves names, and leaves out what affects neither columns nor bytes."""

    def __init__(self, where: str, definitions: dict[str, Json]) -> None:
        self._where = where
        self.definitions = definitions
        self.defaults: list[Default] = []

    def type(self, given: Json, namespace: str, path: str, depth: int) -> Json:
        """A type in normal form: a name, a list of branches, or an object."""
        if depth > _JSON_DEPTH_MAX:
            raise self._refused(path, f"is nested deeper than {_JSON_DEPTH_MAX} levels; use a flatter schema")
        if isinstance(given, str):
            return self._named(given, namespace, path)
        if isinstance(given, list):
            return self._union(given, namespace, path, depth)
        if not isinstance(given, dict) or "type" not in given:
            raise self._refused(path, f"{excerpt(json.dumps(given), 80)} is no type of Avro")
        kind = given["type"]
        if not isinstance(kind, str):
            # An object around a type: its attributes do not apply to what is inside.
            return self.type(kind, namespace, path, depth + 1)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in given:
                raise self._refused(path, f"is of the type {kind} without {part!r}")
            return {"type": kind, part: self.type(given[part], namespace, f"{path}.{part}", depth + 1)}
        if kind in _NAMED:
            return self._definition(given, kind, namespace, path, depth)
        if kind not in _PRIMITIVES:
            return self._named(kind, namespace, path)
        return _annotated(given, kind, 0)

    def _named(self, name: str, namespace: str, path: str) -> str:
        if name in _PRIMITIVES:
            return name
        # A name without a dot is of the surrounding namespace, else of none.
        names = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for one in names:
            if one in self.definitions:
                return one
        raise self._refused(
            path,
            f"its type {excerpt(names[0], 80)!r} is not defined; put its definition into the schema before "
            "its first use, or register the schema with a reference to the subject that has it",
        )

    def _union(self, given: list[Json], namespace: str, path: str, depth: int) -> Json:
        branches = [self.type(one, namespace, path, depth + 1) for one in given]
        if not branches:
            raise self._refused(path, "is a union without types")
        names: list[str] = []
        for one in branches:
            if isinstance(one, list):
                raise self._refused(path, "is a union directly inside a union, which Avro does not have")
            names.append(one if isinstance(one, str) else one.get("name", one["type"]))
        [(name, count)] = Counter(names).most_common(1)
        if count > 1:
            raise self._refused(path, f"is a union with the type {excerpt(name, 80)} twice")
        return branches

    def _definition(self, given: dict[str, Json], kind: str, namespace: str, path: str, depth: int) -> Json:
        full, inner = self._full_name(given, namespace, path)
        if full in self.definitions:
            raise self._refused(path, f"defines {excerpt(full, 80)!r} a second time; keep one definition")
        if kind == "enum":
            result: dict[str, Json] = {"type": "enum", "name": full, "symbols": self._symbols(given, path)}
        elif kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _FIXED_SIZE_MAX:
                raise self._refused(path, f"is a fixed whose size is none from 0 to {_FIXED_SIZE_MAX:,}")
            annotated = _annotated(given, "fixed", size)
            attributes = {} if isinstance(annotated, str) else annotated
            result = {**attributes, "type": "fixed", "name": full, "size": size}
        else:
            result = {"type": "record", "name": full}
        # Before the fields, which may name the record itself.
        self.definitions[full] = result
        if result["type"] == "record":
            result["fields"] = self._fields(given, inner, path, depth)
        return result

    def _full_name(self, given: dict[str, Json], namespace: str, path: str) -> tuple[str, str]:
        """The full name of a definition, and the namespace inside it."""
        name, own = given.get("name"), given.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            raise self._refused(path, "is a definition whose name or namespace is no text")
        full = name if "." in name or not own else f"{own}.{name}"
        if len(full) > _NAME_MAX:
            raise self._refused(
                path, f"has a name of {len(full)} characters; at most {_NAME_MAX} are possible"
            )
        if not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise self._refused(
                path, f"is a definition with the name {excerpt(full, 80)!r}, which Avro does not allow"
            )
        return full, full.rpartition(".")[0]

    def _symbols(self, given: dict[str, Json], path: str) -> list[str]:
        symbols = given.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
            raise self._refused(path, "is an enum without a list of symbols")
        if len(set(symbols)) != len(symbols):
            raise self._refused(path, "is an enum with a symbol twice")
        return list(symbols)

    def _fields(self, given: dict[str, Json], namespace: str, path: str, depth: int) -> list[Json]:
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise self._refused(path, "is a record without a list of fields")
        result: list[Json] = []
        seen: set[str] = set()
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise self._refused(path, "is a record with a field that has no name or no type")
            name = one["name"]
            if len(name) > _NAME_MAX:
                raise self._refused(
                    path, f"has a name of {len(name)} characters; at most {_NAME_MAX} are possible"
                )
            here = f"{path}.{name}".lstrip(".")
            if not _NAME.fullmatch(name):
                raise self._refused(
                    path, f"has a field {excerpt(name, 80)!r}, a name that Avro does not allow"
                )
            if name in seen:
                raise self._refused(here, "is there twice in its record")
            seen.add(name)
            entry: dict[str, Json] = {
                "name": name,
                "type": self.type(one["type"], namespace, here, depth + 1),
            }
            if "default" in one:
                self.defaults.append(Default(here, entry["type"], one["default"]))
            aliases = one.get("aliases", [])
            if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
                raise self._refused(here, "has aliases that are no list of names")
            if aliases:
                entry["aliases"] = list(aliases)
            result.append(entry)
        return result

    def _refused(self, path: str, why: str) -> ConfigInvalid:
        return refused(self._where, path, why)


def _annotated(given: dict[str, Json], kind: str, size: int) -> Json:
    """A primitive or fixed with its logical type, if that is known and valid; Avro ignores others."""
    logical = given.get("logicalType")
    if not isinstance(logical, str) or logical not in _LOGICAL.get(kind, ()):
        return kind
    if logical == "decimal":
        precision, scale = given.get("precision"), given.get("scale", 0)
        if not _is_whole(precision, 1) or not _is_whole(scale, 0) or scale > precision:
            return kind
        # Wider ones do not fit a column; Avro's remedy for what a reader does not know is the bare type.
        if precision > DECIMAL_DIGITS_MAX:
            return kind
        return {"type": kind, "logicalType": logical, "precision": precision, "scale": scale}
    if (logical == "duration" and size != _DURATION_SIZE) or (
        logical == "uuid" and kind == "fixed" and size != _UUID_SIZE
    ):
        return kind
    return {"type": kind, "logicalType": logical}


def _is_whole(value: Json, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 2**31


def _inlined(kind: Json, definitions: Mapping[str, Json], done: set[str]) -> Json:
    """A type with every definition where it is used first."""
    if isinstance(kind, str):
        if kind in _PRIMITIVES or kind in done:
            return kind
        return _inlined(definitions[kind], definitions, done)
    if isinstance(kind, list):
        return [_inlined(one, definitions, done) for one in kind]
    if kind["type"] in ("array", "map"):
        part = "items" if kind["type"] == "array" else "values"
        return {**kind, part: _inlined(kind[part], definitions, done)}
    if "name" not in kind:
        return kind
    if kind["name"] in done:
        return kind["name"]
    done.add(kind["name"])
    if kind["type"] != "record":
        return kind
    fields = [{**one, "type": _inlined(one["type"], definitions, done)} for one in kind["fields"]]
    return {**kind, "fields": fields}


# --- The tree
_LEVELS: Final[Mapping[Kind, int]] = {Kind.ARRAY: 2, Kind.MAP: 3}
"""Levels of Arrow types that a container adds; a struct adds one."""


class _Builder:
    """Makes the tree, and counts fields and levels, so that a wide schema is refused before it fills
    memory.
    """

    def __init__(
        self,
        where: str,
        definitions: Mapping[str, Json],
        recursion_depth: int,
        columns_max: int,
        levels_max: int | None,
    ) -> None:
        self._where = where
        self._definitions = definitions
        self._depth = recursion_depth
        self._columns_max = columns_max
        self._levels_max = levels_max
        self._count = 0

    def build(self, normal: Json, path: str, above: tuple[str, ...], level: int) -> Node:
        """The tree of a type inside the records `above`."""
        if self._levels_max is not None and level > self._levels_max:
            raise refused(
                self._where,
                path,
                f"is {level} levels deep as Arrow counts them (a record is 1, an array 2, a map 3), at most "
                f"{self._levels_max} work; use a flatter schema, or a smaller recursion_depth if a record "
                "holds itself",
            )
        if isinstance(normal, list):
            values = [one for one in normal if one != "null"]
            # A nullable type is one column. The branches of any other union are columns.
            for _ in values if len(values) > 1 else ():
                self._counted(path)
            return Node(Kind.UNION, branches=tuple(self.build(one, path, above, level + 1) for one in normal))
        if isinstance(normal, str):
            if normal in _PRIMITIVES:
                return Node(_PRIMITIVES[normal])
            normal = self._definitions[normal]
        kind = normal["type"]
        if kind in ("array", "map"):
            found = Kind(kind)
            part = normal["items" if found is Kind.ARRAY else "values"]
            item = self.build(part, path, above, level + _LEVELS[found])
            # A few bytes could be any number of them.
            if found is Kind.ARRAY and _takes_nothing(item):
                raise refused(
                    self._where,
                    path,
                    f"is an array of {item.text}, whose items take no bytes; archive the topic without a "
                    "schema, or give the items a field",
                )
            return Node(found, item=item)
        if kind == "record":
            return self._record(normal, path, above, level)
        return Node(
            Kind(kind),
            name=normal.get("name", ""),
            logical=normal.get("logicalType", ""),
            precision=normal.get("precision", 0),
            scale=normal.get("scale", 0),
            size=normal.get("size", 0),
            symbols=tuple(normal.get("symbols", ())),
        )

    def _record(self, normal: Json, path: str, above: tuple[str, ...], level: int) -> Node:
        name = normal["name"]
        if above.count(name) > self._depth:
            return Node(Kind.ENCODED, name=name)
        if len(above) >= DEPTH_MAX:
            raise refused(
                self._where,
                path,
                f"has more than {DEPTH_MAX} levels of records; use a flatter schema or a smaller "
                "recursion_depth",
            )
        fields: list[Field] = []
        for one in normal["fields"]:
            here = f"{path}.{one['name']}".lstrip(".")
            self._counted(here)
            inner = self.build(one["type"], here, (*above, name), level + 1)
            fields.append(Field(one["name"], tuple(one.get("aliases", ())), inner))
        return Node(Kind.RECORD, name=name, fields=tuple(fields))

    def _counted(self, path: str) -> None:
        self._count += 1
        if self._count > self._columns_max:
            raise refused(
                self._where,
                path,
                f"is behind more than {self._columns_max} fields at all levels together; use a smaller "
                "schema or recursion_depth",
            )


def _takes_nothing(node: Node) -> bool:
    if node.kind is Kind.RECORD:
        return all(_takes_nothing(one.type) for one in node.fields)
    return node.kind is Kind.NULL or (node.kind is Kind.FIXED and node.size == 0)
