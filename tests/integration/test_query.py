"""`query`: SQL over exactly the live rows of the tables, and nothing beyond them."""

from __future__ import annotations

import base64
import builtins
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, StringType

from archiver.query import duck
from archiver.query.columns import columns_of
from archiver.query.duck import QueryTable
from archiver.query.values import faithful
from archiver.runtime.errors import Halt
from archiver.schema.columns import arrow_schema_of
from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import Driver, catalog_table
from tests.support.catalog.foreign_rows import hide, rewrite
from tests.support.process.terminal import Terminal
from tests.support.schema.orders import order

MEMORY = ("--memory", "200MiB", "--threads", "1")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "a folder [1] it's")


@pytest.fixture
def archived(deployment: Deployment) -> Iterator[Driver]:
    """Two rounds of two topics; one topic has no table yet."""
    with Driver(deployment) as driver:
        for number in range(2):
            driver.send("orders", [order(number * 4 + n, lines=n) for n in range(4)], number)
            driver.send("clicks", [f"click {n}".encode() for n in range(3)], 0)
            driver.archive(("orders", None))
            if number:
                driver.archive(("clicks", None))
        yield driver


def ask(deployment: Deployment, sql: str, *options: str) -> Done:
    return deployment.cli("query", sql, "--output", "json", *MEMORY, *options)


def rows(deployment: Deployment, sql: str, *options: str) -> list[dict[str, Any]]:
    done = ask(deployment, sql, *options)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = done.json()["rows"]
    return found


