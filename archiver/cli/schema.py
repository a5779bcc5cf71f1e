"""`archiver schema`: show a topic's mapping, and what a newer schema would do to its table. Only reads."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.completion import complete_topic
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_table
from archiver.runtime.errors import InvalidInput
from archiver.runtime.exit_codes import FINE, WRONG
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import SchemaSettings
    from archiver.schema.evolution.recorded import SourceSchema
    from archiver.schema.protobuf.descriptors import Source
    from archiver.status.mapping import SchemaPlan

app = typer.Typer(
    help="Show the columns of a schema, and what a newer one changes.",
    no_args_is_help=True,
)


class SideOption(enum.StrEnum):
    """Which part of a record."""

    KEY = "key"
    VALUE = "value"


_Topic = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=complete_topic)]
_Side = Annotated[SideOption, typer.Option("--side", help="Whose schema the given file or folder is.")]
_DescriptorSet = Annotated[
    Path | None,
    typer.Option(
        "--descriptor-set",
        help="The newer schema: a file of `protoc --include_imports --descriptor_set_out` or `buf build`.",
    ),
]
_Protos = Annotated[
    Path | None,
    typer.Option("--protos", help="The newer schema: a folder of .proto files; imports are relative to it."),
]
_Avsc = Annotated[Path | None, typer.Option("--avsc", help="The newer schema: a file with an Avro schema.")]
_JsonSchema = Annotated[
    Path | None, typer.Option("--json-schema", help="The newer schema: a file with a JSON Schema.")
]
_Message = Annotated[
    str | None,
    typer.Option(
        "--message", help="Full name of the message in it, such as shop.Order (default: the configured one)."
    ),
]


@app.command("show")
def show(topic: _Topic, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show every field of a topic's messages with its column. The ledger records both."""
    from archiver.app.schema_plan import schema_history
    from archiver.status.mapping import mapping_of

    with application(config) as app_:
        history = schema_history(app_, topic)
    fields = mapping_of(history)
    version = history[-1].version if history else None
    if output is Output.JSON:
        print_json({"topic": topic, "version": version, "fields": [one.to_json() for one in fields]})
        return FINE
    if version is None:
        print(
            f"no schema of topic {topic} is recorded yet; `archiver schema plan {topic}` shows what "
            "the first archive would record"
        )
        return FINE
    if not fields:
        print(
            f"{topic}, schema version {version}: neither key nor value has a message, so they have no "
            "columns but their bytes (__raw__)"
        )
        return FINE
    print_table(
        f"{topic}, schema version {version}",
        ("field", "path", "schema type", "column", "type", "field id", "state", "versions"),
        [
            (
                f"{one.side}: {one.field}",
                one.path,
                one.protobuf_type,
                one.column,
                one.type,
                one.field_id,
                "active" if one.active else "dropped",
                _spans(one.versions),
            )
            for one in fields
        ],
    )
    return FINE


