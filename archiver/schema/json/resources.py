"""The documents of one JSON Schema, and what `$ref` finds in them: by name, `$id`, `$anchor`, JSON pointer.

A document is a resource, and so is each schema inside it with an `$id`: references there start from it. Only
keywords that hold schemas are searched for `$id` and `$anchor`. The work is linear in the text. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urljoin, urlsplit

from archiver.runtime.redaction import excerpt

Json: TypeAlias = Any

_URL_MAX: Final = 1024
"""Most characters of an `$id`, or of the part of a `$ref` before the `#`, as an absolute URL."""
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords with schemas by name."""
_SCHEMAS: Final = frozenset(
    {
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
    }
)
"""Keywords with a schema, or with a list of them."""


class Unresolved(Exception):
    """What is wrong with a reference, as the end of a sentence that begins with its place."""


@dataclass(eq=False)
class Resource:
    """A document, or a schema inside one that has an `$id`."""

    root: Json
    base: str
    """The URL against which references are resolved."""
    wrong: str = ""
    """What is wrong with its `$id`, as in `Unresolved`."""
    anchors: dict[str, Json] = field(default_factory=dict)


class Resources:
    """The documents of a schema by name, its own is ""."""

    def __init__(self, documents: Mapping[str, Json]) -> None:
        self._opened: dict[int, Resource] = {}
        """Resources by their root's address: objects of parsed documents live as long as this object."""
        self._named = {name: Resource(document, name) for name, document in documents.items()}
        self._targets: dict[tuple[Resource, str], tuple[Json, Resource]] = {}
        for home in list(self._named.values()):
            self._search(home)

    def document(self, name: str) -> tuple[Json, Resource]:
        """A document, and the resource that it is."""
        home = self._named[name]
        return home.root, self.within(home.root, home)

    def within(self, schema: Json, outer: Resource) -> Resource:
        """The resource of a schema that stands directly in a schema of `outer`."""
        return self._opened.get(id(schema), outer)

    def target(self, reference: str, resource: Resource) -> tuple[Json, Resource]:
        """What a reference in a resource names. Raises `Unresolved`."""
        known = self._targets.get((resource, reference))
        if known is None:
            known = self._targets[resource, reference] = self._target(reference, resource)
        return known

    def _target(self, reference: str, resource: Resource) -> tuple[Json, Resource]:
        name, _, fragment = reference.partition("#")
        home = self._home(reference, name, resource) if name else resource
        found: tuple[Json, Resource] | None = home.root, home
        if fragment.startswith("/"):
            found = self._pointed(home, unquote(fragment).split("/")[1:])
        elif fragment:
            anchored = home.anchors.get(unquote(fragment))
            found = None if anchored is None else (anchored, home)
        if found is None:
            raise Unresolved(
                f"refers to {excerpt(reference, 120)!r}, which the schema does not define; correct it"
            )
        return found

    def _home(self, reference: str, name: str, resource: Resource) -> Resource:
        # A reference of a registry has the name that it was registered with, which need not be a URL.
        home = self._named.get(name)
        if home is None:
            try:
                home = self._named.get(_joined(resource.base, name))
            except ValueError as error:
                raise Unresolved(
                    f"refers to {excerpt(reference, 120)!r}, which is no URL here: "
                    f"{excerpt(str(error), 120)}; correct it, or the $id around it"
                ) from error
        if home is None:
            raise Unresolved(
                f"refers to {excerpt(reference, 120)!r}, which is not part of the schema; put the definition "
                "into the schema under $defs, or register the schema with a reference of that name"
            )
        return self.within(home.root, home)

    def _pointed(self, home: Resource, steps: Sequence[str]) -> tuple[Json, Resource] | None:
        schema: Json = home.root
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and name.isdecimal() and len(name) < 10 and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                return None
            home = self.within(schema, home)
        return schema, home

    def _search(self, document: Resource) -> None:
        """Remember the schemas that have a name of their own; the first of each name counts."""
        todo: list[tuple[Json, Resource]] = [(document.root, document)]
        while todo:
            schema, outer = todo.pop()
            if isinstance(schema, dict):
                resource = self._entered(schema, outer)
                todo += [(one, resource) for one in reversed(_inner(schema))]

    def _entered(self, schema: dict[str, Json], resource: Resource) -> Resource:
        """The resource of what is inside a schema, whose names it notes."""
        anchors = [schema.get("$anchor")]
        given = schema.get("$id")
        if isinstance(given, str):
            # Draft-07 spells an anchor as an `$id` of a fragment.
            name, _, anchor = given.partition("#")
            anchors.append(anchor)
            if name:
                resource = self._identified(schema, name, resource)
        for one in anchors:
            if isinstance(one, str) and one:
                resource.anchors.setdefault(one, schema)
        return resource

    def _identified(self, schema: dict[str, Json], name: str, outer: Resource) -> Resource:
        try:
            base = _joined(outer.base, name)
        except ValueError as error:
            why = (
                f"has the $id {excerpt(name, 120)!r}, which is no URL: {excerpt(str(error), 120)}; correct it"
            )
            found = self._opened[id(schema)] = Resource(schema, "", outer.wrong or why)
            return found
        if base == outer.base and schema is not outer.root:
            return outer
        found = self._opened[id(schema)] = Resource(schema, base, outer.wrong)
        self._named.setdefault(base, found)
        return found


def recursive(edges: Mapping[int, Sequence[int]]) -> set[int]:
    """The nodes of a graph that may reach themselves: all that are on a way from a circle to a circle."""
    rest = set(edges)
    for forward in (True, False):
        before: dict[int, list[int]] = {one: [] for one in rest}
        count = dict.fromkeys(rest, 0)
        for one in rest:
            for other in edges[one]:
                if other in rest:
                    start, end = (one, other) if forward else (other, one)
                    before[end].append(start)
                    count[start] += 1
        todo = deque(one for one, number in count.items() if not number)
        while todo:
            one = todo.popleft()
            rest.discard(one)
            for other in before[one]:
                count[other] -= 1
                if not count[other]:
                    todo.append(other)
    return rest


def _inner(schema: dict[str, Json]) -> list[Json]:
    """The schemas that stand directly in a schema."""
    found: list[Json] = []
    for word, value in schema.items():
        if word in _SCHEMAS:
            found += value if isinstance(value, list) else [value]
        elif word in _MAPS and isinstance(value, dict):
            found += value.values()
    return found


def _joined(base: str, name: str) -> str:
    """Raises `ValueError`."""
    if len(base) + len(name) > _URL_MAX:
        raise ValueError(f"it has more than {_URL_MAX:,} characters")
    found = urljoin(base, name)
    # An empty base gives any name back.
    urlsplit(found)
    return found
