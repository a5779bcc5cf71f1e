"""Reading a log from one entry to its tail, however far that is, some entries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from archiver.log.store import Entry, Log

READ_ENTRIES: Final = 1000
"""Entries per request."""


def entries_from(log: Log, start: int, tail: int | None = None) -> Iterator[Entry]:
    """The entries from index `start` on, in order: up to where the log ends when that is reached, or at least
    up to `tail`.

    With `tail` nothing more is asked for once that is reached, so whoever reads a log that others append to
    comes to an end. Raises what the log raises, `Trimmed` also halfway.
    """
    while (tail is None or start < tail) and (entries := log.read(start, READ_ENTRIES)):
        yield from entries
        start = entries[-1].index + 1
