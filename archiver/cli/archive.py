"""`archiver archive`: refinement rounds now."""

from __future__ import annotations

from typing import Annotated

import typer

from archiver.cli.exits import FINE, UNTOLD, USAGE, WRONG
from archiver.cli.options import ConfigOption, Output, OutputOption, application, parse_scope
from archiver.cli.output import human_bytes, print_json, print_table, progress
from archiver.jobs.report import ArchiveReport


def archive(
    config: ConfigOption = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic, or some of its partitions: orders, orders:3, orders:0-3.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Archive whatever is stable, ignoring the triggers, until nothing is left.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Archive what is due: intake files become Parquet archives and table rows. Blocks until it is done."""
    scope = parse_scope(topic) if topic is not None else None
    with application(config) as app:
        report = app.archiving(progress).run(scope, everything=everything)
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        _print_report(report)
    if report.misconfigured:
        return USAGE
    if report.halted:
        return WRONG
    return UNTOLD if report.deferred else FINE


def _print_report(report: ArchiveReport) -> None:
    rows = [
        (item.topic, item.state, item.archives, item.rows, human_bytes(item.stored_bytes), item.waiting, item.why or "")
        for item in report.topics.values()
    ]
    print_table("archived", ("topic", "state", "archives", "rows", "stored", "waiting", "why"), rows)
