"""`archiver clean`: intake that nobody needs any more goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.exits import FINE, UNTOLD, WRONG, exit_code
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, progress
from archiver.settings_types import format_duration

if TYPE_CHECKING:
    from reconcile.clean import CleanReport

KEYS_SHOWN_MAX = 20
"""As text, so many keys are shown; the JSON output has every one."""


def clean(
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be condemned and deleted; nothing is written.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Condemn intake files that nobody needs any more and that are older than cleanup.grace, and delete those condemned longer ago than
    that: what one run condemns, a run another grace later deletes.

    Exit code 1: something condemned is needed again, and nothing was deleted; 2: of some topic it cannot be told what is needed (all of it
    is kept), or a deletion has to be repeated.
    """
    with application(config) as app:
        report = app.cleaning(progress, dry_run=dry_run).run(dry_run=dry_run)
        grace_s = app.settings.cleanup.grace
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        _print(report, grace_s)
    if report.findings:
        return WRONG
    if report.error is not None:
        return exit_code(report.error)
    return UNTOLD if report.doubted else FINE


def _print(report: CleanReport, grace_s: float) -> None:
    would = "would be " if report.dry_run else ""
    for what, keys in (("deleted", report.deleted), ("condemned", report.condemned)):
        print(f"{would}{what}: {len(keys):,}")
        for key in keys[:KEYS_SHOWN_MAX]:
            print(f"  {key}")
        if len(keys) > KEYS_SHOWN_MAX:
            print(f"  and {len(keys) - KEYS_SHOWN_MAX:,} more; --output json has all")
    print(f"condemned and still there: {report.waiting:,}")
    kept = {
        "needed": report.needed,
        f"younger than cleanup.grace = {format_duration(grace_s)}": report.young,
        "over the limit of one run, cleanup.deletes_max": report.over,
        "no intake files": report.strange,
    }
    print("kept in intake: " + (", ".join(f"{count:,} {what}" for what, count in kept.items() if count) or "nothing"))
    for topic in report.topics:
        print(f"nothing of {topic['topic']} is deleted: {topic['why']}")
    if report.pin is not None:
        print(f"the oldest: {report.pin}")
    for finding in report.findings:
        print(f"finding: {finding}")
    if report.error is not None:
        print(f"not finished: {report.error}")
