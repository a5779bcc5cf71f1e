"""The composition root: from settings to an application.

The one place that knows which adapter stands behind which Protocol. Nothing is connected, or even imported, before it is asked for: a
command that only reads starts no Spark and loads no catalog. Close the application after use.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Self

from archiver import failpoints
from archiver.catalog.commit import CommitLimits, Committer
from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.clock import Clock, SystemClock
from archiver.errors import ConfigInvalid, NotFound
from archiver.ids import IdSource, SystemIds, TopicId
from archiver.jobs.publish import Publisher
from archiver.jobs.refined import RefineOptions
from archiver.jobs.restored import check_log_is_newest
from archiver.jobs.run import ArchiveRun, Parts, Scope
from archiver.jobs.topic_setup import TopicSetup
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.lease import FileLease, Lease
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.objects.cluster import ClusterIdentity, ensure_cluster, read_cluster
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.schema.state import TopicSchema
from archiver.settings import Settings, TopicSettings
from archiver.stream.stream import RecordStream
from archiver.telemetry import setup_logging
from intake.accept_clock import AcceptClock
from intake.backlog import Backlog
from intake.checkpoint_store import CheckpointStore, superseded
from intake.checkpointer import Checkpointer, CheckpointLoop
from intake.fold import TopicState
from intake.sequencer import Sequencer, check_cluster
from intake.writer import IntakeWriter
from reconcile.audit import Audit
from reconcile.clean import CleanParts, CleanRun
from reconcile.lines import LineReader
from reconcile.pin import Pin, oldest_pin

if TYPE_CHECKING:
    from archiver.spark_session import SparkSessions

_log = logging.getLogger(__name__)


class Application:
    """Everything a command can use, made when first asked for."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], clock: Clock | None = None, ids: IdSource | None = None) -> None:
        assert settings.metadata.sqlite is not None, "settings demand a metadata store"
        self.settings = settings
        self._environ = environ
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self.objects: ObjectStore = open_store(settings.data.uri)
        sqlite = settings.metadata.sqlite
        self._logs = SqliteLogStore(sqlite.path, sqlite.busy_timeout, settings.log.entry_bytes_max)
        try:
            self.intake_log: Log = self._logs.log("intake")
            self.control_log: Log = self._logs.log("control")
            self.cluster: ClusterIdentity = self._identity()
            check_cluster(self.intake().fold, self.cluster.cluster_id)
        except BaseException:
            self._logs.close()
            raise
        self.lease: Lease = FileLease(sqlite.path.with_name(sqlite.path.name + ".lease"), self._owner)
        self._catalogs: dict[str, Tables] = {}

    def _identity(self) -> ClusterIdentity:
        """Of the data folder, which gets one only while the logs are empty: a folder that vanished is not to be replaced by a new one."""
        if read_cluster(self.objects) is None and self.intake_log.tail() + self.control_log.tail() > 0:
            raise ConfigInvalid(
                f"the metadata store holds records of a data folder, but {self.settings.data.uri} has no identity (cluster.json); "
                "bring that folder back or correct data.uri"
            )
        return ensure_cluster(self.objects, self.settings.cluster, self._ids, self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what was opened. Writers are closed by whoever asked for them."""
        if "_checkpoints" in self.__dict__:
            self._checkpoints.close()
        if "_sessions" in self.__dict__:
            self._sessions.close()
        for tables in self._catalogs.values():
            tables.close()
        self._logs.close()

    # what the logs say

    @cached_property
    def sequencer(self) -> Sequencer:
        """The way into the intake log."""
        return Sequencer(self.intake_log, self._ids, self._clock, self.settings.log, CheckpointStore(self.objects))

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """Makes checkpoints of the intake log and trims it."""
        assert self.settings.metadata.sqlite is not None, "settings demand a metadata store"
        path = self.settings.metadata.sqlite.path
        lease = FileLease(path.with_name(path.name + ".checkpoint"), self._owner)
        return Checkpointer(self.intake_log, CheckpointStore(self.objects), self.sequencer, self.settings.log, lease)

    def intake(self) -> Backlog:
        """What the intake log says, read to its tail, shelves included."""
        backlog = self.sequencer.backlog()
        self.checkpointer.learn()
        return backlog

    @cached_property
    def _checkpoints(self) -> CheckpointLoop:
        return CheckpointLoop(self.checkpointer, beside=self._end_overdue)

    @cached_property
    def _accept_clock(self) -> AcceptClock:
        """This process's view of the time, distrusted when it runs ahead."""
        return AcceptClock(self._clock, self.settings.intake.clock_skew_max, self.settings.intake.clock_settle)

    def _end_overdue(self) -> None:
        """Abort the transactions whose time is over; `RetryLater` while the clock cannot be trusted with that."""
        now_us = self._accept_clock.written_us(self.sequencer.fold.newest_us)
        for ended in self.sequencer.end_overdue(now_us):
            _log.warning("transaction %s of producer %d was open for too long and is aborted", ended.transactional_id, ended.producer_id)

    @cached_property
    def leader(self) -> Leader:
        """The way into the control log; leads only after `take_over`."""
        return Leader(self.control_log, self._ids, self._clock, self._owner, self.settings.log)

    def ledger(self) -> LedgerFold:
        """The fold of the control log, read to its tail."""
        self.leader.refresh()
        return self.leader.fold

    def topic(self, name: str) -> TopicState:
        """A topic that exists; raises `NotFound`."""
        state = self.intake().topics_by_name.get(name)
        if state is None:
            known = ", ".join(sorted(self.sequencer.fold.topics_by_name)) or "there are none"
            raise NotFound(f"there is no topic {name}; known topics: {known}")
        return state

    def schema(self, topic_id: TopicId, version: int) -> TopicSchema:
        """A column layout that the ledger records; raises `NotFound`."""
        entry = self.ledger().topic(topic_id).schemas.get(version)
        if entry is None:
            raise NotFound(f"the ledger has no schema version {version} of topic id {topic_id}; the control log is older than the archives")
        return TopicSchema.from_entry(entry)

    # tables

    def tables(self, catalog: str) -> Tables:
        """A configured catalog."""
        if catalog not in self._catalogs:
            settings = self.settings.catalog(catalog)
            if settings is None:
                raise ConfigInvalid(f"there is no catalog {catalog} in the configuration")
            from archiver.catalog.iceberg import IcebergTables

            self._catalogs[catalog] = IcebergTables(catalog, settings.properties(), self._ids)
        return self._catalogs[catalog]

    def tables_properties(self, catalog: str) -> dict[str, str]:
        """What may be shown of a catalog's configuration: its type and address."""
        settings = self.settings.catalog(catalog)
        shown = {} if settings is None else settings.model_dump(mode="json")
        return {name: str(shown[name]) for name in ("type", "uri") if name in shown}

    def table(self, topic: str) -> TableView | None:
        """The topic's table as the catalog has it; None if it does not exist (yet) or the topic goes to no table."""
        settings = self.settings.topic(topic)
        if settings is None or settings.archive.catalog is None or settings.archive.table is None:
            return None
        return self.tables(settings.archive.catalog).load(parse_identifier(settings.archive.table))

    def live_files(self, topic: str) -> list[LiveFile]:
        """Data files of the table's current snapshot."""
        settings, view = self.settings.topic(topic), self.table(topic)
        if view is None or settings is None or settings.archive.catalog is None:
            return []
        return list(self.tables(settings.archive.catalog).live_files(view))

    # what is done with them

    def _ready_to_append(self) -> None:
        """Refuse to go on with a log that lost entries; raises `Halt`, or `ConfigInvalid` if it is another data folder's."""
        self._check_log_is_newest()
        self.sequencer.bind_cluster(self.cluster.cluster_id)

    def _check_log_is_newest(self) -> None:
        check_log_is_newest(self.objects, self.intake_log, self.sequencer.refresh, self._clock.now_us())

    def declare_topic(self, topic: TopicSettings) -> TopicState:
        """Make a configured topic exist; raises `ConfigInvalid` if it exists with another number of partitions."""
        self._ready_to_append()
        return self.sequencer.declare_topic(topic.name, topic.partitions)

    def writer(self) -> IntakeWriter:
        """A new intake writer, for every configured topic. Close it.

        A topic whose configuration contradicts the log is written to as the log has it; a warning says so.
        """
        self._ready_to_append()
        for topic in self.settings.topics:
            try:
                self.sequencer.declare_topic(topic.name, topic.partitions)
            except ConfigInvalid as error:
                _log.warning("%s", error)
        _ = self._checkpoints  # from here on they are made beside the writer
        return IntakeWriter(self.objects, self.sequencer, self.settings.intake, self._clock, self._ids)

    def stream(self) -> RecordStream:
        """Reads records back, as of now."""
        ledger = self.ledger()
        return RecordStream(
            self.objects,
            self.intake(),
            self.schema,
            cluster_id=self.cluster.cluster_id,
            killed=lambda topic_id: ledger.topic(topic_id).killed,
            passed=lambda topic_id, partition: ledger.topic(topic_id).passed.ranges(partition),
        )

    @cached_property
    def _sessions(self) -> SparkSessions:
        from archiver.spark_session import SparkSessions

        return SparkSessions(self.settings.spark, self._environ)

    def archiving(self, progress: Callable[[str], None]) -> ArchiveRun:
        """The driver of archiving rounds; `progress` takes a line at a time. Raises as `writer`. Makes a checkpoint first if one is due."""
        from archiver.jobs.refine_spark import SparkRefiner

        self._ready_to_append()
        self.checkpointer.run_if_due()
        return ArchiveRun(
            Parts(
                settings=self.settings,
                cluster_id=self.cluster.cluster_id,
                sequencer=self.sequencer,
                leader=self.leader,
                lease=self.lease,
                setup=TopicSetup(self.cluster, self.objects, self.leader, self.tables),
                publisher=Publisher(self.cluster.name, self.leader, self._clock, self._ids),
                committer=lambda tables: Committer(tables, self.leader, self._commit_limits(), self._clock),
                refine=SparkRefiner(self._sessions.session).refine,
                options=self._refine_options(),
                cores=self._sessions.cores,
                memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                clock=self._clock,
                ids=self._ids,
                progress=progress,
            )
        )

    def audit(self, scope: Scope | None) -> dict[str, object]:
        """The document of `archiver audit`; raises `NotFound` for an unknown topic or partition."""
        check = Audit(self.objects, self.cluster.cluster_id, self.tables, self.settings.topics, self._clock)
        return check.run(self.ledger, self.intake, scope)

    @cached_property
    def _lines(self) -> LineReader:
        return LineReader(self.objects, self.cluster.cluster_id, self.tables, self.settings.topics)

    def cleaning(self, progress: Callable[[str], None], *, dry_run: bool = False) -> CleanRun:
        """The vacuum; `progress` takes a line at a time. Raises as `writer`: with a log that lost entries, live files look like strays."""
        if dry_run:
            self._check_log_is_newest()
        else:
            self._ready_to_append()
            self._end_overdue()
        return CleanRun(
            CleanParts(
                objects=self.objects,
                sequencer=self.sequencer,
                intake=self.intake,
                leader=self.leader,
                lease=self.lease,
                lines=self._lines.read,
                superseded=lambda: superseded(self.objects),
                settings=self.settings.cleanup,
                clock=self._clock,
                progress=progress,
            )
        )

    def pinned(self) -> Pin | None:
        """What holds the oldest intake file that is needed, as of now; None if none is needed."""
        intake = self.intake()
        return oldest_pin(intake, self._lines.read(intake, self.ledger()))

    def _commit_limits(self) -> CommitLimits:
        archive = self.settings.archive
        return CommitLimits(
            attempts_max=archive.commit_attempts_max,
            timeout_s=archive.commit_timeout,
            snapshots_max=archive.snapshots_max,
            snapshots_age_s=archive.snapshots_age,
            merge_every=archive.merge_every,
        )

    def _refine_options(self) -> RefineOptions:
        armed = self._environ.get(failpoints.VARIABLE, "") if self.settings.testing.failpoints else ""
        return RefineOptions(
            zstd_level=self.settings.archive.zstd_level, open_writers_max=self.settings.archive.open_writers_max, failpoints=armed
        )


def open_application(settings: Settings, environ: Mapping[str, str]) -> Application:
    """An application for these settings.

    Raises `ConfigInvalid` if the data folder is another cluster's, or if only one of the variable `ARCHIVER_FAILPOINTS` and the setting
    `testing.failpoints` asks for failpoints.
    """
    setup_logging(logging.WARNING)
    arm_failpoints(settings, environ)
    return Application(settings, environ)


def arm_failpoints(settings: Settings, environ: Mapping[str, str]) -> None:
    """Arm what the environment names, if the settings agree; refuse if only one of them asks."""
    named = failpoints.VARIABLE in environ
    if named and not settings.testing.failpoints:
        raise ConfigInvalid(f"{failpoints.VARIABLE} is set, but testing.failpoints is not true; unset the variable (it is for tests only)")
    if settings.testing.failpoints and not named:
        raise ConfigInvalid(f"testing.failpoints is true, but {failpoints.VARIABLE} is not set; take the key out (it is for tests only)")
    failpoints.arm(environ.get(failpoints.VARIABLE, ""))
