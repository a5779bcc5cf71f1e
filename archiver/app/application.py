"""The composition root: from settings to an application.

The one place that knows which adapter stands behind which Protocol. Nothing is connected, or even imported,
before it is asked for: a command that only reads starts no Spark and loads no catalog. Close the application
after use.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Self

from archiver.app.maintenance import Upkeep
from archiver.catalog.commit import CommitLimits, Committer
from archiver.catalog.configured import ConfiguredCatalogs
from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import Settings, TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.log.lease import Lease
from archiver.log.open import CHECKPOINT, LEADER, open_metadata
from archiver.log.store import Log
from archiver.objects.cluster import ClusterIdentity, ensure_cluster, read_cluster
from archiver.objects.conditional_put_check import check_guarantees
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.publish.events import RoundEvents
from archiver.publish.log_rollback_check import check_log_is_newest
from archiver.publish.round import ArchiveRun, Parts
from archiver.publish.scope import Scope
from archiver.query.duck import QueryTable
from archiver.query.fetched import FetchedFiles
from archiver.query.views import Trouble, query_tables
from archiver.refine.prepare_topic import TopicSetup
from archiver.refine.task import RefineOptions
from archiver.registry.fetch import SchemaFetcher
from archiver.rewrite.dead_letters import UndecodedListing, UndecodedReport
from archiver.rewrite.replay import ReplayParts, ReplayRun
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ConfigInvalid, NotFound, no_topic
from archiver.runtime.ids import IdSource, SystemIds, TopicId
from archiver.runtime.logging import setup_logging
from archiver.schema.evolution.state import TopicSchema
from archiver.spark.fair_lock import SparkTurns
from archiver.status.explain import Explanation, explain
from archiver.status.tracing import Tracer
from archiver.stream.stream import RecordStream
from intake.log.backlog import Backlog
from intake.log.checkpoint_store import CheckpointStore
from intake.log.checkpointer import Checkpointer, CheckpointLoop
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer, check_cluster
from intake.write.accept_clock import AcceptClock
from intake.write.schema_fetch import EdgeFetch, edge_rules
from intake.write.schema_validation import EdgeSchemas
from intake.write.writer import IntakeWriter
from reconcile.audit.rows import RowReader

if TYPE_CHECKING:
    from archiver.spark.session import SparkSessions

_log = logging.getLogger(__name__)


class Application(Upkeep):
    """Everything a command can use, made when first asked for."""

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
        """With `lasting`, for a daemon: the leadership is kept from turn to turn until it is resigned, that
        the log is the newest is proven once, and no catalog is made anew in place of one that is absent.
        Without `holding`, others lead between two turns: for a daemon that leaves archiving, or cleaning, to
        another. `settings` may be replaced: see `adopt`.
        """
        self.settings = settings
        self._lasting = lasting
        self._holding = lasting and holding
        self._environ = environ
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        place = StorePlace.of(settings.data)
        self._logs = open_metadata(settings.metadata, settings.log.entry_bytes_max, self._clock, self._ids)
        try:
            self.intake_log: Log = self._logs.log("intake")
            self.control_log: Log = self._logs.log("control")
            self.cluster: ClusterIdentity = self._identity(open_store(place))
            self.objects: ObjectStore = open_store(place, self.cluster.cluster_id)
            check_cluster(self.intake().fold, self.cluster.cluster_id)
        except BaseException:
            self._logs.close()
            raise
        self.lease: Lease = self._logs.lease(LEADER, self._owner)
        self.catalogs = ConfiguredCatalogs(
            lambda: self.settings, self._ids, self._knows_tables_of if lasting else None
        )
        self._log_checked = False

    def _identity(self, objects: ObjectStore) -> ClusterIdentity:
        """Of the data folder, which gets one only while the logs are empty: a folder that vanished is not to
        be replaced by a new one.
        """
        new = read_cluster(objects) is None
        if new and self.intake_log.tail() + self.control_log.tail() > 0:
            raise ConfigInvalid(
                f"the metadata store holds records of a data folder, but {self.settings.data.uri} has "
                "no identity (cluster.json); "
                "bring that folder back or correct data.uri"
            )
        if new:
            check_guarantees(objects)
        return ensure_cluster(objects, self.settings.cluster, self._ids, self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what was opened. Writers are closed by whoever asked for them."""
        if "_checkpoints" in self.__dict__:
            self._checkpoints.close()
        if "edge" in self.__dict__:
            self.edge.close()
        if "_sessions" in self.__dict__:
            self._sessions.close()
        self.catalogs.close()
        self._logs.close()

    def warm(self) -> None:
        """Make, in this thread, what several threads of a daemon share."""
        _ = (
            self.sequencer,
            self.checkpointer,
            self.ledger_checkpointer,
            self.leadership,
            self._reader,
            self._accept_clock,
            self.fetch_schema,
            self.edge,
        )

    # what the logs say

    @cached_property
    def sequencer(self) -> Sequencer:
        """The way into the intake log."""
        return Sequencer(
            self.intake_log, self._ids, self._clock, self.settings.log, CheckpointStore(self.objects)
        )

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """Makes checkpoints of the intake log and trims it."""
        lease = self._logs.lease(CHECKPOINT, self._owner)
        return Checkpointer(
            self.intake_log, CheckpointStore(self.objects), self.sequencer, self.settings.log, lease
        )

    def intake(self) -> Backlog:
        """What the intake log says, read to its tail, shelves included."""
        backlog = self.sequencer.backlog()
        self.checkpointer.learn()
        return backlog

    @cached_property
    def _checkpoints(self) -> CheckpointLoop:
        return CheckpointLoop(self.checkpointer, beside=self.end_overdue)

    @cached_property
    def _accept_clock(self) -> AcceptClock:
        """This process's view of the time, distrusted when it runs ahead."""
        return AcceptClock(
            self._clock, self.settings.intake.clock_skew_max, self.settings.intake.clock_settle
        )

    def end_overdue(self) -> None:
        """Abort the transactions whose time is over; `RetryLater` while the clock cannot be trusted with
        that.
        """
        now_us = self._accept_clock.written_us(self.sequencer.fold.newest_us)
        for ended in self.sequencer.end_overdue(now_us):
            _log.warning(
                "transaction %s of producer %d was open for too long and is aborted",
                ended.transactional_id,
                ended.producer_id,
            )

    @cached_property
    def leader(self) -> Leader:
        """The way into the control log; leads only after `take_over`."""
        return self._new_leader()

    @cached_property
    def leadership(self) -> Leadership:
        """The right to archive and to clean; kept from turn to turn if this application is a daemon's."""
        daemon = self.settings.daemon
        return Leadership(
            self.leader,
            self.lease,
            lasting=self._lasting,
            holding=self._holding,
            wait_s=daemon.turn_timeout,
            confirm_max_s=daemon.confirm_max,
            clock=self._clock,
        )

    @cached_property
    def _reader(self) -> Leader:
        """Reads the control log beside a daemon's rounds, which change the fold of the leader while others
        look.
        """
        return self._new_leader() if self._lasting else self.leader

    def ledger(self) -> LedgerFold:
        """The fold of the control log, read to its tail."""
        self._reader.refresh()
        return self._reader.fold

    def topic(self, name: str) -> TopicState:
        """A topic that exists; raises `NotFound`."""
        state = self.intake().topics_by_name.get(name)
        if state is None:
            gone = self.sequencer.fold.deleted_named(name)
            if gone is None:
                raise no_topic(name, self.sequencer.fold.topics_by_name)
            left = " and ".join(self.ledger().topic(gone.topic_id).remains())
            raise NotFound(f"topic {name} was deleted" + (f"; its {left} are still there" if left else ""))
        return state

    def schema(self, topic_id: TopicId, version: int) -> TopicSchema:
        """A column layout that the ledger records; raises `NotFound`."""
        entry = self.ledger().topic(topic_id).schemas.get(version)
        if entry is None:
            raise NotFound(
                f"the ledger has no schema version {version} of topic id {topic_id}; the control log "
                "is older than the archives"
            )
        return TopicSchema.from_entry(entry)

    @cached_property
    def fetch_schema(self) -> SchemaFetcher:
        """Gets the newest schema of a topic's keys or values from where its settings say."""
        return SchemaFetcher(self.settings.schema_registry, self._clock)

    # tables

    def tables(self, catalog: str) -> Tables:
        """A configured catalog."""
        return self.catalogs.get(catalog)

    def _knows_tables_of(self, catalog: str) -> bool:
        """Whether the ledger has met a table of that catalog."""
        topics, ledger = self.intake().topics_by_name, self.ledger()
        names = (
            topic.name
            for topic in self.settings.topics
            if topic.archive.catalog == catalog and topic.name in topics
        )
        return any(ledger.topic(topics[name].topic_id).table_uuid is not None for name in names)

    def table(self, topic: str) -> TableView | None:
        """The topic's table as the catalog has it; None if it does not exist (yet) or the topic goes to no
        table.
        """
        settings = self.settings.topic(topic)
        if settings is None or settings.archive.catalog is None or settings.archive.table is None:
            return None
        return self.tables(settings.archive.catalog).load(parse_identifier(settings.archive.table))

    def live_files(self, catalog: str, view: TableView) -> list[LiveFile]:
        """Data files of the current snapshot of a table that `table` has given."""
        return list(self.tables(catalog).live_files(view))

    # what is done with them

    def _ready_to_append(self) -> None:
        """Refuse to go on with a log that lost entries; raises `Halt`, or `ConfigInvalid` if it is another
        data folder's.
        """
        if not (self._lasting and self._log_checked):
            check_guarantees(self.objects)
            self._check_log_is_newest()
            self._log_checked = True
        self.sequencer.bind_cluster(self.cluster.cluster_id)

    def _check_log_is_newest(self) -> None:
        check_log_is_newest(
            self.objects, self.intake_log, self.control_log, self.sequencer.refresh, self._clock.now_us()
        )

    def declare_topic(self, topic: TopicSettings) -> TopicState:
        """Make a configured topic exist, also if one of that name was deleted: then it is a new topic.

        Raises `ConfigInvalid` if it exists with another number of partitions.
        """
        self._ready_to_append()
        if topic.mirrored:  # it grows as soon as its source has found out how large it is
            return self.sequencer.declare_topic(topic.name, 1, again=True, mirrored=True)
        return self.sequencer.declare_topic(topic.name, topic.partitions, again=True)

    def check_deletable(self, topic: TopicState) -> None:
        """Raise `ConfigInvalid` while the topic is in the configuration: whoever reads that would go on with
        it.
        """
        if self.settings.topic(topic.name) is not None:
            raise ConfigInvalid(
                f"topic {topic.name} is in the configuration; take its entry (`- name: {topic.name}`) "
                "out of topics first, here and "
                "wherever else this cluster is served from, then delete it"
            )

    def delete_topic(self, topic: TopicState) -> None:
        """Delete a topic from the intake log; its archives and its table stay. Raises as
        `check_deletable`.
        """
        self.check_deletable(topic)
        self._ready_to_append()
        self.sequencer.delete_topic(topic.topic_id)

    def writer(self) -> IntakeWriter:
        """A new intake writer, for every configured topic. Close it.

        A topic whose configuration contradicts the log is written to as the log has it; a warning says so.
        """
        self._ready_to_append()
        self._declare_topics(self.settings)
        _ = self._checkpoints  # from here on they are made beside the writer
        self.edge.begin(everything=self._lasting)
        return IntakeWriter(
            self.objects, self.sequencer, self.settings.intake, self._clock, self._ids, self.edge
        )

    @cached_property
    def edge(self) -> EdgeSchemas:
        """Judges records where they enter, by the newest schemas."""
        fetch = EdgeFetch(
            self.fetch_schema, self.sequencer, self._new_leader(), self.settings.intake.elements_max
        )
        made = EdgeSchemas(fetch, self.settings.schema_registry.refresh, self._clock)
        made.adopt(edge_rules(self.settings))
        return made

    def _declare_topics(self, settings: Settings) -> None:
        for topic in settings.topics:
            if topic.mirrored:
                continue  # its source knows how many partitions it has
            try:
                self.sequencer.declare_topic(topic.name, topic.partitions)
            except ConfigInvalid as error:
                _log.warning("%s", error)

    def partitions_known(self) -> dict[str, int]:
        """The partitions of every topic in the intake log, by name; not of mirrored ones. Raises what reading
        the log raises.
        """
        return {
            name: topic.partitions
            for name, topic in self.intake().fold.topics_by_name.items()
            if not topic.mirrored
        }

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings of archiving, topics, cleaning; what else differs must not be looked at
        (`archiver.daemon.reload`).

        Declares the topics that do not exist yet. Raises what appending to the intake log raises; then the
        settings are as before.
        """
        self._declare_topics(settings)
        self.settings = settings
        self.__dict__.pop("_lines", None)
        if "edge" in self.__dict__:
            self.edge.adopt(edge_rules(settings))

    def declare_missing(self) -> None:
        """Declare the configured topics that do not exist, for example because the reload that brought them
        met an error half-way.

        Raises what appending to the intake log raises. A topic that was deleted stays so.
        """
        fold = self.intake().fold
        if any(
            topic.name not in fold.topics_by_name and fold.deleted_named(topic.name) is None
            for topic in self.settings.topics
        ):
            self._declare_topics(self.settings)

    def stream(self) -> RecordStream:
        """Reads records back, as of now."""
        ledger = self.ledger()
        return RecordStream(
            self.objects,
            self.intake(),
            self.schema,
            cluster_id=self.cluster.cluster_id,
            given_up=lambda topic_id, partition: ArchiveVisibility.of(
                ledger.topic(topic_id), partition, ledger.condemned
            ),
            starts=lambda topic_id, partition: ledger.topic(topic_id).start(partition),
            passed=lambda topic_id, partition: ledger.topic(topic_id).passed.ranges(partition),
        )

    @cached_property
    def _sessions(self) -> SparkSessions:
        from archiver.spark.environment import store_variables
        from archiver.spark.session import SparkSessions

        return SparkSessions(self.settings.spark, self._environ, store_variables(self.settings.data))

    @cached_property
    def _spark_turns(self) -> SparkTurns:
        return SparkTurns(self.settings.spark.job_timeout)

    def _spark_rows(self) -> RowReader:
        from reconcile.audit.spark.reader import SparkRows

        timeout_s, turn, place = (
            self.settings.spark.job_timeout,
            self._spark_turns.turn,
            StorePlace.of(self.settings.data),
        )
        return SparkRows(
            self._sessions.session, turn, timeout_s, self._sessions.answering, place, self.cluster.cluster_id
        )

    @property
    def spark_runs(self) -> bool:
        """Whether the JVM of this process is there. Asks nobody and starts nothing."""
        return "_sessions" in self.__dict__ and self._sessions.runs

    def ask_spark(self) -> None:
        """One round trip to the JVM of this process, if it is there; waits as long as it takes. Raises
        `RetryLater` if it is lost.
        """
        if "_sessions" in self.__dict__:
            self._sessions.ask()

    def abandon_spark(self) -> None:
        """End the JVM whatever it does: a round under way fails, and the next one repeats what it had not
        written.
        """
        if "_sessions" in self.__dict__:
            self._sessions.abandon()

    def archiving(self, progress: Callable[[str], None]) -> ArchiveRun:
        """The driver of archiving rounds; `progress` takes a line at a time. Raises as `writer`. Makes
        checkpoints first if any are due.
        """
        from archiver.refine.spark_job import SparkRefiner

        self._ready_to_append()
        self.checkpointer.run_if_due()
        self.ledger_checkpointer.run_if_due()
        return ArchiveRun(
            Parts(
                settings=self.settings,
                cluster_id=self.cluster.cluster_id,
                sequencer=self.sequencer,
                leadership=self.leadership,
                setup=self._topic_setup(),
                publisher=RoundEvents(
                    self.cluster.name, self.leader, self._clock, self._ids, self.settings.events
                ),
                committer=lambda tables: Committer(tables, self.leader, self._commit_limits(), self._clock),
                refine=self._spark_turns.taking(
                    SparkRefiner(
                        self._sessions.session, self.settings.spark.job_timeout, self._sessions.answering
                    ).refine,
                    "refinement",
                ),
                options=self._refine_options(),
                cores=self._sessions.cores,
                memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                clock=self._clock,
                ids=self._ids,
                progress=progress,
                times=self._accept_clock if self._lasting else None,
            )
        )

    def undecoded(self, scope: Scope | None, records_max: int) -> UndecodedReport:
        """What could not be decoded; raises `NotFound` for an unknown topic."""
        listing = UndecodedListing(self.objects, self.cluster.cluster_id, self.tables, self.settings.topics)
        return listing.run(self.intake(), self.ledger(), scope, records_max)

    def replaying(self, progress: Callable[[str], None], *, dry_run: bool = False) -> ReplayRun:
        """Decoding again what could not be decoded; `progress` takes a line at a time. Raises as `writer`, a
        dry run nothing.
        """
        if not dry_run:
            self._ready_to_append()
        return ReplayRun(
            ReplayParts(
                self.settings,
                self.cluster,
                self.objects,
                self.sequencer,
                self.leadership,
                self.tables,
                self.fetch_schema,
                self._commit_limits(),
                self._refine_options(),
                self._clock,
                self._ids,
                progress,
            )
        )

    def explain(self, topic: str, partition: int, offset: int, stuck: str | None = None) -> Explanation:
        """Where one record is; `stuck`: why a daemon halted the topic. Raises `NotFound` for an unknown topic
        or partition.
        """
        ledger, state = self.ledger(), self.topic(topic)
        cluster_id = self.cluster.cluster_id
        tracer = Tracer(
            self.settings,
            cluster_id,
            self.objects,
            self.intake_log,
            self.tables,
            self._lines,
            self._clock,
            stuck,
        )
        return explain(tracer.facts(ledger, self.intake(), state, partition, offset))

    def query_tables(self, names: Collection[str]) -> tuple[list[QueryTable], dict[str, Trouble]]:
        """The tables of `archiver query`, and by name why some cannot be asked."""
        ledger, topics = self.ledger(), self.intake().topics_by_name

        def of_topic(name: str) -> TopicLedger | None:
            return ledger.topic(topics[name].topic_id) if name in topics else None

        copies = FetchedFiles(self.objects).paths if StorePlace.of(self.settings.data).is_s3 else None
        return query_tables(self.settings.topics, names, self.tables, of_topic, self.fetch_schema, copies)

    def _topic_setup(self) -> TopicSetup:
        return TopicSetup(
            self.cluster,
            self.objects,
            self.leader,
            self.tables,
            self.fetch_schema,
            self._commit_limits(),
            self._clock,
        )

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
        archive = self.settings.archive
        return RefineOptions(
            zstd_level=archive.zstd_level,
            open_writers_max=archive.open_writers_max,
            reads_max=archive.reads_of(is_bucket=StorePlace.of(self.settings.data).is_s3),
            uploads_max=archive.uploads_max,
            failpoints=armed,
        )


def open_application(settings: Settings, environ: Mapping[str, str]) -> Application:
    """An application for these settings.

    Raises `ConfigInvalid` if the data folder is another cluster's, or if only one of the variable
    `ARCHIVER_FAILPOINTS` and the setting `testing.failpoints` asks for failpoints.
    """
    setup_logging(logging.WARNING)
    arm_failpoints(settings, environ)
    return Application(settings, environ)


def arm_failpoints(settings: Settings, environ: Mapping[str, str]) -> None:
    """Arm what the environment names, if the settings agree; refuse if only one of them asks."""
    named = failpoints.VARIABLE in environ
    if named and not settings.testing.failpoints:
        raise ConfigInvalid(
            f"{failpoints.VARIABLE} is set, but testing.failpoints is not true; unset the variable (it "
            "is for tests only)"
        )
    if settings.testing.failpoints and not named:
        raise ConfigInvalid(
            f"testing.failpoints is true, but {failpoints.VARIABLE} is not set; take the key out (it "
            "is for tests only)"
        )
    failpoints.arm(environ.get(failpoints.VARIABLE, ""))
