"""Shell completion: offers names from the configuration file.

No error or warning reaches the prompt. After `SECONDS_MAX` the process ends and offers nothing. It reads only
the text of the configuration: it opens no log, store or catalog, and it does not validate, so that a
half-written file still offers its names.
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
# A user who presses the tab key waits no longer.
SECONDS_MAX = 5.0
CONFIG_BYTES_MAX = 4 * 2**20


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics of the configuration file."""
    return [name for name in _names(context, "topics", "name") if name.startswith(incomplete)]


def complete_scope(context: typer.Context, incomplete: str) -> list[str]:
    """Topics, and after the colon their partitions: `orders`, `orders:0`."""
    name, colon, _ = incomplete.partition(":")
    if not colon:
        return complete_topic(context, incomplete)
    counts = [topic.get("partitions", 1) for topic in _items(context, "topics") if topic.get("name") == name]
    # Bounded: a longer list is of no use at a prompt.
    offered = [
        f"{name}:{number}" for count in counts if isinstance(count, int) for number in range(min(count, 1000))
    ]
    return [text for text in offered if text.startswith(incomplete)]


def complete_sql(context: typer.Context, incomplete: str) -> list[str]:
    """Table names that complete the last word of a query."""
    before, blank, word = incomplete.rpartition(" ")
    archives = (topic.get("archive") for topic in _items(context, "topics"))
    tables = {
        str(archive["table"]) for archive in archives if isinstance(archive, dict) and archive.get("table")
    }
    return [before + blank + table for table in sorted(tables) if table.startswith(word)]


def begin() -> None:
    """Silence standard error and limit the time; call it first in a process that answers the shell."""
    # The descriptor and not `sys.stderr`, because libraries in C write to it directly.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    signal.signal(signal.SIGALRM, _time_out)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)


def _time_out(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # at once and with nothing offered, so that the prompt does not wait


def _names(context: typer.Context, group: str, key: str) -> list[str]:
    return [str(item[key]) for item in _items(context, group) if item.get(key)]


def _items(context: typer.Context, group: str) -> list[dict[str, Any]]:
    """Items of a list in the configuration; empty if it cannot be read."""
    # Typer parses the words before the cursor, so an option `-c` is known.
    given = (context.params or {}).get("config")
    path = Path(given or os.environ.get("ARCHIVER_CONFIG") or "archiver.yaml")
    try:
        found = path.stat()  # a pipe is not read: that could consume it, or never end
        if not stat.S_ISREG(found.st_mode) or found.st_size > CONFIG_BYTES_MAX:
            return []
        from archiver.config.yaml_loader import read_document

        document, _ = read_document(path)
    # Any failure offers nothing; the command itself will report it.
    except (ArchiverError, OSError, ValueError):
        return []
    items = document.get(group)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
