"""The scheduled jobs of the role `reconcile`: the views are made to agree, what nobody needs goes, and all of
it is audited.

Owns what follows from what a job came to: numbers, what holds the oldest intake file, and whether to
reconcile again soon. Each raises what its run raises, and `RetryLater` when the daemon is not in service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from archiver.app.application import Application
from archiver.daemon.backoff import Backoff
from archiver.daemon.cycles import Cycles, Summary
from archiver.daemon.status_poller import StatusPoller
from archiver.daemon.summaries import summarize_audit, summarize_cleaning, summarize_reconciling
from archiver.runtime.errors import ArchiverError
from archiver.status.metric_registry import Numbers

_log = logging.getLogger(__name__)

RUNS_MAX = 100
"""Runs of cleaning in a row, each of which ended at its limit. Each has a turn of its own, so rounds of
archiving go on in between."""


class Upkeep:
    """Reconciling, cleaning and auditing as the schedule has it."""

    def __init__(
        self,
        application: Callable[[], Application],
        cycles: Cycles,
        numbers: Numbers,
        sight: StatusPoller,
        again: Backoff,
        read_alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`application` is called at the start of each job; `read_alone` is held by whoever reads the ledger
        beside the leader.
        """
        self._application = application
        self._cycles = cycles
        self._numbers = numbers
        self._sight = sight
        self._again = again
        self._read_alone = read_alone
        self._more = False
        """The newest run of cleaning ended at a limit, and got somewhere."""

    def clean_up(self) -> None:
        """First the views agree as far as they can, then what nobody needs goes: a run that ended at a limit
        is followed by another.
        """
        self._cycles.run("reconcile", self.reconcile)
        for _ in range(RUNS_MAX):
            self._more = False
            self._cycles.run("cleanup", self._clean)
            if not self._more:
                break

    def reconcile(self) -> Summary:
        """Compare, with the safe repairs."""
        application = self._application()
        try:
            report = application.maintenance.reconciling(_whisper).run("safe")
        except ArchiverError:
            self._again.failed()
            raise
        self._numbers.reconciled(report)
        if report.error is not None or any(finding.safe for finding in report.left):
            self._again.failed()
        return summarize_reconciling(report)

    def audit(self) -> Summary:
        """The fast audit of everything."""
        application = self._application()
        told = summarize_audit(application.maintenance.audit(None, deep=False, progress=_whisper))
        with self._read_alone():
            self._sight.pinned(application.oldest_required())
        return told

    def deep_audit(self) -> Summary:
        """The audit by every row."""
        return summarize_audit(self._application().maintenance.audit(None, deep=True, progress=_whisper))

    def _clean(self) -> Summary:
        application = self._application()
        report = application.maintenance.cleaning(_whisper).run()
        self._more = report.more
        self._numbers.cleaned(report)
        self._sight.pinned(report.pin)
        application.checkpointer.run_if_due()
        return summarize_cleaning(report)


def _whisper(line: str) -> None:
    """Progress of a job: its one line at the end says what it came to."""
    _log.debug("%s", line)
