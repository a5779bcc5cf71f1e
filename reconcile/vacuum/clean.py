"""The vacuum: retention, barrier, tail, mark for deletion; then, after `cleanup.grace`, delete and record it.

Owns the order of effects (`docs/protocols/vacuum.md`); what of intake may go is decided in `vacuum.py`, how
far in `lines.py`, what below a table's folder in `clean_orphans.py`. Can be killed at any step: the next run
finds the marks in the ledger and goes on. Between two steps (a topic, an object) waiting rounds of archiving
go first; what was read before and does not hold for ever is read again after that (`_give_way`). An object
whose deletion has no known outcome stays marked and is deleted again; a missing object is no error. Must
never delete what is not marked, what was marked less than the grace ago, or what is needed again: that last
cannot happen, so it stops the run with a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from archiver.config.types import format_duration
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.objects.paths import INTAKE_PREFIX, parse_archive_key
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, TopicHalted
from archiver.runtime.text import counted
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from reconcile.snapshot.lost_log_entries import check_nothing_is_lost
from reconcile.snapshot.oldest_required import oldest_required
from reconcile.snapshot.retention_floor import Lines
from reconcile.snapshot.unreferenced_objects import WHY, Kind, Unneeded
from reconcile.vacuum.intake_files import Choice, Needed, choose, needed_files
from reconcile.vacuum.report import CleanReport, Compacted
from reconcile.vacuum.retention import all_due, move_starts
from reconcile.vacuum.tables import Swept, TableFolders, swept_key
from reconcile.vacuum.unfinished_uploads import stale_uploads

Replaced = Callable[[Backlog, LedgerFold, Lines], Sequence[str]]
Compact = Callable[[bool], Sequence[Compacted]]
"""Merges small archives, or with the flag only says which it would; what there is to tell, by topic."""
"""Keys of archives that were made anew and that nobody can need."""


def nothing_compacted(_dry_run: bool) -> Sequence[Compacted]:
    """Where archives stay as they are."""
    return ()


def _none_replaced(_intake: Backlog, _ledger: LedgerFold, _lines: Lines) -> Sequence[str]:
    return ()


class CleanSettings(Protocol):
    """What cleaning needs of the `cleanup` settings."""

    @property
    def grace(self) -> float:
        """Seconds."""

    @property
    def deletes_max(self) -> int:
        """Objects condemned, and objects deleted, in one run."""

    @property
    def orphan_age(self) -> float:
        """Seconds that an object below a table's folder which nothing names must be old."""


@dataclass(frozen=True)
class CleanParts:
    """What a run needs; put together by the composition root."""

    objects: ObjectStore
    sequencer: Sequencer
    intake: Callable[[], Backlog]
    """Reads the intake log to its tail."""
    leadership: Leadership
    lines: Callable[[Backlog, LedgerFold], Lines]
    superseded: Callable[[], Sequence[str]]
    """Keys of checkpoints and shelves that no log and no reader needs."""
    settings: CleanSettings
    clock: Clock
    progress: Callable[[str], None]
    ledger: Callable[[], LedgerFold] | None = None
    """Reads the control log into a fold that rounds of archiving do not move on; None: the leader's."""
    replaced: Replaced = _none_replaced
    compact: Compact = nothing_compacted
    folders: TableFolders | None = None
    """Of the tables; None: only intake is cleaned."""

    @property
    def leader(self) -> Leader:
        """The way into the control log."""
        return self.leadership.leader


@dataclass
class _Seen:
    """What a run goes by."""

    intake: Backlog
    lines: Lines
    """Old ones keep more than needed and never less: a line never has to be taken back."""
    swept: list[Swept] = field(default_factory=list)


