"""Intake of one deployment: topics, writers, record validation and checkpoints of the intake log."""

from __future__ import annotations

import logging
from functools import cached_property

from archiver.app.deployment import Deployment
from archiver.config.settings import Settings, TopicSettings
from archiver.runtime.errors import ConfigInvalid
from intake.log.checkpointer import CheckpointLoop
from intake.log.fold import TopicState
from intake.write.accept_clock import AcceptClock
from intake.write.schema_validation import EdgeFetch, EdgeSchemas, edge_rules
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)


class Intake:
    """Declares topics and creates intake writers."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def close(self) -> None:
        """Stop the threads that were started; writers are closed by their callers."""
        # A cached property that was never read has started nothing, and reading it here would start it.
        if "_checkpoints" in self.__dict__:
            self._checkpoints.close()
        if "validation" in self.__dict__:
            self.validation.close()

    def warm(self) -> None:
        """Create in this thread the objects that several threads of a daemon share."""
        _ = self.accept_clock, self.validation

    def writer(self) -> IntakeWriter:
        """A new intake writer for every configured topic. Close it.

        Where the configuration of a topic contradicts the log, the log applies and a warning says so. Raises
        `Halt` for a log that lost entries, and `ConfigInvalid` for the log of another data folder.
        """
        at = self._deployment
        # Before the first entry: a log that lost entries would give offsets a second time.
        at.ready_to_append()
        self.declare_topics(at.settings)
        # Starts the loop: a log that grows needs checkpoints.
        _ = self._checkpoints
        self.validation.begin(everything=at.lasting)
        return IntakeWriter(at.objects, at.sequencer, at.settings.intake, at.clock, at.ids, self.validation)

    @cached_property
    def validation(self) -> EdgeSchemas:
        """Validates records against the newest schemas before they are written."""
        at = self._deployment
        # A ledger view of its own: the leader's fold moves during a round.
        fetch = EdgeFetch(at.fetch_schema, at.sequencer, at.ledger_view(), at.settings.intake.elements_max)
        made = EdgeSchemas(fetch, at.settings.schema_registry.refresh, at.clock)
        made.adopt(edge_rules(at.settings))
        return made

    @cached_property
    def _checkpoints(self) -> CheckpointLoop:
        return CheckpointLoop(self._deployment.checkpointer, before_each=self.end_overdue)

    @cached_property
    def accept_clock(self) -> AcceptClock:
        """Clock for ingest times; it is not trusted while it runs ahead of the log."""
        settings = self._deployment.settings.intake
        return AcceptClock(self._deployment.clock, settings.clock_skew_max, settings.clock_settle)

    def end_overdue(self) -> None:
        """Abort transactions whose time-out has passed; `RetryLater` while the clock cannot be trusted."""
        sequencer = self._deployment.sequencer
        # By the accept clock, not the wall clock: a clock that runs ahead would abort open transactions.
        now_us = self.accept_clock.written_us(sequencer.fold.newest_us)
        for ended in sequencer.end_overdue(now_us):
            _log.warning(
                "transaction %s of producer %d was open for too long and is aborted",
                ended.transactional_id,
                ended.producer_id,
            )

    # topics

    def declare_topic(self, topic: TopicSettings) -> TopicState:
        """Create a configured topic if it does not exist; a deleted topic of that name becomes a new topic.

        Raises `ConfigInvalid` if it exists with another number of partitions.
        """
        self._deployment.ready_to_append()
        # A mirrored topic starts with one partition and grows when its source reports the real number.
        partitions = 1 if topic.mirrored else topic.partitions
        return self._deployment.sequencer.declare_topic(
            topic.name, partitions, again=True, mirrored=topic.mirrored
        )

    def check_deletable(self, topic: TopicState) -> None:
        """Raise `ConfigInvalid` while the topic is in the configuration: a reader of it would recreate it."""
        # A writer with this configuration would declare the topic again at its start.
        if self._deployment.settings.topic(topic.name) is not None:
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
        self._deployment.ready_to_append()
        self._deployment.sequencer.delete_topic(topic.topic_id)

    def partitions_known(self) -> dict[str, int]:
        """Number of partitions of every topic in the intake log that is not mirrored, by name."""
        topics = self._deployment.backlog().fold.topics_by_name
        # A mirrored topic has the number of its upstream, which may grow.
        return {name: topic.partitions for name, topic in topics.items() if not topic.mirrored}

    def declare_missing(self) -> None:
        """Declare configured topics that do not exist, for example after a reload that failed half-way.

        Deleted topics stay deleted. Raises what an append to the intake log raises.
        """
        fold, settings = self._deployment.backlog().fold, self._deployment.settings
        if any(
            # Only an explicit request recreates a deleted topic.
            topic.name not in fold.topics_by_name and fold.deleted_named(topic.name) is None
            for topic in settings.topics
        ):
            self.declare_topics(settings)

    def reloaded(self, settings: Settings) -> None:
        """Validate by the rules of new settings from now on."""
        # Otherwise there is nothing to update: the first use reads the new settings.
        if "validation" in self.__dict__:
            self.validation.adopt(edge_rules(settings))

    def declare_topics(self, settings: Settings) -> None:
        """Declare the topics of these settings that are not mirrored. Raises what an append raises."""
        for topic in settings.topics:
            if topic.mirrored:
                # Only its source knows the number of partitions.
                continue
            try:
                self._deployment.sequencer.declare_topic(topic.name, topic.partitions)
            # The log applies. One wrong topic must not stop the intake of the others.
            except ConfigInvalid as error:
                _log.warning("%s", error)
