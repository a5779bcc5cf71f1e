"""The schema state of a topic: a pure state machine over the SCHEMA entries of the control log.

Owns: `TopicSchema`, its form in the control log, and the decision what a topic's newest Protobuf schema means for its table.
Promises: a field id once given is never given again; the same input gives the same state, bit for bit; a descriptor set that reads
differently but maps to the same columns and bytes changes nothing.
Must never: change columns behind anybody's back. This version does not evolve schemas: a difference halts the topic with what changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from archiver.errors import Corrupted, Halt, TopicHalted
from archiver.proto import control_log_pb2
from archiver.schema.descriptors import Source, source_tree
from archiver.schema.layout import BoundedColumn, Json, arrow_schema_of, bounded_columns_of, field_ids, iceberg_schema, schema_text
from archiver.schema.tree import FieldTree, MessageTree

_CHANGES_SHOWN = 5


@dataclass(frozen=True)
class SourceSchema:
    """The Protobuf side of a key or a value, as recorded."""

    message: str
    """Full name of the message."""
    descriptor_set: bytes
    """A serialized FileDescriptorSet with every file the message needs."""
    field_ids: Mapping[str, int]
    """Path of field numbers to Iceberg field id, as `layout.field_ids` spells it."""

    def source(self) -> Source:
        """The same without ids."""
        return Source(self.message, self.descriptor_set)


@dataclass(frozen=True)
class TopicSchema:
    """The columns of a topic from one SCHEMA entry on."""

    version: int
    """1, 2, … per topic."""
    iceberg_json: str
    """Iceberg's JSON form with the field ids in force."""
    key: SourceSchema | None
    """None: the key has no schema."""
    value: SourceSchema | None
    """None: the value has no schema."""

    def to_entry(self, topic_id: bytes) -> control_log_pb2.SchemaChanged:
        """The entry's body for the control log. `topic_id`: 16 bytes."""
        entry = control_log_pb2.SchemaChanged(topic_id=topic_id, version=self.version, iceberg_schema=self.iceberg_json)
        for theirs, ours in ((entry.key, self.key), (entry.value, self.value)):
            if ours is not None:
                theirs.message, theirs.descriptor_set = ours.message, ours.descriptor_set
                theirs.field_ids.update(ours.field_ids)
        return entry

    @staticmethod
    def from_entry(entry: control_log_pb2.SchemaChanged) -> TopicSchema:
        """The state that an entry records. Raises Corrupted if its JSON cannot be read."""
        _parse(entry.iceberg_schema)
        key = _source_schema(entry.key) if entry.HasField("key") else None
        value = _source_schema(entry.value) if entry.HasField("value") else None
        return TopicSchema(entry.version, entry.iceberg_schema, key, value)

    def schema(self) -> Json:
        """The Iceberg schema as parsed JSON."""
        return _parse(self.iceberg_json)


def arrow_schema(schema: TopicSchema) -> pa.Schema:
    """What archives of the topic are written with: `layout.arrow_schema_of` of the recorded JSON."""
    return arrow_schema_of(schema.schema())


def bounded_columns(schema: TopicSchema) -> tuple[BoundedColumn, ...]:
    """The leaves with statistics and bounds: `layout.bounded_columns_of` of the recorded JSON."""
    return bounded_columns_of(schema.schema())


def decide(topic: str, known: TopicSchema | None, key: Source | None, value: Source | None) -> TopicSchema:
    """What the topic's columns are from here on: `known` itself when nothing that matters changed, a first version when nothing is known.

    Raises ConfigInvalid for a message that this version does not map, TopicHalted (with what changed) for any difference to `known`.
    """
    key_tree, value_tree = _tree(key, f"topic {topic}, key"), _tree(value, f"topic {topic}, value")
    if known is None:
        columns = iceberg_schema(key_tree, value_tree)
        return TopicSchema(1, schema_text(columns), _record(key, key_tree, columns, 0), _record(value, value_tree, columns, 1))
    changes = [*_side_changes("key", known.key, key, key_tree), *_side_changes("value", known.value, value, value_tree)]
    if not changes:
        return known
    shown = "; ".join(changes[:_CHANGES_SHOWN])
    more = f"; and {len(changes) - _CHANGES_SHOWN} more" if len(changes) > _CHANGES_SHOWN else ""
    raise TopicHalted(
        topic,
        f"its schema differs from version {known.version} in the ledger: {shown}{more}. "
        "this version does not evolve tables yet; go back to the former schema, or write to a new topic",
    )


def adopt_table_ids(schema: TopicSchema, table_schema_json: str) -> TopicSchema:
    """The schema with the field ids that the catalog assigned, found by name; `schema` itself if they are the same.

    Columns that the table has besides ours are left alone. Raises Halt if one of ours is missing or has another type.
    """
    ours, table = schema.schema(), _parse(table_schema_json)
    _adopt(ours, table, "")
    text = schema_text(ours)
    if text == schema_text(schema.schema()):
        return schema
    key, value = (_renumbered(side, ours, index) for index, side in enumerate((schema.key, schema.value)))
    return replace(schema, iceberg_json=text, key=key, value=value)


