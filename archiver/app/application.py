"""Composition root: builds an application from settings.

The only place that knows which adapter implements which Protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from archiver.app.deployment import Deployment
from archiver.config.settings import Settings, TopicSettings
from archiver.objects.location import StorePlace
from archiver.runtime import failpoints
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.logging import setup_logging

if TYPE_CHECKING:
    from archiver.app.archiving import Archiving
    from archiver.app.intake import Intake
    from archiver.app.maintenance import Maintenance
    from archiver.ledger.fold import LedgerFold
    from archiver.ledger.views import TopicLedger
    from archiver.query.duck import QueryTable
    from archiver.query.tables import FetchedFiles, Trouble
    from archiver.schema.protobuf.descriptors import Source
    from archiver.status.explain import Explanation
    from archiver.stream.stream import RecordStream
    from intake.log.backlog import Backlog
    from intake.read.reader import IntakeReader


class Application(Deployment):
    """An opened deployment with what commands do on it. Close it.

    `intake` writes records, `archiving` refines and commits them, `maintenance` checks, repairs and cleans.
    The methods of this class only read.
    """

    # Components are imported at their first use: `status` and `topics list` need neither writer nor vacuum.
    @cached_property
    def intake(self) -> Intake:
        """Topics, writers and record validation."""
        from archiver.app.intake import Intake

        return Intake(self)

    @cached_property
    def archiving(self) -> Archiving:
        """Rounds, replays and the Spark session."""
        from archiver.app.archiving import Archiving

        return Archiving(self, self.intake)

    @cached_property
    def maintenance(self) -> Maintenance:
        """Audit, reconciliation and cleaning."""
        from archiver.app.maintenance import Maintenance

        return Maintenance(self, self.intake, self.archiving)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened. Writers are closed by their callers."""
        # A component that was never used has nothing to close, and reading it here would import it.
        if "intake" in self.__dict__:
            self.intake.close()
        if "archiving" in self.__dict__:
            self.archiving.close()
        super().close()

    def warm(self) -> None:
        """Create in this thread the objects that several threads of a daemon share."""
        super().warm()
        self.intake.warm()
        self.archiving.warm()
        _ = self.maintenance

    def apply_settings(self, settings: Settings) -> None:
        """Use new settings for archiving, topics and cleaning; `archiver.daemon.reload` checks that no others
        differ.
        """
        # First, because it may raise, and then the old settings stay in force.
        self.intake.declare_topics(settings)
        with self._composing:
            self.configured = settings
            self._use(settings)
            self._compose(settings, self.sequencer.fold.topics_by_name)

    def _use(self, settings: Settings) -> None:
        super()._use(settings)
        # A component that was never used reads the settings at its first use.
        if "intake" in self.__dict__:
            self.intake.reloaded(settings)

    def stream(self) -> RecordStream:
        """Reads records of topics, as of now."""
        # One state of the ledger for all partitions: a round may add entries during the read.
        ledger = self.ledger()
        return self.stream_of(self.backlog(), ledger)

    def stream_of(
        self,
        backlog: Backlog,
        ledger: LedgerFold,
        reader: IntakeReader | None = None,
        verified: set[str] | None = None,
    ) -> RecordStream:
        """Reads records of topics by these states of both logs; `reader` and `verified` as in
        `RecordStream`.
        """
        from archiver.ledger.archive_visibility import ArchiveVisibility
        from archiver.stream.stream import RecordStream

        return RecordStream(
            self.objects,
            backlog,
            self.schema,
            cluster_id=self.cluster.cluster_id,
            given_up=lambda topic_id, partition: ArchiveVisibility.of(
                ledger.topic(topic_id), partition, ledger.condemned
            ),
            starts=lambda topic_id, partition: ledger.topic(topic_id).start(partition),
            passed=lambda topic_id, partition: ledger.topic(topic_id).passed.ranges(partition),
            reader=reader,
            verified=verified,
        )

    def newest_sources(self, topic: str) -> tuple[Source | None, Source | None]:
        """The newest schemas of a topic's keys and values; None for a side without one. While the registry is
        away, the recorded ones serve if the settings allow it.

        Raises `NotFound` for an unknown topic, and what fetching raises.
        """
        from archiver.refine.prepare_topic import fetch_schemas, recorded_schemas

        settings = self.settings.topic(topic)
        if settings is None:
            return None, None
        history = recorded_schemas(self.ledger().topic(self.topic(topic).topic_id))
        fetched = fetch_schemas(settings, history[-1] if history else None, self.fetch_schema)
        key, value = (None if one is None else one.source for one in fetched)
        return key, value

    def explain(self, topic: str, partition: int, offset: int, stuck: str | None = None) -> Explanation:
        """Where one record is in the pipeline; `stuck` is why a daemon halted the topic.

        Raises `NotFound` for an unknown topic or partition.
        """
        from archiver.status.explain import explain
        from archiver.status.tracing import Tracer

        # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
        ledger, state = self.ledger(), self.topic(topic)
        tracer = Tracer(
            self.settings,
            self.cluster.cluster_id,
            self.objects,
            self.intake_log,
            self.tables,
            self.retention_floors,
            self.clock,
            stuck,
        )
        return explain(tracer.facts(ledger, self.backlog(), state, partition, offset))

    def query_tables(self, names: Collection[str]) -> tuple[list[QueryTable], dict[str, Trouble]]:
        """Tables for `archiver query`, and by name why some cannot be queried."""
        from archiver.query.tables import FetchedFiles

        return self._query_tables(self.settings.topics, names, FetchedFiles(self.objects), None)

    def tables_of_query(
        self,
        names: Collection[str],
        topics: Collection[str] | None,
        check: Callable[[], None],
        *,
        folder: Path,
        listed_max: int,
    ) -> tuple[list[QueryTable], dict[str, Trouble]]:
        """The same for a query of the console: only tables of these topics (None: of all), only those that it
        names, and copies of files in `folder`. `check` may raise to end the copying.
        """
        from archiver.query.tables import FETCHED_MAX, FetchedFiles

        allowed = [one for one in self.settings.topics if topics is None or one.name in topics]
        copies = FetchedFiles(self.objects, FETCHED_MAX, folder, check)
        return self._query_tables(allowed, names, copies, listed_max)

    def _query_tables(
        self,
        settings: Sequence[TopicSettings],
        names: Collection[str],
        fetched: FetchedFiles,
        listed_max: int | None,
    ) -> tuple[list[QueryTable], dict[str, Trouble]]:
        from archiver.query.tables import query_tables

        ledger, topics = self.ledger(), self.backlog().topics_by_name

        def of_topic(name: str) -> TopicLedger | None:
            return ledger.topic(topics[name].topic_id) if name in topics else None

        # DuckDB reads local files; objects of a bucket are copied to this machine first.
        copies = fetched.paths if StorePlace.of(self.settings.data).is_s3 else None
        return query_tables(
            settings, names, self.tables, of_topic, self.fetch_schema, copies, listed_max=listed_max
        )


def open_application(settings: Settings, environ: Mapping[str, str]) -> Application:
    """Open an application for these settings.

    Raises `ConfigInvalid` if the data folder belongs to another cluster. The same if only one of the variable
    `ARCHIVER_FAILPOINTS` and the setting `testing.failpoints` asks for failpoints.
    """
    # A command prints its own progress; of the components only warnings belong on its terminal.
    setup_logging(logging.WARNING)
    arm_failpoints(settings, environ)
    return Application(settings, environ)


def arm_failpoints(settings: Settings, environ: Mapping[str, str]) -> None:
    """Arm the failpoints that the environment names; raises `ConfigInvalid` unless the settings permit
    them.
    """
    # Both are required: neither a stray variable nor a copied file can fail a production process.
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
