"""Scheduled jobs of the role `reconcile`: reconciliation with safe repairs, cleaning, and audits.

Each job raises what its run raises, and `RetryLater` while the daemon is not in service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from archiver.app.application import Application
from archiver.daemon.cycles import Cycles, Summary
from archiver.daemon.status_poller import StatusPoller
from archiver.daemon.summaries import summarize_audit, summarize_cleaning, summarize_reconciling
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.status.metric_registry import Numbers

_log = logging.getLogger(__name__)

RUNS_MAX = 100
"""Maximum of cleaning runs in a row, each of which ended at its limit. Each run takes a turn of its own, so
archiving rounds can run in between."""


class Backoff:
    """Exponential backoff for reconcile retries. Safe for several threads.

    The first wait is `first_s`. It doubles with each failure that follows a retry, up to `longest_s`. A
    success resets it.
    """

    def __init__(self, clock: Clock, first_s: Callable[[], float], longest_s: Callable[[], float]) -> None:
        """The waits are functions, because a reload may change the settings."""
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._waited_s: float | None = None
        self._due_s: float | None = None

    def failed(self) -> None:
        """A failure. One retry is due after the wait; further failures until then change nothing."""
        with self._lock:
            if self._due_s is None:
                self._waited_s = min(
                    self._first_s() if self._waited_s is None else 2 * self._waited_s, self._longest_s()
                )
                self._due_s = self._clock.monotonic_s() + self._waited_s

    def succeeded(self) -> None:
        """A success: no retry is due, and the next failure waits `first_s`."""
        with self._lock:
            self._waited_s = self._due_s = None

    def due(self) -> bool:
        """Whether a retry is due; true once per retry. Never waits."""
        with self._lock:
            if self._due_s is None or self._clock.monotonic_s() < self._due_s:
                return False
            self._due_s = None
            return True


class Upkeep:
    """Reconciling, cleaning and auditing on schedule."""

    def __init__(
        self,
        application: Callable[[], Application],
        cycles: Cycles,
        numbers: Numbers,
        poller: StatusPoller,
        backoff: Backoff,
        reading_ledger: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`application` is called at the start of each job. `reading_ledger` is held while a thread other
        than the leader's reads the ledger.
        """
        self._application = application
        self._cycles = cycles
        self._numbers = numbers
        self._poller = poller
        self._backoff = backoff
        self._reading_ledger = reading_ledger
        self._more = False
        """The newest cleaning run ended at a limit and made progress."""

    def clean_up(self) -> None:
        """Reconcile, then clean; a run that ended at a limit is followed by another."""
        self._cycles.run("reconcile", self.reconcile)
        for _ in range(RUNS_MAX):
            self._more = False
            self._cycles.run("cleanup", self._clean)
            if not self._more:
                break

    def reconcile(self) -> Summary:
        """Compare the views and apply safe repairs."""
        application = self._application()
        try:
            report = application.maintenance.reconciling(_log_progress).run("safe")
        except ArchiverError:
            self._backoff.failed()
            raise
        self._numbers.reconciled(report)
        if report.error is not None or any(finding.safe for finding in report.left):
            self._backoff.failed()
        return summarize_reconciling(report)

    def audit(self) -> Summary:
        """Fast audit of all topics."""
        application = self._application()
        summary = summarize_audit(application.maintenance.audit(None, deep=False, progress=_log_progress))
        with self._reading_ledger():
            self._poller.set_oldest_required(application.oldest_required())
        return summary

    def deep_audit(self) -> Summary:
        """Audit of every row."""
        return summarize_audit(self._application().maintenance.audit(None, deep=True, progress=_log_progress))

    def _clean(self) -> Summary:
        application = self._application()
        report = application.maintenance.cleaning(_log_progress).run()
        self._more = report.more
        self._numbers.cleaned(report)
        self._poller.set_oldest_required(report.pin)
        application.checkpointer.run_if_due()
        return summarize_cleaning(report)


def _log_progress(line: str) -> None:
    """Progress goes to `DEBUG`; the summary of the job has its own line."""
    _log.debug("%s", line)
