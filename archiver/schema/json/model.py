"""The columns of a JSON Schema as a tree (`Node`): from the schema, and to and from the recorded form.

`parse_schema` reads a schema with the documents of its references. The tree is all that is recorded: it says
which columns a version has and in which order an object's properties are written. The rules are those of
docs/schema-mapping-json.md. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from archiver.schema.json.resolve import (
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    OBJECT,
    STRING,
    Expr,
    Resolver,
    View,
    refused,
    shown_path,
)
from archiver.schema.protobuf.tree import COLUMNS_MAX, DEPTH_MAX, LIBRARY_LEVELS_MAX, RECURSION_DEPTH
from archiver.schema.schema_text import parsed_schema

Json: TypeAlias = Any

_NAME_MAX: Final = 1024
"""Most characters of a property's name."""
_TITLE: Final = re.compile(r"[A-Za-z0-9_.$ -]{1,200}")
UNTITLED: Final = "JSON"
"""The name of a schema without a title."""
_DIGITS_MAX: Final = 38
_LONG_DIGITS: Final = 20


class Kind(Enum):
    """What a value becomes."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    DATE = "date"
    DATE_TIME = "date-time"
    ARRAY = "array"
    MAP = "map"
    OBJECT = "object"
    TEXT = "text"
    """JSON text: a value of several types, or of none in particular."""


_COLUMNS: Final[Mapping[Kind, str]] = {
    Kind.BOOLEAN: "boolean",
    Kind.NUMBER: "double",
    Kind.STRING: "string",
    Kind.DATE: "date",
    Kind.DATE_TIME: "timestamptz",
    Kind.TEXT: "string",
}
_LEVELS: Final[Mapping[Kind, int]] = {Kind.ARRAY: 2, Kind.MAP: 3}
"""Levels of Arrow types that a container adds; a struct adds one."""


@dataclass(frozen=True)
class Node:
    """A value at one place."""

    kind: Kind
    column: str = ""
    """Iceberg's type of a value that is a single column."""
    nullable: bool = False
    """A null column is written as `null`; otherwise the property is left out."""
    fields: tuple[tuple[str, Node], ...] = ()
    """The properties of an object, in the order of the schema."""
    item: Node | None = None
    """An item of an array, a value of a map."""

    @property
    def text(self) -> str:
        """The type for people."""
        if self.item is not None:
            return f"{self.kind.value} of {self.item.text}"
        kind = f"{self.column} integer" if self.kind is Kind.INTEGER else self.kind.value
        return f"{kind} or null" if self.nullable else kind


@dataclass(frozen=True)
class Schema:
    """The columns of a schema."""

    name: str
    """The schema's title."""
    node: Node


def parse_schema(
    text: bytes,
    where: str,
    recursion_depth: int = RECURSION_DEPTH,
    references: Mapping[str, bytes] | None = None,
) -> Schema:
    """The columns of a schema. `references`: the schemas that it may name, by the names that it uses. Raises
    `ConfigInvalid` that names `where` and the path.
    """
    documents: dict[str, Json] = {
        name: parsed_schema(data, f"{where}, reference {shown_path(name)}", "a JSON Schema")
        for name, data in (references or {}).items()
    }
    documents[""] = parsed_schema(text, where, "a JSON Schema")
    top = documents[""]
    title = top.get("title") if isinstance(top, dict) else None
    name = title if isinstance(title, str) and _TITLE.fullmatch(title) else UNTITLED
    resolver = Resolver(where, documents, recursion_depth)
    try:
        node = _Builder(where, resolver).build(resolver.top(), "", 0, 1)
    except RecursionError as error:
        # Bounded levels at each of the bounded places, and still too many frames together.
        raise refused(where, "", "has too many levels of schemas inside one another; use fewer") from error
    return Schema(name, node or Node(Kind.TEXT, "string"))


