"""What the watch saw of topics, logs and leadership when it last looked: for the status page and the metrics.

Owns the newest of it, the history of lags, and nothing else. Promises that whoever shows it touches no
dependency. Must never be read to decide anything about data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from archiver.app.application import Application
from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.status.history import LagHistory
from archiver.status.lag import LagReport, lag_report
from archiver.status.metric_registry import LogNumbers, Numbers, SourceNumbers, Watched
from reconcile.snapshot.oldest_required import OldestRequired


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """One look."""

    standing: LagReport | None = None
    leader: str | None = None
    """host:pid of whoever has the lease; None: nobody, or not known."""
    epoch: int | None = None
    pin: OldestRequired | None = None
    pin_known: bool = False


class StatusPoller:
    """Looks, and keeps what was seen last. One thread looks; any may read."""

    def __init__(self, numbers: Numbers, history: LagHistory, clock: Clock, owner: str) -> None:
        self.history = history
        self._numbers = numbers
        self._clock = clock
        self._owner = owner
        self._seen = StatusSnapshot()

    @property
    def seen(self) -> StatusSnapshot:
        """The newest look."""
        return self._seen

    def pinned(self, pin: OldestRequired | None) -> None:
        """What holds the oldest intake file that is needed, as a cleaning or an audit found; None if none is
        needed.
        """
        self._seen = replace(self._seen, pin=pin, pin_known=True)

    def look(
        self, application: Application, stuck: Mapping[str, str], sources: Mapping[str, SourceNumbers]
    ) -> None:
        """One look. Raises what reading the logs raises; then the one before stands."""
        ledger = self._ledger(application)  # first, or an archive may seem to reach beyond the intake log
        intake = application.backlog()
        now_us = self._clock.now_us()
        told = {topic: excerpt(why, MESSAGE_MAX) for topic, why in stuck.items()}
        found = lag_report(
            intake,
            ledger,
            application.settings.topics,
            now_us,
            told,
            archive=application.settings.archive,
            skew_max_s=application.settings.intake.clock_skew_max,
        )
        self.history.add(found, self._clock.monotonic_s())
        leader = application.leadership.holder()
        before = self._seen
        self._seen = StatusSnapshot(found, leader, ledger.epoch, before.pin, before.pin_known)
        logs = {
            name: LogNumbers(log.floor(), log.tail())
            for name, log in (("intake", application.intake_log), ("control", application.control_log))
        }
        self._numbers.watched(
            Watched(
                seen_us=now_us,
                standing=found,
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
        """The control log; the leadership hears of it, so that it stands down in time whatever its lease says
        (rule L4).
        """
        try:
            ledger = application.ledger()
        except ArchiverError:
            application.leadership.unheard()
            raise
        application.leadership.heard(ledger.epoch)
        return ledger
