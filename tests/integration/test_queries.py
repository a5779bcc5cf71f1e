"""docs/queries.md is true: each of its queries runs unchanged on Trino, Spark SQL and DuckDB, over a REST
catalog and a bucket.

One Trino serves all tests, because it takes most of a minute to start: every test that asks it belongs in
this file.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from archiver.catalog.engines import KEY_VARIABLES, spark_sql
from archiver.config.settings import load_settings
from archiver.objects.location import StorePlace
from archiver.query.values import faithful
from tests.support.catalog.query_lake import ARCHIVES, BROKEN, CATALOG, DAYS, Lake, Sent, filled
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from tests.support.pages import ROOT, Block, blocks
from tests.support.schema import change_events
from tests.support.schema.json_page import documents_of_all
from tests.support.schema.mapping_page import hexadecimal
from tests.support.schema.shaped_rows import shaped
from tests.support.schema.type_tables import type_text
from tests.support.servers.trino_server import TrinoServer
from tests.support.spark.asked_engines import Answer, AskedSpark, AskedTrino
from tests.support.spark.spark_process import Refused

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a time limit counts the fixtures of a file's first test

PAGE = ROOT / "docs" / "queries.md"
JSON_PAGE = ROOT / "docs" / "schema-mapping-json.md"
QUERIES = [block for block in blocks(PAGE) if block.language == "sql"]
CHANGES = [block for block in blocks(change_events.PAGE) if block.language == "sql"]
ENGINES = ("trino", "spark", "duckdb")
FILES = 2 * ARCHIVES * DAYS
UNCACHED = "\niceberg.metadata-cache.enabled=false\n"
"""Otherwise Trino would keep small files in memory, and what a query reads would depend on earlier queries.
"""
FILTERS = {
    "one-record": "kafka.partition = 1 and kafka.offset = 45",
    "since": "kafka.ingest_timestamp >= '2026-03-03T00:00:00+00:00'",
    "from-offset": "kafka.partition = 0 and kafka.offset >= 100",
    "everything": "kafka.offset >= 0",
}
"""What the page's queries ask, in pyiceberg's words."""

Rows = list[list[Any]]


@pytest.fixture(scope="module")
def lake(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    bucket = s3_server.new_bucket()
    keys = {"s3.access-key-id": ACCESS_KEY_ID, "s3.secret-access-key": SECRET_ACCESS_KEY}
    reached = {"s3.endpoint": s3_server.uri, "s3.path-style-access": "true", "client.region": REGION, **keys}
    folder = tmp_path_factory.mktemp("lake")
    with RestCatalog(
        tmp_path_factory.mktemp("rest"), {"warehouse": f"s3://{bucket}/lake", **reached}
    ) as catalog:
        yield from filled(folder, s3_server, catalog)


@pytest.fixture(scope="module")
def engines(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Callable[[str], Answer]]]:
    """By name, the function that queries the engine. Trino and Spark connect with what `archiver tables`
    prints, and keys."""
    reported = lake.tables()
    keys = dict(zip(KEY_VARIABLES, (ACCESS_KEY_ID, SECRET_ACCESS_KEY), strict=True))
    with (
        AskedSpark(tmp_path_factory.mktemp("spark"), reported["spark"], lake.reads) as spark,
        TrinoServer(
            tmp_path_factory.mktemp("trino"), {CATALOG: reported["trino_catalog"] + UNCACHED}, keys
        ) as trino,
    ):
        yield {
            "trino": AskedTrino(trino, lake.reads).ask,
            "spark": spark.ask,
            "duckdb": lambda sql: ask_duckdb(lake, sql),
        }


def ask_duckdb(lake: Lake, sql: str) -> Answer:
    """The rows of `archiver query`, from its JSON."""
    lake.reads.files()
    done = lake.deployment.cli("query", sql, "--output", "json", "--max-rows", "0", "--threads", "1")
    if done.code != 0:
        raise Refused(done.err)
    document = done.json()
    names = [column["name"] for column in document["columns"]]
    return Answer([tuple(row[name] for name in names) for row in document["rows"]], lake.reads.files())


def reported(answer: Answer) -> Rows:
    """The rows as JSON has them, sorted."""
    return in_order([[faithful(value) for value in row] for row in answer.rows])


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def one_of(lake: Lake, partition: int, offset: int) -> Sent:
    (found,) = (sent for sent in lake.orders if (sent.partition, sent.offset) == (partition, offset))
    return found


def buyer(order: Mapping[str, Any]) -> str:
    return str(order.get("buyer", order.get("customer")))


def one_record(lake: Lake) -> Rows:
    order = one_of(lake, 1, 45).order
    assert order is not None
    return [[1, 45, order["id"], buyer(order)]]


def since(lake: Lake) -> Rows:
    late = [sent for sent in lake.orders if sent.day == DAYS - 1]
    by_partition = [[sent.offset for sent in late if sent.partition == partition] for partition in range(2)]
    return [[partition, len(offsets), max(offsets)] for partition, offsets in enumerate(by_partition)]


def from_offset(lake: Lake) -> Rows:
    found = [sent.order for sent in lake.orders if sent.partition == 0 and sent.offset >= 100]
    return [[len(found), min(order["id"] for order in found if order is not None)]]


def everything(lake: Lake) -> Rows:
    orders = [sent.order for sent in lake.orders if sent.order is not None]
    return [[len(orders), sum(order["total"] for order in orders)]]


def newest(lake: Lake) -> Rows:
    last: dict[tuple[int, bytes], Sent] = {}
    for sent in sorted(lake.orders, key=lambda sent: sent.offset):
        last[sent.partition, sent.key] = sent
    found = [sent for sent in last.values() if sent.value is not None]
    return [
        [sent.partition, sent.key.decode(), None if sent.order is None else sent.order["id"]]
        for sent in found
    ]


def lines(lake: Lake) -> Rows:
    sums: dict[str, int] = defaultdict(int)
    for sent in lake.orders:
        for line in [] if sent.order is None else sent.order["lines"]:
            sums[line["sku"]] += line["quantity"]
    return [list(item) for item in sums.items()]


def undecoded(lake: Lake) -> Rows:
    return [[sent.partition, sent.offset, faithful(BROKEN)] for sent in lake.orders if sent.value == BROKEN]


def snapshots(lake: Lake) -> Rows:
    return [[faithful(one.snapshot_id), one.valid_through] for one in lake.snapshots]


def as_of(lake: Lake) -> Rows:
    """The first commit of the first day."""
    early = [sent.order for sent in lake.orders if (sent.day, sent.archive) == (0, 0)]
    return [[len(early), max(order["customer"] for order in early if order is not None)]]


def complete_through(lake: Lake) -> Rows:
    """The first commit of the second day is the first that shows that nothing of the day before is left."""
    found = lake.snapshots[ARCHIVES]
    assert found.valid_through > f"{lake.days[1]}T00:00" > lake.snapshots[ARCHIVES - 1].valid_through
    return [[faithful(found.snapshot_id)]]


def complete_now(lake: Lake) -> Rows:
    return [[lake.snapshots[-1].valid_through]]


def changed(lake: Lake) -> Rows:
    rows: Rows = []
    for offset in (3, 43, 83):
        order = one_of(lake, 0, offset).order
        assert order is not None
        rows.append([buyer(order), order["total"], order.get("note"), str(order["state"])])
    return rows


def changed_apart(lake: Lake) -> Rows:
    return [
        [*row[:3], int(row[3]) if row[3].isdigit() else None, None if row[3].isdigit() else row[3]]
        for row in changed(lake)
    ]


EXPECTED: dict[str, Callable[[Lake], Rows]] = {
    "one-record": one_record,
    "since": since,
    "from-offset": from_offset,
    "everything": everything,
    "newest": newest,
    "lines": lines,
    "undecoded": undecoded,
    "snapshots": snapshots,
    "as-of-version": as_of,
    "as-of-time": as_of,
    "complete-through": complete_through,
    "complete-now": complete_now,
    "changed": changed,
    "changed-apart": changed_apart,
}


def replaced(lake: Lake, text: str) -> str:
    """The page's days, moment and snapshot are of no real table: those of this lake replace them."""
    first, second = lake.snapshots[:2]
    between = dt.datetime.fromtimestamp((first.timestamp_ms + second.timestamp_ms) // 2 / 1000, dt.UTC)
    text = text.replace(
        "2026-03-01 18:00:00.000", between.isoformat(" ", "milliseconds").removesuffix("+00:00")
    )
    for number, day in enumerate(lake.days):
        text = text.replace(f"2026-03-0{number + 1}", day)
    return text.replace("4711", str(first.snapshot_id))


def test_the_query_inside_lists_survives_a_new_field(engines: Mapping[str, Callable[[str], Answer]]) -> None:
    """The page's query of Trino, over lines that have a field more than it names."""
    (query,) = (block.text for block in QUERIES if (block.options[0], block.title) == ("trino", "lines"))
    kind = "ROW(lines ARRAY(ROW(sku varchar, quantity integer, colour varchar, unrecognized varbinary)))"
    rows = (
        f"(SELECT CAST(ROW(ARRAY[ROW('a', 1, 'red', NULL), ROW('a', 2, 'blue', NULL)]) AS {kind}) AS value)"
    )
    assert reported(engines["trino"](query.replace("lake.shop.orders", rows))) == [["a", 3]]


@pytest.mark.parametrize("block", QUERIES, ids=[f"{block.options[0]}-{block.title}" for block in QUERIES])
def test_a_query_of_the_page(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], block: Block
) -> None:
    answer = engines[block.options[0]](replaced(lake, block.text))
    rows = reported(answer)
    if (block.options[0], block.title) == ("spark", "complete-now"):
        rows = [row[-1:] for row in rows]  # the property's name stands before its value
    assert rows == in_order(EXPECTED[block.title or ""](lake))
    wanted = files_of_the_page().get(block.title or "")
    if wanted is not None:
        assert len(answer.files) == wanted[block.options[0]]
    if wanted is not None and answer.metrics:
        assert answer.metrics == {
            "resultDataFiles": wanted["spark"],
            "skippedDataFiles": answer.metrics["skippedDataFiles"],
        }