def test_what_the_tables_hold(deployment: Deployment, archived: Driver) -> None:
    found = rows(
        deployment, "SELECT kafka.partition AS p, kafka.offset AS o, value.id FROM shop.orders ORDER BY ALL"
    )
    assert [(row["p"], row["o"], row["id"]) for row in found] == [(n // 4, n % 4, n) for n in range(8)]
    joined = "SELECT count(*) AS n FROM shop.orders, Shop.CLICKS"
    assert rows(deployment, joined) == [{"n": 8 * 6}]
    text = deployment.cli("query", "SELECT max(kafka.offset) AS newest, 'x' AS x FROM shop.orders", *MEMORY)
    assert (text.code, text.err) == (0, "")
    assert [word in text.out for word in ("1 row", "newest", "│      3 │ x")] == [True] * 3


def test_exactly_the_live_files_of_the_current_snapshot(deployment: Deployment, archived: Driver) -> None:
    count = (
        "SELECT count(*) AS n, count(DISTINCT kafka.offset) AS d, min(kafka.offset) AS low FROM shop.clicks"
    )
    stray = next(deployment.data.rglob("*.parquet")).parent / "stray.parquet"
    assert rows(deployment, count) == [{"n": 6, "d": 6, "low": 0}]
    rewrite(deployment, "replace")
    assert rows(deployment, count) == [{"n": 6, "d": 6, "low": 0}]
    rewrite(deployment, "overwrite", lambda offset: offset > 1)
    stray.write_bytes(b"not Parquet")
    assert rows(deployment, count) == [{"n": 4, "d": 4, "low": 2}]


def test_a_table_with_delete_files_is_refused_and_no_other(deployment: Deployment, archived: Driver) -> None:
    hide(deployment, lambda offset: offset == 1)
    refused = ask(deployment, "SELECT count(*) FROM shop.clicks")
    assert refused.code == 3
    assert "table shop.clicks cannot be queried: it has delete files" in refused.err
    assert rows(deployment, "SELECT count(*) AS n FROM shop.orders") == [{"n": 8}]


def test_columns_that_came_and_went(deployment: Deployment, archived: Driver) -> None:
    """A file from before a column reads null there, also inside of a message; a dropped column is not shown."""
    with (
        catalog_table(deployment, "shop.orders") as table,
        table.update_schema(allow_incompatible_changes=True) as change,
    ):
        change.add_column("note", StringType())
        change.add_column(("value", "weight"), LongType())
        change.add_column(("value", "lines", "colour"), StringType())
        change.delete_column("key")
    found = rows(deployment, "SELECT * FROM shop.orders WHERE value.id = 1")
    assert list(found[0]) == ["value", "headers", "kafka", "note"]
    assert (found[0]["note"], found[0]["value"]["weight"], found[0]["value"]["lines"][0]["colour"]) == (
        None,
        None,
        None,
    )
    assert found[0]["value"]["lines"][0]["sku"] == "sku-0"


def test_columns_that_were_renamed_or_took_a_former_name(deployment: Deployment, archived: Driver) -> None:
    """Older files keep their meaning, with any column names. What `tables` prints for DuckDB gives the same."""
    (before,) = deployment.cli("tables", "--topic", "orders", "--output", "json").json()["tables"]
    assert before["duckdb"].startswith("SELECT * FROM read_parquet([")
    with catalog_table(deployment, "shop.orders") as table:
        with table.update_schema() as change:
            change.rename_column("value.customer", "buyer")
            change.rename_column(("value", "lines", "element", "sku"), "article")
        with table.update_schema() as change:
            change.add_column(("value", "customer"), LongType())
            change.add_column(("value", "lines", "sku"), LongType())
    sql = "SELECT value.buyer, value.customer, value.lines FROM {} WHERE value.id = 2"
    (found,) = rows(deployment, sql.format("shop.orders"))
    assert (found["buyer"], found["customer"]) == ("ada", None)
    assert [(line["article"], line["sku"]) for line in found["lines"]] == [("sku-0", None), ("sku-1", None)]
    (after,) = deployment.cli("tables", "--topic", "orders", "--output", "json").json()["tables"]
    assert after["duckdb"].startswith("-- the table's columns have changed: this finds them by field id")
    assert [
        faithful(value) for value in duckdb.execute(sql.format(f"({after['duckdb']})")).fetchall()[0]
    ] == list(found.values())


def test_a_table_that_does_not_exist_yet_is_empty_and_has_its_columns(deployment: Deployment) -> None:
    found = ask(deployment, "SELECT value.customer, kafka FROM shop.orders")
    assert (found.code, found.json()["rows"]) == (0, [])
    assert found.json()["columns"][0] == {"name": "customer", "type": "VARCHAR"}
    (deployment.root / "shop.binpb").unlink()
    refused = ask(deployment, "SELECT * FROM shop.orders")
    assert (
        refused.code,
        "shop.binpb" in refused.err,
        "table shop.orders cannot be queried" in refused.err,
    ) == (3, True, True)
    assert rows(deployment, "SELECT count(*) AS n FROM shop.clicks") == [{"n": 0}]


def test_every_table_can_be_listed_and_described(deployment: Deployment, archived: Driver) -> None:
    assert [row["name"] for row in rows(deployment, "SHOW ALL TABLES")] == ["clicks", "orders"]
    assert rows(deployment, "SHOW TABLES") == [{"name": "shop.clicks"}, {"name": "shop.orders"}]
    assert [row["column_name"] for row in rows(deployment, "DESCRIBE shop.clicks")] == [
        "key",
        "value",
        "headers",
        "kafka",
    ]


def test_values_lose_nothing(deployment: Deployment, archived: Driver) -> None:
    sent = b"\x00\xff raw"
    archived.send("clicks", [sent], 1)
    archived.archive(("clicks", None))
    (row,) = rows(deployment, "SELECT value, kafka FROM shop.clicks WHERE kafka.partition = 1")
    assert base64.b64decode(row["value"]["__raw__"]) == sent
    (record,) = archived.records("clicks")[1]
    assert row["kafka"]["ingest_timestamp"].endswith("Z")
    assert (
        int(rows(deployment, "SELECT epoch_us(max(kafka.ingest_timestamp)) AS us FROM shop.clicks")[0]["us"])
        == record.ingest_us
    )
    asked = (
        "SELECT 18446744073709551615::UBIGINT AS u, 9007199254740993 AS i, 1.10::DECIMAL(20, 2) AS d, "
        "MAP {true: [1]} AS m, "
        "MAP([], []) AS e, [] AS l, {'a': NULL, 'b': 'x'::BLOB} AS s, 'inf'::DOUBLE AS f, TIMESTAMP "
        "'2020-02-03 04:05:06.000007' AS t, "
        "DATE '2020-02-03' AS day, 1 AS again, 2 AS again"
    )
    assert rows(deployment, asked) == [
        {
            "u": "18446744073709551615",
            "i": "9007199254740993",
            "d": "1.10",
            "m": {"true": [1]},
            "e": {},
            "l": [],
            "s": {"a": None, "b": "eA=="},
            "f": "Infinity",
            "t": "2020-02-03T04:05:06.000007",
            "day": "2020-02-03",
            "again": 1,
            "again_1": 2,
        }
    ]


def test_the_rows_are_bounded_and_it_is_reported(deployment: Deployment, archived: Driver) -> None:
    cut = ask(deployment, "FROM range(50)", "--max-rows", "3")
    assert ([row["range"] for row in cut.json()["rows"]], cut.json()["cut"]) == ([0, 1, 2], True)
    assert "cut off after 3 rows" in cut.err
    whole = ask(deployment, "FROM range(3)", "--max-rows", "3")
    assert (len(whole.json()["rows"]), whole.json()["cut"], whole.err) == (3, False, "")
    assert len(rows(deployment, "FROM range(5000)", "--max-rows", "0")) == 5000


def test_every_output(deployment: Deployment, archived: Driver) -> None:
    archived.send("clicks", [b"\x00\xff raw", "a\u202eb".encode(), b""], 1)
    archived.archive(("clicks", None))
    sql = (
        'SELECT kafka."offset" AS o, value.__raw__ AS raw, decode(value.__raw__) AS text, headers, '
        "{'a': [1], 'b': NULL} AS nested FROM shop.clicks WHERE kafka.partition = 1 AND o > 0 ORDER BY o"
    )
    done = deployment.cli("query", sql, "--output", "csv", *MEMORY)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "o,raw,text,headers,nested\n"
        '1,YeKArmI=,a\u202eb,[],"{""a"":[1],""b"":null}"\n'
        '2,"","",[],"{""a"":[1],""b"":null}"\n'
    )
    vertical = deployment.cli("query", sql, "--output", "vertical", *MEMORY)
    assert vertical.out == (
        "-[ row 1 ]\no       | 1\nraw     | base64:YeKArmI=\ntext    | a\\u202eb\nheaders | []\n"
        "nested  | {a: [1], b: NULL}\n"
        '-[ row 2 ]\no       | 2\nraw     | b""\ntext    | \nheaders | []\nnested  | {a: [1], b: NULL}\n'
        "2 rows\n"
    )
    table = deployment.cli("query", sql, *MEMORY)
    assert '│ 2 │ b""             │          │ []      │ {a: [1], b: NULL} │' in table.out
    for same in ("table", "text"):
        assert deployment.cli("query", sql, *MEMORY, "--output", same) == table
    assert ask(deployment, "SELECT 1 AS a, 'ü' AS b, {'c': 'x'::BLOB} AS d FROM range(2)").out == (
        '{"columns": [{"name": "a", "type": "INTEGER"}, {"name": "b", "type": "VARCHAR"}, '
        '{"name": "d", "type": "STRUCT(c BLOB)"}], "rows": [\n'
        '{"a": 1, "b": "ü", "d": {"c": "eA=="}},\n{"a": 1, "b": "ü", "d": {"c": "eA=="}}\n], "cut": false}\n'
    )


@pytest.mark.parametrize("output", ["table", "vertical", "csv"])
def test_an_output_that_is_cut_off_or_empty(output: str, deployment: Deployment) -> None:
    done = deployment.cli("query", "FROM range(50)", "--output", output, "--max-rows", "3", *MEMORY)
    assert (done.code, done.err) == (0, "cut off after 3 rows; --max-rows 0 prints all\n")
    assert "cut" not in done.out
    assert ("2" in done.out, "49" in done.out) == (True, False)
    done = deployment.cli("query", "SELECT 1 AS a, 2 AS b WHERE false", "--output", output, *MEMORY)
    assert (done.code, done.err) == (0, "")
    assert ("a,b" if output == "csv" else "0 rows") in done.out


@pytest.mark.parametrize(("columns", "is_wide"), [(200, False), (40, True)])
def test_a_table_that_does_not_fit_the_terminal(columns: int, is_wide: bool, deployment: Deployment) -> None:
    sql = "SELECT 'a text of some length' AS one, 'and another text' AS two, 3 AS three"
    with Terminal(deployment, "query", sql, *MEMORY, columns=columns) as terminal:
        assert terminal.wait() == 0
    lines = terminal.text().splitlines()
    assert ("-[ row 1 ]" in lines, "three | 3" in lines) == (is_wide, is_wide)
    with Terminal(deployment, "query", sql, "--output", "table", *MEMORY, columns=40) as terminal:
        assert terminal.wait() == 0
    assert "│" in terminal.text()
    assert max(map(len, terminal.text().splitlines())) <= 40


@pytest.mark.parametrize(
    ("columns", "options", "blocks", "cut"),
    [
        (40, (), 100, 100),
        (40, ("--max-rows", "120"), 120, 120),
        (40, ("--max-rows", "0"), 150, None),
        (40, ("--output", "vertical"), 150, None),
        (200, (), 0, None),
    ],
)
def test_a_terminal_that_is_too_narrow_gets_fewer_rows(
    columns: int, options: tuple[str, ...], blocks: int, cut: int | None, deployment: Deployment
) -> None:
    sql = "SELECT 'a text of some length' AS one, 'and another text' AS two, range AS n FROM range(150)"
    with Terminal(deployment, "query", sql, *options, *MEMORY, columns=columns) as terminal:
        assert terminal.wait() == 0
    text = terminal.text()
    assert text.count("-[ row ") == blocks
    assert f"{blocks or 150} rows" in text
    assert (f"cut off after {cut} rows" in text) == (cut is not None)
    assert ("cut off" in text.splitlines()[-1]) == (cut is not None), "the note comes last"


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{scratch}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{scratch}'",
        "CREATE TABLE t AS SELECT 1",
        "ATTACH '{scratch}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 64",
        "SET enable_external_access = true",
        "PRAGMA enable_progress_bar",
        "EXPORT DATABASE '{scratch}'",
        "SELECT 1; SELECT 2",
        "",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "FROM '{secret}'",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM read_parquet('{folder}/**/*.parquet')",
        "SELECT * FROM read_blob('https://127.0.0.1:1/x')",
        "SELECT * FROM names",
        "SELECT getenv('HOME')",
        "SELECT nothing FROM shop.clicks",
        "FROM shop.orders JOIN read_csv('{secret}') USING (kafka)",
        "FROM query('FROM read_csv(''{secret}'')')",
        "PIVOT shop.orders ON kafka",
        "WITH w AS (COPY (SELECT 1) TO '{scratch}') FROM w, shop.orders",
        "WITH w AS (INSERT INTO shop.orders FROM shop.orders) SELECT 1",
    ],
)
def test_nothing_else_is_touched(deployment: Deployment, archived: Driver, sql: str) -> None:
    secret = deployment.root / "secret.txt"
    secret.write_text("a secret")
    names = ["a variable of this process"]
    before = {
        path: path.stat().st_mtime_ns
        for path in deployment.root.rglob("*")
        if path.is_file() and path.suffix in (".parquet", ".txt")
    }
    done = ask(
        deployment, sql.format(scratch=deployment.root / "written", secret=secret, folder=deployment.data)
    )
    assert (done.code, done.out) == (3, ""), done.out
    assert done.err.startswith("error: ")
    assert "a secret" not in done.err
    assert {
        path: path.stat().st_mtime_ns
        for path in deployment.root.rglob("*")
        if path.is_file() and path.suffix in (".parquet", ".txt")
    } == before
    assert not (deployment.root / "written").exists()
    assert names


