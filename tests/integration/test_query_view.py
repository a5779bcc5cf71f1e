"""Queries through the port: for programs and on pages, their limits, who may ask, and how they are cancelled."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest

from archiver.app import queries
from archiver.web import access
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.process.pages import check_harmless
from tests.support.process.processes import PATIENCE_S
from tests.support.process.web import Daemon, Reply, basic, kafka_users
from tests.support.schema.orders import order

ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range * b.range % 7 = 1"
COUNT = "SELECT count(*) AS n FROM shop.clicks"
PROXY = {"X-Forwarded-For": "192.0.2.1"}
"""Lets a daemon on loopback ask for a login."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FAILED_WAIT_S", 0.0)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Two tables; alice may read the one of `clicks`."""
    passwords = dict.fromkeys(("alice", "bob", "carol"), "password")
    rules = [
        {"principal": "User:alice", "operations": ["read"], "topics": ["clicks"]},
        {"principal": "User:carol", "operations": ["read"], "topics": ["*"]},
        {"principal": "User:bob", "operations": ["describe"], "topics": ["*"]},
    ]
    kafka = kafka_users(tmp_path / "users", passwords, rules)
    made = Deployment(tmp_path / "d", overrides={"kafka": kafka})
    with Driver(made) as driver:
        driver.send("clicks", [b"<script>1</script>", b"", None], 0)
        driver.send("orders", [order(1), order(2)], 1)
        driver.archive()
    return made


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    with Daemon(deployment, query_time_max=60) as daemon:
        yield daemon


def login(name: str) -> dict[str, str]:
    return {**basic(name, "password"), **PROXY}


def run(daemon: Daemon, sql: str, headers: dict[str, str] | None = None, **others: Any) -> Reply:
    body = json.dumps({"sql": sql, **others}).encode()
    return daemon.call("POST", "/v1/query", body, {"Content-Type": "application/json", **(headers or {})})


def form(daemon: Daemon, path: str, fields: dict[str, str], headers: dict[str, str] | None = None) -> Reply:
    """A form of a page, as a browser sends it."""
    origin = "http://{}:{}".format(*daemon.address)
    given = {"Content-Type": "application/x-www-form-urlencoded", "Origin": origin, **(headers or {})}
    return daemon.call("POST", path, urlencode(fields).encode(), given)


def until(is_true: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children() -> list[psutil.Process]:
    """Processes of queries."""
    found = []
    for child in psutil.Process().children():
        try:
            if any("query_process" in one for one in child.cmdline()):
                found.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def pipes() -> int:
    """Open pipes of this process; its sockets come and go with the connections."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += descriptor.readlink().name.startswith("pipe:")
    return found


def state(daemon: Daemon, query_id: str) -> str:
    found: str = daemon.call("GET", f"/v1/query/{query_id}").json()["state"]
    return found


def started(daemon: Daemon, sql: str = ENDLESS, **others: Any) -> str:
    """Id of a query that runs."""
    reply = run(daemon, sql, wait=False, **others)
    assert reply.status == 202, reply.body
    query_id: str = reply.json()["id"]
    until(lambda: state(daemon, query_id) == "running")
    return query_id


# --- Results
def test_a_query_has_its_rows_with_names_and_types(daemon: Daemon) -> None:
    reply = run(
        daemon, "SELECT kafka.\"offset\" AS o, value.__raw__, NULL AS n, '' AS e FROM shop.clicks ORDER BY 1"
    )
    assert reply.status == 200, reply.body
    found = reply.json()
    assert [(one["name"], one["type"]) for one in found["columns"]] == [
        ("o", "BIGINT"),
        ("__raw__", "BLOB"),
        ("n", '"NULL"'),
        ("e", "VARCHAR"),
    ]
    assert [row[0] for row in found["rows"]] == [0, 1, 2]
    assert [row[2:] for row in found["rows"]] == [[None, ""]] * 3
    assert (found["state"], found["cut"], found["row_count"], found["first"]) == ("done", None, 3, 0)
    assert daemon.call("GET", f"/v1/query/{found['id']}").json() == found
    assert run(daemon, "FROM range(5)", limit=3).json()["cut"] == "rows"
    assert run(daemon, "DESCRIBE shop.orders").json()["row_count"] > 3
    assert [row[-1] for row in run(daemon, "SHOW TABLES FROM shop").json()["rows"]] == ["clicks", "orders"]