class CleanRun:
    """Cleaning, on request."""

    def __init__(self, parts: CleanParts) -> None:
        self._parts = parts

    def run(self, *, dry_run: bool = False) -> CleanReport:
        """Delete what was condemned before the grace, condemn what nobody needs, then merge small archives.
        With `dry_run` nothing is written anywhere.

        Raises `LeaseHeld` if another process leads (a dry run needs no lease), `Deposed` if a newer leader
        appears, `Halt` if the intake log is an older copy than the files, `RetryLater` or `OutcomeUnknown` if
        a log or the object store cannot be reached.
        """
        parts = self._parts
        if dry_run:
            report = self._run(CleanReport(True, parts.clock.now_us()))
        else:
            with parts.leadership.turn("cleaning"):
                report = self._run(CleanReport(False, parts.clock.now_us()))
        if not report.findings and report.error is None:
            self._compact(report)
        return report

    def _compact(self, report: CleanReport) -> None:
        """Merge small archives. What was cleaned is told all the same if that ends early."""
        try:
            report.compacted = self._parts.compact(report.dry_run)
        except Deposed:
            raise
        except ArchiverError as error:
            report.error = error

    def _run(self, report: CleanReport) -> CleanReport:
        parts = self._parts
        parts.leader.refresh()
        seen = self._look(report)
        if parts.folders is not None and self._retire(report, parts.folders, seen):
            seen = self._look(report)
        report.pin = oldest_required(seen.intake, seen.lines)
        known = {topic["topic"] for topic in report.topics}
        kept = [line for line in seen.lines.values() if line.why is not None and line.topic not in known]
        report.topics += [{"topic": line.topic, "why": line.why, "doubted": line.doubted} for line in kept]
        needed = needed_files(seen.intake, seen.lines)
        _doubt(report, needed)
        report.findings = _revived(seen.intake, parts.leader.fold, needed)
        if not report.findings:
            self._sweep(report, seen)
            self._delete(report, seen, needed)
            self._condemn(report, seen, needed)
            self._end_uploads(report)
        report.waiting = len(parts.leader.fold.condemned) - (len(report.deleted) if report.dry_run else 0)
        return report

    def _look(self, report: CleanReport) -> _Seen:
        """How far intake is needed. Every table is read, so rounds of archiving go on in the meantime."""
        parts = self._parts
        with nullcontext() if report.dry_run else parts.leadership.aside():
            ledger = parts.leader.fold if parts.ledger is None else parts.ledger()
            intake = parts.intake()
            lines = parts.lines(intake, ledger)
        # Tables are written with the gaps that the log knows now: rounds may have committed beyond those that
        # it knew then.
        return _Seen(intake if report.dry_run or not parts.leadership.holding else parts.intake(), lines)

    def _give_way(self, report: CleanReport, seen: _Seen) -> None:
        """Between two steps: rounds of archiving that wait go first. They may have moved logs and tables."""
        parts = self._parts
        if report.dry_run or not parts.leadership.give_way():
            return
        parts.leader.refresh()
        seen.intake = parts.intake()
        for one in seen.swept:
            one.stale = True

    # retention

    def _retire(self, report: CleanReport, folders: TableFolders, seen: _Seen) -> bool:
        """Ledger, then table; whether anything of it may have changed what the lines follow from."""
        parts, lines = self._parts, seen.lines
        report.starts = all_due(folders.settings, seen.intake, parts.leader.fold, lines, report.checked_us)
        if report.dry_run:
            return False
        if report.starts:
            self._lead()
            move_starts(parts.leader, report.starts)
            parts.progress(f"retention moved the start of {counted(len(report.starts), 'topic partition')}")
        archived = [one for one in folders.archived(seen.intake) if folders.has_table(one)]
        retiring = [one for one in archived if parts.leader.fold.topic(one.topic_id).starts]
        for topic in retiring:
            if topic.topic_id in lines and lines[topic.topic_id].why is None:
                self._give_way(report, seen)
                self._lead()
                self._attempt(report, topic, partial(folders.retire, topic, seen.intake))
        return bool(report.starts or retiring)

    def _attempt(self, report: CleanReport, topic: TopicState, work: Callable[[], object]) -> bool:
        """Do something to one topic's table; whether it was done. An error leaves that topic's folder alone
        in this run, and the others go on.
        """
        try:
            work()
        except Deposed:
            raise
        except ArchiverError as error:
            why = error.why if isinstance(error, TopicHalted) else str(error)
            if all(told["topic"] != topic.name for told in report.topics):
                report.topics.append({"topic": topic.name, "why": why, "doubted": True})
            return False
        return True

    def _sweep(self, report: CleanReport, seen: _Seen) -> None:
        """Look at the folders of the tables that can be read, and of which nothing went wrong in this run."""
        parts = self._parts
        if parts.folders is None or report.unread:
            return
        failed = {topic["topic"] for topic in report.topics}
        for topic in parts.folders.archived(seen.intake):
            if topic.name in failed:
                continue
            self._give_way(report, seen)
            one = self._swept(report, topic, parts.folders, seen)
            if one is not None and one.held and not report.dry_run:
                self._lead()
                if not self._attempt(report, topic, partial(parts.folders.forget, topic, seen.intake)):
                    continue
            seen.swept += [] if one is None else [one]

    def _swept(
        self, report: CleanReport, topic: TopicState, folders: TableFolders, seen: _Seen
    ) -> Swept | None:
        """One topic's folder as it is now; None if nothing can be concluded from it."""
        parts = self._parts
        old_us = report.checked_us - round(parts.settings.orphan_age * 1e6)
        found: list[Swept | None] = []
        look = partial(
            folders.sweep, topic, parts.leader.fold, seen.lines, old_us, parts.settings.deletes_max
        )
        self._attempt(report, topic, lambda: found.append(look()))
        return found[0] if found else None

    # deleting

    def _delete(self, report: CleanReport, seen: _Seen, needed: Needed) -> None:
        parts = self._parts
        ledger, limit_us = parts.leader.fold, report.checked_us - round(parts.settings.grace * 1e6)
        condemned = ledger.condemned
        due = [
            key for key, item in condemned.items() if item.time_us <= limit_us and key not in needed
        ]  # nothing, if a shelf is unread
        due = [key for key in due if not swept_key(ledger, key)]
        if any(not key.startswith(INTAKE_PREFIX) for key in due):
            superseded = {*parts.superseded(), *self._replaced(seen.lines)}
            due = [key for key in due if key.startswith(INTAKE_PREFIX) or key in superseded]
        report.cut = len(due) > parts.settings.deletes_max
        due = due[: parts.settings.deletes_max]
        sizes: dict[str, int] = {}
        for one in seen.swept:
            self._give_way(report, seen)
            more, room = one.due(condemned, limit_us), parts.settings.deletes_max - len(due)
            report.cut |= len(more) > room
            more = more[:room]
            fenced = self._fenced(report, one, seen.intake, more)
            due += fenced
            sizes.update({key: one.again[key] for key in fenced})
        if not due:
            return
        if not report.dry_run:
            self._lead()
        self._delete_all(report, seen, due, sizes)
        if report.deleted and not report.dry_run:
            parts.progress(f"{len(report.deleted)} condemned objects deleted")
            self._lead()
            gone = [key for key in report.deleted if key in condemned]
            failpoints.reach("deleted.append.before")
            append_in_parts(
                parts.leader,
                gone,
                lambda part, _: pb.Deleted(keys=part),
                lambda key: f"the deletion of {key}",
            )
            failpoints.reach("deleted.append.after")

    def _delete_all(
        self, report: CleanReport, seen: _Seen, due: Sequence[str], sizes: Mapping[str, int]
    ) -> None:
        """What may be deleted once may be deleted for ever (D1 to D3), so rounds of archiving go on between
        two objects.
        """
        parts = self._parts
        for key in due:
            self._give_way(report, seen)
            if not report.dry_run and key not in parts.leader.fold.condemned:
                continue  # another leader, or another turn of this process, may have deleted it
            try:
                size = sizes[key] if key in sizes else self._size_of(key)
                kind = _kind_of(key, parts.leader.fold)
                if not report.dry_run:
                    failpoints.reach("intake.delete.before")
                    parts.objects.delete(key)
                    failpoints.reach("intake.delete.after")
            except ArchiverError as error:
                report.error = error
                break
            report.deleted.append(key)
            report.count("deleted", kind, size)

    def _fenced(
        self, report: CleanReport, swept: Swept, intake: Backlog, due: Sequence[str]
    ) -> Sequence[str]:
        """Rule D2: what of `due` no request under way can bring into the table; sees to it, if need be. A
        request may have landed between the look and the fence, so what is named by now stays (D1).
        """
        parts = self._parts
        if report.dry_run or not due or parts.folders is None or not swept.has_table:
            return due
        self._lead()
        if not swept.needs_fence(parts.leader.fold.condemned, due) and parts.leader.epoch == swept.epoch:
            return due
        unnamed: list[str] = []
        fence = partial(parts.folders.fence, swept.topic, intake)
        look = partial(parts.folders.unnamed, swept.topic, parts.leader.fold, due)
        done = self._attempt(report, swept.topic, fence) and self._attempt(
            report, swept.topic, lambda: unnamed.extend(look())
        )
        return unnamed if done else ()

    def _size_of(self, key: str) -> int:
        info = self._parts.objects.info(key)
        return 0 if info is None else info.size

    def _end_uploads(self, report: CleanReport) -> None:
        """They are no objects: nothing is condemned first."""
        parts = self._parts
        age_s, count_max = parts.settings.orphan_age, parts.settings.deletes_max
        report.uploads = stale_uploads(
            parts.objects, report.checked_us, age_s, count_max, abort=not report.dry_run
        )
        if report.uploads:
            done = "would be aborted" if report.dry_run else "aborted"
            parts.progress(f"{counted(len(report.uploads), 'upload')} in parts that never ended: {done}")

    # condemning

    def _condemn(self, report: CleanReport, seen: _Seen, needed: Needed) -> None:
        """Barrier, tail, condemn: see `vacuum.py` for why in this order."""
        parts = self._parts
        self._give_way(report, seen)
        sizes: dict[str, int] = {}
        choice = self._choose(report, needed, sizes)
        report.needed, report.young, report.over, report.strange = (
            choice.needed,
            choice.young,
            choice.over,
            choice.strange,
        )
        keys = list(choice.condemn)
        check_nothing_is_lost(parts.objects, keys, parts.sequencer.fold.next_index)
        if choice.barrier_ms is not None and not report.dry_run:
            report.barrier_ms = choice.barrier_ms
            parts.sequencer.raise_barrier(choice.barrier_ms)
            behind = needed_files(parts.intake(), seen.lines)
            _doubt(report, behind)
            keys = [key for key in keys if key not in behind]
            report.needed += len(choice.condemn) - len(keys)
        going = [Unneeded(key, sizes[key], "intake") for key in keys]
        condemned, deletes_max = (
            parts.leader.fold.condemned,
            0 if report.unread else parts.settings.deletes_max,
        )
        # Below the barrier, superseded and replaced: all of it holds for ever, so rounds of archiving may go
        # on before it is condemned.
        self._give_way(report, seen)
        others: list[tuple[Kind, Sequence[str]]] = [
            ("superseded", parts.superseded()),
            ("replaced", self._replaced(seen.lines)),
        ]
        for kind, found in others:
            new = [key for key in found if key not in condemned][: max(0, deletes_max - len(going))]
            for key in new:
                self._give_way(report, seen)
                going.append(Unneeded(key, self._size_of(key), kind))
        self._condemn_all(report, [item for item in going if item.key not in condemned])
        for one in seen.swept:
            self._give_way(report, seen)
            settled = self._settled(report, one, seen)
            fresh = settled[: max(0, deletes_max - len(report.condemned))]
            report.over += len(settled) - len(fresh) + one.over
            if self._is_known(report, one, fresh):
                self._condemn_all(report, fresh)
        if report.condemned and not report.dry_run:
            grace = format_duration(parts.settings.grace)
            objects, them = (
                counted(len(report.condemned), "object"),
                "it" if len(report.condemned) == 1 else "them",
            )
            parts.progress(f"{objects} condemned; the first run after cleanup.grace = {grace} deletes {them}")

    def _settled(self, report: CleanReport, one: Swept, seen: _Seen) -> list[Unneeded]:
        """What may be condemned of a topic's folder, as of now."""
        parts = self._parts
        fresh = one.fresh
        if (
            one.stale
            and parts.folders is not None
            and any(item.kind in ("stray", "killed") for item in fresh)
        ):
            # A round may have reused such an archive, or changed what stands for it. The rest stays unneeded
            # for ever.
            again = self._swept(report, one.topic, parts.folders, seen)
            one, fresh = (one, []) if again is None else (again, again.fresh)
        condemned = parts.leader.fold.condemned
        fresh = [item for item in fresh if item.key not in condemned]
        return [
            item for item in fresh if parts.leader.epoch == one.epoch or not _is_in_work(item.key, one.epoch)
        ]

    def _condemn_all(self, report: CleanReport, going: Sequence[Unneeded]) -> None:
        report.condemned += [item.key for item in going]
        for item in going:
            report.count("condemned", item.kind, item.size)
        if report.dry_run or not going:
            return
        self._lead()
        failpoints.reach("condemn.append.before")
        for kind, why in WHY.items():
            self._append_condemned([item.key for item in going if item.kind == kind], why)
        failpoints.reach("condemn.append.after")

    def _is_known(self, report: CleanReport, swept: Swept, fresh: Sequence[Unneeded]) -> bool:
        """The ledger must know how far the table has come when files of its folder are condemned: they go
        once it has come further.
        """
        parts = self._parts
        if report.dry_run or not fresh or not swept.has_table or parts.folders is None:
            return bool(fresh)
        self._lead()
        return self._attempt(report, swept.topic, partial(parts.folders.settle, swept.topic, parts.intake()))

    def _replaced(self, lines: Lines) -> Sequence[str]:
        return self._parts.replaced(self._parts.intake(), self._parts.leader.fold, lines)

    def _choose(self, report: CleanReport, needed: Needed, sizes: dict[str, int]) -> Choice:
        """Fills `sizes` with the bytes of what is not needed."""
        parts = self._parts
        before_ms = report.checked_us // 1000 - round(parts.settings.grace * 1000)

        def stored() -> Iterator[str]:
            for info in parts.objects.list(INTAKE_PREFIX):
                if info.key not in needed:
                    sizes[info.key] = info.size
                yield info.key

        return choose(stored(), needed, parts.leader.fold.condemned, before_ms, parts.settings.deletes_max)

    def _append_condemned(self, keys: Sequence[str], why: str) -> None:
        if keys:
            append_in_parts(
                self._parts.leader,
                keys,
                lambda part, _: pb.Condemned(keys=part, why=why),
                lambda key: f"the end of {key}",
            )

    def _lead(self) -> None:
        """Take over, unless this leader leads already; raises `Deposed` if somebody else was faster."""
        leader = self._parts.leader
        if leader.epoch == 0 or leader.fold.epoch != leader.epoch:
            self._parts.leadership.lead()
        leader.check()