class _Builder:
    """Makes the tree, and counts properties and levels, so that a wide schema is refused before it fills
    memory.
    """

    def __init__(self, where: str, resolver: Resolver) -> None:
        self._where = where
        self._resolver = resolver
        self._count = 0

    def build(self, expr: Expr, path: str, objects: int, level: int) -> Node | None:
        """The node of a value; None for one that no record may have."""
        if level > LIBRARY_LEVELS_MAX or objects > DEPTH_MAX:
            raise refused(
                self._where,
                path,
                f"is more than {DEPTH_MAX} objects or {LIBRARY_LEVELS_MAX} levels deep (an object is 1, an "
                "array 2, a map 3); use a flatter schema, or a smaller recursion_depth if it holds itself",
            )
        view = self._resolver.view(expr, path)
        if view.never:
            return None
        kind, nullable = _kind(view), NULL in view.types
        if kind is Kind.OBJECT:
            return Node(kind, nullable=nullable, fields=self._fields(view, path, objects, level))
        part = view.extra if kind is Kind.MAP else view.items
        if kind in _LEVELS and part is not None:
            inner = self.build(
                part, f"{path}[]" if kind is Kind.ARRAY else f"{path}{{}}", objects, level + _LEVELS[kind]
            )
            return Node(kind, nullable=nullable, item=inner or Node(Kind.TEXT, "string"))
        column = _integer(view) if kind is Kind.INTEGER else _COLUMNS[kind]
        return Node(kind, column, nullable and kind is not Kind.TEXT)

    def _fields(self, view: View, path: str, objects: int, level: int) -> tuple[tuple[str, Node], ...]:
        found: list[tuple[str, Node]] = []
        for name, expr in view.properties.items():
            here = f"{path}.{name}".lstrip(".")
            self._count += 1
            if self._count > COLUMNS_MAX:
                raise refused(
                    self._where,
                    here,
                    f"is behind more than {COLUMNS_MAX} properties at all levels together; use a smaller "
                    "schema or recursion_depth",
                )
            if len(name) > _NAME_MAX:
                raise refused(
                    self._where,
                    here,
                    f"has a name of {len(name)} characters; at most {_NAME_MAX} are possible",
                )
            if any("\ud800" <= one <= "\udfff" for one in name):
                raise refused(self._where, here, "has half of a surrogate pair in its name; correct it")
            node = self.build(expr, here, objects + 1, level + 1)
            if node is not None:
                found.append((name, node))
        return tuple(found)


def _kind(view: View) -> Kind:
    if view.text:
        return Kind.TEXT
    types = view.types - {NULL}
    if types == {OBJECT}:
        return Kind.OBJECT if view.properties else Kind.MAP if view.extra is not None else Kind.TEXT
    if types == {ARRAY}:
        return Kind.TEXT if view.items is None else Kind.ARRAY
    if types == {STRING}:
        return {"date": Kind.DATE, "date-time": Kind.DATE_TIME}.get(view.format, Kind.STRING)
    if types == {BOOLEAN}:
        return Kind.BOOLEAN
    if types == {INTEGER}:
        return Kind.INTEGER
    return Kind.NUMBER if types and types <= {INTEGER, FRACTION} else Kind.TEXT


def _integer(view: View) -> str:
    """The column of an integer, by its bounds."""
    low, high = view.low, view.high
    if low is not None and high is not None and low >= -(2**31) and high < 2**31:
        return "int"
    if (low is None or low >= -(2**63)) and (high is None or high < 2**63):
        return "long"
    digits = max(len(str(abs(one))) for one in (low, high) if one is not None)
    return f"decimal({min(_DIGITS_MAX, max(_LONG_DIGITS, digits))}, 0)"


# --- The recorded form
def node_json(node: Node) -> Json:
    """The recorded form of a tree."""
    found: dict[str, Json] = {"kind": node.kind.value}
    if node.kind is Kind.INTEGER:
        found["column"] = node.column
    if node.nullable:
        found["nullable"] = True
    if node.kind is Kind.OBJECT:
        found["properties"] = [[name, node_json(one)] for name, one in node.fields]
    if node.item is not None:
        found["item"] = node_json(node.item)
    return found


def node_of(recorded: Json) -> Node:
    """The tree of a recorded form. Raises `ValueError`, `KeyError` or `TypeError` for another one."""
    kind = Kind(recorded["kind"])
    item = recorded.get("item")
    return Node(
        kind,
        recorded.get("column", "") or _COLUMNS.get(kind, ""),
        recorded.get("nullable", False),
        tuple((name, node_of(one)) for name, one in recorded.get("properties", ())),
        None if item is None else node_of(item),
    )