def test_a_page_runs_a_query_without_scripts(daemon: Daemon) -> None:
    page = daemon.call("GET", "/query?table=shop.clicks")
    seen = check_harmless(page)
    assert page.headers["referrer-policy"] == "same-origin", "a browser sends the Origin with the form"
    assert "SELECT kafka.partition, kafka.offset, value.* FROM shop.clicks LIMIT 100" in seen.text
    assert "DESCRIBE shop.clicks" in seen.text
    reply = form(
        daemon, "/query", {"sql": "SELECT value,\r\n\tNULL AS n, '' AS e FROM shop.clicks", "limit": ""}
    )
    assert reply.status == 303, reply.body
    address = reply.headers["location"]
    assert re.fullmatch(r"/query/[0-9a-f]{32}", address)
    until(lambda: state(daemon, address.rpartition("/")[2]) == "done")
    seen = check_harmless(daemon.call("GET", address))
    for text in ("3 rows", "NULL", "empty", "VARCHAR"):
        assert text in seen.text, text
    assert "\n\tNULL AS n" in seen.text, "the query can be edited"
    assert address in check_harmless(daemon.call("GET", "/query")).links
    failed = form(daemon, "/query", {"sql": "SELECT nothing FROM shop.clicks"}).headers["location"]
    until(lambda: state(daemon, failed.rpartition("/")[2]) == "failed")
    assert "nothing" in check_harmless(daemon.call("GET", failed)).text


def ended_page(daemon: Daemon, sql: str) -> Reply:
    """The page of a query that has ended."""
    address = form(daemon, "/query", {"sql": sql}).headers["location"]
    until(lambda: state(daemon, address.rpartition("/")[2]) in ("done", "failed"))
    return daemon.call("GET", address)


def test_the_form_has_an_example_and_the_tables_as_a_query_names_them(daemon: Daemon) -> None:
    page = daemon.call("GET", "/query").body.decode()
    ((address, example),) = re.findall(r'An example is <a href="([^"]*)"><code>([^<]*)</code>', page)
    assert example == "SELECT kafka.partition, kafka.offset, value.* FROM shop.clicks LIMIT 100"
    assert run(daemon, example).json()["row_count"] == 3
    chosen = daemon.call("GET", address).body.decode()
    assert f">\n{example}</textarea>" in chosen
    assert "An example is" not in chosen
    assert "<code>shop.orders</code>" in page
    assert run(daemon, "SHOW TABLES").json()["rows"] == [["shop.clicks"], ["shop.orders"]]


def test_a_wrong_query_is_no_trouble_of_the_deployment(daemon: Daemon) -> None:
    page = ended_page(daemon, "SELEC 1")
    html = page.body.decode()
    assert "syntax error" in check_harmless(page).text
    assert '<pre class="place"><code>LINE 1: SELEC 1\n        ^^^^^</code></pre>' in html, (
        "the caret is below its word"
    )
    assert "pill" not in html
    hint = "it is a field: write key.__raw__ or value.__raw__"
    assert hint in check_harmless(ended_page(daemon, "SELECT __raw__ FROM shop.clicks")).text


