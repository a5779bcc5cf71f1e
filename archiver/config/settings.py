"""The configuration file, loaded once and validated whole before any connection is opened.

A valid `Settings` is usable: names resolve, paths are absolute, units are seconds and bytes. This module
opens no connection and shows no secret in `repr` or in a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from archiver.config.daemon import (
    DaemonSettings,
    FileSourceSettings,
    HttpSettings,
    MetricsSettings,
    SourceSettings,
)
from archiver.config.events import ControlTopicSettings, EventSettings
from archiver.config.groups import (
    CatalogSettings,
    CleanupSettings,
    IntakeSettings,
    LogSettings,
    SparkSettings,
    TestingSettings,
)
from archiver.config.kafka import KafkaSourceSettings
from archiver.config.kafka_listener import KafkaListenerSettings, share_a_port
from archiver.config.metadata import MetadataSettings, SqliteSettings
from archiver.config.registry import CompileSettings, ConfluentSettings, SchemaRegistrySettings
from archiver.config.storage import DataSettings
from archiver.config.telemetry import OtlpSettings, TelemetrySettings
from archiver.config.topics import (
    ArchiveSettings,
    ProtosSettings,
    SchemaSettings,
    TopicArchiveSettings,
    TopicSettings,
    TopicTemplateSettings,
)
from archiver.config.types import Group, Located, Surroundings, parse_listen
from archiver.config.yaml_loader import explain, is_known, problems_of, read_document, salvaged
from archiver.runtime.errors import ConfigInvalid, no_topic
from archiver.runtime.redaction import hide, secrets_of

__all__ = [
    "ArchiveSettings",
    "CatalogSettings",
    "CleanupSettings",
    "CompileSettings",
    "ConfluentSettings",
    "ControlTopicSettings",
    "DaemonSettings",
    "DataSettings",
    "EventSettings",
    "FileSourceSettings",
    "HttpSettings",
    "IntakeSettings",
    "KafkaListenerSettings",
    "KafkaSourceSettings",
    "LogSettings",
    "MetadataSettings",
    "MetricsSettings",
    "OtlpSettings",
    "ProtosSettings",
    "SchemaRegistrySettings",
    "SchemaSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "SqliteSettings",
    "TelemetrySettings",
    "TestingSettings",
    "TopicArchiveSettings",
    "TopicSettings",
    "TopicTemplateSettings",
    "load_settings",
]

TEMPLATES = "topics.pattern"
"""Key of the entries with a pattern, apart from the other topics; never a key of the file."""
Role = Literal["intake", "archive", "reconcile"]
Problems = list[tuple[tuple[str | int, ...], str]]
"""Key paths, each with the problem there."""
_G = TypeVar("_G", bound=Group)


class Settings(Group):
    """The whole configuration."""

    cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name of this installation; 1 to 64 of A-Z a-z 0-9 . _ -. A data folder belongs to one cluster and
    refuses another."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ("intake", "archive", "reconcile")
    """What the daemon does on this machine. `intake`: ingests records (port and sources). `archive`: makes
    archives and commits them. `reconcile`: cleans and audits. Default: all three. Restrict it to spread the
    work over several machines; `archiver serve --roles` overrides it."""
    data: DataSettings
    """The object store."""
    metadata: MetadataSettings
    """The metadata store, which holds the logs."""
    catalogs: tuple[CatalogSettings, ...] = ()
    """Iceberg catalogs to which topics refer."""
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    """The sources of Protobuf schemas other than descriptor sets."""
    spark: SparkSettings = SparkSettings()
    """The Spark session."""
    http: HttpSettings = HttpSettings()
    """The daemon's HTTP port."""
    kafka: KafkaListenerSettings | None = None
    """The daemon's port for Kafka clients. Default: none. A daemon without the role `intake` ignores it."""
    metrics: MetricsSettings = MetricsSettings()
    """Limits of `/metrics`."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Telemetry that the daemon exports."""
    daemon: DaemonSettings = DaemonSettings()
    """Schedules and time limits of `archiver serve`."""
    log: LogSettings = LogSettings()
    """The intake log and the control log."""
    events: EventSettings = EventSettings()
    """Control events."""
    intake: IntakeSettings = IntakeSettings()
    """The intake writer."""
    archive: ArchiveSettings = ArchiveSettings()
    """When and how archives are made, for every topic without its own values."""
    cleanup: CleanupSettings = CleanupSettings()
    """Reconciling and cleaning."""
    sources: tuple[SourceSettings, ...] = ()
    """Sources that the daemon ingests without a producer: files and Kafka topics."""
    topics: tuple[TopicSettings, ...] = ()
    """The topics, and templates for topics without an entry. An entry with `name` is one topic, an entry with
    `pattern` a template."""
    # The file has the templates among the topics; see `_apart`.
    templates: Annotated[tuple[TopicTemplateSettings, ...], Field(max_length=1000)] = Field(
        default=(), alias=TEMPLATES
    )
    """The entries of `topics` with a `pattern`: templates for topics without an entry, in this order."""
    testing: TestingSettings = TestingSettings()
    """For tests only."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = _Parts.of(self).problems()
        if problems:
            raise Located(problems)
        return self

    def topic(self, name: str) -> TopicSettings | None:
        """The settings of a topic, or None if the configuration does not have it."""
        return next((topic for topic in self.topics if topic.name == name), None)

    def template(self, name: str) -> TopicTemplateSettings | None:
        """The first template for a topic of that name; None if the topic has an entry or none matches."""
        if self.topic(name) is not None:
            return None
        return next((one for one in self.templates if one.matches(name)), None)

    def catalog(self, name: str) -> CatalogSettings | None:
        """The settings of a catalog, or None if the configuration does not have it."""
        return next((catalog for catalog in self.catalogs if catalog.name == name), None)

    def archive_for(self, topic: TopicSettings) -> ArchiveSettings:
        """The archive settings of a topic: the cluster's, with the topic's own triggers."""
        return self.archive.of(topic)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of the configuration file, for editors."""
        schema = cls.model_json_schema(mode="validation")
        templates = schema["properties"].pop(TEMPLATES)
        topics = schema["properties"]["topics"]
        topics["items"] = {"anyOf": [topics["items"], templates["items"]]}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def load_settings(
    path: Path,
    environ: Mapping[str, str],
    schema: Callable[[SchemaSettings, CompileSettings], Problems] = lambda *_: [],
) -> Settings:
    """Read and validate a configuration file.

    Relative paths start at the file's folder; `environ` resolves `{env: NAME}`. `schema` may find further
    problems in a topic's key or value, relative to its group, within the compiler limits. Secrets of the file
    are redacted from all later output of this process. Raises `ConfigInvalid` with every problem: its line,
    key path and remedy.
    """
    document, lines = read_document(path)
    # It is a name of this module, and not a key of the file.
    if TEMPLATES in document:
        raise ConfigInvalid(f"{path}: there is no key {TEMPLATES}; write the templates under topics")
    document, places = _apart(document)
    around = Surroundings(folder=_folder_of(path), environ=environ)
    problems: Problems = []
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document, context=around)
        # A second pass over valid settings: `Settings` has passed `_consistent`, and only `schema` can add
        # problems.
        parts = _Parts.of(settings)
    except ValidationError as error:
        problems, parts = problems_of(error, Settings), _Parts.valid_in(document, around)
        # Of the checks across groups, whose positions are not those of the file; they run again below.
        if any(item["loc"] == () for item in error.errors(include_url=False, include_input=False)):
            problems = []
    problems = [(_place(at, places), words) for at, words in problems]
    parts = parts.placed(places)
    # An invalid value gets no second message.
    taken = {at for at, _ in problems}
    # The checks across groups run again over the salvaged parts. Those that `_consistent` has reported are
    # in `taken`.
    problems += [(at, words) for at, words in parts.problems() if at not in taken]
    # The defaults bound the compiler even if its own settings are invalid.
    bounds = CompileSettings() if settings is None else settings.schema_registry.compile
    for position, topic in parts.entries:
        for name, group in (("key", topic.key), ("value", topic.value)):
            # A salvaged group may lack the fields that the compiler needs.
            found = [] if group is None or not _is_whole(group) else schema(group, bounds)
            problems += [(("topics", position, name, *at), words) for at, words in found]
    if problems or settings is None:
        # Not chained: the library's error holds the values, and some of them are secret.
        raise ConfigInvalid(explain(path, problems, lines)) from None
    # Before any other module gets the settings, so no log line can contain a secret.
    hide(secrets_of(settings))
    return settings


