"""`archiver explain`: show where one record is, and why it is not further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.admin_client import last_rounds
from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json
from archiver.runtime.redaction import redacted

if TYPE_CHECKING:
    from archiver.status.explain import Explanation


def explain(
    place: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC:PARTITION:OFFSET",
            help="Coordinates of the record: orders:3:17.",
            autocompletion=complete_scope,
        ),
    ],
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show where a record is and why it is not further. The places are log, intake file, archive and table.

    Exit code 0: found and correct (or a gap, or removed on purpose), 1: missing, doubled or damaged, 2:
    unknown, 3: no such offset.
    """
    from archiver.status.tracing import parse_place

    topic, partition, offset = parse_place(place)
    with application(config) as app:
        found = app.explain(topic, partition, offset)
        # Only the daemon knows why its last round could not finish the topic.
        known = app.settings, app.cluster.cluster_id
        if found.state in ("waiting", "pending") and (rounds := last_rounds(*known)) is not None:
            stuck = next((item["stuck"] for item in rounds["topics"] if item["topic"] == topic), None)
            # A second time, with the reason of the daemon.
            found = app.explain(topic, partition, offset, stuck)
    if output is Output.JSON:
        from archiver.status.explain import document_of

        print_json(document_of(found))
    else:
        _print(found)
    return found.exit_code


def _print(found: Explanation) -> None:
    from archiver.status.explain import lines_of

    for line in lines_of(found):
        print(redacted(line))
