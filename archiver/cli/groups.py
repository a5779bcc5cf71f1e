"""`archiver groups`: show consumer groups, their committed offsets and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table
from archiver.runtime.errors import NotFound
from archiver.runtime.exit_codes import FINE

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.log.brokers import Broker
    from archiver.status.group_lag import GroupLag, GroupLags
    from intake.log.consumer_groups import ConsumerGroup

app = typer.Typer(
    help="Show consumer groups, their committed offsets and their lag.",
    no_args_is_help=True,
)

_Group = Annotated[str, typer.Argument(help="The id of the consumer group.", show_default=False)]


@app.command("list")
def list_groups(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """List the consumer groups with committed offsets, and their lag. Needs no daemon.

    Members are in the memory of the daemons: `kafka-consumer-groups --list --state` asks for them.
    """
    with application(config) as app_:
        rows = [_summary(lag) for lag in _lags(app_).all()]
    if output is Output.JSON:
        print_json({"groups": rows})
        return FINE
    print_table(
        "consumer groups",
        ("group", "topics", "partitions", "lag records", "lag", "last commit"),
        [
            (
                row["group"],
                len(row["topics"]),
                row["partitions"],
                _count(row["lag_records"]),
                _age(row["lag_seconds"]),
                _age(row["commit_age_seconds"]),
            )
            for row in rows
        ],
    )
    return FINE


@app.command("describe")
def describe(group: _Group, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show one group: committed offset, end and lag of every partition. Needs no daemon.

    The lag in seconds is the age of the first record that is not committed. An unchanged offset that is
    committed again keeps its time for up to an hour, so the commit may be newer than its age.
    """
    with application(config) as app_:
        lags = _lags(app_)
        state = _group(app_, group)
        lag = lags.of(state)
        coordinator = _coordinator(app_, group)
    if output is Output.JSON:
        print_json(_document(lag, coordinator))
        return FINE
    print_table(
        group,
        ("topic", "partition", "start", "committed", "end", "lag records", "lag", "commit"),
        [
            (
                one.topic,
                one.partition,
                one.start,
                one.committed.offset,
                one.end,
                _count(one.lag_records),
                _age(one.lag_s),
                _age(one.commit_age_s),
            )
            for one in lag.partitions
        ],
    )
    place = coordinator["address"] or "no live daemon"
    claimed = "no claim" if coordinator["claim"] is None else f"claim {coordinator['claim']}"
    print(f"coordinator: {place}; slot {coordinator['slot']}, {claimed}")
    return FINE


def _lags(app_: Application) -> GroupLags:
    from archiver.status.group_lag import GroupLags

    # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
    ledger = app_.ledger()
    return GroupLags(app_.backlog(), ledger, app_.clock.now_us())


def _group(app_: Application, name: str) -> ConsumerGroup:
    found = app_.sequencer.fold.consumer_groups.get(name)
    if found is None:
        raise NotFound(f"consumer group {name} has no committed offsets; `archiver groups list` shows all")
    return found


def coordinator_among(live: list[Broker], group: str) -> Broker | None:
    """The live daemon that clients find for a group; None without one."""
    from archiver.log.brokers import coordinator_of
    from intake.log.consumer_groups import slot_of

    return coordinator_of(live, f"group-slot-{slot_of(group)}") if live else None


def _coordinator(app_: Application, group: str) -> dict[str, Any]:
    from intake.log.consumer_groups import slot_of

    slot = slot_of(group)
    claim = app_.sequencer.fold.consumer_groups.claim(slot)
    found = coordinator_among(live_daemons(app_), group)
    return {
        "slot": slot,
        "claim": None if claim is None else claim.number,
        "claimed_by": None if claim is None else claim.node_id,
        "node_id": None if found is None else found.node_id,
        "address": None if found is None else f"{found.host}:{found.port}",
    }


def live_daemons(app_: Application) -> list[Broker]:
    """The daemons that answer Kafka clients now."""
    kafka = app_.settings.kafka
    # Each registration has a time limit of its own; this one is for a registration that is never made.
    return app_.logs.brokers(10.0 if kafka is None else kafka.broker_timeout).live()


def _summary(lag: GroupLag) -> dict[str, Any]:
    return {
        "group": lag.group,
        "topics": lag.topics,
        "partitions": len(lag.partitions),
        "lag_records": lag.lag_records,
        "lag_seconds": lag.lag_s,
        "commit_age_seconds": lag.commit_age_s,
    }


def _document(lag: GroupLag, coordinator: dict[str, Any]) -> dict[str, Any]:
    return {
        **_summary(lag),
        "coordinator": coordinator,
        "partitions": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "start": one.start,
                "committed": one.committed.offset,
                "end": one.end,
                "lag_records": one.lag_records,
                "lag_seconds": one.lag_s,
                "commit_age_seconds": one.commit_age_s,
                "metadata": one.committed.metadata,
            }
            for one in lag.partitions
        ],
    }


def _count(records: int | None) -> str:
    from archiver.status.ages import count

    return count(records)


def _age(seconds: float | None) -> str:
    from archiver.status.ages import age

    return age(seconds)
