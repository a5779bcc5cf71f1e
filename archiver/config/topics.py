"""The groups of settings that say what becomes of a topic: triggers, table, schema."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator

from archiver.config.types import (
    Duration,
    FilePath,
    Group,
    Located,
    MessageName,
    Retention,
    Size,
    TableName,
    TopicName,
    check_column,
    check_field_path,
    check_proto_file,
    check_subject,
)

MinBytes = Annotated[Size, Field(ge=-1, le=2**50)]
MaxBytes = Annotated[Size, Field(ge=1, le=2**40)]
Delay = Annotated[Duration, Field(ge=0, le=30 * 86400)]

TRIGGERS = ("min_bytes", "max_bytes", "start_delay_max", "complete_delay_max", "idle_max")
"""The settings of archives that a topic may have its own value of."""
READS_OF_A_BUCKET = 4
"""Intake files that a task reads ahead from a bucket if nobody says otherwise."""


class ArchiveSettings(Group):
    """When archives are made, and how. A topic's own `archive` group may override the triggers (the first
    five).
    """

    min_bytes: MinBytes = 0
    """Stable raw bytes (keys, values, headers) from which a partition is open for archiving; 0: at once, -1:
    never."""
    max_bytes: MaxBytes = 128 * 2**20
    """Raw bytes at which an open partition is archived at once, and near which an archive is cut."""
    start_delay_max: Delay = 10.0
    """Time between two looks of the daemon at a topic of which nothing is due. `archiver archive` looks at
    once."""
    complete_delay_max: Delay = 300.0
    """How long a partition may be open before it is archived whatever its size. It bounds how far a table
    lags behind."""
    idle_max: Delay = 30.0
    """An open partition is archived when its newest record is this old; 0: at once."""
    concurrent_max: Annotated[StrictInt, Field(ge=0, le=100_000)] = 0
    """Partitions of a topic that one round archives at most; 0: as many as this machine's memory allows, at
    64 MiB each."""
    round_bytes_max: Annotated[Size, Field(ge=1, le=2**50)] = 8 * 2**30
    """Raw bytes that one round archives at most. A round's archives become visible together, so it bounds how
    long a backlog hides."""
    tick: Annotated[Duration, Field(gt=0, le=86400)] = 10.0
    """Shortest time between two ticks of the intake log, and time between two rounds of the daemon: one round
    makes at most one commit to each table."""
    commit_attempts_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 20
    """How often a commit begins anew because another writer changed the table, before the table leaves the
    round."""
    commit_timeout: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long one table's commit may take, all attempts together, before the table leaves the round."""
    pending_files_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 2_000
    """Archives of a topic that may wait for its table while the catalog cannot be reached; 0: none. Beyond
    them records stay in intake. They come into the table in one commit, and every process that reads the
    ledger holds them in memory until then."""
    snapshots_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 100
    """Snapshots of a table that are kept however old they are; a commit expires older ones."""
    snapshots_age: Annotated[Duration, Field(ge=0, le=3650 * 86400)] = 900.0
    """A snapshot younger than this is kept even beyond `snapshots_max`, for queries that are still reading
    it. Each one makes every commit dearer: with a commit every 10 s, an hour would keep 360 of them."""
    merge_every: Annotated[StrictInt, Field(ge=1, le=100_000)] = 25
    """Every N-th commit merges small manifests, so that planning a query stays quick."""
    open_writers_max: Annotated[StrictInt, Field(ge=1, le=4096)] = 64
    """Archives that one task writes at the same time. With row groups of some MiB it bounds a task's memory;
    archives whose records take less than 7 MiB there count by that, because many of them are read from the
    same intake files."""
    reads_max: Annotated[StrictInt, Field(ge=0, le=64)] | None = None
    """Intake files that one task reads while it works on those before, at most 32 MiB of them in memory, and
    as much of the one that it works on; 0: each when its turn comes. Left out it is 4 with a bucket, of which
    more help where it answers slowly and little of each file is needed, and 0 with a folder, which keeps
    nobody waiting."""
    uploads_max: Annotated[StrictInt, Field(ge=0, le=64)] = 4
    """Archives of one task that are on their way into the store while it goes on with the next ones; 0: each
    is waited for. More of them help where a bucket answers slowly and archives are small."""
    zstd_level: Annotated[StrictInt, Field(ge=1, le=19)] = 1
    """Compression of archives. Level 1 was measured to be faster than 3 and no larger, with the encodings in
    use."""

    def reads_of(self, *, is_bucket: bool) -> int:
        """`reads_max`, or what it is for such a store if it was left out: reading ahead costs a task 3 to 5 %
        (decision 0061).
        """
        if self.reads_max is not None:
            return self.reads_max
        return READS_OF_A_BUCKET if is_bucket else 0

    def of(self, topic: TopicSettings) -> ArchiveSettings:
        """The settings in force for a topic: these, with the topic's own triggers in their place."""
        own = {name: given for name in TRIGGERS if (given := getattr(topic.archive, name)) is not None}
        return self.model_copy(update=own) if own else self


class ProtosSettings(Group):
    """A folder of `.proto` files. They are compiled at the start of each archiving job
    (docs/protocols/schema-sources.md).
    """

    folder: FilePath
    """The folder; imports begin in it. Relative to the configuration file."""
    files: tuple[Annotated[str, BeforeValidator(check_proto_file)], ...] = ()
    """The files to compile, relative to the folder; left out, every `.proto` below it."""
    include: tuple[FilePath, ...] = ()
    """Further folders in which imports are looked for, in this order. The well-known `google/protobuf` files
    are always found, and after every folder the built-in `confluent` and `google/type` files."""


