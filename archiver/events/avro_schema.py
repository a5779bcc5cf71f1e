"""Avro schemas as typed trees, parsed from their JSON text.

It has the part of Avro that control events need: null, boolean, int, long, float, double, string, bytes,
fixed, array, record, and unions of null with one other type. A name in a namespace is searched there first
and then without a namespace, as Java does. A wrong text raises `Corrupted` and nothing else; work is
proportional to the text. Recursive schemas, enums, maps and wider unions are refused (Iceberg writes none of
them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archiver.runtime.errors import Corrupted

DEPTH_MAX = 32
"""Most levels of nesting in a schema, with names replaced by their definitions. Events use ten."""
NODES_MAX = 20_000
"""Most types in a schema, with names replaced by their definitions. A short text can refer to a record twice
in a record twice, and so on: its tree would exceed any memory. A manifest of a table with 1,000 partition
fields has fewer."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts; `properties` holds the logical type and all other attributes."""

    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `size` bytes."""

    name: str
    size: int
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Array:
    """A list; Iceberg's maps with integer keys are arrays of key and value records with the logical type
    `map`.
    """

    items: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Optional:
    """A union of null with one other type. `null_branch` is the position of null (0 or 1)."""

    null_branch: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record."""

    name: str
    schema: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A record; `name` includes the namespace. Its values are sequences in field order."""

    name: str
    fields: tuple[RecordField, ...]


Schema = Primitive | Fixed | Array | Optional | Record


def describe(schema: Schema) -> str:
    """A short description for messages. The text of a whole schema could be far larger than its source."""
    if isinstance(schema, Optional):
        return "an optional value"
    if isinstance(schema, Record):
        return f"the record {schema.name!r:.200}"
    name = {Fixed: "fixed", Array: "array"}.get(type(schema)) or (
        schema.kind if isinstance(schema, Primitive) else ""
    )
    logical = schema.properties.get("logicalType")
    return name if logical is None else f"{name} ({logical!r:.80})"


def parse_schema(text: str) -> Schema:
    """Parse a schema text. Raises `Corrupted` if it is not a schema that events can have."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupted(f"the avro schema text is not json: {error}") from error
    return _SchemaParser().parse(tree, "", 0)


class _SchemaParser:
    """Holds the names defined so far, in text order."""

    def __init__(self) -> None:
        self._named: dict[str, Schema] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        """Levels and types of the schemas parsed so far, by `id`."""
        self._measured: list[Schema] = []
        """Those schemas, kept alive: Python reuses the `id` of a deleted object."""

    def parse(self, tree: object, namespace: str, depth: int) -> Schema:
        """The schema at one place in the text; `depth` is the number of levels above it."""
        schema = self._parsed(tree, namespace, depth)
        self._measure(schema)
        return schema

    def _measure(self, schema: Schema) -> tuple[int, int]:
        """Levels and types of a schema. Work is proportional to its own fields, because each part is measured
        once.
        """
        known = self._sizes.get(id(schema))
        if known is not None:
            return known
        if isinstance(schema, Record):
            parts = [self._measure(one.schema) for one in schema.fields]
        else:
            inner = (
                schema.schema
                if isinstance(schema, Optional)
                else schema.items
                if isinstance(schema, Array)
                else None
            )
            parts = [] if inner is None else [self._measure(inner)]
        size = (1 + max((levels for levels, _ in parts), default=0), 1 + sum(types for _, types in parts))
        if size[0] > DEPTH_MAX + 1 or size[1] > NODES_MAX:
            raise Corrupted(
                f"the avro schema nests deeper than {DEPTH_MAX} levels, or has more than {NODES_MAX} types"
            )
        self._sizes[id(schema)] = size
        self._measured.append(schema)
        return size

    def _parsed(self, tree: object, namespace: str, depth: int) -> Schema:
        if depth > DEPTH_MAX:
            raise Corrupted(
                f"the avro schema nests deeper than {DEPTH_MAX} levels"
            )  # before Python's own stack overflows
        if isinstance(tree, str):
            return Primitive(tree) if tree in PRIMITIVES else self._lookup(tree, namespace)
        if isinstance(tree, list):
            return self._union(tree, namespace, depth)
        if isinstance(tree, dict):
            return self._object(tree, namespace, depth)
        raise Corrupted(f"the avro schema holds {tree!r:.80} where a type is expected")

    def _lookup(self, name: str, namespace: str) -> Schema:
        # This namespace first, then none: Java writes names without a namespace bare, even inside a
        # namespace.
        found = None
        if "." not in name and namespace:
            found = self._named.get(f"{namespace}.{name}")
        found = found or self._named.get(name)
        if found is None:
            raise Corrupted(f"the avro schema refers to {name!r:.200}, which is not defined before it")
        return found

    def _union(self, branches: list[object], namespace: str, depth: int) -> Optional:
        if len(branches) != 2 or branches.count("null") != 1:
            raise Corrupted("the avro schema holds a union that is not null and one other type")
        null_branch = branches.index("null")
        inner = self.parse(branches[1 - null_branch], namespace, depth + 1)
        if isinstance(inner, Optional):
            raise Corrupted("the avro schema holds a union directly inside a union")
        return Optional(null_branch, inner)

    def _object(self, tree: dict[str, Any], namespace: str, depth: int) -> Schema:
        kind = tree.get("type")
        if not isinstance(kind, str):
            raise Corrupted(f"the avro schema holds an object whose type is {kind!r:.80}")
        if kind in PRIMITIVES:
            return Primitive(kind, _properties(tree, ("type",)))
        if kind == "array":
            if "items" not in tree:
                raise Corrupted("the avro schema holds an array without items")
            return Array(
                self.parse(tree["items"], namespace, depth + 1), _properties(tree, ("type", "items"))
            )
        if kind not in ("fixed", "record"):
            raise Corrupted(f"the avro schema holds the type {kind!r:.80}, which control events do not use")
        name, inside = _full_name(tree, namespace)
        schema = self._record(tree, name, inside, depth) if kind == "record" else _fixed(tree, name)
        # Checked after the fields were read, because one of them may have defined the name.
        if name in self._named:
            raise Corrupted(f"the avro schema defines {name!r:.200} twice")
        self._named[name] = schema
        return schema

    def _record(self, tree: dict[str, Any], name: str, namespace: str, depth: int) -> Record:
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise Corrupted(f"the avro record {name!r:.200} has no list of fields")
        parsed: list[RecordField] = []
        names: set[str] = set()
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise Corrupted(f"the avro record {name!r:.200} holds a field without name or type")
            if one["name"] in names:
                raise Corrupted(f"the avro record {name!r:.200} holds the field {one['name']!r:.200} twice")
            names.add(one["name"])
            schema = self.parse(one["type"], namespace, depth + 1)
            parsed.append(RecordField(one["name"], schema, _properties(one, ("name", "type"))))
        return Record(name, tuple(parsed))


def _properties(tree: dict[str, Any], but: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in but}


def _full_name(tree: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The full name of a definition, and the namespace inside it."""
    name = tree.get("name")
    inside = tree.get("namespace", namespace)
    if not isinstance(name, str) or not name or not isinstance(inside, str):
        raise Corrupted(f"the avro schema holds a definition named {name!r:.80}")
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{inside}.{name}" if inside else name), inside


def _fixed(tree: dict[str, Any], name: str) -> Fixed:
    size = tree.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Corrupted(f"the avro fixed {name!r:.200} has the size {size!r:.80}")
    return Fixed(name, size, _properties(tree, ("type", "name", "namespace", "size")))
