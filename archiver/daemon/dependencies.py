"""The questions that tell whether what a daemon depends on is there, by its roles.

Each question is one quick request; the watch bounds how long it waits for the answer. Changes nothing but
what is overdue anyway: transactions whose time is over are aborted when the clock is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from archiver.app.application import Application
from archiver.catalog.tables import parse_identifier
from archiver.config.settings import Settings
from archiver.objects.cluster import read_cluster
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, RetryLater
from archiver.spark.java import require_java

JAVA_AGAIN_S = 60.0
"""A Java that was found is looked for again after so long; asking it takes a tenth of a second of a core."""


class Dependencies:
    """Makes the questions."""

    def __init__(self, clock: Clock, environ: Mapping[str, str], roles: frozenset[str]) -> None:
        self._clock = clock
        self._environ = environ
        self._roles = roles
        self._java_until_s = 0.0

    def questions(self, application: Application) -> dict[str, Callable[[], object]]:
        """By the name of the dependency."""
        found: dict[str, Callable[[], object]] = {
            "metadata": application.intake_log.tail,
            "objects": lambda: _objects(application),
            "clock": application.intake.end_overdue,
        }
        if self._roles & {"archive", "reconcile"}:
            for name, table in _catalogs(application.settings).items():
                found[f"catalog {name}"] = lambda name=name, table=table: _catalog(application, name, table)  # type: ignore[misc]
        if "archive" in self._roles and application.settings.spark.remote is None:
            found["java"] = lambda: self._java(application)
            if application.archiving.spark_runs:
                found["spark"] = application.archiving.ask_spark
        return found

    def _java(self, application: Application) -> None:
        if application.archiving.spark_runs or self._clock.monotonic_s() < self._java_until_s:
            return
        require_java(self._environ)
        self._java_until_s = self._clock.monotonic_s() + JAVA_AGAIN_S


def _objects(application: Application) -> None:
    found = read_cluster(application.objects)
    if found is None:
        raise RetryLater(
            f"the data folder {application.settings.data.uri} has lost its identity (cluster.json): "
            "is it mounted?"
        )
    if found.cluster_id != application.cluster.cluster_id:
        raise RetryLater(
            f"the data folder {application.settings.data.uri} is another one now: its cluster id is "
            f"{found.cluster_id}"
        )


def _catalogs(settings: Settings) -> dict[str, str]:
    """A table of each catalog that is used."""
    found: dict[str, str] = {}
    for topic in settings.topics:
        if topic.archive.catalog is not None and topic.archive.table is not None:
            found.setdefault(topic.archive.catalog, topic.archive.table)
    return found


def _catalog(application: Application, name: str, table: str) -> None:
    try:
        application.tables(name).load(parse_identifier(table))
    except Halt:
        return  # it has answered; what is wrong with that table is told by its topic
