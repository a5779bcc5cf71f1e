"""`archiver groups`: show consumer groups, their committed offsets and their lag, and reset offsets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.admin_client import Answered, ask_daemon
from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, OutputOption, YesOption, application
from archiver.cli.output import print_json, print_table
from archiver.publish.scope import parse_scope
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, InvalidInput, NotFound, RetryLater
from archiver.runtime.exit_codes import FINE
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.app.group_reset import PartitionReset
    from archiver.status.group_lag import GroupLag, GroupLags
    from intake.log.consumer_groups import ConsumerGroup

app = typer.Typer(
    help="Show consumer groups and their lag, and reset their offsets.",
    no_args_is_help=True,
)

_Group = Annotated[str, typer.Argument(help="The id of the consumer group.", show_default=False)]


@app.command("list")
def list_groups(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """List the consumer groups with committed offsets, and their lag. Needs no daemon.

    Members are in the memory of the daemons: `kafka-consumer-groups --list --state` asks for them.
    """
    from archiver.status.group_lag import group_document

    with application(config) as app_:
        found = list(_lags(app_).all())
    if output is Output.JSON:
        print_json({"groups": [group_document(lag) for lag in found]})
        return FINE
    print_table(
        "consumer groups",
        ("group", "topics", "partitions", "lag records", "lag", "last commit"),
        [
            (
                lag.group,
                len(lag.topics),
                len(lag.partitions),
                _count(lag.lag_records),
                _age(lag.lag_s),
                _age(lag.commit_age_s),
            )
            for lag in found
        ],
    )
    return FINE


@app.command("describe")
def describe(group: _Group, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show one group: committed offset, end and lag per partition. Needs no daemon.

    The lag in seconds is the age of the first record that is not committed. An unchanged offset that is
    committed again keeps its time for up to an hour, so the commit may be newer than its age. Pending offsets
    belong to a transaction that is open.
    """
    from archiver.app.group_coordinator import coordinator_document, live_daemons

    with application(config) as app_:
        lags = _lags(app_)
        state = _group(app_, group)
        lag = lags.of(state)
        pending = _pending(app_, group)
        coordinator = coordinator_document(app_, live_daemons(app_), group)
    if output is Output.JSON:
        print_json(_document(lag, pending, coordinator))
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
    if pending:
        print(f"pending offsets: {_places(pending)}")
    place = coordinator["address"] or "no live daemon"
    claimed = "no claim" if coordinator["claim"] is None else f"claim {coordinator['claim']}"
    print(f"coordinator: {place}; slot {coordinator['slot']}, {claimed}")
    return FINE


@app.command("reset")
def reset(
    group: Annotated[str, typer.Option("--group", help="The id of the consumer group.")],
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            help="The topic, or some of its partitions: orders, orders:3, orders:0-3.",
            autocompletion=complete_scope,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest; latest or end; latest-N (the last N records of each partition); an offset; a "
            "time such as 2026-11-27T12:00:00Z, or a duration such as -10m, that long ago: then the first "
            "record with that event time or a later one.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the new offsets; commit nothing.")
    ] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Commit other offsets for a group whose consumers are stopped. They start there.

    A group with members is refused. If a daemon coordinates the group, it does the reset; without a live
    daemon the command does it. An offset outside of a partition becomes its start or its end.
    """
    from archiver.app.group_coordinator import coordinator_among, live_daemons
    from archiver.app.group_reset import planned, reset_alone
    from archiver.app.offset_targets import parse_target

    name, scope = parse_scope(topic)
    target = parse_target(to, "--to", SystemClock().now_us())
    with application(config) as app_:
        state = app_.topic(name)
        resets = planned(app_, group, state, scope, target)
        if dry_run:
            _print_resets(group, name, resets, output, done=False)
            return FINE
        # A script without a terminal would otherwise wait for ever.
        if not yes and not sys.stdin.isatty():
            raise InvalidInput(
                f"group {group} was not reset: there is no terminal for a confirmation; give --yes to reset "
                "it, or --dry-run to see the new offsets"
            )
        if not yes:
            _print_resets(group, name, resets, Output.TEXT, done=False)
            if not typer.confirm(f"Reset {counted(len(resets), 'offset')} of group {group}?"):
                print(f"group {group} was not reset")
                return FINE
        offsets = {one.partition: one.after for one in resets}
        coordinator = coordinator_among(live_daemons(app_), group)
        if coordinator is None:
            if app_.settings.kafka is None:
                raise ConfigInvalid(
                    "this configuration has no kafka listener; use that of a daemon that serves consumer "
                    "groups"
                )
            reset_alone(app_, app_.settings.kafka, group, state.topic_id, offsets)
        else:

            def by_itself() -> Answered:
                raise RetryLater(
                    f"group {group} was not reset: the daemon at {coordinator.host}:{coordinator.port} "
                    "coordinates it and could not be asked; run the command with its configuration, or use "
                    "`kafka-consumer-groups --reset-offsets`"
                )

            asked = ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
            ask_daemon(app_, "reset_offsets", {"group": group, "topic": name, "offsets": asked}, by_itself)
    _print_resets(group, name, resets, output, done=True)
    return FINE


def _print_resets(
    group: str, topic: str, resets: list[PartitionReset], output: Output, *, done: bool
) -> None:
    if output is Output.JSON:
        print_json(
            {
                "group": group,
                "topic": topic,
                "dry_run": not done,
                "partitions": [
                    {
                        "partition": one.partition,
                        "start": one.start,
                        "end": one.end,
                        "committed_before": one.before,
                        "committed": one.after,
                    }
                    for one in resets
                ],
            }
        )
        return
    print_table(
        f"{group}: {'reset' if done else 'would be reset'}",
        ("topic", "partition", "start", "end", "committed before", "committed"),
        [
            (topic, one.partition, one.start, one.end, "" if one.before is None else one.before, one.after)
            for one in resets
        ],
    )


def _lags(app_: Application) -> GroupLags:
    from archiver.status.group_lag import GroupLags

    # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
    ledger = app_.ledger()
    return GroupLags(app_.backlog(), ledger, app_.clock.now_us())


def _group(app_: Application, name: str) -> ConsumerGroup:
    found = app_.sequencer.fold.consumer_groups.get(name)
    if found is None and (pending := _pending(app_, name)):
        raise NotFound(
            f"consumer group {name} has no committed offsets; an open transaction has its first ones: "
            f"{_places(pending)}"
        )
    if found is None:
        raise NotFound(f"consumer group {name} has no committed offsets; `archiver groups list` shows all")
    return found


def _pending(app_: Application, group: str) -> list[tuple[str, int]]:
    """Topic and partition of each pending offset of a group."""
    fold = app_.sequencer.fold
    return sorted(
        (fold.topics_by_id[topic_id].name, number)
        for topic_id, numbers in fold.consumer_groups.pending(group).items()
        for number in numbers
    )


def _places(pending: list[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}:{number}" for topic, number in pending)


def _document(lag: GroupLag, pending: list[tuple[str, int]], coordinator: dict[str, Any]) -> dict[str, Any]:
    from archiver.status.group_lag import group_document, partition_document

    return {
        **group_document(lag),
        "coordinator": coordinator,
        "partitions": [partition_document(one) for one in lag.partitions],
        "pending": [{"topic": topic, "partition": number} for topic, number in pending],
    }


def _count(records: int | None) -> str:
    from archiver.status.ages import count

    return count(records)


def _age(seconds: float | None) -> str:
    from archiver.status.ages import age

    return age(seconds)