_Places = Mapping[str, Sequence[int]]
"""The positions in the file's `topics` of the entries with a name (`topics`) and with a pattern
(`TEMPLATES`)."""


def _apart(document: Mapping[str, Any]) -> tuple[dict[str, Any], _Places]:
    """The document with its templates apart from its topics, and the positions of both."""
    entries = document.get("topics")
    places: dict[str, list[int]] = {"topics": [], TEMPLATES: []}
    # Anything but a list has its own problem.
    if not isinstance(entries, list):
        return dict(document), places
    for position, entry in enumerate(entries):
        places[TEMPLATES if isinstance(entry, dict) and "pattern" in entry else "topics"].append(position)
    apart = {key: [entries[position] for position in positions] for key, positions in places.items()}
    if not apart[TEMPLATES]:
        return dict(document), places
    return {**document, **apart}, places


def _place(at: tuple[str | int, ...], places: _Places) -> tuple[str | int, ...]:
    """The key path in the file of a key path in the document of `_apart`."""
    if not at or at[0] not in places:
        return at
    if len(at) == 1 or not isinstance(at[1], int):
        return ("topics", *at[1:])
    return ("topics", places[str(at[0])][at[1]], *at[2:])


def _folder_of(path: Path) -> Path:
    """The absolute folder of a configuration file, without `..`.

    Links after the last `..` stay. If `current` links to a release, the data folder keeps one path across
    releases, and table metadata stores that path.
    """
    folder = path.absolute().parent
    if ".." not in folder.parts:
        return folder
    # Only the part up to the last `..` is resolved: without that, `..` after a link names another folder.
    behind = len(folder.parts) - folder.parts[::-1].index("..")
    return Path(*folder.parts[:behind]).resolve().joinpath(*folder.parts[behind:])


