"""The lines with which people read a table elsewhere: they must survive a shell and a query parser, and give nothing away."""

from __future__ import annotations

import shlex
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.catalog.engines import SPARK_PACKAGES, spark_sql, trino
from archiver.catalog.engines import duckdb as duckdb_line

SQL = {"type": "sql", "uri": "sqlite:////data/my folder/catalog.db?timeout=60"}


def words(lines: list[str]) -> list[str]:
    """What a shell makes of the lines."""
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    return shlex.split("\n".join(lines))


def confs(found: list[str]) -> dict[str, str]:
    pairs = [found[at + 1] for at, word in enumerate(found) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_spark_with_an_embedded_catalog() -> None:
    query = "SELECT count(*) FROM shop.orders WHERE name = 'it''s'"
    found = words(spark_sql("local", SQL, "file:///data/my folder", query))
    assert found[:3] == ["spark-sql", "--packages", ",".join(SPARK_PACKAGES)]
    assert found[-2:] == ["-e", query]
    assert confs(found) == {
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "jdbc",
        "spark.sql.catalog.local.uri": "jdbc:sqlite:/data/my folder/catalog.db",
        "spark.sql.catalog.local.warehouse": "file:///data/my folder",
        "spark.sql.defaultCatalog": "local",
    }


def test_spark_command_is_a_choice() -> None:
    assert words(spark_sql("local", SQL, "file:///d", "SELECT 1", command=".venv/bin/spark-sql"))[0] == ".venv/bin/spark-sql"


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": "https://user:hunter2@catalog.example", "token": "hunter2"},
        {"type": "sql", "uri": "postgresql://archiver:hunter2@db/catalog"},
        {"type": "hive", "uri": "thrift://hunter2:9083"},
        {"credential": "hunter2"},
    ],
)
def test_nothing_secret_is_printed(properties: dict[str, str]) -> None:
    lines = spark_sql("prod", properties, "s3://hunter2free/", "SELECT 1")
    assert "hunter2@" not in "\n".join(lines)
    found = confs(words(lines))
    assert found["spark.sql.catalog.prod.uri"] == "<the catalog's address>"
    assert found["spark.sql.catalog.prod.type"] == properties.get("type", "rest")
    assert "hunter2" not in "".join(found.values())


def test_trino_quotes_every_part() -> None:
    assert trino("my-lake", "a_b.shop-eu.orders") == 'SELECT * FROM "my-lake"."a_b"."shop-eu"."orders" LIMIT 10'


def test_duckdb_reads_what_it_is_told(tmp_path: Path) -> None:
    """One file is older than a column; what the folders are called makes no column."""
    folder = tmp_path / "it's a folder [1] of 2?*" / "partition=00000" / "year=2026"
    folder.mkdir(parents=True)
    uris = []
    for number in (2, 1):
        columns = {"number": [number]} if number == 1 else {"number": [number], "newer": ["x"]}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        uris.append(f"file://{folder}/{number}.parquet")
    found = duckdb.execute(f"SELECT * FROM ({duckdb_line(uris)}) ORDER BY number")
    assert [column[0] for column in found.description] == ["number", "newer"]
    assert found.fetchall() == [(1, None), (2, "x")]


def test_duckdb_line_does_not_depend_on_the_order_of_files() -> None:
    assert (
        duckdb_line(["file:///b", "file:///a"])
        == duckdb_line(["file:///a", "file:///b"])
        == ("SELECT * FROM read_parquet(['/a', '/b'], union_by_name = true, hive_partitioning = false)")
    )
