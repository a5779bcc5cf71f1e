"""Commands and settings for reading a table in Spark, Trino and DuckDB. Text to paste; nothing here is run.

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
"""What Spark fetches at its first start to read the tables of an embedded SQL catalog, the last for such a
catalog only; tried with Spark 4.1."""
AWS_PACKAGE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""What Spark fetches in addition if the files lie in a bucket."""
KEY_VARIABLES = ("S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")
"""From where Trino takes the keys of a bucket, when the configuration states keys; those of deploy/stack."""
REGION_OF_ENDPOINTS = "us-east-1"
"""Region of servers other than AWS, unless the configuration names another."""


BY_ID = "-- the table's columns have changed: this finds them by field id, and needs DuckDB 2.0 or newer"
_READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""The second because minima and maxima of older archives leave NaN out."""
BY_NAME = (
    "-- the table's columns have changed, and this finds them by the names that each file has; Spark and "
    "Trino find them by field id"
)


def spark_sql(
    catalog: str, properties: Mapping[str, str], place: StorePlace, query: str, command: str = "spark-sql"
) -> list[str]:
    """A command, over several lines, that runs `query` in Spark with this catalog under its own name.

    Keys of a bucket are not part of it: Spark takes them from where AWS's SDK looks, the environment first.
    """
    prefix = f"spark.sql.catalog.{catalog}"
    settings = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    uri = properties.get("uri", "")
    packages = list(SPARK_PACKAGES)
    if properties.get("type") == "sql" and uri.startswith("sqlite:///"):
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
    # Or Spark makes a Hive metastore, `metastore_db/` and `derby.log`, in the folder in which this is run.
    settings["spark.sql.catalogImplementation"] = "in-memory"
    lines = [f"{command} --packages {','.join(packages)}"]
    lines += [f"  --conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    lines += [f"  --conf spark.sql.defaultCatalog={catalog} -e {shlex.quote(query)}"]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def trino_catalog(properties: Mapping[str, str], place: StorePlace) -> str | None:
    """The file `etc/catalog/CATALOG.properties` for Trino; None for what is not a REST catalog over a bucket.

    Keys that our configuration states are read from two variables of Trino's environment; without them Trino
    looks where AWS's SDK does.
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
    """A query for DuckDB over the table's current data files: columns that only some have are null in the
    others, and none are made of the names of folders.

    By the names in the files, which is right as long as the table's columns never changed; else by field id,
    with `columns_by_id` as `archiver.query.columns` writes it.
    """
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
    """A path in which no character stands for others."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _address(properties: Mapping[str, str]) -> str:
    """Where the catalog is, unless its address may hold a secret."""
    uri = properties.get("uri", "")
    return uri if re.fullmatch(r"https?://[^@?#\s]+", uri) else "<the catalog's address>"


def _path_style(place: StorePlace) -> str | None:
    return "true" if place.s3.path_style else None


def _region(place: StorePlace) -> str | None:
    return place.s3.region or (REGION_OF_ENDPOINTS if place.s3.endpoint else None)


def _quoted(part: str) -> str:
    return f'"{part}"'
