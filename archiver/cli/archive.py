"""`archiver archive`: run archiving rounds now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table, progress
from archiver.publish.scope import parse_scope
from archiver.runtime.text import human_bytes


def archive(
    config: ConfigOption = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="Only this topic, or some of its partitions: orders, orders:3, orders:0-3.",
            autocompletion=complete_scope,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Archive all stable records, ignoring the triggers, until none is left."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Archive what is due, into Parquet archives and table rows. Blocks until it is done.

    If a daemon of this configuration runs, the daemon does it, with its own settings.
    """
    # Checked here as well, before the stores are opened or the daemon gets the text.
    scope = parse_scope(topic) if topic is not None else None
    with application(config) as app:
        # Not called if a daemon does the work. It then needs no lease here.
        def by_itself() -> Answered:
            report = app.archiving.round(progress).run(scope, everything=everything)
            return Answered(report.to_json(), report.exit_code)

        answered = ask_daemon(app, "archive", {"topic": topic, "all": everything}, by_itself)
    if output is Output.JSON:
        print_json(answered.document)
    else:
        _print_report(answered.document)
    return answered.exit_code


def _print_report(document: dict[str, Any]) -> None:
    rows = [
        (
            item["topic"],
            item["state"],
            item["archives"],
            item["rows"],
            human_bytes(item["stored_bytes"]),
            item["waiting"],
            item["why"] or "",
        )
        for item in document["topics"]
    ]
    print_table("archived", ("topic", "state", "archives", "rows", "stored", "waiting", "why"), rows)
