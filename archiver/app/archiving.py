"""Archiving of one deployment: rounds on Spark, replay of undecoded records, and control events to Kafka."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from archiver.app.deployment import Deployment
from archiver.app.intake import Intake
from archiver.config.settings import ControlTopicSettings, TopicSettings
from archiver.control_topic.publisher import LOG, EventPublisher, Positions
from archiver.control_topic.waves import Destination
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.event_reader import needed_for
from archiver.log.open import PUBLISH
from archiver.log.store import Log
from archiver.objects.location import StorePlace
from archiver.publish.events import RoundEvents
from archiver.publish.round import ArchiveRun
from archiver.publish.scope import Scope
from archiver.refine.prepare_topic import TopicSetup
from archiver.refine.task import PlanResult, RefineJob
from archiver.rewrite.commit import TableRewriter
from archiver.rewrite.replay import ReplayRun
from archiver.rewrite.undecoded import Search, UndecodedListing, UndecodedReport
from archiver.spark.fair_lock import SparkTurns
from reconcile.audit.rows import RowReader

if TYPE_CHECKING:
    from archiver.spark.session import SparkSessions


class Archiving:
    """Creates the drivers of rounds and replays, and owns the Spark session of this process."""

    def __init__(self, deployment: Deployment, intake: Intake) -> None:
        self._deployment = deployment
        self._intake = intake

    def close(self) -> None:
        """Close the Spark session if one was started."""
        # Reading a cached property that was never used would create it.
        if "_sessions" in self.__dict__:
            self._sessions.close()

    def warm(self) -> None:
        """Create in this thread the objects that several threads of a daemon share."""
        # `_sessions` stays lazy: a daemon starts its JVM with the first round that has work.
        _ = self.ledger_checkpointer

    def round(self, progress: Callable[[str], None]) -> ArchiveRun:
        """Driver of archiving rounds; `progress` takes a line at a time. Writes checkpoints first if any are
        due.

        Raises as `Deployment.ready_to_append`.
        """
        at = self._deployment
        # Before any entry: a log that lost entries must not grow.
        at.ready_to_append()
        at.checkpointer.run_if_due()
        self.ledger_checkpointer.run_if_due()
        return ArchiveRun(
            settings=at.settings,
            cluster_id=at.cluster.cluster_id,
            sequencer=at.sequencer,
            leadership=at.leadership,
            setup=self._topic_setup(),
            publisher=self._round_events(),
            committer=at.committer,
            # The deep audit uses the same session, so both take turns.
            refine=self._spark_turns.taking(self._refine, "refinement"),
            options=at.refine_options(),
            cores=self._cores,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            clock=at.clock,
            progress=progress,
            times=self._intake.accept_clock if at.lasting else None,
        )

    # undecoded records

    def undecoded(self, scope: Scope | None, records_max: int) -> UndecodedReport:
        """Records that could not be decoded; raises `NotFound` for an unknown topic."""
        at = self._deployment
        listing = UndecodedListing(at.objects, at.cluster.cluster_id, at.tables, at.settings.topics)
        return listing.run(at.backlog(), at.ledger(), scope, records_max)

    def search_undecoded(
        self, topics: Sequence[TopicSettings], scope: Scope | None, records_max: int, search: Search
    ) -> UndecodedReport:
        """As `undecoded`, of these topics and within the bounds of `search`."""
        at = self._deployment
        ledger = at.ledger()
        listing = UndecodedListing(at.objects, at.cluster.cluster_id, at.tables, topics)
        return listing.run(at.backlog(), ledger, scope, records_max, search)

    def replaying(self, progress: Callable[[str], None], *, dry_run: bool = False) -> ReplayRun:
        """Decodes undecoded records again; `progress` takes a line at a time.

        Raises as `Deployment.ready_to_append`; a dry run raises nothing.
        """
        at = self._deployment
        # A dry run appends nothing, so it needs no check of the logs.
        if not dry_run:
            at.ready_to_append()
        return ReplayRun(
            at.settings,
            at.cluster.cluster_id,
            at.objects,
            at.sequencer,
            at.leadership,
            at.tables,
            self._topic_setup(),
            self._round_events(),
            at.refine_options(),
            partial(TableRewriter, at.objects, at.leader, at.commit_limits(), at.clock, at.ids, progress),
            progress,
        )

    def _topic_setup(self) -> TopicSetup:
        at = self._deployment
        return TopicSetup(
            at.cluster, at.objects, at.leader, at.tables, at.fetch_schema, at.commit_limits(), at.clock
        )

    def _round_events(self) -> RoundEvents:
        at = self._deployment
        return RoundEvents(at.cluster.name, at.leader, at.clock, at.ids, at.settings.events)

    # Spark

    def _cores(self) -> int:
        return self._sessions.cores()

    def _refine(self, job: RefineJob) -> Sequence[PlanResult]:
        # Imported here: a round without work, the usual one, needs neither pyspark nor a session.
        from archiver.refine.spark_job import SparkRefiner

        sessions = self._sessions
        timeout_s = self._deployment.settings.spark.job_timeout
        return SparkRefiner(sessions.session, timeout_s, sessions.answering).refine(job)

    @cached_property
    def _sessions(self) -> SparkSessions:
        from archiver.spark.environment import store_variables
        from archiver.spark.session import SparkSessions

        at = self._deployment
        variables = store_variables(at.settings.data)
        return SparkSessions(at.settings.spark, at.environ, variables, at.spark_starting)

    @cached_property
    def _spark_turns(self) -> SparkTurns:
        return SparkTurns(self._deployment.settings.spark.job_timeout)

    def spark_rows(self) -> RowReader:
        """Reads rows on the Spark session of this process, which starts at the first use."""
        from reconcile.audit.spark.reader import SparkRows

        at = self._deployment
        return SparkRows(
            self._sessions.session,
            self._spark_turns.turn,
            at.settings.spark.job_timeout,
            self._sessions.answering,
            StorePlace.of(at.settings.data),
            at.cluster.cluster_id,
        )

    @property
    def spark_runs(self) -> bool:
        """Whether this process has a JVM. Sends no request and starts nothing."""
        return "_sessions" in self.__dict__ and self._sessions.runs

    def ask_spark(self) -> None:
        """One round trip to the JVM of this process, without a time limit; `RetryLater` if the JVM is
        lost.
        """
        if "_sessions" in self.__dict__:
            self._sessions.ask()

    def abandon_spark(self) -> None:
        """Kill the JVM. A running round fails, and the next round repeats what it had not written."""
        if "_sessions" in self.__dict__:
            self._sessions.abandon()

    # control events

    @cached_property
    def ledger_checkpointer(self) -> LedgerCheckpointer:
        """Writes checkpoints of the control log and trims it, but not beyond the publisher's position."""
        at = self._deployment
        checkpoints = LedgerCheckpoints(at.objects)
        # The log is not trimmed beyond entries that are not published yet.
        return LedgerCheckpointer(
            at.control_log, checkpoints, at.leader, at.settings.log, self.unpublished_from
        )

    def publisher(
        self, settings: ControlTopicSettings, connect: Callable[[], Destination], stopping: Callable[[], bool]
    ) -> EventPublisher:
        """Publishes control events to the topic that `connect` opens. Close it before the application."""
        at = self._deployment
        return EventPublisher(
            settings,
            at.cluster.cluster_id,
            at.control_log,
            LedgerCheckpoints(at.objects),
            self.positions(),
            # Separate from the leader's lease: publishing continues while another daemon archives.
            at.logs.lease(PUBLISH, at.owner),
            connect,
            stopping,
        )

    def unpublished_from(self) -> int | None:
        """First entry of the control log that the publisher still needs; None if no topic is configured."""
        at = self._deployment
        if at.settings.events.kafka is None:
            return None
        position = self.positions().newest()
        # Without a position nothing is published, so the whole log is needed.
        return 0 if position is None else needed_for(position.mark.next_index, LedgerCheckpoints(at.objects))

    def positions(self) -> Positions:
        """Stored position of the publisher."""
        at = self._deployment
        return Positions(self._published_log, at.owner, at.settings.log, at.clock, at.ids)

    @cached_property
    def _published_log(self) -> Log:
        return self._deployment.logs.log(LOG)
