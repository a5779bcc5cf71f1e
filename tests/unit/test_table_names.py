"""The names of the tables in a query: found by parsing alone, in bounded time, for any name."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from archiver.query.duck import table_names
from archiver.query.table_names import named
from archiver.runtime.errors import InvalidInput
from tests.support.growth import assert_linear


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("FROM shop.a JOIN shop.b USING (id)", "shop.a shop.b"),
        ("FROM shop.a NATURAL JOIN shop.b", "shop.a shop.b"),
        ("FROM shop.a SEMI JOIN shop.b USING (id)", "shop.a shop.b"),
        ("FROM shop.a ASOF JOIN shop.b USING (id)", "shop.a shop.b"),
        ("FROM shop.a POSITIONAL JOIN shop.b, shop.c", "shop.a shop.b shop.c"),
        ("SELECT COLUMNS('^i') FROM shop.a", "shop.a"),
        ("SELECT max(COLUMNS(lambda c: c LIKE 'i%')) FROM shop.a", "shop.a"),
        ("UNPIVOT shop.a ON x, y INTO NAME n VALUE v", "shop.a"),
        ("FROM shop.a UNPIVOT (v FOR n IN (x, y))", "shop.a"),
        ("PIVOT shop.a ON x IN (1, 2) USING sum(y)", "shop.a"),
        ("FROM (FROM shop.a JOIN shop.b USING (id)) PIVOT (sum(y) FOR x IN (1, 2))", "shop.a shop.b"),
        ("SUMMARIZE (FROM shop.a JOIN shop.b USING (id))", "shop.a shop.b"),
        ("DESCRIBE shop.a", "shop.a"),
        ("SHOW shop.a", "shop.a"),
        ("FROM shop.a UNION BY NAME FROM shop.b", "shop.a shop.b"),
        ("SELECT (SELECT max(id) FROM shop.a) FROM shop.b WHERE id IN (FROM shop.c)", "shop.a shop.b shop.c"),
        ("FROM shop.a AT (VERSION => 1)", "shop.a"),
        ("SELECT 1 FROM shop.a TABLESAMPLE 10%", "shop.a"),
        ("FROM query_table(['shop.a', '\"shop\".\"b\"'])", "shop.a shop.b"),
        ('FROM query_table(shop.a), query_table([shop.b, shop."c"], true)', "shop.a shop.b shop.c"),
        ("FROM query_table('shop.from'), query_table('shop.select')", "shop.from shop.select"),
        ("FROM \"Query\"('FROM shop.a JOIN shop.b USING (id)')", "shop.a shop.b"),
        ("FROM query('FROM query(''FROM shop.a'')')", "shop.a"),
        ("SELECT 'FROM shop.b' FROM shop.a -- FROM shop.c", "shop.a"),
        ("SHOW TABLES FROM shop", ""),
        ("FROM information_schema.tables, duckdb_views, system.pg_catalog.pg_class", ""),
        ("SELECT 1", ""),
    ],
)
def test_the_statements_that_need_columns_to_be_bound(sql: str, names: str) -> None:
    assert table_names(sql) == set(names.split()), sql


def test_a_common_table_expression_is_no_table() -> None:
    assert table_names("WITH w AS (FROM shop.a JOIN shop.b USING (id)) FROM W JOIN w x USING (id)") == {
        "shop.a",
        "shop.b",
    }
    recursive = (
        "WITH RECURSIVE w AS (SELECT 1 AS x UNION ALL FROM w JOIN shop.a USING (x)) "
        "FROM (WITH v AS (FROM w) FROM v)"
    )
    assert table_names(recursive) == {"shop.a"}
    # A name with a namespace is a table, also if its last part is that of an expression.
    assert table_names("WITH orders AS (FROM shop.orders) FROM orders") == {"shop.orders"}
    assert table_names("WITH w AS (SELECT 1) FROM other") == {"other"}


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ('shop.o"r', '"shop"."o""r"'),
        ("shop.a b", 'SHOP."a b"'),
        ("a.b.c", '"a.b".c'),
        ("a.b.c.d", "a.b.c.d"),
        ('shop."},{"type":"BASE_TABLE', '"shop"."""},{""type"":""BASE_TABLE"'),
        ("shop.\\u0041\\", '"shop"."\\u0041\\"'),
        ("shop.\n\t\x7f", '"shop"."\n\t\x7f"'),
        ("shop.größe\N{GRINNING FACE}", '"shop"."größe\N{GRINNING FACE}"'),
        ("shop.a\0b", '"shop"."a\0b"'),
        ("shop.SELECT", 'shop."SELECT"'),
    ],
)
def test_any_name(name: str, sql: str) -> None:
    found = table_names(f"SELECT 1 FROM {sql} JOIN shop.other USING (id)")
    assert {one.lower() for one in found} == {name.lower(), "shop.other"}


COPY = "COPY (SELECT 1) TO '/x' (USE_TMP_FILE false)"


