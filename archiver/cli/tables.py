"""`archiver tables`: the tables, and the lines with which other engines read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archiver.catalog import engines
from archiver.cli import here
from archiver.cli.exits import FINE
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table

if TYPE_CHECKING:
    from archiver.assemble import Application


def tables(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Every topic's table, where it is, and how Spark, Trino and DuckDB read it."""
    with application(config) as app:
        found = [_describe(app, topic.name) for topic in app.settings.topics if topic.archive.kind == "iceberg"]
    if output is Output.JSON:
        print_json({"tables": found})
        return FINE
    print_table(
        "tables",
        ("topic", "table", "rows", "files", "snapshot"),
        [(item["topic"], item["table"], item["rows"], item["files"], str(item["snapshot_id"] or "-")) for item in found],
    )
    for item in found:
        if item["files"]:
            print(f"\n-- {item['table']} in Spark:\n{item['spark']}\n-- in Trino:\n{item['trino']}\n-- in DuckDB:\n{item['duckdb']}")
    return FINE


def _describe(app: Application, topic: str) -> dict[str, object]:
    settings = app.settings.topic(topic)
    assert settings is not None, "only configured topics are described"
    view = app.table(topic)
    catalog, table = settings.archive.catalog or "", settings.archive.table or ""
    document: dict[str, object] = {
        "topic": topic,
        "catalog": catalog,
        "table": table,
        "location": None if view is None else view.location,
        "metadata_location": None if view is None else view.metadata_location,
        "snapshot_id": None if view is None else view.snapshot_id,
        "rows": 0,
        "files": 0,
    }
    if view is None:
        return document
    files = app.live_files(topic)
    document["rows"] = sum(item.record_count for item in files)
    document["files"] = len(files)
    properties = app.tables_properties(catalog)
    query = f"SELECT * FROM {table} LIMIT 10"  # noqa: S608 - printed, not run
    document["spark"] = "\n".join(engines.spark_sql(catalog, properties, app.settings.data.uri, query, here.spark_sql()))
    document["trino"] = engines.trino(catalog, table)
    document["duckdb"] = engines.duckdb(item.path for item in files) if files else None
    return document
