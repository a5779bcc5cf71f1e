"""The configuration: one file, loaded once, validated whole before anything is opened.

Owns the shape of `archiver.yaml` and every check over several of its groups. Promises that a `Settings` that exists can be used: names
resolve, paths are absolute, units are seconds and bytes. Never connects anywhere, and never shows a secret in `repr` or in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from archiver.errors import ConfigInvalid
from archiver.settings_groups import (
    LATER,
    CatalogSettings,
    CleanupSettings,
    DataSettings,
    HttpSettings,
    IntakeSettings,
    LogSettings,
    MetadataSettings,
    SchemaRegistrySettings,
    SparkSettings,
    SqliteSettings,
    TestingSettings,
)
from archiver.settings_load import explain, read_document
from archiver.settings_topics import TRIGGERS, ArchiveSettings, SchemaSettings, TopicArchiveSettings, TopicSettings
from archiver.settings_types import Group, Located, Surroundings

__all__ = [
    "ArchiveSettings",
    "CatalogSettings",
    "CleanupSettings",
    "DataSettings",
    "HttpSettings",
    "IntakeSettings",
    "LogSettings",
    "MetadataSettings",
    "SchemaRegistrySettings",
    "SchemaSettings",
    "Settings",
    "SparkSettings",
    "SqliteSettings",
    "TestingSettings",
    "TopicArchiveSettings",
    "TopicSettings",
    "load_settings",
]

Role = Literal["intake", "archive", "reconcile"]


class Settings(Group):
    """The whole configuration."""

    cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name of this installation; 1 to 64 of A-Z a-z 0-9 . _ -. A data folder belongs to one cluster and refuses another."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ("intake", "archive", "reconcile")
    """What the daemon does on this machine. Matters from the version that has the daemon."""
    data: DataSettings
    """The object store."""
    metadata: MetadataSettings
    """The store of the logs."""
    catalogs: tuple[CatalogSettings, ...] = ()
    """Iceberg catalogs that topics refer to."""
    schema_registry: SchemaRegistrySettings | None = None
    """Where schemas come from. Comes with a later version."""
    spark: SparkSettings = SparkSettings()
    """The Spark session."""
    http: HttpSettings = HttpSettings()
    """The daemon's port."""
    log: LogSettings = LogSettings()
    """The logs."""
    intake: IntakeSettings = IntakeSettings()
    """The intake writer."""
    archive: ArchiveSettings = ArchiveSettings()
    """Archives, for every topic that does not say otherwise."""
    cleanup: CleanupSettings = CleanupSettings()
    """Reconciling and cleaning."""
    sources: tuple[dict[str, Any], ...] = Field(default=(), repr=False)
    """Where records come from by themselves. Comes with a later version; until then the list is empty."""
    topics: tuple[TopicSettings, ...] = ()
    """The topics."""
    testing: TestingSettings = TestingSettings()
    """For tests only."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*_later(self), *_catalog_problems(self), *_topic_problems(self)]
        if problems:
            raise Located(problems)
        return self

    def topic(self, name: str) -> TopicSettings | None:
        """The settings of a topic, or None if the configuration does not have it."""
        return next((topic for topic in self.topics if topic.name == name), None)

    def catalog(self, name: str) -> CatalogSettings | None:
        """The settings of a catalog, or None if the configuration does not have it."""
        return next((catalog for catalog in self.catalogs if catalog.name == name), None)

    def archive_for(self, topic: TopicSettings) -> ArchiveSettings:
        """The archive settings in force for a topic: the cluster's, with the topic's own triggers in their place."""
        own = {name: given for name in TRIGGERS if (given := getattr(topic.archive, name)) is not None}
        return self.archive.model_copy(update=own)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of the configuration file, for editors."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema(mode="validation")}


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read and validate a configuration file.

    Relative paths in it begin at the file's own folder; `environ` is where `{env: NAME}` looks. Raises `ConfigInvalid` that names the
    file and tells every problem with line, key path and what to do.
    """
    document, lines = read_document(path)
    around = Surroundings(folder=path.absolute().parent, environ=environ)
    try:
        return Settings.model_validate(document, context=around)
    except ValidationError as error:
        # Not chained: the library's error holds the values, and some of them are secret.
        raise ConfigInvalid(explain(path, error, Settings, lines)) from None


Problems = list[tuple[tuple[str | int, ...], str]]


def _later(settings: Settings) -> Problems:
    """What the file may already say but this version cannot do."""
    problems: Problems = []
    if settings.sources:
        problems.append((("sources",), f"sources: {LATER}; leave the list empty and send records with archiver produce"))
    if settings.schema_registry is not None:
        problems.append((("schema_registry",), f"a schema registry: {LATER}; remove it and give topics a descriptor_set and a message"))
    return problems


def _catalog_problems(settings: Settings) -> Problems:
    problems: Problems = []
    seen: dict[str, int] = {}
    for position, catalog in enumerate(settings.catalogs):
        if catalog.name in seen:
            where = ("catalogs", position, "name")
            problems.append((where, f"the catalog {catalog.name} is defined twice (catalogs[{seen[catalog.name]}]); rename or remove one"))
        seen.setdefault(catalog.name, position)
    return problems


def _topic_problems(settings: Settings) -> Problems:
    problems: Problems = []
    names: dict[str, int] = {}
    tables: dict[tuple[str, str], str] = {}
    known = ", ".join(catalog.name for catalog in settings.catalogs) or "none"
    for position, topic in enumerate(settings.topics):
        here = ("topics", position)
        if topic.name in names:
            problems.append(
                ((*here, "name"), f"the topic {topic.name} is defined twice (topics[{names[topic.name]}]); rename or remove one")
            )
            continue
        names[topic.name] = position
        catalog, table = topic.archive.catalog, topic.archive.table
        if catalog is None or table is None:
            continue
        if settings.catalog(catalog) is None:
            problems.append(((*here, "archive", "catalog"), f"there is no catalog {catalog!r}; the catalogs are: {known}"))
        # Several catalogs do not distinguish case, so neither may two topics.
        owner = tables.setdefault((catalog, table.casefold()), topic.name)
        if owner != topic.name:
            problems.append(
                ((*here, "archive", "table"), f"the table {table} in catalog {catalog} belongs to topic {owner}; give each its own")
            )
    return problems
