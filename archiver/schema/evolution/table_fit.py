"""Compares a topic's recorded columns with those of its table: missing columns, and ids that the catalog
assigned differently.

Pure. A column with which archives were written is identified by its id alone; a column without archives may
still get another id. Additional columns of the table stay: none of them is renamed, retyped or moved. A
column with archives is never found by its name.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archiver.runtime.errors import Halt
from archiver.schema.columns import Json, schema_text
from archiver.schema.evolution.evolve import is_wider, type_text
from archiver.schema.evolution.field_history import ID_KEYS, highest_id, ids_of, translations
from archiver.schema.evolution.recorded import SourceSchema, TopicSchema, parse_schema_json


@dataclass(frozen=True)
class Fit:
    """The result of comparing a table with a topic's schema."""

    schema: TopicSchema
    """The schema itself, or the same with other ids for columns without archives; then it must be recorded as
    a new version before the table is changed or an archive is written with it."""
    lacking: str | None
    """The table's schema, in Iceberg's JSON form, as it must become; None if it has everything."""


def fit_table(
    schema: TopicSchema, history: Sequence[TopicSchema], table_json: str, last_column_id: int, written: int
) -> Fit:
    """Compare `schema` with the table's current schema.

    `history`: the recorded versions, `schema` itself last once it is recorded. `last_column_id`: the highest
    id the table ever gave. `written`: the newest version with which an archive was written, 0 if none was.
    Raises Halt if a column with archives is gone, or if a column of the archiver has another type. Also if
    an external column has a name that a new column needs.
    """
    ours, table = schema.schema(), parse_schema_json(table_json)
    # Both are changed in place below, and compared with these copies.
    before = copy.deepcopy(ours), copy.deepcopy(table)
    # Data files refer to these ids, so none of them can change any more.
    used = {number for one in history if one.version <= written for number in ids_of(one.schema())}
    everything = history if history and history[-1].version == schema.version else (*history, schema)
    # Above every id that the table or a recorded version ever had.
    fresh = itertools.count(max(last_column_id, highest_id(everything)) + 1)
    _Fitting(used, _former_names(everything), last_column_id, fresh).struct(ours, table, "")
    lacking = None if table == before[1] else schema_text(table)
    if ours == before[0]:
        return Fit(schema, lacking)
    # `ids_of` walks both in the same order, because only ids differ.
    ids = dict(zip(ids_of(before[0]), ids_of(ours), strict=True))
    key, value = (_renumbered(side, ids) for side in schema.sides())
    return Fit(replace(schema, iceberg_json=schema_text(ours), key=key, value=value), lacking)


