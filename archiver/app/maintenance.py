"""The part of the composition root that looks after what is archived: reconciling, cleaning, audit, what pins
intake, the publishing of events.

Owns how these are put together; `archiver.app.application` owns what they are put together from, and says
when it is opened and closed. Must never be used alone: `Application` is the one class made of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

from archiver.catalog.commit import CommitLimits, Committer
from archiver.catalog.tables import Tables
from archiver.config.settings import ControlTopicSettings, Settings
from archiver.control_topic.destination import Destination
from archiver.control_topic.position import LOG, Positions
from archiver.control_topic.publisher import EventPublisher
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.event_reader import needed_for
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.log.lease import Lease
from archiver.log.open import PUBLISH, MetadataStore
from archiver.log.store import Log
from archiver.objects.cluster import ClusterIdentity
from archiver.objects.open import spool_folder
from archiver.objects.spool import abandoned_files
from archiver.objects.store import ObjectStore
from archiver.publish.round import ArchiveRun
from archiver.publish.scope import Scope
from archiver.refine.describe_file import describe_archive
from archiver.refine.task import RefineOptions
from archiver.rewrite.commit import RewriteParts
from archiver.rewrite.compact import Compaction, CompactParts, TopicCompaction
from archiver.rewrite.undecoded import topic_table, undecoded_count
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource
from intake.log.backlog import Backlog
from intake.log.checkpoint_store import superseded
from intake.log.sequencer import Sequencer
from reconcile.audit.deep import RowProof
from reconcile.audit.report import Audit
from reconcile.audit.rows import RowReader
from reconcile.repair.rebuild import RebuildParts, RebuildReport
from reconcile.repair.rebuild_bucket import BucketRebuild
from reconcile.repair.rebuild_ledger import LedgerRebuild
from reconcile.repair.repairer import Repairer, RepairParts
from reconcile.repair.run import ReconcileRun, RunParts
from reconcile.snapshot.collector import LookParts, SnapshotCollector
from reconcile.snapshot.oldest_required import OldestRequired, oldest_required
from reconcile.snapshot.retention_floor import RetentionFloorReader
from reconcile.snapshot.topic_snapshot import UnreferencedObject
from reconcile.vacuum.clean import CleanParts, CleanRun
from reconcile.vacuum.replaced_archives import ReplacedArchives
from reconcile.vacuum.tables import TableFolders
from reconcile.vacuum.unfinished_uploads import stray_uploads


class Upkeep(ABC):
    """What an application does for what it has archived."""

    settings: Settings
    cluster: ClusterIdentity
    objects: ObjectStore
    lease: Lease
    control_log: Log
    intake_log: Log
    _clock: Clock
    _ids: IdSource
    _owner: str
    _lasting: bool
    _log_checked: bool
    _logs: MetadataStore

    @property
    @abstractmethod
    def sequencer(self) -> Sequencer:
        """The way into the intake log."""

    @property
    @abstractmethod
    def leader(self) -> Leader:
        """The way into the control log."""

    @property
    @abstractmethod
    def leadership(self) -> Leadership:
        """The right to archive, to clean and to repair."""

    @abstractmethod
    def intake(self) -> Backlog:
        """What the intake log says, read to its tail, shelves included."""

    @abstractmethod
    def ledger(self) -> LedgerFold:
        """The fold of the control log, read to its tail."""

    @abstractmethod
    def tables(self, catalog: str) -> Tables:
        """A configured catalog."""

    @abstractmethod
    def archiving(self, progress: Callable[[str], None]) -> ArchiveRun:
        """The driver of archiving rounds."""

    @abstractmethod
    def end_overdue(self) -> None:
        """Abort the transactions whose time is over."""

    @abstractmethod
    def _ready_to_append(self) -> None:
        """Refuse to go on with a log that lost entries."""

    @abstractmethod
    def _check_log_is_newest(self) -> None:
        """The same, without writing anything."""

    @abstractmethod
    def _spark_rows(self) -> RowReader:
        """Reads rows on this process's Spark session, which it starts when it is first asked to."""

    @abstractmethod
    def _refine_options(self) -> RefineOptions:
        """How archives are written."""

    @abstractmethod
    def _commit_limits(self) -> CommitLimits:
        """The bounds of a commit."""

    def _new_leader(self) -> Leader:
        """A view of the control log of its own."""
        return Leader(
            self.control_log,
            self._ids,
            self._clock,
            self._owner,
            self.settings.log,
            LedgerCheckpoints(self.objects),
        )

    @cached_property
    def ledger_checkpointer(self) -> LedgerCheckpointer:
        """Makes checkpoints of the control log and trims it, up to what the publisher of events has still to
        read.
        """
        checkpoints = LedgerCheckpoints(self.objects)
        return LedgerCheckpointer(
            self.control_log, checkpoints, self.leader, self.settings.log, self.unpublished_from
        )

    def _own_reader(self) -> Callable[[], LedgerFold]:
        """Reads the control log to its tail when called, into a fold that nobody else moves on."""
        # A daemon's rounds go on meanwhile, and its watch reads on; what compares states folds its own.
        reader = self._new_leader() if self._lasting else self.leader

        def ledger() -> LedgerFold:
            reader.refresh()
            return reader.fold

        return ledger

    def audit(
        self, scope: Scope | None, *, deep: bool = False, progress: Callable[[str], None] = lambda _: None
    ) -> dict[str, object]:
        """The document of `archiver audit`; raises `NotFound` for an unknown topic or partition. `progress`
        takes lines of a `deep` one.
        """
        rows = RowProof(self.objects, self.cluster.cluster_id, self._spark_rows(), progress) if deep else None
        check = Audit(
            self.objects, self.cluster.cluster_id, self.tables, self.settings.topics, self._clock, rows
        )
        document = check.run(self._own_reader(), self.intake, scope)
        return document if scope is not None else {**document, "undecoded": self.undecoded_counts()}

    def undecoded_counts(self) -> list[dict[str, object]]:
        """How many keys and values of each table could not be decoded, by manifests. Tables without a schema,
        and those that cannot be read now, are left out. Raises what reading the logs raises.
        """
        intake, ledger, found = self.intake(), self.ledger(), list[dict[str, object]]()
        for topic in self.settings.topics:
            state = intake.fold.topics_by_name.get(topic.name)
            if (
                state is None
                or topic.archive.kind != "iceberg"
                or (topic.key is None and topic.value is None)
            ):
                continue
            try:
                known = ledger.topic(state.topic_id)
                tables, view = topic_table(
                    topic, state, known, self.cluster.cluster_id, self.objects, self.tables
                )
                count = 0 if view is None or view.snapshot_id is None else undecoded_count(tables, view)
            except ArchiverError:
                continue  # the audit says what is wrong with it
            found.append({"topic": topic.name, "records": count})
        return found

    @cached_property
    def _lines(self) -> RetentionFloorReader:
        return RetentionFloorReader(self.objects, self.cluster.cluster_id, self.tables, self.settings.topics)

    def _folders(self) -> TableFolders:
        return TableFolders(
            self.objects,
            self.cluster.cluster_id,
            self.leader,
            self.tables,
            lambda tables: Committer(tables, self.leader, self._commit_limits(), self._clock),
            self.settings.topics,
            self._ids,
        )

    def cleaning(self, progress: Callable[[str], None], *, dry_run: bool = False) -> CleanRun:
        """The vacuum; `progress` takes a line at a time. Raises as `writer`: with a log that lost entries,
        live files look like strays.
        """
        self._log_checked = False
        if dry_run:
            self._check_log_is_newest()
        else:
            self._ready_to_append()
            self.end_overdue()
        return CleanRun(
            CleanParts(
                objects=self.objects,
                sequencer=self.sequencer,
                intake=self.intake,
                leadership=self.leadership,
                lines=self._lines.read,
                ledger=self._own_reader(),
                superseded=lambda: [
                    *superseded(self.objects),
                    *LedgerCheckpoints(self.objects).superseded(self.control_log),
                ],
                replaced=ReplacedArchives(self.tables, self.settings.topics).keys,
                compact=self._compact(progress),
                folders=self._folders(),
                settings=self.settings.cleanup,
                clock=self._clock,
                progress=progress,
            )
        )

    def _compact(self, progress: Callable[[str], None]) -> Callable[[bool], list[TopicCompaction]]:
        """Merges small archives as a part of cleaning."""
        rewriting = RewriteParts(
            self.objects, self.leader, self._commit_limits(), self._clock, self._ids, progress
        )
        compaction = Compaction(
            CompactParts(
                rewriting=rewriting,
                intake=self.intake,
                cluster_id=self.cluster.cluster_id,
                leadership=self.leadership,
                tables=self.tables,
                topics=self.settings.topics,
                settings=self.settings.cleanup,
                options=self._refine_options(),
                entry_bytes_max=self.settings.log.entry_bytes_max,
            )
        )
        return lambda dry_run: compaction.run(dry_run=dry_run)

    def reconciling(self, progress: Callable[[str], None], *, dry_run: bool = False) -> ReconcileRun:
        """The reconciler; `progress` takes a line at a time. Raises as `cleaning`: with a log that lost
        entries, whatever came after them looks foreign.
        """
        if dry_run:
            self._check_log_is_newest()
        else:
            self._log_checked = False
            self._ready_to_append()
        settings, ledger = self.settings, self._own_reader()
        looker = SnapshotCollector(
            LookParts(
                objects=self.objects,
                cluster_id=self.cluster.cluster_id,
                tables=self.tables,
                topics=settings.topics,
                clock=self._clock,
                holder=self.lease.holder,
                owner=self._owner,
                grace_s=settings.cleanup.orphan_age,
                commit_s=settings.archive.commit_timeout,
                silence_s=settings.daemon.silence_max,
                skew_max_s=settings.intake.clock_skew_max,
                uploads=self._uploads,
            )
        )
        repairer = Repairer(
            RepairParts(
                objects=self.objects,
                cluster_id=self.cluster.cluster_id,
                tables=self.tables,
                topics=settings.topics,
                leadership=self.leadership,
                intake=self.intake,
                settle=lambda topic: self._settled(topic, progress),
                ids=self._ids,
                progress=progress,
            )
        )
        return ReconcileRun(RunParts(looker, repairer, ledger, self.intake, self._clock))

    def rebuild(self, topic: str | None, progress: Callable[[str], None]) -> RebuildReport:
        """Make tables anew that the catalog has lost: with the ledger, or, where both logs are empty, from
        the bucket alone. Raises `LeaseHeld` beside a daemon, and as `cleaning`: an older ledger counts other
        archives.
        """
        alone = self.intake_log.tail() == 0 and self.control_log.tail() == 0
        if not alone:
            self._log_checked = False
            self._ready_to_append()
        parts = RebuildParts(
            objects=self.objects,
            cluster_id=self.cluster.cluster_id,
            tables=self.tables,
            topics=self.settings.topics,
            leadership=self.leadership,
            describe=lambda found: describe_archive(self.objects, found, self.cluster.cluster_id),
            limits=self._commit_limits(),
            ids=self._ids,
            clock=self._clock,
            progress=progress,
        )
        return BucketRebuild(parts).run(topic) if alone else LedgerRebuild(parts, self.intake()).run(topic)

    def publisher(
        self, settings: ControlTopicSettings, connect: Callable[[], Destination], stopping: Callable[[], bool]
    ) -> EventPublisher:
        """Publishes the control events to the topic that `connect` connects to. Close it before the
        application.
        """
        lease, checkpoints = self._logs.lease(PUBLISH, self._owner), LedgerCheckpoints(self.objects)
        logs = self.control_log, checkpoints, self._positions()
        return EventPublisher(settings, self.cluster.cluster_id, *logs, lease, connect, stopping)

    def unpublished_from(self) -> int | None:
        """The first entry of the control log that the publisher needs; None if nothing is published. Raises
        what log and store raise.
        """
        if self.settings.events.kafka is None:
            return None
        position = self._positions().newest()
        return (
            0 if position is None else needed_for(position.mark.next_index, LedgerCheckpoints(self.objects))
        )

    def _positions(self) -> Positions:
        return Positions(self._published_log, self._owner, self.settings.log, self._clock, self._ids)

    @cached_property
    def _published_log(self) -> Log:
        return self._logs.log(LOG)

    def _settled(self, topic: str, progress: Callable[[str], None]) -> str | None:
        """A round of archiving for one topic that plans nothing: the table is looked at, and what waits is
        committed.
        """
        report = self.archiving(progress).run((topic, frozenset())).of(topic)
        return report.why or report.state if report.state in ("halted", "deferred") else None

    def _uploads(self) -> list[UnreferencedObject]:
        """What processes that died left of files on their way: in the folder for them, or as uploads in parts
        of a bucket.
        """
        folder = spool_folder(self.settings.data.uri)
        if folder is None:
            return stray_uploads(
                self.objects,
                self._clock.now_us(),
                self.settings.cleanup.orphan_age,
                self.settings.cleanup.deletes_max,
            )
        why = "the process that wrote it is gone, and its upload never came to its end"
        return [UnreferencedObject(str(path), size, why) for path, size in abandoned_files(folder)]

    def pinned(self) -> OldestRequired | None:
        """What holds the oldest intake file that is needed, as of now; None if none is needed."""
        intake = self.intake()
        return oldest_required(intake, self._lines.read(intake, self.ledger()))
