"""Resolves what a JSON Schema says into types, properties and items, within bounds.

`Resolver.view` combines a schema with what it refers to: `$ref`, `allOf`, `oneOf`, `anyOf`. Schemas inside it
stay expressions (`Expr`), since a schema may hold itself. Each schema is combined once, except those inside
themselves: once for each way that leads to them. All work is counted. Keywords that only validate are
ignored. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import printable_text
from archiver.schema.json.resources import Json, Resource, Resources, Unresolved, recursive

NULL, BOOLEAN, INTEGER, FRACTION, STRING, ARRAY, OBJECT = (
    "null",
    "boolean",
    "integer",
    "fraction",
    "string",
    "array",
    "object",
)
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset({name}) for name in (NULL, BOOLEAN, INTEGER, STRING, ARRAY, OBJECT)},
    "number": frozenset({INTEGER, FRACTION}),
}
_ALL: Final = frozenset().union(*_TYPES.values())
STEPS_MAX: Final = 1_000_000
"""Work on one topic's schema: about a second. References can double what is combined at each level."""
_SCHEMA_STEPS: Final = 20
"""A schema that is combined; a property of it counts as one."""
_TRAIL_STEPS: Final = 32
"""Schemas of a trail that are compared in one step."""
_DEPTH_MAX: Final = 150
"""Levels of schemas inside one another that are combined at one place."""


@dataclass(eq=False)
class Trail:
    """The references that lead to a schema inside itself. Equal ones are the same object."""

    key: int
    above: Trail | None
    length: int


class Located(NamedTuple):
    """A schema, and where it is."""

    schema: Json
    resource: Resource
    trail: Trail | None


class Joined(NamedTuple):
    """Several schemas, of which all or any apply."""

    op: Literal["and", "or"]
    parts: tuple[Expr, ...]


Expr: TypeAlias = "Located | Joined"


class View(NamedTuple):
    """What a schema permits at one place."""

    types: frozenset[str] = _ALL
    properties: Mapping[str, Expr] = MappingProxyType({})
    """In the order of the schema."""
    extra: Expr | None = None
    """The schema of properties that are not named."""
    items: Expr | None = None
    format: str = ""
    low: int | None = None
    high: int | None = None
    text: bool = False
    """No column but text: an array gives each place its own schema."""
    never: bool = False
    """The schema `false`."""


_ANY: Final = View()
_NONE: Final = View(types=frozenset(), never=True)


class _Own(NamedTuple):
    """The keywords of one schema without those that combine schemas."""

    types: frozenset[str] = _ALL
    properties: Mapping[str, Json] = MappingProxyType({})
    extra: Json = None
    """The schema of other properties; None: there is none, or any value is valid."""
    items: Json = None
    """The same for an array's items."""
    format: str = ""
    low: int | None = None
    high: int | None = None
    text: bool = False


_NO_KEYWORDS: Final = _Own()