class _Fitting:
    """One walk through our schema and the table's. Changes both in place: ours gets the table's ids, the
    table's gets the missing columns.
    """

    def __init__(
        self,
        used: Collection[int],
        former_names: Mapping[int, Collection[str]],
        last_column_id: int,
        fresh: Iterator[int],
    ) -> None:
        self._used = used
        self._former_names = former_names
        self._last_column_id = last_column_id
        self._fresh = fresh

    def struct(self, ours: Json, table: Json, path: str) -> None:
        """Fit a struct, or the schema itself."""
        by_id = {one["id"]: one for one in table["fields"]}
        known = [self._known(one, by_id, path) for one in ours["fields"]]
        # A column that is known by its id may be about to pass its name to another one.
        claimed = {one["id"] for one in known if one is not None}
        by_name = {one["name"]: one for one in table["fields"] if one["id"] not in claimed}
        lacking: list[Json] = []
        named: list[Json] = []
        for one, same in zip(ours["fields"], known, strict=True):
            where = f"{path}.{one['name']}".lstrip(".")
            theirs = same or by_name.get(one["name"])
            if theirs is None:
                lacking.append(self._addable(one, where))
                continue
            # A name that we gave earlier is updated. Any other name is an external rename, and stays.
            if theirs["name"] != one["name"] and theirs["name"] in self._former_names.get(one["id"], ()):
                theirs["name"] = one["name"]
                named.append(theirs)
            # The catalog may have assigned another id. The id in the table counts.
            one["id"] = theirs["id"]
            theirs["type"] = self._type(one["type"], theirs["type"], where)
        table["fields"] += lacking
        _refuse_doubles([*named, *lacking], table["fields"], path)

    def _known(self, ours: Json, by_id: Mapping[int, Json], path: str) -> Json | None:
        """The table's column with that id; None if the id is unused, or another writer's."""
        same = by_id.get(ours["id"])
        if ours["id"] in self._used:
            if same is None:
                where = f"{path}.{ours['name']}".lstrip(".")
                raise Halt(
                    f"the table has no column {where} (field id {ours['id']}) any more; restore it, or "
                    "archive to another table"
                )
            return same
        # Without archives, an equal id may belong to a column of another program.
        if same is not None and (
            same["name"] == ours["name"] or same["name"] in self._former_names.get(ours["id"], ())
        ):
            return same
        return None

    def _addable(self, ours: Json, where: str) -> Json:
        """The column as it is added to the table; with other ids if some of its own may have been given to
        another column.
        """
        if ours["required"]:
            raise Halt(f"the table has no column {where}; restore it, or archive to another table")
        # The table may have given these ids to a column that is dropped by now.
        if any(number <= self._last_column_id for number in ids_of(ours)):
            _renumber(ours, self._fresh)
        # A copy, because the two schemas are changed independently.
        return copy.deepcopy(ours)

    def _type(self, ours: Any, table: Any, where: str) -> Any:
        """The table's type of a column as it must become; nested columns of ours get the table's ids."""
        if isinstance(ours, str) or isinstance(table, str) or ours["type"] != table["type"]:
            same = isinstance(ours, str) and isinstance(table, str) and type_text(ours) == type_text(table)
            if same:
                # The types are equal, but `decimal` has two spellings: the table's own stays.
                return table
            if isinstance(ours, str) and isinstance(table, str) and is_wider(table, ours):
                # Iceberg may widen the column. The opposite, a wider table, is an external change.
                return ours
            raise Halt(
                f"column {where} of the table has type {type_text(table)}, the topic's schema says "
                f"{type_text(ours)}; "
                "restore it, or archive to another table"
            )
        if ours["type"] == "struct":
            self.struct(ours, table, where)
            return table
        for part in ("element",) if ours["type"] == "list" else ("key", "value"):
            number = f"{part}-id"
            # Elements and values have ids too, and files refer to those.
            if ours[number] != table[number] and ours[number] in self._used:
                raise Halt(
                    f"column {where} of the table has another {part} (field id {table[number]}, not "
                    f"{ours[number]}); restore it"
                )
            ours[number] = table[number]
            table[part] = self._type(ours[part], table[part], f"{where}.{part}")
        return table


def _refuse_doubles(changed: Sequence[Json], fields: Sequence[Json], path: str) -> None:
    """A name that we give must be free at its level, in upper and lower case."""
    for one in changed:
        other = next(
            (field for field in fields if field is not one and field["name"].lower() == one["name"].lower()),
            None,
        )
        if other is not None:
            where = f"{path}.{other['name']}".lstrip(".")
            raise Halt(
                f"column {where} of the table (field id {other['id']}) has a name that the topic's "
                "schema has for another column: "
                "rename it in the table, or give the field another column name (columns: in the "
                "configuration)"
            )


def _former_names(history: Sequence[TopicSchema]) -> Mapping[int, Collection[str]]:
    """Per id, in terms of the newest version: every name that we ever gave the column."""
    found: dict[int, set[str]] = {}
    for schema, ids in zip(history, translations(history), strict=True):
        for number, name in _names_in(schema.schema()):
            found.setdefault(ids.get(number, number), set()).add(name)
    return found


def _names_in(kind: Any) -> Iterator[tuple[int, str]]:
    if not isinstance(kind, dict):
        return
    for one in kind.get("fields", ()):
        yield one["id"], one["name"]
        yield from _names_in(one["type"])
    for part in ("element", "value"):
        yield from _names_in(kind.get(part))


def _renumber(kind: Any, fresh: Iterator[int]) -> None:
    if not isinstance(kind, dict):
        return
    for name in ID_KEYS:
        if name in kind:
            kind[name] = next(fresh)
    for part in ("type", "element", "key", "value"):
        _renumber(kind.get(part), fresh)
    for one in kind.get("fields", ()):
        _renumber(one, fresh)


def _renumbered(side: SourceSchema | None, ids: Mapping[int, int]) -> SourceSchema | None:
    return (
        None
        if side is None
        else replace(side, field_ids={path: ids[number] for path, number in side.field_ids.items()})
    )
