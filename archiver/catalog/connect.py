"""`archiver config check --connect`: checks the configured catalogs before the first write.

Reads only, unless a probe is requested. Each request is bounded by the catalog's `request_timeout`. A probe
is also bounded by `archive.commit_timeout` and sends nothing after it. Only a probe may create the database
of a SQLite catalog.
"""

from __future__ import annotations

from collections.abc import Iterator

from archiver.catalog.configured import ConfiguredCatalogs, sqlite_file
from archiver.catalog.tables import Identifier, parse_identifier
from archiver.config.settings import CatalogSettings, Settings
from archiver.config.types import TOPIC_PLACE
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.paths import catalog_probe_prefix
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource


def check_catalogs(settings: Settings, ids: IdSource, clock: Clock, *, probe: bool) -> Iterator[Checked]:
    """Every catalog that a topic uses, one after the other."""
    for name, identifiers in used(settings).items():
        yield check_one_catalog(settings, name, identifiers, ids, clock, probe=probe)


def check_one_catalog(
    settings: Settings, name: str, identifiers: list[Identifier], ids: IdSource, clock: Clock, *, probe: bool
) -> Checked:
    """A catalog of the configuration, and these of its tables; at least one for a probe."""
    group = settings.catalog(name)
    assert group is not None, "the configuration is valid"
    catalogs = ConfiguredCatalogs(lambda: settings, ids)
    try:
        check = _Check(settings, group, catalogs, identifiers, ids, clock)
        return Checked(name, group.type, tuple(check.findings(probe)))
    finally:
        catalogs.close()


def used(settings: Settings) -> dict[str, list[Identifier]]:
    """The tables of topics by the names of their catalogs."""
    found: dict[str, list[Identifier]] = {}
    for topic in settings.topics:
        if topic.archive.catalog is not None and topic.archive.table is not None:
            found.setdefault(topic.archive.catalog, []).append(parse_identifier(topic.archive.table))
    for template in settings.templates:
        if template.archive.catalog is not None and template.archive.table is not None:
            # Any name serves: the catalog and the namespace are checked.
            table = template.archive.table.replace(TOPIC_PLACE, "topic")
            found.setdefault(template.archive.catalog, []).append(parse_identifier(table))
    return found


class _Check:
    def __init__(
        self,
        settings: Settings,
        group: CatalogSettings,
        catalogs: ConfiguredCatalogs,
        identifiers: list[Identifier],
        ids: IdSource,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._group = group
        self._catalogs = catalogs
        self._identifiers = identifiers
        self._ids = ids
        self._clock = clock

    def findings(self, probe: bool) -> Iterator[CheckResult]:
        """The results, in the order of the requests."""
        from archiver.catalog.iceberg.adapter import IcebergTables
        from archiver.catalog.iceberg.probe import check_catalog

        file = sqlite_file(self._group.properties().get("uri", "")) if self._group.type == "sql" else None
        # Opening a SQLite catalog creates the file, and without a probe this check only reads.
        if file is not None and not file.exists() and not probe:
            yield CheckResult(
                "reachable",
                CheckStatus.NOTE,
                f"{file} is not there yet; it is made when the first topic is archived",
            )
            return
        try:
            tables = self._catalogs.get(self._group.name)
        except ArchiverError as error:
            yield CheckResult("reachable", CheckStatus.WRONG, str(error))
            return
        assert isinstance(tables, IcebergTables), "every configured catalog is one"
        reached = True
        for finding in check_catalog(tables, self._identifiers, self._settings.data.uri):
            reached = reached and not (
                finding.check == "reachable" and finding.verdict is not CheckStatus.FINE
            )
            yield finding
        # A probe of an unreachable catalog would only repeat the error, after another time-out.
        if reached and probe:
            yield from self._probe(tables)

    def _probe(self, tables: object) -> Iterator[CheckResult]:
        from archiver.catalog.iceberg.adapter import IcebergTables
        from archiver.catalog.iceberg.probe import Probe

        assert isinstance(tables, IcebergTables), "every configured catalog is one"
        # Random, so that no other table has it, and in mixed case to see whether the catalog keeps that.
        name = f"Archiver_Probe_{self._ids.random_bytes(8).hex()}"
        objects = open_store(StorePlace.of(self._settings.data))
        prefix = catalog_probe_prefix(name)

        def sweep() -> None:
            # Listed before the first delete: a listing need not be stable while objects disappear.
            for info in list(objects.list(f"{prefix}/")):
                objects.delete(info.key)

        within_s = self._settings.archive.commit_timeout
        yield from Probe(
            tables, self._identifiers[0][:-1], name, objects.uri(prefix), sweep, self._clock, within_s
        ).run()