def test_memory_is_bounded_and_nothing_goes_to_a_file(deployment: Deployment, archived: Driver) -> None:
    done = ask(deployment, "SELECT count(*) FROM (SELECT DISTINCT range, hash(range) FROM range(30000000))")
    assert (done.code, "--memory" in done.err) == (1, True), done.err
    assert not list(deployment.root.rglob("*.tmp"))
    assert ask(deployment, "SELECT 1", "--memory", "much").code == 3


def test_a_file_that_is_gone_is_no_empty_table(deployment: Deployment, archived: Driver) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        path = next(iter(table.scan().plan_files())).file.file_path
    Path(path.removeprefix("file://")).unlink()
    done = ask(deployment, "SELECT count(*) FROM shop.clicks")
    assert (done.code, done.out) == (1, "")
    assert Path(path).name in done.err


def test_a_table_that_is_gone_is_no_empty_table(deployment: Deployment, archived: Driver) -> None:
    with catalog_table(deployment, "shop.clicks") as table:
        table.catalog.drop_table(("shop", "clicks"))
    done = ask(deployment, "SELECT count(*) FROM shop.clicks")
    assert (done.code, done.out) == (1, "")
    assert "the table shop.clicks is gone: 6 rows of topic clicks went into it" in done.err
    assert rows(deployment, "SELECT count(*) AS n FROM shop.orders") == [{"n": 8}]
    # Only the tables that a query names are opened, so the other one is not mentioned.
    joined = ask(deployment, "SELECT count(*) AS n FROM shop.orders JOIN shop.orders AS o USING (kafka)")
    assert (joined.code, joined.err, joined.json()["rows"]) == (0, "", [{"n": 8}])
    listed = deployment.cli("tables")
    assert (listed.code, "note: the table shop.clicks is gone" in listed.out) == (0, True), listed.out
    (one,) = deployment.cli("tables", "--topic", "clicks", "--output", "json").json()["tables"]
    assert (one["topic"], one["rows"], "is gone" in one["gone"]) == ("clicks", None, True)


