"""`archiver status`: how far everything is, on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.exits import FINE, WRONG
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import human_bytes, print_json, print_table
from archiver.clock import SystemClock
from archiver.errors import Halt
from archiver.jobs.positions import HeldBack, positions, troubles, whole_backlog
from archiver.jobs.restored import check_log_is_newest
from archiver.settings import TopicSettings
from intake.backlog import Backlog
from intake.record_json import format_time
from reconcile.pin import metrics_of

if TYPE_CHECKING:
    from archiver.assemble import Application

ENDS = "after its time a running writer or the next `archiver archive` aborts it, and opening its transactional id again does so at once"


def status(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 if there is a note: a topic that does not exist yet, archives that are pending, …")
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
    intake, ledger, pin, now_us = app.intake(), app.ledger(), app.pinned(), SystemClock().now_us()
    topics: list[dict[str, object]] = []
    lost = _lost(app, intake, now_us)
    attention = [note for topic in app.settings.topics if (note := _difference(topic, intake)) is not None] if lost is None else [lost]
    overdue: dict[int, str] = {}
    for name, state in sorted(intake.topics_by_name.items()):
        found = positions(intake, ledger, state.topic_id)
        pending = ledger.topic(state.topic_id).pending
        if pending:
            attention.append(f"topic {name} has {len(pending)} archives that are in no table yet; run `archiver archive --topic {name}`")
        attention += troubles(name, found)
        backlog_rows, backlog_bytes = whole_backlog(found)
        overdue |= {item.held.producer_id: _overdue(item.held, now_us) for item in found if item.held and item.held.deadline_us <= now_us}
        topics.append(
            {
                "topic": name,
                "records": sum(item.next for item in found),
                "archived": sum(item.watermark for item in found),
                "backlog_rows": backlog_rows,
                "backlog_bytes": backlog_bytes,
                "pending_archives": len(pending),
                "held": [{"partition": item.partition, **item.held.to_json()} for item in found if item.held is not None],
            }
        )
    attention += overdue.values()
    return {
        "cluster": app.cluster.name,
        "cluster_id": app.cluster.cluster_id,
        "data": app.settings.data.uri,
        "leader": app.lease.holder(),
        "epoch": ledger.epoch,
        "intake_log": {"floor": app.intake_log.floor(), "tail": intake.next_index},
        "control_log": {"floor": app.control_log.floor(), "tail": ledger.next_index},
        "topics": topics,
        "pinned": None if pin is None else pin.to_json(now_us),
        "metrics": metrics_of(pin, now_us),
        "attention": attention,
    }


def _lost(app: Application, intake: Backlog, now_us: int) -> str | None:
    """Why an empty intake log is not that of a new deployment: the folder tells of another one."""
    if intake.next_index:
        return None
    try:
        check_log_is_newest(app.objects, app.intake_log, app.sequencer.refresh, now_us)
    except Halt as error:
        return str(error)
    return None


def _difference(topic: TopicSettings, intake: Backlog) -> str | None:
    """In what the configuration of a topic differs from the log."""
    state = intake.topics_by_name.get(topic.name)
    if state is None:
        return f"topic {topic.name} is configured but not created yet; the first record or archive run creates it"
    if state.partitions != topic.partitions:
        return f"topic {topic.name} has {state.partitions} partitions, the configuration says {topic.partitions}; correct the configuration"
    return None


def _overdue(held: HeldBack, now_us: int) -> str:
    """An open transaction that nobody ended though its time is over."""
    return f"transaction {held.described(now_us)} holds archiving back, and its time was over at {format_time(held.deadline_us)}; {ENDS}"


def _print(document: dict[str, object]) -> None:
    print(f"cluster {document['cluster']} ({document['cluster_id']}) in {document['data']}")
    print(f"leader: {document['leader'] or 'nobody at the moment'}, epoch {document['epoch']}")
    topics = document["topics"]
    assert isinstance(topics, list)
    print_table(
        "topics",
        ("topic", "offsets", "offsets archived", "backlog records", "backlog size", "pending archives"),
        [
            (
                item["topic"],
                item["records"],
                item["archived"],
                item["backlog_rows"],
                None if item["backlog_bytes"] is None else human_bytes(item["backlog_bytes"]),
                item["pending_archives"],
            )
            for item in topics
        ],
    )
    held = [(item["topic"], one) for item in topics for one in item["held"]]
    if held:
        print_table(
            "held back by open transactions",
            ("topic", "partition", "transaction", "producer", "epoch", "since", "its time is over at", "offsets waiting"),
            [
                (
                    topic,
                    one["partition"],
                    one["transactional_id"],
                    one["producer_id"],
                    one["epoch"],
                    one["since"],
                    one["deadline"],
                    one["waiting"],
                )
                for topic, one in held
            ],
        )
        print(f"An open transaction waits for its producer to end it; {ENDS}.")
    pinned = document["pinned"]
    if isinstance(pinned, dict):
        where = f"{pinned['topic']} partition {pinned['partition']}"
        print(f"the oldest intake file that is kept was written {pinned['written_at']}; {where} needs it: {pinned['why']}")
    attention = document["attention"]
    assert isinstance(attention, list)
    for line in attention:
        print(f"note: {line}")
