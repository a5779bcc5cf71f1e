"""Prepares a configured topic for archiving: its schema, its table, and the check that both belong to the
topic. Also which registry ids are known, and the description of a schema change for reports.

Guarantees: the column layout in force is in the ledger before any archive is written with it. It has the
field ids that the catalog really assigned, and the table has these columns. While a catalog is unavailable, a
topic continues with the table as recorded in the ledger (`catalog_outage.py`). Whether a table belongs to the
topic is decided in `catalog/identity.py`. What a newer schema means for the columns is decided in
`schema/evolution/state.py`. How the table gets new columns, or another partition spec, is in
`catalog/evolve.py`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archiver.catalog.evolve import TableEvolution
from archiver.catalog.identity import TableTarget, ensure_table, load_table, target_of
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import FIRST_SPEC, newest_spec
from archiver.catalog.tables import Identifier, SpecView, Tables, TableView
from archiver.config.settings import ArchiveSettings, TopicSettings
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.cluster import ClusterIdentity
from archiver.objects.paths import Granularity
from archiver.objects.store import ObjectStore, create_once
from archiver.refine.catalog_outage import check_granularity, check_known
from archiver.registry.subjects import Fetch, Fetched
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import CatalogAway, Halt, RetryLater, TopicHalted
from archiver.runtime.ids import TopicId
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted
from archiver.schema.evolution.evolve import Change, is_allowed
from archiver.schema.evolution.state import Decision, TopicSchema, decide
from intake.log.backlog import Backlog
from intake.log.fold import TopicState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicTable:
    """The table of a topic, as it was loaded."""

    catalog: str
    """The catalog's name in the configuration."""
    opened: Tables | None
    """None only while the catalog is unavailable."""
    target: TableTarget
    uuid: uuid.UUID
    away: str | None = None
    """Why the catalog could not be asked: the table is as the ledger last saw it, and nothing may be
    committed to it. None: it answered."""
    spec: SpecView = FIRST_SPEC
    """The partition spec of new archives. While the catalog is unavailable the table may have another; the
    commit then goes by the names of the archives."""

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
        """Whether `schema` has all registry ids there are, as `Fetched.complete`."""
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
    """The newest schemas of key and value, None where the configuration gives none; `known` is the newest in
    the ledger.

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
    """Prepares topics, one at a time."""

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
        """`limits` bound the attempts to change a table's columns."""
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
        """Schema and table of one topic. The table is created if it is missing, and gets new columns if the
        schema has changed.

        With `aways`, a topic whose table is in the ledger is prepared even while its catalog is unavailable.
        Catalogs that are found to be unavailable are added to `aways`, and not asked again. Raises
        `TopicHalted` (also for a schema change that `schema_change` does not allow), `ConfigInvalid`,
        `Deposed`, or the error of a fetch or a catalog.
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

    def newest_schema(self, settings: TopicSettings, ledger: TopicLedger, view: TableView) -> TopicSchema:
        """The schema that `prepare` would put in force with the table `view`; records nothing."""
        history = recorded_schemas(ledger)
        fetched = fetch_schemas(settings, history[-1] if history else None, self._fetch)
        return decide_schema(settings.name, history, fetched, view).schema

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
            # Asked once per run: each further topic would wait for the same timeout.
            if aways is not None and catalog in aways:
                raise aways[catalog]
            tables = self._tables(catalog)
            view = load_table(tables, target, ledger.table_uuid)
        except RetryLater as error:
            if aways is None:
                raise
            # Other `RetryLater` errors may concern this table alone.
            if isinstance(error, CatalogAway):
                aways[catalog] = error
            schema = self._decide(settings, history, fetched, None)
            # Nothing may be assumed about the table beyond what the ledger proves (decision 0024).
            check_known(settings.name, ledger, schema, history, error)
            check_granularity(settings.name, ledger, self._objects, target.granularity, error)
            assert ledger.table_uuid is not None, "it is known"
            return TopicTable(catalog, None, target, ledger.table_uuid, str(error)), schema
        schema = self._decide(settings, history, fetched, view)
        if schema not in history:
            # Before the table is created or altered: a schema that cannot be recorded must leave nothing
            # behind.
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
        """Write `topic.json`, so that the bucket alone says which topic a folder holds."""
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
        # Taken once: a version that is recorded right after it differs in field ids alone.
        change, self._planned = self._planned, None
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
    # The check is by the ledger: the configuration says nothing about the past.
    archived_to = max(ledger.watermarks.values(), default=0)
    if settings.archive.kind != "iceberg" and (
        # A pending archive with an event was written for a table, even if none was committed yet.
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


# --- Registry ids
class KnownIds:
    """Up to which offsets the registry ids of each topic are known: which records may be marked as
    undecodable for an id that their subject does not have.

    A producer registers its schema before it sends with it. So the list of ids has the id of every record
    that was in the intake log before the list was requested; of a later record it may not. The position in
    the log is therefore taken before the list.
    """

    def __init__(self) -> None:
        self._reached: dict[TopicId, Mapping[int, int]] = {}

    def prepared(self, work: TopicWork, reached: Mapping[int, int]) -> None:
        """A topic was prepared. `reached`: per partition, where it ended in the intake log before that
        began.
        """
        sides = (work.schema.key, work.schema.value)
        # Forgotten first: the new schema may have no registry ids any more.
        self._reached.pop(work.state.topic_id, None)
        if any(side is not None and side.envelope is not None for side in sides):
            complete = all(one is None or one.complete for one in work.fetched)
            # An incomplete list proves nothing about any record, so every unknown id waits.
            self._reached[work.state.topic_id] = reached if complete else {}

    def judged_to(self, topic_id: TopicId, partitions: Iterable[int]) -> dict[int, int] | None:
        """Per partition the offset from which on an unknown id is no verdict; None if the topic has no
        registry ids.
        """
        reached = self._reached.get(topic_id)
        return None if reached is None else {partition: reached.get(partition, 0) for partition in partitions}


def ends(intake: Backlog, topic_id: TopicId, partitions: int) -> dict[int, int]:
    """Per partition the offset that its next record will get."""
    return {partition: intake.next_offset((topic_id, partition)) for partition in range(partitions)}


# --- Schema changes, for reports
FIELDS_SHOWN = 5
"""Fields that a message names."""
_TEXT_MAX = 120
"""Characters of a field's name or type in a message."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of a topic's schema from one recorded version to the next."""

    topic: str
    was: int
    now: int
    changes: tuple[Change, ...]

    @property
    def incompatible(self) -> tuple[Change, ...]:
        """The changes after which records or queries of before mean something else."""
        return tuple(one for one in self.changes if not one.compatible)

    @property
    def line(self) -> str:
        """For people, on one line: `schema 1 → 2, 3 incompatible: value.price (double → string, now in
        value.price_v2), …`.
        """
        wrong = self.incompatible
        versions = f"schema {self.was} → {self.now}"
        if not wrong:
            return f"{versions}, {counted(len(self.changes), 'change')}, compatible"
        return f"{versions}, {len(wrong)} incompatible: {_listed(wrong)}"

    def to_json(self) -> dict[str, Any]:
        """As the report of an archiving run has it."""
        fields = [
            f"{one.side}.{one.field}" if one.field else one.side for one in self.incompatible[:FIELDS_SHOWN]
        ]
        return {
            "from": self.was,
            "to": self.now,
            "changes": len(self.changes),
            "incompatible": len(self.incompatible),
            "incompatible_fields": fields,
        }


def change_of(topic: str, history: Sequence[TopicSchema], decision: Decision) -> SchemaChange | None:
    """The change that a decision would record; None for a first version and where nothing is new."""
    # A first version changes nothing, and a recorded one was reported when it was recorded.
    if not history or not decision.changes or decision.schema in history:
        return None
    return SchemaChange(topic, history[-1].version, decision.schema.version, decision.changes)


def check_allowed(settings: TopicSettings, change: SchemaChange | None) -> None:
    """Raise `TopicHalted` if the topic's `schema_change` does not allow the change."""
    policy = settings.schema_change
    if change is None or is_allowed(policy, change.changes):
        return
    named = change.line if change.incompatible else f"{change.line}: {_listed(change.changes)}"
    accept = "schema_change: evolve" if change.incompatible else "schema_change: compatible"
    raise TopicHalted(
        settings.name,
        f"its newest schema needs {named}; schema_change: {policy} does not allow this. Records stay "
        "in intake, and none is lost. "
        f"`archiver schema plan {settings.name}` shows the change. Accept it with {accept} and a "
        "reload, or restore the former schema",
    )


def _listed(changes: Sequence[Change]) -> str:
    rest = len(changes) - FIELDS_SHOWN
    return ", ".join(_named(one) for one in changes[:FIELDS_SHOWN]) + (
        f", and {rest} more" if rest > 0 else ""
    )


def _named(change: Change) -> str:
    name = _cut(f"{change.side}.{change.field}" if change.field else change.side)
    if change.what in ("added", "dropped", "restored"):
        return f"{name} ({change.what})"
    if change.what == "renamed":
        return f"{name} (renamed from {_cut(change.was)})"
    column = f", now in {_cut(change.column)}" if change.what == "new_column" else ""
    return f"{name} ({_cut(change.was) or 'none'} → {_cut(change.now) or 'none'}{column})"


def _cut(text: str) -> str:
    return excerpt(text, _TEXT_MAX)
