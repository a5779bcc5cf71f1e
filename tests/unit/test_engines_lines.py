"""The lines that users copy to read a table in another engine. They must survive a shell and a query parser,
and expose no secret."""

from __future__ import annotations

import shlex
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.catalog.configured import ConfiguredCatalogs
from archiver.catalog.engines import (
    AWS_PACKAGE,
    SPARK_PACKAGES,
    duckdb_secret,
    spark_sql,
    trino,
    trino_catalog,
)
from archiver.catalog.engines import duckdb as duckdb_line
from archiver.config.settings import load_settings
from archiver.objects.location import S3Options, StorePlace
from archiver.runtime.ids import SystemIds

STACK = Path(__file__).resolve().parents[2] / "deploy" / "stack"
SQL = {"type": "sql", "uri": "sqlite:////data/my folder/catalog.db?timeout=60"}


def words(lines: list[str]) -> list[str]:
    """The words into which a shell splits the lines."""
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    return shlex.split("\n".join(lines))


def confs(found: list[str]) -> dict[str, str]:
    pairs = [found[at + 1] for at, word in enumerate(found) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_spark_with_an_embedded_catalog() -> None:
    query = "SELECT count(*) FROM shop.orders WHERE name = 'it''s'"
    found = words(spark_sql("local", SQL, StorePlace("file:///data/my folder"), query))
    assert found[:3] == ["spark-sql", "--packages", ",".join(SPARK_PACKAGES)]
    assert found[-2:] == ["-e", query]
    assert confs(found) == {
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "jdbc",
        "spark.sql.catalog.local.uri": "jdbc:sqlite:/data/my folder/catalog.db",
        "spark.sql.catalog.local.warehouse": "file:///data/my folder",
        "spark.sql.defaultCatalog": "local",
        "spark.sql.catalogImplementation": "in-memory",
    }


def test_spark_command_is_a_choice() -> None:
    assert (
        words(spark_sql("local", SQL, StorePlace("file:///d"), "SELECT 1", command=".venv/bin/spark-sql"))[0]
        == ".venv/bin/spark-sql"
    )


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
    lines = spark_sql(
        "prod", properties, StorePlace("s3://free/", S3Options(secret_access_key="hunter2")), "SELECT 1"
    )
    assert "hunter2@" not in "\n".join(lines)
    found = confs(words(lines))
    assert found["spark.sql.catalog.prod.uri"] == "<the catalog's address>"
    assert found["spark.sql.catalog.prod.type"] == properties.get("type", "rest")
    assert "hunter2" not in "".join(found.values())


def test_spark_on_a_bucket() -> None:
    options = S3Options(
        endpoint="http://s3:9000", path_style=True, access_key_id="hunter2", secret_access_key="hunter2"
    )
    found = words(
        spark_sql(
            "lake",
            {"type": "rest", "uri": "http://catalog:8181", "warehouse": "w"},
            StorePlace("s3://b/p", options),
            "SELECT 1",
        )
    )
    assert found[2] == f"{SPARK_PACKAGES[0]},{AWS_PACKAGE}"
    assert confs(found) == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": "http://catalog:8181",
        "spark.sql.catalog.lake.warehouse": "w",
        "spark.sql.catalog.lake.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "spark.sql.catalog.lake.s3.endpoint": "http://s3:9000",
        "spark.sql.catalog.lake.s3.path-style-access": "true",
        "spark.sql.catalog.lake.client.region": "us-east-1",
        "spark.sql.defaultCatalog": "lake",
        "spark.sql.catalogImplementation": "in-memory",
    }
    on_aws = confs(
        words(spark_sql("lake", {"type": "rest", "uri": "http://c"}, StorePlace("s3://b/p"), "SELECT 1"))
    )
    assert not [name for name in on_aws if ".s3." in name or "region" in name]


def test_trino_is_configured_as_the_stack_is() -> None:
    values = {"S3_ACCESS_KEY_ID": "hunter2", "S3_SECRET_ACCESS_KEY": "hunter2"}
    settings = load_settings(STACK / "archiver" / "archiver.yaml", values)
    shown = ConfiguredCatalogs(lambda: settings, SystemIds()).shown("lake")
    text = trino_catalog(shown, StorePlace.of(settings.data))
    assert text == (STACK / "trino" / "lake.properties").read_text(encoding="utf-8").rstrip()


def test_trino_reaches_what_is_rest_and_in_a_bucket() -> None:
    rest = {"type": "rest", "uri": "https://catalog.example/?token=hunter2", "warehouse": "prod"}
    assert trino_catalog(SQL, StorePlace("s3://b/p")) is None
    assert trino_catalog(rest, StorePlace("file:///d")) is None
    text = trino_catalog(rest, StorePlace("s3://b/p", S3Options(region="eu-central-1"))) or ""
    assert dict(line.split("=", 1) for line in text.splitlines()) == {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": "<the catalog's address>",
        "iceberg.rest-catalog.warehouse": "prod",
        "fs.native-s3.enabled": "true",
        "s3.region": "eu-central-1",
    }


def test_trino_quotes_every_part() -> None:
    assert (
        trino("my-lake", "a_b.shop-eu.orders") == 'SELECT * FROM "my-lake"."a_b"."shop-eu"."orders" LIMIT 10'
    )


def test_duckdb_reads_the_printed_query(tmp_path: Path) -> None:
    """One file is older than a column. Names of folders become no columns."""
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
        == (
            "SELECT * FROM read_parquet(['/a', '/b'], union_by_name = true, hive_partitioning = false, "
            "can_have_nan = true)"
        )
    )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (S3Options(), ["PROVIDER credential_chain"]),
        (
            S3Options(
                endpoint="http://s3:9000",
                path_style=True,
                access_key_id="hunter2",
                secret_access_key="hunter2",
            ),
            [
                "KEY_ID '<access key id>'",
                "SECRET '<secret access key>'",
                "ENDPOINT 's3:9000'",
                "USE_SSL false",
                "URL_STYLE 'path'",
                "us-east-1",
            ],
        ),
        (
            S3Options(endpoint="https://user:hunter2@s3.example", region="eu-central-1"),
            ["ENDPOINT 's3.example'", "USE_SSL true", "eu-central-1"],
        ),
    ],
)
def test_duckdb_reaches_a_bucket_by_a_statement_that_parses_and_holds_no_secret(
    options: S3Options, parts: list[str]
) -> None:
    line = duckdb_secret(StorePlace("s3://b/it's", options)) or ""
    assert [part for part in [*parts, "SCOPE 's3://b/it''s'"] if part not in line] == []
    assert "hunter2" not in line
    assert len(duckdb.extract_statements(line)) == 1
    assert duckdb_secret(StorePlace("file:///d")) is None