def test_tables_of_one_topic(deployment: Deployment, archived: Driver) -> None:
    (one,) = deployment.cli("tables", "--topic", "orders", "--output", "json").json()["tables"]
    assert (one["topic"], one["rows"], one["gone"]) == ("orders", 8, None)
    for options in (("orders",), ("orders", "--topic", "orders")):
        assert deployment.cli("tables", *options, "--output", "json").json()["tables"] == [one]
    assert deployment.cli("tables", "shop.orders", "--output", "json").json()["tables"] == [one]
    refused = deployment.cli("tables", "orders", "--topic", "clicks")
    assert (refused.code, refused.out) == (3, "")
    assert refused.err == (
        "error: the argument names topic orders, and --topic names clicks; name one of them\n"
    )
    for topic, why in (
        ("kept", "topic kept has no table (archive.kind: none)"),
        ("nix", "there is no topic nix; the topics are clicks,"),
    ):
        refused = deployment.cli("tables", "--topic", topic)
        assert (refused.code, why in refused.err) == (3, True), refused.err


def test_who_names_a_topic_learns_its_table(deployment: Deployment, archived: Driver) -> None:
    assert "the table of topic orders is shop.orders" in ask(deployment, "SELECT * FROM orders").err
    assert "topic kept has no table (archive.kind: none)" in ask(deployment, "SELECT * FROM kept").err


