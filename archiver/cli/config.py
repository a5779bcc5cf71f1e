"""`archiver config`: check, show and describe the configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.options import ConfigOption, Output, OutputOption, config_path, settings_of
from archiver.cli.output import print_json
from archiver.runtime.check_result import Checked, CheckStatus, worst
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError, InvalidInput
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.ids import SystemIds
from archiver.runtime.redaction import redacted
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.config.settings import CompileSettings, Problems, SchemaSettings, Settings

app = typer.Typer(help="Check, show and describe the configuration.", no_args_is_help=True)


@app.command("check")
def check(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Also query the bucket or data folder, the metadata store, every catalog that topics use, "
            "the Kafka clusters of sources "
            "and the control topic's cluster; writes nothing.",
        ),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="With --connect: also create and delete an object, and create a table in each catalog, "
            "commit to it and drop it. "
            "The logs are never written.",
        ),
    ] = False,
) -> int:
    """Validate the configuration file and the files it names. It connects nowhere without --connect."""
    from archiver.config.settings import load_settings

    if probe and not connect:
        raise InvalidInput("--probe needs --connect: write both")
    # With the compiler: a schema file may be valid YAML and not valid Protobuf.
    settings = load_settings(config_path(config), os.environ, schema_problems)
    document: dict[str, Any] = {
        "config": str(config_path(config)),
        "cluster": settings.cluster,
        "topics": [topic.name for topic in settings.topics],
    }
    if settings.templates:
        document["templates"] = [one.pattern for one in settings.templates]
    notes = setting_notes(settings)
    if notes:
        document["notes"] = notes
    if output is Output.TEXT:
        print(
            f"{config_path(config)} is valid: cluster {settings.cluster}, "
            f"{counted(len(settings.topics), 'topic')}"
            + (f", {counted(len(settings.templates), 'template')}" if settings.templates else "")
        )
        for note in notes:
            print(f"note: {note}")
    checked = []
    if connect:
        data, metadata = _storage(settings, output, probe)
        document |= {"data": _document(data), "metadata": _document(metadata)}
        catalogs = _catalogs(settings, output, probe)
        document["catalogs"] = [_document(one) for one in catalogs]
        sources = _sources(settings, output)
        document["sources"] = [_document(one) for one in sources]
        topic = _control_topic(settings, output)
        if topic is not None:
            document["control_topic"] = _document(topic)
        checked = [data, metadata, *catalogs, *sources, *([] if topic is None else [topic])]
    if output is Output.JSON:
        print_json(document)
    # Wrong comes before unknown, as `worst` decides.
    return {CheckStatus.WRONG: WRONG, CheckStatus.UNKNOWN: UNKNOWN}.get(
        worst(one.verdict for one in checked), FINE
    )


def setting_notes(settings: Settings) -> list[str]:
    """Settings that are correct only under a condition that cannot be checked from here."""
    elsewhere = settings.spark.remote or ("" if settings.spark.is_here else settings.spark.master)
    # A bucket is the same place for every machine.
    if not elsewhere or settings.data.uri.startswith("s3://"):
        return []
    folder = (
        f"every executor must see {settings.data.uri} under this path, on a shared file system; a bucket "
        "is reached from everywhere"
    )
    return [
        f"spark runs at {redacted(elsewhere)} and data.uri is a folder: {folder} (docs/operations/spark.md)"
    ]


def _storage(settings: Settings, output: Output, probe: bool) -> tuple[Checked, Checked]:
    """Checks of the object store and of the metadata store; each is printed when it ends."""
    from archiver.daemon.storage_preflight import check_data, check_metadata

    data = check_data(settings, SystemIds(), probe=probe)
    # Printed one by one, because a check may wait for its timeout.
    if output is Output.TEXT:
        _print("data", data)
    metadata = check_metadata(settings, SystemClock(), probe=probe)
    if output is Output.TEXT:
        _print("metadata", metadata)
    return data, metadata


def _sources(settings: Settings, output: Output) -> list[Checked]:
    """Checks of the Kafka clusters of sources; each is printed when it ends."""
    found = []
    # The import is inside of the loop: the Kafka client is an optional dependency.
    for kafka in [source.kafka for source in settings.sources if source.kafka is not None]:
        from intake.sources.kafka.check import check_source

        one = check_source(kafka, [topic.name for topic in settings.topics if topic.mirrored], SystemClock())
        found.append(one)
        if output is Output.TEXT:
            _print("source", one)
    return found


def _catalogs(settings: Settings, output: Output, probe: bool) -> list[Checked]:
    """Checks of the catalogs; each is printed when it ends."""
    from archiver.catalog.connect import check_catalogs

    found = []
    for one in check_catalogs(settings, SystemIds(), SystemClock(), probe=probe):
        found.append(one)
        if output is Output.TEXT:
            _print("catalog", one)
    if output is Output.TEXT and not found:
        print("no topic uses a catalog")
    return found


def _control_topic(settings: Settings, output: Output) -> Checked | None:
    """Check of the control topic's cluster."""
    if settings.events.kafka is None:
        return None
    from archiver.control_topic.kafka_topic import check_control_topic

    found = check_control_topic(settings.events.kafka, settings.events.bytes_max, SystemClock())
    if output is Output.TEXT:
        _print("control topic", found)
    return found


def _print(what: str, checked: Checked) -> None:
    print(f"{what} {checked.name} ({checked.kind}): {checked.verdict}")
    for item in checked.findings:
        print(redacted(f"  {item.verdict:<6} {item.check}: {item.message}"))


def _document(checked: Checked) -> dict[str, Any]:
    findings = [
        {"check": item.check, "verdict": str(item.verdict), "told": redacted(item.message)}
        for item in checked.findings
    ]
    return {"name": checked.name, "type": checked.kind, "verdict": str(checked.verdict), "findings": findings}


@app.command("show")
def show(config: ConfigOption = None) -> int:
    """Print the settings in force as JSON. Defaults are filled in and secrets hidden."""
    print_json(settings_of(config).model_dump(mode="json"))
    return FINE


@app.command("schema")
def schema() -> int:
    """Print the JSON Schema of the configuration file, for editors."""
    from archiver.config.settings import Settings

    print_json(Settings.json_schema())
    return FINE


def schema_problems(group: SchemaSettings, compile_settings: CompileSettings) -> Problems:
    """Problems of a schema in files: the descriptor set or the .proto files, and the message in them."""
    from archiver.config.settings import SchemaRegistrySettings
    from archiver.registry.fetch import SchemaFetcher

    if group.subject is not None:
        return []  # a check connects nowhere
    try:
        SchemaFetcher(SchemaRegistrySettings(compile=compile_settings), SystemClock())(group, None)
    except ArchiverError as error:
        source = next(
            name
            for name in ("avsc", "json_schema", "format", "protos", "descriptor_set")
            if getattr(group, name) is not None
        )
        # The fetcher knows no key paths, so the text decides which key has the problem.
        wrong_name = f"has no message {group.message!r}" in str(error) or "correct `message`" in str(error)
        at = "message" if wrong_name else source
        return [((at,), str(error))]
    return []
