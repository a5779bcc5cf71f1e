"""One run of the reconciler: look, compare, repair what may be repaired, look again.

Owns the document of `archiver reconcile --output json`, frozen by this version::

    {"findings": [{"id", "severity", "topic", "partition", "what", "repair", "safe", "fixed"}, …],
     "looked": {"topics", "tables", "objects", "unread": {topic: why}},
     "fix": bool, "error": null | text, "checked_at": "2026-01-02T03:04:05.678901Z"}

`fixed` is true for a finding that was there and is not there any more after the repairs. Where a repair could
not be carried out, `repair` says why. Nothing is written without `fix`, and with `fix="safe"` (the daemon)
nothing but what the next round would do anyway (decision 0028). A repair that fails concerns its topic; the
others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, InvalidInput, LeaseHeld
from archiver.runtime.exit_codes import FINE, UNTOLD, WRONG
from archiver.runtime.rfc3339 import format_time
from intake.log.backlog import Backlog
from reconcile.findings.diff import differences
from reconcile.findings.finding import Finding
from reconcile.repair.repairer import Repairer
from reconcile.snapshot.collector import CollectedViews, SnapshotCollector, ledger_mark

Fix = Literal["nothing", "safe", "everything"]

LOOKS_MAX = 5
LOOK_PAUSE_S = 1.0
"""While the ledger moves on between the beginning of a look and its end, the views are taken again. A topic
that moved on in every one of them is compared by the next run; nothing is concluded from views of different
moments."""

_SETTLED = frozenset({"unknown-commit", "missing-in-catalog"})
_TAKEN_OVER = frozenset({"rolled-back", "evidence-doubted"})


@dataclass(frozen=True)
class RunParts:
    """What a run needs; put together by the composition root."""

    looker: SnapshotCollector
    repairer: Repairer
    ledger: Callable[[], LedgerFold]
    intake: Callable[[], Backlog]
    clock: Clock


@dataclass
class ReconcileReport:
    """What a run found and did."""

    fix: Fix
    checked_us: int
    findings: list[tuple[Finding, bool]] = field(default_factory=list)
    """Each with whether it is fixed."""
    topics: int = 0
    tables: int = 0
    objects: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    error: ArchiverError | None = None
    """Why nothing could be looked at, or what ended the run early."""

    @property
    def left(self) -> list[Finding]:
        """Findings that somebody should know of."""
        return [finding for finding, fixed in self.findings if not fixed and finding.severity != "info"]

    @property
    def exit_code(self) -> int:
        """0: nothing, or all fixed; 1: findings of warning or error are left; 2: it could not be looked."""
        if self.error is not None:
            return UNTOLD
        if self.left:
            return WRONG
        return UNTOLD if self.unread else FINE

    def to_json(self) -> dict[str, object]:
        """The document."""
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


class ReconcileRun:
    """Reconciling, on request."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    def run(self, fix: Fix = "nothing", topic: str | None = None) -> ReconcileReport:
        """Compare everything, or one topic, and repair as far as `fix` says.

        Raises `NotFound` for a topic that the intake log does not have, `LeaseHeld` if repairs need the lease
        and another process has it, `Deposed` if a newer leader appears. What else goes wrong is in the
        report.
        """
        report = ReconcileReport(fix, self._parts.clock.now_us())
        try:
            before = self._look(report, topic)
            report.findings = [
                (item, False) for item in before
            ]  # so that they are told, whatever the repairs meet
            failed = self._repair([item for item in before if _is_wanted(item, fix)])
            if any(_is_wanted(item, fix) for item in before):
                after = self._look(report, topic)
                report.findings = _told(before, after, failed, report.unread)
        except (LeaseHeld, Deposed, InvalidInput):
            raise
        except ArchiverError as error:
            report.error = error
        return report

    def _look(self, report: ReconcileReport, topic: str | None) -> list[Finding]:
        parts = self._parts
        steady: frozenset[Finding] | None = None
        for look in range(LOOKS_MAX):
            seen = parts.looker.look(parts.ledger, parts.intake, topic)
            found = differences(seen.topics, seen.folder)
            if not found or (after := parts.ledger()).next_index == seen.control_index:
                break
            steady = frozenset(found) if steady is None else steady & frozenset(found)
            if look == LOOKS_MAX - 1:
                found = _of_the_still(seen, after, found, steady)
                break
            parts.clock.sleep(LOOK_PAUSE_S)
        _count(report, seen)
        return found

    def _repair(self, wanted: Sequence[Finding]) -> dict[tuple[str, str | None], str]:
        """Carry out the repairs; why some could not be, by id and topic."""
        repairer, failed = self._parts.repairer, dict[tuple[str, str | None], str]()
        done: set[tuple[str, str]] = set()
        for finding in wanted:
            if finding.topic is None:
                continue
            kind, repair = (
                ("settle", repairer.settle)
                if finding.id in _SETTLED
                else ("take over", repairer.take_over_rollback)
            )
            if (kind, finding.topic) in done:
                continue
            done.add((kind, finding.topic))
            try:
                repair(finding.topic)
            except (LeaseHeld, Deposed):
                raise
            except ArchiverError as error:
                failed[finding.id, finding.topic] = str(error)
        return failed


def _of_the_still(
    seen: CollectedViews, after: LedgerFold, found: Sequence[Finding], steady: Container[Finding]
) -> list[Finding]:
    """What may be reported of views during which the ledger moved on every time.

    Of a topic whose own ledger held still in the last of them: everything. Of one that moved on: what one
    view alone shows, and showed each time. The others are compared by the next run; the report says which.
    """
    topics = [
        replace(sight, moving=ledger_mark(after.topic(sight.topic_id)) != sight.ledger_mark)
        for sight in seen.topics
    ]
    moving = {sight.topic for sight in topics if sight.moving}
    kept = [one for one in differences(topics, seen.folder) if one.topic not in moving or one in steady]
    for name in sorted({one.topic for one in found if one.topic is not None} & moving):
        if any(one.topic == name and one not in kept for one in found):
            seen.unread[name] = (
                f"the ledger moved on during each of {LOOKS_MAX} attempts, so differences may be work "
                "under way; the next run "
                "compares again"
            )
    return kept


def _is_wanted(finding: Finding, fix: Fix) -> bool:
    """Whether there is a repair that this run may carry out."""
    if fix == "nothing":
        return False
    return finding.safe or (fix == "everything" and finding.id in _TAKEN_OVER)


def _told(
    before: Sequence[Finding],
    after: Sequence[Finding],
    failed: Mapping[tuple[str, str | None], str],
    unread: Container[str | None],
) -> list[tuple[Finding, bool]]:
    """What was found first, with what became of it; then what only the second look found. Of a topic that
    could not be looked at again nothing is known to be fixed.
    """
    left = {(item.id, item.topic, item.partition) for item in after}
    known = {(item.id, item.topic, item.partition) for item in before}
    told = [
        (item, (item.id, item.topic, item.partition) not in left and item.topic not in unread)
        for item in before
    ]
    told += [(item, False) for item in after if (item.id, item.topic, item.partition) not in known]
    return [
        (
            replace(item, repair=f"not repaired: {why}")
            if not fixed and (why := failed.get((item.id, item.topic)))
            else item,
            fixed,
        )
        for item, fixed in told
    ]


def _count(report: ReconcileReport, seen: CollectedViews) -> None:
    report.topics, report.tables, report.objects = len(seen.topics), seen.tables, seen.objects
    report.unread = dict(seen.unread)