def test_the_end_of_the_process_prints_nothing(deployment: Deployment, archived: Driver) -> None:
    # A process of its own: DuckDB's binding prints objects that the interpreter does not free at its end.
    done = subprocess.run(
        [sys.executable, "-m", "archiver", "query", "SELECT count(*) AS n FROM shop.orders", *MEMORY],
        env=deployment.environ(),
        cwd=deployment.root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["shop.nothing", "nothing", "elsewhere.shop.orders", '"shop"."Order s"'])
def test_an_unknown_table_is_answered_with_the_tables(name: str, deployment: Deployment) -> None:
    done = ask(deployment, f"SELECT * FROM {name}")
    assert (done.code, done.out) == (3, "")
    assert done.err.rstrip().endswith("; the tables are shop.clicks, shop.orders"), done.err
    assert "Did you mean" not in done.err
    assert "the tables are" not in ask(deployment, "SELECT nothing FROM shop.orders").err


TOP = (
    'SELECT kafka."offset" AS o FROM shop.orders WHERE value.__err__ IS NOT NULL ORDER BY '
    "kafka.ingest_timestamp LIMIT 12"
)


def in_three_files(folder: Path) -> QueryTable:
    columns = {
        "value": {"id": "long", "__err__": "string"},
        "kafka": {"offset": "long", "ingest_timestamp": "timestamptz"},
    }
    ids = itertools.count(1)
    of_columns: list[dict[str, Any]] = [
        {
            "id": next(ids),
            "name": name,
            "required": False,
            "type": {
                "type": "struct",
                "fields": [
                    {"id": next(ids), "name": child, "required": False, "type": of}
                    for child, of in children.items()
                ],
            },
        }
        for name, children in columns.items()
    ]
    schema = {"type": "struct", "fields": of_columns}
    names: list[str] = []
    for number in range(3):
        offsets = range(number * 9000, (number + 1) * 9000)
        kafka = ({"offset": offset, "ingest_timestamp": offset * 1_000_000} for offset in offsets)
        rows = [{"value": {"id": None, "__err__": "bad"}, "kafka": place} for place in kafka]
        names.append(str(folder / f"{number}.parquet"))
        pq.write_table(pa.Table.from_pylist(rows, arrow_schema_of(schema)), names[-1], row_group_size=3000)
    return QueryTable("shop", "orders", json.dumps(schema), tuple(names))


