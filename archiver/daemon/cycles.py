"""The head of every job: measures it, catches what it raises, notes it in the journal and says in one line
what it did.

Promises that a job never ends the daemon: an error is told, and the next cycle goes on. What is told again
and again in the same words is told at `DEBUG` until it changes, and once an hour.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, Halt, InvalidInput, LeaseHeld, NotFound
from archiver.status.journal import Cycle, Journal, Outcome

_log = logging.getLogger(__name__)

REPEAT_S = 3600.0
_LEVELS: dict[Outcome, int] = {
    "fine": logging.INFO,
    "skipped": logging.INFO,
    "untold": logging.WARNING,
    "wrong": logging.ERROR,
}


@dataclass(frozen=True)
class Summary:
    """What a job says of one run."""

    outcome: Outcome
    line: str
    """For people, on one line; without the job's name."""
    document: dict[str, Any] = field(default_factory=dict)
    idle: bool = False
    """Nothing was done and nothing is wrong: not worth a line at `INFO`."""


class Cycles:
    """Carries jobs out. Safe for several threads."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[str, float]] = {}
        """Per job: the line that was said last of something that was not fine, and when."""

    def now_us(self) -> int:
        """The time by the clock of the cycles."""
        return self._clock.now_us()

    def run(self, job: str, work: Callable[[], Summary]) -> Summary:
        """One cycle. Raises nothing."""
        try:
            return self.attempt(job, work)[0]
        except Exception as error:  # noqa: BLE001 - the head of a thread; `attempt` has noted it
            return told_of(error)

    def attempt(self, job: str, work: Callable[[], Summary], *, asked: bool = False) -> tuple[Summary, Cycle]:
        """One cycle, for a caller who wants to know: raises what `work` raises, once that is noted as well.

        With `asked`, somebody said what to do it with: what is wrong with that is theirs, and no cycle of the
        daemon's.
        """
        began_us, began_s = self._clock.now_us(), self._clock.monotonic_s()
        try:
            told = work()
        except Exception as error:
            if asked and type(error) in (InvalidInput, NotFound):
                _log.info("%s: refused what was asked: %s", job, error)
                raise
            self._note(job, told_of(error), began_us, began_s, error)
            raise
        return told, self._note(job, told, began_us, began_s, None)

    def _note(self, job: str, told: Summary, began_us: int, began_s: float, error: Exception | None) -> Cycle:
        seconds = self._clock.monotonic_s() - began_s
        cycle = Cycle(job, began_us, seconds, told.outcome, told.line, told.document, told.idle)
        self._journal.add(cycle)
        unexpected = error is not None and not isinstance(error, ArchiverError)
        level = self._level(job, told)
        _log.log(
            level,
            "%s: %s",
            job,
            told.line,
            exc_info=error if unexpected else None,
            extra={"seconds": round(seconds, 3)},
        )
        return cycle

    def _level(self, job: str, told: Summary) -> int:
        with self._lock:
            if told.outcome == "fine":
                self._said.pop(job, None)
                return logging.DEBUG if told.idle else logging.INFO
            line, when_s = self._said.get(job, ("", 0.0))
            now_s = self._clock.monotonic_s()
            if line == told.line and now_s - when_s < REPEAT_S:
                return logging.DEBUG
            self._said[job] = (told.line, now_s)
            return _LEVELS[told.outcome]


def told_of(error: Exception) -> Summary:
    """What an error says about a cycle, by what its type says must be done next."""
    if isinstance(error, LeaseHeld):
        return Summary("skipped", f"{error.holder} leads")
    if not isinstance(error, ArchiverError):
        return Summary("wrong", f"an error nobody expected: {type(error).__name__}: {error}")
    needs_somebody = isinstance(error, Halt | InvalidInput) and not isinstance(error, Deposed)
    return Summary("wrong" if needs_somebody else "untold", str(error))
