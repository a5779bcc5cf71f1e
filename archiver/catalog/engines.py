"""Lines with which people read a table in Spark, Trino and DuckDB. Text to paste; nothing here is run.

Owns what each engine must be told about a catalog. Must never print a secret: catalogs whose properties hold one get a placeholder.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

SPARK_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0")
"""What Spark fetches at its first start to read the tables of an embedded SQL catalog; tried with Spark 4.1."""


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
    lines = [f"{command} --packages {','.join(SPARK_PACKAGES)}"]
    lines += [f"  --conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    lines += [f"  --conf spark.sql.defaultCatalog={catalog} -e {shlex.quote(query)}"]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def trino(catalog: str, table: str) -> str:
    """A query for Trino, where the catalog is configured under the same name."""
    return f'SELECT * FROM "{catalog}".{".".join(_quoted(part) for part in table.split("."))} LIMIT 10'  # noqa: S608 - printed, not run


def duckdb(uris: Iterable[str]) -> str:
    """A query for DuckDB over the table's current data files."""
    paths = ", ".join("'" + uri.removeprefix("file://").replace("'", "''") + "'" for uri in sorted(uris))
    return f"SELECT * FROM read_parquet([{paths}])"  # noqa: S608 - printed, not run


def _quoted(part: str) -> str:
    return f'"{part}"'