def test_values_have_the_form_of_the_command(daemon: Daemon) -> None:
    sql = (
        "SELECT value, 'N14228'::BLOB AS bytes, '\\xFF'::BLOB AS others, [NULL, {'a b': "
        "TIMESTAMP '2020-02-03 04:05:06'}] AS nested, '[1]' AS text, [1]::VARIANT AS variant FROM shop.clicks WHERE kafka.offset = 0"
    )
    page = ended_page(daemon, sql)
    text = check_harmless(page).text
    for shown in (
        '{__raw__: b"<script>1</script>"}',
        'b"N14228"',
        "base64:/w==",
        '[NULL, {"a b": 2020-02-03 04:05:06}]',
        "[1]",
    ):
        assert shown in text, (shown, text)
    document = run(daemon, sql).json()["rows"][0]
    assert (document[0]["__raw__"], document[1]) == ("PHNjcmlwdD4xPC9zY3JpcHQ+", "TjE0MjI4"), (
        "JSON has base64"
    )


def test_a_long_type_is_cut_with_a_mark(daemon: Daemon) -> None:
    fields = ", ".join(f"'field_{number}': {number}" for number in range(40))
    text = check_harmless(ended_page(daemon, f"SELECT {{{fields}}} AS wide, 1 AS narrow")).text
    assert re.search(r"STRUCT\(field_0 INTEGER, [^(]* \(cut\)", text), text
    assert text.count("(cut)") == 1


def test_a_running_query_is_shown_and_cancelled_on_its_page(daemon: Daemon) -> None:
    address = form(daemon, "/query", {"sql": ENDLESS}).headers["location"]
    query_id = address.rpartition("/")[2]
    until(lambda: state(daemon, query_id) == "running" and bool(children()))
    page = daemon.call("GET", address)
    seen = check_harmless(page)
    assert b'http-equiv="refresh" content="1"' in page.body
    assert f"{address}/cancel" in seen.links
    reply = form(daemon, f"{address}/cancel", {})
    assert (reply.status, reply.headers["location"]) == (303, address)
    assert state(daemon, query_id) == "cancelled"
    until(lambda: not children())
    page = daemon.call("GET", address)
    assert b"http-equiv" not in page.body
    assert "was cancelled" in check_harmless(page).text
    assert form(daemon, f"{address}/cancel", {}).status == 303, "nothing happens the second time"


def test_hostile_content_is_text(daemon: Daemon) -> None:
    sql = (
        "SELECT '<script>alert(1)</script>' AS \"<img src=x onerror=alert(1)>\", chr(8238) || 'x' AS \"\u202e\", "
        "{'</code><svg onload=alert(1)>': chr(27)} AS s, '{{ 7 * 7 }}' AS j"
    )
    address = form(daemon, "/query", {"sql": sql}).headers["location"]
    until(lambda: state(daemon, address.rpartition("/")[2]) == "done")
    seen = check_harmless(daemon.call("GET", address))
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7 * 7 }}" in seen.text
    check_harmless(daemon.call("GET", "/query"))


