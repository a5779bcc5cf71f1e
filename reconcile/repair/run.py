"""One run of the reconciler: collect the views, compare them, repair what may be repaired, compare again.

The document of `archiver reconcile --output json`, frozen by this version::

    {"findings": [{"id", "severity", "topic", "partition", "what", "repair", "safe", "fixed"}, …],
     "looked": {"topics", "tables", "objects", "unread": {topic: why}},
     "fix": bool, "error": null | text, "checked_at": "2026-01-02T03:04:05.678901Z"}

`fixed` is true if the finding no longer exists after the repairs. If a repair failed, `repair` says why.
Nothing is written without `fix`. With `fix="safe"` (the daemon) only repairs run that the next round would do
anyway (decision 0028). A failed repair concerns its topic only; the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, InvalidInput, LeaseHeld
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.rfc3339 import format_time
from intake.log.backlog import Backlog
from reconcile.findings.diff import differences
from reconcile.findings.finding import Finding
from reconcile.repair.repairer import Repairer
from reconcile.snapshot.collector import CollectedViews, SnapshotCollector, ledger_mark

Fix = Literal["nothing", "safe", "everything"]

ATTEMPTS_MAX = 5
ATTEMPT_PAUSE_S = 1.0
"""Attempts, and the pause between them, to collect views during which the ledger does not change."""

_RESOLVED_BY_A_ROUND = frozenset({"unknown-commit", "missing-in-catalog"})
_ACCEPTED_BY_AN_OPERATOR = frozenset({"rolled-back", "evidence-doubted"})


@dataclass
class ReconcileReport:
    """The findings and repairs of a run."""

    fix: Fix
    checked_us: int
    findings: list[tuple[Finding, bool]] = field(default_factory=list)
    """Each finding, and whether it is fixed."""
    topics: int = 0
    tables: int = 0
    objects: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    error: ArchiverError | None = None
    """Why nothing could be compared, or what ended the run early."""

    @property
    def left(self) -> list[Finding]:
        """Findings that need attention."""
        return [finding for finding, fixed in self.findings if not fixed and finding.severity != "info"]

    @property
    def exit_code(self) -> int:
        """0: no finding, or all fixed; 1: findings of warning or error remain; 2: the views could not be
        read.
        """
        if self.error is not None:
            return UNKNOWN
        if self.left:
            return WRONG
        return UNKNOWN if self.unread else FINE

    def to_json(self) -> dict[str, object]:
        """The JSON document."""
        return {
            "findings": [
                {
                    "id": finding.id,
                    "severity": finding.severity,
                    "topic": finding.topic,
                    "partition": finding.partition,
                    "what": finding.what,
                    "repair": finding.repair,
                    "safe": finding.safe,
                    "fixed": fixed,
                }
                for finding, fixed in self.findings
            ],
            "looked": {
                "topics": self.topics,
                "tables": self.tables,
                "objects": self.objects,
                "unread": self.unread,
            },
            "fix": self.fix != "nothing",
            "error": None if self.error is None else str(self.error),
            "checked_at": format_time(self.checked_us),
        }


@dataclass(eq=False)
class ReconcileRun:
    """Reconciles on request."""

    looker: SnapshotCollector
    repairer: Repairer
    ledger: Callable[[], LedgerFold]
    intake: Callable[[], Backlog]
    clock: Clock

    def run(self, fix: Fix = "nothing", topic: str | None = None) -> ReconcileReport:
        """Compare everything, or one topic, and repair as far as `fix` allows.

        Raises `NotFound` for a topic that is not in the intake log, and `Deposed` if a newer leader appears.
        Raises `LeaseHeld` if repairs need the lease and another process has it. The report contains all other
        errors.
        """
        report = ReconcileReport(fix, self.clock.now_us())
        try:
            before = self._compare(report, topic)
            # Set before the repairs, so that the report has the findings even if a repair raises.
            report.findings = [(item, False) for item in before]
            failed = self._repair([item for item in before if _may_repair(item, fix)])
            if any(_may_repair(item, fix) for item in before):
                # A second comparison decides what is fixed: a repair without an error may have changed
                # nothing.
                after = self._compare(report, topic)
                report.findings = _with_outcomes(before, after, failed, report.unread)
        # These concern the whole run, and the caller has exit codes for them.
        except (LeaseHeld, Deposed, InvalidInput):
            raise
        except ArchiverError as error:
            report.error = error
        return report

    def _compare(self, report: ReconcileReport, topic: str | None) -> list[Finding]:
        steady: frozenset[Finding] | None = None
        for attempt in range(ATTEMPTS_MAX):
            seen = self.looker.collect(self.ledger, self.intake, topic)
            found = differences(seen.topics, seen.folder)
            # No difference needs no steady ledger. Otherwise it may be work in progress.
            if not found or (after := self.ledger()).next_index == seen.control_index:
                break
            # A finding that appears in every attempt is not of one moment only.
            steady = frozenset(found) if steady is None else steady & frozenset(found)
            if attempt == ATTEMPTS_MAX - 1:
                found = _reportable(seen, after, found, steady)
                break
            # A round in progress appends for a moment, then the ledger is steady again.
            self.clock.sleep(ATTEMPT_PAUSE_S)
        _count(report, seen)
        return found

    def _repair(self, findings: Sequence[Finding]) -> dict[tuple[str, str | None], str]:
        """Carry out the repairs. Returns the reasons of failed ones, by id and topic."""
        repairer, failed = self.repairer, dict[tuple[str, str | None], str]()
        done: set[tuple[str, str]] = set()
        for finding in findings:
            # Findings about the folder have no repair.
            if finding.topic is None:
                continue
            kind, repair = (
                ("resolve", repairer.settle)
                if finding.id in _RESOLVED_BY_A_ROUND
                else ("accept", repairer.accept_rollback)
            )
            # One repair resolves all findings of its kind on a topic.
            if (kind, finding.topic) in done:
                continue
            done.add((kind, finding.topic))
            try:
                repair(finding.topic)
            # Another process leads, so every later repair would fail too.
            except (LeaseHeld, Deposed):
                raise
            except ArchiverError as error:
                failed[finding.id, finding.topic] = str(error)
        return failed


def _reportable(
    seen: CollectedViews, after: LedgerFold, found: Sequence[Finding], steady: Container[Finding]
) -> list[Finding]:
    """The findings that may be reported although the ledger changed during every attempt.

    All findings of a topic whose own ledger did not change in the last attempt. Of other topics only findings
    that one view shows, and that every attempt showed.
    """
    topics = [
        replace(snapshot, moving=ledger_mark(after.topic(snapshot.topic_id)) != snapshot.ledger_mark)
        for snapshot in seen.topics
    ]
    # Views of different moments prove nothing; the next run compares again.
    moving = {snapshot.topic for snapshot in topics if snapshot.moving}
    kept = [one for one in differences(topics, seen.folder) if one.topic not in moving or one in steady]
    for name in sorted({one.topic for one in found if one.topic is not None} & moving):
        if any(one.topic == name and one not in kept for one in found):
            seen.unread[name] = (
                f"the ledger changed during each of {ATTEMPTS_MAX} attempts, so differences may be work in "
                "progress; the next run compares again"
            )
    return kept


def _may_repair(finding: Finding, fix: Fix) -> bool:
    """Whether this run may carry out the finding's repair."""
    if fix == "nothing":
        return False
    return finding.safe or (fix == "everything" and finding.id in _ACCEPTED_BY_AN_OPERATOR)


def _with_outcomes(
    before: Sequence[Finding],
    after: Sequence[Finding],
    failed: Mapping[tuple[str, str | None], str],
    unread: Container[str | None],
) -> list[tuple[Finding, bool]]:
    """The first findings with their outcome, then those of the second comparison only."""
    left = {(item.id, item.topic, item.partition) for item in after}
    known = {(item.id, item.topic, item.partition) for item in before}
    found = [
        # Not by text, which may change. A topic that could not be compared again does not count as fixed.
        (item, (item.id, item.topic, item.partition) not in left and item.topic not in unread)
        for item in before
    ]
    found += [(item, False) for item in after if (item.id, item.topic, item.partition) not in known]
    return [
        (
            replace(item, repair=f"not repaired: {why}")
            if not fixed and (why := failed.get((item.id, item.topic)))
            else item,
            fixed,
        )
        for item, fixed in found
    ]


def _count(report: ReconcileReport, seen: CollectedViews) -> None:
    report.topics, report.tables, report.objects = len(seen.topics), seen.tables, seen.objects
    report.unread = dict(seen.unread)
