"""Runs each job of the daemon: measures it, catches its errors, and records one cycle in the journal and the
log.

A job never ends the daemon: an error is reported, and the next cycle runs.
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

# A repeated message is logged at `DEBUG` until it changes, and once an hour at its own level.
REPEAT_S = 3600.0
_LEVELS: dict[Outcome, int] = {
    "fine": logging.INFO,
    "skipped": logging.INFO,
    "untold": logging.WARNING,
    "wrong": logging.ERROR,
}


@dataclass(frozen=True)
class Summary:
    """Result of one run of a job."""

    outcome: Outcome
    line: str
    """Log line without the name of the job."""
    document: dict[str, Any] = field(default_factory=dict)
    idle: bool = False
    """Nothing was done and nothing is wrong: logged at `DEBUG`."""


class Cycles:
    """Runs jobs. Safe for several threads."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[str, float]] = {}
        """Last line logged for a cycle that was not fine, and when, by job."""

    def now_us(self) -> int:
        """Current time of the clock that cycles use."""
        return self._clock.now_us()

    def run(self, job: str, work: Callable[[], Summary]) -> Summary:
        """Run one cycle. Raises nothing."""
        try:
            return self.attempt(job, work)[0]
        except Exception as error:  # noqa: BLE001 - the head of a thread; `attempt` has recorded it
            return summarize_error(error)

    def attempt(self, job: str, work: Callable[[], Summary], *, asked: bool = False) -> tuple[Summary, Cycle]:
        """Run one cycle, and raise what `work` raises after it is recorded.

        `asked` is for a request with parameters. Invalid parameters are an error of the caller, so they are
        not recorded as a cycle.
        """
        began_us, began_s = self._clock.now_us(), self._clock.monotonic_s()
        try:
            summary = work()
        except Exception as error:
            # By exact type: a subclass such as `ConfigInvalid` is a fault of the deployment, not of the
            # request.
            if asked and type(error) in (InvalidInput, NotFound):
                _log.info("%s: refused the request: %s", job, error)
                raise
            self._record(job, summarize_error(error), began_us, began_s, error)
            raise
        return summary, self._record(job, summary, began_us, began_s, None)

    def _record(
        self, job: str, summary: Summary, began_us: int, began_s: float, error: Exception | None
    ) -> Cycle:
        seconds = self._clock.monotonic_s() - began_s
        cycle = Cycle(job, began_us, seconds, summary.outcome, summary.line, summary.document, summary.idle)
        self._journal.add(cycle)
        # An `ArchiverError` says what to do; only an unexpected error needs its traceback.
        unexpected = error is not None and not isinstance(error, ArchiverError)
        level = self._level(job, summary)
        _log.log(
            level,
            "%s: %s",
            job,
            summary.line,
            exc_info=error if unexpected else None,
            extra={"seconds": round(seconds, 3)},
        )
        return cycle

    def _level(self, job: str, summary: Summary) -> int:
        # A command may run a job at the same time as the schedule.
        with self._lock:
            if summary.outcome == "fine":
                # After a success the same message is new again, so it is logged at its own level.
                self._logged.pop(job, None)
                return logging.DEBUG if summary.idle else logging.INFO
            line, when_s = self._logged.get(job, ("", 0.0))
            now_s = self._clock.monotonic_s()
            if line == summary.line and now_s - when_s < REPEAT_S:
                return logging.DEBUG
            self._logged[job] = (summary.line, now_s)
            return _LEVELS[summary.outcome]


def summarize_error(error: Exception) -> Summary:
    """Result of a cycle that ended with this error; the type of the error decides the outcome."""
    if isinstance(error, LeaseHeld):
        return Summary("skipped", f"{error.holder} leads")
    if not isinstance(error, ArchiverError):
        return Summary("wrong", f"an unexpected error: {type(error).__name__}: {error}")
    # `Deposed` is a `Halt`, but needs no operator: another process leads, and this one follows.
    needs_operator = isinstance(error, Halt | InvalidInput) and not isinstance(error, Deposed)
    return Summary("wrong" if needs_operator else "untold", str(error))
