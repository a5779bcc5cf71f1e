"""`archiver clean`: mark and delete objects that are no longer needed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, progress
from archiver.runtime.text import counted, human_bytes

KEYS_SHOWN_MAX = 20
"""Keys that the text output shows; the JSON output has all."""
_LABELS = {"deleted": "deleted", "condemned": "marked for deletion"}
"""Words of the text output for the keys of the document."""


def clean(
    config: ConfigOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print what would be marked and deleted; write nothing."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete objects that are no longer needed. A run marks them, and deletes those that were marked longer
    than cleanup.grace ago. A later run deletes what this run marks.

    The objects are archived intake files, archives older than their topic's retention, and remains of expired
    snapshots and failed uploads. With cleanup.compact_bytes, small archives of tables are merged too. If a
    daemon of this configuration runs, the daemon does it.

    Exit code 1: a marked object is needed again, and nothing was deleted; 2: it is unknown what some topic
    needs (all of it is kept), or a deletion or a merge must be repeated.
    """
    with application(config) as app:

        def by_itself() -> Answered:
            report = app.maintenance.cleaning(progress, dry_run=dry_run).run(dry_run=dry_run)
            return Answered(report.to_json(), report.exit_code)

        # A dry run needs no leader.
        answered = by_itself() if dry_run else ask_daemon(app, "clean", {}, by_itself)
        # By this configuration; the daemon's may differ until it is reloaded.
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
    for what, label in _LABELS.items():
        keys = document[what]
        print(f"{would}{label}: {len(keys):,}")
        for key in keys[:KEYS_SHOWN_MAX]:
            print(f"  {key}")
        if len(keys) > KEYS_SHOWN_MAX:
            print(f"  and {len(keys) - KEYS_SHOWN_MAX:,} more; --output json has all")
    print(f"marked and not deleted yet: {document['waiting']:,}")
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
                f"{would}{_LABELS.get(what, what)}, {kind}: {counted(counts['objects'], 'object')}, "
                f"{human_bytes(counts['bytes'])}"
            )
    for start in document["starts"]:
        begins = "would begin" if would else "begins"
        print(
            f"{start['topic']} partition {start['partition']} {begins} at offset {start['start']}, by "
            "its retention or a deletion"
        )
    for topic in document["compacted"]:
        _print_compacted(topic, would)
    # A topic whose needs are unknown keeps everything.
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
        more = "; the next run continues, cleanup.compact_run_bytes_max" if topic["more"] else ""
        print(f"{topic['topic']}: {before} {would}merged into {topic['merged']:,}{after}{more}")
    for item in topic["skipped"]:
        print(f"{topic['topic']}: not merged: {item['archive']}: {item['why']}")
    if topic["why"]:
        print(f"{topic['topic']} is not compacted: {topic['why']}")
