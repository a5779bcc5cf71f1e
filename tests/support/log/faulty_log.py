"""A log whose replies get lost: wraps any `Log` and spoils the appends that a test names."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable

from archiver.log.store import Appended, Entry, Log
from archiver.runtime.errors import RetryLater


class AppendFault(enum.Enum):
    """What happens to one append."""

    NONE = "none"
    REFUSED = "refused"
    """`RetryLater`; nothing is applied."""
    DROPPED = "dropped"
    """Unknown; it never arrives."""
    REPLY_LOST = "reply lost"
    """Unknown; it is applied at once."""
    LATE = "late"
    """Unknown; it is on its way and arrives just before the next append does."""


class FaultyLog:
    """A `Log` with a script: the first append gets the first fault, and so on; after the script all is
    well."""

    def __init__(self, log: Log, script: Iterable[AppendFault] = ()) -> None:
        self.name: str = log.name
        self.appends: list[tuple[int, bytes]] = []
        """Every append that was asked for."""
        self._log = log
        self._script = list(script)
        self._on_its_way: list[tuple[int, bytes]] = []
        self._lock = threading.Lock()

    def script(self, *faults: AppendFault) -> None:
        """Add to the script."""
        with self._lock:
            self._script.extend(faults)

    def heal(self) -> None:
        """Forget the rest of the script; what is on its way still arrives."""
        with self._lock:
            self._script.clear()

    def append(self, index: int, data: bytes) -> Appended:
        """The real append, spoilt as the script says."""
        with self._lock:
            self.appends.append((index, data))
            fault = self._script.pop(0) if self._script else AppendFault.NONE
            late, self._on_its_way = self._on_its_way, []
        for late_index, late_data in late:
            self._log.append(late_index, late_data)
        if fault is AppendFault.NONE:
            return self._log.append(index, data)
        if fault is AppendFault.REFUSED:
            raise RetryLater(f"the append at {index} was refused by the test")
        if fault is AppendFault.LATE:
            with self._lock:
                self._on_its_way.append((index, data))
        if fault is AppendFault.REPLY_LOST:
            self._log.append(index, data)
        return Appended.UNKNOWN

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """Unspoilt."""
        return self._log.read(start, limit)

    def tail(self) -> int:
        """Unspoilt."""
        return self._log.tail()

    def floor(self) -> int:
        """Unspoilt."""
        return self._log.floor()

    def trim(self, below: int) -> None:
        """Unspoilt."""
        self._log.trim(below)

    def close(self) -> None:
        """Close what is wrapped."""
        self._log.close()
