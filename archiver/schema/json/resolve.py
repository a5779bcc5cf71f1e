"""Resolves what a JSON Schema says into types, properties and items, within bounds.

`Resolver.view` combines a schema with what it refers to: `$ref`, `allOf`, `oneOf`, `anyOf`. Schemas inside it
stay expressions (`Expr`), since a schema may hold itself. Keywords that only validate are ignored. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urljoin

from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt

Json: TypeAlias = Any

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
_VISITS_MAX: Final = 100_000
"""Schemas that are combined for one topic; references can double them at each level."""
_DEPTH_MAX: Final = 150
"""Levels of schemas inside one another that are combined at one place."""


@dataclass(frozen=True)
class Located:
    """A schema, and where it is."""

    schema: Json
    document: str
    above: tuple[str, ...]
    """The references that lead here, for schemas that hold themselves."""


@dataclass(frozen=True)
class Expr:
    """A schema, or several of which all or any apply."""

    op: Literal["schema", "and", "or"]
    at: Located | None = None
    parts: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class View:
    """What a schema permits at one place."""

    types: frozenset[str] = _ALL
    properties: Mapping[str, Expr] = field(default_factory=dict)
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


class Resolver:
    """The documents of one schema: its own (""), and those that references bring, by name."""

    def __init__(self, where: str, documents: Mapping[str, Json], recursion_depth: int) -> None:
        self._where = where
        self._documents = dict(documents)
        self._recursion_depth = recursion_depth
        self._visits = 0
        self._anchors: dict[str, tuple[Json, str]] = {}
        """Schemas by their absolute `$id`, or by `document#anchor`."""
        self._bases: dict[str, str] = {}
        for name, document in self._documents.items():
            base = document.get("$id", name) if isinstance(document, dict) else name
            self._bases[name] = base if isinstance(base, str) else name
            self._collect(document, name, self._bases[name])

    def top(self) -> Expr:
        """The schema itself."""
        return Expr("schema", Located(self._documents[""], "", (_key("", self._documents[""]),)))

    def view(self, expr: Expr, path: str) -> View:
        """What the schema permits. `path` is for messages. Raises `ConfigInvalid`."""
        found = self._expr(expr, path, 0, ())
        if not found.types and not found.never:
            raise self._refused(
                path, "has parts that exclude each other, so no value is valid; correct `type` in its `allOf`"
            )
        return found

    def _expr(self, expr: Expr, path: str, depth: int, chain: tuple[str, ...]) -> View:
        if expr.op == "schema":
            assert expr.at is not None
            return self._schema(expr.at, path, depth, chain)
        views = [self._expr(part, path, depth + 1, chain) for part in expr.parts]
        return _both(views) if expr.op == "and" else _either(views)

    def _schema(self, at: Located, path: str, depth: int, chain: tuple[str, ...]) -> View:
        self._visits += 1
        if self._visits > _VISITS_MAX or depth > _DEPTH_MAX:
            raise self._refused(
                path,
                f"combines more than {_VISITS_MAX:,} schemas, or {_DEPTH_MAX} inside one another; use fewer "
                "references, or a smaller recursion_depth",
            )
        schema = at.schema
        if schema is True:
            return View()
        if schema is False:
            return View(types=frozenset(), never=True)
        if not isinstance(schema, dict):
            raise self._refused(path, f"{excerpt(json.dumps(schema), 80)} is no JSON Schema")
        views = [self._own(schema, at, path)]
        reference = schema.get("$ref")
        if reference is not None:
            views.append(self._followed(reference, at, path, depth, chain))
        for word in ("allOf", "oneOf", "anyOf"):
            if word not in schema:
                continue
            parts = schema[word]
            if not isinstance(parts, list) or not parts:
                raise self._refused(path, f"has {word} without a list of schemas")
            found = [self._schema(replace(at, schema=one), path, depth + 1, chain) for one in parts]
            views.append(_both(found) if word == "allOf" else _either(found))
        return _both(views)

    def _own(self, schema: dict[str, Json], at: Located, path: str) -> View:
        """The keywords of a schema without those that combine schemas."""
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise self._refused(path, "has properties that are no object")
        inner = {name: Expr("schema", replace(at, schema=one)) for name, one in properties.items()}
        extra, items = schema.get("additionalProperties"), schema.get("items")
        # Draft-07 gives each place its own schema by a list in `items`, later drafts by `prefixItems`.
        places = isinstance(items, list) or "prefixItems" in schema
        low, high = _bounds(schema)
        kind = schema.get("format", "")
        return View(
            types=self._types(schema, path),
            properties=inner,
            extra=Expr("schema", replace(at, schema=extra)) if isinstance(extra, dict) else None,
            items=Expr("schema", replace(at, schema=items)) if isinstance(items, dict) else None,
            format=kind if isinstance(kind, str) else "",
            low=low,
            high=high,
            text=places,
        )

    def _types(self, schema: dict[str, Json], path: str) -> frozenset[str]:
        found: frozenset[str] = _ALL
        given = schema.get("type")
        if given is not None:
            names = given if isinstance(given, list) else [given]
            for name in names:
                if not isinstance(name, str) or name not in _TYPES:
                    raise self._refused(
                        path, f"has the type {excerpt(json.dumps(name), 80)}, which JSON Schema does not have"
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

    def _followed(self, reference: Json, at: Located, path: str, depth: int, chain: tuple[str, ...]) -> View:
        if not isinstance(reference, str):
            raise self._refused(path, "has a $ref that is no text")
        target, document = self._target(reference, at.document, path)
        key = _key(document, target)
        if key in chain:
            raise self._refused(
                path, f"refers to itself by {excerpt(reference, 80)!r} without a level between"
            )
        if at.above.count(key) > self._recursion_depth:
            return View()
        inner = Located(target, document, (*at.above, key))
        return self._schema(inner, path, depth + 1, (*chain, key))

    def _target(self, reference: str, document: str, path: str) -> tuple[Json, str]:
        """What a reference names, and its document."""
        name, _, fragment = reference.partition("#")
        found: tuple[Json, str] | None = None
        for candidate in (name, urljoin(self._bases[document], name)) if name else (document,):
            if candidate in self._documents:
                found = self._documents[candidate], candidate
                break
            if candidate in self._anchors:
                found = self._anchors[candidate]
                break
        if found is None:
            raise self._refused(
                path,
                f"refers to {excerpt(reference, 120)!r}, which is not part of the schema; put the definition "
                f"into the schema under $defs, or register the schema with a reference of that name",
            )
        schema, home = found
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{home}#{unquote(fragment)}")
        elif fragment:
            found = _pointed(schema, unquote(fragment).split("/")[1:], home)
        if found is None:
            raise self._refused(
                path, f"refers to {excerpt(reference, 120)!r}, which the schema does not define; correct it"
            )
        return found

    def _collect(self, schema: Json, document: str, base: str) -> None:
        """Remember the schemas that have a name of their own."""
        todo: list[tuple[Json, str]] = [(schema, base)]
        while todo:
            one, here = todo.pop()
            if isinstance(one, list):
                todo += [(each, here) for each in one]
            if not isinstance(one, dict):
                continue
            name = one.get("$id")
            if isinstance(name, str) and not name.startswith("#"):
                here = urljoin(here, name)
                self._anchors.setdefault(here, (one, document))
            for anchor in (
                one.get("$anchor"),
                name[1:] if isinstance(name, str) and name[:1] == "#" else None,
            ):
                if isinstance(anchor, str):
                    self._anchors.setdefault(f"{document}#{anchor}", (one, document))
            todo += [(each, here) for each in one.values()]

    def _refused(self, path: str, why: str) -> ConfigInvalid:
        return refused(self._where, path, why)


def refused(where: str, path: str, why: str) -> ConfigInvalid:
    """The error of a schema that has no columns."""
    at = f"property {excerpt(path, 200)}" if path else "the schema"
    return ConfigInvalid(f"{where}: {at} {why}")


def _key(document: str, schema: Json) -> str:
    # Objects of parsed documents live as long as the resolver, so the address identifies them.
    return f"{document}#{id(schema)}"


def _pointed(schema: Json, steps: Sequence[str], document: str) -> tuple[Json, str] | None:
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and len(name) < 10 and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return None
    return schema, document


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
    found = views[0]
    for one in views[1:]:
        properties = dict(found.properties)
        for name, expr in one.properties.items():
            properties[name] = Expr("and", parts=(properties[name], expr)) if name in properties else expr
        found = View(
            types=found.types & one.types,
            properties=properties,
            extra=_joined(found.extra, one.extra),
            items=_joined(found.items, one.items),
            format=found.format
            if one.format in ("", found.format)
            else one.format
            if not found.format
            else "",
            low=_known(max, found.low, one.low),
            high=_known(min, found.high, one.high),
            text=found.text or one.text,
            never=found.never or one.never,
        )
    return found


def _either(views: Sequence[View]) -> View:
    """What any of the schemas permits."""
    # A branch that permits nothing, or only null, says nothing about the other values.
    null = any(NULL in one.types for one in views)
    some = [one for one in views if one.types - {NULL}]
    if not some:
        return replace(
            views[0], types=_TYPES[NULL] if null else frozenset(), never=all(v.never for v in views)
        )
    found = some[0]
    for one in some[1:]:
        found = _either_of(found, one)
    return replace(found, types=found.types | _TYPES[NULL]) if null else found


def _either_of(one: View, other: View) -> View:
    properties = dict(one.properties)
    for name, expr in other.properties.items():
        properties[name] = Expr("or", parts=(properties[name], expr)) if name in properties else expr
    # What a branch says about objects counts only if it permits objects, and so on.
    objects = [view.extra for view in (one, other) if OBJECT in view.types]
    arrays = [view.items for view in (one, other) if ARRAY in view.types]
    formats = {view.format for view in (one, other) if STRING in view.types}
    numbers = [view for view in (one, other) if INTEGER in view.types]
    lows, highs = [view.low for view in numbers], [view.high for view in numbers]
    return View(
        types=one.types | other.types,
        properties=properties,
        extra=_any_of(objects),
        items=_any_of(arrays),
        format=formats.pop() if len(formats) == 1 else "",
        low=min(known) if (known := _all_known(lows)) else None,
        high=max(known) if (known := _all_known(highs)) else None,
        text=one.text or other.text,
    )


def _any_of(parts: Sequence[Expr | None]) -> Expr | None:
    """Any of the schemas; None: there is no restriction."""
    known = [one for one in parts if one is not None]
    if not known or len(known) != len(parts):
        return None
    return known[0] if len(known) == 1 else Expr("or", parts=tuple(known))


def _all_known(values: Sequence[int | None]) -> list[int]:
    known = [one for one in values if one is not None]
    return known if len(known) == len(values) else []


def _joined(one: Expr | None, other: Expr | None) -> Expr | None:
    if one is None or other is None:
        return one or other
    return Expr("and", parts=(one, other))
