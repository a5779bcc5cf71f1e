"""Lines with which people read a table in Spark, Trino and DuckDB. Text to paste; nothing here is run.

Owns what each engine must be told about a catalog. Must never print a secret: catalogs whose properties hold one get a placeholder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

SPARK_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0")
"""What Spark fetches at its first start to read the tables of an embedded SQL catalog; tried with Spark 4.1."""
AWS_PACKAGE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""What it needs besides if the files lie in a bucket."""


BY_ID = "-- the table's columns have changed: this finds them by field id, and needs DuckDB 2.0 or newer"
BY_NAME = "-- the table's columns have changed, and this finds them by the names that each file has; Spark and Trino find them by field id"


def spark_sql(catalog: str, properties: Mapping[str, str], warehouse: str, query: str, command: str = "spark-sql") -> list[str]:
    """A command, over several lines, that runs `query` in Spark with this catalog under its own name."""
    prefix = f"spark.sql.catalog.{catalog}"
    settings = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    uri = properties.get("uri", "")
    if properties.get("type") == "sql" and uri.startswith("sqlite:///"):
        path = uri.removeprefix("sqlite:///").partition("?")[0]
        settings |= {f"{prefix}.type": "jdbc", f"{prefix}.uri": f"jdbc:sqlite:{path}", f"{prefix}.warehouse": warehouse}
    else:
        settings |= {f"{prefix}.type": properties.get("type", "rest"), f"{prefix}.uri": "<the catalog's address>"}
    packages: tuple[str, ...] = SPARK_PACKAGES
    if warehouse.startswith("s3://"):
        packages = (*SPARK_PACKAGES, AWS_PACKAGE)
        settings[f"{prefix}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        settings[f"{prefix}.s3.endpoint"] = "<data.endpoint, unless it is AWS>"
    lines = [f"{command} --packages {','.join(packages)}"]
    lines += [f"  --conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    lines += [f"  --conf spark.sql.defaultCatalog={catalog} -e {shlex.quote(query)}"]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def trino(catalog: str, table: str) -> str:
    """A query for Trino, where the catalog is configured under the same name."""
    return f'SELECT * FROM "{catalog}".{".".join(_quoted(part) for part in table.split("."))} LIMIT 10'  # noqa: S608 - printed, not run


def duckdb(uris: Iterable[str], columns_by_id: str | None = None) -> str:
    """A query for DuckDB over the table's current data files: columns that only some have are null in the others, and none are made of
    the names of folders.

    By the names in the files, which is right as long as the table's columns never changed; else by field id, with `columns_by_id` as
    `archiver.query.columns` writes it.
    """
    paths = ", ".join("'" + _unglobbed(uri.removeprefix("file://")).replace("'", "''") + "'" for uri in sorted(uris))
    if columns_by_id is None:
        return f"SELECT * FROM read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"  # noqa: S608 - printed, not run
    return f"{BY_ID}\nSELECT * FROM read_parquet([{paths}], hive_partitioning = false, schema = {columns_by_id})"


def _unglobbed(path: str) -> str:
    """A path in which no character stands for others."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _quoted(part: str) -> str:
    return f'"{part}"'
