"""Runs the vacuum: retention, selection of unneeded objects, marks for deletion, deletes after the delay.

`docs/protocols/vacuum.md` has the order of effects and the proof. A run may be killed at any step: the next
one finds the marks in the ledger and continues. Only objects that were marked at least one deletion delay ago
are deleted. If one of them is needed again, which should be impossible, the run stops with a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from archiver.catalog.tables import Tables, TableView, parse_identifier
from archiver.config.settings import CleanupSettings, TopicSettings
from archiver.config.types import format_duration
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import NamedFiles
from archiver.objects.paths import INTAKE_PREFIX, parse_archive_key, parse_intake_key, table_prefix
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, Halt, InvalidInput, TopicHalted
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.read.reader import log_index_of
from intake.segments import FileRef
from reconcile.snapshot.oldest_required import oldest_required
from reconcile.snapshot.retention_floor import Lines, oldest_sequence
from reconcile.snapshot.topic_snapshot import UnreferencedObject
from reconcile.snapshot.unreferenced_objects import WHY, Kind, Unneeded
from reconcile.vacuum.report import CleanReport, Compacted, all_due, move_starts
from reconcile.vacuum.tables import Swept, TableFolders, swept_key

# --- Which intake files, uploads and rewritten archives may be deleted
WINDOW_BYTES = 256 * 2**20
"""Raw bytes of the records whose segments are read at a time; a backlog may have millions of segments."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The keys of intake files that may be read again."""

    sure: dict[str, TopicPartition]
    """Files needed by a partition with a known floor: one such partition each."""
    doubted: frozenset[str]
    """Files kept because the floor is unknown or the whole topic is kept."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Topics whose needs are unknown because a history file is damaged or missing, and why. All keys are then
    needed."""

    def __contains__(self, key: str) -> bool:
        return bool(self.unread) or key in self.sure or key in self.doubted


def needed_files(intake: Backlog, lines: Lines) -> Needed:
    """Files with a segment above its floor, and all files of a topic or partition without a floor."""
    sure: dict[str, TopicPartition] = {}
    doubted: set[str] = set()
    unread: dict[str, str] = {}
    for topic in intake.topics_by_id.values():
        line = lines.get(topic.topic_id)
        # Inexact floors may have been higher before. A marked file that only such a floor needs is no
        # contradiction.
        known = line is not None and line.why is None and line.exact
        for partition in range(topic.partitions):
            tp = (topic.topic_id, partition)
            try:
                # A topic or partition without a floor is younger than the floors, so all of it stays.
                floor = line.offsets[partition] if line and partition < len(line.offsets) else 0
                for file in _files(intake, tp, floor):
                    if known:
                        sure[file.key] = tp
                    else:
                        doubted.add(file.key)
            except (Halt, InvalidInput) as error:
                # A damaged history file must not end the run. It makes every key needed, because its files
                # are unknown.
                unread.setdefault(topic.name, f"partition {partition}: {error}")
    return Needed(sure, frozenset(doubted), unread)


def _files(intake: Backlog, tp: TopicPartition, start: int) -> Iterator[FileRef]:
    """The files of the segments that end above `start`."""
    while segments := intake.segments(tp, start, WINDOW_BYTES):
        yield from (segment.file for segment in segments)
        start = segments[-1].end


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that a run may mark for deletion, and the number of others."""

    to_mark: tuple[str, ...]
    """Oldest first."""
    barrier_ms: int | None
    """Every selected file was written before it; None if there is none."""
    needed: int
    """Files that stay because they may be read again."""
    young: int
    """Files that stay because they are too young."""
    over: int
    """Files that stay because of the limit of a run."""
    strange: int
    """Objects below `intake/` that are not intake files; they are never changed."""


def choose(
    stored: Iterable[str], needed: Needed, condemned: Collection[str], before_ms: int, limit: int
) -> Choice:
    """Classify the keys below `intake/`, except those already marked (`condemned`).

    Only files written before `before_ms` may be deleted, the `limit` oldest of them.
    """
    found: list[tuple[int, str]] = []
    kept = young = strange = 0
    for key in stored:
        parsed = parse_intake_key(key)
        if key in condemned:
            continue
        if parsed is None:
            # No writer makes such a key, so the object may belong to another program.
            strange += 1
        elif key in needed:
            kept += 1
        elif parsed.written_ms >= before_ms:
            young += 1
        else:
            found.append((parsed.written_ms, key))
    # The oldest first: the barrier excludes every older file from the log, marked or not.
    chosen = sorted(found)[: max(0, limit)]
    # The barrier follows the newest selected file, not the clock. A clock that is ahead would exclude every
    # writer.
    barrier_ms = chosen[-1][0] + 1 if chosen else None
    return Choice(tuple(key for _, key in chosen), barrier_ms, kept, young, len(found) - len(chosen), strange)


@runtime_checkable
class KnowsUploads(Protocol):
    """A store with multipart uploads. Each has the store's own identifier."""

    def open_uploads(self) -> Iterator[tuple[str, Any]]:
        """Unfinished uploads by key, each with `begun_us`."""

    def abort_upload(self, upload: Any) -> None:
        """Abort an upload and free its storage; a missing one is no error."""


