"""What stands between a configured topic and its first plan: schema, table, and the proof that both are the
topic's own.

Promises that the column layout in force is in the ledger before any archive is made with it, with the field
ids that the catalog really assigned, and that the table has its columns. While a catalog is away, what the
ledger knows of a table is enough to go on with the columns that it has (`waiting.py`). Whether a table is the
topic's own is judged in `catalog/identity.py`, what a newer schema means for its columns in
`schema/evolution/state.py`, and how the table gets them, or another partition spec, in `catalog/evolve.py`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.catalog.evolve import TableEvolution
from archiver.catalog.identity import TableTarget, ensure_table, load_table, target_of
from archiver.catalog.specs import FIRST_SPEC, newest_spec
from archiver.catalog.swap import CommitLimits
from archiver.catalog.tables import Identifier, SpecView, Tables, TableView
from archiver.config.settings import ArchiveSettings, TopicSettings
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.cluster import ClusterIdentity
from archiver.objects.idempotent_put import create_once
from archiver.objects.paths import Granularity
from archiver.objects.store import ObjectStore
from archiver.refine.catalog_outage import check_granularity, check_known
from archiver.refine.schema_change import SchemaChange, change_of, check_allowed
from archiver.registry.fetched import Fetch, Fetched
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import CatalogAway, Halt, RetryLater, TopicHalted
from archiver.schema.evolution.state import Decision, TopicSchema, decide
from intake.log.fold import TopicState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicTable:
    """The table a topic goes to, as it was found."""

    catalog: str
    """The catalog's name in the configuration."""
    opened: Tables | None
    """None only while the catalog is away."""
    target: TableTarget
    uuid: uuid.UUID
    away: str | None = None
    """Why the catalog could not be asked: the table is as the ledger last saw it, and nothing may be
    committed to it. None: it answered."""
    spec: SpecView = FIRST_SPEC
    """The partition spec of new archives. While the catalog is away it may be another: the commit goes by
    their names."""

    @property
    def tables(self) -> Tables:
        """The catalog, once it has answered."""
        assert self.opened is not None, "a catalog that is away is not asked"
        return self.opened

    @property
    def identifier(self) -> Identifier:
        """Namespace levels and name."""
        return self.target.identifier


@dataclass(frozen=True)
class TopicWork:
    """A topic that is ready to be archived."""

    settings: TopicSettings
    archive: ArchiveSettings
    state: TopicState
    schema: TopicSchema
    granularity: Granularity
    table: TopicTable | None
    """None for kind parquet: archives without a table."""
    fetched: tuple[Fetched | None, Fetched | None] = (None, None)
    """What was fetched for key and value."""

    @property
    def complete(self) -> bool:
        """Whether the registry ids in `schema` are all there are, as `Fetched.complete`."""
        return all(one is None or one.complete for one in self.fetched)

    @property
    def spec(self) -> SpecView:
        """The partition spec of its archives."""
        return FIRST_SPEC if self.table is None else self.table.spec

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.state.name


def fetch_schemas(
    topic: TopicSettings, known: TopicSchema | None, fetch: Fetch
) -> tuple[Fetched | None, Fetched | None]:
    """The newest schemas of key and value, None for what the configuration gives none; `known` is the newest
    in the ledger.

    Raises as `Fetch`.
    """
    key = None if topic.key is None else fetch(topic.key, None if known is None else known.key)
    value = None if topic.value is None else fetch(topic.value, None if known is None else known.value)
    return key, value


def recorded_schemas(ledger: TopicLedger) -> tuple[TopicSchema, ...]:
    """Every version that the ledger records, the oldest first."""
    return tuple(TopicSchema.from_entry(entry) for _, entry in sorted(ledger.schemas.items()))


def decide_schema(
    topic: str,
    history: Sequence[TopicSchema],
    fetched: tuple[Fetched | None, Fetched | None],
    view: TableView | None,
) -> Decision:
    """What the fetched schemas mean for the topic's columns; `view` is its table, None if it has none (yet).
    Raises `ConfigInvalid`.
    """
    key, value = (None if one is None else one.source for one in fetched)
    return decide(topic, history, key, value, 0 if view is None else view.last_column_id)


