"""pyiceberg's catalogs and tables, in which table properties choose neither code nor addresses.

Table properties are remote text: any user who may alter the table writes them. Here file access comes from
the catalog's own properties alone, and metadata always lies in the folder `metadata` of the table. The
properties stay in the table as they are, because they belong to other engines (decision 0071). Only for
`adapter.py`.
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
        # pyiceberg's own imports the class that `write.py-location-provider.impl` names.
        return metadata_places(self.metadata.location)


def metadata_places(location: str) -> LocationProvider:
    """Where new files of a table at `location` are written, regardless of the table's properties."""
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
        # `properties` has those of the table, which could name code (`py-io-impl`) or addresses.
        return load_file_io(self.properties, location)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """As pyiceberg's, except for the place of the new metadata file and its file access."""
        base = None if current_table is None else current_table.metadata
        known_at = None if current_table is None else current_table.metadata_location
        # Before the metadata file is written, so a refused commit leaves no file behind.
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
    """The guarded catalog of these properties alone; raises `ValueError` if they describe none."""
    # Not `load_catalog`: it adds properties of the environment and of a `.pyiceberg.yaml` in the working
    # directory, a service's data folder. They could name code, and `archiver config check` would miss them.
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
    `rest.py`.
    """
    # The class is exchanged afterwards, because pyiceberg makes catalogs by their `type` alone. Making one
    # reads no table, so nothing passed the guard by then.
    if isinstance(catalog, MetastoreCatalog) and not isinstance(catalog, _GuardedMetastore):
        kind: Any = type(f"Guarded{type(catalog).__name__}", (_GuardedMetastore, type(catalog)), {})
        cast("Any", catalog).__class__ = kind
    return catalog