def stale_uploads(
    objects: ObjectStore, now_us: int, age_s: float, count_max: int, *, abort: bool
) -> list[str]:
    """The keys of stale uploads, at most `count_max`; with `abort` they are aborted. Raises the errors of the
    store.
    """
    # A local folder has no multipart uploads.
    if not isinstance(objects, KnowsUploads):
        return []
    begun_before_us = now_us - round(age_s * 1e6)
    stale = list(
        islice(
            ((key, one) for key, one in objects.open_uploads() if one.begun_us < begun_before_us), count_max
        )
    )
    for _, one in stale if abort else ():
        objects.abort_upload(one)
    return [key for key, _ in stale]


def stray_uploads(
    objects: ObjectStore, now_us: int, age_s: float, count_max: int
) -> list[UnreferencedObject]:
    """The stale uploads for the reconciler; the store does not report their size."""
    why = "a multipart upload that was started long ago and never completed"
    return [
        UnreferencedObject(key, 0, why)
        for key in stale_uploads(objects, now_us, age_s, count_max, abort=False)
    ]


class ReplacedArchives:
    """Inspects the tables of topics with rewritten archives, without changes."""

    def __init__(self, tables: Callable[[str], Tables], topics: Iterable[TopicSettings]) -> None:
        self._tables = tables
        self._settings = {topic.name: topic for topic in topics}

    def keys(self, intake: Backlog, ledger: LedgerFold, lines: Lines) -> list[str]:
        """The old archives that may be deleted, in ledger order; none of a topic that is unreadable or
        doubtful.
        """
        found: list[str] = []
        for topic in intake.topics_by_id.values():
            line, settings, known = (
                lines.get(topic.topic_id),
                self._settings.get(topic.name),
                ledger.topic(topic.topic_id),
            )
            if line is None or line.why is not None or settings is None or not known.rewrites.replaced:
                continue
            try:
                found += self._of_table(settings, topic.topic_id, known, ledger.condemned)
            except ArchiverError:
                # The table cannot be read now, so its archives stay. The next run tries again.
                continue
        return found

    def _of_table(
        self, settings: TopicSettings, topic_id: TopicId, ledger: TopicLedger, condemned: Container[str]
    ) -> list[str]:
        if settings.archive.kind != "iceberg":
            return []
        tables = self._tables(settings.archive.catalog or "")
        view = tables.load(parse_identifier(settings.archive.table or ""))
        # The snapshots of another table prove nothing about the archives of this one.
        if view is None or view.uuid != ledger.table_uuid:
            return []
        oldest = oldest_sequence(view)
        due = [
            key
            for key, item in ledger.rewrites.replaced.items()
            # Snapshots older than the replacement may reference the archive. A marked one passed this test
            # before.
            if item.sequence_number <= oldest or key in condemned
        ]
        # Sequence numbers alone do not suffice: another program may have added an old file again.
        held = _held(topic_id, tables, view, due) if due else NamedFiles(table_prefix(topic_id))
        return [key for key in due if key not in held]


def _held(topic_id: TopicId, tables: Tables, view: TableView, keys: list[str]) -> NamedFiles:
    """The files that some retained snapshot references, with normalized paths."""
    held = NamedFiles(table_prefix(topic_id))
    for path in tables.retained_paths(view, {key.rpartition("/")[2] for key in keys}):
        held.add(path)
    return held


