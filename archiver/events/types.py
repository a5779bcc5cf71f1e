"""The five control-topic events of Iceberg Kafka Connect as plain values.

The list of events is closed. All times are microseconds since 1970-01-01 UTC. Offsets are those of the next
record to read, not of the last one. Values are immutable by convention: the dictionaries in a `DataFile` must
not be changed after construction. `codec.py` handles bytes, `json_form.py` JSON.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

PartitionValue = bool | int | float | str | bytes | UUID | decimal.Decimal | dt.date | dt.datetime | None
"""One value of a partition tuple. Dates, times and timestamps are read as Iceberg's numbers: days, hours,
months, years, microseconds or nanoseconds since 1970 (times: microseconds of the day). `datetime.date` and
`datetime.datetime` are accepted for writing only."""


class EventType(enum.IntEnum):
    """The type number of an event on the wire. Older names in brackets."""

    # The numbers are on the wire and never change.
    START_COMMIT = 0
    """A round begins (COMMIT_REQUEST)."""
    DATA_WRITTEN = 1
    """Files of one table are durable (COMMIT_RESPONSE)."""
    DATA_COMPLETE = 2
    """All events of the round were sent (COMMIT_READY)."""
    COMMIT_TO_TABLE = 3
    """One table has its commit (COMMIT_TABLE)."""
    COMMIT_COMPLETE = 4
    """Every table of the round is resolved (COMMIT_COMPLETE)."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partition tuple, as its schema states it."""

    field_id: int
    """Id of the partition field (1000 and up)."""
    name: str
    """Original name; names that Avro does not allow are rewritten on the wire only."""
    type: str
    """Iceberg primitive type of the transform's result: `date`, `int`, `string`, `decimal(9, 2)`, `fixed[16]`
    and so on."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """Names a table."""

    catalog: str
    """Name of the catalog; empty when read from an event of the older vocabulary, which had none."""
    namespace: tuple[str, ...]
    """Levels of the namespace, outermost first."""
    name: str
    """Name of the table inside its namespace."""
    # Optional, because readers of release 1.10 fail at the field.
    uuid: UUID | None = None
    """Identity of the table; None if unknown."""


@dataclass(frozen=True, slots=True)
class TopicPartitionOffset:
    """The read position of one topic partition."""

    topic: str
    partition: int
    offset: int | None = None
    """Next offset to read; None if the partition was not read in this round."""
    timestamp_us: int | None = None
    """All records with an earlier timestamp were read; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One data or delete file. Different names in Iceberg's manifest struct are in brackets."""

    path: str
    """Full location (file_path)."""
    record_count: int
    """Rows in the file."""
    file_size: int
    """Bytes of the whole file (file_size_in_bytes)."""
    content: int = 0
    """0 data, 1 position deletes (and deletion vectors), 2 equality deletes. A null on the wire is read as 0,
    as Java reads it."""
    file_format: str = "PARQUET"
    """PARQUET, AVRO, ORC or PUFFIN, in upper case as Java writes it."""
    spec_id: int = 0
    """Partition spec of the tuple. A null on the wire is read as -1, as Java reads it."""
    partition: tuple[PartitionValue, ...] = ()
    """One value per partition field, in the order of the partition type."""
    column_sizes: Mapping[int, int] | None = None
    """Compressed bytes by field id."""
    value_counts: Mapping[int, int] | None = None
    """Values, nulls and NaN included, by field id."""
    null_value_counts: Mapping[int, int] | None = None
    """Nulls by field id."""
    nan_value_counts: Mapping[int, int] | None = None
    """NaN values by field id."""
    lower_bounds: Mapping[int, bytes] | None = None
    """Lower bound by field id, in Iceberg's single-value form."""
    upper_bounds: Mapping[int, bytes] | None = None
    """Upper bound by field id, in Iceberg's single-value form."""
    key_metadata: bytes | None = None
    """Opaque encryption metadata."""
    split_offsets: tuple[int, ...] | None = None
    """Byte positions at which a reader may split, ascending (row group starts)."""
    equality_ids: tuple[int, ...] | None = None
    """Field ids compared by an equality-delete file."""
    sort_order_id: int | None = None
    """Sort order of the rows; 0 unsorted."""
    first_row_id: int | None = None
    """Row id of the first row (row lineage); assigned by the commit, so None before it."""
    referenced_data_file: str | None = None
    """The one data file that all deletes of this file concern."""
    content_offset: int | None = None
    """Where a deletion vector starts inside its file."""
    content_size: int | None = None
    """Bytes of that deletion vector (content_size_in_bytes)."""


@dataclass(frozen=True, slots=True)
class StartCommit:
    """START_COMMIT: a round begins."""

    commit_id: UUID
    """Identity of the round; every event of the round repeats it."""


@dataclass(frozen=True, slots=True)
class DataWritten:
    """DATA_WRITTEN: these files of one table are durable and wait for their commit."""

    commit_id: UUID
    table: TableReference
    data_files: tuple[DataFile, ...] | None
    """None and the empty tuple differ on the wire and mean the same."""
    # The archiver only appends and replaces data files; other writers may delete rows.
    delete_files: tuple[DataFile, ...] | None = ()
    """Empty in events of the archiver."""


@dataclass(frozen=True, slots=True)
class DataComplete:
    """DATA_COMPLETE: all events of this round were sent."""

    commit_id: UUID
    assignments: tuple[TopicPartitionOffset, ...] | None
    """The read position of each topic partition."""


@dataclass(frozen=True, slots=True)
class CommitToTable:
    """COMMIT_TO_TABLE: the commit to one table succeeded."""

    commit_id: UUID
    table: TableReference
    snapshot_id: int | None = None
    """The snapshot that holds the files."""
    valid_through_us: int | None = None
    """The table holds every record with an earlier timestamp; None if unknown."""


@dataclass(frozen=True, slots=True)
class CommitComplete:
    """COMMIT_COMPLETE: every table of the round is resolved."""

    commit_id: UUID
    valid_through_us: int | None = None
    """Every table of the round holds every record with an earlier timestamp; None if unknown."""


Payload = StartCommit | DataWritten | DataComplete | CommitToTable | CommitComplete

TYPE_OF_PAYLOAD: dict[type[Payload], EventType] = {
    StartCommit: EventType.START_COMMIT,
    DataWritten: EventType.DATA_WRITTEN,
    DataComplete: EventType.DATA_COMPLETE,
    CommitToTable: EventType.COMMIT_TO_TABLE,
    CommitComplete: EventType.COMMIT_COMPLETE,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the control topic."""

    id: UUID
    """Identity of this event."""
    timestamp_us: int
    """Creation time."""
    group_id: str
    """Consumer group of the sink that wrote it; readers ignore the events of other groups."""
    payload: Payload

    @property
    def type(self) -> EventType:
        """The type number of the payload."""
        return TYPE_OF_PAYLOAD[type(self.payload)]
