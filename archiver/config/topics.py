"""The settings groups of a topic: archive triggers, table and schemas."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    model_validator,
)

from archiver.config.types import (
    TOPIC_PLACE,
    Duration,
    FilePath,
    Group,
    Located,
    MessageName,
    Retention,
    Size,
    TableName,
    TableTemplate,
    TopicName,
    TopicPattern,
    check_column,
    check_field_path,
    check_proto_file,
    check_subject,
    check_table,
    matches_pattern,
)

MinBytes = Annotated[Size, Field(ge=-1, le=2**50)]
MaxBytes = Annotated[Size, Field(ge=1, le=2**40)]
Delay = Annotated[Duration, Field(ge=0, le=30 * 86400)]

TRIGGERS = ("min_bytes", "max_bytes", "start_delay_max", "complete_delay_max", "idle_max")
"""The archive settings that a topic may override."""
READS_OF_A_BUCKET = 4
"""Default read-ahead of a task for a bucket, in intake files."""


class ArchiveSettings(Group):
    """When and how archives are made. A topic's own `archive` group may override the triggers (the first five
    keys).
    """

    min_bytes: MinBytes = 0
    """Stable raw bytes (keys, values, headers) from which a partition is open for archiving; 0: at once, -1:
    never. Default 0."""
    max_bytes: MaxBytes = 128 * 2**20
    """Raw bytes at which an open partition is archived at once; also the approximate size at which an archive
    is split. Default 128 MiB."""
    start_delay_max: Delay = 10.0
    """Time between two checks of a topic with nothing due. `archiver archive` checks at once. Default 10
    s."""
    complete_delay_max: Delay = 300.0
    """Longest time that a partition stays open before it is archived, at any size. It limits the lag of a
    table. Default 5 min. Lower it for fresher tables, raise it for fewer and larger archives."""
    idle_max: Delay = 30.0
    """Age of the newest record at which an open partition is archived; 0: at once. Default 30 s."""
    concurrent_max: Annotated[StrictInt, Field(ge=0, le=100_000)] = 0
    """Most partitions of a topic in one round; 0: as many as this machine's memory allows, at 64 MiB each.
    Default 0."""
    round_bytes_max: Annotated[Size, Field(ge=1, le=2**50)] = 8 * 2**30
    """Most raw bytes in one round. Default 8 GiB. The archives of a round become visible together. Lower it
    to make a backlog visible in smaller steps."""
    tick: Annotated[Duration, Field(gt=0, le=86400)] = 10.0
    """Shortest time between two ticks of the intake log, and the time between two rounds of the daemon.
    Default 10 s. A round makes at most one commit to each table. Raise it for fewer commits."""
    commit_attempts_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 20
    """Attempts to commit to a table that another writer keeps changing, before the table leaves the round.
    Default 20."""
    commit_timeout: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """Longest time for the commit to one table, with all attempts, before the table leaves the round. Default
    60 s. Raise it for a slow catalog."""
    pending_files_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 2_000
    """Most archives of a topic that may wait for the table while the catalog is unreachable; 0: none. Default
    2,000. Further records stay in intake. The waiting archives enter the table in one commit; until then
    every process that reads the ledger holds them in memory. Raise it for long catalog outages."""
    snapshots_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 100
    """Newest snapshots of a table that are kept at any age; a commit expires older ones. Default
    100."""
    snapshots_age: Annotated[Duration, Field(ge=0, le=3650 * 86400)] = 900.0
    """Minimum age of a snapshot before it expires, even beyond `snapshots_max`, so that running queries can
    finish. Default 15 min. Raise it for long queries. Each retained snapshot makes every commit slower: with
    a commit every 10 s, an hour keeps 360."""
    merge_every: Annotated[StrictInt, Field(ge=1, le=100_000)] = 25
    """Commits between two merges of small manifests, which keep query planning fast. Default 25."""
    open_writers_max: Annotated[StrictInt, Field(ge=1, le=4096)] = 64
    """Archives that one task writes at the same time. It limits a task's memory, with row groups of some MiB.
    Archives with less than 7 MiB of records in the task count by their bytes, because many share the same
    intake files. Default 64. Lower it if executors run out of memory."""
    reads_max: Annotated[StrictInt, Field(ge=0, le=64)] | None = None
    """Intake files that a task reads ahead; 0: none. At most 32 MiB of them are in memory, and as much of the
    current file. Default: 4 with a bucket, 0 with a folder, which answers at once. Raise it for a slow bucket
    if a task needs little of each file."""
    uploads_max: Annotated[StrictInt, Field(ge=0, le=64)] = 4
    """Archives that a task uploads in the background; 0: it waits for each upload. Default 4. Raise it for a
    slow bucket with small archives."""
    zstd_level: Annotated[StrictInt, Field(ge=1, le=19)] = 1
    """Zstandard compression level of archives. Default 1: measured faster than 3 and no larger, with the
    encodings in use."""

    def reads_of(self, *, is_bucket: bool) -> int:
        """`reads_max`, or its default for the kind of store. Reading ahead costs a task 3 to 5 %
        (docs/performance-notes.md), so a folder gets none.
        """
        if self.reads_max is not None:
            return self.reads_max
        return READS_OF_A_BUCKET if is_bucket else 0

    def of(self, topic: TopicSettings) -> ArchiveSettings:
        """The archive settings of a topic: these, with the topic's own triggers."""
        # None means that the topic does not state the trigger; 0 is a value.
        own = {name: given for name in TRIGGERS if (given := getattr(topic.archive, name)) is not None}
        # Most topics have no triggers of their own, so most need no copy.
        return self.model_copy(update=own) if own else self