@app.command("plan")
def plan(
    topic: Annotated[
        str | None,
        typer.Argument(help="The topic's name (default: all topics).", autocompletion=complete_topic),
    ] = None,
    config: ConfigOption = None,
    side: _Side = SideOption.VALUE,
    descriptor_set: _DescriptorSet = None,
    protos: _Protos = None,
    avsc: _Avsc = None,
    json_schema: _JsonSchema = None,
    message: _Message = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show what a newer schema would do to a topic's table. No record needs to use it yet. Without a schema
    option it takes the one that the configuration names.
    """
    if topic is None:
        if any(one is not None for one in (descriptor_set, protos, avsc, json_schema, message)):
            raise InvalidInput("name the topic whose newer schema this is: archiver schema plan TOPIC")
        return _plan_all(config, output)
    with application(config) as app_:
        found = _planned(app_, topic, side, _Files(descriptor_set, protos, avsc, json_schema), message)
    _print(found, output)
    return FINE


def _plan_all(config: Path | None, output: Output) -> int:
    """The plans of all configured topics, each as for one."""
    with application(config) as app_:
        # One application for all topics, so both logs are opened once.
        plans = [_planned(app_, one.name, SideOption.VALUE, _Files(), None) for one in app_.settings.topics]
    if output is Output.JSON:
        print_json({"topics": [one.to_json() for one in plans]})
        return FINE
    for one in plans:
        _print(one, output)
    return FINE


@app.command("check")
def check(
    topic: Annotated[
        str | None,
        typer.Argument(help="The topic's name; left out with --against.", autocompletion=complete_topic),
    ] = None,
    config: ConfigOption = None,
    side: _Side = SideOption.VALUE,
    descriptor_set: _DescriptorSet = None,
    protos: _Protos = None,
    avsc: _Avsc = None,
    json_schema: _JsonSchema = None,
    message: _Message = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="Compare with this file instead of a topic; needs no deployment."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """As plan, for the CI of a schema's owner. Exit code 1: the change is incompatible with older records or
    queries.
    """
    # Exactly one of the two: a comparison of files needs no deployment.
    if (topic is None) == (against is None):
        raise InvalidInput("name either a topic, or with --against the descriptor set to compare with")
    if topic is not None:
        with application(config) as app_:
            found = _planned(app_, topic, side, _Files(descriptor_set, protos, avsc, json_schema), message)
    else:
        assert against is not None, "one of the two is there"
        found = _compared(against, side, _Files(descriptor_set, protos, avsc, json_schema), message)
    _print(found, output, against=against is not None)
    return FINE if found.decision.compatible else WRONG


def _planned(
    app_: Application,
    topic: str,
    side: SideOption,
    files: _Files,
    message: str | None,
) -> SchemaPlan:
    from archiver.app.schema_plan import Given, planned, schema_history
    from archiver.status.mapping import with_envelope_of

    if message is not None and not files.given:
        raise InvalidInput(
            "--message is the message of a schema; give --descriptor-set, --protos, --avsc or "
            "--json-schema as well"
        )

    def load(group: SchemaSettings | None, known: SourceSchema | None) -> Source:
        # A file has no registry ids, and their absence must not count as a change.
        return with_envelope_of(_given(files, message, group), known)

    history = schema_history(app_, topic)
    return planned(app_, topic, history, Given(side.value, load) if files.given else None)[0]


def _compared(against: Path, side: SideOption, files: _Files, message: str | None) -> SchemaPlan:
    from archiver.schema.avro.source import as_registered, load_avro_source
    from archiver.schema.json.source import load_json_source
    from archiver.schema.protobuf.descriptors import load_source
    from archiver.status.mapping import first_version, plan_of

    newer = _given(files, message, None)
    if newer.format == "avro":
        # As in a registry, where each record names its schema; a file alone must not change.
        newer = as_registered(newer)
        older = as_registered(load_avro_source(against, None, newer.recursion_depth))
    elif newer.format == "json":
        older = load_json_source(against, None, newer.recursion_depth)
    else:
        older = load_source(against, newer.message)
    # The old file counts as the only recorded version.
    history = first_version(older, side.value)
    key, value = (newer if name is side else None for name in SideOption)
    return plan_of(str(against), history, key, value)


@dataclass(frozen=True)
class _Files:
    """The schema that the command line names."""

    descriptor_set: Path | None = None
    protos: Path | None = None
    avsc: Path | None = None
    json_schema: Path | None = None

    @property
    def given(self) -> list[Path]:
        every = (self.descriptor_set, self.protos, self.avsc, self.json_schema)
        return [one for one in every if one is not None]


def _given(files: _Files, message: str | None, group: SchemaSettings | None) -> Source:
    """The schema that the command line names, read as the topic's settings say."""
    from archiver.config.settings import ProtosSettings, SchemaRegistrySettings, SchemaSettings
    from archiver.config.types import Surroundings
    from archiver.registry.fetch import SchemaFetcher
    from archiver.runtime.clock import SystemClock
    from archiver.schema.protobuf.tree import RECURSION_DEPTH

    # The configured message, so that only the file must be named for a newer version.
    name = message or (None if group is None else group.message)
    if len(files.given) != 1:
        raise InvalidInput(
            "name the newer schema with one of --descriptor-set FILE, --protos DIR, --avsc FILE and "
            "--json-schema FILE"
        )
    if name is None and files.avsc is None and files.json_schema is None:
        raise InvalidInput("name the message with --message, for example --message shop.Order")
    # Paths on the command line start at the current folder, not at that of the configuration file.
    around = Surroundings(folder=Path.cwd(), environ=os.environ)
    # Not validated as a whole: its parts are, and the group's own errors would name a configuration file.
    requested = SchemaSettings.model_construct(
        descriptor_set=files.descriptor_set,
        protos=None
        if files.protos is None
        else ProtosSettings.model_validate({"folder": str(files.protos)}, context=around),
        avsc=files.avsc,
        json_schema=files.json_schema,
        format=None,
        subject=None,
        message=name,
        recursion_depth=RECURSION_DEPTH if group is None else group.recursion_depth,
        columns={} if group is None else group.columns,
    )
    return SchemaFetcher(SchemaRegistrySettings(), SystemClock())(requested, None).source


def _print(found: SchemaPlan, output: Output, against: bool = False) -> None:
    """Print a plan; with `against`, two schemas were compared instead of two versions of a topic."""
    changes = found.decision.changes
    if output is Output.JSON:
        print_json(found.to_json())
        return
    recorded = "nothing recorded" if found.recorded is None else f"version {found.recorded}"
    before, after = (
        ("the old schema", "the new one")
        if against
        else (recorded, f"version {found.decision.schema.version}")
    )
    if not changes:
        print(f"{found.topic}: no change to {before}; {counted(len(found.unchanged), 'column')} unchanged")
        return
    print_table(
        f"{found.topic}, from {before} to {after}",
        ("what", "field", "column", "was", "now", "compatible", "because"),
        [
            (
                change.what,
                f"{change.side}: {change.field or '(all)'}",
                change.column,
                change.was,
                change.now,
                change.compatible,
                change.why,
            )
            for change in changes
        ],
    )
    wrong = sum(not change.compatible for change in changes)
    verdict = (
        f"{wrong} of {counted(len(changes), 'change')} {'is' if wrong == 1 else 'are'} incompatible"
        if wrong
        else "compatible"
    )
    print(f"{verdict}; {counted(len(found.unchanged), 'column')} unchanged")
    # Compatible in itself, but the policy of the topic may still halt it.
    if not found.allowed:
        print(
            f"schema_change: {found.policy} halts the topic before this change; to accept it, set "
            f"schema_change: {'compatible' if found.decision.compatible else 'evolve'} and reload"
        )


def _spans(versions: tuple[int, ...]) -> str:
    """Versions as spans: `1-3, 5`."""
    spans: list[list[int]] = []
    for version in versions:
        if spans and spans[-1][1] == version - 1:
            spans[-1][1] = version
        else:
            spans.append([version, version])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
