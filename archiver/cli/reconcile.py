"""`archiver reconcile`: find differences between log, ledger, objects and tables, and repair them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.completion import complete_topic
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, progress
from archiver.runtime.errors import InvalidInput
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from reconcile.repair.run import ReconcileReport

FINDINGS_SHOWN_MAX = 50
"""Findings that the text output shows; the JSON output has all."""


def reconcile(
    config: ConfigOption = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Carry out the repairs that the findings propose; this also accepts a rollback of a table.",
        ),
    ] = False,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Recreate tables that the catalog has lost, from their archives. The runbook says when.",
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Compare object listing, ledger and tables. Without --fix nothing is changed.

    If a daemon of this configuration runs, the daemon carries out the repairs. No repair removes a row or an
    object. The runbook has a section for each finding.

    Exit code 0: nothing was found, or all of it is fixed; 1: findings are left; 2: something could not be
    read.
    """
    if rebuild:
        # A repair needs the tables that the rebuild creates first.
        if fix:
            raise InvalidInput(
                "--rebuild and --fix exclude each other: rebuild first, then reconcile --fix if "
                "findings are left"
            )
        return _rebuild(config, topic, output)
    with application(config) as app:

        def by_itself() -> Answered:
            report = _reconciled(app, fix, topic)
            return Answered(report.to_json(), report.exit_code)

        body = {"fix": True} if topic is None else {"fix": True, "topic": topic}
        # Without --fix it needs no leader.
        answered = ask_daemon(app, "reconcile", body, by_itself) if fix else by_itself()
    if output is Output.JSON:
        print_json(answered.document)
    else:
        _print(answered.document)
    return answered.exit_code


def _reconciled(app: Application, fix: bool, topic: str | None) -> ReconcileReport:
    """The run in this process; that of one topic proves nothing for the others, so it is not kept."""

    def work() -> ReconcileReport:
        # The daemon on its schedule repairs less: it never accepts a rollback of a table by itself.
        return app.maintenance.reconciling(progress, dry_run=not fix).run(
            "everything" if fix else "nothing", topic
        )

    if topic is not None:
        return work()
    from archiver.cli.kept_result import kept_result
    from archiver.daemon.operations import summarize_reconciling

    return kept_result(app, "reconcile", work, summarize_reconciling)


def _rebuild(config: Path | None, topic: str | None, output: Output) -> int:
    """Exit code 0: every table exists; 1: some need an operator; 2: some are not finished."""
    with application(config) as app:
        report = app.maintenance.rebuild(topic, progress)
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        for item in report.tables:
            made = (
                f": {counted(item.files, 'archive')}, {counted(item.rows, 'row')}"
                if item.state == "rebuilt"
                else ""
            )
            print(
                f"{item.topic} ({item.table or 'no table'}): "
                f"{item.state}{made}{': ' + item.why if item.why else ''}"
            )
            # Offsets without an archive cannot be rebuilt, so they are shown.
            for partition, low, high in item.holes:
                print(f"  partition {partition}: [{low}, {high}) is in no archive")
    return report.exit_code


def _print(document: dict[str, Any]) -> None:
    findings = document["findings"]
    for item in findings[:FINDINGS_SHOWN_MAX]:
        where = (
            ""
            if item["topic"] is None
            else f" {item['topic']}" + ("" if item["partition"] is None else f":{item['partition']}")
        )
        print(f"{'fixed' if item['fixed'] else item['severity']}: {item['id']}{where}: {item['what']}")
        if not item["fixed"]:
            print(f"  {item['repair']}")
    if len(findings) > FINDINGS_SHOWN_MAX:
        print(f"and {len(findings) - FINDINGS_SHOWN_MAX:,} more; --output json has all")
    # The key `looked` is part of the JSON output, so it stays.
    read = document["looked"]
    for name, why in read["unread"].items():
        print(f"{name} could not be read: {why}")
    if document["error"] is not None:
        print(f"not finished: {document['error']}")
    fixed = sum(item["fixed"] for item in findings)
    left = len(findings) - fixed
    result = counted(left, "finding") + (f", {fixed:,} fixed" if fixed else "")
    compared = ", ".join(counted(read[f"{what}s"], what) for what in ("topic", "table", "object"))
    print(f"compared {compared}: {result}")
