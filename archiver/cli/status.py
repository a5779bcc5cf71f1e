"""`archiver status`: show the state of the deployment on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.admin_client import last_rounds, readiness
from archiver.cli.options import ConfigOption, Output, OutputOption, application_of, config_path, settings_of
from archiver.cli.output import print_json, print_noted_table, print_table
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.exit_codes import FINE, WRONG
from archiver.runtime.redaction import redacted_document
from archiver.runtime.rfc3339 import parse_time
from archiver.runtime.text import counted, human_bytes, moment
from archiver.status.ages import age, count

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import Settings

PARTITIONS_SHOWN = 50
"""Partitions with a lag that the text shows; the JSON document has all partitions."""
OLD_PIN_S = 3600.0
"""From this age on the text names the partition that requires the oldest intake file. Younger files are
normally required because archiving takes a while."""


def status(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit 1 if there is a note, for example a topic that does not exist yet or pending "
            "archives.",
        ),
    ] = False,
) -> int:
    """Show the state of the logs, the leadership and every topic."""
    with application_of(readable_settings(config)) as app:
        document, rounds_known = read_status(app)
    if output is Output.JSON:
        print_json(document)
    else:
        _print(document, rounds_known=rounds_known)
    # Only on request: a note is no failure for a person.
    return WRONG if exit_code and document["attention"] else FINE


def read_status(app: Application, *, with_tables: bool = True) -> tuple[dict[str, Any], bool]:
    """The document as of now, without secrets, and whether it has results of the daemon's last round.

    Without `with_tables` no table is read, and the document lacks the oldest required intake file.
    """
    from archiver.app.status_document import status_document

    # The daemon's state is separate: this command reads logs and stores itself.
    daemon = readiness(app.settings, app.cluster.cluster_id)
    # Needs the token, so another user gets only the readiness.
    reported = None if daemon is None else last_rounds(app.settings, app.cluster.cluster_id)
    # Why the last round could not finish a topic; only the daemon that ran it knows.
    stuck = (
        {}
        if reported is None
        else {topic["topic"]: topic["stuck"] for topic in reported["topics"] if topic["stuck"] is not None}
    )
    document = status_document(
        app,
        SystemClock().now_us(),
        stuck,
        daemon if reported is None else reported["daemon"],
        reported,
        with_tables=with_tables,
    )
    # Texts of the daemon are external to this process.
    found: dict[str, Any] = redacted_document(document)
    return found, reported is not None


def readable_settings(config: Path | None) -> Settings:
    """Load the settings; `ConfigInvalid` also says where a daemon that still runs can be reached."""
    path = config_path(config)
    try:
        return settings_of(path)
    except ConfigInvalid as error:
        if not path.is_file():
            raise
        from archiver.cli.unread_config import where_to_ask

        # The daemon keeps its old configuration, so it may be healthy with an invalid file.
        raise ConfigInvalid(f"{error}\n{where_to_ask(path)}") from None


def _print(document: dict[str, Any], *, rounds_known: bool) -> None:
    from archiver.app.status_document import ENDS

    print(f"cluster {document['cluster']} ({document['cluster_id']}) in {document['data']}")
    print(f"leader: {document['leader'] or 'none'}, epoch {document['epoch']}")
    daemon = document["daemon"]
    if daemon is not None:
        print(
            f"daemon: at {daemon['address']}, {daemon['state']}, "
            f"{'ready' if daemon['ready'] else 'not ready'}"
        )
        if not rounds_known:
            print(
                "        results of its last round, and its file sources, are on its status page (this "
                "user cannot read "
                "the admin token)"
            )
    topics = document["topics"]
    print_table(
        "topics",
        (
            "topic",
            "goes to",
            "offsets",
            "offsets archived",
            "backlog records",
            "backlog size",
            "pending archives",
        ),
        [_topic(item) for item in topics],
    )
    held = [(item["topic"], one) for item in topics for one in item["held"]]
    if held:
        print_table(
            "held back by open transactions",
            (
                "topic",
                "partition",
                "transaction",
                "producer",
                "epoch",
                "since",
                "times out at",
                "offsets waiting",
            ),
            [
                (
                    topic,
                    one["partition"],
                    one["transactional_id"],
                    one["producer_id"],
                    one["epoch"],
                    _moment(one["since"]),
                    _moment(one["deadline"]),
                    one["waiting"],
                )
                for topic, one in held
            ],
        )
        print(f"An open transaction waits for its producer to end it; {ENDS}.")
    _print_partitions(topics)
    _print_sources(daemon)
    pinned = document["pinned"]
    if isinstance(pinned, dict):
        old = pinned["age_seconds"] > OLD_PIN_S
        whom = f", for {pinned['topic']} partition {pinned['partition']} ({pinned['why']})" if old else ""
        print(f"intake files are kept from {_moment(pinned['written_at'])} on{whom}")
    attention = document["attention"]
    for line in attention:
        print(f"note: {line}")


def _moment(text: str) -> str:
    """Format a time of the document for people."""
    return moment(parse_time(text))


def _topic(item: dict[str, Any]) -> tuple[object, ...]:
    """One line of the table; a topic of archive kind `none` has no backlog."""
    size = None if item["backlog_bytes"] is None else human_bytes(item["backlog_bytes"])
    further = (
        (None, None, None, None)
        if item["kind"] == "none"
        else (item["archived"], item["backlog_rows"], size, item["pending_archives"])
    )
    return (item["topic"], item["kind"], item["records"], *further)


def _print_partitions(topics: list[dict[str, Any]]) -> None:
    """Print the partitions that lag in any stage or are held back, the greatest lag first."""
    from archiver.status.lag import STAGES

    behind = [
        (topic["topic"], one)
        for topic in topics
        for one in topic["partitions"]
        # An unknown lag is None, and counts as one.
        if one["reason"] is not None or any(lag["lag_records"] != 0 for lag in one["stages"].values())
    ]
    if not behind:
        return

    # The last stage of a topic is the table, or the archives without one.
    def last(one: dict[str, Any]) -> dict[str, Any]:
        stages: dict[str, dict[str, Any]] = one["stages"]
        return list(stages.values())[-1]

    # An unknown age comes first: it may hide the greatest lag.
    behind.sort(
        key=lambda item: (last(item[1])["lag_seconds"] is not None, -(last(item[1])["lag_seconds"] or 0.0))
    )
    print_noted_table(
        "partitions that are behind: offset of each stage, and number and age of the records that have not "
        "reached it",
        ("topic", "partition", "next", *STAGES),
        [
            (
                topic,
                one["partition"],
                one["next"],
                *(_stage(one["stages"].get(stage)) for stage in STAGES),
            )
            for topic, one in behind[:PARTITIONS_SHOWN]
        ],
        "what holds it back",
        [
            (f"{topic}, partition", str(one["partition"]), one["reason"] or "")
            for topic, one in behind[:PARTITIONS_SHOWN]
        ],
    )
    if len(behind) > PARTITIONS_SHOWN:
        print(
            f"and {counted(len(behind) - PARTITIONS_SHOWN, 'more partition')}; --output json has all of them"
        )


def _stage(lag: dict[str, Any] | None) -> str | None:
    """Format as `95 (5 behind, 3 min)`; None if the topic has no such stage."""
    if lag is None:
        return None
    if lag["lag_records"] == 0:
        return f"{lag['offset']:,}"
    return f"{lag['offset']:,} ({count(lag['lag_records'])} behind, {age(lag['lag_seconds'])})"


def _print_sources(daemon: dict[str, Any] | None) -> None:
    # An older daemon does not send them.
    sources = [] if daemon is None else daemon.get("sources", [])
    if sources:
        print_table(
            "folders from which files are ingested",
            ("files", "topic", "waiting", "in work", "finished", "failed"),
            [
                tuple(source[name] for name in ("glob", "topic", "waiting", "in_work", "finished", "failed"))
                for source in sources
            ],
        )
    mirrors = [] if daemon is None else daemon.get("mirrors", [])
    if mirrors:
        columns = ("name", "topics", "partitions", "behind", "stopped")
        print_table(
            "Kafka clusters that topics are mirrored from",
            columns,
            [tuple(one[name] for name in columns) for one in mirrors],
        )
