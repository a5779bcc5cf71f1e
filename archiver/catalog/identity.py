"""Creates a topic's table, and checks that a table is the topic's.

Owns the check that a table belongs to a topic: its properties name cluster and topic, its uuid is the one in
the ledger, its format, partitioning and location are ours. A mismatch halts the topic with what to do. Must
never create a table a second time: if the catalog lacks a table of the ledger, an operator decides.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from archiver.catalog.table_layout import (
    CLUSTER_ID,
    FORMAT_VERSION,
    LAYOUT_VERSION,
    LAYOUT_VERSION_VALUE,
    TOPIC_ID,
    left_by_us,
    stream_fields,
    table_properties,
)
from archiver.catalog.tables import Identifier, Tables, TableView, parse_identifier, shown
from archiver.config.settings import TopicSettings
from archiver.objects.paths import Granularity, table_prefix
from archiver.objects.store import ObjectStore
from archiver.runtime import failpoints
from archiver.runtime.errors import Halt, KeyExists, TopicHalted
from archiver.runtime.ids import TopicId


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The table one topic is archived to."""

    topic: str
    topic_id: TopicId
    cluster_id: str
    identifier: Identifier
    partitions: int
    """Of the topic."""
    granularity: Granularity
    location: str
    """Absolute URI of the table's folder, without a slash at the end. Not used where the catalog places
    tables."""


def target_of(
    settings: TopicSettings, topic_id: TopicId, partitions: int, cluster_id: str, objects: ObjectStore
) -> TableTarget:
    """The table that a topic of kind iceberg is archived to, as the configuration has it."""
    return TableTarget(
        topic=settings.name,
        topic_id=topic_id,
        cluster_id=cluster_id,
        identifier=parse_identifier(settings.archive.table or ""),
        partitions=partitions,
        granularity=settings.archive.partition_by[0],
        location=objects.uri(table_prefix(topic_id)),
    )


def load_table(tables: Tables, target: TableTarget, known_uuid: uuid.UUID | None) -> TableView | None:
    """The topic's table; None if there is none and the ledger never had one.

    `known_uuid` is the ledger's. Raises `TopicHalted` if the table is gone, another one, or has a layout that
    this version does not write.
    """
    try:
        view = tables.load(target.identifier)
    # The table of one topic is damaged or gone. The others continue, so only this topic halts.
    except Halt as error:
        raise TopicHalted(target.topic, str(error)) from error
    if view is not None:
        check_identity(view, target, known_uuid)
    # Creating it again would archive into an empty table, and hide that the old rows are gone.
    elif known_uuid is not None:
        raise TopicHalted(
            target.topic,
            f"table {shown(target.identifier)} (uuid {known_uuid}) is gone; it was dropped or renamed: "
            "rename it back or restore it, "
            f"or configure another table name for a new topic",
        )
    return view


def ensure_table(
    tables: Tables, target: TableTarget, known_uuid: uuid.UUID | None, schema_json: str
) -> TableView:
    """As `load_table`, but creates the table if there is none. The catalog may assign other field ids, which
    are in the view's schema.
    """
    view = load_table(tables, target, known_uuid)
    if view is not None:
        return view
    failpoints.reach("table.create.before")
    try:
        view = tables.create(
            target.identifier,
            target.location,
            schema_json,
            target.granularity,
            table_properties(target.cluster_id, target.topic_id, target.topic),
        )
    # An earlier create whose reply was lost, or another process. `check_identity` decides whether it is ours.
    except KeyExists:
        view = tables.load(target.identifier)
        if view is None:
            raise TopicHalted(
                target.topic,
                f"table {shown(target.identifier)} exists and cannot be loaded; check the catalog",
            ) from None
    failpoints.reach("table.create.after")
    check_identity(view, target, known_uuid)
    return view


def check_identity(view: TableView, target: TableTarget, known_uuid: uuid.UUID | None) -> None:
    """Raise `TopicHalted` unless the table is the topic's and laid out as this version writes."""
    why = mismatch(view, target, known_uuid)
    if why is not None:
        raise TopicHalted(target.topic, f"table {shown(view.identifier)} {why}")


def mismatch(view: TableView, target: TableTarget, known_uuid: uuid.UUID | None) -> str | None:
    """Why a table is not the topic's as this version writes it, worded to follow its name; None if it is."""
    cluster, topic = view.properties.get(CLUSTER_ID), view.properties.get(TOPIC_ID)
    # Ownership before layout: a table of another owner must not be reported as one to be corrected.
    if cluster is None or topic is None:
        return f"was not made by the archiver (it has no property {TOPIC_ID}); configure another table"
    if cluster != target.cluster_id:
        return f"belongs to cluster {cluster}, not to {target.cluster_id}; configure another table"
    if topic != target.topic_id:
        return (
            f"belongs to a topic with id {topic}, not to {target.topic_id} (a recreated topic needs a new "
            "table); configure another table"
        )
    if known_uuid is not None and view.uuid != known_uuid:
        return (
            f"has uuid {view.uuid}, the ledger has {known_uuid}: it was dropped and recreated; restore "
            "the old one, or configure another"
        )
    if view.properties.get(LAYOUT_VERSION) != LAYOUT_VERSION_VALUE:
        have = view.properties.get(LAYOUT_VERSION)
        return (
            f"has layout version {have}, this version writes {LAYOUT_VERSION_VALUE}; use the version that "
            "fits"
        )
    if view.format_version != FORMAT_VERSION:
        return (
            f"has iceberg format version {view.format_version}, this version writes {FORMAT_VERSION}; use "
            "a version that can"
        )
    # The spec that the archiver last set is accepted too: the configuration changed since, and the spec
    # follows.
    if view.granularity is None or view.granularity not in (target.granularity, left_by_us(view)):
        spec = view.granularity or "something else"
        return (
            f"is partitioned by {spec}, the configuration says {target.granularity}; restore the partition "
            "spec or the configuration"
        )
    if not view.placed_by_catalog and view.location.rstrip("/") != target.location.rstrip("/"):
        return (
            f"lies at {view.location}, it must lie at {target.location}; move it back, configure "
            "another table, or leave it to the catalog "
            "where its tables lie (location: catalog)"
        )
    try:
        stream_fields(view.schema_json)
    except Halt as error:
        return f"cannot be written to: {error}"
    return None