FOOTERS_READ_MAX = 100
"""Most files that are opened. An older copy of the log lacks the newest entries, so the newest files show
it."""


def check_nothing_is_lost(objects: ObjectStore, keys: Sequence[str], next_index: int) -> None:
    """Raise `Halt` if one of the newest of `keys` (ascending) was written when the log was longer than
    `next_index`.
    """
    # Each footer has the log index that the writer had read. An older copy of the log ends before it.
    for key in reversed(keys[-FOOTERS_READ_MAX:]):
        index = log_index_of(objects, key)
        if index is not None and index > next_index:
            raise Halt(
                f"{objects.uri(key)} was written when the intake log reached entry {index}, and the "
                f"log ends at {next_index}: the metadata "
                "store is an older copy; put the newest one in place. Nothing is deleted until then, "
                "because records that the lost entries "
                "named would go"
            )


# --- The run

Replaced = Callable[[Backlog, LedgerFold, Lines], Sequence[str]]
"""Keys of rewritten archives that are no longer needed."""
Compact = Callable[[bool], Sequence[Compacted]]
"""Merges small archives, or with the flag only lists them; returns the outcome by topic."""


def nothing_compacted(_dry_run: bool) -> Sequence[Compacted]:
    """The `Compact` of a deployment without compaction."""
    return ()


def _none_replaced(_intake: Backlog, _ledger: LedgerFold, _lines: Lines) -> Sequence[str]:
    return ()


@dataclass
class _Views:
    """The views on which a run is based."""

    intake: Backlog
    lines: Lines
    """Old floors may keep more than necessary, but never less: a floor never decreases."""
    swept: list[Swept] = field(default_factory=list)