@dataclass(frozen=True)
class _Parts:
    """The parts of a configuration that refer to each other: the valid ones with their positions, and all
    names, valid or not.
    """

    catalogs: Sequence[tuple[int, CatalogSettings]]
    topics: Sequence[tuple[int, TopicSettings]]
    templates: Sequence[tuple[int, TopicTemplateSettings]]
    sources: Sequence[tuple[int, SourceSettings]]
    catalog_names: Sequence[str] | None
    """None if `catalogs` is not a list, so the names are unknown; `topic_names` likewise."""
    topic_names: Sequence[str] | None
    registry: bool
    """Whether a schema registry is configured, valid or not."""
    sources_known: bool = True
    """Whether the topic pattern of every Kafka source is valid."""
    listen: tuple[str, str] | None = None
    """Addresses of the listeners for Kafka and HTTP; None without the first, or if one is invalid."""

    @classmethod
    def of(cls, settings: Settings) -> _Parts:
        """From settings in which each group is valid."""
        catalogs, topics = tuple(enumerate(settings.catalogs)), tuple(enumerate(settings.topics))
        names = [catalog.name for catalog in settings.catalogs], [topic.name for topic in settings.topics]
        return cls(
            catalogs,
            topics,
            tuple(enumerate(settings.templates)),
            tuple(enumerate(settings.sources)),
            *names,
            settings.schema_registry.confluent is not None,
            listen=None if settings.kafka is None else (settings.kafka.listen, settings.http.listen),
        )

    @classmethod
    def valid_in(cls, document: Mapping[str, Any], around: Surroundings) -> _Parts:
        """From an invalid file: the valid fields of each entry, so that further problems are found too."""
        sources = document.get("sources")
        found = _salvaged(SourceSettings, sources, around)
        # Every entry that is or may be a Kafka source.
        mirroring = [
            item
            for item in (sources if isinstance(sources, list) else [])
            if not isinstance(item, dict) or "kafka" in item
        ]
        # A source with an unreadable pattern could mirror any topic, so its absence proves nothing.
        readable = [
            source for _, source in found if source.kafka is not None and is_known(source.kafka.topics)
        ]
        return cls(
            _salvaged(CatalogSettings, document.get("catalogs"), around),
            _salvaged(TopicSettings, document.get("topics"), around),
            _salvaged(TopicTemplateSettings, document.get(TEMPLATES), around),
            found,
            _names(document.get("catalogs")),
            _names(document.get("topics")),
            _has_registry(document.get("schema_registry")),
            isinstance(sources, list | None) and len(readable) == len(mirroring),
            _addresses(document),
        )

    @property
    def entries(self) -> list[tuple[int, TopicSettings | TopicTemplateSettings]]:
        """Topics and templates."""
        return [*self.topics, *self.templates]

    def placed(self, places: _Places) -> _Parts:
        """The same with the positions of the file."""
        topics = [(places["topics"][position], topic) for position, topic in self.topics]
        templates = [(places[TEMPLATES][position], one) for position, one in self.templates]
        return replace(self, topics=topics, templates=templates)

    def problems(self) -> Problems:
        """All inconsistencies between the parts."""
        return [
            *_catalog_problems(self),
            *_topic_problems(self),
            *_source_problems(self),
            *_schema_problems(self),
            *_port_problems(self),
        ]