def test_the_first_of_many_by_a_field_of_a_struct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, limits = in_three_files(tmp_path), duck.Limits(2**30, 2)
    with duck.asked(TOP, [table], limits) as result:
        assert list(result.rows) == [(offset,) for offset in range(12)]
    bound = duck._bound

    def with_every_optimizer(database: duck._Interruptible, given: duck.Limits) -> None:
        bound(database, given)
        database.rows("SET disabled_optimizers = ''")

    monkeypatch.setattr(duck, "_bound", with_every_optimizer)
    with (
        pytest.raises(Halt, match="caused neither by the query nor by the files") as caught,
        duck.asked(TOP, [table], limits) as result,
    ):
        list(result.rows)
    assert "Stack Trace" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_without_duckdb_it_says_what_to_install(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **others: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *arguments, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    done = ask(deployment, "SELECT 1")
    assert (done.code, "pip install 'stream-archiver[query]'" in done.err) == (3, True)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "slow",
    [
        "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range * b.range % 7 = 1",
        # a single scan
        "SELECT count(*) FROM range(100000000000) a WHERE a.range % 7 = 3 AND sin(a.range) > 2",
        # rows arrive, and then none for hours
        "SELECT a.range FROM range(100000000000) a WHERE a.range < 3 OR sin(a.range) > 2",
    ],
)
def test_ctrl_c_ends_it(slow: str, deployment: Deployment, archived: Driver) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "archiver", "query", slow, *MEMORY],
        env=deployment.environ(),
        cwd=deployment.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            deadline = time.monotonic() + 120
            while (
                "duckdb" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < deadline
            ):
                time.sleep(0.1)
            time.sleep(3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, ""), err
    assert err.startswith("interrupted")


def test_types_by_name() -> None:
    fields = [
        {"id": 1, "name": "d", "required": False, "type": "decimal(20, 0)"},
        {
            "id": 2,
            "name": "m",
            "required": False,
            "type": {"type": "map", "key": "int", "value": "timestamptz"},
        },
        {"id": 3, "name": 'a "b"', "required": False, "type": "fixed[16]"},
    ]
    assert columns_of(json.dumps({"fields": fields})) == [
        ("d", "DECIMAL(20, 0)"),
        ("m", "MAP(INTEGER, TIMESTAMPTZ)"),
        ('a "b"', "BLOB"),
    ]
    assert faithful(float("nan")) == "NaN"