def _parse(text: str) -> Json:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise Corrupted(f"an iceberg schema cannot be read: {error}; text begins {text[:60]!r}") from error
    if not isinstance(schema, dict) or schema.get("type") != "struct":
        raise Corrupted(f"an iceberg schema is not a struct; text begins {text[:60]!r}")
    return schema


def _source_schema(entry: control_log_pb2.SchemaChanged.Source) -> SourceSchema:
    return SourceSchema(entry.message, entry.descriptor_set, dict(entry.field_ids))


def _tree(source: Source | None, where: str) -> MessageTree | None:
    return None if source is None else source_tree(source, where)


def _record(source: Source | None, tree: MessageTree | None, columns: Json, index: int) -> SourceSchema | None:
    if source is None or tree is None:
        return None
    return SourceSchema(source.message, source.descriptor_set, field_ids(tree, columns["fields"][index]["type"]))


def _renumbered(side: SourceSchema | None, columns: Json, index: int) -> SourceSchema | None:
    if side is None:
        return None
    return _record(side.source(), source_tree(side.source()), columns, index)


def _side_changes(side: str, known: SourceSchema | None, source: Source | None, tree: MessageTree | None) -> list[str]:
    """What changed in the key or the value, in words."""
    if known is None or source is None or tree is None:
        if known is None and source is None:
            return []
        return [
            f"the {side} now has a schema, it had none" if known is None else f"the {side} has no schema any more, it was {known.message}"
        ]
    if known.message != source.message:
        return [f"the {side}'s message is {source.message}, it was {known.message}"]
    return [f"{side}: {change}" for change in message_changes(source_tree(known.source()), tree)]


def message_changes(old: MessageTree, new: MessageTree, path: str = "") -> list[str]:
    """Every difference between two trees, in words; empty exactly if they are equal."""
    changes: list[str] = []
    before, after = old.by_number(), new.by_number()
    for number in sorted({*before, *after}):
        if number not in after:
            changes.append(f"field {path}{before[number].name} = {number} was removed")
        elif number not in before:
            changes.append(f"field {path}{after[number].name} = {number} was added")
        else:
            changes.extend(_field_changes(before[number], after[number], path))
    return changes


def _field_changes(old: FieldTree, new: FieldTree, path: str) -> list[str]:
    if old == new:
        return []
    where = f"field {path}{old.name} = {old.number}"
    changes = [f"{where} was renamed to {new.name}"] if old.name != new.name else []
    if old.key is not None and new.key is not None and old.key != new.key:
        changes.append(f"{where} had keys of type {old.key.kind.value}, now {new.key.kind.value}")
    for what in ("shape", "kind"):
        a, b = getattr(old, what).value, getattr(new, what).value
        if a != b:
            changes.append(f"{where} was {a}, now {b}")
    for what, text in (("presence", "field presence"), ("packed", "packed encoding"), ("oneof", "its oneof")):
        if getattr(old, what) != getattr(new, what):
            changes.append(f"{where} changed {text}")
    if old.enum is not None and new.enum is not None and old.enum != new.enum:
        values = sorted(set(old.enum.names) ^ set(new.enum.names))
        changes.append(f"{where} changed enum values {', '.join(f'{name} = {number}' for number, name in values[:_CHANGES_SHOWN])}")
    if old.message is not None and new.message is not None:
        changes.extend(message_changes(old.message, new.message, f"{path}{old.name}."))
    return changes


def _adopt(ours: Json, table: str | Json, path: str) -> None:
    """Write the ids of `table` into `ours`, a nested type, in place."""
    kind = ours["type"]
    if not isinstance(table, dict) or table["type"] != kind:
        raise _differs(path, kind, table if isinstance(table, str) else table["type"])
    if kind == "struct":
        theirs = {one["name"]: one for one in table["fields"]}
        for one in ours["fields"]:
            where = f"{path}.{one['name']}".lstrip(".")
            if one["name"] not in theirs:
                raise Halt(f"the table has no column {where}; restore it, or archive to another table")
            one["id"] = theirs[one["name"]]["id"]
            _adopt_type(one["type"], theirs[one["name"]]["type"], where)
        return
    for part in ("element",) if kind == "list" else ("key", "value"):
        ours[f"{part}-id"] = table[f"{part}-id"]
        _adopt_type(ours[part], table[part], f"{path}.{part}")


def _adopt_type(ours: str | Json, table: str | Json, path: str) -> None:
    if isinstance(ours, dict):
        _adopt(ours, table, path)
    elif not isinstance(table, str) or table.replace(" ", "") != ours.replace(" ", ""):
        raise _differs(path, ours, table if isinstance(table, str) else table["type"])


def _differs(path: str, ours: str, theirs: str) -> Halt:
    return Halt(f"column {path} of the table has type {theirs}, the topic's schema says {ours}; restore it, or archive to another table")
