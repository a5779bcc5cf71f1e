"""Maintenance of one deployment: audit, reconciliation, cleaning with compaction, and rebuild of lost
tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from archiver.app.archiving import Archiving
from archiver.app.deployment import Deployment
from archiver.app.intake import Intake
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.objects.open import spool_folder
from archiver.objects.spool import abandoned_files
from archiver.publish.scope import Scope
from archiver.refine.archive_file import describe_archive
from archiver.rewrite.commit import TableRewriter
from archiver.rewrite.compact import Compaction
from archiver.rewrite.undecoded import topic_table, undecoded_count
from archiver.runtime.errors import ArchiverError
from intake.log.checkpoint import superseded
from intake.topic_templates import compose
from reconcile.audit.deep import RowProof
from reconcile.audit.report import Audit
from reconcile.repair.rebuild import BucketRebuild, LedgerRebuild, RebuildParts, RebuildReport
from reconcile.repair.repairer import Repairer
from reconcile.repair.run import ReconcileRun
from reconcile.snapshot.collector import SnapshotCollector
from reconcile.snapshot.topic_snapshot import UnreferencedObject
from reconcile.vacuum.clean import CleanRun, ReplacedArchives, stray_uploads
from reconcile.vacuum.tables import TableFolders

Progress = Callable[[str], None]
"""Takes one line about work in progress."""


class Maintenance:
    """Creates the drivers that check, repair and clean what was archived."""

    def __init__(self, deployment: Deployment, intake: Intake, archiving: Archiving) -> None:
        self._deployment = deployment
        self._intake = intake
        self._archiving = archiving

    def audit(
        self, scope: Scope | None, *, deep: bool = False, progress: Progress = lambda _: None
    ) -> dict[str, object]:
        """Document of `archiver audit`; raises `NotFound` for an unknown topic or partition.

        `progress` takes lines of a `deep` audit.
        """
        at = self._deployment
        # A fast audit reads manifests only, and starts no Spark.
        rows = None
        if deep:
            rows = RowProof(at.objects, at.cluster.cluster_id, self._archiving.spark_rows(), progress)
        check = Audit(at.objects, at.cluster.cluster_id, at.tables, at.settings.topics, at.clock, rows)
        document = check.run(at.ledger_reader(), at.backlog, scope)
        # Counting reads the manifests of all tables, so the audit of one topic leaves it out.
        return document if scope is not None else {**document, "undecoded": self.undecoded_counts()}

    def undecoded_counts(self) -> list[dict[str, object]]:
        """Number of undecoded keys and values of each table, by its manifests.

        Leaves out tables without a schema and tables that cannot be read now. Raises what reading the logs
        raises.
        """
        at = self._deployment
        backlog, ledger, found = at.backlog(), at.ledger(), list[dict[str, object]]()
        for topic in at.settings.topics:
            state = backlog.fold.topics_by_name.get(topic.name)
            if (
                state is None
                or topic.archive.kind != "iceberg"
                or (topic.key is None and topic.value is None)
            ):
                continue
            try:
                known = ledger.topic(state.topic_id)
                tables, view = topic_table(topic, state, known, at.cluster.cluster_id, at.objects, at.tables)
                count = 0 if view is None or view.snapshot_id is None else undecoded_count(tables, view)
            except ArchiverError:
                # The audit itself reports what is wrong with this table.
                continue
            found.append({"topic": topic.name, "records": count})
        return found

    def cleaning(self, progress: Progress, *, dry_run: bool = False) -> CleanRun:
        """Driver of the vacuum; `progress` takes a line at a time.

        Raises as `Deployment.ready_to_append`: with a log that lost entries, live files look unreferenced.
        """
        at = self._deployment
        if dry_run:
            # Without the cluster id and the probe of the store, which would write.
            at.check_log_is_newest()
        else:
            # Deleting is final, so the log is checked again: it may have been replaced since the start.
            at.ready_to_append(recheck=True)
            # An open transaction holds archiving back, and with it the deletion of its intake.
            self._intake.end_overdue()
        compaction = self._compaction(progress)
        return CleanRun(
            objects=at.objects,
            sequencer=at.sequencer,
            intake=at.backlog,
            leadership=at.leadership,
            lines=at.retention_floors.read,
            # The state must not move while files are selected.
            ledger=at.ledger_reader(),
            superseded=lambda: [
                *superseded(at.objects),
                *LedgerCheckpoints(at.objects).superseded(at.control_log),
            ],
            replaced=ReplacedArchives(at.tables, at.settings.topics).keys,
            compact=lambda dry_run: compaction.run(dry_run=dry_run),
            folders=TableFolders(
                at.objects,
                at.cluster.cluster_id,
                at.leader,
                at.tables,
                at.committer,
                at.settings.topics,
                at.ids,
            ),
            settings=at.settings.cleanup,
            clock=at.clock,
            progress=progress,
        )

    def _compaction(self, progress: Progress) -> Compaction:
        at = self._deployment
        return Compaction(
            objects=at.objects,
            intake=at.backlog,
            cluster_id=at.cluster.cluster_id,
            leadership=at.leadership,
            tables=at.tables,
            topics=at.settings.topics,
            settings=at.settings.cleanup,
            options=at.refine_options(),
            entry_bytes_max=at.settings.log.entry_bytes_max,
            clock=at.clock,
            rewriter=partial(
                TableRewriter, at.objects, at.leader, at.commit_limits(), at.clock, at.ids, progress
            ),
        )

    def reconciling(self, progress: Progress, *, dry_run: bool = False) -> ReconcileRun:
        """Driver of the reconciler; `progress` takes a line at a time.

        Raises as `Deployment.ready_to_append`: with a log that lost entries, later changes look external.
        """
        at = self._deployment
        if dry_run:
            at.check_log_is_newest()
        else:
            at.ready_to_append(recheck=True)
        settings = at.settings
        collector = SnapshotCollector(
            objects=at.objects,
            cluster_id=at.cluster.cluster_id,
            tables=at.tables,
            topics=settings.topics,
            clock=at.clock,
            holder=at.lease.holder,
            owner=at.owner,
            # A younger object may belong to a flush or a round that still runs.
            grace_s=settings.cleanup.orphan_age,
            commit_s=settings.archive.commit_timeout,
            silence_s=settings.daemon.silence_max,
            skew_max_s=settings.intake.clock_skew_max,
            uploads=self._unfinished_uploads,
        )
        repairer = Repairer(
            objects=at.objects,
            cluster_id=at.cluster.cluster_id,
            tables=at.tables,
            topics=settings.topics,
            leadership=at.leadership,
            intake=at.backlog,
            # Repairs use the existing writers: a pending archive is committed by an ordinary round.
            settle_topic=lambda topic: self._commit_pending(topic, progress),
            ids=at.ids,
            progress=progress,
        )
        return ReconcileRun(collector, repairer, at.ledger_reader(), at.backlog, at.clock)

    def _commit_pending(self, topic: str, progress: Progress) -> str | None:
        """Commit the written archives of one topic by a round that plans nothing; why it could not, or
        None.
        """
        # No partition in the scope: the round resolves pending archives and plans nothing.
        report = self._archiving.round(progress).run((topic, frozenset())).of(topic)
        return report.why or report.state if report.state in ("halted", "deferred") else None

    def _unfinished_uploads(self) -> list[UnreferencedObject]:
        """Partial files of dead processes: in the spool folder, or multipart uploads of a bucket."""
        at = self._deployment
        # A local store writes into its spool folder first; a bucket has multipart uploads instead.
        folder = spool_folder(at.settings.data.uri)
        if folder is None:
            cleanup = at.settings.cleanup
            return stray_uploads(at.objects, at.clock.now_us(), cleanup.orphan_age, cleanup.deletes_max)
        why = "the process that wrote it is gone, and its upload never came to its end"
        return [UnreferencedObject(str(path), size, why) for path, size in abandoned_files(folder)]

    def rebuild(self, topic: str | None, progress: Progress) -> RebuildReport:
        """Recreate tables that the catalog has lost: from the ledger, or from the bucket if both logs are
        empty.

        Raises `LeaseHeld` while a daemon leads, and as `cleaning`: an older ledger counts other archives.
        """
        at = self._deployment
        # With both logs lost, only the footers of the archives say what they hold.
        bucket_only = at.intake_log.tail() == 0 and at.control_log.tail() == 0
        if not bucket_only:
            # The table is built from what the ledger counts, so the ledger must be the newest.
            at.ready_to_append(recheck=True)
        parts = RebuildParts(
            objects=at.objects,
            cluster_id=at.cluster.cluster_id,
            tables=at.tables,
            topics=at.settings.topics,
            topics_of=lambda states: compose(at.configured, states).settings.topics,
            leadership=at.leadership,
            describe=lambda found: describe_archive(at.objects, found, at.cluster.cluster_id),
            limits=at.commit_limits(),
            ids=at.ids,
            clock=at.clock,
            progress=progress,
        )
        return (
            BucketRebuild(parts).run(topic) if bucket_only else LedgerRebuild(parts, at.backlog()).run(topic)
        )