@pytest.mark.parametrize(
    "sql",
    [
        f"WITH w AS ({COPY}) FROM w",
        f"(WITH w AS ({COPY}) FROM w)",
        f"WITH v AS (SELECT 1), w AS MATERIALIZED ({COPY}) SELECT 1 UNION SELECT 2",
        f"WITH w AS ({COPY}) VALUES (1)",
        f"WITH w AS ({COPY}) PIVOT (SELECT 1 AS x) ON x IN (1) USING count(*)",
        f"DESCRIBE (WITH w AS ({COPY}) FROM w)",
        f"FROM shop.a WHERE x IN (WITH w AS ({COPY}) FROM w)",
        f"FROM query($${COPY.join(('WITH w AS (', ') FROM w'))}$$)",
        "WITH w AS (INSERT INTO shop.a VALUES (1) RETURNING *) FROM w",
        "WITH w AS (UPDATE shop.a SET x = 1 RETURNING *) FROM w",
        "WITH w AS (DELETE FROM shop.a RETURNING *) FROM w",
        "FROM json_execute_serialized_sql('')",
        "FROM system.main.\"JSON_Execute_Serialized_SQL\"('')",
        "FROM query($$FROM json_execute_serialized_sql('')$$)",
        "SELECT (FROM query(E'FROM json_execute_serialized\\x5fsql(NULL)'))",
        "FROM query_table($$\"a\", json_execute_serialized_sql('')$$)",
    ],
)
def test_a_select_that_changes_something_is_refused(sql: str) -> None:
    with pytest.raises(InvalidInput, match="a query changes nothing: a WITH clause has only SELECT"):
        table_names(sql)


@pytest.mark.parametrize(
    "argument",
    [
        "'FROM json_execute' || '_serialized_sql(NULL)'",
        "\"FROM json_execute_serialized_sql('')\"",
        "upper('FROM a')",
        "'FROM a'::VARCHAR",
        "$1",
        "query := getvariable('x')",
        "(SELECT 'FROM a')",
        "['FROM a']",
    ],
)
def test_a_query_that_is_computed_is_refused(argument: str) -> None:
    with pytest.raises(InvalidInput, match="accepts only a text, not an expression"):
        table_names(f"FROM shop.a, query({argument})")


def test_a_name_in_a_text_is_not_read_as_sql() -> None:
    sql = "FROM query_table('select.a b'), query_table(['shop.from'])"
    assert table_names(sql) == {"select.a b", "shop.from"}


@pytest.mark.parametrize("text", ["DROP TABLE t", "SELECT (", "PIVOT shop.a ON x"])
def test_a_text_that_is_no_select_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="the query cannot be parsed: "):
        table_names(f"FROM query('{text}')")


def test_text_that_looks_like_the_tree_is_only_text() -> None:
    node = '"type":"BASE_TABLE","qualified_name":{"path":["shop","b"]}'
    assert table_names(
        f"""SELECT '{{{node}}}', '"{node}', '\\' AS "{{{node.replace('"', '""')}" FROM shop.a"""
    ) == {"shop.a"}


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT shop.a ON x USING sum(y)",
        "WITH w AS (PIVOT shop.a ON x USING sum(y)) FROM w",
        "DESCRIBE (PIVOT shop.a ON x USING sum(y))",
    ],
)
def test_a_pivot_without_values_says_how_to_write_it(sql: str) -> None:
    with pytest.raises(InvalidInput, match=r"a PIVOT needs its values: PIVOT … ON column IN \(value, …\)"):
        table_names(sql)


def test_only_one_select_is_accepted() -> None:
    several = ("SELECT 1; SELECT 2", "SELECT 1; PIVOT shop.a ON x")
    assert table_names("SELECT 1 FROM shop.a;;") == {"shop.a"}
    for sql in (*several, "SELECT (", "", "DROP TABLE t", "SELECT '\ud800'"):
        with pytest.raises(InvalidInput):
            table_names(sql)


def test_no_file_and_no_address_is_opened(tmp_path: Path) -> None:
    sql = "FROM shop.a JOIN {} USING (id)"
    (tmp_path / "a.csv").write_text("id\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for place in (f"{tmp_path}/a.csv", f"http://127.0.0.1:{server.getsockname()[1]}/a.csv"):
            assert table_names(sql.format(f"read_csv('{place}')")) == {"shop.a"}
            assert table_names(sql.format(f"'{place}'")) == {"shop.a", place}
            assert table_names(f"FROM query('FROM read_csv(''{place}'')')") == set()
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("part", "end"),
    [
        ('{"type":"BASE_TABLE","sample":{},"qualified_name":{"path":["shop","a"]}},', ""),
        ('{"type":"BASE_TABLE","qualified_name":{"path":["shop",', "]}}"),
        ('{"type":"JOIN","left":', "}"),
        ('{"function_name":"query","arguments":[{"kind":"STRING","text":"a"}]},', ""),
        ('{"text":"\\""},', ""),
    ],
)
def test_the_time_grows_with_the_tree(part: str, end: str) -> None:
    def tree(length: int) -> str:
        count = length // len(part + end)
        return f'{{"statements":[{part * count}{end * count}]}}'

    assert_linear(named, tree)


def test_deep_and_wide_queries_have_their_names() -> None:
    assert table_names("FROM " + "(FROM " * 5000 + "shop.a" + ")" * 5000) == {"shop.a"}
    assert table_names("SELECT " + "1 + " * 900 + "1 FROM shop.a") == {"shop.a"}
    # Bound, it would be read as often as it is named: 2 to the power of 40 times.
    doubled = ", ".join(f"w{n} AS (FROM w{n - 1} a, w{n - 1} b)" for n in range(1, 41))
    assert table_names(f"WITH w0 AS (FROM shop.a), {doubled} FROM w40") == {"shop.a"}
    with pytest.raises(InvalidInput, match="cannot be parsed"):
        table_names("SELECT " + "(" * 30_000 + "1" + ")" * 30_000)


def test_queries_in_queries_are_bounded() -> None:
    sql = "FROM shop.a"
    for number in range(150):
        sql = f"FROM query($q{number}${sql}$q{number}$)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(InvalidInput, match="more than 99 queries as texts"):
        table_names(sql)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 20
