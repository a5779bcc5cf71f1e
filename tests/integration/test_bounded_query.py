"""The process of a query: its limits hold, and it reaches nothing but the files of its tables."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.query.bounded_query import BoundedQuery, QueryLimits, Stopped
from archiver.query.duck import ONLY_TABLES, Limits, QueryTable, asked, table_names
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, LimitReached

LIMITS = QueryLimits(time_s=60, memory_bytes=256 * 2**20, rows_max=1000, bytes_max=2**20, threads=2)
SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": false, "type": "long"}]}'
ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range * b.range % 7 = 1"


def ask(sql: str, tables: tuple[QueryTable, ...] = (), limits: QueryLimits = LIMITS) -> dict[str, Any]:
    with BoundedQuery(sql, limits) as query:
        query.names()
        return query.result(tables)


def table(folder: Path, name: str = "orders", **others: Any) -> QueryTable:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    return QueryTable("shop", name, SCHEMA, (str(path),), **others)


def until(is_true: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_values_keep_their_kind(tmp_path: Path) -> None:
    found = ask(
        "SELECT a, NULL AS n, '' AS e, 'NULL' AS t, 9007199254740993 AS big, {'x': [1, NULL]} AS s, "
        "MAP {'k': 'v'} AS m, '\\xFF'::BLOB AS b, true AS f, 'nan'::DOUBLE AS d, 1.50 AS c, a AS a "
        "FROM shop.orders ORDER BY a LIMIT 1",
        (table(tmp_path),),
    )
    assert found["rows"] == [
        [
            1,
            None,
            "",
            "NULL",
            "9007199254740993",
            {"x": [1, None]},
            {"k": "v"},
            "/w==",
            True,
            "NaN",
            "1.50",
            1,
        ]
    ]
    assert [one["name"] for one in found["columns"]][-1] == "a_1"
    assert found["columns"][5]["type"] == "STRUCT(x INTEGER[])"
    assert found["cut"] is None


def test_the_names_of_a_query() -> None:
    for sql, names in (
        ('SELECT 1 FROM shop.orders o, Shop."Clicks" AS c', ["Shop.Clicks", "shop.orders"]),
        ("DESCRIBE shop.orders", ["shop.orders"]),
        ("FROM query_table('shop.orders')", ["shop.orders"]),
        ("SHOW TABLES", []),
        (
            'WITH w AS (FROM shop.a) SELECT nothing FROM w, (FROM b.c x) y, "o p".q',
            ["b.c", "o p.q", "shop.a"],
        ),
        ("SELECT 1 FROM shop.a o JOIN shop.b ON o.x = 1 WHERE y IN (FROM c.d)", ["c.d", "shop.a", "shop.b"]),
    ):
        with BoundedQuery(sql, LIMITS) as query:
            assert query.names() == names, sql
    for sql in ("SELECT (", "", "DROP TABLE t", "SELECT 1; SELECT 2"):
        with BoundedQuery(sql, LIMITS) as query, pytest.raises(InvalidInput):
            query.names()


def test_rows_and_bytes_are_cut(tmp_path: Path) -> None:
    limits = QueryLimits(60, 2**28, 3, 400, 1)
    assert ask("FROM range(3)", limits=limits) | {"columns": 0} == {
        "columns": 0,
        "rows": [[0], [1], [2]],
        "cut": None,
    }
    assert ask("FROM range(100000000000)", limits=limits)["cut"] == "rows"
    wide = ask("SELECT repeat('x', 150) AS x FROM range(100)", limits=limits)
    assert (len(wide["rows"]), wide["cut"]) == (2, "bytes")
    assert ask("SELECT repeat('x', 1000000) AS x", limits=limits)["rows"] == []
    columns = ", ".join(f"{n} AS column_{n}" for n in range(50))
    assert ask(f"SELECT {columns}", limits=limits) == {"columns": [], "rows": [], "cut": "bytes"}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM (SELECT DISTINCT range, hash(range) FROM range(300000000))",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT length(repeat('x', 4000000000))",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
        "SELECT repeat('x', 100000000) FROM range(100)",
        "SELECT count(*) FROM range(100000000) a JOIN range(100000000) b ON a.range = b.range",
        "SELECT sum(length(regexp_replace(repeat('x', 10000000), 'x', repeat('y', 1000), 'g'))) FROM range(9)",
    ],
)
def test_a_query_that_takes_all_memory_ends_alone(sql: str) -> None:
    limits = QueryLimits(60, 128 * 2**20, 10, 2**20, 2)
    with BoundedQuery(sql, limits) as query:
        query.names()
        pid, peak = query._process.pid, [0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                try:
                    peak[0] = max(peak[0], psutil.Process(pid).memory_info().rss)
                except psutil.NoSuchProcess:
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with pytest.raises((LimitReached, InvalidInput), match=r"[Mm]emory|size|too large|limit"):
                query.result(())
        finally:
            done.set()
            watching.join()
    assert peak[0] < 512 * 2**20, f"{peak[0]:,}"


def test_nested_too_deep_is_a_wrong_query() -> None:
    deep = "1"
    for _ in range(400):
        deep = f"[{deep}]"
    with pytest.raises((InvalidInput, Halt)):
        ask(f"SELECT {deep} AS deep")
    with pytest.raises((InvalidInput, Halt)):
        ask(f"SELECT {'(' * 50_000}1{')' * 50_000}")


def test_the_processor_time_is_bounded() -> None:
    limits = QueryLimits(1, 2**28, 10, 2**20, 2)
    with pytest.raises(LimitReached, match=r"http\.query_time_max"):
        ask(ENDLESS, limits=limits)


def test_a_running_query_is_stopped() -> None:
    query = BoundedQuery(ENDLESS, LIMITS)
    with query:
        query.names()
        begun = time.monotonic()
        threading.Timer(0.5, query.stop).start()
        with pytest.raises(Stopped):
            query.result(())
        assert time.monotonic() - begun < LIMITS.time_s / 2
    assert not psutil.pid_exists(query._process.pid)


def test_a_crash_of_the_process_is_an_error() -> None:
    for number, kind in ((signal.SIGSEGV, Halt), (signal.SIGABRT, LimitReached)):
        with BoundedQuery(ENDLESS, LIMITS) as query:
            query.names()
            threading.Timer(0.3, os.kill, (query._process.pid, number)).start()
            with pytest.raises(kind):
                query.result(())


def test_the_process_ends_with_the_daemon(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import time
        from archiver.query.bounded_query import BoundedQuery, QueryLimits
        query = BoundedQuery({ENDLESS!r}, QueryLimits(60, 2**28, 10, 2**20, 1))
        query.names()
        query._send({{"tables": []}})
        print(query._process.pid, flush=True)
        time.sleep(600)
        """
    )
    daemon = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with daemon:
        assert daemon.stdout is not None
        child = psutil.Process(int(daemon.stdout.readline()))
        until(lambda: child.cpu_times().user > 0.5)
        daemon.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_nothing_of_the_process_is_left(tmp_path: Path) -> None:
    def state() -> tuple[int, int]:
        this = psutil.Process()
        return this.num_fds(), len(this.children())

    ask("SELECT 1")
    before = state()
    for _ in range(3):
        ask("SELECT 1")
        with pytest.raises(InvalidInput):
            ask("SELECT nothing")
        with BoundedQuery(ENDLESS, LIMITS) as query:
            query.names()
    assert state() == before


