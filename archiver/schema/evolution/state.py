"""The schema state of a topic: a pure state machine over the SCHEMA entries of the control log.

It decides how a topic's newest Protobuf schema changes its columns, and with which columns archives of a
version are written. A field id is never given twice. Equal input gives the same state, bit for bit. A
descriptor set that differs but maps to the same columns and bytes changes nothing. A recorded version is
never altered, only followed by another. A schema change never removes a column, and never halts a topic.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from archiver.schema.avro.source import check_readable, followed
from archiver.schema.columns import (
    BoundedColumn,
    Json,
    arrow_schema_of,
    bounded_columns_of,
    field_ids,
    iceberg_schema,
    schema_text,
)
from archiver.schema.evolution.evolve import Change, SideEvolution, SideName, settled_names, type_text
from archiver.schema.evolution.field_history import Trees, highest_id, inside, mapped, side_past, trees_of
from archiver.schema.evolution.recorded import SourceSchema, TopicSchema
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED, FieldTree, MessageTree, Shape

__all__ = [
    "Decision",
    "SourceSchema",
    "TopicSchema",
    "arrow_schema",
    "bounded_columns",
    "column_tree",
    "decide",
]

_SIDES: tuple[SideName, SideName] = ("key", "value")


@dataclass(frozen=True)
class Decision:
    """The topic's columns from here on."""

    schema: TopicSchema
    """The newest recorded schema itself if nothing relevant changed, else the next one, which is not recorded
    yet."""
    changes: tuple[Change, ...]
    """The differences, keys first, in field number order; for a first version, its columns. Nested fields of
    a new column are not listed one by one."""

    @property
    def compatible(self) -> bool:
        """Whether every change is."""
        return all(one.compatible for one in self.changes)


def arrow_schema(schema: TopicSchema) -> pa.Schema:
    """The Arrow schema of that version's archives: the columns that its messages have, in the order of their
    trees.
    """
    return arrow_schema_of(_active(schema))


def bounded_columns(schema: TopicSchema) -> tuple[BoundedColumn, ...]:
    """The leaves with statistics and bounds: `columns.bounded_columns_of` the columns in `arrow_schema`."""
    return bounded_columns_of(_active(schema))


def column_tree(side: SourceSchema, struct: Json) -> MessageTree:
    """The message's tree with the names of its columns in place of Protobuf's, found by field id.

    `struct`: the type of the version's `key` or `value` column. Raises ConfigInvalid if the recorded
    descriptors do not map.
    """
    return _column_message(trees_of(side.source(), "recorded schema").tree, side, struct, "")


def decide(
    topic: str, history: Sequence[TopicSchema], key: Source | None, value: Source | None, ids_above: int = 0
) -> Decision:
    """The topic's columns from here on; a first version if `history` is empty.

    `history` has every recorded version, the oldest first. `ids_above` is the table's last column id; new
    field ids are above it. The rules are in docs/protocols/schema-evolution.md. Raises ConfigInvalid for a
    message that this version of the archiver does not map.
    """
    where = [f"topic {topic}, {side}" for side in _SIDES]
    sources = [
        _without_gone_names(source, history, index, where[index]) for index, source in enumerate((key, value))
    ]
    for index, source in enumerate(sources):
        former = [one.source() for schema in history if (one := schema.sides()[index]) is not None]
        check_readable(source, former, where[index])
        sources[index] = followed(source, former, where[index])
    trees = [
        None if source is None else trees_of(source, at) for source, at in zip(sources, where, strict=True)
    ]
    if not history:
        return _first(sources, trees)
    newest = history[-1]
    # The common case, which does not read the whole history.
    if all(_same(*one) for one in zip(newest.sides(), sources, trees, where, strict=True)):
        return Decision(newest, ())
    # A copy of the newest version, which has every column ever made. The walk changes it in place.
    columns = newest.schema()
    # Also above ids that a catalog refused: a field id is never reused.
    ids = itertools.count(max(highest_id(history), ids_above) + 1)
    sides: list[SourceSchema | None] = []
    changes: list[Change] = []
    for index, name in enumerate(_SIDES):
        column, source, tree = columns["fields"][index], sources[index], trees[index]
        evolution = SideEvolution(name, side_past(history, index, column, where[index]), ids)
        if source is None or tree is None:
            evolution.drop_all(column)
        else:
            evolution.carry_on(column, tree.tree, tree.target)
        sides.append(None if source is None else SourceSchema.of(source, evolution.field_ids))
        changes += [*_side_changes(name, newest.sides()[index], source), *evolution.changes]
    return Decision(TopicSchema(newest.version + 1, schema_text(columns), sides[0], sides[1]), tuple(changes))


def _first(sources: Sequence[Source | None], trees: Sequence[Trees | None]) -> Decision:
    named = [None if one is None else settled_names(one.target) for one in trees]
    # Ids are from 1 on, because the catalog assigns its own when it creates the table.
    columns = iceberg_schema(named[0], named[1])
    sides: list[SourceSchema | None] = []
    changes: list[Change] = []
    for index, (source, tree, trees_of_side) in enumerate(zip(sources, named, trees, strict=True)):
        if source is None or tree is None or trees_of_side is None:
            sides.append(None)
            continue
        struct = columns["fields"][index]["type"]
        sides.append(SourceSchema.of(source, field_ids(tree, struct)))
        by_name = {one["name"]: one for one in struct["fields"]}
        for one, column in zip(trees_of_side.tree.fields, tree.fields, strict=True):
            changes.append(_added(_SIDES[index], one, by_name[column.name]))
    return Decision(TopicSchema(1, schema_text(columns), sides[0], sides[1]), tuple(changes))