def _salvaged(group: type[_G], items: object, around: Surroundings) -> list[tuple[int, _G]]:
    found = (
        (position, salvaged(group, item, around))
        for position, item in enumerate(items if isinstance(items, list) else [])
    )
    return [(position, one) for position, one in found if one is not None]


def _is_whole(group: Group) -> bool:
    """Whether a group is valid by itself. A salvaged entry may lack required fields."""
    try:
        # By alias, because the file's names differ from the fields' names (`from`, `validate`).
        type(group).model_validate(group.model_dump(by_alias=True))
    except ValidationError:
        return False
    return True


def _names(items: object) -> list[str] | None:
    if items is not None and not isinstance(items, list):
        return None
    return [
        str(item["name"])
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict) and "name" in item
    ]


def _has_registry(group: object) -> bool:
    return isinstance(group, dict) and group.get("confluent") is not None


def _is_missing(name: str | None, names: Sequence[str] | None) -> bool:
    """Whether a name is missing from the names; False if either is unknown."""
    # Unknown names give no message here: the list itself already has one.
    return name is not None and names is not None and name not in names


def _known(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _addresses(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """`_Parts.listen` of an invalid file."""
    kafka, http = document.get("kafka"), document.get("http") or {}
    if not isinstance(kafka, dict) or not isinstance(http, dict):
        return None
    stated = kafka.get("listen"), http.get("listen", HttpSettings.model_fields["listen"].default)
    try:
        first, second = map(parse_listen, stated)
    except ValueError:
        return None
    return str(first), str(second)


def _port_problems(parts: _Parts) -> Problems:
    if parts.listen is None or not share_a_port(*parts.listen):
        return []
    kafka, http = parts.listen
    return [(("kafka", "listen"), f"{kafka} has the port of http.listen ({http}); give it another one")]


def _catalog_problems(parts: _Parts) -> Problems:
    problems: Problems = []
    seen: dict[str, int] = {}
    for position, catalog in parts.catalogs:
        # A catalog without a valid name has its own problem.
        if is_known(catalog.name) and catalog.name in seen:
            where = ("catalogs", position, "name")
            problems.append(
                (
                    where,
                    (
                        f"the catalog {catalog.name} is defined twice (catalogs[{seen[catalog.name]}]); "
                        "rename or remove one"
                    ),
                )
            )
        # The first one stays, so that each later one names the first.
        seen.setdefault(catalog.name, position)
    return problems


def _source_problems(parts: _Parts) -> Problems:
    problems: Problems = [
        (("sources", position, "files", "topic"), str(no_topic(source.files.topic, parts.topic_names or ())))
        for position, source in parts.sources
        if source.files is not None and _is_missing(source.files.topic, parts.topic_names)
    ]
    return problems + _mirror_problems(
        [(position, topic) for position, topic in parts.topics if is_known(topic.name)],
        [
            (position, source.kafka)
            for position, source in parts.sources
            if source.kafka and is_known(source.kafka.topics)
        ],
        {source.files.topic: position for position, source in parts.sources if source.files is not None},
        parts.sources_known,
    )


def _mirror_problems(
    topics: Sequence[tuple[int, TopicSettings]],
    mirrors: Sequence[tuple[int, KafkaSourceSettings]],
    read_into: Mapping[str, int],
    mirrors_known: bool,
) -> Problems:
    """All inconsistencies, each with its position in the file. `read_into`: the topics of file sources. If
    not `mirrors_known`, further Kafka sources exist whose topic patterns are unreadable.
    """
    problems: Problems = []
    names: dict[str, int] = {}
    for position, mirror in mirrors:
        first = names.setdefault(mirror.name, position)
        if first != position and mirror.name is not None:
            problems.append(
                (
                    ("sources", position, "kafka", "name"),
                    f"{mirror.name} is also the name of sources[{first}]; give each its own",
                )
            )
    for position, topic in topics:
        here = ("topics", position)
        # A topic of two sources would get offsets of two clusters.
        matching = [at for at, mirror in mirrors if mirror.matches(topic.name)]
        if matching and not topic.mirrored:
            problems.append(
                (
                    (*here, "partitions"),
                    (
                        f"sources[{matching[0]}] mirrors this topic, so Kafka determines its partitions: "
                        "write partitions: 0"
                    ),
                )
            )
        # Only if all patterns are known; the topic may belong to an unreadable one.
        if topic.mirrored and not matching and mirrors_known:
            problems.append(
                (
                    (*here, "partitions"),
                    "is 0, which is for mirrored topics, and no Kafka source mirrors this one",
                )
            )
        if len(matching) > 1:
            problems.append(
                (
                    (*here, "name"),
                    (
                        f"is mirrored by sources[{matching[0]}] and sources[{matching[1]}]; make their "
                        "patterns exclude each other"
                    ),
                )
            )
        if topic.mirrored:
            problems += _mirrored_schema_problems(topic, here)
        # Records of files would take offsets that the upstream topic also assigns.
        if topic.mirrored and topic.name in read_into:
            problems.append(
                (
                    ("sources", read_into[topic.name], "files", "topic"),
                    f"{topic.name} is mirrored; read files into another one",
                )
            )
    # A dead-letter topic receives records of others, and a mirrored one accepts none.
    mirrored = {topic.name for _, topic in topics if topic.mirrored}
    for position, topic in topics:
        for side, schema in (("key", topic.key), ("value", topic.value)):
            if schema is not None and schema.dlq in mirrored:
                problems.append(
                    (
                        ("topics", position, side, "dlq"),
                        f"{schema.dlq} is mirrored, so it cannot receive other records",
                    )
                )
    return problems


def _mirrored_schema_problems(topic: TopicSettings, here: tuple[str | int, ...]) -> Problems:
    """Problems of a mirrored topic's schemas. A mirror keeps every record unchanged; one that does not decode
    becomes an `__err__` row.
    """
    problems: Problems = []
    for side, schema in (("key", topic.key), ("value", topic.value)):
        if schema is not None and schema.validation != "none":
            problems.append(
                (
                    (*here, side, "validate"),
                    "must be none: a mirrored topic keeps every record of its upstream",
                )
            )
        if schema is not None and schema.coerce:
            problems.append(
                (
                    (*here, side, "coerce"),
                    "must be false: a mirrored topic keeps every record of its upstream bit for bit",
                )
            )
    return problems


def _topic_problems(parts: _Parts) -> Problems:
    problems: Problems = []
    names: dict[str, int] = {}
    # By catalog and table in lower case, with the owner.
    tables: dict[tuple[str, str], str] = {}
    for position, topic in parts.topics:
        here = ("topics", position)
        if is_known(topic.name) and topic.name in names:
            problems.append(
                (
                    (*here, "name"),
                    (
                        f"the topic {topic.name} is defined twice (topics[{names[topic.name]}]); rename or "
                        "remove one"
                    ),
                )
            )
        names.setdefault(topic.name, position)
        catalog, table = topic.archive.catalog, topic.archive.table
        problems += _no_catalog(parts, here, catalog)
        # An incomplete entry has its own problem, and claims no table.
        if catalog is None or table is None or not is_known(topic.name):
            continue
        # Several catalogs do not distinguish case, so neither may two topics.
        owner = tables.setdefault((catalog, table.casefold()), topic.name)
        if owner != topic.name:
            problems.append(
                (
                    (*here, "archive", "table"),
                    f"the table {table} in catalog {catalog} belongs to topic {owner}; give each its own",
                )
            )
    patterns: dict[str, int] = {}
    for position, template in parts.templates:
        here = ("topics", position)
        first = patterns.setdefault(template.pattern, position)
        if is_known(template.pattern) and first != position:
            why = f"topics[{first}] has the pattern {template.pattern} as well and comes first; remove one"
            problems.append(((*here, "pattern"), why))
        problems += _no_catalog(parts, here, template.archive.catalog)
    return problems


def _no_catalog(parts: _Parts, here: tuple[str | int, ...], catalog: str | None) -> Problems:
    if not _is_missing(catalog, parts.catalog_names):
        return []
    known = _known(parts.catalog_names or ())
    return [((*here, "archive", "catalog"), f"there is no catalog {catalog!r}; the catalogs are: {known}")]


def _schema_problems(parts: _Parts) -> Problems:
    """Problems with schemas that need a registry, and with topics for records that do not decode."""
    problems: Problems = []
    topics = {topic.name: topic for _, topic in parts.topics}
    for position, topic in parts.entries:
        for side, schema in (("key", topic.key), ("value", topic.value)):
            here = ("topics", position, side)
            if schema is not None and schema.subject is not None and not parts.registry:
                problems.append(
                    ((*here, "subject"), "there is no registry; add schema_registry: {confluent: {url: …}}")
                )
            if (
                schema is not None
                and schema.dlq is not None
                and (why := _no_dlq(topic, schema.dlq, topics, parts.topic_names))
            ):
                problems.append(((*here, "dlq"), why))
    return problems


def _no_dlq(
    topic: TopicSettings | TopicTemplateSettings,
    name: str,
    topics: Mapping[str, TopicSettings],
    names: Sequence[str] | None,
) -> str | None:
    """Why a topic cannot be the dead-letter topic of another, or None."""
    if isinstance(topic, TopicSettings) and name == topic.name:
        return f"{name} is this topic itself; name another one"
    if _is_missing(name, names):
        return str(no_topic(name, names or ()))
    other = topics.get(name)
    if other is not None and other.mirrored and isinstance(topic, TopicTemplateSettings):
        return f"{name} is mirrored, so it cannot receive other records"
    # A refused record would have no place left. An invalid entry of the topic has its own problem.
    if other is not None and any(
        side is not None and side.validation != "none" for side in (other.key, other.value)
    ):
        return (
            f"the topic {name} validates its records itself, so it could refuse them; name one without "
            "validate"
        )
    return None
