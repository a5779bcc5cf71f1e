"""`archiver config`: check, show and describe the configuration."""

from __future__ import annotations

import typer

from archiver.cli.exits import FINE
from archiver.cli.options import ConfigOption, Output, OutputOption, config_path, settings_of
from archiver.cli.output import print_json
from archiver.settings import Settings

app = typer.Typer(help="Check, show and describe the configuration.", no_args_is_help=True)


@app.command("check")
def check(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Validate the file and everything it names, without connecting anywhere."""
    from archiver.jobs.topic_setup import load_sources

    settings = settings_of(config)
    for topic in settings.topics:
        load_sources(topic)
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