def _added(side: Literal["key", "value"], field: FieldTree, column: Json) -> Change:
    now = type_text(column["type"])
    return Change(
        side,
        field.step,
        field.name,
        "added",
        f"{side}.{column['name']}",
        column["id"],
        "",
        now,
        "",
        compatible=True,
    )


def _without_gone_names(
    source: Source | None, history: Sequence[TopicSchema], index: int, where: str
) -> Source | None:
    """The source without configured names of fields that an earlier version had and this message no longer
    has.
    """
    if source is None or not source.columns:
        return source
    # A configured name whose field is gone is no reason to halt. One that never had a field is an error.
    recorded = {
        one for schema in history if (side := schema.sides()[index]) is not None for one in side.columns
    }
    paths = set(_dotted(trees_of(replace(source, columns=()), where).tree, ""))
    return replace(
        source, columns=tuple(one for one in source.columns if one[0] in paths or one not in recorded)
    )


def _dotted(tree: MessageTree, above: str) -> list[str]:
    found: list[str] = []
    for one in tree.fields:
        found.append(f"{above}{one.name}")
        if one.message is not None:
            found += _dotted(one.message, f"{above}{one.name}.")
    return found


def _same(known: SourceSchema | None, source: Source | None, trees: Trees | None, where: str) -> bool:
    """Whether a key or a value is read and written as recorded, to columns of the names recorded."""
    if known is None or source is None or trees is None:
        return known is None and source is None
    if (known.message, known.envelope, known.format) != (source.message, source.envelope, source.format):
        return False
    # Two Avro schemas may give the same columns and different bytes.
    if source.format == "avro" and known.descriptor_set != source.descriptor_set:
        return False
    # Trees and not bytes: descriptor sets may differ in comments or files and map to the same columns.
    recorded = trees_of(known.source(), where)
    return recorded == trees and set(known.field_ids) == set(_paths(trees.tree, ""))


def _paths(tree: MessageTree, above: str) -> list[str]:
    """Every path of field numbers that `columns.field_ids` gives."""
    found: list[str] = []
    for one in tree.fields:
        path = f"{above}{one.step}"
        found.append(path)
        for shape in (one.shape, *one.inner):
            if shape is Shape.MAP:
                found += [f"{path}/1", f"{path}/2"]
                path = f"{path}/2"
        if one.message is not None:
            found += _paths(one.message, f"{above}{one.step}{one.below}")
    return found


def _side_changes(side: SideName, known: SourceSchema | None, source: Source | None) -> list[Change]:
    """Changes of the whole key or value."""
    if known is None and source is None:
        return []
    if known is None or source is None:
        was, now = "" if known is None else known.message, "" if source is None else source.message
        why = (
            "the bytes alone are kept, in __raw__"
            if source is None
            else "__raw__ is kept only where the columns do not give the bytes"
        )
        return [Change(side, "", "", "message", side, None, was, now, why, compatible=True)]
    changes: list[Change] = []
    if (known.message, known.format) != (source.message, source.format):
        why = (
            "its fields go on by their numbers" if source.format == "protobuf" else "its fields go on by name"
        )
        # Fields of Avro and JSON are both identified by name.
        if known.format != source.format and "protobuf" in (known.format, source.format):
            why = "its format is another one, so its fields get columns of their own"
        changes.append(
            Change(side, "", "", "message", side, None, known.message, source.message, why, compatible=True)
        )
    if known.envelope != source.envelope:
        was, now = (_envelope_text(one) for one in (known, source))
        changes.append(Change(side, "", "", "envelope", side, None, was, now, "", compatible=True))
    return changes


def _envelope_text(side: SourceSchema | Source) -> str:
    return (
        "no envelope"
        if side.envelope is None
        else f"ids {', '.join(str(number) for number, _ in side.envelope.ids)}"
    )


def _active(schema: TopicSchema) -> Json:
    """The recorded JSON cut down to the columns that the version's messages have."""
    columns = schema.schema()
    # `key` and `value` are the first two columns. The others never change.
    for column, side in zip(columns["fields"], schema.sides(), strict=False):
        struct = column["type"]
        extra = {one["name"]: one for one in struct["fields"] if one["name"] in (RAW, PREFIX, ERR)}
        if side is None:
            # Columns of an earlier schema stay in the JSON, but new archives do not have them.
            struct["fields"] = [extra[RAW]]
            continue
        _cut(struct, trees_of(side.source(), "recorded schema").tree, side, "")
        struct["fields"] = [*(extra[name] for name in (RAW, PREFIX, ERR)), *struct["fields"]]
    return columns


def _cut(struct: Json, tree: MessageTree, side: SourceSchema, above: str) -> None:
    """Reduce a struct, in place, to the columns of the message's fields in tree order, and
    `__unrecognized__`.
    """
    columns = mapped(struct)
    # A closed message has none; the column of an earlier schema is a dropped one.
    unrecognized = [one for one in struct["fields"] if one["name"] == UNRECOGNIZED and not tree.closed]
    kept = []
    for one in tree.fields:
        path = f"{above}{one.step}"
        # By id and not by name, because a column may have been renamed since.
        column = columns[side.field_ids[path]]
        kept.append(column)
        if one.message is not None:
            _cut(inside(column)[0], one.message, side, f"{path}{one.below}")
    struct["fields"] = [*kept, *unrecognized]


def _column_message(tree: MessageTree, side: SourceSchema, struct: Json, above: str) -> MessageTree:
    columns = mapped(struct)
    fields: list[FieldTree] = []
    for one in tree.fields:
        path = f"{above}{one.step}"
        column = columns[side.field_ids[path]]
        message = one.message
        if message is not None:
            message = _column_message(message, side, inside(column)[0], f"{path}{one.below}")
        fields.append(replace(one, name=column["name"], message=message))
    return replace(tree, fields=tuple(fields))
