"""The columns of a topic's fields, version by version, with the newest version's ids. Pure.

It reads a history of recorded schemas: which column belonged to which field number, where, and when last. A
field is identified by its number and by the id of the enclosing struct. Paths of numbers alone do not
distinguish a map's key from a message's first field. A version whose ids a catalog refused, and which was
recorded again with other ids, counts with the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from archiver.schema.avro.source import avro_source_tree
from archiver.schema.columns import Json
from archiver.schema.evolution.recorded import TopicSchema, parse_schema_json
from archiver.schema.json.source import json_source_tree
from archiver.schema.protobuf.column_names import named_tree
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.tree import FieldTree, MessageTree

TREES_KEPT = 256
"""Cached trees of recorded schemas. Every changed schema of a topic needs the trees of all its versions."""

ID_KEYS = ("id", "element-id", "key-id", "value-id")


@dataclass(frozen=True)
class Trees:
    """A message's tree."""

    tree: MessageTree
    """With Protobuf's names."""
    target: MessageTree
    """With the names that its fields ask for."""


@lru_cache(maxsize=TREES_KEPT)
def trees_of(source: Source, where: str) -> Trees:
    """The trees of a source; `where` opens the messages of errors. Raises ConfigInvalid as `source_tree`
    does.
    """
    tree = _tree(source, where)
    return Trees(tree, named_tree(tree, source.columns, where))


def _tree(source: Source, where: str) -> MessageTree:
    if source.format == "avro":
        return avro_source_tree(source, where)
    return json_source_tree(source) if source.format == "json" else source_tree(source, where)


@dataclass(frozen=True)
class Former:
    """A column that a field has or had."""

    column: int
    """Its id in the newest version."""
    target: str
    """The name that the field asked for when it last had the column."""
    field: FieldTree
    """The field as it was then."""


@dataclass
class Past:
    """Of one key or value."""

    formers: dict[tuple[int, str], list[Former]] = field(default_factory=dict)
    """By (id of the column, element or value that has the struct type, `FieldTree.step`): the newest
    first, each column once."""
    current: dict[int, dict[str, Former]] = field(default_factory=dict)
    """Of the newest version alone: by id of the struct's owner, then by step."""


def side_past(history: Sequence[TopicSchema], index: int, column: Json, where: str) -> Past:
    """The past of the key (`index` 0) or the value (1). `column` is its column in the newest version's
    JSON.
    """
    collection = _Collection(column)
    # Newest first, so that the first former of a field is its latest column.
    for schema, ids in reversed(list(zip(history, translations(history), strict=True))):
        side = schema.sides()[index]
        if side is not None:
            trees = trees_of(side.source(), where)
            collection.message(
                trees.tree, trees.target, column["id"], _Ids(side.field_ids, ids, schema is history[-1]), ""
            )
    return collection.past


@dataclass(frozen=True)
class _Ids:
    """A version's field ids by path."""

    by_path: Mapping[str, int]
    translation: Mapping[int, int]
    """To those of the newest version, where they differ."""
    newest: bool


class _Collection:
    """Collects the columns of one version after another, the newest first."""

    def __init__(self, column: Json) -> None:
        self.past = Past()
        self._columns: dict[int, dict[int, Json]] = {}
        self._known: set[int] = set()
        self._index(column)

    def _index(self, column: Json) -> None:
        """Every struct's columns, by the id of the column, element or value that has the struct type."""
        if isinstance(column["type"], dict):
            struct, owner = inside(column)
            if isinstance(struct, dict):
                self._columns[owner] = mapped(struct)
                for one in struct["fields"]:
                    self._index(one)

    def message(self, tree: MessageTree, target: MessageTree, owner: int, ids: _Ids, above: str) -> None:
        """A message of one version; `above` are the field numbers that lead to it."""
        columns = self._columns[owner]
        for one, want in zip(tree.fields, target.fields, strict=True):
            path = f"{above}{one.step}"
            number = ids.by_path.get(path, 0)
            number = ids.translation.get(number, number)
            # The archiver that recorded the version did not map this field.
            if number not in columns:
                continue
            former = Former(number, want.name, one)
            # The newest version that has the column decides what the field was then.
            if number not in self._known:
                self._known.add(number)
                self.past.formers.setdefault((owner, one.step), []).append(former)
            if ids.newest:
                self.past.current.setdefault(owner, {})[one.step] = former
            if one.message is not None and want.message is not None:
                self.message(one.message, want.message, inside(columns[number])[1], ids, f"{path}{one.below}")


def mapped(struct: Json) -> dict[int, Json]:
    """The columns of a struct by id."""
    return {one["id"]: one for one in struct["fields"]}


def inside(column: Json) -> tuple[Json, int]:
    """The struct in a column, through lists and maps, and the id of the column, list element or map value
    that has the struct type.
    """
    kind, owner = column["type"], column["id"]
    while isinstance(kind, dict) and kind["type"] != "struct":
        part = "element" if kind["type"] == "list" else "value"
        kind, owner = kind[part], kind[f"{part}-id"]
    return kind, owner


def translations(history: Sequence[TopicSchema]) -> list[Mapping[int, int]]:
    """For each version: its ids that the newest version has otherwise."""
    found: list[Mapping[int, int]] = []
    mapping: Mapping[int, int] = {}
    # From the newest version backwards, so that each mapping leads directly to the newest ids.
    for schema, following in zip(reversed(history), [None, *reversed(history[1:])], strict=True):
        if following is not None:
            step = _renumbering(schema, following)
            if step is not None:
                # Ids may have been replaced several times: the steps are composed.
                mapping = {old: mapping.get(new, new) for old, new in step.items()}
        found.append(mapping)
    return found[::-1]


def highest_id(history: Sequence[TopicSchema]) -> int:
    """The highest id that was ever used in a version, also in one that was recorded again with other ids."""
    # Ids that a catalog refused count as used.
    old = {number for mapping in translations(history) for number in mapping}
    return max((*old, *ids_of(history[-1].schema()))) if history else 0


def ids_of(kind: Any) -> Iterator[int]:
    """Every id inside a type or a schema."""
    if not isinstance(kind, dict):
        return
    for name in ID_KEYS:
        if name in kind:
            yield kind[name]
    for part in ("type", "element", "key", "value"):
        yield from ids_of(kind.get(part))
    for one in kind.get("fields", ()):
        yield from ids_of(one)


def _renumbering(schema: TopicSchema, following: TopicSchema) -> Mapping[int, int] | None:
    """Old id → new id if the next version differs only in ids, because the catalog did not accept some. None
    if it is another schema.
    """
    if [None if side is None else side.source() for side in schema.sides()] != [
        None if side is None else side.source() for side in following.sides()
    ]:
        return None
    mine, theirs = parse_schema_json(schema.iceberg_json), parse_schema_json(following.iceberg_json)
    if mine == theirs or _without_ids(mine) != _without_ids(theirs):
        return None
    # Both differ only in ids, so `ids_of` walks them in the same order.
    return dict(zip(ids_of(mine), ids_of(theirs), strict=True))


def _without_ids(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_without_ids(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: _without_ids(value) for name, value in kind.items() if name not in ID_KEYS}