@dataclass(eq=False)
class CleanRun:
    """Cleans on request."""

    objects: ObjectStore
    sequencer: Sequencer
    intake: Callable[[], Backlog]
    """Reads the intake log to its tail."""
    leadership: Leadership
    lines: Callable[[Backlog, LedgerFold], Lines]
    superseded: Callable[[], Sequence[str]]
    """Keys of checkpoints and history files that no log and no reader needs."""
    settings: CleanupSettings
    clock: Clock
    progress: Callable[[str], None]
    ledger: Callable[[], LedgerFold] | None = None
    """Reads the control log into a fold that archiving rounds do not advance; None: the leader's fold."""
    replaced: Replaced = _none_replaced
    compact: Compact = nothing_compacted
    folders: TableFolders | None = None
    """The folders of the tables; None: only intake is cleaned."""

    @property
    def leader(self) -> Leader:
        """The leader, which appends to the control log."""
        return self.leadership.leader

    def run(self, *, dry_run: bool = False) -> CleanReport:
        """Delete objects whose deletion delay is over, mark unneeded ones for deletion, then merge small
        archives. With `dry_run` nothing is written.

        Raises `LeaseHeld` if another process leads (a dry run needs no lease), and `Deposed` if a newer
        leader appears. Raises `Halt` if the intake log is an older copy than the files. Raises `RetryLater`
        or `OutcomeUnknown` if a log or the object store is unreachable.
        """
        if dry_run:
            report = self._run(CleanReport(True, self.clock.now_us()))
        else:
            with self.leadership.turn("cleaning"):
                report = self._run(CleanReport(False, self.clock.now_us()))
        # After the turn: compaction takes a turn of its own. A contradiction or an outage stops it too.
        if not report.findings and report.error is None:
            self._compact(report)
        return report

    def _compact(self, report: CleanReport) -> None:
        """Merge small archives. If that fails, the report still contains the cleaning."""
        try:
            report.compacted = self.compact(report.dry_run)
        except Deposed:
            raise
        except ArchiverError as error:
            report.error = error

    def _run(self, report: CleanReport) -> CleanReport:
        self.leader.refresh()
        seen = self._read_views(report)
        if self.folders is not None and self._retire(report, self.folders, seen):
            # Retention may have expired snapshots, which raises the floors.
            seen = self._read_views(report)
        report.pin = oldest_required(seen.intake, seen.lines)
        # A topic that failed during retention keeps that reason, the first one.
        known = {topic["topic"] for topic in report.topics}
        kept = [line for line in seen.lines.values() if line.why is not None and line.topic not in known]
        report.topics += [{"topic": line.topic, "why": line.why, "doubted": line.doubted} for line in kept]
        needed = needed_files(seen.intake, seen.lines)
        _doubt(report, needed)
        report.findings = _revived(seen.intake, self.leader.fold, needed)
        if not report.findings:
            self._sweep(report, seen)
            # Deletes come before marks, so an object always waits until a later run.
            self._delete(report, seen, needed)
            self._mark(report, seen, needed)
            self._end_uploads(report)
        # A dry run deletes nothing, so its marked objects are still in the ledger.
        report.waiting = len(self.leader.fold.condemned) - (len(report.deleted) if report.dry_run else 0)
        return report

    def _read_views(self, report: CleanReport) -> _Views:
        """Compute the retention floors. Every table is read, so archiving rounds may run in between."""
        with nullcontext() if report.dry_run else self.leadership.aside():
            # Rounds advance the leader's fold during this block; a fold of its own stays at one entry.
            ledger = self.leader.fold if self.ledger is None else self.ledger()
            # The ledger is read before the intake log: what it calls archived is then in that log.
            intake = self.intake()
            lines = self.lines(intake, ledger)
        # Commits need the gaps that the log has now: rounds may have committed beyond the earlier ones.
        return _Views(intake if report.dry_run or not self.leadership.holding else self.intake(), lines)

    def _give_way(self, report: CleanReport, seen: _Views) -> None:
        """Between two steps, let waiting archiving rounds go first. They may have changed logs and tables."""
        if report.dry_run or not self.leadership.give_way():
            return
        self.leader.refresh()
        seen.intake = self.intake()
        for one in seen.swept:
            # A round may have reused an unreferenced archive, so the folder is listed again before marks.
            one.stale = True

    # retention

    def _retire(self, report: CleanReport, folders: TableFolders, seen: _Views) -> bool:
        """Apply retention and deletions of records to ledger and then table. Returns whether the retention
        floors may have changed.
        """
        lines = seen.lines
        report.starts = all_due(folders.settings, seen.intake, self.leader.fold, lines, report.checked_us)
        if report.dry_run:
            return False
        if report.starts:
            self._lead()
            # Ledger before table: after a crash in the other order, deleted records would be archived again
            # (C1).
            move_starts(self.leader, report.starts)
            self.progress(f"the start of {counted(len(report.starts), 'topic partition')} moved")
        archived = [one for one in folders.archived(seen.intake) if folders.has_table(one)]
        retiring = [one for one in archived if self.leader.fold.topic(one.topic_id).starts]
        for topic in retiring:
            # An unreadable table is not changed. Starts of earlier runs are applied too: a crash may have
            # interrupted one.
            if topic.topic_id in lines and lines[topic.topic_id].why is None:
                self._give_way(report, seen)
                self._lead()
                self._attempt(report, topic, partial(folders.retire, topic, seen.intake))
        return bool(report.starts or retiring)

    def _attempt(self, report: CleanReport, topic: TopicState, work: Callable[[], object]) -> bool:
        """Run `work` on one topic's table; returns whether it succeeded. After an error this run skips that
        topic's folder, and the others continue.
        """
        try:
            work()
        # A newer leader ends the run, not only this topic.
        except Deposed:
            raise
        except ArchiverError as error:
            why = error.why if isinstance(error, TopicHalted) else str(error)
            # One entry per topic, with the first reason.
            if all(entry["topic"] != topic.name for entry in report.topics):
                report.topics.append({"topic": topic.name, "why": why, "doubted": True})
            return False
        return True

    def _sweep(self, report: CleanReport, seen: _Views) -> None:
        """Inspect the folders of the readable tables of topics without an error in this run."""
        # With an unreadable history file nothing is marked or deleted, so the listing has no use.
        if self.folders is None or report.unread:
            return
        failed = {topic["topic"] for topic in report.topics}
        for topic in self.folders.archived(seen.intake):
            if topic.name in failed:
                continue
            self._give_way(report, seen)
            one = self._swept(report, topic, self.folders, seen)
            # An idle table makes no commits, so its old snapshots would keep files below the start for good.
            if one is not None and one.held and not report.dry_run:
                self._lead()
                if not self._attempt(report, topic, partial(self.folders.forget, topic, seen.intake)):
                    continue
            seen.swept += [] if one is None else [one]

    def _swept(
        self, report: CleanReport, topic: TopicState, folders: TableFolders, seen: _Views
    ) -> Swept | None:
        """One topic's folder now; None if it allows no conclusion."""
        old_us = report.checked_us - round(self.settings.orphan_age * 1e6)
        found: list[Swept | None] = []
        inspect = partial(
            folders.sweep, topic, self.leader.fold, seen.lines, old_us, self.settings.deletes_max
        )
        self._attempt(report, topic, lambda: found.append(inspect()))
        return found[0] if found else None

    # deleting

    def _delete(self, report: CleanReport, seen: _Views, needed: Needed) -> None:
        ledger, limit_us = self.leader.fold, report.checked_us - round(self.settings.grace * 1e6)
        condemned = ledger.condemned
        # Every key is needed if a history file is unreadable; then nothing is due.
        due = [key for key, item in condemned.items() if item.time_us <= limit_us and key not in needed]
        # Objects of a table's folder wait for the check of that table below.
        due = [key for key in due if not swept_key(ledger, key)]
        if any(not key.startswith(INTAKE_PREFIX) for key in due):
            # Checked again before the delete. The listings cost requests, so only if such an object is due.
            superseded = {*self.superseded(), *self._replaced(seen.lines)}
            due = [key for key in due if key.startswith(INTAKE_PREFIX) or key in superseded]
        report.cut = len(due) > self.settings.deletes_max
        due = due[: self.settings.deletes_max]
        sizes: dict[str, int] = {}
        for one in seen.swept:
            self._give_way(report, seen)
            more, room = one.due(condemned, limit_us), self.settings.deletes_max - len(due)
            report.cut |= len(more) > room
            more = more[:room]
            # The objects are checked after the fence, not before: a request may have succeeded in between
            # (D1).
            fenced = self._fenced(report, one, seen.intake, more)
            due += fenced
            sizes.update({key: one.again[key] for key in fenced})
        if not due:
            return
        if not report.dry_run:
            self._lead()
        self._delete_all(report, seen, due, sizes)
        if report.deleted and not report.dry_run:
            self.progress(f"{counted(len(report.deleted), 'marked object')} deleted")
            self._lead()
            # Delete before DELETED: in the other order a crash would leave objects whose marks are forgotten.
            gone = [key for key in report.deleted if key in condemned]
            failpoints.reach("deleted.append.before")
            append_in_parts(
                self.leader,
                gone,
                lambda part, _: pb.Deleted(keys=part),
                lambda key: f"the deletion of {key}",
            )
            failpoints.reach("deleted.append.after")

    def _delete_all(
        self, report: CleanReport, seen: _Views, due: Sequence[str], sizes: Mapping[str, int]
    ) -> None:
        """Delete the objects. Once an object may be deleted, it may be deleted at any later time (D1 to D3).
        So archiving rounds may run between two objects.
        """
        for key in due:
            self._give_way(report, seen)
            if not report.dry_run and key not in self.leader.fold.condemned:
                # Another leader, or another turn of this process, may have deleted it.
                continue
            try:
                size = sizes[key] if key in sizes else self._size_of(key)
                kind = _kind_of(key, self.leader.fold)
                if not report.dry_run:
                    failpoints.reach("intake.delete.before")
                    self.objects.delete(key)
                    failpoints.reach("intake.delete.after")
            except ArchiverError as error:
                # A delete with an unknown outcome counts as not done: the mark stays and the next run deletes
                # again.
                report.error = error
                break
            report.deleted.append(key)
            report.count("deleted", kind, size)

    def _fenced(
        self, report: CleanReport, swept: Swept, intake: Backlog, due: Sequence[str]
    ) -> Sequence[str]:
        """Those of `due` that no pending request can add to the table (rule D2); commits a fence if needed.

        A request may have landed between the inspection and the fence, so files referenced by now stay (D1).
        """
        if report.dry_run or not due or self.folders is None or not swept.has_table:
            return due
        self._lead()
        # A new epoch since the inspection voids the sequence number that was compared.
        if not swept.needs_fence(self.leader.fold.condemned, due) and self.leader.epoch == swept.epoch:
            return due
        unnamed: list[str] = []
        fence = partial(self.folders.fence, swept.topic, intake)
        inspect = partial(self.folders.unnamed, swept.topic, self.leader.fold, due)
        done = self._attempt(report, swept.topic, fence) and self._attempt(
            report, swept.topic, lambda: unnamed.extend(inspect())
        )
        return unnamed if done else ()

    def _size_of(self, key: str) -> int:
        info = self.objects.info(key)
        return 0 if info is None else info.size

    def _end_uploads(self, report: CleanReport) -> None:
        """Abort stale multipart uploads. They are no objects, so nothing is marked first."""
        age_s, count_max = self.settings.orphan_age, self.settings.deletes_max
        report.uploads = stale_uploads(
            self.objects, report.checked_us, age_s, count_max, abort=not report.dry_run
        )
        if report.uploads:
            done = "would be aborted" if report.dry_run else "aborted"
            self.progress(f"{counted(len(report.uploads), 'stale multipart upload')}: {done}")

    # marking for deletion

    def _mark(self, report: CleanReport, seen: _Views, needed: Needed) -> None:
        """Raise the barrier, read the intake log to its tail, mark what is still not needed."""
        self._give_way(report, seen)
        sizes: dict[str, int] = {}
        choice = self._choose(report, needed, sizes)
        report.needed, report.young, report.over, report.strange = (
            choice.needed,
            choice.young,
            choice.over,
            choice.strange,
        )
        keys = list(choice.to_mark)
        check_nothing_is_lost(self.objects, keys, self.sequencer.fold.next_index)
        if choice.barrier_ms is not None and not report.dry_run:
            report.barrier_ms = choice.barrier_ms
            # Barrier before tail: otherwise a paused writer could append in between, and its acknowledged
            # file be marked.
            self.sequencer.raise_barrier(choice.barrier_ms)
            # Entries before the barrier may name selected files; later ones cannot. The old floors only keep
            # more.
            behind = needed_files(self.intake(), seen.lines)
            _doubt(report, behind)
            keys = [key for key in keys if key not in behind]
            report.needed += len(choice.to_mark) - len(keys)
        going = [Unneeded(key, sizes[key], "intake") for key in keys]
        condemned, deletes_max = (
            self.leader.fold.condemned,
            0 if report.unread else self.settings.deletes_max,
        )
        # Objects below the barrier, superseded and replaced ones never become needed again. So archiving
        # rounds may run before they are marked.
        self._give_way(report, seen)
        others: list[tuple[Kind, Sequence[str]]] = [
            ("superseded", self.superseded()),
            ("replaced", self._replaced(seen.lines)),
        ]
        for kind, found in others:
            new = [key for key in found if key not in condemned][: max(0, deletes_max - len(going))]
            for key in new:
                self._give_way(report, seen)
                going.append(Unneeded(key, self._size_of(key), kind))
        self._mark_all(report, [item for item in going if item.key not in condemned])
        for one in seen.swept:
            self._give_way(report, seen)
            markable = self._markable(report, one, seen)
            fresh = markable[: max(0, deletes_max - len(report.condemned))]
            report.over += len(markable) - len(fresh) + one.over
            # If the table's sequence number cannot be recorded, no later run could see that the table has
            # advanced.
            if self._records_table(report, one, fresh):
                self._mark_all(report, fresh)
        if report.condemned and not report.dry_run:
            grace = format_duration(self.settings.grace)
            objects, them = (
                counted(len(report.condemned), "object"),
                "it" if len(report.condemned) == 1 else "them",
            )
            self.progress(
                f"{objects} marked for deletion; the first run after cleanup.grace = {grace} deletes {them}"
            )

    def _markable(self, report: CleanReport, one: Swept, seen: _Views) -> list[Unneeded]:
        """The objects of a topic's folder that may be marked for deletion now."""
        fresh = one.fresh
        if one.stale and self.folders is not None and any(item.kind in ("stray", "killed") for item in fresh):
            # A round may have reused such an archive, or replaced its substitute. The other kinds stay
            # unneeded.
            again = self._swept(report, one.topic, self.folders, seen)
            one, fresh = (one, []) if again is None else (again, again.fresh)
        condemned = self.leader.fold.condemned
        fresh = [item for item in fresh if item.key not in condemned]
        return [
            item
            for item in fresh
            # Under a newer epoch, an archive of the inspected epoch may belong to a round in progress (D1).
            if self.leader.epoch == one.epoch or not _may_be_in_progress(item.key, one.epoch)
        ]

    def _mark_all(self, report: CleanReport, going: Sequence[Unneeded]) -> None:
        report.condemned += [item.key for item in going]
        for item in going:
            report.count("condemned", item.kind, item.size)
        if report.dry_run or not going:
            return
        self._lead()
        failpoints.reach("condemn.append.before")
        # Each entry has one reason, and `_kind_of` finds the kind by it when the object is deleted.
        for kind, why in WHY.items():
            self._append_marks([item.key for item in going if item.kind == kind], why)
        failpoints.reach("condemn.append.after")

    def _records_table(self, report: CleanReport, swept: Swept, fresh: Sequence[Unneeded]) -> bool:
        """Update the ledger's view of the table before files of its folder are marked: they are deleted once
        the table has advanced beyond it.
        """
        if report.dry_run or not fresh or not swept.has_table or self.folders is None:
            return bool(fresh)
        self._lead()
        return self._attempt(report, swept.topic, partial(self.folders.settle, swept.topic, self.intake()))

    def _replaced(self, lines: Lines) -> Sequence[str]:
        return self.replaced(self.intake(), self.leader.fold, lines)

    def _choose(self, report: CleanReport, needed: Needed, sizes: dict[str, int]) -> Choice:
        """Select the intake files to mark. Fills `sizes` with the bytes of those not needed."""
        before_ms = report.checked_us // 1000 - round(self.settings.grace * 1000)

        def stored() -> Iterator[str]:
            for info in self.objects.list(INTAKE_PREFIX):
                if info.key not in needed:
                    sizes[info.key] = info.size
                yield info.key

        return choose(stored(), needed, self.leader.fold.condemned, before_ms, self.settings.deletes_max)

    def _append_marks(self, keys: Sequence[str], why: str) -> None:
        if keys:
            append_in_parts(
                self.leader,
                keys,
                lambda part, _: pb.Condemned(keys=part, why=why),
                lambda key: f"the mark of {key}",
            )

    def _lead(self) -> None:
        """Take the lead unless this leader has it; raises `Deposed` if another leader was faster."""
        leader = self.leader
        # Epoch 0: this process has not led yet. A newer epoch in the fold: another process led since.
        if leader.epoch == 0 or leader.fold.epoch != leader.epoch:
            self.leadership.lead()
        leader.check()


