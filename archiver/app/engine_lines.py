"""The lines with which Spark, Trino and DuckDB read a topic's table. Without secrets.

`archiver tables` prints them, and the page of a table shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from archiver.catalog import engines
from archiver.objects.location import StorePlace
from archiver.query.columns import columns_by_id
from archiver.runtime.errors import Halt

if TYPE_CHECKING:
    from archiver.app.deployment import Deployment
    from archiver.catalog.tables import TableView

SPARK_SQL = "spark-sql"


def example_query(table: str) -> str:
    """A query that every engine understands."""
    return f"SELECT * FROM {table} LIMIT 10"  # noqa: S608 - printed, not run


def engine_lines(
    app: Deployment,
    catalog: str,
    table: str,
    view: TableView,
    paths: Sequence[str] | None,
    spark_sql: str = SPARK_SQL,
) -> dict[str, str | None]:
    """Lines by engine; None where an engine cannot read the table this way.

    `paths` are all data files of the current snapshot. Without them there is no statement for DuckDB.
    """
    # Only what holds no secret: the lines are for a terminal and for other people.
    properties, place = app.catalogs.shown(catalog), StorePlace.of(app.settings.data)
    spark = engines.spark_sql(catalog, properties, place, example_query(table), spark_sql)
    return {
        "spark": "\n".join(spark),
        "trino": engines.trino(catalog, table),
        "trino_catalog": engines.trino_catalog(properties, place),
        "duckdb": _duckdb(view, paths) if paths else None,
        "duckdb_secret": engines.duckdb_secret(place),
    }


def _duckdb(view: TableView, paths: Sequence[str]) -> str:
    """Statement that reads by name if the schema never changed; else by field id, if DuckDB can."""
    # Without a schema change the names in all files are those of the table.
    if view.schemas == 1 and view.schema_id == 0:
        return engines.duckdb(paths)
    try:
        return engines.duckdb(paths, columns_by_id(view.schema_json))
    # DuckDB cannot read some columns by field id, such as one with a default. The statement then warns and
    # reads by name.
    except Halt:
        return f"{engines.BY_NAME}\n{engines.duckdb(paths)}"
