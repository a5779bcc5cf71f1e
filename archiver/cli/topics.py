"""`archiver topics`: show, create, alter and delete topics of the intake log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.completion import complete_scope, complete_topic
from archiver.cli.options import ConfigOption, Output, OutputOption, YesOption, application
from archiver.cli.output import print_json, print_table
from archiver.publish.scope import parse_scope
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, InvalidInput
from archiver.runtime.exit_codes import FINE
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.publish.progress import PartitionPosition
    from intake.log.state import TopicState

app = typer.Typer(
    help="List, create, change and delete topics, and delete records.",
    no_args_is_help=True,
)

KnownTopic = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=complete_topic)]


@app.command("list")
def list_topics(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """List every topic of the intake log."""
    from archiver.publish.progress import positions, troubles

    with application(config) as app_:
        intake, ledger = app_.backlog(), app_.ledger()
        found = {
            state: positions(intake, ledger, state.topic_id)
            for _, state in sorted(intake.topics_by_name.items())
        }
    rows = [_summary(state, of_topic) for state, of_topic in found.items()]
    attention = [note for state, of_topic in found.items() for note in troubles(state.name, of_topic)]
    if output is Output.JSON:
        print_json({"topics": rows, "attention": attention})
    else:
        print_table(
            "topics",
            ("topic", "partitions", "records", "archived", "topic id"),
            [list(row.values()) for row in rows],
        )
        _print_notes(attention)
    return FINE


@app.command("describe")
def describe(topic: KnownTopic, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show one topic: its settings, and offsets per partition."""
    from archiver.publish.progress import positions, troubles

    with application(config) as app_:
        state = app_.topic(topic)
        found = positions(app_.backlog(), app_.ledger(), state.topic_id)
        settings = app_.settings.topic(topic)
    attention = troubles(topic, found)
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "topic_id": state.topic_id,
                "partitions": [vars_of(item) for item in found],
                # A topic can be in the log and not in the configuration any more.
                "settings": settings.model_dump(mode="json") if settings is not None else None,
                "attention": attention,
            }
        )
        return FINE
    print_table(
        f"{topic} ({state.topic_id})",
        ("partition", "start", "archived to", "pending to", "stable", "next", "backlog rows"),
        [
            (
                item.partition,
                item.start,
                item.watermark,
                item.written,
                item.stable,
                item.next,
                item.backlog_rows,
            )
            for item in found
        ],
    )
    _print_notes(attention)
    return FINE


@app.command("create")
def create(
    topic: Annotated[
        str, typer.Argument(help="The topic's name, as in the configuration.", autocompletion=complete_topic)
    ],
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Create a configured topic now, before its first record.

    After a topic of that name was deleted, only this command creates a new one. The new topic has another id,
    so it needs another table. An existing topic with fewer partitions than configured gets the others.
    """
    with application(config) as app_:
        settings = app_.settings.topic(topic)
        template = app_.configured.template(topic)
        if settings is None and template is not None:
            if template.partitions is None:
                raise ConfigInvalid(
                    f"the template {template.pattern} for topic {topic} states no partitions; add them"
                )
            settings = template.settings_of(topic, template.partitions)
        # Only a configured topic: the number of partitions comes from the configuration.
        if settings is None:
            raise ConfigInvalid(
                f"topic {topic} is not in the configuration and matches no template; add it under topics, "
                "with its number of partitions"
            )
        # Read before the declaration, which is idempotent and does not say whether it created the topic.
        known = topic in app_.backlog().topics_by_name
        state = app_.intake.declare_topic(settings)
    if output is Output.JSON:
        print_json(
            {"topic": topic, "topic_id": state.topic_id, "partitions": state.partitions, "created": not known}
        )
    else:
        print(
            f"topic {topic} {'exists already' if known else 'created'}: "
            f"{counted(state.partitions, 'partition')}, id {state.topic_id}"
        )
    return FINE


@app.command("alter")
def alter(
    topic: KnownTopic,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", help="Number of partitions from now on; never fewer than before."),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option("--set", help="A topic config, as NAME=VALUE, for example archive.idle_max=5s."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="Name of a topic config that gets its default.")
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Give a topic more partitions or other configs. Running daemons use them without a reload.

    Records stay where they are, but keys are distributed over all partitions from now on: later records of a
    key may be in another partition than earlier ones. The number cannot be lowered again. A mirrored topic
    gets its partitions from its Kafka topic.
    """
    from intake.log.state import fewer_configured

    if partitions is None and not configs and not unset:
        raise InvalidInput("nothing to alter: give --partitions, --set or --unset")
    with application(config) as app_:
        before = state = app_.topic(topic)
        if configs or unset:
            change = _config_change(configs or (), unset or ())
            state = app_.intake.configure_topic(state, change)
        if partitions is not None:
            state = app_.intake.grow_topic(topic, partitions)
        settings = app_.settings.topic(topic)
    notes = (
        [fewer_configured(state, settings.partitions)]
        if settings is not None and settings.partitions < state.partitions
        else []
    )
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "topic_id": state.topic_id,
                "partitions": state.partitions,
                "partitions_before": before.partitions,
                "configs": dict(state.configs),
                "attention": notes,
            }
        )
    else:
        if partitions is not None:
            changed = f", {before.partitions} before" if state.partitions > before.partitions else " already"
            print(f"topic {topic} has {counted(state.partitions, 'partition')}{changed}")
        if configs or unset:
            print(f"topic {topic} has {counted(len(state.configs), 'config')}")
            for name, value in state.configs:
                print(f"  {name} = {value}")
        _print_notes(notes)
    return FINE


