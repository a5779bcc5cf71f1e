"""The layout of our tables: partition specs, sort order, properties, and ids of the stream's coordinates.

Owns the names of the table properties that the archiver writes. Must never write `commit.retry.*`, because
other engines obey those as well. Partition field: `ingest_day`, `ingest_hour` or `ingest_month` of
`kafka.ingest_timestamp`. Sort order: `kafka.ingest_timestamp`, then `kafka.offset`, ascending, nulls first.
Format version 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archiver.catalog.tables import SpecView, TableView
from archiver.events.types import DataFile
from archiver.objects.paths import ARCHIVE_PREFIX, Granularity, parse_archive_key
from archiver.runtime.errors import Halt
from archiver.runtime.ids import TopicId

# --- Partition specs


def spec_id_of(view: TableView, item: DataFile) -> int:
    """The spec under which the table must name the file; raises `Halt` if it has none that fits."""
    named = named_granularity(item.path)
    own = next((spec for spec in view.specs if spec.spec_id == item.spec_id), None)
    # The path is checked too: a rebuilt table may have given the same spec id to another granularity.
    if own is not None and own.granularity is not None and named in (None, own.granularity):
        return own.spec_id
    # The id does not fit, but the path states the granularity, which is all that a spec of ours has.
    fitting = None if named is None else newest_spec(view, named)
    if fitting is None:
        raise Halt(
            f"archive {item.path} was written for partition spec {item.spec_id}, by "
            f"{named or 'nothing that its name says'}; the table "
            f"has no such spec (its default is {view.spec_id}); restore that spec"
        )
    return fitting.spec_id


def newest_spec(view: TableView, granularity: Granularity) -> SpecView | None:
    """The table's spec of that granularity: the default one if it is, else the newest; None if there is
    none.
    """
    fitting = [spec for spec in view.specs if spec.granularity == granularity]
    return max(fitting, key=lambda spec: (spec.spec_id == view.spec_id, spec.spec_id), default=None)


def named_granularity(path: str) -> Granularity | None:
    """The granularity in an archive's path; None if the path is not one of an archive."""
    # The last match: the location of the table may contain the same word.
    at = path.rfind(f"/{ARCHIVE_PREFIX}")
    key = None if at < 0 else parse_archive_key(path[at + 1 :])
    return None if key is None else key.granularity


def left_by_us(view: TableView) -> str | None:
    """The granularity that the archiver last set. It differs from the default partition spec if another
    writer changed that.
    """
    recorded = view.properties.get(PARTITION_BY)
    # The property is written only when the spec changes. Until then the first spec is ours.
    if recorded is None and view.specs:
        return min(view.specs, key=lambda spec: spec.spec_id).granularity
    return recorded


# --- Properties and columns


FORMAT_VERSION = 2
"""Of the Iceberg tables this version writes to."""

CLUSTER_ID = "archiver.cluster-id"
TOPIC_ID = "archiver.topic-id"
TOPIC_NAME = "archiver.topic"
LAYOUT_VERSION = "archiver.format-version"
WATERMARKS = "archiver.watermarks"
COMMIT_ID = "archiver.commit-id"
VALID_THROUGH = "archiver.valid-through-ts"
RANGES = "archiver.ranges"
"""Summary only: what a snapshot added, `partition:base-end` separated by commas, or a count where that would
be long."""

REPLAYED = "archiver.replayed"
"""Summary only: how many archives a replay replaced."""

COMPACTED = "archiver.compacted"
"""Summary only: how many merged archives were added, each for several small ones."""

RETIRED = "archiver.retired"
"""Summary only: how many files retention removed."""

REBUILT = "archiver.rebuilt"
"""Of a table that `archiver reconcile --rebuild` created: the uuid of the table that it replaces, or `bucket`
if that is unknown. In a summary: how many archives the snapshot added."""

PARTITION_BY = "archiver.partition-by"
"""The granularity that the archiver last set, if it differs from the one at creation. A default spec of
another granularity that the configuration does not name was set by another writer."""

