"""The structs of control events as tables: name, field id, type and doc of every field, and its Python type.

It has the current vocabulary (releases 1.10 to 1.12) and the older one, which the archiver itself only reads.
`codec` writes the tables as schema text, and matches a writer's schema against them. A field id is never
reused, and fields are never added: Java readers refuse unknown ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archiver.events import types

NAMESPACE = "org.apache.iceberg.connect.events"
LEGACY_NAMESPACE = "io.tabular.iceberg.connect.events"
FILE_NAMESPACE = "org.apache.iceberg"

EVENT = f"{NAMESPACE}.Event"
LEGACY_EVENT = f"{LEGACY_NAMESPACE}.Event"
PARTITION_DATA = f"{FILE_NAMESPACE}.PartitionData"
TABLE_UUID_ID = 10604

WITHOUT_TABLE_UUID = frozenset({TABLE_UUID_ID})
"""Fields that release 1.10 does not have and refuses."""
# Ids of the newest file fields: first_row_id, referenced_data_file, and content offset and size.
LEGACY_WITHOUT = frozenset({142, 143, 144, 145})
"""Fields of a file that the older vocabulary does not have."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """`int`, `long`, `string`, `bytes`, `uuid`, `timestamp` (microseconds) or `millis` (older vocabulary,
    converted to microseconds).
    """

    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list; `element_id` is Iceberg's id of its elements (None: the older vocabulary writes none)."""

    items: Kind
    element_id: int | None = None


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from int, written as a list of key and value records."""

    key_id: int
    value_id: int
    values: Scalar


@dataclass(frozen=True, slots=True)
class PartitionTuple:
    """The partition record, whose fields differ between tables."""


@dataclass(frozen=True, slots=True)
class Struct:
    """A record and its Python form."""

    name: str
    """Full Avro name."""
    fields: tuple[Field, ...]
    make: Callable[..., Any]
    """Called with each field's `attribute` as a keyword."""
    by_name: bool = False
    """Older vocabulary: every field id is the text "-1", so fields are matched by name."""
    value: type | None = None
    """Python type of its values if `make` is a function."""

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


Kind = Scalar | ListOf | MapOf | PartitionTuple | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str
    field_id: int
    kind: Kind
    attribute: str
    """Attribute name in the Python type."""
    optional: bool = False
    doc: str | None = None
    if_null: Any = None
    """The value of a null."""


_INT, _LONG, _STRING, _BYTES = Scalar("int"), Scalar("long"), Scalar("string"), Scalar("bytes")
_UUID, _TIMESTAMP, _MILLIS = Scalar("uuid"), Scalar("timestamp"), Scalar("millis")

TABLE_REFERENCE = Struct(
    f"{NAMESPACE}.TableReference",
    (
        Field("catalog", 10600, _STRING, "catalog"),
        Field("namespace", 10601, ListOf(_STRING, 10602), "namespace"),
        Field("name", 10603, _STRING, "name"),
        Field("table_uuid", TABLE_UUID_ID, _UUID, "uuid", optional=True),
    ),
    types.TableReference,
)

TOPIC_PARTITION_OFFSET = Struct(
    f"{NAMESPACE}.TopicPartitionOffset",
    (
        Field("topic", 10700, _STRING, "topic"),
        Field("partition", 10701, _INT, "partition"),
        Field("offset", 10702, _LONG, "offset", optional=True),
        Field("timestamp", 10703, _TIMESTAMP, "timestamp_us", optional=True),
    ),
    types.TopicPartitionOffset,
)


def _statistic(name: str, field_id: int, ids: tuple[int, int], values: Scalar, doc: str) -> Field:
    # The docs are part of the schema text, so they are word for word those of Iceberg.
    return Field(name, field_id, MapOf(*ids, values), name, optional=True, doc=f"Map of column id to {doc}")


_CONTENT_DOC = "Contents of the file: 0=data, 1=position deletes, 2=equality deletes"
_PARTITION_DOC = "Partition data tuple, schema based on the partition spec"
_REFERENCED_DOC = "Fully qualified location (URI with FS scheme) of a data file that all deletes reference"
_CONTENT_SIZE_DOC = "The length of referenced content stored in the file"

