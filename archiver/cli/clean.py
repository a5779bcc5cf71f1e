"""`archiver clean`: what nobody needs any more goes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import human_bytes, print_json, progress
from archiver.runtime.text import counted

KEYS_SHOWN_MAX = 20
"""As text, so many keys are shown; the JSON output has every one."""


def clean(
    config: ConfigOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would be condemned and deleted; nothing is written."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Condemn what nobody needs any more, and delete what was condemned longer ago than cleanup.grace: what
    one run condemns, a run another grace later deletes. That is archived intake, archives older than their
    topic's retention, and what expired snapshots and failed uploads left behind. With cleanup.compact_bytes
    small archives of tables are merged too. Beside a running daemon of this configuration, the daemon does
    it.

    Exit code 1: something condemned is needed again, and nothing was deleted; 2: of some topic it cannot be
    told what is needed (all of it is kept), or a deletion or a merge has to be repeated.
    """
    with application(config) as app:

        def by_itself() -> Answered:
            report = app.maintenance.cleaning(progress, dry_run=dry_run).run(dry_run=dry_run)
            return Answered(report.to_json(), report.exit_code)

        answered = (
            by_itself() if dry_run else ask_daemon(app, "clean", {}, by_itself)
        )  # Whoever only looks needs no leader.
        grace_s = app.settings.cleanup.grace
    if output is Output.JSON:
        print_json(answered.document)
    else:
        _print(answered.document, grace_s)
    return answered.exit_code


def _print(document: dict[str, Any], grace_s: float) -> None:
    from archiver.config.types import format_duration
    from reconcile.snapshot.oldest_required import oldest_required_text

    would = "would be " if document["dry_run"] else ""
    for what in ("deleted", "condemned"):
        keys = document[what]
        print(f"{would}{what}: {len(keys):,}")
        for key in keys[:KEYS_SHOWN_MAX]:
            print(f"  {key}")
        if len(keys) > KEYS_SHOWN_MAX:
            print(f"  and {len(keys) - KEYS_SHOWN_MAX:,} more; --output json has all")
    print(f"condemned and still there: {document['waiting']:,}")
    kept = {
        "needed": document["kept"]["needed"],
        f"younger than cleanup.grace = {format_duration(grace_s)}": document["kept"]["young"],
        "over the limit of one run, cleanup.deletes_max": document["kept"]["over_limit"],
        "no intake files": document["kept"]["not_intake"],
    }
    print(
        "kept in intake: "
        + (", ".join(f"{count:,} {what}" for what, count in kept.items() if count) or "nothing")
    )
    for what, kinds in document["kinds"].items():
        for kind, counts in kinds.items():
            print(
                f"{would}{what}, {kind}: {counted(counts['objects'], 'object')}, "
                f"{human_bytes(counts['bytes'])}"
            )
    for start in document["starts"]:
        begins = "would begin" if would else "begins"
        print(
            f"{start['topic']} partition {start['partition']} {begins} at offset {start['start']}, by "
            "its retention"
        )
    for topic in document["compacted"]:
        _print_compacted(topic, would)
    for topic in document["topics"]:
        print(f"nothing of {topic['topic']} is deleted: {topic['why']}")
    if document["pinned"] is not None:
        print(f"the oldest: {oldest_required_text(document['pinned'])}")
    for finding in document["findings"]:
        print(f"finding: {finding}")
    if document["error"] is not None:
        print(f"not finished: {document['error']}")


def _print_compacted(topic: dict[str, Any], would: str) -> None:
    if topic["merged"]:
        before = f"{counted(topic['archives'], 'archive')} with {human_bytes(topic['bytes_before'])}"
        after = f" with {human_bytes(topic['bytes_after'])}" if topic["bytes_after"] else ""
        more = "; the next run goes on, cleanup.compact_run_bytes_max" if topic["more"] else ""
        print(f"{topic['topic']}: {before} {would}merged into {topic['merged']:,}{after}{more}")
    for item in topic["skipped"]:
        print(f"{topic['topic']}: not merged: {item['archive']}: {item['why']}")
    if topic["why"]:
        print(f"{topic['topic']} is not compacted: {topic['why']}")
