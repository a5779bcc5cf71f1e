"""Commands and settings, as text, for reading a table in Spark, Trino and DuckDB.

Must never print a secret: a property that holds one is shown as a placeholder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from archiver.objects.location import StorePlace

SQLITE_PACKAGE = "org.xerial:sqlite-jdbc:3.50.3.0"
SPARK_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", SQLITE_PACKAGE)
"""Packages that Spark fetches at its first start. The last is for an embedded SQL catalog only. Tried with
Spark 4.1."""
AWS_PACKAGE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""Package that Spark fetches in addition if the files lie in a bucket."""
KEY_VARIABLES = ("S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")
"""Environment variables with Trino's keys of a bucket, if the configuration states keys. deploy/stack sets
them."""
REGION_OF_ENDPOINTS = "us-east-1"
"""Region of servers other than AWS, unless the configuration names another."""


BY_ID = "-- the table's columns have changed: this finds them by field id, and needs DuckDB 2.0 or newer"
_READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""No columns from folder names. NaN is possible, because minima and maxima of older archives leave it out."""
BY_NAME = (
    "-- the table's columns have changed, and this finds them by the names that each file has; Spark and "
    "Trino find them by field id"
)


def spark_sql(
    catalog: str, properties: Mapping[str, str], place: StorePlace, query: str, command: str = "spark-sql"
) -> list[str]:
    """A command, over several lines, that runs `query` in Spark with this catalog under its own name.

    Keys of a bucket are not part of it: AWS's SDK finds them, first in the environment.
    """
    prefix = f"spark.sql.catalog.{catalog}"
    settings = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    uri = properties.get("uri", "")
    packages = list(SPARK_PACKAGES)
    if properties.get("type") == "sql" and uri.startswith("sqlite:///"):
        # Parameters of the uri are for our driver. The JDBC driver does not know them.
        path = uri.removeprefix("sqlite:///").partition("?")[0]
        settings |= {
            f"{prefix}.type": "jdbc",
            f"{prefix}.uri": f"jdbc:sqlite:{path}",
            f"{prefix}.warehouse": place.uri,
        }
    else:
        packages.remove(SQLITE_PACKAGE)
        settings |= {f"{prefix}.type": properties.get("type", "rest"), f"{prefix}.uri": _address(properties)}
        if "warehouse" in properties:
            settings[f"{prefix}.warehouse"] = properties["warehouse"]
    if place.is_s3:
        packages.append(AWS_PACKAGE)
        settings[f"{prefix}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        reached = {
            "s3.endpoint": place.s3.endpoint,
            "s3.path-style-access": _path_style(place),
            "client.region": _region(place),
        }
        settings |= {f"{prefix}.{name}": value for name, value in reached.items() if value is not None}
    # Otherwise Spark creates a Hive metastore, `metastore_db/` and `derby.log`, in the working directory.
    settings["spark.sql.catalogImplementation"] = "in-memory"
    lines = [f"{command} --packages {','.join(packages)}"]
    lines += [f"  --conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    lines += [f"  --conf spark.sql.defaultCatalog={catalog} -e {shlex.quote(query)}"]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def trino_catalog(properties: Mapping[str, str], place: StorePlace) -> str | None:
    """The file `etc/catalog/CATALOG.properties` for Trino; None for what is not a REST catalog over a bucket.

    If our configuration states keys, Trino reads them from two variables of its environment. Otherwise AWS's
    SDK finds them.
    """
    if properties.get("type") != "rest" or not place.is_s3:
        return None
    settings = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": _address(properties),
        "iceberg.rest-catalog.warehouse": properties.get("warehouse"),
        "fs.native-s3.enabled": "true",
        "s3.endpoint": place.s3.endpoint,
        "s3.path-style-access": _path_style(place),
        "s3.region": _region(place),
    }
    if place.s3.access_key_id is not None:
        settings |= {
            "s3.aws-access-key": f"${{ENV:{KEY_VARIABLES[0]}}}",
            "s3.aws-secret-key": f"${{ENV:{KEY_VARIABLES[1]}}}",
        }
    return "\n".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def trino(catalog: str, table: str) -> str:
    """A query for Trino, where the catalog is configured under the same name."""
    return f'SELECT * FROM "{catalog}".{".".join(_quoted(part) for part in table.split("."))} LIMIT 10'  # noqa: S608 - printed, not run


def duckdb(uris: Iterable[str], columns_by_id: str | None = None) -> str:
    """A query for DuckDB over the table's current data files. Columns that only some files have are null in
    the others.

    It reads columns by the names in the files, which is correct if the table's columns never changed.
    Otherwise it reads them by field id, with `columns_by_id` as `archiver.query.columns` writes it.
    """
    # DuckDB expands globs in paths, and SQL doubles quotes.
    paths = ", ".join(
        "'" + _unglobbed(uri.removeprefix("file://")).replace("'", "''") + "'" for uri in sorted(uris)
    )
    if columns_by_id is None:
        return f"SELECT * FROM read_parquet([{paths}], union_by_name = true, {_READ_OPTIONS})"  # noqa: S608 - printed, not run
    return f"{BY_ID}\nSELECT * FROM read_parquet([{paths}], {_READ_OPTIONS}, schema = {columns_by_id})"


def duckdb_secret(place: StorePlace) -> str | None:
    """The statement with which DuckDB reaches a bucket, with placeholders for keys that the configuration
    states; None without a bucket.
    """
    if not place.is_s3:
        return None
    settings = {"TYPE": "s3", "SCOPE": _text(place.uri)}
    if place.s3.access_key_id is None:
        settings["PROVIDER"] = "credential_chain"
    else:
        settings |= {"KEY_ID": "'<access key id>'", "SECRET": "'<secret access key>'"}
    if place.s3.endpoint:
        parts = urlsplit(place.s3.endpoint)
        settings |= {
            "ENDPOINT": _text(parts.netloc.rpartition("@")[2]),
            "USE_SSL": "true" if parts.scheme == "https" else "false",
        }
    if place.s3.path_style:
        settings["URL_STYLE"] = "'path'"
    region = _region(place)
    if region is not None:
        settings["REGION"] = _text(region)
    return (
        "CREATE OR REPLACE SECRET archiver "
        f"({', '.join(f'{name} {value}' for name, value in settings.items())});"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _unglobbed(path: str) -> str:
    """A path without wildcards: each such character is escaped."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _address(properties: Mapping[str, str]) -> str:
    """The catalog's address, or a placeholder if the address may hold a secret."""
    # A user part or a query may hold one, so only plain addresses are shown.
    uri = properties.get("uri", "")
    return uri if re.fullmatch(r"https?://[^@?#\s]+", uri) else "<the catalog's address>"


def _path_style(place: StorePlace) -> str | None:
    return "true" if place.s3.path_style else None


def _region(place: StorePlace) -> str | None:
    # S3 clients need a region to sign, also for servers that have none.
    return place.s3.region or (REGION_OF_ENDPOINTS if place.s3.endpoint else None)


def _quoted(part: str) -> str:
    return f'"{part}"'
