"""The vacuum of intake: barrier, tail, condemn; then, after the grace, delete and say so.

Owns the order of effects (`docs/protocols/vacuum.md`); what may go is decided in `vacuum.py`, how far in `lines.py`. Can be killed at any
step: the next run finds what was condemned in the ledger and goes on. An object whose deletion has no known outcome stays condemned and is
deleted again; a missing object is no error. Must never delete what is not condemned, what was condemned less than the grace ago, or what
somebody needs again: that last cannot happen, so it stops the run with a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver import failpoints
from archiver.clock import Clock
from archiver.errors import ArchiverError
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.lease import Lease
from archiver.objects.paths import INTAKE_PREFIX
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2 as pb
from archiver.settings_types import format_duration
from intake.backlog import Backlog
from intake.sequencer import Sequencer
from reconcile.lines import Lines
from reconcile.lost_entries import check_nothing_is_lost
from reconcile.pin import Pin, oldest_pin
from reconcile.vacuum import Choice, Needed, choose, needed_files

UNNEEDED = "intake that nobody needs: archived below every retained snapshot, aborted, repeated, or never named in the log"
SUPERSEDED = "a newer checkpoint of the intake log stands in its place"


class CleanSettings(Protocol):
    """What cleaning needs of the `cleanup` settings."""

    @property
    def grace(self) -> float:
        """Seconds."""

    @property
    def deletes_max(self) -> int:
        """Objects condemned, and objects deleted, in one run."""


@dataclass(frozen=True)
class CleanParts:
    """What a run needs; put together by the composition root."""

    objects: ObjectStore
    sequencer: Sequencer
    intake: Callable[[], Backlog]
    """Reads the intake log to its tail."""
    leader: Leader
    lease: Lease
    lines: Callable[[Backlog, LedgerFold], Lines]
    superseded: Callable[[], Sequence[str]]
    """Keys of checkpoints and shelves that no log and no reader needs."""
    settings: CleanSettings
    clock: Clock
    progress: Callable[[str], None]


@dataclass
class CleanReport:
    """What a run did, or with `dry_run` would have done."""

    dry_run: bool
    checked_us: int
    barrier_ms: int | None = None
    """Entries that name a file written before count for nothing from this run on; None if it raised no barrier."""
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: int = 0
    """Objects that are condemned and still there."""
    needed: int = 0
    young: int = 0
    over: int = 0
    strange: int = 0
    pin: Pin | None = None
    topics: list[dict[str, object]] = field(default_factory=list)
    """Topics of which everything is kept, with the reason."""
    unread: bool = False
    """A shelf that some topic needs cannot be read: nobody can tell what else it holds, so nothing is condemned or deleted."""
    findings: list[str] = field(default_factory=list)
    error: ArchiverError | None = None
    """What ended the deletions of this run early; the next one goes on."""

    @property
    def doubted(self) -> bool:
        """Of some topic it could not be told what is needed."""
        return any(topic["doubted"] for topic in self.topics)

    def to_json(self) -> dict[str, object]:
        """The document of `archiver clean --output json`."""
        return {
            "dry_run": self.dry_run,
            "barrier_ms": self.barrier_ms,
            "condemned": self.condemned,
            "deleted": self.deleted,
            "waiting": self.waiting,
            "kept": {"needed": self.needed, "young": self.young, "over_limit": self.over, "not_intake": self.strange},
            "pinned": None if self.pin is None else self.pin.to_json(self.checked_us),
            "topics": self.topics,
            "findings": self.findings,
            "error": None if self.error is None else str(self.error),
        }


class CleanRun:
    """Cleaning, on request."""

    def __init__(self, parts: CleanParts) -> None:
        self._parts = parts

    def run(self, *, dry_run: bool = False) -> CleanReport:
        """Delete what was condemned before the grace, then condemn what nobody needs. With `dry_run` nothing is written anywhere.

        Raises `LeaseHeld` if another process leads (a dry run needs no lease), `Deposed` if a newer leader appears, `Halt` if the intake
        log is an older copy than the files, `RetryLater` or `OutcomeUnknown` if a log or the object store cannot be reached.
        """
        parts = self._parts
        if dry_run:
            return self._run(CleanReport(True, parts.clock.now_us()))
        parts.lease.acquire()
        try:
            return self._run(CleanReport(False, parts.clock.now_us()))
        finally:
            parts.lease.release()

    def _run(self, report: CleanReport) -> CleanReport:
        parts = self._parts
        parts.leader.refresh()
        ledger, intake = parts.leader.fold, parts.intake()
        lines = parts.lines(intake, ledger)
        report.pin = oldest_pin(intake, lines)
        report.topics = [{"topic": line.topic, "why": line.why, "doubted": line.doubted} for line in lines.values() if line.why is not None]
        needed = needed_files(intake, lines)
        _doubt(report, needed)
        report.findings = _revived(intake, ledger, needed)
        if not report.findings:
            self._delete(report, needed)
            self._condemn(report, lines, needed)
        report.waiting = len(parts.leader.fold.condemned) - (len(report.deleted) if report.dry_run else 0)
        return report

    # deleting

    def _delete(self, report: CleanReport, needed: Needed) -> None:
        parts = self._parts
        limit_us = report.checked_us - round(parts.settings.grace * 1e6)
        condemned = parts.leader.fold.condemned
        due = [key for key, item in condemned.items() if item.time_us <= limit_us and key not in needed]  # nothing, if a shelf is unread
        if any(not key.startswith(INTAKE_PREFIX) for key in due):
            superseded = set(parts.superseded())
            due = [key for key in due if key.startswith(INTAKE_PREFIX) or key in superseded]
        due = due[: parts.settings.deletes_max]
        if report.dry_run or not due:
            report.deleted = due
            return
        self._lead()
        for key in due:
            try:
                failpoints.reach("intake.delete.before")
                parts.objects.delete(key)
                failpoints.reach("intake.delete.after")
            except ArchiverError as error:
                report.error = error
                break
            report.deleted.append(key)
        if report.deleted:
            parts.progress(f"{len(report.deleted)} condemned objects deleted")
            failpoints.reach("deleted.append.before")
            append_in_parts(parts.leader, report.deleted, lambda part, _: pb.Deleted(keys=part), lambda key: f"the deletion of {key}")
            failpoints.reach("deleted.append.after")

    # condemning

    def _condemn(self, report: CleanReport, lines: Lines, needed: Needed) -> None:
        """Barrier, tail, condemn: see `vacuum.py` for why in this order."""
        parts = self._parts
        choice = self._choose(report, needed)
        report.needed, report.young, report.over, report.strange = choice.needed, choice.young, choice.over, choice.strange
        keys = list(choice.condemn)
        check_nothing_is_lost(parts.objects, keys, parts.sequencer.fold.next_index)
        if choice.barrier_ms is not None and not report.dry_run:
            report.barrier_ms = choice.barrier_ms
            parts.sequencer.raise_barrier(choice.barrier_ms)
            behind = needed_files(parts.intake(), lines)
            _doubt(report, behind)
            keys = [key for key in keys if key not in behind]
            report.needed += len(choice.condemn) - len(keys)
        room = 0 if report.unread else parts.settings.deletes_max - len(keys)
        superseded = [key for key in parts.superseded() if key not in parts.leader.fold.condemned][: max(0, room)]
        report.condemned = keys + superseded
        if report.dry_run or not report.condemned:
            return
        self._lead()
        failpoints.reach("condemn.append.before")
        self._append_condemned(keys, UNNEEDED)
        self._append_condemned(superseded, SUPERSEDED)
        failpoints.reach("condemn.append.after")
        grace = format_duration(parts.settings.grace)
        parts.progress(f"{len(report.condemned)} objects condemned; the first run after cleanup.grace = {grace} deletes them")

    def _choose(self, report: CleanReport, needed: Needed) -> Choice:
        parts = self._parts
        before_ms = report.checked_us // 1000 - round(parts.settings.grace * 1000)
        stored = (info.key for info in parts.objects.list(INTAKE_PREFIX))
        return choose(stored, needed, parts.leader.fold.condemned, before_ms, parts.settings.deletes_max)

    def _append_condemned(self, keys: Sequence[str], why: str) -> None:
        if keys:
            append_in_parts(self._parts.leader, keys, lambda part, _: pb.Condemned(keys=part, why=why), lambda key: f"the end of {key}")

    def _lead(self) -> None:
        """Take over, unless this leader leads already; raises `Deposed` if somebody else was faster."""
        leader = self._parts.leader
        if leader.epoch == 0 or leader.fold.epoch != leader.epoch:
            leader.take_over()
        leader.check()


def _doubt(report: CleanReport, needed: Needed) -> None:
    """Tell of topics whose shelves cannot be read; this stands in place of what else there is to say of them."""
    for name, why in needed.unread.items():
        report.topics = [topic for topic in report.topics if topic["topic"] != name]
        report.topics.append({"topic": name, "why": f"{why}. Nothing of any topic is deleted on such a doubt", "doubted": True})
    report.unread |= bool(needed.unread)


def _revived(intake: Backlog, ledger: LedgerFold, needed: Needed) -> list[str]:
    """Condemned files that somebody needs all the same."""
    found: list[str] = []
    for key in ledger.condemned:
        tp = needed.sure.get(key)
        if tp is not None:
            name = intake.topics_by_id[tp[0]].name
            found.append(
                f"{key} is condemned, and {name} partition {tp[1]} needs it: a table or the metadata store is older than it was; "
                "nothing is deleted until the newest state is back"
            )
    return found