EXPIRED_CHANGES = "archiver.expired-changes"
"""Changes of the number of rows by other writers' snapshots that our own commits expired
(`archiver.catalog.external_changes`)."""

SET_BACK = "archiver.set-back"
"""Summary only: the snapshot resets the watermarks of a table that was rolled back."""

LAYOUT_VERSION_VALUE = "1"
"""Version of the archiver's own table layout."""

PARTITION_FIELD_ID = 1000
"""Iceberg's first partition field id."""
FIRST_SPEC = SpecView(0, None, PARTITION_FIELD_ID)
"""The spec that a table is created with. Archives name it until the table is loaded."""

_BOUNDED = tuple(
    f"write.metadata.metrics.column.kafka.{name}" for name in ("partition", "offset", "ingest_timestamp")
)
"""By default other engines keep bounds of a table's first hundred columns only, and these columns follow the
message's. Without their bounds nothing shows which offsets a compacted file holds."""

SORT_ORDER_ID = 1
"""Id of the sort order of our files."""

PARTITION_NAMES: dict[Granularity, str] = {
    "day": "ingest_day",
    "hour": "ingest_hour",
    "month": "ingest_month",
}
"""Name of the partition field by granularity."""

PARTITION_TYPES: dict[Granularity, str] = {"day": "date", "hour": "int", "month": "int"}
"""Iceberg type of the partition value by granularity."""


@dataclass(frozen=True, slots=True)
class StreamFields:
    """Field ids of the stream's coordinates."""

    partition: int
    offset: int
    ingest_timestamp: int


def stream_fields(schema_json: str) -> StreamFields:
    """Field ids of `kafka.partition`, `kafka.offset` and `kafka.ingest_timestamp`; raises `Halt` if the
    schema lacks one.
    """
    # By name: the catalog may have assigned other ids than those of the create request.
    document: dict[str, Any] = json.loads(schema_json)
    kafka = next((item for item in document.get("fields", []) if item["name"] == "kafka"), None)
    found: dict[str, int] = {}
    if kafka is not None and isinstance(kafka["type"], dict):
        found = {item["name"]: item["id"] for item in kafka["type"].get("fields", [])}
    try:
        return StreamFields(found["partition"], found["offset"], found["ingest_timestamp"])
    except KeyError as error:
        raise Halt(
            f"the table's schema has no column kafka.{error.args[0]}; it is not one of the archiver's"
        ) from error


def bound_number(bounds: Mapping[int, bytes] | None, field_id: int) -> int | None:
    """A bound of an int or long column (little-endian in both sizes); None if the file carries none."""
    # Four bytes as well: an int column that became a long keeps old bounds of four bytes.
    data = None if bounds is None else bounds.get(field_id)
    return None if data is None or len(data) not in {4, 8} else int.from_bytes(data, "little", signed=True)


def partition_of(schema_json: str, fields: list[tuple[int, str]]) -> Granularity | None:
    """The granularity of a partition spec given as (source field id, transform); None if it is not one of
    ours.
    """
    try:
        source = stream_fields(schema_json).ingest_timestamp
    except Halt:
        return None
    if len(fields) != 1 or fields[0][0] != source:
        return None
    for granularity in PARTITION_NAMES:
        if fields[0][1] == granularity:
            return granularity
    return None


def table_properties(
    cluster_id: str, topic_id: TopicId, topic: str, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Properties of a new table."""
    return {
        **(extra or {}),
        "format-version": str(FORMAT_VERSION),
        CLUSTER_ID: cluster_id,
        TOPIC_ID: topic_id,
        TOPIC_NAME: topic,
        LAYOUT_VERSION: LAYOUT_VERSION_VALUE,
        # Another engine's expiry must not delete files that readers of the stream need.
        "gc.enabled": "false",
        "write.parquet.compression-codec": "zstd",
        **missing_bounds({}),
    }


def missing_bounds(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties that the table still needs, so that other engines keep the bounds of the stream's
    coordinates.
    """
    # A mode that keeps bounds, such as `truncate(16)`, is left as a user set it.
    return {name: "full" for name in _BOUNDED if properties.get(name, "none") in {"none", "counts"}}
