"""Intake of one deployment: topics, writers, record validation and checkpoints of the intake log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from archiver.app.deployment import Deployment
from archiver.catalog.tables import parse_identifier
from archiver.config.settings import Settings, TopicSettings
from archiver.config.topic_configs import checked, fixed_by
from archiver.runtime.errors import ConfigInvalid, InvalidInput
from archiver.runtime.ids import TopicId
from intake.log.checkpointer import CheckpointLoop
from intake.log.fold import DeletedTopic, TopicState
from intake.log.state import APPEND_TIME_CHANGES_MAX, TIMESTAMP_TYPE, Configs, fewer_configured
from intake.write.accept_clock import AcceptClock
from intake.write.schema_validation import EdgeFetch, EdgeSchemas, edge_rules
from intake.write.writer import IntakeWriter

if TYPE_CHECKING:
    from archiver.ledger.leader import Leader

_log = logging.getLogger(__name__)

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Makes the configs of a topic from its present ones."""


class Intake:
    """Declares topics and creates intake writers."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._ledger_lock = threading.Lock()

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

        Where the configuration of a topic contradicts the log, the log applies and a warning says so. A topic
        with fewer partitions than configured grows. Raises
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

        A topic with fewer partitions than configured grows. Raises `ConfigInvalid` if one of the two is
        mirrored and the other is not.
        """
        self._deployment.ready_to_append()
        # A mirrored topic starts with one partition and grows when its source reports the real number.
        partitions = 1 if topic.mirrored else topic.partitions
        return self._deployment.sequencer.declare_topic(
            topic.name, partitions, again=True, mirrored=topic.mirrored
        )

    def grow_topic(self, name: str, partitions: int) -> TopicState:
        """Give a topic that many partitions, beyond its configuration if need be; returns it.

        Raises `NotFound` for an unknown or deleted topic. Raises `InvalidInput`, with the topic's name, for
        fewer partitions than it has, for more than there can be, and for a mirrored topic, which has the
        partitions of its upstream. `OutcomeUnknown` if they may or may not have been added: call it again.
        """
        # Before anything is written: it knows deleted topics, and a wrong name needs no check of the log.
        before = self._deployment.topic(name)
        self._deployment.ready_to_append()
        grown = self._deployment.sequencer.grow_topic(name, partitions)
        # A topic from a template has as many in its settings.
        self._deployment.update_topics()
        _log_growth(before, grown)
        return grown

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicState | None:
        """Create a topic for a client, after `creation_refused`; None if there is a topic of that name.

        Raises `InvalidInput` for a bad name, number or config, and what an append raises.
        """
        at = self._deployment
        stated = self.changed_configs(name, (), lambda _: configs)
        at.ready_to_append()
        made = at.sequencer.create_topic(name, partitions, stated)
        at.update_topics()
        if made is not None:
            _log.info("topic %s is created with %d partitions", name, partitions)
        return made

    def creation_refused(self, name: str, partitions: int) -> str | None:
        """Why a client cannot create a topic of that name; None if it can. Raises what asking the catalog
        raises, where a deleted topic had the same table.
        """
        at = self._deployment
        fold = at.backlog().fold
        refused = at.template_refused(TopicState(TopicId(""), name, partitions, 0))
        template = at.configured.template(name)
        if refused is not None or template is None or (table := template.table_of(name)) is None:
            return refused
        # A table belongs to the id of its topic, so the new topic could never be archived.
        if any(
            self._may_own(gone, table, template.archive.catalog) for gone in fold.deleted_topics.values()
        ) and self._exists(template.archive.catalog, table):
            return f"the table {table} of a deleted topic is still there; drop it, or choose another name"
        return None

    def _may_own(self, gone: DeletedTopic, table: str, catalog: str | None) -> bool:
        """Whether a deleted topic had a table that may be this one."""
        template = self._deployment.configured.template(gone.name)
        if template is None or template.archive.catalog != catalog:
            return False
        if (template.table_of(gone.name) or "").casefold() != table.casefold():
            return False
        # Several threads may ask, and a fold is for one.
        with self._ledger_lock:
            self._ledger.refresh()
            return self._ledger.fold.topic(gone.topic_id).table_uuid is not None

    def _exists(self, catalog: str | None, table: str) -> bool:
        assert catalog is not None, "a template with a table has a catalog"
        return self._deployment.tables(catalog).load(parse_identifier(table)) is not None

    @cached_property
    def _ledger(self) -> Leader:
        return self._deployment.ledger_view()

    def configure_topic(self, topic: TopicState, change: ConfigChange) -> TopicState:
        """Give a topic the configs that `change` makes from its present ones; returns it.

        Raises as `changed_configs`, `NotFound` for a deleted topic, and what an append raises.
        """
        at = self._deployment
        at.ready_to_append()
        configured = at.sequencer.configure_topic(
            topic.topic_id, lambda before: self.changed_configs(topic.name, before, change)
        )
        at.update_topics()
        return configured

    def changed_configs(self, topic: str, before: Configs, change: ConfigChange) -> Configs:
        """The configs that `change` makes from those before, in their stored form.

        Raises `InvalidInput` with the reason for a config that cannot be, or that the configuration file
        states.
        """
        after = change(dict(before))
        # Those that stay are not checked: a newer version may have set them.
        changed = {name: value for name, value in after.items() if dict(before).get(name) != value}
        for name in (*changed, *(name for name, _ in before if name not in after)):
            key = fixed_by(self._deployment.configured, topic, name)
            if key is not None:
                raise InvalidInput(f"{name} is fixed by the key {key} of the configuration file")
        configs = tuple(sorted({**after, **dict(_checked(changed))}.items()))
        self._check_timestamp_type(topic, before, configs)
        return configs

    def _check_timestamp_type(self, topic: str, before: Configs, after: Configs) -> None:
        """Raise `InvalidInput` if a topic of the log cannot get that timestamp type."""
        fold = self._deployment.sequencer.fold
        known = fold.topics_by_name.get(topic)
        if known is None or dict(before).get(TIMESTAMP_TYPE) == (stated := dict(after).get(TIMESTAMP_TYPE)):
            return
        # The default is always possible, or a topic could not leave the other type.
        if stated != "LogAppendTime":
            return
        if known.mirrored:
            raise InvalidInput(f"{TIMESTAMP_TYPE}: records of a mirrored topic have the times of its source")
        partitions = [fold.partition((known.topic_id, number)) for number in range(known.partitions)]
        if any(len(one.append_time_changes) >= APPEND_TIME_CHANGES_MAX for one in partitions):
            raise InvalidInput(
                f"{TIMESTAMP_TYPE} was changed {APPEND_TIME_CHANGES_MAX} times; create another topic"
            )

    def check_deletable(self, topic: TopicState) -> None:
        """Raise `ConfigInvalid` while the topic is in the configuration: a reader of it would recreate it."""
        # A writer with this configuration would declare the topic again at its start.
        # A topic from a template is declared by no writer.
        settings = self._deployment.settings.topic(topic.name)
        if settings is not None and settings.template is None:
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
        self._deployment.update_topics()

    def delete_records(self, topic: TopicState, below: Mapping[int, int]) -> None:
        """Delete the records of partitions below these offsets for every reader; cleaning frees the storage.

        Raises as `check_records_deletable` and `Sequencer.delete_records`.
        """
        self.check_records_deletable(topic)
        self._deployment.ready_to_append()
        self._deployment.sequencer.delete_records(topic.topic_id, below)

    def check_records_deletable(self, topic: TopicState) -> None:
        """Raise `ConfigInvalid` for a mirrored topic, and if the topic's entry in the configuration keeps
        every record.
        """
        if topic.mirrored:
            raise ConfigInvalid(f"topic {topic.name} is mirrored; delete the records at its Kafka source")
        key = fixed_by(self._deployment.configured, topic.name, "retention.ms")
        entry = self._deployment.configured.topic(topic.name)
        if key is not None and entry is not None and entry.retention is None:
            raise ConfigInvalid(
                f"the configuration keeps every record of topic {topic.name}: {key} is forever"
            )

    def partitions_known(self) -> dict[str, int]:
        """Number of partitions of every topic in the intake log, by name; 0 for a mirrored topic."""
        topics = self._deployment.backlog().fold.topics_by_name
        # As a configuration states it: a mirrored topic has the number of its upstream.
        return {name: 0 if topic.mirrored else topic.partitions for name, topic in topics.items()}

    def declare_missing(self) -> None:
        """Declare configured topics that do not exist, for example after a reload that failed half-way.
        Topics with fewer partitions than configured grow.

        Deleted topics stay deleted. Raises what an append to the intake log raises.
        """
        fold, settings = self._deployment.backlog().fold, self._deployment.settings
        if any(
            # Only an explicit request recreates a deleted topic.
            (state.partitions < topic.partitions and not state.mirrored)
            if (state := fold.topics_by_name.get(topic.name)) is not None
            else fold.deleted_named(topic.name) is None
            for topic in settings.topics
        ):
            self.declare_topics(settings)

    def reloaded(self, settings: Settings) -> None:
        """Validate by the rules of new settings from now on."""
        # Otherwise there is nothing to update: the first use reads the new settings.
        if "validation" in self.__dict__:
            self.validation.adopt(edge_rules(settings))

    def declare_topics(self, settings: Settings) -> None:
        """Declare the topics of these settings that are not mirrored; those with fewer partitions grow.
        Raises what an append raises.
        """
        sequencer = self._deployment.sequencer
        known = dict(sequencer.refresh().topics_by_name)
        for topic in settings.topics:
            # Only its source knows the number of partitions of a mirrored topic. One from a template is in
            # the log, or was deleted.
            if topic.mirrored or topic.template is not None:
                continue
            try:
                state = sequencer.declare_topic(topic.name, topic.partitions)
            # The log applies. One wrong topic must not stop the intake of the others.
            except ConfigInvalid as error:
                _log.warning("%s", error)
                continue
            if topic.name in known:
                _log_growth(known[topic.name], state)
            if state.partitions > topic.partitions:
                _log.warning("%s", fewer_configured(state, topic.partitions))


def _checked(configs: Mapping[str, str]) -> Configs:
    """The configs in their stored form; raises `InvalidInput`."""
    try:
        return tuple((name, checked(name, value)) for name, value in sorted(configs.items()))
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def _log_growth(before: TopicState, after: TopicState) -> None:
    """Log that a topic has more partitions; no second line for one that was created again."""
    if after.topic_id == before.topic_id and after.partitions > before.partitions:
        _log.info(
            "topic %s has %d partitions now, %d before", after.name, after.partitions, before.partitions
        )
