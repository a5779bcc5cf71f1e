"""The log: the one primitive that carries every guarantee.

A log is a dense sequence of immutable entries, numbered from 0. An entry is an opaque byte string that holds
its own unique id, so two entries are the same exactly if their bytes are. State is only ever the fold of a
log.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol


class Appended(enum.Enum):
    """What became of an append."""

    OK = "ok"
    """The entry stands at that index, durably (perhaps since an earlier try with the same bytes)."""
    TAKEN = "taken"
    """Another entry stands there: read on to the tail before anything else (rule L3)."""
    UNKNOWN = "unknown"
    """It may stand there, now or later. Only the same entry at the same index may be tried next (rule L2)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry and where it stands."""

    index: int
    data: bytes


class Log(Protocol):
    """One named log of a store. Safe to use from several threads and processes."""

    name: str

    def append(self, index: int, data: bytes) -> Appended:
        """Put `data` at `index` if `index` is the tail, checked by the store in the same transaction (rule
        L1).

        Raises `Trimmed` if `index` is below the floor, `Halt` if it is beyond the tail (there would be a
        hole), `InvalidInput` if the entry is larger than `log.entry_bytes_max`. `RetryLater` means certainly
        not appended.
        """

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """Up to `limit` entries from `start` on, in order, without a hole; empty at the tail. `Trimmed` below
        the floor.
        """

    def tail(self) -> int:
        """The index the next entry will get: one past the newest."""

    def floor(self) -> int:
        """The lowest index that can still be read (equal to `tail()` if none)."""

    def trim(self, below: int) -> None:
        """Forget the entries below that index; never past the tail, never moves back."""

    def close(self) -> None:
        """Release the store's handles."""


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