class SchemaSettings(Group):
    """The Protobuf message in a topic's keys or values. Exactly one of `descriptor_set`, `protos` and
    `subject` says where it is from.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    descriptor_set: FilePath | None = None
    """A file made by `protoc --include_imports --descriptor_set_out`; relative to the configuration file."""
    protos: ProtosSettings | None = None
    """A folder of `.proto` files."""
    subject: Annotated[str, BeforeValidator(check_subject)] | None = None
    """A subject of the schema registry, by custom the topic's name with `-value` or `-key` behind it."""
    message: MessageName | None = None
    """Full name of the message, for example `shop.Order`. Only with a `subject` it may be left out: then it
    is the first message of the subject's newest schema when the topic is first archived, and it stays that
    one as long as the newest schema has it."""
    recursion_depth: Annotated[StrictInt, Field(ge=0, le=10)] = 2
    """How often a message type may stand inside itself as columns; what is nested deeper is kept encoded."""
    columns: dict[
        Annotated[str, BeforeValidator(check_field_path)], Annotated[str, BeforeValidator(check_column)]
    ] = Field(default_factory=dict)
    """Other column names: the dotted path of field names, and the name of its column, for example
    `{"customer.id": customer_number}`."""
    validation: Literal["none", "reject", "dlq"] = Field(default="none", alias="validate")
    """What intake does with a record that does not decode by the newest schema: `none`: take it in (it
    becomes an `__err__` row); `reject`: refuse it; `dlq`: take it in to the topic `dlq`."""
    coerce: StrictBool = False
    """Whether intake puts the registry's envelope before a message that has none. Needs a `subject`."""
    dlq: TopicName | None = None
    """The topic for records that do not decode, with `validate: dlq`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        given = [name for name in ("descriptor_set", "protos", "subject") if getattr(self, name) is not None]
        if not given:
            problems.append(
                (
                    (),
                    (
                        "says not where the schema comes from; add descriptor_set: FILE, protos: {folder: "
                        "DIR} or subject: NAME"
                    ),
                )
            )
        if len(given) > 1:
            problems.append(
                (
                    (given[1],),
                    f"is given beside {given[0]}; a schema comes from one place, so remove one of them",
                )
            )
        if self.message is None and self.subject is None and given:
            problems.append(
                (
                    ("message",),
                    (
                        f"is missing; {given[0]} needs the full name of a message in it, for example "
                        "message: shop.Order"
                    ),
                )
            )
        if self.coerce and self.subject is None:
            problems.append(
                (("coerce",), "needs a subject: only a registry gives the id that is put before a message")
            )
        if self.validation == "dlq" and self.dlq is None:
            problems.append((("dlq",), "is missing; validate: dlq needs the name of a topic"))
        if self.validation != "dlq" and self.dlq is not None:
            problems.append(
                (("dlq",), f"is given, but validate is {self.validation}; set validate: dlq or remove dlq")
            )
        if problems:
            raise Located(problems)
        return self


class TopicArchiveSettings(Group):
    """What becomes of a topic's records."""

    kind: Literal["none", "parquet", "iceberg"] = "none"
    """`none`: they stay in intake files. `parquet`: archives without a table. `iceberg`: archives in a
    table."""
    catalog: str | None = None
    """Name of the catalog that holds the table; one of `catalogs`."""
    table: TableName | None = None
    """The table, as `namespace.table`; created if missing. No other topic may use it."""
    partition_by: Annotated[
        tuple[Literal["day", "hour", "month"], ...], Field(min_length=1, max_length=1)
    ] = ("day",)
    """Granularity of the table's partitions by ingest time: exactly one of day, hour, month. A change holds
    for what is archived after it; what the table has stays in its partitions.
    """
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
                problems.append(
                    (
                        (name,),
                        (
                            f"is missing; kind iceberg needs both catalog and table, for example {name}: "
                            f"{_EXAMPLES[name]}"
                        ),
                    )
                )
            if self.kind != "iceberg" and given is not None:
                problems.append(
                    ((name,), f"is given, but kind is {self.kind}; set kind: iceberg or remove {name}")
                )
        if problems:
            raise Located(problems)
        return self


_EXAMPLES = {"catalog": "local", "table": "shop.orders"}


class TopicSettings(Group):
    """One topic: a named stream of records in partitions."""

    name: TopicName
    """1 to 249 of A-Z a-z 0-9 . _ -, as in Kafka."""
    partitions: Annotated[StrictInt, Field(ge=0, le=100_000)]
    """Number of partitions. It cannot be changed once the topic exists, because keys are spread by it. 0: as
    many as the topic of that name has in the Kafka cluster it is mirrored from."""
    retention: Retention = None
    """How long archived records are kept, or `forever`; at least an hour. `archiver clean` takes archives of
    which every record was received longer ago out of the table, and deletes them later. What is not archived
    stays. A longer retention brings nothing back."""
    key: SchemaSettings | None = None
    """The Protobuf message in the keys; without it the keys are bytes."""
    value: SchemaSettings | None = None
    """The Protobuf message in the values; without it the values are bytes."""
    schema_change: Literal["evolve", "compatible", "refuse"] = "evolve"
    """What a newer schema of the keys or values may do to the table. `evolve`: every change is applied; a
    field of a type that does not fit gets a new column. `compatible`: compatible changes are applied, an
    incompatible one halts the topic. `refuse`: each change halts the topic. Intake goes on in each case. A
    reload with another value accepts the change. Set it where queries need stable columns."""
    archive: TopicArchiveSettings = TopicArchiveSettings()
    """What becomes of the records."""

    @property
    def mirrored(self) -> bool:
        """Whether it has the partitions and offsets of an upstream; its source declares it."""
        return self.partitions == 0
