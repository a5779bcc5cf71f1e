"""`archiver doctor`: what this deployment needs, checked on this machine, with a remedy for each problem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.admin_client import last_rounds, readiness
from archiver.cli.options import CONFIG_VARIABLE, ConfigOption, Output, OutputOption, config_path
from archiver.cli.output import print_json
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.ids import SystemIds
from archiver.runtime.pandas_later import put_off_pandas
from archiver.runtime.redaction import redacted
from archiver.runtime.text import counted, printable_text

if TYPE_CHECKING:
    from archiver.config.settings import Settings, TopicSettings, TopicTemplateSettings
    from archiver.doctor.report import Finding


def doctor(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            max=3600,
            help="Longest time for all checks together, in seconds; a check without a result is unknown.",
        ),
    ] = 60.0,
) -> int:
    """Check the machine, the folders and the services. Each problem has a remedy.

    Exit code 0: no problem, 1: a problem, 2: something is unknown, for example a catalog that does not
    answer. It changes nothing. In a bucket it creates one object with a random name and deletes it, to see
    whether the store refuses to replace it. Run it as the user of the daemon, on the daemon's machine.
    """
    put_off_pandas()
    from archiver.doctor import report
    from archiver.doctor.checks import deployment_checks, machine_checks, not_made
    from archiver.doctor.run import run_checks

    clock = SystemClock()
    path, settings, configuration = _configuration(config)
    checks = machine_checks(settings, os.environ)
    if settings is not None:
        schemas = partial(_schemas, Path(path), settings)
        checks += deployment_checks(settings, schemas, own_daemon, clock, SystemIds())
    results = [report.Result("configuration", configuration), *run_checks(checks, timeout, clock)]
    if settings is None:
        results += not_made()
    if output is Output.JSON:
        print_json(report.document(path or None, None if settings is None else settings.cluster, results))
    else:
        for line in report.lines(results):
            print(printable_text(redacted(line)))
    return report.exit_code(results)


def _configuration(given: Path | None) -> tuple[str, Settings | None, Finding]:
    """Path and settings of the configuration, or None with the reason."""
    from archiver.config.settings import load_settings
    from archiver.doctor.report import ok, problem

    path = ""
    try:
        found = config_path(given)
        path = str(found)
        settings = load_settings(found, os.environ)
    except ConfigInvalid as error:
        if not path or not Path(path).exists():
            remedy = f"write one (docs/quickstart.md), or name it with -c FILE or {CONFIG_VARIABLE}"
        elif not Path(path).is_file() or " is not UTF-8 text" in str(error):
            remedy = f"name the configuration file with -c FILE or {CONFIG_VARIABLE}"
        else:
            remedy = f"correct these lines of {path}; docs/configuration.md has every key"
        return path, None, problem(str(error), remedy)
    topics = counted(len(settings.topics), "topic")
    notes = "".join(f"; {note}" for note in _notes(settings))
    return path, settings, ok(f"{path}: cluster {settings.cluster}, {topics}{notes}")


def _notes(settings: Settings) -> list[str]:
    from archiver.cli.config import setting_notes

    return setting_notes(settings)


def _schemas(path: Path, settings: Settings) -> Finding:
    """The schema files that topics name, compiled as at the start."""
    from archiver.cli.config import schema_problems
    from archiver.config.settings import load_settings
    from archiver.doctor.report import not_applicable, ok, problem

    entries: Sequence[TopicSettings | TopicTemplateSettings] = (*settings.topics, *settings.templates)
    groups = [
        group
        for entry in entries
        for group in (entry.key, entry.value)
        if group is not None and group.subject is None
    ]
    if not groups:
        return not_applicable("no topic names a schema file")
    try:
        load_settings(path, os.environ, schema_problems)
    except ConfigInvalid as error:
        return problem(str(error), "correct the file or the key (docs/schemas.md)")
    return ok(f"{counted(len(groups), 'schema')} of topics can be used")


def own_daemon(settings: Settings, cluster_id: str) -> Mapping[str, Any] | None:
    """State of the daemon at `http.listen`, if it is of this cluster; more of it with its token."""
    ready = readiness(settings, cluster_id)
    if ready is None:
        return None
    reported = last_rounds(settings, cluster_id)
    return ready if reported is None or reported["daemon"] is None else dict(reported["daemon"])