class TopicSetup:
    """Makes topics ready, one at a time."""

    def __init__(
        self,
        cluster: ClusterIdentity,
        objects: ObjectStore,
        leader: Leader,
        tables: Callable[[str], Tables],
        fetch: Fetch,
        limits: CommitLimits,
        clock: Clock,
    ) -> None:
        """`limits` bound the tries to change a table's columns."""
        self._cluster = cluster
        self._objects = objects
        self._leader = leader
        self._tables = tables
        self._fetch = fetch
        self._limits = limits
        self._clock = clock
        self._planned: SchemaChange | None = None
        self._changed: dict[str, SchemaChange] = {}

    def take_change(self, topic: str) -> SchemaChange | None:
        """The change of the topic's schema that was recorded since the last call; None if there was none."""
        return self._changed.pop(topic, None)

    def prepare(
        self,
        settings: TopicSettings,
        archive: ArchiveSettings,
        state: TopicState,
        aways: dict[str, CatalogAway] | None = None,
    ) -> TopicWork:
        """Schema and table of one topic; the table is created if this is the first time, and gets new columns
        if the schema has changed.

        With `aways`, a topic whose table the ledger knows is made ready also while its catalog cannot be
        asked; catalogs found to be away are put into it, and not asked again. Raises `TopicHalted` (also for
        a change of the schema that `schema_change` does not allow), `ConfigInvalid`, `Deposed`, or what a
        fetch or a catalog raises.
        """
        ledger = self._leader.fold.topic(state.topic_id)
        _check_kind(settings, ledger)
        history = recorded_schemas(ledger)
        fetched = fetch_schemas(settings, history[-1] if history else None, self._fetch)
        granularity = settings.archive.partition_by[0]
        table: TopicTable | None = None
        if settings.archive.kind == "iceberg":
            table, schema = self._with_table(settings, state, history, fetched, aways)
        else:
            schema = self._decide(settings, history, fetched, None)
            self._write_identity(state)
            if schema not in history:
                self._record(state, schema)
        return TopicWork(settings, archive, state, schema, granularity, table, fetched)

    def _with_table(
        self,
        settings: TopicSettings,
        state: TopicState,
        history: Sequence[TopicSchema],
        fetched: tuple[Fetched | None, Fetched | None],
        aways: dict[str, CatalogAway] | None,
    ) -> tuple[TopicTable, TopicSchema]:
        """The topic's table, and the recorded schema whose columns it has."""
        catalog = settings.archive.catalog or ""
        ledger = self._leader.fold.topic(state.topic_id)
        target = target_of(
            settings, state.topic_id, state.partitions, self._cluster.cluster_id, self._objects
        )
        try:
            if aways is not None and catalog in aways:
                raise aways[catalog]
            tables = self._tables(catalog)
            view = load_table(tables, target, ledger.table_uuid)
        except RetryLater as error:
            if aways is None:
                raise
            if isinstance(error, CatalogAway):
                aways[catalog] = error
            schema = self._decide(settings, history, fetched, None)
            check_known(settings.name, ledger, schema, history, error)
            check_granularity(settings.name, ledger, self._objects, target.granularity, error)
            assert ledger.table_uuid is not None, "it is known"
            return TopicTable(catalog, None, target, ledger.table_uuid, str(error)), schema
        schema = self._decide(settings, history, fetched, view)
        if schema not in history:
            self._check_size(state, schema)
        if view is None:
            view = ensure_table(tables, target, ledger.table_uuid, schema.iceberg_json)
        self._write_identity(state)
        evolution = TableEvolution(tables, self._leader, self._limits, self._clock)
        schema = evolution.bring(
            target,
            view,
            schema,
            history,
            ledger.written_version,
            lambda version: self._record(state, version),
        )
        view = evolution.partition(target, view)
        return TopicTable(
            catalog, tables, target, view.uuid, spec=newest_spec(view, target.granularity) or FIRST_SPEC
        ), schema

    def _decide(
        self,
        settings: TopicSettings,
        history: Sequence[TopicSchema],
        fetched: tuple[Fetched | None, Fetched | None],
        view: TableView | None,
    ) -> TopicSchema:
        """The topic's schema from here on. Raises `TopicHalted` if the topic does not allow the change."""
        decision = decide_schema(settings.name, history, fetched, view)
        self._planned = change_of(settings.name, history, decision)
        check_allowed(settings, self._planned)
        return decision.schema

    def _write_identity(self, state: TopicState) -> None:
        """`topic.json`: so that a bucket alone says which topic a folder holds."""
        document = {
            "format": 1,
            "topic": state.name,
            "topic_id": state.topic_id,
            "partitions": state.partitions,
            "created_us": state.created_us,
        }
        key = paths.topic_key(state.topic_id)
        if self._objects.info(key) is None:
            failpoints.reach("identity.upload.before")
            create_once(self._objects, key, json.dumps(document, indent=2).encode() + b"\n")
            failpoints.reach("identity.upload.after")

    def _check_size(self, state: TopicState, schema: TopicSchema) -> None:
        """Refuse a schema that does not fit into an entry before anything is created for it."""
        messages = ", ".join(
            f"{name} {side.message}"
            for name, side in zip(("key", "value"), schema.sides(), strict=True)
            if side is not None
        )
        try:
            what = f"the schema of topic {state.name} ({messages or 'no messages'}, version {schema.version})"
            self._leader.check_size(schema.to_entry(bytes.fromhex(state.topic_id)), what)
        except Halt as error:
            raise TopicHalted(state.name, str(error)) from error

    def _record(self, state: TopicState, schema: TopicSchema) -> None:
        self._check_size(state, schema)
        failpoints.reach("schema.append.before")
        self._leader.append(schema.to_entry(bytes.fromhex(state.topic_id)))
        failpoints.reach("schema.append.after")
        change, self._planned = self._planned, None  # a version after it differs in ids alone
        if change is not None:
            self._changed[change.topic] = change
            _log.log(
                logging.WARNING if change.incompatible else logging.INFO,
                "topic %s: %s",
                change.topic,
                change.line,
            )


def _check_kind(settings: TopicSettings, ledger: TopicLedger) -> None:
    """Archives with and without a table do not continue each other."""
    archived_to = max(ledger.watermarks.values(), default=0)
    if settings.archive.kind != "iceberg" and (
        ledger.table_uuid is not None or any(item.event is not None for item in ledger.pending)
    ):
        raise TopicHalted(
            settings.name,
            "it has been archived to a table, but the configuration says kind: parquet; restore kind: "
            "iceberg and its table",
        )
    if settings.archive.kind == "iceberg" and ledger.table_uuid is None and archived_to:
        raise TopicHalted(
            settings.name,
            f"it has been archived without a table (up to offset {archived_to} in one partition), and "
            "a table would begin in the middle; "
            "restore kind: parquet, or send to a new topic",
        )
