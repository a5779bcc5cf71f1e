"""Appending until the outcome is known (protocol rule L2).

An append whose reply was lost is settled only by seeing its index occupied: the same entry goes to the same
index again until the log says ok or taken. An empty index proves nothing, the first request may still land.
Must never try another index or another entry.
"""

from __future__ import annotations

from typing import Final, Protocol

from archiver.log.store import Appended, Log
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from archiver.runtime.text import counted

_BACKOFF_GROWTH_MAX: Final = 32


class AppendSettings(Protocol):
    """What an appender needs of the `log` settings."""

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of the largest entry."""

    @property
    def append_attempts_max(self) -> int:
        """How often an append of unknown outcome is tried."""

    @property
    def append_backoff(self) -> float:
        """Seconds before the second attempt."""


def append_until_known(
    log: Log, index: int, data: bytes, attempts_max: int, backoff_s: float, clock: Clock
) -> Appended:
    """Append `data` at `index`; returns `OK` or `TAKEN`, never `UNKNOWN`.

    After an unknown outcome it is tried again, `attempts_max` times in all, waiting `backoff_s`, doubled each
    time up to 32 times as long. Raises `OutcomeUnknown` if it is still unknown then, or if the log refuses a
    later try while an earlier one may have been applied. What the very first try raises (`RetryLater`,
    `Trimmed`, `Halt`, `InvalidInput`) passes through: then certainly nothing was appended.
    """
    unknown = False
    last: Exception | None = None
    for attempt in range(max(1, attempts_max)):
        if attempt:
            clock.sleep(backoff_s * min(2 ** (attempt - 1), _BACKOFF_GROWTH_MAX))
        try:
            outcome = log.append(index, data)
        except OutcomeUnknown as error:
            outcome, last = Appended.UNKNOWN, error
        except RetryLater as error:
            # This try did nothing, but an earlier one may have: only the index can tell.
            if not unknown:
                raise
            outcome, last = Appended.UNKNOWN, error
        except Halt as error:
            if not unknown:
                raise
            raise OutcomeUnknown(
                f"log {log.name}: the entry at {index} may have been appended, and the log can no "
                f"longer say ({error}); "
                "look for its id before sending its records again"
            ) from error
        if outcome is not Appended.UNKNOWN:
            return outcome
        unknown = True
    raise OutcomeUnknown(
        f"log {log.name}: the entry at {index} is still of unknown outcome after "
        f"{counted(max(1, attempts_max), 'attempt')}; "
        "look for its id before sending its records again"
    ) from last
