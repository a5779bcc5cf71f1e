"""What the shell offers when somebody presses Tab: names out of the configuration file.

Promises that nothing but names ever reaches the prompt, neither an error nor a warning, and that an answer
takes `SECONDS_MAX` at most: then nothing is offered. Reads the configuration's text alone; must never open a
log, a store or a catalog, nor validate: a half-written file offers what it has.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from archiver.runtime.errors import ArchiverError

VARIABLE = "_ARCHIVER_COMPLETE"
"""Set by the shell's completion script; typer reads it."""
SECONDS_MAX = 5.0
CONFIG_BYTES_MAX = 4 * 2**20


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics of the configuration file."""
    return [name for name in _names(context, "topics", "name") if name.startswith(incomplete)]


def complete_scope(context: typer.Context, incomplete: str) -> list[str]:
    """Topics, and once the name is complete their partitions: `orders`, `orders:0`."""
    name, colon, _ = incomplete.partition(":")
    if not colon:
        return complete_topic(context, incomplete)
    counts = [topic.get("partitions", 1) for topic in _of(context, "topics") if topic.get("name") == name]
    offered = [
        f"{name}:{number}" for count in counts if isinstance(count, int) for number in range(min(count, 1000))
    ]
    return [text for text in offered if text.startswith(incomplete)]


def complete_sql(context: typer.Context, incomplete: str) -> list[str]:
    """For the argument of `query`: the word that is being typed, as a table's name."""
    before, blank, word = incomplete.rpartition(" ")
    archives = (topic.get("archive") for topic in _of(context, "topics"))
    tables = {
        str(archive["table"]) for archive in archives if isinstance(archive, dict) and archive.get("table")
    }
    return [before + blank + table for table in sorted(tables) if table.startswith(word)]


def begin() -> None:
    """Call it first in a process that answers the shell: nothing but names reaches the terminal, and after
    `SECONDS_MAX` it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)


def _over(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # at once, with nothing offered: whatever takes so long must not hold up the prompt


def _names(context: typer.Context, group: str, key: str) -> list[str]:
    return [str(item[key]) for item in _of(context, group) if item.get(key)]


def _of(context: typer.Context, group: str) -> list[dict[str, Any]]:
    """The items of a list in the configuration; none if it cannot be read."""
    given = (context.params or {}).get("config")
    path = Path(given or os.environ.get("ARCHIVER_CONFIG") or "archiver.yaml")
    try:
        found = path.stat()  # Of a pipe nothing is read: it could be somebody's only copy, or never end.
        if not stat.S_ISREG(found.st_mode) or found.st_size > CONFIG_BYTES_MAX:
            return []
        from archiver.config.yaml_loader import read_document

        document, _ = read_document(path)
    except (ArchiverError, OSError, ValueError):
        return []
    items = document.get(group)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
