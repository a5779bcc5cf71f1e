"""Retry an append until its outcome is known (protocol rule L2).

An append whose reply was lost is resolved only by an occupied index. The same entry is sent to the same index
until the log answers ok or taken. An empty index proves nothing, because the first request may still arrive.
The retry must never try another index or another entry.
"""

from __future__ import annotations

from typing import Final

from archiver.log.store import Appended, Log
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from archiver.runtime.text import counted

# Bounds the wait between two attempts; the number of attempts bounds the sum.
_BACKOFF_GROWTH_MAX: Final = 32


def append_until_known(
    log: Log, index: int, data: bytes, attempts_max: int, backoff_s: float, clock: Clock
) -> Appended:
    """Append `data` at `index`; returns `OK` or `TAKEN`, never `UNKNOWN`.

    After an unknown outcome it retries, `attempts_max` attempts in all. The wait starts at `backoff_s` and
    doubles up to 32 times that. Raises `OutcomeUnknown` if the outcome is still unknown then, or if the log
    refuses a later attempt. Errors of the first attempt (`RetryLater`, `Trimmed`, `Halt`, `InvalidInput`)
    pass through: then nothing was appended.
    """
    # Whether an earlier attempt may have been applied. From then on no error may pass as "not appended".
    unknown = False
    last: Exception | None = None
    for attempt in range(max(1, attempts_max)):
        if attempt:
            clock.sleep(backoff_s * min(2 ** (attempt - 1), _BACKOFF_GROWTH_MAX))
        try:
            # Always the same index and the same bytes, so that the entry can be there only once.
            outcome = log.append(index, data)
        except OutcomeUnknown as error:
            outcome, last = Appended.UNKNOWN, error
        except RetryLater as error:
            # This attempt did nothing, but an earlier one may have: only the index can show it.
            if not unknown:
                raise
            outcome, last = Appended.UNKNOWN, error
        # `Trimmed` and `Corrupted` are among these. The log cannot be asked any more.
        except Halt as error:
            if not unknown:
                raise
            raise OutcomeUnknown(
                f"log {log.name}: the entry at {index} may have been appended, and the log can no "
                f"longer confirm it ({error}); "
                "search for its id before sending its records again"
            ) from error
        # After an unknown outcome, OK is also the reply to bytes of the earlier attempt.
        if outcome is not Appended.UNKNOWN:
            return outcome
        unknown = True
    raise OutcomeUnknown(
        f"log {log.name}: the entry at {index} is still of unknown outcome after "
        f"{counted(max(1, attempts_max), 'attempt')}; "
        "search for its id before sending its records again"
    ) from last
