"""`archiver audit`: is every offset in its table exactly once?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table, progress
from archiver.publish.scope import parse_scope
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.publish.scope import Scope

CODES = {"valid": FINE, "invalid": WRONG, "unknown": UNKNOWN}
"""Exit code by verdict."""


def audit(
    config: ConfigOption = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="Only this topic, or some of its partitions: orders, orders:3, orders:0-3.",
            autocompletion=complete_scope,
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every row, on Spark, instead of manifests.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Compare log, ledger and tables. Exit code 0: valid, 1: invalid, 2: unknown.

    Without --deep it reads the tables' manifests, in seconds. With it, it reads every row: offsets, order,
    ingest times, and the bytes of every record. If a daemon of this configuration runs, the daemon does it,
    on its Spark session.
    """
    scope = parse_scope(topic) if topic is not None else None
    with application(config) as app:

        def by_itself() -> Answered:
            found = _audited(app, scope, deep)
            # The same form as a daemon's answer.
            return Answered(found, CODES[str(found["verdict"])])

        # A daemon shows the verdict on its page, and has a Spark session already.
        try:
            document = ask_daemon(app, "audit", {"topic": topic, "deep": deep}, by_itself).document
        except (RetryLater, OutcomeUnknown) as error:
            # The daemon may still run it, and reading every row twice is too expensive.
            if deep:
                raise
            # The audit changes nothing, so a daemon that is busy or hangs must not prevent it.
            progress(f"{error}; the audit is done here")
            document = by_itself().document
        # Without these, a topic that is only in intake would seem to lag for ever.
        archived = {one.name for one in app.settings.topics if one.archive.kind != "none"}
    if output is Output.JSON:
        print_json(document)
    else:
        print_audit(document, archived)
    return CODES[str(document["verdict"])]


def _audited(app: Application, scope: Scope | None, deep: bool) -> dict[str, Any]:
    """The audit in this process; that of a part is no verdict on the deployment, so it is not kept."""

    def work() -> dict[str, Any]:
        return app.maintenance.audit(scope, deep=deep, progress=progress)

    if scope is not None:
        return work()
    # Here: a command that the daemon answers does not need these modules.
    from archiver.cli.kept_result import kept_result
    from archiver.daemon.operations import summarize_audit

    return kept_result(app, "deep_audit" if deep else "audit", work, summarize_audit)


def print_audit(document: dict[str, object], archived: Collection[str]) -> None:
    """Print the verdict: one line per topic partition, then reasons and notes.

    `archived` has the topics that this configuration archives.
    """
    partitions = document["partitions"]
    assert isinstance(partitions, list)
    print_table(
        "audit",
        ("topic", "partition", "start", "watermark", "stable", "next", "rows", "aborted", "proof", "verdict"),
        [
            (
                *(
                    item[name]
                    for name in ("topic", "partition", "start", "watermark", "stable", "next", "rows")
                ),
                _aborted(item, 0, item["next"]),
                item["proof"],
                item["verdict"],
            )
            for item in partitions
        ],
    )
    for item in partitions:
        if item["verdict"] != "valid":
            print(f"{item['topic']} partition {item['partition']}: {item['verdict']}: {item['why']}")
            for kind in ("missing", "doubled", "removed", "altered", "pending"):
                if item.get(kind):  # an older daemon does not send all of them
                    print(f"  {kind}: {', '.join(f'[{low}, {high})' for low, high in item[kind])}")
        elif item["why"]:
            print(f"{item['topic']} partition {item['partition']}: valid: {item['why']}")
    if waiting := _waiting(item for item in partitions if item["topic"] in archived):
        records = counted(waiting, "stable record is", "stable records are")
        print(f"{records} not archived yet; the verdict covers the offsets below the watermarks")
    if kept := _waiting(item for item in partitions if item["topic"] not in archived):
        print(
            f"{counted(kept, 'stable record is', 'stable records are')} in topics that this "
            "configuration does not archive"
        )
    # An older daemon does not send it.
    undecoded = document.get("undecoded", [])
    assert isinstance(undecoded, list)
    for item in (one for one in undecoded if one["records"]):
        found = counted(int(item["records"]), "key or value is", "keys and values are")
        print(f"{item['topic']}: {found} not decoded; their bytes are kept, and `archiver dlq list` says why")
    why = "" if partitions else ": there is nothing to audit yet"
    print(f"verdict: {document['verdict']}{why}")


def _waiting(items: Iterable[dict[str, Any]]) -> int:
    """Records from the watermark to the stable offset."""
    return sum(
        # Gap offsets have no record, so they are not waited for.
        item["stable"] - item["watermark"] - _aborted(item, item["watermark"], item["stable"])
        for item in items
    )


def _aborted(item: dict[str, Any], start: int, end: int) -> int:
    """Number of gap offsets in [start, end)."""
    return sum(max(0, min(high, end) - max(low, start)) for low, high in item["gaps"])