@app.command("delete")
def delete(
    topic: KnownTopic,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete a topic and its intake files. Its records can no longer be written or read. Archives and table
    stay.

    The topic must not be in the configuration any more. Records that no archive holds yet are lost.
    """
    from archiver.objects.paths import table_prefix
    from archiver.publish.progress import positions

    with application(config) as app_:
        state = app_.topic(topic)
        # Before the question: a topic that cannot be deleted needs no confirmation.
        app_.intake.check_deletable(state)
        found = positions(app_.backlog(), app_.ledger(), state.topic_id)
        # From the end of the archives, not from the watermark: an archive in the ledger is kept.
        lost = sum(item.next - item.written for item in found)
        left = app_.ledger().topic(state.topic_id).remains()
        folder = app_.objects.uri(table_prefix(state.topic_id)) if left else None
        # A script without a terminal would otherwise wait for ever.
        if not yes and not sys.stdin.isatty():
            raise InvalidInput(
                f"topic {topic} was not deleted: there is no terminal for a confirmation; give --yes "
                "to delete it"
            )
        if not yes:
            for sentence in (
                _lost(lost, "holds"),
                f"its {' and '.join(left)} in {folder} stay" if left else None,
            ):
                if sentence is not None:
                    print(sentence)
            if not typer.confirm(f"Delete topic {topic} (id {state.topic_id})?"):
                print(f"topic {topic} was not deleted")
                return FINE
        app_.intake.delete_topic(state)
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "topic_id": state.topic_id,
                "deleted": True,
                "offsets_lost": lost,
                "archives": folder,
            }
        )
    else:
        sentence = _lost(lost, "held")
        print(f"topic {topic} (id {state.topic_id}) is deleted" + (f"; {sentence}" if sentence else ""))
        if left:
            print(
                f"its {' and '.join(left)} in {folder} stay as they are; remove them by hand if you do "
                "not need them"
            )
    return FINE


@app.command("delete-records")
def delete_records(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic, or some of its partitions: orders, orders:3, orders:0-3.",
            autocompletion=complete_scope,
        ),
    ],
    below: Annotated[
        str,
        typer.Option(
            "--below",
            help="An offset; latest or end; latest-N (the last N records of each partition); a time such as "
            "2026-11-27T12:00:00Z, or a duration such as -10m, that long ago: then the first record "
            "with that event time or a later one. The records before it are deleted.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted; delete nothing.")
    ] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete the records of a topic below an offset. No reader gets them any more. Needs no daemon.

    `archiver clean` frees the storage of what is archived. A running daemon reads of it at the latest a
    second later. A mirrored topic is refused, and so is one that the configuration keeps for ever.
    """
    from archiver.app.offset_targets import parse_target, target_offsets

    name, scope = parse_scope(topic)
    target = parse_target(below, "--below", SystemClock().now_us())
    with application(config) as app_:
        state = app_.topic(name)
        # Before the question: what cannot be deleted needs no confirmation.
        app_.intake.check_records_deletable(state)
        found = target_offsets(app_, state, scope, target)
        offsets = sum(one.offset - one.start for one in found)
        what = counted(offsets, "offset")
        # A script without a terminal would otherwise wait for ever.
        if not (dry_run or yes or sys.stdin.isatty()):
            raise InvalidInput(
                f"no records of topic {name} were deleted: there is no terminal for a confirmation; give "
                "--yes to delete them, or --dry-run to see how many"
            )
        if not (dry_run or yes) and not typer.confirm(f"Delete the records of {what} of topic {name}?"):
            print(f"no records of topic {name} were deleted")
            return FINE
        if not dry_run and offsets:
            app_.intake.delete_records(
                state, {one.partition: one.offset for one in found if one.offset > one.start}
            )
    if output is Output.JSON:
        print_json(
            {
                "topic": name,
                "topic_id": state.topic_id,
                "dry_run": dry_run,
                "offsets": offsets,
                "partitions": [
                    {
                        "partition": one.partition,
                        "start_before": one.start,
                        "start": one.offset,
                        "end": one.end,
                    }
                    for one in found
                ],
            }
        )
        return FINE
    print_table(
        f"{name}: {what} {'would be' if dry_run else 'are'} deleted",
        ("partition", "start before", "start", "end"),
        [(one.partition, one.start, one.offset, one.end) for one in found],
    )
    return FINE


def _config_change(
    configs: Sequence[str], unset: Sequence[str]
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """The function from a topic's configs to the new ones; raises `InvalidInput`."""
    stated = dict[str, str]()
    for one in configs:
        name, equals, value = one.partition("=")
        if not equals:
            raise InvalidInput(f"--set {one} has no value; write NAME=VALUE")
        stated[name] = value
    return lambda before: {name: value for name, value in {**before, **stated}.items() if name not in unset}


def _lost(offsets: int, holds: str) -> str | None:
    """What a deletion loses; None if archives hold every record. `holds` is the verb in the needed tense."""
    if offsets == 0:
        return None
    return counted(
        offsets, f"offset that no archive {holds} is lost", f"offsets that no archive {holds} are lost"
    )


def _print_notes(attention: Sequence[str]) -> None:
    for note in attention:
        print(f"note: {note}")


def _summary(state: TopicState, found: Sequence[PartitionPosition]) -> dict[str, object]:
    return {
        "topic": state.name,
        "partitions": state.partitions,
        "records": sum(item.next for item in found),
        "archived": sum(item.watermark for item in found),
        "topic_id": state.topic_id,
    }


def vars_of(item: PartitionPosition) -> dict[str, object]:
    """The position as JSON."""
    return {
        "partition": item.partition,
        "start": item.start,
        "watermark": item.watermark,
        "written": item.written,
        "stable": item.stable,
        "next": item.next,
        "backlog_rows": item.backlog_rows,
        "backlog_bytes": item.backlog_bytes,
    }
