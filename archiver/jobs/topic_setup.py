"""What stands between a configured topic and its first plan: schema, table, and the proof that both are the topic's own.

Promises that the column layout in force is in the ledger before any archive is made with it, with the field ids that the catalog really
assigned. Whether a table is the topic's own is judged in `catalog/identity.py`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from archiver import failpoints
from archiver.catalog.identity import TableTarget, ensure_table
from archiver.catalog.tables import Identifier, Tables, parse_identifier
from archiver.errors import Halt, TopicHalted
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.cluster import ClusterIdentity
from archiver.objects.once import create_once
from archiver.objects.paths import Granularity
from archiver.objects.store import ObjectStore
from archiver.schema.descriptors import Source, load_source
from archiver.schema.state import TopicSchema, adopt_table_ids, decide
from archiver.settings import ArchiveSettings, SchemaSettings, TopicSettings
from intake.fold import TopicState


@dataclass(frozen=True)
class TopicTable:
    """The table a topic goes to, as it was found."""

    catalog: str
    """The catalog's name in the configuration."""
    tables: Tables
    target: TableTarget
    uuid: uuid.UUID

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

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.state.name


def load_sources(topic: TopicSettings) -> tuple[Source | None, Source | None]:
    """The descriptors of key and value that the configuration names; raises `ConfigInvalid`."""
    return _load(topic.key), _load(topic.value)


def _load(settings: SchemaSettings | None) -> Source | None:
    return None if settings is None else load_source(settings.descriptor_set, settings.message)


class TopicSetup:
    """Makes topics ready, one at a time."""

    def __init__(self, cluster: ClusterIdentity, objects: ObjectStore, leader: Leader, tables: Callable[[str], Tables]) -> None:
        self._cluster = cluster
        self._objects = objects
        self._leader = leader
        self._tables = tables

    def prepare(self, settings: TopicSettings, archive: ArchiveSettings, state: TopicState) -> TopicWork:
        """Schema and table of one topic, created if this is the first time.

        Raises `TopicHalted`, `ConfigInvalid`, or what a catalog raises.
        """
        key, value = load_sources(settings)
        ledger = self._leader.fold.topic(state.topic_id)
        _check_kind(settings, ledger)
        entry = ledger.schemas.get(ledger.schema_version)
        known = None if entry is None else TopicSchema.from_entry(entry)
        schema = decide(settings.name, known, key, value)
        if schema != known:
            self._check_size(settings.name, state, schema)
        granularity = settings.archive.partition_by[0]
        table: TopicTable | None = None
        if settings.archive.kind == "iceberg":
            table, schema = self._table(settings, state, schema, granularity, ledger.table_uuid)
        self._write_identity(state)
        if schema != known:
            self._record(state, schema)
        return TopicWork(settings, archive, state, schema, granularity, table)

    def _table(
        self, settings: TopicSettings, state: TopicState, schema: TopicSchema, granularity: Granularity, known_uuid: uuid.UUID | None
    ) -> tuple[TopicTable, TopicSchema]:
        catalog = settings.archive.catalog or ""
        tables = self._tables(catalog)
        target = TableTarget(
            topic=state.name,
            topic_id=state.topic_id,
            cluster_id=self._cluster.cluster_id,
            identifier=parse_identifier(settings.archive.table or ""),
            partitions=state.partitions,
            granularity=granularity,
            location=self._objects.uri(paths.table_prefix(state.topic_id)),
        )
        view = ensure_table(tables, target, known_uuid, schema.iceberg_json)
        return TopicTable(catalog, tables, target, view.uuid), adopt_table_ids(schema, view.schema_json)

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

    def _check_size(self, topic: str, state: TopicState, schema: TopicSchema) -> None:
        """Refuse a schema that does not fit into an entry before anything is created for it."""
        try:
            self._leader.check_size(schema.to_entry(bytes.fromhex(state.topic_id)), f"the schema of topic {topic}")
        except Halt as error:
            raise TopicHalted(topic, str(error)) from error

    def _record(self, state: TopicState, schema: TopicSchema) -> None:
        self._check_size(state.name, state, schema)
        failpoints.reach("schema.append.before")
        self._leader.append(schema.to_entry(bytes.fromhex(state.topic_id)))
        failpoints.reach("schema.append.after")


def _check_kind(settings: TopicSettings, ledger: TopicLedger) -> None:
    """Archives with and without a table do not continue each other."""
    archived_to = max(ledger.watermarks.values(), default=0)
    if settings.archive.kind != "iceberg" and (ledger.table_uuid is not None or any(item.event is not None for item in ledger.pending)):
        raise TopicHalted(
            settings.name, "it has been archived to a table, but the configuration says kind: parquet; restore kind: iceberg and its table"
        )
    if settings.archive.kind == "iceberg" and ledger.table_uuid is None and archived_to:
        raise TopicHalted(
            settings.name,
            f"it has been archived without a table (up to offset {archived_to} in one partition), and a table would begin in the middle; "
            "restore kind: parquet, or send to a new topic",
        )
