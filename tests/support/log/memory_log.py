"""In-memory twins of the SQLite log and the file lease: the same promises except durability."""

from __future__ import annotations

import threading

from archiver.log.store import Appended, Entry
from archiver.runtime.errors import Halt, InvalidInput, LeaseHeld, Trimmed


class MemoryLogStore:
    """Logs that live as long as this object. Safe to use from several threads."""

    def __init__(self, entry_bytes_max: int) -> None:
        self._entry_bytes_max = entry_bytes_max
        self._logs: dict[str, MemoryLog] = {}
        self._lock = threading.Lock()

    def log(self, name: str) -> MemoryLog:
        """The log of that name, created if new; always the same object."""
        with self._lock:
            if name not in self._logs:
                self._logs[name] = MemoryLog(name, self._entry_bytes_max)
            return self._logs[name]

    def close(self) -> None:
        """Nothing to release."""


class MemoryLog:
    """One log; see `archiver.log.store.Log`."""

    def __init__(self, name: str, entry_bytes_max: int) -> None:
        self.name: str = name
        self._entry_bytes_max = entry_bytes_max
        self._floor = 0
        self._entries: list[bytes] = []
        self._lock = threading.Lock()

    def append(self, index: int, data: bytes) -> Appended:
        """As the Protocol says; never `UNKNOWN`."""
        if len(data) > self._entry_bytes_max:
            raise InvalidInput(
                f"an entry of {len(data)} bytes for log {self.name} is over log.entry_bytes_max "
                f"({self._entry_bytes_max})"
            )
        if index < 0:
            raise InvalidInput(f"{index} is no index of log {self.name}")
        with self._lock:
            tail = self._floor + len(self._entries)
            if index < self._floor:
                raise Trimmed(
                    f"log {self.name} was trimmed below {self._floor}; index {index} is gone and "
                    "cannot be appended"
                )
            if index > tail:
                raise Halt(f"log {self.name} ends at {tail}; an entry at {index} would leave a hole")
            if index < tail:
                return Appended.OK if self._entries[index - self._floor] == data else Appended.TAKEN
            self._entries.append(bytes(data))
            return Appended.OK

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """As the Protocol says; fewer than `limit` only at the tail. `Halt` beyond the tail: the log is older
        than its reader.
        """
        if start < 0 or limit < 1:
            raise InvalidInput(f"cannot read {limit} entries from {start} of log {self.name}")
        with self._lock:
            tail = self._floor + len(self._entries)
            if start < self._floor:
                raise Trimmed(
                    f"log {self.name} was trimmed below {self._floor}; it cannot be read from {start}"
                )
            if start > tail:
                raise Halt(f"log {self.name} ends at {tail} but its reader is at {start}")
            first = start - self._floor
            return [
                Entry(index, data) for index, data in enumerate(self._entries[first : first + limit], start)
            ]

    def tail(self) -> int:
        """The index the next entry will get."""
        with self._lock:
            return self._floor + len(self._entries)

    def floor(self) -> int:
        """The lowest index that can still be read."""
        with self._lock:
            return self._floor

    def trim(self, below: int) -> None:
        """As the Protocol says; `InvalidInput`, and nothing is trimmed, if `below` is past the tail."""
        with self._lock:
            tail = self._floor + len(self._entries)
            if below > tail:
                raise InvalidInput(
                    f"cannot trim log {self.name} below {below}: it ends at {tail}; nothing was trimmed"
                )
            if below > self._floor:
                del self._entries[: below - self._floor]
                self._floor = below

    def close(self) -> None:
        """Nothing to release."""


class LeasePlace:
    """What several `MemoryLease` objects compete for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held_by: MemoryLease | None = None


class MemoryLease:
    """A lease within one process; give leases that compete the same `place`."""

    def __init__(self, owner: str, place: LeasePlace | None = None) -> None:
        self.owner = owner
        self._place = place or LeasePlace()

    def acquire(self) -> None:
        """Take the place or raise `LeaseHeld`."""
        with self._place.lock:
            held_by = self._place.held_by
            if held_by is not None and held_by is not self:
                raise LeaseHeld(held_by.owner)
            self._place.held_by = self

    def release(self) -> None:
        """Leave the place if it is ours."""
        with self._place.lock:
            if self._place.held_by is self:
                self._place.held_by = None

    def holder(self) -> str | None:
        """The owner name of the holder."""
        with self._place.lock:
            return None if self._place.held_by is None else self._place.held_by.owner