def _is_in_work(key: str, epoch: int) -> bool:
    """Whether an archive may be named in the ledger yet by the leader of that epoch, who is somebody else
    (rule D1).
    """
    parsed = parse_archive_key(key)
    return parsed is not None and parsed.epoch >= epoch


def _kind_of(key: str, ledger: LedgerFold) -> Kind:
    """What a condemned object is, by what the ledger was told when it was condemned."""
    if key.startswith(INTAKE_PREFIX):
        return "intake"
    why = ledger.condemned[key].why
    return next((kind for kind, text in WHY.items() if text == why), "superseded")


def _doubt(report: CleanReport, needed: Needed) -> None:
    """Tell of topics whose shelves cannot be read; this stands in place of what else there is to say of
    them.
    """
    for name, why in needed.unread.items():
        report.topics = [topic for topic in report.topics if topic["topic"] != name]
        report.topics.append(
            {"topic": name, "why": f"{why}. Nothing of any topic is deleted on such a doubt", "doubted": True}
        )
    report.unread |= bool(needed.unread)


def _revived(intake: Backlog, ledger: LedgerFold, needed: Needed) -> list[str]:
    """Condemned files that somebody needs all the same."""
    found: list[str] = []
    for key in ledger.condemned:
        tp = needed.sure.get(key)
        if tp is not None:
            name = intake.topics_by_id[tp[0]].name
            found.append(
                f"{key} is condemned, and {name} partition {tp[1]} needs it: a table or the metadata "
                "store is older than it was; "
                "nothing is deleted until the newest state is back"
            )
    return found
