"""`archiver dlq list` and `archiver dlq replay`: records that their schema could not decode."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table, print_wrapped, progress
from archiver.publish.scope import parse_scope
from archiver.rewrite.replay_report import FILES_MAX
from archiver.runtime.text import counted

RECORDS_MAX = 100

app = typer.Typer(
    help="List records that could not be decoded, and decode them again.",
    no_args_is_help=True,
)

_SCOPE = "Only this topic, or some of its partitions: orders, orders:3, orders:0-3."
_NOT_DONE = ("halted", "deferred")
_DRY_RUN = "Only print what would be rewritten; write nothing."

TopicOption = Annotated[str | None, typer.Option("--topic", help=_SCOPE, autocompletion=complete_scope)]


@app.command("list")
# The name `list` would hide the built-in function in this module.
def list_(
    config: ConfigOption = None,
    topic: TopicOption = None,
    records_max: Annotated[
        int, typer.Option("--max", min=0, help="Number of records to show; all are counted.")
    ] = RECORDS_MAX,
    output: OutputOption = Output.TEXT,
) -> int:
    """List keys and values that could not be decoded, and why. Reads the archives and changes nothing.

    Exit code 2: some topic could not be read.
    """
    scope = parse_scope(topic) if topic is not None else None
    with application(config) as app_:
        # Reads only, so it needs neither a leader nor the daemon.
        report = app_.archiving.undecoded(scope, records_max)
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        _print_list(report.to_json())
    return report.exit_code


@app.command("replay")
def replay(
    config: ConfigOption = None,
    topic: TopicOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    files_max: Annotated[
        int, typer.Option("--max-files", min=1, help="Maximum number of archives to rewrite.")
    ] = FILES_MAX,
    output: OutputOption = Output.TEXT,
) -> int:
    """Decode undecoded records again with the topic's newest schema.

    An archive with records that decode now is rewritten with the same records at the same offsets, and
    replaces the old one in the table. Blocks until it is done. If a daemon of this configuration runs, the
    daemon does it. Exit code 1: a topic is halted; 2: run it again.
    """
    scope = parse_scope(topic) if topic is not None else None
    with application(config) as app_:

        def by_itself() -> Answered:
            report = app_.archiving.replaying(progress, dry_run=dry_run).run(
                scope, files_max, dry_run=dry_run
            )
            return Answered(report.to_json(), report.exit_code)

        # A dry run needs no leader.
        answered = (
            by_itself()
            if dry_run
            else ask_daemon(app_, "replay", {"topic": topic, "max_files": files_max}, by_itself)
        )
    if output is Output.JSON:
        print_json(answered.document)
    else:
        _print_replay(answered.document)
    return answered.exit_code


def _print_list(document: dict[str, Any]) -> None:
    columns = ("topic", "partition", "offset", "side", "cause")
    records = document["records"]
    print_table("not decoded", columns, [tuple(record[name] for name in columns) for record in records])
    # Below the table: next to a path of an archive, no terminal has room for the other columns.
    for archive, grouped in itertools.groupby(records, key=lambda record: record["archive"]):
        print_wrapped(f"in {archive}:")
        for record in grouped:
            place = f"{record['topic']}:{record['partition']}:{record['offset']}"
            print_wrapped(f"  {place} {record['side']}: {record['error']}")
    if document["more"]:
        print(f"and {document['more']:,} more; --max shows more of them")
    for topic in document["topics"]:
        counts = ", ".join(f"{count:,} {what}" for what, count in topic["decode_errors"].items())
        found = f"{counts} in {counted(topic['files'], 'file')}" if counts else "nothing"
        print(f"{topic['topic']}: {topic['why'] or found}")


def _print_replay(document: dict[str, Any]) -> None:
    columns = ("topic", "state", "schema", "archives", "decoded", "left", "why")
    rows = [
        (
            item["topic"],
            item["state"],
            item["schema_version"],
            item["archives"],
            item["decoded"],
            item["left"],
            (item["why"] or "") if item["state"] in _NOT_DONE else "",
        )
        for item in document["topics"]
    ]
    print_table("would be replayed" if document["dry_run"] else "replayed", columns, rows)
    for item in document["topics"]:
        # In the table, a long text makes the other columns unreadable.
        if item["why"] and item["state"] not in _NOT_DONE:
            print(f"{item['topic']}: {item['why']}")
        for skipped in item["skipped"]:
            print(f"{item['topic']}: {skipped['archive']} stays as it is: {skipped['why']}")
        if item["emptied"]:
            print(
                f"{item['topic']}: columns no longer filled in rewritten archives: "
                f"{', '.join(item['emptied'])}"
            )
        if item["more"]:
            print(f"{item['topic']}: there is more; run it again")
