"""Options shared by several commands, how this program is called, and opening the application from `-c`."""

from __future__ import annotations

import enum
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.output import spark_starting
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.pandas_later import put_off_pandas

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import Settings


# --- Commands that a user can paste into the same shell.
def archiver() -> str:
    """`archiver`, or its path if the shell would find another one or none."""
    started = Path(sys.argv[0])
    if started.name != "archiver" or _is_on_path(started):
        return "archiver"
    return shlex.quote(os.path.relpath(started))


def spark_sql() -> str:
    """`spark-sql` of this environment, with the Python interpreter it needs."""
    found = Path(sys.executable).parent / "spark-sql"
    if not found.exists() or _is_on_path(found):
        return "spark-sql"
    # PySpark starts its workers with this interpreter; the default is `python3` of the path.
    return f"PYSPARK_PYTHON={shlex.quote(sys.executable)} {shlex.quote(str(found))}"


def _is_on_path(command: Path) -> bool:
    found = shutil.which(command.name)
    # Resolved, because a virtual environment contains links.
    return found is not None and Path(found).resolve() == command.resolve()


# --- Configuration and application.
CONFIG_VARIABLE = "ARCHIVER_CONFIG"


class Output(enum.StrEnum):
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        help=f"The configuration file (else the variable {CONFIG_VARIABLE}, else ./archiver.yaml).",
        show_default=False,
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", help="text for people, json for programs.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")
]


def config_path(given: Path | None) -> Path:
    """Path of the configuration: the option, the variable, or archiver.yaml in the current folder."""
    if given is not None:
        return given
    named = os.environ.get(CONFIG_VARIABLE)
    # An empty variable counts as not set.
    path = Path(named) if named else Path("archiver.yaml")
    if not named and not path.exists():
        raise ConfigInvalid(
            f"no configuration: name a file with -c FILE or {CONFIG_VARIABLE}, or put archiver.yaml "
            "into the current folder"
        )
    return path


def settings_of(given: Path | None) -> Settings:
    """Load and validate the settings."""
    from archiver.config.settings import load_settings

    return load_settings(config_path(given), os.environ)


def application(given: Path | None) -> Application:
    """Open the application; close it after use (it is a context manager)."""
    return application_of(settings_of(given))


def application_of(settings: Settings) -> Application:
    """Open the application for settings that are already loaded; close it after use."""
    # Before the first import of a user of Arrow: most commands never need pandas, which is slow to import.
    put_off_pandas()
    from archiver.app.application import open_application

    app = open_application(settings, os.environ)
    app.spark_starting = spark_starting
    return app