class ProtosSettings(Group):
    """A folder of `.proto` files. They are compiled at the start of each archiving job
    (docs/protocols/schema-sources.md).
    """

    folder: FilePath
    """The folder, relative to the configuration file; imports start in it."""
    files: tuple[Annotated[str, BeforeValidator(check_proto_file)], ...] = ()
    """The files to compile, relative to the folder. Default: every `.proto` below it."""
    include: tuple[FilePath, ...] = ()
    """Further import folders, searched in this order. Default: none. The well-known `google/protobuf` files
    are always found; the built-in `confluent` and `google/type` files come after all folders."""


_SOURCES: Final = ("descriptor_set", "protos", "avsc", "json_schema", "format", "subject")
"""The keys of a schema's source."""


class SchemaSettings(Group):
    """The Protobuf message, the Avro schema or the JSON Schema of a topic's keys or values. Exactly one of
    `descriptor_set`, `protos`, `avsc`, `json_schema`, `format` and `subject` names the source of the schema.
    """

    # `validate` is a method of pydantic's models, so the field has another name than its key.
    model_config = ConfigDict(serialize_by_alias=True)

    descriptor_set: FilePath | None = None
    """A file made by `protoc --include_imports --descriptor_set_out`, relative to the configuration file."""
    protos: ProtosSettings | None = None
    """A folder of `.proto` files."""
    avsc: FilePath | None = None
    """A file with an Avro schema, relative to the configuration file, for records without a registry's
    envelope. Such a schema cannot change while the topic has records. For records with an envelope, or a
    schema that changes, use a `subject`."""
    json_schema: FilePath | None = None
    """A file with a JSON Schema (draft-07 or 2020-12), relative to the configuration file, for records
    without a registry's envelope. Such a schema may change at any time. Its properties should be in the order
    in which producers write them: other records are archived with their bytes as well."""
    format: Literal["json"] | None = None
    """`json`: JSON documents without a schema. They become one column `value` of JSON text in compact
    form."""
    subject: Annotated[str, BeforeValidator(check_subject)] | None = None
    """A subject of the schema registry, of the type PROTOBUF, AVRO or JSON; by convention the topic's name
    with the suffix `-value` or `-key`."""
    message: MessageName | None = None
    """Full name of the message, for example `shop.Order`. Needed with `descriptor_set` and `protos` only: an
    Avro schema has one name, and a JSON Schema one title. The default for Protobuf subjects is the first
    message of the newest schema at the topic's first archiving, as long as the newest schema has it."""
    recursion_depth: Annotated[StrictInt, Field(ge=0, le=10)] = 2
    """Number of times that a message type may be nested in itself as columns; deeper values stay encoded.
    Default 2."""
    columns: dict[
        Annotated[str, BeforeValidator(check_field_path)], Annotated[str, BeforeValidator(check_column)]
    ] = Field(default_factory=dict)
    """Custom column names: from the dotted path of field names to the column name, for example
    `{"customer.id": customer_number}`. Default: none."""
    validation: Literal["none", "reject", "dlq"] = Field(default="none", alias="validate")
    """What intake does with a record that does not decode by the newest schema. `none`: ingest it (it becomes
    an `__err__` row). `reject`: refuse it. `dlq`: ingest it into the topic `dlq`. Default `none`."""
    coerce: StrictBool = False
    """Whether intake puts the registry's envelope before a message that has none. Default `false`. Needs a
    `subject`."""
    dlq: TopicName | None = None
    """The topic for records that do not decode; only with `validate: dlq`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if not given:
            problems.append(
                (
                    (),
                    (
                        "names no source for the schema; add descriptor_set: FILE, protos: {folder: "
                        "DIR}, avsc: FILE, json_schema: FILE, format: json or subject: NAME"
                    ),
                )
            )
        if len(given) > 1:
            problems.append(
                (
                    (given[1],),
                    f"conflicts with {given[0]}; a schema has one source, so remove one of them",
                )
            )
        # A file may contain many messages. A subject has a first one, so the message can be derived.
        if self.message is None and given and given[0] in ("descriptor_set", "protos"):
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
        # Intake would otherwise have to refuse the record or to lose it.
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
    """The archives and the table of a topic."""

    kind: Literal["none", "parquet", "iceberg"] = "none"
    """The storage of the records. `none`: only intake files. `parquet`: archives without a table. `iceberg`:
    archives in a table. Default `none`."""
    catalog: str | None = None
    """Name of the catalog with the table; one of `catalogs`."""
    table: TableName | None = None
    """The table, as `namespace.table`; created if missing. Each topic needs its own."""
    partition_by: Annotated[
        tuple[Literal["day", "hour", "month"], ...], Field(min_length=1, max_length=1)
    ] = ("day",)
    """Granularity of the table's partitions by ingest time: exactly one of day, hour, month. Default `[day]`.
    A change applies to records archived later; existing rows keep their partitions."""
    min_bytes: MinBytes | None = None
    """This topic's `archive.min_bytes`. Default: the cluster's."""
    max_bytes: MaxBytes | None = None
    """This topic's `archive.max_bytes`. Default: the cluster's."""
    start_delay_max: Delay | None = None
    """This topic's `archive.start_delay_max`. Default: the cluster's."""
    complete_delay_max: Delay | None = None
    """This topic's `archive.complete_delay_max`. Default: the cluster's."""
    idle_max: Delay | None = None
    """This topic's `archive.idle_max`. Default: the cluster's."""

    @model_validator(mode="after")
    def _table_if_iceberg(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        # Both or neither: a table without `kind: iceberg` would never be written.
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
    """Number of partitions; 0 for a mirrored topic, which has as many as its topic in Kafka. A larger number
    adds partitions at the next start or reload; it is never lowered. Raise it where a partition cannot carry
    its load. Keys are distributed over all partitions, so later records of a key may be in another one."""
    retention: Retention = None
    """How long archived records are kept, at least an hour, or `forever`. Default `forever`. `archiver clean`
    removes an archive from the table when all its records were received longer ago, and deletes it later.
    Records that are not archived stay. A longer retention does not restore deleted records. With `forever`
    in the file, Kafka clients cannot delete records of the topic (DeleteRecords)."""
    key: SchemaSettings | None = None
    """The Protobuf message in the keys. Default: none, and the keys are stored as bytes."""
    value: SchemaSettings | None = None
    """The Protobuf message in the values. Default: none, and the values are stored as bytes."""
    schema_change: Literal["evolve", "compatible", "refuse"] = "evolve"
    """How a newer schema of the keys or values may change the table. `evolve`: every change is applied; a
    field whose new type does not fit gets a new column. `compatible`: an incompatible change halts the topic.
    `refuse`: every change halts the topic. Default `evolve`. Intake continues in each case, and a reload with
    another value accepts the change. Set it where queries need stable columns."""
    archive: TopicArchiveSettings = TopicArchiveSettings()
    """The archives and the table of the topic."""

    _template: str | None = PrivateAttr(None)

    @property
    def template(self) -> str | None:
        """The pattern of the template that these settings are from; None for an entry of the file."""
        return self._template

    @property
    def mirrored(self) -> bool:
        """Whether the topic mirrors the partitions and offsets of a Kafka topic; its source declares it."""
        # Any other topic has at least one partition, so 0 is free for this meaning.
        return self.partitions == 0


class TopicTemplateArchiveSettings(TopicArchiveSettings):
    """The archives and the tables of the topics that match a pattern."""

    table: TableTemplate | None = None
    """The tables, as `namespace.table` with `{topic}`."""


class TopicTemplateSettings(Group):
    """Settings for topics without an entry of their own. They are for topics that Kafka clients create, and
    for topics that a Kafka source mirrors. An entry with the topic's name comes first, then the first pattern
    that matches.
    """

    pattern: TopicPattern
    """A topic name; or the beginning of names, followed by `*`, for example `orders.*`; `*` for every
    topic."""
    partitions: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    """Number of partitions of a topic that a client creates without stating a number. Default:
    `kafka.default_partitions`."""
    retention: Retention = None
    """`retention` of the topics. Default `forever`. A client may set another one for a topic as
    `retention.ms`."""
    key: SchemaSettings | None = None
    """The Protobuf message in the keys. Default: none. In its `subject`, `{topic}` stands for the topic's
    name, for example `{topic}-key`."""
    value: SchemaSettings | None = None
    """The Protobuf message in the values. Default: none. In its `subject`, `{topic}` stands for the topic's
    name, for example `{topic}-value`."""
    schema_change: Literal["evolve", "compatible", "refuse"] = "evolve"
    """`schema_change` of the topics. Default `evolve`."""
    archive: TopicTemplateArchiveSettings = TopicTemplateArchiveSettings()
    """The archives and the tables of the topics. In `table`, `{topic}` stands for the topic's name, in which
    every character other than A-Z a-z 0-9 _ becomes `_`; for example `shop.{topic}`. It is required if the
    pattern ends with `*`, because each topic needs its own table. A topic whose table belongs to another
    topic is not archived, and clients cannot create it."""

    @model_validator(mode="after")
    def _table_for_each(self) -> Self:
        table = self.archive.table
        if table is not None and self.pattern.endswith("*") and TOPIC_PLACE not in table:
            why = (
                f"needs {TOPIC_PLACE}, because each topic needs its own table, for example shop.{TOPIC_PLACE}"
            )
            raise Located([(("archive", "table"), why)])
        return self

    def matches(self, name: str) -> bool:
        """Whether the template is for topics of that name."""
        return matches_pattern(self.pattern, name)

    def table_of(self, name: str) -> str | None:
        """The table of a topic that matches; None without one. Not checked."""
        table = self.archive.table
        return None if table is None else table.replace(TOPIC_PLACE, _NOT_IN_TABLE.sub("_", name))

    def settings_of(self, name: str, partitions: int) -> TopicSettings:
        """The settings of a topic that matches; 0 partitions for a mirrored one.

        Raises `ValueError` with the reason if the name makes no valid table or subject.
        """
        archive = {key: getattr(self.archive, key) for key in self.archive.model_fields_set}
        if (table := self.table_of(name)) is not None:
            archive["table"] = check_table(table)
        made = TopicSettings(
            name=name,
            partitions=partitions,
            retention=self.retention,
            key=_schema_of(self.key, name),
            value=_schema_of(self.value, name),
            schema_change=self.schema_change,
            archive=TopicArchiveSettings(**archive),
        )
        made._template = self.pattern  # noqa: SLF001 - a mark of the group itself, not a key of the file
        return made


_NOT_IN_TABLE = re.compile(r"[^A-Za-z0-9_]")


def _schema_of(group: SchemaSettings | None, name: str) -> SchemaSettings | None:
    if group is None or group.subject is None or TOPIC_PLACE not in group.subject:
        return group
    subject = check_subject(group.subject.replace(TOPIC_PLACE, name))
    return group.model_copy(update={"subject": subject})