def test_many_rows_have_pages(daemon: Daemon) -> None:
    query_id = run(daemon, "SELECT range AS r FROM range(450)").json()["id"]
    rows: list[str] = []
    address = f"/query/{query_id}"
    for _ in range(3):
        page = daemon.call("GET", address).body.decode()
        rows += re.findall(r"<code>(\d+)</code>", page)
        following = re.findall(r'href="([^"]+)">Further rows', page)
        address = following[0] if following else ""
    assert [int(row) for row in rows] == list(range(450))
    assert address == ""
    wide = ", ".join(f"repeat('<', 3000) AS c{n}" for n in range(300))
    query_id = run(daemon, f"SELECT {wide} FROM range(4)").json()["id"]
    reply = daemon.call("GET", f"/query/{query_id}")
    assert len(reply.body) < 4 * 2**20
    assert reply.body.rstrip().endswith(b"</html>")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) FROM shop.clicks JOIN shop.clicks AS c USING (kafka)", [[3]]),
        ("SELECT count(*) FROM shop.clicks NATURAL JOIN (SELECT kafka FROM shop.clicks)", [[3]]),
        ("SELECT count(COLUMNS('^kaf')) FROM shop.orders", [[2]]),
        ("SELECT n, count(v) FROM shop.clicks UNPIVOT (v FOR n IN (kafka)) GROUP BY n", [["kafka", 3]]),
        ("UNPIVOT (SELECT kafka.partition AS p FROM shop.orders) ON p INTO NAME n VALUE v", [["p", 1]] * 2),
        (
            'PIVOT (SELECT kafka."offset" AS o, 1 AS x FROM shop.clicks) ON o IN (0, 2) USING count(x)',
            [[1, 1]],
        ),
        (
            "WITH clicks AS (SELECT kafka FROM shop.clicks) SELECT count(*) FROM clicks JOIN shop.clicks USING (kafka)",
            [[3]],
        ),
        ("SELECT count(*) FROM query_table(['shop.clicks'])", [[3]]),
        ("SELECT count(*) FROM query('FROM shop.clicks JOIN shop.clicks AS c USING (kafka)')", [[3]]),
        ("SELECT count(*) FROM shop.clicks TABLESAMPLE 100%", [[3]]),
    ],
)
def test_queries_whose_columns_matter_for_their_tables(daemon: Daemon, sql: str, rows: list[Any]) -> None:
    reply = run(daemon, sql, login("carol"))
    assert reply.status == 200, reply.body
    assert reply.json()["rows"] == rows


# --- Errors and limits
@pytest.mark.parametrize(
    ("sql", "status", "why"),
    [
        ("", 400, "the field 'sql' is missing"),
        (" ", 400, "there is no query"),
        ("SELECT (", 400, "cannot be parsed"),
        ("SELECT 1; SELECT 2", 400, "only one SELECT"),
        ("DROP VIEW shop.clicks", 400, "only one SELECT"),
        ("SELECT * FROM shop.nothing", 400, "the tables are shop.clicks, shop.orders"),
        ("SELECT * FROM clicks", 400, "the table of topic clicks is shop.clicks"),
        ("SELECT " + "1," * 40_000 + "1", 400, "more than 65536 bytes"),
        ("SELECT list(range) FROM range(1000000000)", 400, "http.query_memory_max"),
        ("SELECT * FROM read_text('/etc/passwd')", 400, "a query reads only tables, by their names"),
        ('PIVOT shop.clicks ON kafka."offset" USING count(*)', 400, "a PIVOT needs its values: PIVOT"),
        ("SELECT '\ud800'", 400, ""),
    ],
)
def test_what_is_wrong_is_said(daemon: Daemon, sql: str, status: int, why: str) -> None:
    reply = run(daemon, sql)
    assert (reply.status, why in reply.error) == (status, True), reply.body
    assert daemon.call("GET", "/healthz").status == 200


def test_a_query_is_only_a_body_of_its_type(daemon: Daemon) -> None:
    for headers, body, status in (
        ({"Content-Type": "text/plain"}, b'{"sql": "SELECT 1"}', 415),
        ({}, b'{"sql": "SELECT 1"}', 415),
        ({"Content-Type": "application/json"}, b"not JSON", 400),
        ({"Content-Type": "application/json"}, b'{"sql": 1}', 400),
        ({"Content-Type": "application/json"}, b'{"sql": "SELECT 1", "limit": 0}', 400),
        ({"Content-Type": "application/json"}, b'{"sql": "SELECT 1", "limit": 10001}', 400),
        ({"Content-Type": "application/json"}, b'{"sql": "SELECT 1", "more": 1}', 400),
        ({"Content-Type": "application/json"}, b" " * 300_000, 413),
        ({"Content-Type": "application/json", "Origin": "http://evil.example"}, b'{"sql": "SELECT 1"}', 403),
        ({"Content-Type": "application/json", "Origin": "null"}, b'{"sql": "SELECT 1"}', 403),
    ):
        assert daemon.call("POST", "/v1/query", body, headers).status == status, (headers, body[:40])
    assert daemon.call("GET", "/v1/query?sql=SELECT+1").json()["queries"] == []


