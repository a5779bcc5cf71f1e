"""The checks of `archiver doctor`, in their order."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from archiver.catalog.configured import sqlite_file
from archiver.catalog.connect import used
from archiver.config.groups import IntakeSettings, SparkSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.config.settings import Settings
from archiver.doctor import clock, folders, machine, ports, services
from archiver.doctor.report import Finding, Result, not_checked
from archiver.doctor.run import Check
from archiver.objects.location import StorePlace
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource

NEEDS_SETTINGS = (
    "schemas",
    *(ports.HTTP, ports.KAFKA),
    *("data folder", "metadata folder"),
    *("object store", "bucket guarantees", "metadata store", "catalogs", "schema registry", "clock"),
)
"""Checks that are not made with an invalid configuration."""
_ROLES = ("intake", "archive", "reconcile")


def not_made() -> list[Result]:
    """The results of the checks that need a valid configuration."""
    return [Result(name, not_checked("this needs a valid configuration")) for name in NEEDS_SETTINGS]


def machine_checks(settings: Settings | None, environ: Mapping[str, str]) -> list[Check]:
    """Checks that need no configuration; without one they use the defaults."""
    roles: Sequence[str] = _ROLES if settings is None else settings.roles
    spark = SparkSettings() if settings is None else settings.spark
    intake = IntakeSettings() if settings is None else settings.intake
    kafka = None if settings is None else settings.kafka
    whose = "the default settings" if settings is None else "these settings"
    return [
        Check("java", partial(machine.java, environ, roles, spark), machine.INSTALL_JAVA),
        Check("memory", partial(_memory, roles, spark, intake, kafka, whose), "compare it with `free -h`"),
        Check("open files", partial(machine.open_files, kafka), "compare it with `ulimit -Hn`"),
        Check("duckdb", machine.duckdb, "install it again: pip install 'stream-archiver[query]'"),
        Check("scratch folder", folders.scratch_folder, "set TMPDIR to another folder"),
        Check(
            "disk",
            partial(folders.disk, settings, [] if settings is None else _catalog_files(settings)),
            "find out which mount does not answer (`df`)",
        ),
    ]


def deployment_checks(
    settings: Settings,
    schemas: Callable[[], Finding],
    own_daemon: ports.OwnDaemon,
    time: Clock,
    ids: IdSource,
) -> list[Check]:
    """Checks of a valid configuration. `schemas` checks the schema files that topics name."""
    _import_adapters(settings)
    see_mounts = "find out which mount does not answer (`df`)"
    see_port = "find out which program listens there (`ss -ltnp`)"
    see_connect = "see `archiver config check --connect`"
    checks = [
        Check("schemas", schemas, "see `archiver config check`"),
        Check(ports.HTTP, partial(ports.http_port, settings, own_daemon), see_port),
        Check(ports.KAFKA, partial(ports.kafka_port, settings, own_daemon), see_port),
        Check("data folder", partial(folders.data_folder, settings), see_mounts),
        Check("metadata folder", partial(folders.metadata_folder, settings), see_mounts),
        Check("object store", partial(services.object_store, settings, ids), see_connect),
        Check("bucket guarantees", partial(services.bucket_guarantees, settings, ids), see_connect),
        Check("metadata store", partial(services.metadata_store, settings, time), see_connect),
    ]
    tables = used(settings)
    checks += [
        Check(
            f"catalog {group.name}",
            partial(services.catalog, settings, group.name, tables.get(group.name, []), ids, time),
            f"start the catalog, or correct {group.name!r} in `catalogs` (docs/operations/catalogs.md)",
        )
        for group in settings.catalogs
    ]
    checks.append(
        Check(
            "schema registry",
            partial(services.schema_registry, settings, time),
            "start the registry, or correct `schema_registry.confluent` (docs/protocols/schema-sources.md)",
        )
    )
    checks += [
        Check(f"source {kafka.name}", partial(services.kafka_source, settings, kafka, time), see_connect)
        for kafka in [source.kafka for source in settings.sources if source.kafka is not None]
    ]
    if settings.events.kafka is not None:
        find = partial(services.control_topic, settings.events.kafka, settings.events.bytes_max, time)
        checks.append(Check("control topic", find, see_connect))
    checks.append(Check("clock", partial(clock.clock_skew, settings, time), clock.COMPARE))
    return checks


def _import_adapters(settings: Settings) -> None:
    """Import what several checks use, before their threads: two threads could see half a module of packages
    whose modules import each other.
    """
    modules = []
    if StorePlace.of(settings.data).is_s3:
        modules.append("archiver.objects.s3.store")
    if settings.catalogs:
        modules.append("archiver.catalog.iceberg.probe")
    if any(source.kafka is not None for source in settings.sources) or settings.events.kafka is not None:
        modules += ["archiver.control_topic.kafka_topic", "intake.sources.kafka.check"]
    for name in modules:
        importlib.import_module(name)


def _memory(
    roles: Sequence[str],
    spark: SparkSettings,
    intake: IntakeSettings,
    kafka: KafkaListenerSettings | None,
    whose: str,
) -> Finding:
    return machine.judge_memory(
        machine.memory_limits(machine.read_small_file),
        machine.memory_needs(roles, spark, intake, kafka, machine.usable_cores()),
        whose,
    )


def _catalog_files(settings: Settings) -> list[Path]:
    files = [
        sqlite_file(group.properties().get("uri", "")) for group in settings.catalogs if group.type == "sql"
    ]
    return [file for file in files if file is not None]
