"""The groups of settings that say what becomes of a topic: triggers, table, schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, model_validator

from archiver.settings_groups import LATER
from archiver.settings_types import Duration, FilePath, Group, Located, MessageName, Retention, Size, TableName, TopicName

MinBytes = Annotated[Size, Field(ge=-1, le=2**50)]
MaxBytes = Annotated[Size, Field(ge=1, le=2**40)]
Delay = Annotated[Duration, Field(ge=0, le=30 * 86400)]

TRIGGERS = ("min_bytes", "max_bytes", "start_delay_max", "complete_delay_max", "idle_max")
"""The settings of archives that a topic may have its own value of."""


class ArchiveSettings(Group):
    """When archives are made, and how. A topic's own `archive` group may override the triggers (the first five)."""

    min_bytes: MinBytes = 0
    """Stable raw bytes (keys, values, headers) from which a partition is open for archiving; 0: at once, -1: never."""
    max_bytes: MaxBytes = 128 * 2**20
    """Raw bytes at which an open partition is archived at once, and near which an archive is cut."""
    start_delay_max: Delay = 10.0
    """Time between two looks at a partition that is not open. Matters from the version that has the daemon: `archiver archive` looks at
    once."""
    complete_delay_max: Delay = 300.0
    """How long a partition may be open before it is archived whatever its size. It bounds how far a table lags behind."""
    idle_max: Delay = 30.0
    """An open partition is archived when its newest record is this old; 0: at once."""
    concurrent_max: Annotated[StrictInt, Field(ge=0, le=100_000)] = 0
    """Partitions of a topic that one round archives at most; 0: as many as this machine's memory allows, at 64 MiB each."""
    round_bytes_max: Annotated[Size, Field(ge=1, le=2**50)] = 8 * 2**30
    """Raw bytes that one round archives at most. A round's archives become visible together, so it bounds how long a backlog hides."""
    tick: Annotated[Duration, Field(gt=0, le=86400)] = 10.0
    """Shortest time between two ticks of the intake log, and between two commits of the daemon."""
    commit_attempts_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 20
    """How often a commit begins anew because another writer changed the table, before the table leaves the round."""
    commit_timeout: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long one table's commit may take, all attempts together, before the table leaves the round."""
    snapshots_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 100
    """Snapshots of a table that are kept however old they are; a commit expires older ones."""
    snapshots_age: Annotated[Duration, Field(ge=0, le=3650 * 86400)] = 3600.0
    """A snapshot younger than this is kept even beyond `snapshots_max`, for queries that are still reading it."""
    merge_every: Annotated[StrictInt, Field(ge=1, le=100_000)] = 25
    """Every N-th commit merges small manifests, so that planning a query stays quick."""
    open_writers_max: Annotated[StrictInt, Field(ge=1, le=4096)] = 64
    """Archives that one task writes at the same time. With row groups of some MiB it bounds a task's memory."""
    zstd_level: Annotated[StrictInt, Field(ge=1, le=19)] = 1
    """Compression of archives. Level 1 was measured to be faster than 3 and no larger, with the encodings in use."""


class SchemaSettings(Group):
    """The Protobuf message in a topic's keys or values."""

    descriptor_set: FilePath
    """A file made by `protoc --include_imports --descriptor_set_out`; relative to the configuration file."""
    message: MessageName
    """Full name of the message, for example `shop.Order`."""
    subject: str | None = None
    """A subject of the schema registry, instead of the two above. Comes with a later version."""

    @model_validator(mode="before")
    @classmethod
    def _no_registry(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("subject") is not None:
            raise Located([(("subject",), f"schemas from a registry: {LATER}; use descriptor_set and message")])
        return data


class TopicArchiveSettings(Group):
    """What becomes of a topic's records."""

    kind: Literal["none", "parquet", "iceberg"] = "none"
    """`none`: they stay in intake files. `parquet`: archives without a table. `iceberg`: archives in a table."""
    catalog: str | None = None
    """Name of the catalog that holds the table; one of `catalogs`."""
    table: TableName | None = None
    """The table, as `namespace.table`; created if missing. No other topic may use it."""
    partition_by: Annotated[tuple[Literal["day", "hour", "month"], ...], Field(min_length=1, max_length=1)] = ("day",)
    """Granularity of the table's partitions by ingest time: exactly one of day, hour, month."""
    min_bytes: MinBytes | None = None
    """This topic's `archive.min_bytes`."""
    max_bytes: MaxBytes | None = None
    """This topic's `archive.max_bytes`."""
    start_delay_max: Delay | None = None
    """This topic's `archive.start_delay_max`."""
    complete_delay_max: Delay | None = None
    """This topic's `archive.complete_delay_max`."""
    idle_max: Delay | None = None
    """This topic's `archive.idle_max`."""

    @model_validator(mode="after")
    def _table_if_iceberg(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        for name, given in (("catalog", self.catalog), ("table", self.table)):
            if self.kind == "iceberg" and given is None:
                problems.append(((name,), f"is missing; kind iceberg needs both catalog and table, for example {name}: {_EXAMPLES[name]}"))
            if self.kind != "iceberg" and given is not None:
                problems.append(((name,), f"is given, but kind is {self.kind}; set kind: iceberg or remove {name}"))
        if problems:
            raise Located(problems)
        return self


_EXAMPLES = {"catalog": "local", "table": "shop.orders"}


class TopicSettings(Group):
    """One topic: a named stream of records in partitions."""

    name: TopicName
    """1 to 249 of A-Z a-z 0-9 . _ -, as in Kafka."""
    partitions: Annotated[StrictInt, Field(ge=1, le=100_000)]
    """Number of partitions. It cannot be changed once the topic exists, because keys are spread by it."""
    retention: Retention = None
    """How long records are kept, or `forever`. This version deletes nothing."""
    key: SchemaSettings | None = None
    """The Protobuf message in the keys; without it the keys are bytes."""
    value: SchemaSettings | None = None
    """The Protobuf message in the values; without it the values are bytes."""
    archive: TopicArchiveSettings = TopicArchiveSettings()
    """What becomes of the records."""
