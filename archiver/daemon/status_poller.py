"""Newest status of topics, logs and leadership, for the status page and the metrics.

Readers of it touch no dependency. It is as old as the last poll, so no decision about data may depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from archiver.app.application import Application
from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.status.group_lag import GroupReport, group_report
from archiver.status.history import LagHistory
from archiver.status.lag import LagReport, lag_report
from archiver.status.metric_registry import LogNumbers, Numbers, SourceNumbers, Watched
from archiver.status.rates import AcceptedRecords
from reconcile.snapshot.oldest_required import OldestRequired


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Result of one poll."""

    standing: LagReport | None = None
    groups: GroupReport | None = None
    leader: str | None = None
    """host:pid of the holder of the lease; None: not held, or not known."""
    epoch: int | None = None
    pin: OldestRequired | None = None
    pin_known: bool = False


class StatusPoller:
    """Polls, and keeps the newest snapshot. One thread polls; any thread may read."""

    def __init__(self, numbers: Numbers, history: LagHistory, clock: Clock, owner: str) -> None:
        self.history = history
        self._numbers = numbers
        self._clock = clock
        self._owner = owner
        self._accepted = AcceptedRecords()
        # Replaced as a whole, never changed, so readers need no lock.
        self._snapshot = StatusSnapshot()

    @property
    def snapshot(self) -> StatusSnapshot:
        """Result of the newest poll."""
        return self._snapshot

    def set_oldest_required(self, oldest: OldestRequired | None) -> None:
        """Oldest required intake file, as found by a cleaning or an audit; None if no file is required."""
        # A poll in another thread may replace the snapshot in between; the next cleaning sets this again.
        self._snapshot = replace(self._snapshot, pin=oldest, pin_known=True)

    def poll(
        self,
        application: Application,
        stuck: Mapping[str, str],
        sources: Mapping[str, SourceNumbers],
    ) -> None:
        """Poll once. Raises what reading the logs raises; then the last snapshot stays."""
        # The ledger first: read after the intake log, it could show archives beyond the log's known tail.
        ledger = self._ledger(application)
        backlog = application.backlog()
        now_us = self._clock.now_us()
        reasons = {topic: excerpt(why, MESSAGE_MAX) for topic, why in stuck.items()}
        report = lag_report(
            backlog,
            ledger,
            application.settings.topics,
            now_us,
            reasons,
            archive=application.settings.archive,
            skew_max_s=application.settings.intake.clock_skew_max,
        )
        # By the monotonic clock: a wall clock that is set would shift the line on the page.
        polled_s = self._clock.monotonic_s()
        self.history.add(report, polled_s, self._accepted.poll(backlog, report, polled_s))
        groups = group_report(backlog, ledger, now_us, application.settings.metrics.group_partitions_max)
        leader = application.leadership.holder()
        # The poll reads no table, so it keeps the oldest required intake file of the last cleaning or audit.
        before = self._snapshot
        self._snapshot = StatusSnapshot(report, groups, leader, ledger.epoch, before.pin, before.pin_known)
        logs = {
            name: LogNumbers(log.floor(), log.tail())
            for name, log in (("intake", application.intake_log), ("control", application.control_log))
        }
        self._numbers.watched(
            Watched(
                seen_us=now_us,
                standing=report,
                groups=groups,
                logs=logs,
                checkpoint_index=application.sequencer.checkpoint_index,
                leader=leader == self._owner,
                epoch=ledger.epoch,
                condemned=len(ledger.condemned),
                pin=before.pin,
                pin_known=before.pin_known,
                sources=sources,
            )
        )

    def _ledger(self, application: Application) -> LedgerFold:
        """Read the control log and report its epoch to the leadership."""
        try:
            ledger = application.ledger()
        except ArchiverError:
            # The leadership stands down if this lasts for `daemon.confirm_max` (rule L4).
            application.leadership.unheard()
            raise
        # A newer epoch deposes this leader, even while its lease is valid (rule L4).
        application.leadership.heard(ledger.epoch)
        return ledger