def _may_be_in_progress(key: str, epoch: int) -> bool:
    """Whether a leader of that epoch, in another process, may still add the archive to the ledger (rule
    D1).
    """
    parsed = parse_archive_key(key)
    return parsed is not None and parsed.epoch >= epoch


def _kind_of(key: str, ledger: LedgerFold) -> Kind:
    """The kind of a marked object, from the reason in its ledger entry."""
    if key.startswith(INTAKE_PREFIX):
        return "intake"
    why = ledger.condemned[key].why
    return next((kind for kind, text in WHY.items() if text == why), "superseded")


def _doubt(report: CleanReport, needed: Needed) -> None:
    """Report topics with unreadable history files. This replaces their other entries."""
    for name, why in needed.unread.items():
        report.topics = [topic for topic in report.topics if topic["topic"] != name]
        report.topics.append(
            {"topic": name, "why": f"{why}. Until then nothing of any topic is deleted", "doubted": True}
        )
    report.unread |= bool(needed.unread)


def _revived(intake: Backlog, ledger: LedgerFold, needed: Needed) -> list[str]:
    """Marked files that are needed again."""
    found: list[str] = []
    for key in ledger.condemned:
        # Only an exact floor proves a contradiction. Files that a doubtful floor needs merely wait.
        tp = needed.sure.get(key)
        if tp is not None:
            name = intake.topics_by_id[tp[0]].name
            found.append(
                f"{key} is marked for deletion, but {name} partition {tp[1]} needs it: a table or the "
                "metadata store is an older copy; nothing is deleted until the newest one is restored"
            )
    return found
