"""Tables and archives as other software reads them: DuckDB reads the files, Spark with Iceberg's runtime
reads the tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from archiver.catalog.engines import SPARK_PACKAGES
from tests.support.builders.deployment import ROOT, Deployment, sample_records
from tests.support.schema.orders import DESCRIPTOR_SET

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SPARK_TIMEOUT_S = 240
IVY_CACHE = ROOT / ".cache" / "ivy"


@pytest.fixture(scope="module")
def archived(
    tmp_path_factory: pytest.TempPathFactory,
    spark_session: SparkSession,
) -> tuple[Deployment, dict[tuple[str, int], list[Any]]]:
    """Three rounds of records; per topic partition what was sent, in the order of offsets."""
    deployment = Deployment(
        tmp_path_factory.mktemp("readers") / "d", overrides={"archive": {"max_bytes": "4KiB"}}
    )
    sent: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for first in (0, 400, 700):
        records = sample_records(300, first)
        acknowledged = deployment.produce(records)
        for record, place in zip(records, acknowledged, strict=True):
            sent[place["topic"], place["partition"]].append((place["offset"], record))
        done = deployment.cli("archive", "--all")
        assert done.code == 0, (done.out, done.err)
    for placed in sent.values():
        placed.sort(key=lambda item: item[0])
        assert [offset for offset, _ in placed] == list(range(len(placed)))
    return deployment, {place: [record for _, record in placed] for place, placed in sent.items()}


def test_duckdb_finds_every_offset_once_in_order(
    archived: tuple[Deployment, dict[tuple[str, int], list[Any]]],
) -> None:
    deployment, sent = archived
    ids = {
        item["topic"]: item["topic_id"]
        for item in deployment.cli("topics", "list", "--output", "json").json()["topics"]
    }
    checked = 0
    for (topic, partition), records in sent.items():
        if topic == "kept":
            continue
        folder = deployment.data / "archive" / ids[topic] / "data" / f"partition={partition:05}"
        files = sorted(str(path) for path in folder.rglob("*.parquet"))
        assert len(files) > 1, "several archives per partition are needed here"
        rows = duckdb.execute(
            "SELECT kafka.partition, kafka.offset, epoch_us(kafka.ingest_timestamp), "
            "epoch_us(kafka.event_timestamp), key, headers "
            f"FROM read_parquet({files}, filename = true) ORDER BY filename, file_row_number"
        ).fetchall()
        assert [row[0] for row in rows] == [partition] * len(records)
        assert [row[1] for row in rows] == list(range(len(records)))
        ingested = [row[2] for row in rows]
        assert ingested == sorted(ingested)
        for row, record in zip(rows, records, strict=True):
            assert (None if row[4] is None else row[4]["__raw__"]) == _bytes(record["key"])
            assert [[item["key"], item["value"]] for item in row[5]] == [
                [name, _bytes(value)] for name, value in record["headers"]
            ]
            checked += 1
    assert checked > 500


def test_duckdb_finds_the_values_that_were_sent(
    archived: tuple[Deployment, dict[tuple[str, int], list[Any]]],
) -> None:
    deployment, sent = archived
    found = {item["topic"]: item for item in deployment.cli("tables", "--output", "json").json()["tables"]}
    kinds = {"decoded": 0, "raw": 0, "null": 0}
    query = found["orders"]["duckdb"].replace("SELECT *", "SELECT value, kafka.partition, kafka.offset")
    rows = duckdb.execute(query).fetchall()
    for value, partition, offset in rows:
        record = sent["orders", partition][offset]
        original = _bytes(record["value"])
        if original is None:
            assert value is None
            kinds["null"] += 1
        elif value["__raw__"] is not None:
            assert value["__raw__"] == original
            assert value["__err__"]
            assert value["id"] is None
            kinds["raw"] += 1
        else:
            message = _order(original)
            assert (value["id"], value["customer"]) == (message.id, message.customer)
            assert [(line["sku"], line["quantity"]) for line in value["lines"]] == [
                (line.sku, line.quantity) for line in message.lines
            ]
            kinds["decoded"] += 1
    assert len(rows) == sum(len(records) for (topic, _), records in sent.items() if topic == "orders")
    assert all(kinds.values()), kinds


def test_spark_sql_reads_the_tables(archived: tuple[Deployment, dict[tuple[str, int], list[Any]]]) -> None:
    deployment, sent = archived
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parents[1] / "support" / "spark" / "spark_sql.py"),
            str(deployment.root),
            str(IVY_CACHE),
            ",".join(SPARK_PACKAGES),
        ],
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    for topic in ("orders", "clicks"):
        expected = {
            str(partition): len(records) for (name, partition), records in sent.items() if name == topic
        }
        assert answer[topic]["rows"] == expected
        assert answer[topic]["distinct"] == expected
    originals = [
        _bytes(record["value"])
        for (topic, _), records in sent.items()
        if topic == "orders"
        for record in records
    ]
    lines = [
        _order(value).lines for value in originals if value is not None and not value.startswith(b"\xff")
    ]
    assert answer["quantity"] == sum(line.quantity for each in lines for line in each)
    assert answer["found"] == 1
    assert answer["files"] > 3


def test_what_tables_prints_runs_as_it_stands(
    archived: tuple[Deployment, dict[tuple[str, int], list[Any]]],
) -> None:
    """Spark's command in a shell, with only the place of its packages added; DuckDB's query as it is."""
    deployment, sent = archived
    found = {item["topic"]: item for item in deployment.cli("tables", "--output", "json").json()["tables"]}
    expected = sum(len(records) for (topic, _), records in sent.items() if topic == "clicks")
    rows = duckdb.execute(found["clicks"]["duckdb"])
    assert [column[0] for column in rows.description] == ["key", "value", "headers", "kafka"]
    assert (
        len(duckdb.execute(f"SELECT kafka.offset FROM ({found['clicks']['duckdb']})").fetchall()) == expected
    )
    command = found["clicks"]["spark"].replace(
        "SELECT * FROM shop.clicks LIMIT 10", "SELECT count(*) FROM shop.clicks"
    )
    assert "count(*)" in command
    first, rest = command.split("\n", 1)
    before = set(deployment.root.iterdir())
    kept = (
        f" --conf spark.jars.ivy={IVY_CACHE} --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1"
    )
    first = (
        first.replace("spark-sql", str(Path(sys.executable).parent / "spark-sql"), 1)
        if first.startswith("spark-sql")
        else first
    )
    done = subprocess.run(
        ["bash", "-c", f"{first.removesuffix(chr(92)).rstrip()}{kept} \\\n{rest}"],
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        cwd=deployment.root,
        env={**deployment.environ(), "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [str(expected)]
    assert set(deployment.root.iterdir()) == before, "no metastore_db, no derby.log, no spark-warehouse"


def test_bounds_lead_to_the_one_file(archived: tuple[Deployment, dict[tuple[str, int], list[Any]]]) -> None:
    deployment, _ = archived
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db?timeout=60")
    try:
        table = catalog.load_table("shop.orders")
        everything = list(table.scan().plan_files())
        found = list(table.scan(row_filter="kafka.partition = 1 and kafka.offset = 5").plan_files())
    finally:
        catalog.close()
    assert len(everything) > 3
    assert len(found) == 1, "the bounds of kafka.partition and kafka.offset exclude every other file"


def _bytes(text: str | None) -> bytes | None:
    import base64

    return None if text is None else base64.b64decode(text)


def _order(data: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")).FromString(data)
