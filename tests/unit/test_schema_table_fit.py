"""What a table lacks of a topic's recorded columns, which ids differ in it, and what halts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from archiver.runtime.errors import Halt
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.field_history import highest_id, ids_of
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.evolution.table_fit import Fit, fit_table
from tests.support.schema.protos import F, field, file_of, order_file, source

ORDER = source(order_file(), "Order")


def shop(*fields: tuple[str, int, int]) -> Any:
    """A message of scalars: name, number, type."""
    file = file_of()
    message = file.message_type.add(name="Sale")
    for name, number, kind in fields:
        field(message, name, number, kind)
    return source(file, "Sale")


def versions(*sources: Any) -> tuple[TopicSchema, ...]:
    history: tuple[TopicSchema, ...] = ()
    for one in sources:
        history = (*history, decide("t", history, None, one).schema)
    return history


def highest(table: str) -> int:
    return max(ids_of(json.loads(table)))


def fit(history: tuple[TopicSchema, ...], table: str, written: int, last_column_id: int | None = None) -> Fit:
    return fit_table(
        history[-1], history, table, highest(table) if last_column_id is None else last_column_id, written
    )


def changed(schema: TopicSchema, change: Callable[[Any], object]) -> str:
    table = schema.schema()
    change(table)
    return json.dumps(table)


def value(table: Any) -> list[Any]:
    fields: list[Any] = table["fields"][1]["type"]["fields"]
    return fields


def column(table: Any, name: str) -> Any:
    return next(one for one in value(table) if one["name"] == name)


def test_a_catalog_that_keeps_our_ids_changes_nothing() -> None:
    (schema,) = versions(ORDER)
    table = assign_fresh_schema_ids(Schema.model_validate_json(schema.iceberg_json)).model_dump_json()
    found = fit_table(schema, (), table, highest(table), 0)
    assert found.schema is schema
    assert found.lacking is None


def test_a_catalog_that_gives_other_ids_is_followed_everywhere() -> None:
    schema = decide("t", (), ORDER, ORDER).schema
    numbers = iter(range(1001, 5000))
    table = assign_fresh_schema_ids(
        Schema.model_validate_json(schema.iceberg_json), lambda: next(numbers)
    ).model_dump_json()
    found = fit_table(schema, (), table, highest(table), 0)
    adopted = found.schema
    assert (adopted.version, found.lacking) == (schema.version, None)
    assert (
        Schema.model_validate_json(adopted.iceberg_json).as_struct()
        == Schema.model_validate_json(table).as_struct()
    )
    assert adopted.value is not None and schema.value is not None
    assert {path: number + 1000 for path, number in schema.value.field_ids.items()} == adopted.value.field_ids
    assert b"1001" in (arrow_schema(adopted).field("key").metadata or {}).values()
    RecordCodec(adopted)
    assert decide("t", (adopted,), ORDER, ORDER).schema is adopted


def test_a_catalog_may_even_mix_our_ids_up() -> None:
    (schema,) = versions(shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING)))

    def swap(table: Any) -> None:
        a, b = column(table, "a"), column(table, "b")
        a["id"], b["id"] = b["id"], a["id"]

    found = fit((schema,), changed(schema, swap), 0)
    assert found.lacking is None
    assert {one["name"]: one["id"] for one in value(found.schema.schema())}["a"] == column(
        schema.schema(), "b"
    )["id"]


def test_a_recorded_version_with_other_ids_stands_for_the_one_before_it() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING))
    )
    other = fit(
        (first, second),
        changed(first, lambda table: value(table).append(mine(column(second.schema(), "b")["id"]))),
        1,
    ).schema
    third = TopicSchema(3, other.iceberg_json, other.key, other.value)
    history = (first, second, third)
    assert highest_id(history) == column(third.schema(), "b")["id"] > column(second.schema(), "b")["id"]
    dropped = decide("t", history, None, shop(("a", 1, F.TYPE_STRING))).schema
    back = decide("t", (*history, dropped), None, shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING)))
    assert [one.what for one in back.changes] == ["restored"]
    assert back.schema.iceberg_json == third.iceberg_json


def test_an_id_that_was_given_up_is_not_given_again() -> None:
    """The id of this cluster was higher than the one that the catalog assigned instead."""
    one, two = shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING))
    (first,) = versions(one)
    second = decide("t", (first,), None, two, ids_above=500).schema
    other = fit(
        (first, second),
        changed(first, lambda table: value(table).append(column(second.schema(), "b") | {"id": 77})),
        1,
    ).schema
    history = (first, second, TopicSchema(3, other.iceberg_json, other.key, other.value))
    assert (column(second.schema(), "b")["id"], column(other.schema(), "b")["id"], highest_id(history)) == (
        501,
        77,
        501,
    )
    more = decide(
        "t", history, None, shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING), ("c", 3, F.TYPE_STRING))
    ).schema
    assert column(more.schema(), "c")["id"] == 502


def test_ids_of_all_former_versions_follow_a_catalog_that_mixes_them_up() -> None:
    both, one = shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING)), shop(("b", 2, F.TYPE_STRING))
    first, second = versions(both, one)

    def swap(table: Any) -> None:
        a, b = column(table, "a"), column(table, "b")
        a["id"], b["id"] = b["id"], a["id"]

    mixed = fit((first, second), changed(second, swap), 0).schema
    third = TopicSchema(3, mixed.iceberg_json, mixed.key, mixed.value)
    back = decide("t", (first, second, third), None, both)
    assert [(change.what, change.column) for change in back.changes] == [("restored", "value.a")]
    assert back.schema.iceberg_json == third.iceberg_json


def test_what_is_missing_is_added_behind_what_others_have_added() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_INT32))
    )
    extra = mine(8_000)
    table = changed(first, lambda one: value(one).append(extra))
    found = fit((first, second), table, 1, last_column_id=5)
    assert found.schema is second
    assert found.lacking is not None
    assert value(json.loads(found.lacking)) == [*value(json.loads(table)), column(second.schema(), "b")]
    after = fit((first, second), found.lacking, 1)
    assert after == Fit(second, None)


def mine(number: int, name: str = "mine") -> dict[str, object]:
    return {"id": number, "name": name, "required": False, "type": "string"}


def test_names_and_types_follow_ours_by_id() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_INT32), ("b", 2, F.TYPE_FLOAT), ("c", 3, F.TYPE_STRING)),
        shop(("b", 1, F.TYPE_INT64), ("a", 2, F.TYPE_DOUBLE), ("c", 3, F.TYPE_STRING)),
    )
    found = fit((first, second), first.iceberg_json, 1)
    assert found.schema is second
    assert found.lacking is not None
    assert json.loads(found.lacking) == second.schema()


def test_a_column_that_another_writer_renamed_keeps_that_name() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_INT32)), shop(("a", 1, F.TYPE_INT32), ("b", 2, F.TYPE_INT32))
    )
    table = changed(first, lambda one: column(one, "a").update(name="theirs"))
    found = fit((first, second), table, 1)
    assert found.lacking is not None
    assert [one["name"] for one in value(json.loads(found.lacking))][-3:] == [
        "theirs",
        "__unrecognized__",
        "b",
    ]


def test_an_id_that_a_foreign_column_took_is_given_up() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_INT32))
    )
    taken = column(second.schema(), "b")["id"]
    table = changed(first, lambda one: value(one).append(mine(taken)))
    found = fit((first, second), table, 1)
    assert found.schema is not second and found.lacking is not None
    assert column(found.schema.schema(), "b")["id"] == taken + 1
    assert found.schema.value is not None and found.schema.value.field_ids["2"] == taken + 1
    assert [(one["id"], one["name"]) for one in value(json.loads(found.lacking))][-2:] == [
        (taken, "mine"),
        (taken + 1, "b"),
    ]


def test_ids_inside_a_new_column_are_given_up_together() -> None:
    first = decide("t", (), None, shop(("a", 1, F.TYPE_STRING))).schema
    file = file_of()
    inner = file.message_type.add(name="Inner")
    field(inner, "x", 1, F.TYPE_INT32)
    sale = file.message_type.add(name="Sale")
    field(sale, "a", 1, F.TYPE_STRING)
    field(sale, "inner", 2, F.TYPE_MESSAGE, type_name=".shop.Inner", repeated=True)
    second = decide("t", (first,), None, source(file, "Sale")).schema
    last = max(ids_of(second.schema())) - 1
    found = fit((first, second), first.iceberg_json, 1, last_column_id=last)
    assert found.schema.value is not None
    assert min(found.schema.value.field_ids[path] for path in ("2", "2/1")) > last + 1
    assert sorted(set(ids_of(found.schema.schema()))) == sorted(ids_of(found.schema.schema()))
    RecordCodec(found.schema)


def test_a_column_that_the_catalog_numbered_otherwise_is_found_by_name() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_INT32))
    )
    table = changed(second, lambda one: column(one, "b").update(id=77))
    found = fit((first, second), table, 1)
    assert found.lacking is None
    assert column(found.schema.schema(), "b")["id"] == 77
    assert found.schema.value is not None and found.schema.value.field_ids == {
        "1": first.value.field_ids["1"] if first.value else 0,
        "2": 77,
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table["fields"].pop(1), "no column value "),
        (lambda table: value(table).pop(3), "no column value.id "),
        (lambda table: column(table, "customer").update(id=500), "no column value.customer "),
        (
            lambda table: column(table, "customer").update(type="long"),
            "column value.customer of the table has type long",
        ),
        (
            lambda table: column(table, "address").update(type="string"),
            "column value.address of the table has type string",
        ),
        (
            lambda table: column(table, "customer").update(type={"type": "struct", "fields": []}),
            "has type struct",
        ),
        (lambda table: column(table, "lines")["type"].update({"element-id": 600}), "has another element"),
    ],
)
def test_a_table_that_lost_what_archives_were_written_with_halts(change: Any, why: str) -> None:
    history = versions(ORDER)
    with pytest.raises(Halt, match=why):
        fit(history, changed(history[0], change), 1)


@pytest.mark.parametrize("name", ["headers", "kafka"])
def test_required_columns_are_never_added(name: str) -> None:
    history = versions(ORDER)
    table = changed(
        history[0],
        lambda one: one.update(fields=[column for column in one["fields"] if column["name"] != name]),
    )
    with pytest.raises(Halt, match=f"no column {name}"):
        fit(history, table, 0)


@pytest.mark.parametrize("written", [1, 2])
def test_a_name_that_one_column_gives_to_another_finds_neither(written: int) -> None:
    history = versions(
        shop(("a", 1, F.TYPE_STRING)),
        shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_STRING)),
        shop(("b", 1, F.TYPE_STRING), ("c", 2, F.TYPE_STRING), ("a", 3, F.TYPE_STRING)),
    )
    found = fit(history, history[1].iceberg_json, written)
    assert found.schema is history[2]
    assert found.lacking is not None and json.loads(found.lacking) == history[2].schema()


def test_a_name_that_another_writer_gave_to_a_column_of_ours_halts() -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_INT32)), shop(("a", 1, F.TYPE_INT32), ("b", 2, F.TYPE_INT32))
    )
    table = changed(first, lambda one: column(one, "a").update(name="b"))
    with pytest.raises(Halt, match=r"column value\.b of the table \(field id 9\) has a name"):
        fit((first, second), table, 1)


@pytest.mark.parametrize("theirs", ["b", "B"])
def test_a_foreign_column_with_a_name_that_we_need_halts(theirs: str) -> None:
    first, second = versions(
        shop(("a", 1, F.TYPE_STRING)), shop(("a", 1, F.TYPE_STRING), ("b", 2, F.TYPE_INT32))
    )
    table = changed(first, lambda one: value(one).append(mine(900, theirs)))
    with pytest.raises(Halt, match=rf"column value.{theirs}.*(field id 900|has type string)"):
        fit((first, second), table, 1)


def test_other_columns_of_the_table_are_left_alone() -> None:
    history = versions(ORDER)
    table = changed(
        history[0],
        lambda one: one["fields"].append({"id": 999, "name": "mine", "required": False, "type": "string"}),
    )
    assert fit(history, table, 1) == Fit(history[0], None)
