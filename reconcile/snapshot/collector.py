"""Collects the views that the reconciler compares, in an order that shows no work in progress as a fault.

The order is ledger, objects, tables, intake log. A table may be ahead of the ledger, and a listing may show
objects that are not in the ledger yet. So recent writes of a leader are no finding (`TopicSnapshot.busy`),
and the run collects again if the ledger changed. Must never write.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from archiver.catalog.assessment import assess_view
from archiver.catalog.evidence import Doubted, Gaps, same_place
from archiver.catalog.external_changes import change_of, rewritten_records
from archiver.catalog.identity import target_of
from archiver.catalog.reset_watermark import is_older_copy, is_set_back
from archiver.catalog.table_layout import CLUSTER_ID, TOPIC_ID
from archiver.catalog.tables import Tables, TableView, shown
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.path_normalization import NamedFiles
from archiver.objects.store import ObjectInfo, ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, NotFound, no_topic
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema
from archiver.schema.evolution.table_fit import fit_table
from intake.log.backlog import Backlog
from intake.log.clock_check import log_ahead_s
from intake.log.fold import TopicState
from reconcile.snapshot.object_listing import topic_name
from reconcile.snapshot.observer import Observer, partition_views
from reconcile.snapshot.offset_coverage import Range, merge
from reconcile.snapshot.retention_floor import gaps_of
from reconcile.snapshot.topic_snapshot import (
    ExternalSnapshot,
    FolderSnapshot,
    PendingArchive,
    TableSnapshot,
    TopicSnapshot,
    UnreferencedObject,
)
from reconcile.snapshot.topic_views import TopicView
from reconcile.snapshot.unreferenced_objects import WHY, Folder

DIGEST_BYTES_MAX = 64 * 2**20
"""Most bytes of pending archives that one run compares with the ledger's digests. Of the others only the size
is compared."""


@dataclass
class CollectedViews:
    """The result of one collection."""

    topics: list[TopicSnapshot] = field(default_factory=list)
    folder: FolderSnapshot = field(default_factory=FolderSnapshot)
    unread: dict[str, str] = field(default_factory=dict)
    """Topics that could not be read, and why."""
    tables: int = 0
    objects: int = 0
    control_index: int = 0
    """The next entry of the control log at the beginning."""


@dataclass(eq=False)
class SnapshotCollector:
    """Collects every topic of the intake log, or one."""

    objects: ObjectStore
    cluster_id: str
    tables: Callable[[str], Tables]
    topics: Sequence[TopicSettings]
    clock: Clock
    holder: Callable[[], str | None]
    """The holder of the lease."""
    owner: str
    """The lease owner name of this process."""
    grace_s: float
    """Seconds: the age from which an unreferenced object is reported (`cleanup.orphan_age`)."""
    commit_s: float
    """Seconds that a commit may take (`archive.commit_timeout`). Younger work may be in progress."""
    silence_s: float
    """Seconds that a leader may be silent (`daemon.silence_max`)."""
    skew_max_s: float = 10.0
    """Seconds that the intake log may be ahead of the clock (`intake.clock_skew_max`)."""
    uploads: Callable[[], Sequence[UnreferencedObject]] = tuple
    """Returns the remains of incomplete uploads."""

    def __post_init__(self) -> None:
        self._observer = Observer(self.objects, self.cluster_id, self.tables)
        self._settings = {topic.name: topic for topic in self.topics}

    def collect(
        self, ledger: Callable[[], LedgerFold], intake: Callable[[], Backlog], topic: str | None
    ) -> CollectedViews:
        """All views as of now. `ledger` and `intake` read their log to the tail when called.

        Raises `NotFound` for a topic that the log does not have, and the errors of a log or a listing.
        `unread` has tables that cannot be read.
        """
        # The ledger is first: an archive that it names must be in a listing that begins later.
        known = ledger()
        before = intake()
        chosen = _chosen(before, topic)
        seen = CollectedViews(control_index=known.next_index)
        # One listing for all topics, because each request of a listing returns many keys.
        stored = self._stored(None if topic is None else chosen[0].topic_id)
        seen.objects = sum(len(found) for found in stored.values())
        for state in chosen:
            try:
                snapshot = self._topic(state, known, before, intake, stored.get(state.topic_id, []))
            except ArchiverError as error:
                # A failure of one topic must not stop the others.
                seen.unread[state.name] = str(error)
                continue
            seen.tables += snapshot.table is not None
            if snapshot.view.unreadable is not None:
                seen.unread[state.name] = snapshot.view.unreadable
            seen.topics.append(snapshot)
        if topic is None:
            # The log is read again: a topic created after the first read has objects in the listing.
            seen.folder = self._folder(stored, intake())
        return seen

    def _stored(self, topic_id: TopicId | None) -> Mapping[TopicId, list[ObjectInfo]]:
        """One listing of `archive/`, or of one topic's part of it, by topic id."""
        prefix = paths.ARCHIVE_PREFIX if topic_id is None else paths.table_prefix(topic_id)
        found: defaultdict[TopicId, list[ObjectInfo]] = defaultdict(list)
        for info in self.objects.list(prefix):
            owner = TopicId(info.key.removeprefix(paths.ARCHIVE_PREFIX).partition("/")[0])
            found[owner].append(info)
        return found

    def _topic(
        self,
        state: TopicState,
        known: LedgerFold,
        before: Backlog,
        intake: Callable[[], Backlog],
        stored: Sequence[ObjectInfo],
    ) -> TopicSnapshot:
        settings, ledger = self._settings.get(state.name), known.topic(state.topic_id)
        # Before anything else is read: rounds may advance this fold.
        mark = ledger_mark(ledger)
        gaps = gaps_of(before, state.topic_id)
        seen = self._observer.table(state, settings, ledger, gaps)
        kind = "none" if settings is None else settings.archive.kind
        # The intake log is read again, after the table: what the table holds must be in the log.
        view = TopicView(
            state.name, state.topic_id, kind, partition_views(state, ledger, intake(), None),
            seen.table, seen.absent, seen.unreadable, state.partitions,
        )  # fmt: skip
        tabled = settings is not None and settings.archive.kind == "iceberg"
        table: TableSnapshot | None = None
        unreferenced: tuple[UnreferencedObject, ...] = ()
        if settings is not None and tabled and seen.view is not None:
            # The observer's view, not a second load: another writer may have committed since, and the picture
            # would mix two snapshots (decision 0072).
            tables = self.tables(settings.archive.catalog or "")
            table = self._table(settings, state, ledger, tables, seen.view, gaps)
            # Another topic's table references none of these objects, so all would seem unreferenced.
            if table.mismatch is None:
                unreferenced = self._unreferenced(
                    tables, ledger, known, seen.view, stored, self.clock.now_us()
                )
        now_us, holder = self.clock.now_us(), self.holder()
        since_us = max(ledger.written_us, ledger.committed_us)
        idle_s = (now_us - since_us) / 1e6
        pending = self._pending(ledger, {item.key: item.size for item in stored})
        return TopicSnapshot(
            view=view,
            topic_id=state.topic_id,
            table_name=settings.archive.table if settings is not None and tabled else None,
            granularity=settings.archive.partition_by[0] if settings is not None and tabled else None,
            known_uuid=ledger.table_uuid,
            archived=bool(ledger.pending) or any(ledger.watermarks.values()),
            table=table,
            pending=pending,
            archives=_ranges(stored),
            unreferenced=unreferenced,
            busy=holder is not None and idle_s < self.commit_s,
            # Only another process can be stale; this one is running.
            idle_s=idle_s
            if pending and holder not in (None, self.owner) and idle_s > self.silence_s
            else None,
            holder=holder,
            ledger_mark=mark,
        )

    def _table(
        self,
        settings: TopicSettings,
        state: TopicState,
        ledger: TopicLedger,
        tables: Tables,
        view: TableView,
        gaps: Gaps,
    ) -> TableSnapshot:
        name = shown(view.identifier)
        snapshot = TableSnapshot(
            name=name,
            uuid=view.uuid,
            cluster_id=view.properties.get(CLUSTER_ID),
            topic_id=view.properties.get(TOPIC_ID),
            format_version=view.format_version,
            granularity=view.granularity,
            sequence_number=view.sequence_number,
            external=_external(view),
        )
        target = target_of(settings, state.topic_id, state.partitions, self.cluster_id, self.objects)
        found = assess_view(tables, target, view, ledger, gaps)
        evidence = found.evidence
        # Not the topic's table, so its columns and watermarks say nothing about the ledger.
        if evidence is None:
            return _with(snapshot, mismatch=found.mismatch)
        fault, lacking = _columns(ledger, view)
        snapshot = _with(snapshot, schema_fault=fault, schema_lacking=lacking)
        if isinstance(evidence, Doubted):
            return _with(
                snapshot, doubt=evidence.why, rolled_back=is_set_back(view), unconfirmed=evidence.unconfirmed
            )
        if found.contradiction is not None:
            return _with(
                snapshot,
                contradiction=found.contradiction,
                rolled_back=is_older_copy(view, evidence.watermarks, ledger, gaps),
            )
        ahead = {
            partition: (ledger.watermark(partition), offset)
            for partition, offset in enumerate(evidence.watermarks)
            if offset > ledger.watermark(partition)
            # Watermarks at both ends of a gap stand for the same records.
            and not same_place(gaps, partition, ledger.watermark(partition), offset)
        }
        landed = tuple(
            item.archive.key for item in ledger.pending if item.path is not None and item.path in found.paths
        )
        return _with(snapshot, ahead=ahead, landed=(*landed, *found.revived))

    def _pending(self, ledger: TopicLedger, sizes: Mapping[str, int]) -> tuple[PendingArchive, ...]:
        left = DIGEST_BYTES_MAX
        found: list[PendingArchive] = []
        for item in ledger.pending:
            archive = item.archive
            # Such an archive has no object.
            if archive.gap_only:
                continue
            size, altered = sizes.get(archive.key), None
            # A wrong size is a finding of its own, and missing objects cannot be read.
            if size == archive.size and size <= left:
                left -= size
                if hashlib.sha256(self.objects.read(archive.key)).digest() != archive.sha256:
                    altered = "has other bytes than the ledger says (its SHA-256 differs)"
            found.append(
                PendingArchive(
                    archive.key, archive.partition, archive.base, archive.end, archive.size, size, altered
                )
            )
        return tuple(found)

    def _unreferenced(
        self,
        tables: Tables,
        ledger: TopicLedger,
        known: LedgerFold,
        view: TableView,
        stored: Sequence[ObjectInfo],
        now_us: int,
    ) -> tuple[UnreferencedObject, ...]:
        """Unreferenced objects below the table's folder, by the decision that cleaning uses."""
        named = NamedFiles(paths.table_prefix(ledger.topic_id))
        for path in tables.named_paths(view):
            named.add(path)
        old_us = now_us - round(self.grace_s * 1e6)
        folder = Folder(ledger.topic_id, ledger, known.epoch, known.condemned, named, True, old_us)
        data = paths.data_prefix(ledger.topic_id)
        archives, others = (
            [item for item in stored if item.key.startswith(data)],
            [item for item in stored if not item.key.startswith(data)],
        )
        found = chain(folder.archives(archives), folder.metadata(others))
        return tuple(
            UnreferencedObject(item.key, item.size, WHY[item.kind])
            for item in found
            # Killed and retired archives are no finding: the ledger records the reason.
            if item.kind in ("stray", "foreign", "metadata") and item.key not in known.condemned
        )

    def _folder(self, stored: Mapping[TopicId, Sequence[ObjectInfo]], records: Backlog) -> FolderSnapshot:
        unknown: list[UnreferencedObject] = []
        for topic_id, found in sorted(stored.items()):
            # The vacuum has not deleted the objects of a deleted topic yet.
            if topic_id in records.topics_by_id or topic_id in records.fold.deleted_topics:
                continue
            name = topic_name(self.objects, topic_id)
            size = sum(item.size for item in found)
            why = f"{len(found):,} objects of a topic id that the intake log does not know" + (
                f" (topic {name})" if name else ""
            )
            unknown.append(UnreferencedObject(f"{paths.ARCHIVE_PREFIX}{topic_id}/", size, why))
        newest_us = records.fold.newest_us
        ahead_s = log_ahead_s(newest_us, self.clock.now_us(), self.skew_max_s)
        return FolderSnapshot(
            tuple(unknown), tuple(self.uploads()), None if ahead_s is None else (newest_us, ahead_s)
        )


