"""`archiver tables`: show the tables, and the statements with which other engines read them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli import options
from archiver.cli.completion import complete_topic
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table
from archiver.runtime.errors import InvalidInput, no_topic
from archiver.runtime.exit_codes import FINE
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import Settings, TopicSettings


def tables(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="Only the table of this topic, or the table of this name; the same as --topic.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="Only the table of this topic, or the table of this name.",
            autocompletion=complete_topic,
        ),
    ] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="Print the full DuckDB statement over the current files; the next commit makes it stale.",
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show the tables, and how Spark, Trino and DuckDB read them."""
    if named is not None and topic is not None and named != topic:
        raise InvalidInput(f"the argument names topic {named}, and --topic names {topic}; name one of them")
    with application(config) as app:
        found = [_describe(app, one) for one in _chosen(app.settings, topic if named is None else named)]
    if output is Output.JSON:
        print_json({"tables": found})
        return FINE
    print_table(
        "tables",
        ("topic", "table", "rows", "files", "snapshot"),
        [
            (item["topic"], item["table"], item["rows"], item["files"], str(item["snapshot_id"] or "-"))
            for item in found
        ],
    )
    for item in found:
        if item["gone"] is not None:
            print(f"note: {item['gone']}")
        if item["files"]:
            print(
                f"\n-- {item['table']} in Spark:\n{item['spark']}\n-- in "
                f"Trino:\n{item['trino']}\n{_duckdb_text(item, files)}"
            )
    for name, text in {
        item["catalog"]: item["trino_catalog"] for item in found if item["files"] and item["trino_catalog"]
    }.items():
        print(f"\n-- etc/catalog/{name}.properties of Trino:\n{text}")
    return FINE


def _chosen(settings: Settings, topic: str | None) -> list[TopicSettings]:
    if topic is None:
        return [one for one in settings.topics if one.archive.kind == "iceberg"]
    chosen = settings.topic(topic)
    # Topics come first: a topic may have the name of another topic's table.
    if chosen is None:
        # Several catalogs may have a table of this name.
        named = [
            one for one in settings.topics if one.archive.kind == "iceberg" and one.archive.table == topic
        ]
        if named:
            return named
        raise no_topic(topic, (one.name for one in settings.topics))
    if chosen.archive.kind != "iceberg":
        raise InvalidInput(f"topic {topic} has no table (archive.kind: {chosen.archive.kind})")
    return [chosen]


def _describe(app: Application, settings: TopicSettings) -> dict[str, object]:
    from archiver.app.engine_lines import engine_lines
    from archiver.query.tables import gone_text, is_gone

    topic = settings.name
    # Reads the catalog, because the statements must name the current snapshot.
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
        "gone": None,
    }
    if view is None:
        # A missing table is normal before the first commit. Only the ledger shows whether it existed.
        state = app.backlog().topics_by_name.get(topic)
        ledger = None if state is None else app.ledger().topic(state.topic_id)
        if ledger is not None and is_gone(ledger):
            document |= {"rows": None, "files": None, "gone": gone_text(table, topic, ledger)}
        return document
    found = app.live_files(catalog, view)
    document["rows"] = sum(item.record_count for item in found)
    document["files"] = len(found)
    paths = [item.path for item in found]
    document |= engine_lines(app, catalog, table, view, paths, options.spark_sql())
    return document


def _duckdb_text(item: Mapping[str, object], in_full: bool) -> str:
    """The command that reads the current rows; with `in_full`, a statement for the user's own DuckDB."""
    query = shlex.quote(f"SELECT * FROM {item['table']} LIMIT 10")  # noqa: S608 - printed, not run
    if not in_full:
        files = int(str(item["files"]))
        return (
            f"-- in DuckDB, always the current rows:\n{options.archiver()} query {query}\n"
            "-- in a DuckDB of your own: "
            f"`{options.archiver()} tables {item['topic']} --files` lists its current "
            f"{counted(files, 'file')}"
        )
    head = (
        f"-- in DuckDB, the files of snapshot {item['snapshot_id']}; stale after the next commit, so print "
        "it again then:"
    )
    return "\n".join(str(line) for line in (head, item["duckdb_secret"], item["duckdb"]) if line is not None)
