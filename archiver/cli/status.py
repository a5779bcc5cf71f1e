"""`archiver status`: how far everything is, on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.exits import FINE, WRONG
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import human_bytes, print_json, print_table
from archiver.jobs.positions import positions
from archiver.settings import TopicSettings
from intake.fold import IntakeFold

if TYPE_CHECKING:
    from archiver.assemble import Application


def status(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 if a configured topic does not exist yet or archives are pending.")
    ] = False,
) -> int:
    """Where the logs, the leadership and every topic stand."""
    with application(config) as app:
        document = _document(app)
    if output is Output.JSON:
        print_json(document)
    else:
        _print(document)
    return WRONG if exit_code and document["attention"] else FINE


def _document(app: Application) -> dict[str, object]:
    intake, ledger = app.intake(), app.ledger()
    topics: list[dict[str, object]] = []
    attention = [note for topic in app.settings.topics if (note := _difference(topic, intake)) is not None]
    for name, state in sorted(intake.topics_by_name.items()):
        found = positions(intake, ledger, state.topic_id)
        pending = ledger.topic(state.topic_id).pending
        if pending:
            attention.append(f"topic {name} has {len(pending)} archives that are in no table yet; run `archiver archive --topic {name}`")
        topics.append(
            {
                "topic": name,
                "records": sum(item.next for item in found),
                "archived": sum(item.watermark for item in found),
                "backlog_rows": sum(item.backlog_rows for item in found),
                "backlog_bytes": sum(item.backlog_bytes for item in found),
                "pending_archives": len(pending),
            }
        )
    return {
        "cluster": app.cluster.name,
        "cluster_id": app.cluster.cluster_id,
        "data": app.settings.data.uri,
        "leader": app.lease.holder(),
        "epoch": ledger.epoch,
        "intake_log": {"floor": app.intake_log.floor(), "tail": intake.next_index},
        "control_log": {"floor": app.control_log.floor(), "tail": ledger.next_index},
        "topics": topics,
        "attention": attention,
    }


def _difference(topic: TopicSettings, intake: IntakeFold) -> str | None:
    """In what the configuration of a topic differs from the log."""
    state = intake.topics_by_name.get(topic.name)
    if state is None:
        return f"topic {topic.name} is configured but not created yet; the first record or archive run creates it"
    if state.partitions != topic.partitions:
        return f"topic {topic.name} has {state.partitions} partitions, the configuration says {topic.partitions}; correct the configuration"
    return None


def _print(document: dict[str, object]) -> None:
    print(f"cluster {document['cluster']} ({document['cluster_id']}) in {document['data']}")
    print(f"leader: {document['leader'] or 'nobody at the moment'}, epoch {document['epoch']}")
    topics = document["topics"]
    assert isinstance(topics, list)
    print_table(
        "topics",
        ("topic", "records", "archived", "backlog", "backlog size", "pending archives"),
        [
            (
                item["topic"],
                item["records"],
                item["archived"],
                item["backlog_rows"],
                human_bytes(item["backlog_bytes"]),
                item["pending_archives"],
            )
            for item in topics
        ],
    )
    attention = document["attention"]
    assert isinstance(attention, list)
    for line in attention:
        print(f"note: {line}")