def test_a_form_of_another_page_does_nothing(daemon: Daemon) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    running = started(daemon)
    for path in ("/query", f"/query/{running}/cancel"):
        for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert daemon.call("POST", path, b"sql=SELECT+1", {**kind, **origin}).status == 403, origin
    assert form(daemon, "/query", {"sql": "SELECT 1"}, {"Content-Type": "text/plain"}).status == 415
    assert form(daemon, "/query", {}).status == 400
    for body in (b"sql=%ff", b"\xff", b"sql=1&" * 20):
        origin = {"Origin": "http://{}:{}".format(*daemon.address)}
        assert daemon.call("POST", "/query", body, {**kind, **origin}).status == 400, body
    assert state(daemon, running) == "running"
    assert len(daemon.call("GET", "/v1/query").json()["queries"]) == 1


def test_a_refused_form_keeps_what_was_typed(daemon: Daemon) -> None:
    sql = "SELECT\n'</textarea><script>alert(1)</script>'"
    wrong_limit = form(daemon, "/query", {"sql": sql, "limit": "m<b>any"})
    seen = check_harmless(wrong_limit)
    assert wrong_limit.status == 400
    assert sql in seen.text
    assert (seen.fields["limit"]["value"], seen.fields["limit"]["aria-describedby"]) == ("m<b>any", "problem")
    assert "from 1 to 10000" in seen.alerts["problem"]
    empty = check_harmless(form(daemon, "/query", {"sql": "", "limit": "7"}))
    assert empty.fields["sql"]["aria-describedby"] == "problem"
    assert empty.fields["limit"]["value"] == "7"
    assert "write one SELECT" in empty.alerts["problem"]


def test_a_query_without_end_is_stopped_in_time(deployment: Deployment) -> None:
    with Daemon(deployment, query_time_max=2) as daemon:
        reply = run(daemon, ENDLESS)
        assert (reply.status, "longer than 2 s (http.query_time_max)" in reply.error) == (400, True)
        until(lambda: not children())
        # A busy machine may take 2 s for any query.
        daemon.queries._http = daemon.face.http.model_copy(update={"query_time_max": 60.0})
        assert run(daemon, COUNT).json()["rows"] == [[3]]