def files_of_the_page() -> dict[str, dict[str, int]]:
    """The page's table of files, by query and engine."""
    found = re.findall(
        r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {title: dict(zip((*ENGINES, "plan"), map(int, numbers), strict=True)) for title, *numbers in found}


def value_type(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Type of the value column, from a table's own schema."""
    fields = {field["name"]: field for field in schema["fields"]}
    found: dict[str, Any] = fields["value"]["type"]
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_type_of_the_mapping(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str
) -> None:
    """The examples of the mapping's page hold what the page states; a record without any has nothing."""
    kind, table = value_type(lake.types_schema), table_of(engine, "types")
    answer = engines[engine](f"SELECT value FROM {table} ORDER BY kafka.offset")
    (full,), (empty,) = answer.rows
    binary = base64.b64decode if engine == "duckdb" else bytes
    values, nothing = shaped(full, kind, binary), shaped(empty, kind, binary)
    assert values["__err__"] is None and all(item is None for item in nothing.values())
    fields = {field["name"]: field["type"] for field in kind["fields"]}
    for place, row in enumerate(lake.types):
        columns = {field["name"]: field["type"] for field in fields[f"r{place}"]["fields"]}
        names = [column.split(" ", 1)[0] for column in row.columns]
        holds = [
            shaped(json.loads(text), columns[name], hexadecimal)
            for name, text in zip(names, row.holds, strict=True)
        ]
        assert [values[f"r{place}"].get(name) for name in names] == holds, f"line {row.line} of the page"
    assert f"have {len(lake.types)} rows that can be in one topic" in " ".join(
        PAGE.read_text(encoding="utf-8").split()
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_every_type_of_the_mapping_for_avro(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str
) -> None:
    kind, table = value_type(lake.avro_schema), table_of(engine, "avro_types")
    answer = engines[engine](f"SELECT value FROM {table}")
    ((full,),) = answer.rows
    binary = base64.b64decode if engine == "duckdb" else bytes
    values = shaped(full, kind, binary)
    assert values["__err__"] is None
    columns = {field["name"]: field["type"] for field in kind["fields"]}
    for place, row in enumerate(lake.avro_types):
        (inner,) = columns[f"r{place}"]["fields"]
        holds = shaped(row.holds, inner["type"], hexadecimal)
        assert values[f"r{place}"]["v"] == holds, f"line {row.line} of the page"
    assert f"have {len(lake.avro_types)} rows, all in one topic" in " ".join(
        PAGE.read_text(encoding="utf-8").split()
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_every_type_of_the_mapping_for_json(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str
) -> None:
    """A record for each row of the page: its column holds what the page states, every other one is null, and
    its bytes are kept if the page says so."""
    kind, table = value_type(lake.json_schema), table_of(engine, "json_types")
    answer = engines[engine](f"SELECT value FROM {table} ORDER BY kafka.offset")
    binary = base64.b64decode if engine == "duckdb" else bytes
    columns = {field["name"]: field["type"] for field in kind["fields"]}
    records = zip(lake.json_types, documents_of_all(lake.json_types), answer.rows, strict=True)
    for place, (row, document, (value,)) in enumerate(records):
        inner = columns[f"r{place}"]["fields"][0]
        assert f"v {type_text(inner['type'])}" == row.column
        holds = {"v": shaped(row.holds, inner["type"], hexadecimal)}
        raw = document if row.raw == "kept" else None
        assert shaped(value, kind, binary) == {
            **dict.fromkeys(columns.keys() - {"__unrecognized__"}),
            f"r{place}": holds,
            "__raw__": raw,
        }, f"line {row.line} of the page"
    assert f"have {len(lake.json_types)} rows, each a record of one topic" in " ".join(
        PAGE.read_text(encoding="utf-8").split()
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_of_json_text(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str
) -> None:
    """The query of the page about JSON, over two of its rows as the columns of one record."""
    examples = [row.example if row.column == "v string" else None for row in lake.json_types]
    extra, size = (f"max(value.r{examples.index(one)}.v)" for one in ('{"b":1.50,"a":[true]}', '"a"'))
    made = {
        "trino": f"CAST(ROW({extra}, {size}) AS ROW(extra varchar, size varchar))",
        "spark": f"named_struct('extra', {extra}, 'size', {size})",
        "duckdb": f"struct_pack(extra := {extra}, size := {size})",
    }[engine]
    rows = f"(SELECT {made} AS value FROM {table_of(engine, 'json_types')})"
    query = change_events.queries(engine, JSON_PAGE)["text"].replace(table_of(engine, "events"), rows)
    assert reported(engines[engine](query)) == [["1.50", "true", "a"]]


def table_of(engine: str, name: str) -> str:
    """A table of the lake as an engine names it."""
    return f"shop.{name}" if engine == "duckdb" else f"{CATALOG}.shop.{name}"


@pytest.mark.parametrize("block", CHANGES, ids=[f"{block.options[0]}-{block.title}" for block in CHANGES])
def test_a_query_of_the_page_about_debezium(
    engines: Mapping[str, Callable[[str], Answer]], block: Block
) -> None:
    expected = {
        "current": change_events.CURRENT,
        "deleted": change_events.DELETED,
        "types": change_events.TYPES,
    }
    assert reported(engines[block.options[0]](block.text)) == expected[block.title or ""]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_page_calls_the_types(
    lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str
) -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    found = {iceberg: dict(zip(ENGINES, names, strict=True)) for iceberg, *names in rows}
    places: dict[str, str] = {}
    for place, row in enumerate(lake.types):
        name, _, kind = row.columns[0].partition(" ")
        places.setdefault(kind, f"r{place}.{name}")
    kinds = places.keys() | {one.column.partition(" ")[2] for one in lake.json_types}
    leaves = {kind for kind in kinds if not kind.startswith(("struct", "list", "map"))}
    assert leaves <= found.keys()
    more: dict[str, str] = {}
    for place, one in enumerate(lake.avro_types):
        kind = one.column.partition(" ")[2]
        if kind not in places:
            more.setdefault(kind, f"r{place}.v")
    for table, columns in (("types", places), ("avro_types", more)):
        asked = [kind for kind in found if kind in columns]
        chosen = ", ".join(f"typeof(value.{columns[kind]}) AS c{n}" for n, kind in enumerate(asked))
        answer = engines[engine](f"SELECT {chosen} FROM {table_of(engine, table)} WHERE kafka.offset = 0")
        assert list(answer.rows[0]) == [found[kind][engine] for kind in asked]
    assert {"date", "timestamp"} <= more.keys() & found.keys() <= found.keys() <= places.keys() | more.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_any_encodings(lake: Lake, engines: Mapping[str, Callable[[str], Answer]], engine: str) -> None:
    """All columns that an archive may have."""
    plain, delta, prefix, lengths = (
        "PLAIN",
        "DELTA_BINARY_PACKED",
        "DELTA_BYTE_ARRAY",
        "DELTA_LENGTH_BYTE_ARRAY",
    )
    dictionary = {plain, "RLE_DICTIONARY"}
    expected = {
        "id": {delta},
        "name": {prefix},
        "kind": dictionary,
        "city": dictionary,
        "step": {delta},
        "amount": {plain},
        "blob": {lengths},
    }
    assert {name: lake.encodings[f"value.{name}"] for name in expected} == expected
    names = [*expected, "parts"]
    table = "shop.readings" if engine == "duckdb" else f"{CATALOG}.shop.readings"
    answer = engines[engine](
        f"SELECT {', '.join(f'value.{name}' for name in names)} FROM {table} ORDER BY kafka.offset"
    )
    assert [[faithful(value) for value in row] for row in answer.rows] == [
        [faithful(one[name]) for name in names] for one in lake.readings
    ]


def test_files_that_duckdb_need_not_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's program: pyiceberg plans and reads, DuckDB asks."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    (program,) = (block for block in blocks(PAGE) if block.title == "planned")
    uri = lake.deployment.document()["catalogs"][0]["uri"]
    text = (
        replaced(lake, program.text)
        .replace("http://catalog:8181", uri)
        .replace("http://s3:9000", lake.reads.uri)
    )
    space: dict[str, Any] = {}
    exec(text, space)
    try:
        assert [list(row) for row in space["answer"]] == since(lake)
        planned = {
            title: len(list(space["table"].scan(row_filter=replaced(lake, text)).plan_files()))
            for title, text in FILTERS.items()
        }
        assert planned == {title: numbers["plan"] for title, numbers in files_of_the_page().items()}
        early = space["table"].scan(snapshot_id=lake.snapshots[0].snapshot_id).to_arrow()
        assert early.num_rows == as_of(lake)[0][0]
    finally:
        space["catalog"].close()


def test_what_duckdb_cannot_convert(lake: Lake) -> None:
    """The page states this. If a newer DuckDB supports it, the page needs one query less of its own."""
    (query,) = (block.text for block in QUERIES if (block.options[0], block.title) == ("trino", "changed"))
    with pytest.raises(Refused, match="internal error of duckdb"):
        ask_duckdb(lake, query.replace(f"{CATALOG}.", ""))


def test_how_the_page_connects() -> None:
    """Its lines are those for deploy/stack, and every query of it has an engine and an expectation."""
    stack = ROOT / "deploy" / "stack"
    shown = {block.title: block.text for block in blocks(PAGE) if block.language in ("ini", "sh")}
    assert shown["lake.properties"] == (stack / "trino" / "lake.properties").read_text(encoding="utf-8")
    settings = load_settings(stack / "archiver" / "archiver.yaml", dict.fromkeys(KEY_VARIABLES, "k"))
    properties = {"type": "rest", "uri": settings.catalogs[0].properties()["uri"]}
    query = "SELECT * FROM shop.orders LIMIT 10"
    assert shown["spark-sql"].splitlines() == spark_sql(
        "lake", properties, StorePlace.of(settings.data), query
    )
    assert {block.options[0] for block in QUERIES} == set(ENGINES)
    assert {block.title for block in QUERIES} == set(EXPECTED)
    everything = files_of_the_page()
    assert everything.keys() == FILTERS.keys()
    assert set(everything["everything"].values()) == {FILES}