def ledger_mark(ledger: TopicLedger) -> tuple[object, ...]:
    """A value that changes with every ledger entry of a topic."""
    rewrites = ledger.rewrites
    return (
        *(
            ledger.written_us,
            ledger.committed_us,
            ledger.sequence_number,
            ledger.snapshot_id,
            ledger.table_uuid,
            ledger.written_version,
        ),
        *(len(ledger.pending_by_id), len(ledger.killed), len(ledger.schemas)),
        *(len(rewrites.under_way), len(rewrites.replaced), len(rewrites.abandoned)),
        *(tuple(sorted(numbers.items())) for numbers in (ledger.watermarks, ledger.starts)),
    )


def _with(snapshot: TableSnapshot, **changes: object) -> TableSnapshot:
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def _chosen(intake: Backlog, name: str | None) -> list[TopicState]:
    if name is None:
        return [intake.topics_by_name[one] for one in sorted(intake.topics_by_name)]
    state = intake.topics_by_name.get(name)
    if state is None:
        if intake.fold.deleted_named(name) is not None:
            raise NotFound(f"topic {name} was deleted; `archiver topics list` shows those there are")
        raise no_topic(name, intake.topics_by_name)
    return [state]


def _external(view: TableView) -> tuple[ExternalSnapshot, ...]:
    """Snapshots of other writers in the table's history that added or rewrote rows; newest first."""
    found: list[ExternalSnapshot] = []
    for item in view.history():
        change = change_of(item)
        added, removes = (0, False) if change is None else (change.added, change.removes)
        rewritten = rewritten_records(item)
        if added or rewritten:
            found.append(
                ExternalSnapshot(
                    item.snapshot_id, item.operation or "no operation named", added, rewritten, removes
                )
            )
    return tuple(found)


def _columns(ledger: TopicLedger, view: TableView) -> tuple[str | None, bool]:
    """Why the newest recorded schema does not fit the table's columns, and whether the table lacks some of
    them.
    """
    # All versions: the columns of older archives must exist too.
    history = tuple(TopicSchema.from_entry(entry) for _, entry in sorted(ledger.schemas.items()))
    if not history:
        return None, False
    try:
        fit = fit_table(history[-1], history, view.schema_json, view.last_column_id, ledger.written_version)
    except Halt as error:
        return str(error), False
    return None, fit.lacking is not None


def _ranges(stored: Sequence[ObjectInfo]) -> Mapping[int, tuple[Range, ...]]:
    found: defaultdict[int, list[Range]] = defaultdict(list)
    for item in stored:
        key = paths.parse_archive_key(item.key)
        if key is not None:
            found[key.partition].append((key.base, key.end))
    return {partition: merge(ranges) for partition, ranges in found.items()}