_FILE_FIELDS = (
    # In the order of Java's struct, which is the order on the wire. Docs are Iceberg's, word for word.
    Field("content", 134, _INT, "content", optional=True, doc=_CONTENT_DOC, if_null=0),
    Field("file_path", 100, _STRING, "path", doc="Location URI with FS scheme"),
    Field("file_format", 101, _STRING, "file_format", doc="File format name: avro, orc, or parquet"),
    # Java reads a null into a primitive field, which then has this value.
    Field("spec_id", 141, _INT, "spec_id", optional=True, doc="Partition spec ID", if_null=-1),
    Field("partition", 102, PartitionTuple(), "partition", doc=_PARTITION_DOC),
    Field("record_count", 103, _LONG, "record_count", doc="Number of records in the file"),
    Field("file_size_in_bytes", 104, _LONG, "file_size", doc="Total file size in bytes"),
    _statistic("column_sizes", 108, (117, 118), _LONG, "total size on disk"),
    _statistic("value_counts", 109, (119, 120), _LONG, "total count, including null and NaN"),
    _statistic("null_value_counts", 110, (121, 122), _LONG, "null value count"),
    _statistic("nan_value_counts", 137, (138, 139), _LONG, "number of NaN values in the column"),
    _statistic("lower_bounds", 125, (126, 127), _BYTES, "lower bound"),
    _statistic("upper_bounds", 128, (129, 130), _BYTES, "upper bound"),
    Field("key_metadata", 131, _BYTES, "key_metadata", optional=True, doc="Encryption key metadata blob"),
    Field("split_offsets", 132, ListOf(_LONG, 133), "split_offsets", optional=True, doc="Splittable offsets"),
    Field(
        "equality_ids",
        135,
        ListOf(_INT, 136),
        "equality_ids",
        optional=True,
        doc="Equality comparison field IDs",
    ),
    Field("sort_order_id", 140, _INT, "sort_order_id", optional=True, doc="Sort order ID"),
    Field(
        "first_row_id",
        142,
        _LONG,
        "first_row_id",
        optional=True,
        doc="The first row ID assigned to the first row in the data file",
    ),
    Field("referenced_data_file", 143, _STRING, "referenced_data_file", optional=True, doc=_REFERENCED_DOC),
    Field(
        "content_offset",
        144,
        _LONG,
        "content_offset",
        optional=True,
        doc="The offset in the file where the content starts",
    ),
    Field("content_size_in_bytes", 145, _LONG, "content_size", optional=True, doc=_CONTENT_SIZE_DOC),
)

_DATA_FILE = Struct(f"{FILE_NAMESPACE}.GenericDataFile", _FILE_FIELDS, types.DataFile)
_DELETE_FILE = Struct(f"{FILE_NAMESPACE}.GenericDeleteFile", _FILE_FIELDS, types.DataFile)

PAYLOADS: dict[types.EventType, Struct] = {
    # Ids of payload fields are in blocks of 100, one per payload class.
    types.EventType.START_COMMIT: Struct(
        f"{NAMESPACE}.StartCommit", (Field("commit_id", 10200, _UUID, "commit_id"),), types.StartCommit
    ),
    types.EventType.DATA_WRITTEN: Struct(
        f"{NAMESPACE}.DataWritten",
        (
            Field("commit_id", 10300, _UUID, "commit_id"),
            Field("table_reference", 10301, TABLE_REFERENCE, "table"),
            Field("data_files", 10302, ListOf(_DATA_FILE, 10303), "data_files", optional=True),
            Field("delete_files", 10304, ListOf(_DELETE_FILE, 10305), "delete_files", optional=True),
        ),
        types.DataWritten,
    ),
    types.EventType.DATA_COMPLETE: Struct(
        f"{NAMESPACE}.DataComplete",
        (
            Field("commit_id", 10100, _UUID, "commit_id"),
            Field("assignments", 10101, ListOf(TOPIC_PARTITION_OFFSET, 10102), "assignments", optional=True),
        ),
        types.DataComplete,
    ),
    types.EventType.COMMIT_TO_TABLE: Struct(
        f"{NAMESPACE}.CommitToTable",
        (
            Field("commit_id", 10400, _UUID, "commit_id"),
            Field("table_reference", 10401, TABLE_REFERENCE, "table"),
            Field("snapshot_id", 10402, _LONG, "snapshot_id", optional=True),
            Field("valid_through_ts", 10403, _TIMESTAMP, "valid_through_us", optional=True),
        ),
        types.CommitToTable,
    ),
    types.EventType.COMMIT_COMPLETE: Struct(
        f"{NAMESPACE}.CommitComplete",
        (
            Field("commit_id", 10000, _UUID, "commit_id"),
            Field("valid_through_ts", 10001, _TIMESTAMP, "valid_through_us", optional=True),
        ),
        types.CommitComplete,
    ),
}
"""Struct of each payload, current vocabulary."""


def event_struct(payload: Struct) -> Struct:
    """The outer struct of a payload."""
    return Struct(
        EVENT,
        (
            Field("id", 10500, _UUID, "id"),
            # The datum repeats the type, although the class of the payload states it.
            Field("type", 10501, _INT, "type"),
            Field("timestamp", 10502, _TIMESTAMP, "timestamp_us"),
            Field("group_id", 10503, _STRING, "group_id"),
            Field("payload", 10504, payload, "payload"),
        ),
        # A dictionary, because `type` is no attribute of Event and is only compared.
        dict,
    )


