"""Options that several commands share, and the way from `-c` to a composed application."""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.errors import ConfigInvalid, InvalidInput
from archiver.settings import Settings, load_settings

if TYPE_CHECKING:
    from archiver.assemble import Application

CONFIG_VARIABLE = "ARCHIVER_CONFIG"

_PARTITION = re.compile(r"[0-9]{1,6}")


class Output(enum.StrEnum):
    """How a command prints."""

    TEXT = "text"
    JSON = "json"


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help=f"The configuration file (else the variable {CONFIG_VARIABLE}, else ./archiver.yaml).", show_default=False
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", help="text for people, json for programs.")]


def config_path(given: Path | None) -> Path:
    """The configuration file to use: the option, the variable, or archiver.yaml in the current folder."""
    if given is not None:
        return given
    named = os.environ.get(CONFIG_VARIABLE)
    path = Path(named) if named else Path("archiver.yaml")
    if not named and not path.exists():
        raise ConfigInvalid(
            f"no configuration: name a file with -c FILE or {CONFIG_VARIABLE}, or put archiver.yaml into the current folder"
        )
    return path


def settings_of(given: Path | None) -> Settings:
    """Loaded and validated settings."""
    return load_settings(config_path(given), os.environ)


def application(given: Path | None) -> Application:
    """The composed application; close it after use (it is a context manager)."""
    from archiver.assemble import open_application

    return open_application(settings_of(given), os.environ)


def parse_scope(text: str) -> tuple[str, frozenset[int] | None]:
    """`TOPIC`, `TOPIC:3` or `TOPIC:0-3` as topic name and partitions (None: all)."""
    name, colon, span = text.partition(":")
    if not colon:
        return name, None
    low, dash, high = span.partition("-")
    if not _PARTITION.fullmatch(low) or (dash and not _PARTITION.fullmatch(high)):
        raise InvalidInput(f"--topic {text}: after the colon stands a partition (3) or a span of partitions (0-3)")
    last = int(high or low)
    if last < int(low):
        raise InvalidInput(f"--topic {text}: the span of partitions ends before it begins")
    return name, frozenset(range(int(low), last + 1))
