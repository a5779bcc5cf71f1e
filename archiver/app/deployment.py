"""Opened stores and logs of one deployment, and the state that they hold.

Each component of the application gets this object. An adapter is connected, or even imported, at its first
use: a command that only reads starts no Spark and loads no catalog.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from archiver.catalog.configured import ConfiguredCatalogs
from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import Settings
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.log.lease import Lease
from archiver.log.open import CHECKPOINT, LEADER, open_metadata
from archiver.log.store import Log
from archiver.objects.cluster import ClusterIdentity, ensure_cluster, read_cluster
from archiver.objects.conditional_put_check import check_conditional_put
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ConfigInvalid, NotFound, no_topic, not_created
from archiver.runtime.ids import IdSource, SystemIds, TopicId
from intake.log.backlog import Backlog
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer, check_cluster
from intake.topic_templates import Templated, compose

if TYPE_CHECKING:
    from archiver.catalog.commit import Committer
    from archiver.catalog.swap_retry import CommitLimits
    from archiver.refine.task import RefineOptions
    from archiver.registry.fetch import SchemaFetcher
    from archiver.schema.evolution.state import TopicSchema
    from reconcile.snapshot.oldest_required import OldestRequired
    from reconcile.snapshot.retention_floor import RetentionFloorReader


_log = logging.getLogger(__name__)


class Deployment:
    """Settings, stores, logs, catalogs and leadership of one cluster."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        ids: IdSource | None = None,
        *,
        lasting: bool = False,
        holding: bool = True,
    ) -> None:
        """`lasting` is for a daemon. It keeps the leadership between turns, and proves only once that the log
        is the newest. It never creates a catalog in place of a missing one.

        Without `holding`, other processes may lead between two turns. That is for a daemon with only one of
        the roles `archive` and `reconcile`.
        """
        self.configured = settings
        """The settings of the configuration file, without topics from templates."""
        self.settings = settings
        """The settings in force: also those of topics of the log that match a template."""
        self.refused_topics: Mapping[str, str] = {}
        """By topic of the log: why it cannot have the settings of the template that matches it."""
        self.ignored_configs: Mapping[str, str] = {}
        """By topic: why the configs that clients set are not applied."""
        self._composing = threading.Lock()
        self._composed_from: tuple[Settings, Mapping[str, TopicState]] | None = None
        self._templated: Templated = {}
        self.environ = environ
        self.spark_starting: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Entered while a Spark session starts, with the work as text; a command shows it."""
        self.lasting = lasting
        self.clock = clock or SystemClock()
        self.ids = ids or SystemIds()
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        """Name of this process in leases."""
        self._holding = lasting and holding
        place = StorePlace.of(settings.data)
        self.logs = open_metadata(settings.metadata, settings.log.entry_bytes_max, self.clock, self.ids)
        try:
            self.intake_log: Log = self.logs.log("intake")
            self.control_log: Log = self.logs.log("control")
            self.cluster: ClusterIdentity = self._identity(open_store(place))
            self.objects: ObjectStore = open_store(place, self.cluster.cluster_id)
            # Log and folder name each other: either may be replaced by that of another deployment (0008).
            check_cluster(self.backlog().fold, self.cluster.cluster_id)
        # Also for an interrupt: the caller gets no object that it could close.
        except BaseException:
            self.logs.close()
            raise
        self.lease: Lease = self.logs.lease(LEADER, self.owner)
        # A reload replaces the settings. A command may create a catalog; a daemon asks the ledger first.
        self.catalogs = ConfiguredCatalogs(
            lambda: self.settings, self.ids, self._knows_tables_of if lasting else None
        )
        self._log_checked = False

    def _identity(self, objects: ObjectStore) -> ClusterIdentity:
        """Identity of the data folder; creates one only while both logs are empty."""
        new = read_cluster(objects) is None
        # Entries prove that the folder existed. A new identity would hide that it is missing.
        if new and self.intake_log.tail() + self.control_log.tail() > 0:
            raise ConfigInvalid(
                f"the metadata store holds records of a data folder, but {self.settings.data.uri} has "
                "no identity (cluster.json); "
                "bring that folder back or correct data.uri"
            )
        if new:
            # Before the first object: a store that overwrites silently must not become a data folder.
            check_conditional_put(objects)
        return ensure_cluster(objects, self.settings.cluster, self.ids, self.clock)

    def close(self) -> None:
        """Close catalogs and logs."""
        self.catalogs.close()
        self.logs.close()

    def warm(self) -> None:
        """Create in this thread the objects that several threads of a daemon share."""
        # `cached_property` has no lock: two threads could create two of them.
        _ = self.sequencer, self.checkpointer, self.leadership, self._reader, self.fetch_schema

    # intake log

    @cached_property
    def sequencer(self) -> Sequencer:
        """Fold of the intake log, and the only way to append to it."""
        return Sequencer(
            self.intake_log, self.ids, self.clock, self.settings.log, CheckpointStore(self.objects)
        )

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """Creates checkpoints of the intake log and trims it."""
        # Every writer can make checkpoints, and one at a time is enough.
        lease = self.logs.lease(CHECKPOINT, self.owner)
        return Checkpointer(
            self.intake_log, CheckpointStore(self.objects), self.sequencer, self.settings.log, lease
        )

    def backlog(self) -> Backlog:
        """State of the intake log, read to its tail, history files included."""
        backlog = self.sequencer.backlog()
        self.checkpointer.learn()
        self.update_topics()
        return backlog

    def update_topics(self) -> None:
        """Give each topic that the log has by now the settings of the template that matches it.

        Sends no request. It follows each read of the log, because other processes create and delete topics.
        """
        with self._composing:
            topics = self.sequencer.fold.topics_by_name
            if self._composed_from != (self.configured, topics):
                self._compose(self.configured, topics)

    def template_refused(self, planned: TopicState) -> str | None:
        """Why a new topic cannot have the settings of the template that matches it; None if it can."""
        with self._composing:
            topics = self.sequencer.fold.topics_by_name.values()
            composed = compose(self.configured, [*topics, planned], self._templated)
        return composed.refused.get(planned.name)

    def _compose(self, configured: Settings, topics: Mapping[str, TopicState]) -> None:
        """Use the settings of these topics; the caller holds the lock."""
        same = self._composed_from is not None and self._composed_from[0] is configured
        composed = compose(configured, topics.values(), self._templated if same else {})
        self._templated = composed.templated
        for name, why in composed.refused.items():
            if self.refused_topics.get(name) != why:
                _log.warning("topic %s is not archived: %s", name, why)
        for name, why in composed.ignored.items():
            if self.ignored_configs.get(name) != why:
                _log.warning("the configs of topic %s are not applied: %s", name, why)
        self.refused_topics, self.ignored_configs = composed.refused, composed.ignored
        self._composed_from = configured, dict(topics)
        if composed.settings.topics != self.settings.topics:
            self._use(composed.settings)

    def _use(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        # The cached reader has the old list of topics.
        self.__dict__.pop("retention_floors", None)

    def topic(self, name: str) -> TopicState:
        """State of an existing topic; raises `NotFound`."""
        state = self.backlog().topics_by_name.get(name)
        if state is None:
            # A deleted name is reported as such: its archives and table may still be there.
            gone = self.sequencer.fold.deleted_named(name)
            configured = self.settings.topic(name)
            if gone is None and configured is not None:
                raise not_created(name, mirrored=configured.mirrored)
            if gone is None:
                raise no_topic(name, self.sequencer.fold.topics_by_name)
            left = " and ".join(self.ledger().topic(gone.topic_id).remains())
            raise NotFound(f"topic {name} was deleted" + (f"; its {left} are still there" if left else ""))
        return state

    def ready_to_append(self, *, recheck: bool = False) -> None:
        """Check that no log lost entries before anything is appended.

        A daemon checks once; `recheck` repeats the check. Raises `Halt` for lost entries and `ConfigInvalid`
        for the log of another data folder.
        """
        if recheck or not (self.lasting and self._log_checked):
            # Until the check succeeds, the next call must repeat it.
            self._log_checked = False
            check_conditional_put(self.objects)
            self.check_log_is_newest()
            self._log_checked = True
        # The first append writes the cluster id into the log; later calls change nothing.
        self.sequencer.bind_cluster(self.cluster.cluster_id)
        self.update_topics()

    def check_log_is_newest(self) -> None:
        """Check that no log lost entries, without a write; raises `Halt`."""
        # A failed check, also that of a dry run, makes the next append check again.
        self._log_checked = False
        from archiver.publish.log_rollback_check import check_log_is_newest

        check_log_is_newest(
            self.objects, self.intake_log, self.control_log, self.sequencer.refresh, self.clock.now_us()
        )

    # control log

    @cached_property
    def leader(self) -> Leader:
        """Fold of the control log, and the only way to append to it; leads only after `take_over`."""
        return self.ledger_view()

    def ledger_view(self) -> Leader:
        """A separate fold of the control log, which only its caller moves."""
        checkpoints = LedgerCheckpoints(self.objects)
        return Leader(self.control_log, self.ids, self.clock, self.owner, self.settings.log, checkpoints)

    @cached_property
    def leadership(self) -> Leadership:
        """Right to archive, clean and repair; a daemon keeps it between turns."""
        daemon = self.settings.daemon
        return Leadership(
            self.leader,
            self.lease,
            lasting=self.lasting,
            holding=self._holding,
            wait_s=daemon.turn_timeout,
            confirm_max_s=daemon.confirm_max,
            clock=self.clock,
        )

    @cached_property
    def _reader(self) -> Leader:
        # A daemon's round moves the leader's fold while other threads read, so readers get a fold of their
        # own.
        return self.ledger_view() if self.lasting else self.leader

    def ledger(self) -> LedgerFold:
        """Fold of the control log, read to its tail."""
        self._reader.refresh()
        return self._reader.fold

    def ledger_reader(self) -> Callable[[], LedgerFold]:
        """Function that reads the control log to its tail; nothing else moves the fold that it returns."""
        # A fold of its own for each comparison: rounds and the watch move the shared ones.
        reader = self.ledger_view() if self.lasting else self.leader

        def ledger() -> LedgerFold:
            reader.refresh()
            return reader.fold

        return ledger

    def schema(self, topic_id: TopicId, version: int) -> TopicSchema:
        """Column layout that the ledger records; raises `NotFound`."""
        from archiver.schema.evolution.state import TopicSchema

        entry = self.ledger().topic(topic_id).schemas.get(version)
        if entry is None:
            raise NotFound(
                f"the ledger has no schema version {version} of topic id {topic_id}; the control log "
                "is older than the archives"
            )
        return TopicSchema.from_entry(entry)

    @cached_property
    def fetch_schema(self) -> SchemaFetcher:
        """Fetches the newest schema of a topic's keys or values from the source that its settings name."""
        from archiver.registry.fetch import SchemaFetcher

        return SchemaFetcher(self.settings.schema_registry, self.clock)

    # tables

    def tables(self, catalog: str) -> Tables:
        """Adapter of a configured catalog."""
        return self.catalogs.get(catalog)

    def _knows_tables_of(self, catalog: str) -> bool:
        """Whether the ledger records a table of that catalog."""
        topics, ledger = self.backlog().topics_by_name, self.ledger()
        names = (
            topic.name
            for topic in self.settings.topics
            if topic.archive.catalog == catalog and topic.name in topics
        )
        # A recorded table proves that the catalog existed, so an absent one is lost and not new.
        return any(ledger.topic(topics[name].topic_id).table_uuid is not None for name in names)

    def table(self, topic: str) -> TableView | None:
        """Table of a topic as the catalog has it; None if it does not exist or the topic has no table."""
        settings = self.settings.topic(topic)
        if settings is None or settings.archive.catalog is None or settings.archive.table is None:
            return None
        return self.tables(settings.archive.catalog).load(parse_identifier(settings.archive.table))

    def live_files(self, catalog: str, view: TableView) -> list[LiveFile]:
        """Data files of the current snapshot of a table that `table` returned."""
        return list(self.tables(catalog).live_files(view))

    def committer(self, tables: Tables) -> Committer:
        """Commits archives to tables of one catalog."""
        from archiver.catalog.commit import Committer

        return Committer(tables, self.leader, self.commit_limits(), self.clock)

    def commit_limits(self) -> CommitLimits:
        """Limits of one commit, from the settings."""
        from archiver.catalog.swap_retry import CommitLimits

        archive = self.settings.archive
        return CommitLimits(
            attempts_max=archive.commit_attempts_max,
            timeout_s=archive.commit_timeout,
            snapshots_max=archive.snapshots_max,
            snapshots_age_s=archive.snapshots_age,
            merge_every=archive.merge_every,
        )

    def refine_options(self) -> RefineOptions:
        """Options for writing archives, from the settings."""
        from archiver.refine.task import RefineOptions

        # Workers are other processes, so the failpoints travel with the task.
        armed = self.environ.get(failpoints.VARIABLE, "") if self.settings.testing.failpoints else ""
        archive = self.settings.archive
        return RefineOptions(
            zstd_level=archive.zstd_level,
            open_writers_max=archive.open_writers_max,
            # Reading ahead costs a task a few percent, which only the latency of a bucket repays.
            reads_max=archive.reads_of(is_bucket=StorePlace.of(self.settings.data).is_s3),
            uploads_max=archive.uploads_max,
            failpoints=armed,
        )

    # retention

    @cached_property
    def retention_floors(self) -> RetentionFloorReader:
        """Reads how far retained snapshots contain the intake of each topic."""
        from reconcile.snapshot.retention_floor import RetentionFloorReader

        return RetentionFloorReader(self.objects, self.cluster.cluster_id, self.tables, self.settings.topics)

    def oldest_required(self) -> OldestRequired | None:
        """Oldest intake file that is still required, and why; None if no file is required."""
        from reconcile.snapshot.oldest_required import oldest_required

        backlog = self.backlog()
        return oldest_required(backlog, self.retention_floors.read(backlog, self.ledger()))