def test_the_number_of_open_queries_is_bounded(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [started(daemon), started(daemon)]
    waiting = [run(daemon, ENDLESS, wait=False).json()["id"] for _ in range(2)]
    assert [state(daemon, one) for one in waiting] == ["waiting"] * 2
    assert len(children()) == queries.RUNNING_MAX
    reply = run(daemon, COUNT)
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    refused = form(daemon, "/query", {"sql": COUNT})
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    seen = check_harmless(refused)
    assert COUNT in seen.text, "the query is not lost"
    assert "too many queries" in seen.alerts["problem"]
    carol = run(daemon, COUNT, login("carol"), wait=False)
    assert carol.status == 202, "one reader does not take all places"
    for one in (waiting[0], *ids):
        assert daemon.call("POST", f"/v1/query/{one}/cancel").json()["state"] == "cancelled"
    until(lambda: state(daemon, waiting[1]) == "running")
    daemon.call("POST", f"/v1/query/{waiting[1]}/cancel")
    until(lambda: not children())


def test_a_query_does_not_wait_for_ever(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "WAITING_S", 0.5)
    ids = [started(daemon), started(daemon)]
    reply = run(daemon, COUNT)
    assert (reply.status, "no turn within 0.5 s" in reply.error) == (503, True)
    assert [state(daemon, one) for one in ids] == ["running"] * 2


def test_results_are_kept_for_some_time_and_within_bounds(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEPT_MAX_OF_ONE", 2)
    ids = [run(daemon, f"SELECT {number}").json()["id"] for number in range(3)]
    listed = daemon.call("GET", "/v1/query").json()["queries"]
    assert [one["id"] for one in listed] == [ids[2], ids[1]]
    assert daemon.call("GET", f"/v1/query/{ids[0]}").status == 404
    assert daemon.call("GET", f"/query/{ids[0]}").status == 404
    monkeypatch.setattr(queries, "KEPT_BYTES_MAX", 350)
    run(daemon, "SELECT repeat('x', 220)")
    assert len(daemon.call("GET", "/v1/query").json()["queries"]) == 1
    monkeypatch.setattr(queries, "KEPT_S", 0.0)
    assert daemon.call("GET", "/v1/query").json()["queries"] == []


def test_a_client_that_leaves_cancels_its_query(daemon: Daemon) -> None:
    connection = daemon.connection()
    body = json.dumps({"sql": ENDLESS}).encode()
    connection.request("POST", "/v1/query", body, {"Content-Type": "application/json"})
    until(lambda: bool(children()))
    connection.close()
    until(lambda: not children())
    (one,) = daemon.call("GET", "/v1/query").json()["queries"]
    assert one["state"] == "cancelled"


def test_another_request_cancels_a_query_that_is_waited_for(daemon: Daemon) -> None:
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(run(daemon, ENDLESS)))
    asking.start()
    until(lambda: bool(children()))
    (one,) = daemon.call("GET", "/v1/query").json()["queries"]
    assert daemon.call("POST", f"/v1/query/{one['id']}/cancel").status == 200
    asking.join(30)
    assert (replies[0].status, "was cancelled" in replies[0].error) == (400, True)


def test_a_stop_of_the_daemon_ends_its_queries(deployment: Deployment) -> None:
    with Daemon(deployment, query_time_max=600) as daemon:
        started(daemon)
        until(lambda: bool(children()))
    until(lambda: not children())


def test_a_process_that_dies_harms_nothing(daemon: Daemon) -> None:
    query_id = started(daemon)
    until(lambda: bool(children()))
    children()[0].kill()
    until(lambda: state(daemon, query_id) == "failed")
    assert run(daemon, COUNT).json()["rows"] == [[3]]


def test_nothing_is_left_behind(daemon: Daemon) -> None:
    run(daemon, COUNT)
    run(daemon, "SELECT nothing")
    before = pipes()
    for _ in range(3):
        run(daemon, COUNT)
        run(daemon, "SELECT nothing")
        daemon.call("POST", f"/v1/query/{started(daemon)}/cancel")
        until(lambda: not children())
    until(lambda: pipes() == before)
    assert not children()
    assert not list(daemon.application.objects.spool_dir().glob("query-*"))


def test_without_duckdb_the_page_says_what_to_install(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "duckdb" else found(name))
    assert "pip install" in check_harmless(daemon.call("GET", "/query")).text
    assert "pip install" in daemon.call("GET", "/v1/query").json()["limits"]["unavailable"]
    reply = run(daemon, "SELECT 1")
    assert (reply.status, "pip install" in reply.error) == (400, True)


# --- Who may ask
def test_a_reader_reaches_only_tables_of_its_topics(daemon: Daemon) -> None:
    alice, bob, carol = login("alice"), login("bob"), login("carol")
    assert run(daemon, COUNT, alice).json()["rows"] == [[3]]
    assert run(daemon, "SELECT count(*) FROM shop.orders", carol).json()["rows"] == [[2]]
    assert [one["table"] for one in daemon.call("GET", "/v1/query", headers=alice).json()["tables"]] == [
        "shop.clicks"
    ]
    assert daemon.call("GET", "/v1/query", headers=bob).json()["tables"] == []
    assert run(daemon, COUNT, bob).status == 403, "to describe is not to read"
    there, absent = (run(daemon, f"SELECT * FROM shop.{name}", alice) for name in ("orders", "absent"))
    assert there.status == absent.status == 403
    assert there.error.replace("orders", "absent") == absent.error
    with catalog_table(daemon.deployment, "shop.orders") as table:
        files = [one.file.file_path.removeprefix("file://") for one in table.scan().plan_files()]
    for sql in (
        "SELECT * FROM shop.clicks JOIN shop.orders ON true",
        "SELECT (SELECT count(*) FROM shop.orders) FROM shop.clicks",
        "WITH clicks AS (FROM shop.orders) FROM clicks",
        "FROM query_table('shop.orders')",
        "FROM query('FROM shop.orders')",
        "FROM query('FROM shop.' || 'orders')",
        "FROM memory.shop.orders",
        'FROM "SHOP"."Orders"',
        "DESCRIBE shop.orders",
        "SUMMARIZE shop.orders",
        "SELECT * FROM pragma_table_info('shop.orders')",
        "SELECT * FROM shop.clicks SEMI JOIN shop.orders USING (kafka)",
        "SELECT kafka FROM shop.clicks NATURAL JOIN shop.orders",
        "SELECT COLUMNS('^kaf') FROM shop.orders",
        "FROM shop.orders UNPIVOT (v FOR n IN (kafka))",
        "PIVOT shop.orders ON kafka IN (1) USING count(*)",
        "FROM query_table(['shop.clicks', 'shop.orders'], true)",
        "FROM query_table('shop.' || 'orders')",
        "FROM query('FROM query(''FROM shop.orders JOIN shop.clicks USING (kafka)'')')",
        *(f"FROM read_parquet('{path}')" for path in files),
        *(f"FROM '{path}'" for path in files),
    ):
        reply = run(daemon, sql, alice)
        assert reply.status in (400, 403), (sql, reply.body)
    assert files
    for sql in (
        "SHOW ALL TABLES",
        "FROM information_schema.tables",
        "FROM information_schema.columns",
        "FROM duckdb_views()",
        "FROM duckdb_settings()",
    ):
        assert b"orders" not in run(daemon, sql, alice).body, sql


def test_a_query_belongs_to_the_reader_that_started_it(daemon: Daemon) -> None:
    alice, carol = login("alice"), login("carol")
    query_id = run(daemon, COUNT, alice).json()["id"]
    absent = "0" * 32
    for headers in (carol, None):
        for method, path in (("GET", "/v1/query/{}"), ("GET", "/query/{}"), ("POST", "/v1/query/{}/cancel")):
            there, other = (
                daemon.call(method, path.format(one), headers=headers) for one in (query_id, absent)
            )
            assert there.status == other.status == 404
            assert there.body.replace(query_id.encode(), absent.encode()) == other.body or path == "/query/{}"
        assert form(daemon, f"/query/{query_id}/cancel", {}, headers).status == 404
        assert daemon.call("GET", "/v1/query", headers=headers).json()["queries"] == []
    assert daemon.call("GET", f"/query/{query_id}", headers=alice).status == 200
    assert daemon.call("GET", f"/v1/query/{query_id}", headers=PROXY).status == 401
    assert (
        daemon.call("POST", "/v1/query", b"{}", {**PROXY, "Content-Type": "application/json"}).status == 401
    )
    assert form(daemon, "/query", {"sql": COUNT}, PROXY).status == 401
    assert form(daemon, f"/query/{query_id}/cancel", {}, PROXY).status == 401


def test_a_result_is_not_shown_once_its_topics_may_not_be_read(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = login("alice")
    query_id = run(daemon, COUNT, alice).json()["id"]
    monkeypatch.setattr(daemon.logins, "allows", lambda *_: False)
    assert daemon.call("GET", f"/v1/query/{query_id}", headers=alice).status == 403
    assert daemon.call("GET", f"/query/{query_id}", headers=alice).status == 403


def test_a_table_that_is_gone_is_no_empty_table(daemon: Daemon) -> None:
    with catalog_table(daemon.deployment, "shop.clicks") as table:
        table.catalog.drop_table(("shop", "clicks"))
    reply = run(daemon, COUNT)
    assert (reply.status, "is gone" in reply.error) == (500, True), reply.body
