"""The rules of evolution, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.evolution.evolve import WHATS
from archiver.schema.evolution.field_history import ids_of
from archiver.schema.evolution.state import Decision, TopicSchema, arrow_schema, decide
from archiver.schema.protobuf.descriptors import Source
from tests.support.schema.protos import TIMESTAMP, F, field, file_of, map_field, source

Spec = tuple[Any, ...]
"""(name, number, type) and, for a message, its name; then `repeated`, `optional`, `oneof`, or a map's key
type."""


def sale(*fields: Spec, **messages: tuple[Spec, ...]) -> Source:
    """`shop.Sale` with these fields, and messages that it may hold."""
    file = file_of()
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NONE", "PAID")):
        status.value.add(name=name, number=number)
    for name, specs in {**messages, "Sale": fields}.items():
        _fill(file.message_type.add(name=name), specs)
    return source(file, "Sale")


def _fill(message: Any, specs: tuple[Spec, ...]) -> None:
    if any("oneof" in spec[3:] for spec in specs):
        message.oneof_decl.add(name="choice")
    for name, number, kind, *more in specs:
        named = next((str(one) for one in more if str(one)[:1].isupper() or str(one)[:1] == "."), "")
        type_name = named if named.startswith(".") or not named else f".shop.{named}"
        if kind == F.TYPE_ENUM:
            type_name = ".shop.Status"
        keys = [one for one in more if isinstance(one, int)]
        if keys:
            map_field(message, f"shop.{message.name}", name, number, keys[0], kind, type_name)
            continue
        oneof = 0 if "oneof" in more else None
        field(
            message,
            name,
            number,
            kind,
            type_name=type_name,
            repeated="repeated" in more,
            optional="optional" in more,
            oneof=oneof,
        )


def steps(*sources: Source | None, ids_above: int = 0) -> list[Decision]:
    found: list[Decision] = []
    history: tuple[TopicSchema, ...] = ()
    for one in sources:
        decision = decide("t", history, None, one, ids_above)
        found.append(decision)
        if not history or decision.schema is not history[-1]:
            history = (*history, decision.schema)
    return found


def reported(decision: Decision) -> list[tuple[str, str, str, str, bool]]:
    return [
        (one.what, one.column.removeprefix("value."), one.was, one.now, one.compatible)
        for one in decision.changes
    ]


def columns(decision: Decision) -> dict[str, Any]:
    """Type by name of every column of the value."""
    return {
        one["name"]: one["type"]
        for one in decision.schema.schema()["fields"][1]["type"]["fields"]
        if not one["name"].startswith("__")
    }


def field_id(decision: Decision, path: str) -> int:
    assert decision.schema.value is not None
    return decision.schema.value.field_ids[path]


INT32, INT64, SINT32, UINT32, FLOAT, DOUBLE = (
    F.TYPE_INT32,
    F.TYPE_INT64,
    F.TYPE_SINT32,
    F.TYPE_UINT32,
    F.TYPE_FLOAT,
    F.TYPE_DOUBLE,
)
STRING, BYTES, MESSAGE, ENUM, UINT64 = F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE, F.TYPE_ENUM, F.TYPE_UINT64
SIDE = (("x", 1, INT32),)
OTHER = (("x", 1, STRING), ("y", 2, INT32))


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (("a", 1, INT32), ("a", 1, INT64), [("widened", "a", "int", "long", True)]),
        (("a", 1, INT32), ("a", 1, UINT32), [("widened", "a", "int", "long", True)]),
        (("a", 1, FLOAT), ("a", 1, DOUBLE), [("widened", "a", "float", "double", False)]),
        (("a", 1, INT32), ("a", 1, F.TYPE_SINT64), [("widened", "a", "int", "long", False)]),
        (
            ("a", 1, INT32, "repeated"),
            ("a", 1, INT64, "repeated"),
            [("widened", "a", "list<int>", "list<long>", True)],
        ),
        (
            ("a", 1, INT32, STRING),
            ("a", 1, INT64, STRING),
            [("widened", "a", "map<string,int>", "map<string,long>", True)],
        ),
        (("a", 1, INT64), ("a", 1, INT32), [("unchanged_column", "a", "int64", "int32", True)]),
        (("a", 1, INT32), ("a", 1, SINT32), [("unchanged_column", "a", "int32", "sint32", False)]),
        (("a", 1, STRING), ("a", 1, ENUM), [("unchanged_column", "a", "string", "enum", False)]),
        (("a", 1, INT32), ("a", 1, STRING), [("new_column", "a_v2", "int", "string", False)]),
        (("a", 1, STRING), ("a", 1, BYTES), [("new_column", "a_v2", "string", "binary", False)]),
        (("a", 1, INT64), ("a", 1, UINT64), [("new_column", "a_v2", "long", "decimal(20,0)", False)]),
        (("a", 1, INT32), ("a", 1, INT32, "repeated"), [("new_column", "a_v2", "int", "list<int>", False)]),
        (
            ("a", 1, INT32, INT32),
            ("a", 1, INT32, INT64),
            [("new_column", "a_v2", "map<int,int>", "map<long,int>", False)],
        ),
        (
            ("a", 1, INT32, INT64),
            ("a", 1, INT32, INT32),
            [("new_column", "a_v2", "map<long,int>", "map<int,int>", False)],
        ),
        (
            ("a", 1, INT32, INT32),
            ("a", 1, INT32, SINT32),
            [("unchanged_column", "a", "map<int32,int32>", "map<sint32,int32>", False)],
        ),
        (
            ("a", 1, STRING, STRING),
            ("a", 1, BYTES, STRING),
            [("new_column", "a_v2", "map<string,string>", "map<string,binary>", False)],
        ),
        (("a", 1, MESSAGE, "Side"), ("a", 1, STRING), [("new_column", "a_v2", "struct", "string", False)]),
        (
            ("a", 1, MESSAGE, "Side"),
            ("a", 1, MESSAGE, TIMESTAMP),
            [("new_column", "a_v2", "struct", "timestamptz", False)],
        ),
        (
            ("a", 1, INT32),
            ("a", 1, INT32, "optional"),
            [("unchanged_column", "a", "no presence", "presence", True)],
        ),
        (
            ("a", 1, INT32),
            ("a", 1, INT32, "oneof"),
            [
                (
                    "unchanged_column",
                    "a",
                    "no presence, in no oneof",
                    "presence, in the oneof of field 1",
                    True,
                ),
                ("unchanged_column", "other", "in no oneof", "in the oneof of field 1", True),
            ],
        ),
        (("a", 1, INT32), ("b", 1, INT32), [("renamed", "b", "a", "b", True)]),
        (
            ("a", 1, INT32),
            ("B", 1, INT64),
            [("renamed", "B", "a", "B", True), ("widened", "B", "int", "long", True)],
        ),
        (
            ("a", 1, INT32),
            ("a", 2, INT32),
            [("added", "a_v2", "", "int", False), ("dropped", "a", "int", "", True)],
        ),
        (
            ("a", 1, INT32),
            ("b", 2, INT32),
            [("added", "b", "", "int", True), ("dropped", "a", "int", "", True)],
        ),
        (("a", 1, INT32), ("b", 1, STRING), [("new_column", "b", "int", "string", False)]),
    ],
)
def test_one_field_changes(was: Spec, now: Spec, expected: list[tuple[str, str, str, str, bool]]) -> None:
    rest: tuple[Spec, ...] = (("keep", 9, STRING),)
    if "oneof" in now:
        rest = (*rest, ("other", 8, INT32, "oneof"))
    first, second = steps(sale(was, *rest, Side=SIDE), sale(now, *rest, Side=SIDE))
    assert reported(second) == expected
    assert second.schema.version == 2
    assert all(one.what in WHATS and (one.compatible or one.why) for one in second.changes)
    assert "keep" in columns(second) and set(columns(first)) - {"a"} <= set(columns(second))


def test_an_incompatible_type_and_back() -> None:
    price = [sale(("price", 1, kind)) for kind in (INT32, STRING, INT64, STRING, F.TYPE_BOOL, INT32)]
    found = steps(*price)
    assert [reported(one)[0][:2] for one in found[1:]] == [
        ("new_column", "price_v2"),
        ("restored", "price"),
        ("restored", "price_v2"),
        ("new_column", "price_v3"),
        ("restored", "price"),
    ]
    assert columns(found[-1]) == {"price": "long", "price_v2": "string", "price_v3": "boolean"}
    assert field_id(found[0], "1") == field_id(found[2], "1") == field_id(found[5], "1")
    why = found[1].changes[0].why
    assert "field price = 1 of message shop.Sale was int32 and is string" in why and "value.price;" in why


def test_of_several_former_columns_the_newest_that_fits_is_taken() -> None:
    kinds = (INT32, STRING, DOUBLE, STRING, ENUM)
    found = steps(*(sale(("p", 1, kind)) for kind in kinds))
    assert field_id(found[4], "1") == field_id(found[1], "1")
    # int, then a new column double, then int again: int fits only the first column.
    assert field_id(steps(*(sale(("p", 1, kind)) for kind in (INT32, DOUBLE, INT64)))[2], "1") == field_id(
        found[0], "1"
    )


def test_a_field_that_comes_back() -> None:
    first, without, same, again, renamed = steps(
        sale(("a", 1, INT32), ("b", 2, STRING)),
        sale(("b", 2, STRING)),
        sale(("a", 1, INT32), ("b", 2, STRING)),
        sale(("b", 2, STRING)),
        sale(("c", 1, INT64), ("b", 2, STRING)),
    )
    assert reported(without) == reported(again) == [("dropped", "a", "int", "", True)]
    assert reported(same) == [("restored", "a", "", "int", True)]
    assert reported(renamed) == [
        ("restored", "c", "", "long", True),
        ("renamed", "c", "a", "c", True),
        ("widened", "c", "int", "long", True),
    ]
    assert field_id(first, "1") == field_id(same, "1") == field_id(renamed, "1")


def test_a_dropped_column_keeps_its_name() -> None:
    found = steps(
        sale(("a", 1, INT32), ("z", 9, INT32)), sale(("z", 9, INT32)), sale(("A", 2, INT32), ("z", 9, INT32))
    )
    assert reported(found[2]) == [("added", "A_v2", "", "int", True)]


def test_names_are_kept_while_the_field_asks_for_the_same() -> None:
    taken = sale(("a", 1, INT32), ("b", 2, INT32), ("A", 3, INT32))
    free = sale(("c", 1, INT32), ("b", 2, INT32), ("A", 3, INT32))
    first, second = steps(taken, free)
    assert set(columns(first)) == {"a", "b", "A_v2"}
    assert reported(second) == [("renamed", "c", "a", "c", True)]
    assert set(columns(second)) == {"c", "b", "A_v2"}


def test_two_fields_swap_their_names() -> None:
    first, second = steps(sale(("a", 1, INT32), ("b", 2, INT32)), sale(("b", 1, INT32), ("a", 2, INT32)))
    assert reported(second) == [("renamed", "b", "a", "b", False), ("renamed", "a", "b", "a", False)]
    assert "field b of message shop.Sale had number 2 and has number 1" in second.changes[0].why
    assert (field_id(second, "1"), field_id(second, "2")) == (field_id(first, "1"), field_id(first, "2"))


def test_numbers_that_move_on_by_one_are_no_renaming() -> None:
    second = steps(
        sale(("a", 1, INT32), ("b", 2, INT32)), sale(("a", 1, INT32), ("new", 2, INT32), ("b", 3, INT32))
    )[1]
    assert reported(second) == [("renamed", "new", "b", "new", True), ("added", "b", "", "int", False)]
    assert second.changes[1].why.endswith("what the former number brings is field new there")


def test_a_number_of_an_enum_that_gets_another_name() -> None:
    def enum(**numbers: int) -> Source:
        file = file_of()
        one = file.enum_type.add(name="E")
        for name, number in {"NONE": 0, **numbers}.items():
            one.value.add(name=name, number=number)
        field(file.message_type.add(name="Sale"), "e", 1, F.TYPE_ENUM, type_name=".shop.E")
        return source(file, "Sale")

    assert [one.compatible for one in steps(enum(A=1, B=2), enum(B=1, A=2))[1].changes] == [False]
    assert [one.compatible for one in steps(enum(A=1), enum(A=1, B=2))[1].changes] == [True]


def test_a_name_that_is_taken_gets_a_number() -> None:
    found = steps(
        sale(("a", 1, INT32), ("b", 2, INT32)),
        sale(("b", 2, INT32)),
        sale(("a", 2, INT32)),
    )
    assert reported(found[2]) == [("renamed", "a_v2", "b", "a_v2", True)]


def test_configured_names() -> None:
    plain = sale(("a", 1, INT32), ("s", 2, MESSAGE, "Side"), Side=SIDE)
    named = replace(plain, columns=(("a", "amount"), ("s.x", "inner")))
    _, second, third = steps(plain, named, replace(plain, columns=(("a", "amount"),)))
    assert reported(second) == [
        ("renamed", "amount", "a", "amount", True),
        ("renamed", "s.inner", "x", "inner", True),
    ]
    assert reported(third) == [("renamed", "s.x", "inner", "x", True)]
    assert (
        steps(named, replace(named, columns=(*named.columns, ("s", "s"))))[1].changes == ()
    )  # It asks for the name that it already has.
    renamed = replace(sale(("z", 1, INT32), ("s", 2, MESSAGE, "Side"), Side=SIDE), columns=(("z", "amount"),))
    assert reported(steps(plain, replace(plain, columns=(("a", "amount"),)), renamed)[2]) == [
        ("unchanged_column", "amount", "named a", "named z", True)
    ]


def test_a_configured_name_of_a_field_that_is_gone_stops_nothing() -> None:
    both = replace(sale(("a", 1, INT32), ("b", 2, INT32)), columns=(("a", "amount"),))
    without = replace(sale(("b", 2, INT32)), columns=(("a", "amount"),))
    first, second, third = steps(both, without, both)
    assert reported(second) == [("dropped", "amount", "int", "", True)]
    assert reported(third) == [("restored", "amount", "", "int", True)]
    assert field_id(first, "1") == field_id(third, "1")
    with pytest.raises(ConfigInvalid, match=r"topic t, value: .*has no field 'a' to rename"):
        steps(without)
    with pytest.raises(ConfigInvalid, match="has no field 'c' to rename"):
        steps(both, replace(without, columns=(*without.columns, ("c", "d"))))


@pytest.mark.parametrize("more", [(), ("repeated",), (STRING,)])
def test_inside_structs_lists_and_maps(more: tuple[Any, ...]) -> None:
    first, second, third, fourth = steps(
        sale(("s", 1, MESSAGE, "Side", *more), Side=SIDE),
        sale(("s", 1, MESSAGE, "Side", *more), Side=OTHER),
        sale(("s", 1, MESSAGE, "Other", *more), Side=SIDE, Other=SIDE),
        sale(("s", 1, MESSAGE, "Other", *more), Side=SIDE, Other=(("y", 2, INT64), ("z", 3, INT32))),
    )
    assert reported(second) == [
        ("new_column", "s.x_v2", "int", "string", False),
        ("added", "s.y", "", "int", True),
    ]
    assert reported(third) == [
        ("restored", "s.x", "string", "int", False),
        ("dropped", "s.y", "int", "", True),
    ]
    assert reported(fourth) == [
        ("restored", "s.y", "", "long", True),
        ("widened", "s.y", "int", "long", True),
        ("added", "s.z", "", "int", True),
        ("dropped", "s.x", "int", "", True),
    ]
    assert [one.path for one in fourth.changes] == [
        f"1/{'2/' if more == (STRING,) else ''}{number}" for number in (2, 2, 3, 1)
    ]
    assert field_id(first, "1") == field_id(fourth, "1")


def test_a_map_key_is_never_taken_for_a_field_of_a_message() -> None:
    first, second = steps(
        sale(("m", 3, STRING, STRING)), sale(("m", 3, MESSAGE, "Side"), Side=(("x", 1, STRING),))
    )
    assert reported(second) == [("new_column", "m_v2", "map<string,string>", "struct", False)]
    assert not {field_id(first, "3/1"), field_id(first, "3/2")} & {
        field_id(second, "3"),
        field_id(second, "3/1"),
    }


def test_recursion_depth_changes_columns() -> None:
    node = sale(("name", 1, STRING), ("next", 2, MESSAGE, "Sale"))
    shallow, deep, back = steps(
        replace(node, recursion_depth=0), replace(node, recursion_depth=1), replace(node, recursion_depth=0)
    )
    assert reported(deep) == [("new_column", "next_v2", "binary", "struct", False)]
    assert reported(back) == [("restored", "next", "struct", "binary", False)]
    assert field_id(shallow, "2") == field_id(back, "2") != field_id(deep, "2")


def test_a_side_without_a_schema_gets_one_and_loses_it() -> None:
    none, some, gone, again = steps(None, sale(("a", 1, INT32)), None, sale(("b", 1, INT32)))
    assert reported(some) == [("message", "value", "", "shop.Sale", True), ("added", "a", "", "int", True)]
    assert reported(gone) == [("message", "value", "shop.Sale", "", True), ("dropped", "a", "int", "", True)]
    assert [one[0] for one in reported(again)] == ["message", "restored", "renamed"]
    names = [
        [one.name for one in arrow_schema(decision.schema).field("value").type]
        for decision in (none, some, gone, again)
    ]
    assert names == [
        ["__raw__"],
        ["__raw__", "__prefix__", "__err__", "a", "__unrecognized__"],
        ["__raw__"],
        ["__raw__", "__prefix__", "__err__", "b", "__unrecognized__"],
    ]


def test_keys_change_as_values_do_and_share_no_ids() -> None:
    known = decide("t", (), sale(("a", 1, INT32)), sale(("a", 1, INT32))).schema
    decision = decide("t", (known,), sale(("a", 1, STRING)), sale(("a", 1, STRING)))
    assert [(one.side, one.column) for one in decision.changes] == [
        ("key", "key.a_v2"),
        ("value", "value.a_v2"),
    ]
    ids = list(ids_of(decision.schema.schema()))
    assert len(ids) == len(set(ids))


def test_new_ids_are_above_everything() -> None:
    plain, more = sale(("a", 1, INT32)), sale(("a", 1, INT32), ("b", 2, INT32))
    assert field_id(steps(plain, more, ids_above=5_000)[1], "2") == 5_001
    assert steps(plain, ids_above=5_000)[0].schema == steps(plain)[0].schema
