"""`query`: values that cannot become Python values, and names that a query cannot distinguish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import archiver.query.duck
from archiver.config.topics import TopicArchiveSettings, TopicSettings
from archiver.query.columns import RESERVED
from archiver.query.duck import Limits, QueryTable, asked, table_names
from archiver.query.table_names import Named
from archiver.query.tables import query_tables
from archiver.runtime.errors import Halt, InvalidInput

LIMITS = Limits(256 * 2**20, 1)


def repeated_key(folder: Path) -> QueryTable:
    """A table of one row, whose map has the key `a` twice."""
    path = folder / "a.parquet"
    counts = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    pq.write_table(pa.table({"counts": counts}), path)
    kind = {
        "type": "map",
        "key-id": 2,
        "key": "string",
        "value-id": 3,
        "value": "int",
        "value-required": False,
    }
    schema = {"type": "struct", "fields": [{"id": 1, "name": "counts", "required": False, "type": kind}]}
    return QueryTable("n", "t", json.dumps(schema), (str(path),))


def test_a_map_with_a_repeated_key_is_an_invalid_input(tmp_path: Path) -> None:
    table = repeated_key(tmp_path)
    with (
        asked("SELECT counts FROM n.t", [table], LIMITS) as result,
        pytest.raises(InvalidInput, match=r"cannot be shown; cast it to text: .*'a'"),
    ):
        list(result.rows)
    with asked("SELECT counts::VARCHAR FROM n.t", [table], LIMITS) as result:
        assert list(result.rows) == [("{a=1, a=2}",)], "the way out that the message names"


def test_a_map_with_structs_as_keys_is_an_invalid_input() -> None:
    with (
        asked("SELECT MAP {{'a': 1}: 2}", [], LIMITS) as result,
        pytest.raises(InvalidInput, match="cannot be shown; cast it to text"),
    ):
        list(result.rows)


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ"])
def test_a_date_that_python_does_not_have_is_an_invalid_input(kind: str) -> None:
    with (
        asked(f"SELECT 'infinity'::{kind}", [], LIMITS) as result,
        pytest.raises(InvalidInput, match="cannot be shown; cast it to text"),
    ):
        list(result.rows)
    with asked(f"SELECT 'infinity'::{kind}::VARCHAR", [], LIMITS) as result:
        assert list(result.rows) == [("infinity",)]


def test_a_version_of_duckdb_whose_queries_cannot_be_checked_runs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archiver.query.duck, "named", lambda _: Named())
    with pytest.raises(Halt, match=r"queries of DuckDB .* cannot be checked"), asked("SELECT 1", [], LIMITS):
        pass


def never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("not needed for a name that is not unique")


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ([("lake", "shop.orders"), ("lake2", "shop.orders")], {"shop.orders"}),
        ([("lake", "shop.orders"), ("lake2", "shop.Orders")], {"shop.orders", "shop.Orders"}),
        ([("lake", "shop.orders"), ("lake", "shop.Orders")], {"shop.orders", "shop.Orders"}),
    ],
)
def test_tables_that_a_query_cannot_distinguish(tables: list[tuple[str, str]], named: set[str]) -> None:
    topics = [
        TopicSettings(
            name=f"topic-{number}",
            partitions=1,
            archive=TopicArchiveSettings(kind="iceberg", catalog=catalog, table=table),
        )
        for number, (catalog, table) in enumerate(tables)
    ]
    found, troubles = query_tables(topics, {"shop.orders"}, never, never, never)
    assert found == []
    assert set(troubles) == named
    for name, trouble in troubles.items():
        assert trouble.why.startswith(f"table {name} cannot be queried: several tables have that name")
        assert not trouble.gone


def test_names_have_neither_quotes_nor_aliases() -> None:
    sql = 'SELECT 1 FROM shop.orders o, "Shop"."Order s" AS "x y", shop.clicks'
    assert table_names(sql) == {"shop.orders", "Shop.Order s", "shop.clicks"}


def test_only_named_tables_are_opened_if_others_are_listed() -> None:
    topics = [
        TopicSettings(
            name=name,
            partitions=1,
            archive=TopicArchiveSettings(kind="iceberg", catalog="lake", table=f"shop.{name}"),
        )
        for name in ("clicks", "orders", "visits")
    ]

    def refuses(_: str) -> NoReturn:
        raise InvalidInput("the log cannot be read")

    def opened(*names: str, listed_max: int | None) -> set[str]:
        _, troubles = query_tables(topics, names, never, refuses, never, listed_max=listed_max)
        return set(troubles)

    assert opened("shop.orders", listed_max=2) == {"shop.orders"}
    assert opened("shop.orders", "shop.absent", listed_max=2) == {"shop.orders"}
    assert opened("shop.absent", listed_max=2) == set()
    assert opened(listed_max=2) == {"shop.clicks", "shop.orders"}
    assert opened(listed_max=0) == set()
    assert opened("shop.absent", listed_max=None) == {"shop.clicks", "shop.orders", "shop.visits"}


# --- Names
def struct(number: int, name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": {"type": "struct", "fields": [*fields]}}


def string(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": "string"}


def empty_table(namespace: str, name: str) -> QueryTable:
    """A table whose fields are all inside of structs."""
    value = struct(
        1, "value", string(2, "carrier"), string(3, "Tail No"), struct(4, "to", string(5, "airport"))
    )
    fields = [value, struct(6, "key", string(7, "id")), struct(8, "order", string(9, "id"))]
    return QueryTable(namespace, name, json.dumps({"type": "struct", "fields": fields}))


TABLES = [empty_table("nyc", "flights"), empty_table("default", "Air lines")]


def why(sql: str) -> str:
    with pytest.raises(InvalidInput) as refused, asked(sql, TABLES, LIMITS):
        pass
    return str(refused.value)


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("carrier", "value.carrier"),
        ("f.CARRIER", "value.carrier"),
        ('"tail no"', 'value."Tail No"'),
        ("airport", "value.to.airport"),
        ("id", 'key.id or "order".id'),
    ],
)
def test_an_unknown_column_that_is_a_field_is_answered_with_the_field(column: str, fields: str) -> None:
    assert why(f"SELECT {column} FROM nyc.flights AS f").endswith(f"; it is a field: write {fields}")
    with asked(f"SELECT {fields.replace(' or ', ', ')} FROM nyc.flights", TABLES, LIMITS) as result:
        assert list(result.rows) == []


def test_an_unknown_column_that_is_no_field_has_no_hint() -> None:
    for column in ("nothing", '"car""rier"', '"carrier"" not found in FROM clause!"'):
        text = why(f"SELECT {column} FROM nyc.flights")
        assert "it is a field" not in text, text
        assert "Candidate bindings" in text


@pytest.mark.parametrize(
    ("table", "similar"),
    [
        ("nope", None),
        ("flihgts", "nyc.flights"),
        ("nyc.flihgts", "nyc.flights"),
        ('"default"."Airlines"', '"default"."Air lines"'),
        ("nope.nope", None),
    ],
)
def test_an_unknown_table_is_not_answered_with_a_table_of_the_system(table: str, similar: str | None) -> None:
    text = why(f"SELECT * FROM {table}")
    assert "Did you mean" not in text
    assert text.partition("; a similar one is ")[2] == (similar or ""), text
    assert text[-1] not in "?!.", "more may follow"


def test_show_tables_lists_them_as_a_query_names_them() -> None:
    for sql in ("SHOW TABLES", " show\n tables ;\n"):
        with asked(sql, TABLES, LIMITS) as result:
            found = list(result.rows)
            assert result.columns == (("name", "VARCHAR"),)
        assert found == [('"default"."Air lines"',), ("nyc.flights",)]
    for (name,) in found:
        assert table_names(f"FROM {name}")
        with asked(f"FROM {name}", TABLES, LIMITS) as result:
            assert list(result.rows) == []
    with asked("SHOW TABLES", [], LIMITS) as result:
        assert list(result.rows) == []


def test_reserved_words_are_those_of_duckdb() -> None:
    words = (
        "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    )
    with asked(words, [], LIMITS) as result:
        assert {word for (word,) in result.rows} == RESERVED