def test_the_process_has_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVER_SECRET", "a secret of the daemon")
    with BoundedQuery("SELECT 1", LIMITS) as query:
        query.names()
        child = psutil.Process(query._process.pid)
        assert "ARCHIVER_SECRET" not in child.environ()
        assert child.cwd() == "/"
        assert child.nice() >= 10
        assert {one.fd for one in child.open_files() if not one.path.startswith("/proc/")} <= {1}
        assert "a secret of the daemon" not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert "SELECT 1" not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert query.result(())["rows"] == [[1]]


def test_limits_hold_where_the_priority_cannot_be_lowered() -> None:
    program = textwrap.dedent(
        """
        import os, resource
        from archiver.query import query_process

        def refused(_: int) -> int:
            raise PermissionError("as under the system call filter of the systemd unit")

        os.nice = refused
        query_process._bound_process(7)
        kinds = (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
        print([resource.getrlimit(kind) for kind in kinds])
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[(7, 8), (0, 0), (0, 0)]\n"


HOSTILE = [
    "COPY (SELECT 1) TO '{scratch}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{scratch}'",
    "FROM query('COPY (SELECT 1) TO ''{scratch}''')",
    "CREATE TABLE t AS SELECT 1",
    "CREATE MACRO m() AS TABLE FROM read_text('{secret}')",
    "CREATE VIEW v AS FROM read_text('{secret}')",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "INSERT INTO shop.orders VALUES (1)",
    "DELETE FROM shop.orders",
    "DROP VIEW shop.orders",
    "ATTACH '{secret}'",
    "ATTACH ':memory:' AS other",
    "USE shop",
    "CALL pragma_version()",
    "CHECKPOINT",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 64",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "PRAGMA database_list; SELECT 1",
    "EXPORT DATABASE '{scratch}'",
    "IMPORT DATABASE '{folder}'",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "SELECT 1; SELECT 2",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_ndjson_objects('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_duckdb('{secret}')",
    "SELECT * FROM read_parquet('{other}')",
    "SELECT * FROM parquet_scan('{other}')",
    "SELECT * FROM parquet_metadata('{other}')",
    "SELECT * FROM parquet_schema('{other}')",
    "SELECT * FROM parquet_file_metadata('{other}')",
    "SELECT * FROM parquet_kv_metadata('{other}')",
    "SELECT * FROM parquet_bloom_probe('{other}', 'a', 1)",
    "FROM '{other}'",
    'FROM "{other}"',
    "FROM '{secret}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_parquet('{folder}/*.parquet')",
    "SELECT * FROM read_parquet(['{mine}', '{other}'])",
    "SELECT * FROM read_parquet('{folder}/../{name}/other.parquet')",
    "SELECT * FROM read_parquet('{link}')",
    "SELECT * FROM query('FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('{other}')",
    "SELECT * FROM read_blob('https://127.0.0.1:1/x')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('/proc/self/maps')",
    "SELECT * FROM read_text('/dev/stdin')",
    "SELECT getenv('HOME')",
    "SELECT * FROM shop.other",
    "SELECT * FROM pragma_storage_info('{other}')",
    "SELECT * FROM seq_scan('{other}')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function(1)",
    "SELECT load_aws_credentials()",
    "SELECT * FROM repeat_row('{secret}', num_rows = 1) JOIN read_text('{secret}') ON true",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "WITH t AS (FROM read_text('{secret}')) FROM t",
    "SELECT * FROM shop.orders WHERE a IN (SELECT size FROM read_text('{secret}'))",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{secret}'')'))",
    "PIVOT shop.orders ON a",
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_a_query_reaches_nothing_else(tmp_path: Path, sql: str) -> None:
    secret, mine = tmp_path / "secret.txt", table(tmp_path)
    secret.write_text("a secret")
    table(tmp_path, "other")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "other.parquet")
    before = sorted(tmp_path.iterdir())
    given = sql.format(
        scratch=tmp_path / "written",
        secret=secret,
        folder=tmp_path,
        name=tmp_path.name,
        other=tmp_path / "other.parquet",
        link=tmp_path / "link.parquet",
        mine=mine.files[0],
    )
    with pytest.raises((InvalidInput, Halt)) as caught:
        ask(given, (mine,))
    assert "a secret" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_what_it_can_say_of_itself_names_no_other_table(tmp_path: Path) -> None:
    mine = table(tmp_path)
    for sql in (
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SHOW DATABASES",
        "FROM information_schema.tables",
        "FROM information_schema.columns",
        "FROM duckdb_views()",
        "FROM duckdb_settings()",
        "FROM duckdb_secrets()",
        "FROM duckdb_variables()",
        "FROM duckdb_logs",
        "FROM duckdb_prepared_statements()",
        "FROM pg_catalog.pg_class",
        "FROM pragma_database_list()",
        "FROM duckdb_temporary_files()",
        "FROM duckdb_connections()",
        "FROM duckdb_external_file_cache()",
        "FROM duckdb_log_contexts()",
    ):
        try:
            found = str(ask(sql, (mine,)))
        except InvalidInput:
            # Not every version has it.
            continue
        assert "other.parquet" not in found, sql
        assert "/archiver" not in found.replace(str(tmp_path), ""), sql


def test_a_table_that_is_only_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    listed = QueryTable("shop", "orders", SCHEMA, is_readable=False)
    assert [row[0] for row in ask("DESCRIBE shop.orders", (listed,))["rows"]] == ["a"]
    assert ask("SHOW TABLES FROM shop", (listed,))["rows"] == [["orders"]]
    for sql in (
        "FROM shop.orders",
        "SELECT count(*) FROM shop.orders",
        "SELECT 1 FROM shop.orders WHERE a > 2",
    ):
        with pytest.raises(InvalidInput, match="is not open: name it in the query"):
            ask(sql, (listed,))


def test_without_duckdb_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "duckdb" else found(name))
    with pytest.raises(ConfigInvalid, match=r"pip install 'stream-archiver\[query\]'"):
        BoundedQuery("SELECT 1", LIMITS)


def places_outside(folder: Path) -> list[str]:
    """Sources that no query may reach: existing ones, an absent one, and two that would wait for ever."""
    (folder / "secret.csv").write_text("password,b\n1,2\n")
    os.mkfifo(folder / "fifo")
    pq.write_table(pa.table({"password": [1]}), folder / "secret.parquet")
    return [
        f"read_csv('{folder}/secret.csv')",
        f"read_csv('{folder}/absent.csv')",
        f"read_parquet('{folder}/secret.parquet')",
        f"read_parquet('{folder}/absent.parquet')",
        f"read_blob('{folder}/s*')",
        f"read_blob('{folder}/q*')",
        f"read_csv('{folder}/fifo')",
        "read_csv('/dev/stdin')",
        "read_csv('http://127.0.0.1:1/x.csv')",
        f"glob('{folder}/*')",
        f"(FROM read_parquet('{folder}/secret.parquet') a JOIN read_csv('{folder}/secret.csv') USING (password))",
    ]


def test_the_names_of_a_query_are_found_without_its_files(tmp_path: Path) -> None:
    orders = table(tmp_path)
    began = time.monotonic()
    for place in places_outside(tmp_path):
        with BoundedQuery(f"SELECT 1 FROM shop.orders, {place}", LIMITS) as query:
            assert query.names() == ["shop.orders"], place
            with pytest.raises(InvalidInput) as caught:
                query.result([orders])
            assert str(caught.value) == ONLY_TABLES, place
    assert time.monotonic() - began < 300


def test_a_query_writes_no_file_of_a_table(tmp_path: Path) -> None:
    import duckdb

    orders = table(tmp_path)
    (path,) = orders.files
    content = Path(path).read_bytes()
    copy = f"WITH w AS (COPY (SELECT 1 AS a) TO '{path}' (USE_TMP_FILE false)) SELECT 1"
    with duckdb.connect() as connection:
        (serialized,) = connection.execute("SELECT json_serialize_sql(?)", [copy]).fetchall()[0]
    run = f"FROM json_execute_serialized_sql($s${serialized}$s$)"
    for sql in (copy, f"({copy})", run, f"FROM query($q${run}$q$)", f"FROM query($q${run}$q$ || '')"):
        why = "changes nothing|accepts only a text"
        with BoundedQuery(sql, LIMITS) as query, pytest.raises(InvalidInput, match=why):
            query.names()
        with pytest.raises(InvalidInput, match=why), asked(sql, [orders], Limits(2**28, 1)) as result:
            list(result.rows)
        assert Path(path).read_bytes() == content, sql


def test_a_command_too_opens_no_file_to_find_the_names(tmp_path: Path) -> None:
    orders = table(tmp_path)
    for place in places_outside(tmp_path):
        sql = f"SELECT 1 FROM shop.orders, {place}"
        assert table_names(sql) == {"shop.orders"}, place
        with (
            pytest.raises(InvalidInput) as caught,
            asked(sql, [orders], Limits(2**28, 1)) as result,
        ):
            list(result.rows)
        assert str(caught.value) == ONLY_TABLES, place
