"""The `Log` Protocol, on which every guarantee of the archiver rests.

A log is a dense sequence of immutable entries, numbered from 0. An entry is an opaque byte string that
contains its own unique id, so two entries are equal only if they are the same entry. All state is a fold of a
log.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol


class Appended(enum.Enum):
    """Outcome of an append."""

    OK = "ok"
    """The entry is durable at that index, possibly from an earlier attempt with the same bytes."""
    TAKEN = "taken"
    """Another entry has that index: read to the tail before anything else (rule L3)."""
    UNKNOWN = "unknown"
    """The entry may be there, now or later. Only the same entry at the same index may be tried next (rule
    L2)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry and its index."""

    index: int
    data: bytes


class Log(Protocol):
    """One named log of a store. Safe to use from several threads and processes."""

    name: str

    def append(self, index: int, data: bytes) -> Appended:
        """Write `data` at `index` if `index` is the tail. The store checks this in the same transaction (rule
        L1).

        Raises `Trimmed` if `index` is below the floor, and `Halt` if it is beyond the tail (a hole). Raises
        `InvalidInput` if the entry is larger than `log.entry_bytes_max`. `RetryLater` means certainly not
        appended.
        """

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """Up to `limit` consecutive entries from `start`; empty at the tail. Raises `Trimmed` below the
        floor.
        """

    def tail(self) -> int:
        """The index of the next entry: one past the newest."""

    def floor(self) -> int:
        """The lowest readable index; equal to `tail()` if the log is empty."""

    def trim(self, below: int) -> None:
        """Delete the entries below that index. The floor never passes the tail and never moves back."""

    def close(self) -> None:
        """Release the store's handles."""


READ_ENTRIES: Final = 1000
"""Entries per read request of `entries_from`."""


def entries_from(log: Log, start: int, tail: int | None = None) -> Iterator[Entry]:
    """Iterate the entries from `start` to the tail, or at least up to `tail`.

    With `tail` the iteration ends there, so it is finite while others append. Raises what the log raises;
    `Trimmed` is possible midway.
    """
    # Without `tail` an empty read ends the iteration, with it the index does.
    while (tail is None or start < tail) and (entries := log.read(start, READ_ENTRIES)):
        yield from entries
        # A page may have more entries than remain up to `tail`; they are valid entries of the log.
        start = entries[-1].index + 1
