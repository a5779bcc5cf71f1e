"""pyiceberg's catalogs and tables without the places where table properties choose code or addresses. Only
for `adapter.py`.

Table properties are remote text: everyone who may alter a table writes them. pyiceberg merges them into the
properties of a table's file access (`py-io-impl`, `s3.endpoint`, `s3.proxy-uri`), and imports the location
provider that they name (`write.py-location-provider.impl`). Here file access comes from the catalog's own
properties alone, and metadata always lies in the folder `metadata` of the table. The properties stay in the
table as they are: they belong to other engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyiceberg.catalog import (
    AVAILABLE_CATALOGS,
    Catalog,
    CatalogType,
    MetastoreCatalog,
    _check_required_catalog_properties,
    _import_catalog,
    infer_catalog_type,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import LocationProvider, SimpleLocationProvider
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties


class GuardedTable(Table):
    """A table whose own properties choose neither code nor places."""

    def location_provider(self) -> LocationProvider:
        """Data in `data`, metadata in `metadata` below the table's location."""
        return metadata_places(self.metadata.location)


def metadata_places(location: str) -> LocationProvider:
    """Where new files of a table at `location` go. Its properties have no say."""
    return SimpleLocationProvider(location.rstrip("/"), {})


def guarded_table(table: Table) -> GuardedTable:
    """The same table, with the methods above."""
    if isinstance(table, GuardedTable):
        return table
    return GuardedTable(
        table._identifier,  # noqa: SLF001
        table.metadata,
        table.metadata_location,
        table.io,
        table.catalog,
        table.config,
    )


class _GuardedMetastore(MetastoreCatalog):
    """Mixed into a catalog that reads and writes table metadata itself: `sql`, `hive`, `glue` and the
    like.
    """

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:  # noqa: ARG002 - remote text
        return load_file_io(self.properties, location)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """As pyiceberg's, but for the place of the new metadata file and for the file access that writes
        it.
        """
        base = None if current_table is None else current_table.metadata
        known_at = None if current_table is None else current_table.metadata_location
        for requirement in requirements:
            requirement.validate(base)
        changed = update_table_metadata(
            self._empty_table_metadata() if base is None else base,
            updates,
            enforce_validation=base is None,
            metadata_location=known_at,
        )
        version = 0 if known_at is None else self._parse_metadata_version(known_at) + 1
        where = metadata_places(changed.location).new_table_metadata_file_location(version)
        return StagedTable(table_identifier, changed, where, self._load_file_io(location=where), self)


def open_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    """The guarded catalog of these properties alone; raises `ValueError` for properties of which none can be
    made.

    pyiceberg's `load_catalog` adds those of a `.pyiceberg.yaml` in the working directory, which is the data
    folder of a service, and of the environment. They could name code (`s3.retry-strategy-impl`), and
    `archiver config check` would not see them.
    """
    implementation = properties.get("py-catalog-impl")
    if implementation is not None:
        found = _import_catalog(name, str(implementation), dict(properties))
        if found is None:
            raise ValueError(f"there is no catalog {implementation}")
        return guarded(found)
    stated = properties.get("type")
    kind = CatalogType(str(stated).lower()) if stated else infer_catalog_type(name, dict(properties))
    if kind is None:
        raise ValueError("its type is not known")
    _check_required_catalog_properties(name, kind, dict(properties))
    return guarded(AVAILABLE_CATALOGS[kind](name, dict(properties)))


def guarded(catalog: Catalog) -> Catalog:
    """The same catalog, with the methods above if it writes metadata itself. REST catalogs have theirs in
    `iceberg_rest.py`.

    The class is exchanged after the catalog was made, which reads no table: pyiceberg makes catalogs by their
    `type` alone.
    """
    if isinstance(catalog, MetastoreCatalog) and not isinstance(catalog, _GuardedMetastore):
        kind: Any = type(f"Guarded{type(catalog).__name__}", (_GuardedMetastore, type(catalog)), {})
        cast("Any", catalog).__class__ = kind
    return catalog
