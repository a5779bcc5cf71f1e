"""`archiver config`: check, show and describe the configuration."""

from __future__ import annotations

import os

import typer

from archiver.cli.exits import FINE
from archiver.cli.options import ConfigOption, Output, OutputOption, config_path, settings_of
from archiver.cli.output import print_json
from archiver.clock import SystemClock
from archiver.errors import ArchiverError
from archiver.settings import CompileSettings, Problems, SchemaRegistrySettings, SchemaSettings, Settings, load_settings

app = typer.Typer(help="Check, show and describe the configuration.", no_args_is_help=True)


@app.command("check")
def check(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Validate the file and everything it names, without connecting anywhere."""
    settings = load_settings(config_path(config), os.environ, _schema_problems)
    if output is Output.JSON:
        print_json({"config": str(config_path(config)), "cluster": settings.cluster, "topics": [topic.name for topic in settings.topics]})
    else:
        print(f"{config_path(config)} is valid: cluster {settings.cluster}, {len(settings.topics)} topics")
    return FINE


@app.command("show")
def show(config: ConfigOption = None) -> int:
    """Print the settings in force, defaults filled in and secrets hidden, as JSON."""
    print_json(settings_of(config).model_dump(mode="json"))
    return FINE


@app.command("schema")
def schema() -> int:
    """Print the JSON Schema of the configuration file, for editors."""
    print_json(Settings.json_schema())
    return FINE


def _schema_problems(group: SchemaSettings, compile_settings: CompileSettings) -> Problems:
    """What is wrong with a schema that is in files: the descriptor set or the .proto files, and the message in them."""
    from archiver.registry.fetch import SchemaFetcher

    if group.subject is not None:
        return []  # a check connects nowhere
    try:
        SchemaFetcher(SchemaRegistrySettings(compile=compile_settings), SystemClock())(group, None)
    except ArchiverError as error:
        source = "descriptor_set" if group.protos is None else "protos"
        at = "message" if f"has no message {group.message!r}" in str(error) else source
        return [((at,), str(error))]
    return []