def _legacy(name: str, make: Callable[..., Any], *fields: Field, value: type | None = None) -> Struct:
    return Struct(f"{LEGACY_NAMESPACE}.{name}", fields, make, by_name=True, value=value)


def _legacy_field(name: str, kind: Kind, attribute: str, optional: bool = False) -> Field:
    # The older vocabulary has no ids; its fields are matched by name.
    return Field(name, -1, kind, attribute, optional)


def _legacy_table(namespace: tuple[str, ...], name: str) -> types.TableReference:
    # Older events name no catalog and no uuid.
    return types.TableReference("", namespace, name)


# The names of the older vocabulary are in camel case.
_LEGACY_TABLE = _legacy(
    "TableName",
    _legacy_table,
    _legacy_field("namespace", ListOf(_STRING), "namespace"),
    _legacy_field("name", _STRING, "name"),
    value=types.TableReference,
)
_LEGACY_OFFSET = _legacy(
    "TopicPartitionOffset",
    types.TopicPartitionOffset,
    _legacy_field("topic", _STRING, "topic"),
    _legacy_field("partition", _INT, "partition"),
    _legacy_field("offset", _LONG, "offset", optional=True),
    _legacy_field("timestamp", _MILLIS, "timestamp_us", optional=True),
)
_LEGACY_COMMIT = _legacy_field("commitId", _UUID, "commit_id")
_LEGACY_VALID_THROUGH = _legacy_field("vtts", _MILLIS, "valid_through_us", optional=True)

LEGACY_PAYLOADS: dict[types.EventType, Struct] = {
    types.EventType.START_COMMIT: _legacy("CommitRequestPayload", types.StartCommit, _LEGACY_COMMIT),
    types.EventType.DATA_WRITTEN: _legacy(
        "CommitResponsePayload",
        types.DataWritten,
        _LEGACY_COMMIT,
        _legacy_field("tableName", _LEGACY_TABLE, "table"),
        _legacy_field("dataFiles", ListOf(_DATA_FILE), "data_files", optional=True),
        _legacy_field("deleteFiles", ListOf(_DELETE_FILE), "delete_files", optional=True),
    ),
    types.EventType.DATA_COMPLETE: _legacy(
        "CommitReadyPayload",
        types.DataComplete,
        _LEGACY_COMMIT,
        _legacy_field("assignments", ListOf(_LEGACY_OFFSET), "assignments", optional=True),
    ),
    types.EventType.COMMIT_TO_TABLE: _legacy(
        "CommitTablePayload",
        types.CommitToTable,
        _LEGACY_COMMIT,
        _legacy_field("tableName", _LEGACY_TABLE, "table"),
        _legacy_field("snapshotId", _LONG, "snapshot_id", optional=True),
        _LEGACY_VALID_THROUGH,
    ),
    types.EventType.COMMIT_COMPLETE: _legacy(
        "CommitCompletePayload", types.CommitComplete, _LEGACY_COMMIT, _LEGACY_VALID_THROUGH
    ),
}
"""Struct of each payload, older vocabulary."""

LEGACY_TYPE_NAMES: dict[types.EventType, str] = {
    types.EventType.START_COMMIT: "COMMIT_REQUEST",
    types.EventType.DATA_WRITTEN: "COMMIT_RESPONSE",
    types.EventType.DATA_COMPLETE: "COMMIT_READY",
    types.EventType.COMMIT_TO_TABLE: "COMMIT_TABLE",
    types.EventType.COMMIT_COMPLETE: "COMMIT_COMPLETE",
}
"""Names of the types in the older vocabulary."""


def legacy_event_struct(payload: Struct) -> Struct:
    """The outer struct of the older vocabulary, in which the group id is last."""
    return _legacy(
        "Event",
        dict,
        _legacy_field("id", _UUID, "id"),
        _legacy_field("type", _INT, "type"),
        _legacy_field("timestamp", _MILLIS, "timestamp_us"),
        _legacy_field("payload", payload, "payload"),
        _legacy_field("groupId", _STRING, "group_id"),
    )


def struct_of(event_type: types.EventType, legacy: bool) -> Struct:
    """The outer struct with the payload of that type, in the current or the older vocabulary."""
    return legacy_event_struct(LEGACY_PAYLOADS[event_type]) if legacy else event_struct(PAYLOADS[event_type])


def left_out(table_uuid: bool, legacy: bool) -> frozenset[int]:
    """Ids of the fields that are omitted for that reader."""
    return LEGACY_WITHOUT if legacy else frozenset() if table_uuid else WITHOUT_TABLE_UUID
