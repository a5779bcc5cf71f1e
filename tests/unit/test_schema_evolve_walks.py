"""Random walks of schemas, checked against Iceberg's own rules and a second implementation of the project's
rules.

`ARCHIVER_SCHEMA_SEEDS=N` runs N times as many walks.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyiceberg.schema import Schema

from archiver.schema.evolution.evolve import WHATS, Change
from archiver.schema.evolution.field_history import trees_of
from archiver.schema.evolution.state import TopicSchema, arrow_schema, column_tree, decide
from archiver.schema.protobuf.descriptors import Source
from tests.support.schema.protos import descriptor_of
from tests.support.schema.schema_walks import walk

TIMES = int(os.environ.get("ARCHIVER_SCHEMA_SEEDS", "1"))

Flat = tuple[int, int, str, str, bool]
"""Id, id of its parent, name, type without its children, required."""


def flat(text: str) -> list[Flat]:
    """Every column, element, key and value of a schema, in order. Written again here, to be independent of
    the code."""

    def kind_of(kind: Any) -> str:
        return str(kind) if isinstance(kind, str) else str(kind["type"])

    def walk_type(kind: Any, owner: int) -> Iterator[Flat]:
        if isinstance(kind, str):
            return
        if kind["type"] == "struct":
            for one in kind["fields"]:
                yield (one["id"], owner, one["name"], kind_of(one["type"]), one["required"])
                yield from walk_type(one["type"], one["id"])
        elif kind["type"] == "list":
            yield (kind["element-id"], owner, "element", kind_of(kind["element"]), kind["element-required"])
            yield from walk_type(kind["element"], kind["element-id"])
        else:
            yield (kind["key-id"], owner, "key", kind_of(kind["key"]), True)
            yield (kind["value-id"], owner, "value", kind_of(kind["value"]), kind["value-required"])
            yield from walk_type(kind["value"], kind["value-id"])

    return list(walk_type(json.loads(text), 0))


PROMOTIONS = {("int", "long"), ("float", "double")}


def check_iceberg(before: str | None, after: str) -> None:
    """The schema is valid, and Iceberg allows it to follow the former one."""
    Schema.model_validate_json(after)
    new = flat(after)
    ids = [one[0] for one in new]
    assert len(ids) == len(set(ids))
    levels = [(owner, name.lower()) for _, owner, name, _, _ in new]
    assert len(levels) == len(set(levels))
    if before is None:
        return
    old = flat(before)
    by_id = {one[0]: one for one in new}
    for number, owner, name, kind, required in old:
        now = by_id[number]  # No field is ever removed.
        assert now[1] == owner and now[4] == required
        assert now[3] == kind or ((kind, now[3]) in PROMOTIONS and name != "key"), (number, kind, now[3])
    known = {one[0] for one in old}
    for number, _, name, _, required in new:
        assert number in known or (number > max(known) and (not required or name == "key"))
    for owner in {one[1] for one in old}:
        order = [one[0] for one in new if one[1] == owner]
        assert order[: sum(one[1] == owner for one in old)] == [one[0] for one in old if one[1] == owner]


SCALAR_COLUMNS = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_SINT64: "long",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_UINT64: "decimal(20, 0)",
    FieldDescriptor.TYPE_FIXED64: "decimal(20, 0)",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_ENUM: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
}


class Book:
    """Which column each field must be in, kept from the descriptors alone."""

    def __init__(self) -> None:
        self.owner_of: dict[int, tuple[int, int]] = {}
        """Column id → (id of its parent, field number); a column never gets another field."""
        self.had: dict[tuple[int, int], list[int]] = {}
        """Columns of a field, the last used first."""

    def check(self, descriptor: Descriptor, schema: TopicSchema) -> None:
        assert schema.value is not None
        columns = {one[0]: one for one in flat(schema.iceberg_json)}
        types = {"value": schema.schema()["fields"][1]}
        self._message(
            descriptor, types["value"]["type"], types["value"]["id"], "", schema.value.field_ids, columns
        )

    def _message(
        self, message: Descriptor, struct: Any, owner: int, path: str, ids: Any, columns: dict[int, Flat]
    ) -> None:
        here = {one["id"]: one for one in struct["fields"]}
        for one in message.fields:
            number = ids[f"{path}{one.number}"]
            assert number in here, "the column stands where the field does"
            mine = (owner, one.number)
            assert self.owner_of.setdefault(number, mine) == mine
            kind = here[number]["type"]
            assert fits(one, kind, exactly=False)
            former = self.had.setdefault(mine, [])
            expected = next((old for old in former if fits(one, here[old]["type"], exactly=False)), None)
            assert expected in (None, number), "the newest former column that fits"
            if number in former:
                former.remove(number)
            former.insert(0, number)
            inner = one.message_type
            if inner is None or inner.full_name == "google.protobuf.Timestamp":
                continue
            if inner.GetOptions().map_entry:
                inner = inner.fields_by_number[2].message_type
                if inner is not None and inner.full_name != "google.protobuf.Timestamp":
                    self._message(
                        inner, kind["value"], kind["value-id"], f"{path}{one.number}/2/", ids, columns
                    )
            elif kind["type"] == "list":
                self._message(
                    inner, kind["element"], kind["element-id"], f"{path}{one.number}/", ids, columns
                )
            else:
                self._message(inner, kind, number, f"{path}{one.number}/", ids, columns)


def fits(one: FieldDescriptor, kind: Any, exactly: bool) -> bool:
    """Whether a column of that type can store the field, wider or narrower."""
    shape = kind["type"] if isinstance(kind, dict) else ""
    inner = one.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_number[1], inner.fields_by_number[2]
        return shape == "map" and fits(key, kind["key"], exactly=True) and _item_fits(value, kind["value"])
    if one.is_repeated:
        return shape == "list" and _item_fits(one, kind["element"])
    return SCALAR_COLUMNS[one.type] == kind if exactly else _item_fits(one, kind)


def _item_fits(one: FieldDescriptor, kind: Any) -> bool:
    if one.message_type is not None:
        if one.message_type.full_name == "google.protobuf.Timestamp":
            return bool(kind == "timestamptz")
        return isinstance(kind, dict) and kind["type"] == "struct"
    mine = SCALAR_COLUMNS[one.type]
    return kind == mine or (
        isinstance(kind, str) and ((mine, kind) in PROMOTIONS or (kind, mine) in PROMOTIONS)
    )


@pytest.mark.parametrize(
    ("seed", "changes"),
    [*((seed, 200) for seed in range(TIMES)), *((1_000 + seed, 40) for seed in range(12 * TIMES))],
)
def test_random_walks_break_no_rule(seed: int, changes: int) -> None:
    history: tuple[TopicSchema, ...] = ()
    book, rng, above = Book(), random.Random(seed), 0
    for number, one in enumerate(walk(seed, changes)):
        above += rng.randrange(3) * (number > 0)  # Other writers assign ids in the table as well.
        decision = decide("t", history, None, one, above)
        if number % 20 == 0:
            trees_of.cache_clear()
            assert decide("t", history, None, one, above) == decision
        check_iceberg(history[-1].iceberg_json if history else None, decision.schema.iceberg_json)
        if not history or decision.schema is not history[-1]:
            history = (*history, decision.schema)
        else:
            assert decision.changes == ()
        schema = decision.schema
        above = max(above, *(one[0] for one in flat(schema.iceberg_json)))
        book.check(descriptor_of(one), schema)
        check_active(one, schema)
        check_reported(decision.changes)


def check_active(one: Source, schema: TopicSchema) -> None:
    """The archive's columns are the fields of the message, in its order, with their ids."""
    assert schema.value is not None
    struct = arrow_schema(schema).field("value").type
    tree = column_tree(schema.value, schema.schema()["fields"][1]["type"])
    assert [field.name for field in tree.fields] == [
        struct.field(at).name for at in range(3, struct.num_fields - 1)
    ]
    assert [field.number for field in tree.fields] == sorted(
        field.number for field in descriptor_of(one).fields
    )
    ids = [
        int((struct.field(at).metadata or {})[b"PARQUET:field_id"]) for at in range(3, struct.num_fields - 1)
    ]
    assert ids == [schema.value.field_ids[str(field.number)] for field in tree.fields]


def check_reported(changes: tuple[Change, ...]) -> None:
    for one in changes:
        assert one.what in WHATS
        assert one.compatible or one.why
        assert one.what in ("message", "envelope") or (one.path and one.field and one.field_id is not None)