class Resolver:
    """The documents of one schema: its own (""), and those that references bring, by name."""

    def __init__(self, where: str, documents: Mapping[str, Json], recursion_depth: int) -> None:
        self._where = where
        self._recursion_depth = recursion_depth
        self.steps = 0
        """Work so far."""
        self._resources = Resources(documents)
        # By addresses: objects of parsed documents live as long as the resolver.
        self._owns: dict[int, _Own] = {}
        self._views: dict[tuple[int, Trail | None], View] = {}
        self._trails: dict[tuple[Trail | None, int], Trail | None] = {}
        self._recursive = self._found_recursive()

    def top(self) -> Expr:
        """The schema itself."""
        schema, resource = self._resources.document("")
        trail = Trail(id(schema), None, 1) if id(schema) in self._recursive else None
        return Located(schema, resource, trail)

    def view(self, expr: Expr, path: str) -> View:
        """What the schema permits. `path` is for messages. Raises `ConfigInvalid`."""
        found = self._expr(expr, path, 0, ())
        if not found.types and not found.never:
            raise self._refused(
                path, "has parts that exclude each other, so no value is valid; correct `type` in its `allOf`"
            )
        return found

    def _expr(self, expr: Expr, path: str, depth: int, chain: tuple[int, ...]) -> View:
        if isinstance(expr, Located):
            return self._schema(expr, path, depth, chain)
        self._check_depth(depth, path)
        views = [self._expr(part, path, depth + 1, chain) for part in expr.parts]
        return self._combined(expr.op, views, path)

    def _schema(self, at: Located, path: str, depth: int, chain: tuple[int, ...]) -> View:
        self._spend(1, path)
        schema = at.schema
        if schema is True:
            return _ANY
        if schema is False:
            return _NONE
        known = self._views.get((id(schema), at.trail))
        if known is not None:
            return known
        self._spend(_SCHEMA_STEPS, path)
        self._check_depth(depth, path)
        if not isinstance(schema, dict):
            raise self._refused(path, f"{_shown(schema)} is no JSON Schema; correct it")
        if at.resource.wrong:
            raise self._refused(path, at.resource.wrong)
        views = [self._own_view(schema, at, path)]
        reference = schema.get("$ref")
        if reference is not None:
            views.append(self._followed(reference, at, path, depth, chain))
        for word in ("allOf", "oneOf", "anyOf"):
            if word not in schema:
                continue
            parts = schema[word]
            if not isinstance(parts, list) or not parts:
                raise self._refused(path, f"has {word} without a list of schemas; correct it")
            found = [self._schema(self._inside(one, at), path, depth + 1, chain) for one in parts]
            views.append(self._combined("and" if word == "allOf" else "or", found, path))
        view = self._views[id(schema), at.trail] = self._combined("and", views, path)
        return view

    def _combined(self, op: Literal["and", "or"], views: Sequence[View], path: str) -> View:
        # References to one schema find one view.
        distinct = list({id(one): one for one in views if one is not _ANY or op == "or"}.values())
        if len(distinct) < 2:
            return distinct[0] if distinct else _ANY
        self._spend(sum(1 + len(one.properties) for one in distinct), path)
        return _both(distinct) if op == "and" else _either(distinct)

    def _own_view(self, schema: dict[str, Json], at: Located, path: str) -> View:
        own = self._owns.get(id(schema))
        if own is None:
            own = self._owns[id(schema)] = self._own(schema, path)
        if own == _NO_KEYWORDS:
            return _ANY
        self._spend(len(own.properties), path)
        return View(
            types=own.types,
            properties={name: self._inside(one, at) for name, one in own.properties.items()},
            extra=None if own.extra is None else self._inside(own.extra, at),
            items=None if own.items is None else self._inside(own.items, at),
            format=own.format,
            low=own.low,
            high=own.high,
            text=own.text,
        )

    def _own(self, schema: dict[str, Json], path: str) -> _Own:
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise self._refused(path, "has properties that are no object; correct them")
        extra, items = schema.get("additionalProperties"), schema.get("items")
        low, high = _bounds(schema)
        kind = schema.get("format", "")
        return _Own(
            types=self._types(schema, path),
            properties=properties,
            extra=extra if isinstance(extra, dict) else None,
            items=items if isinstance(items, dict) else None,
            format=kind if isinstance(kind, str) else "",
            low=low,
            high=high,
            # Draft-07 gives each place its own schema by a list in `items`, later drafts by `prefixItems`.
            text=isinstance(items, list) or "prefixItems" in schema,
        )

    def _inside(self, schema: Json, at: Located) -> Located:
        return Located(schema, self._resources.within(schema, at.resource), at.trail)

    def _types(self, schema: dict[str, Json], path: str) -> frozenset[str]:
        found: frozenset[str] = _ALL
        given = schema.get("type")
        if given is not None:
            names = given if isinstance(given, list) else [given]
            for name in names:
                if not isinstance(name, str) or name not in _TYPES:
                    raise self._refused(
                        path, f"has the type {_shown(name)}, which JSON Schema does not have; correct it"
                    )
            found = frozenset().union(*(_TYPES[name] for name in names))
        elif "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
            found = _TYPES[OBJECT]
        elif "items" in schema:
            found = _TYPES[ARRAY]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            found &= frozenset().union(*(_type_of(one) for one in values))
        # OpenAPI's keyword, which generators put into JSON Schemas.
        return found | _TYPES[NULL] if schema.get("nullable") is True else found

    def _followed(self, reference: Json, at: Located, path: str, depth: int, chain: tuple[int, ...]) -> View:
        if not isinstance(reference, str):
            raise self._refused(path, "has a $ref that is no text; correct it")
        try:
            target, resource = self._resources.target(reference, at.resource)
        except Unresolved as error:
            raise self._refused(path, str(error)) from error
        key = id(target)
        if key in chain:
            raise self._refused(
                path, f"refers to itself by {excerpt(reference, 80)!r} without a level between; correct it"
            )
        trail = at.trail
        if key in self._recursive:
            trail = self._longer(trail, key, path)
            if trail is None:
                return _ANY
        return self._schema(Located(target, resource, trail), path, depth + 1, (*chain, key))

    def _longer(self, trail: Trail | None, key: int, path: str) -> Trail | None:
        """The trail with one more schema; None if that is on it more often than `recursion_depth` permits."""
        if (trail, key) not in self._trails:
            length = 0 if trail is None else trail.length
            self._spend(length // _TRAIL_STEPS, path)
            count, one = 0, trail
            while one is not None:
                count += one.key == key
                one = one.above
            often = count > self._recursion_depth
            self._trails[trail, key] = None if often else Trail(key, trail, length + 1)
        return self._trails[trail, key]

    def _found_recursive(self) -> set[int]:
        """The addresses of schemas that may be inside themselves. Only those need trails, and all others are
        the same wherever they stand.
        """
        edges: dict[int, list[int]] = {}
        todo = [Located(*self._resources.document(""), None)]
        while todo:
            at = todo.pop()
            if id(at.schema) not in edges:
                parts = self._parts(at)
                edges[id(at.schema)] = [id(one.schema) for one in parts]
                todo += parts
        return recursive(edges)

    def _parts(self, at: Located) -> list[Located]:
        """The schemas that may be combined with a schema, or that are columns in it."""
        schema = at.schema
        if not isinstance(schema, dict):
            return []
        parts: list[Json] = [schema.get("additionalProperties"), schema.get("items")]
        properties = schema.get("properties")
        if isinstance(properties, dict):
            parts += properties.values()
        for word in ("allOf", "oneOf", "anyOf"):
            branches = schema.get(word)
            parts += branches if isinstance(branches, list) else ()
        found = [self._inside(one, at) for one in parts if isinstance(one, dict)]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            try:
                found.append(Located(*self._resources.target(reference, at.resource), None))
            except Unresolved:
                # Refused with its path if a column needs it.
                pass
        return found

    def _spend(self, steps: int, path: str) -> None:
        self.steps += steps
        if self.steps > STEPS_MAX:
            raise self._refused(
                path,
                f"is behind more than {STEPS_MAX:,} steps of combining schemas; use fewer branches of oneOf, "
                "anyOf and allOf, fewer properties in them, or a smaller recursion_depth",
            )

    def _check_depth(self, depth: int, path: str) -> None:
        if depth > _DEPTH_MAX:
            raise self._refused(
                path,
                f"combines more than {_DEPTH_MAX} schemas inside one another; use fewer levels of $ref, "
                "allOf, oneOf and anyOf",
            )

    def _refused(self, path: str, why: str) -> ConfigInvalid:
        return refused(self._where, path, why)


def refused(where: str, path: str, why: str) -> ConfigInvalid:
    """The error of a schema that has no columns."""
    at = f"property {shown_path(path)}" if path else "the schema"
    return ConfigInvalid(f"{where}: {at} {why}")


def shown_path(path: str) -> str:
    """A path of names from outside, for messages."""
    return printable_text(excerpt(path, 200), kept="")


def _shown(value: Json) -> str:
    """A value in a schema, for messages."""
    try:
        return excerpt(json.dumps(value), 80)
    except RecursionError:
        return "a deep array or object"


def _type_of(value: Json) -> frozenset[str]:
    if value is None:
        return _TYPES[NULL]
    if isinstance(value, bool):
        return _TYPES[BOOLEAN]
    if isinstance(value, int):
        return _TYPES[INTEGER]
    if isinstance(value, float):
        return _TYPES["number"]
    return _TYPES[STRING if isinstance(value, str) else ARRAY if isinstance(value, list) else OBJECT]


def _bounds(schema: dict[str, Json]) -> tuple[int | None, int | None]:
    """The least and the greatest number, as far as they are stated in integers."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        whole = [one for one in values if one is not None]
        if whole and all(isinstance(one, int) and not isinstance(one, bool) for one in whole):
            return min(whole), max(whole)
    found: list[int | None] = []
    for pick, words in ((max, ("minimum", "exclusiveMinimum")), (min, ("maximum", "exclusiveMaximum"))):
        # A boolean is draft-04's form of an exclusive bound.
        given = [
            int(one)
            for word in words
            if isinstance(one := schema.get(word), int | float)
            and not isinstance(one, bool)
            and abs(one) < 1e300
        ]
        found.append(pick(given) if given else None)
    if schema.get("format") == "int32":
        found = [_known(max, found[0], -(2**31)), _known(min, found[1], 2**31 - 1)]
    return found[0], found[1]


def _known(pick: Any, one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return pick(known) if known else None


def _both(views: Sequence[View]) -> View:
    """What all schemas permit together."""
    formats = {one.format for one in views if one.format}
    return View(
        types=frozenset.intersection(*(one.types for one in views)),
        properties=_merged("and", views),
        extra=_all_of(one.extra for one in views),
        items=_all_of(one.items for one in views),
        format=formats.pop() if len(formats) == 1 else "",
        low=max(known) if (known := [one.low for one in views if one.low is not None]) else None,
        high=min(known) if (known := [one.high for one in views if one.high is not None]) else None,
        text=any(one.text for one in views),
        never=any(one.never for one in views),
    )


def _either(views: Sequence[View]) -> View:
    """What any of the schemas permits."""
    # A branch that permits nothing, or only null, says nothing about the other values.
    null = _TYPES[NULL] if any(NULL in one.types for one in views) else frozenset()
    some = [one for one in views if one.types - {NULL}]
    if not some:
        return views[0]._replace(types=null, never=all(one.never for one in views))
    if len(some) == 1:
        return some[0]._replace(types=some[0].types | null)
    # What a branch says about objects counts only if it permits objects, and so on.
    formats = {one.format for one in some if STRING in one.types}
    numbers = [one for one in some if INTEGER in one.types]
    return View(
        types=null.union(*(one.types for one in some)),
        properties=_merged("or", some),
        extra=_any_of([one.extra for one in some if OBJECT in one.types]),
        items=_any_of([one.items for one in some if ARRAY in one.types]),
        format=formats.pop() if len(formats) == 1 else "",
        low=min(known) if (known := _all_known([one.low for one in numbers])) else None,
        high=max(known) if (known := _all_known([one.high for one in numbers])) else None,
        text=any(one.text for one in some),
    )


def _merged(op: Literal["and", "or"], views: Sequence[View]) -> dict[str, Expr]:
    """The properties of all schemas, in the order in which they come first."""
    found: dict[str, list[Expr]] = {}
    for view in views:
        for name, expr in view.properties.items():
            found.setdefault(name, []).append(expr)
    return {name: _joined(op, parts) for name, parts in found.items()}


def _joined(op: Literal["and", "or"], parts: Sequence[Expr]) -> Expr:
    # A schema that is referred to from many branches is one part.
    distinct = list({_identity(one): one for one in parts}.values()) if len(parts) > 1 else parts
    return distinct[0] if len(distinct) == 1 else Joined(op, tuple(distinct))


def _identity(expr: Expr) -> tuple[int, Trail | None]:
    return (id(expr.schema), expr.trail) if isinstance(expr, Located) else (id(expr), None)


def _all_of(parts: Iterable[Expr | None]) -> Expr | None:
    """All of the schemas; None: there is no restriction."""
    known = [one for one in parts if one is not None]
    return _joined("and", known) if known else None


def _any_of(parts: Sequence[Expr | None]) -> Expr | None:
    """Any of the schemas; None: there is no restriction."""
    known = [one for one in parts if one is not None]
    return _joined("or", known) if known and len(known) == len(parts) else None


def _all_known(values: Sequence[int | None]) -> list[int]:
    known = [one for one in values if one is not None]
    return known if len(known) == len(values) else []
