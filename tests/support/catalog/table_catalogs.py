"""The catalogs that the suite of tables runs on, by name: pyiceberg's on SQLite, the real REST catalog, and
the twin in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.table_layout import table_properties
from archiver.catalog.tables import Tables, TableView
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.tables import CLUSTER_ID, IDENTIFIER, START_US, TOPIC_ID, schema_json, target_in

_REST = pytest.param("rest", marks=pytest.mark.spark)
"""Marked, as everything is that needs Java."""

KINDS = ("iceberg", _REST, "memory")
REAL = ("iceberg", _REST)
SEED = 7


def sql_tables(folder: Path) -> IcebergTables:
    """A catalog of its own connection on the folder's SQLite file."""
    return IcebergTables(
        "local", {"type": "sql", "uri": f"sqlite:///{folder}/catalog/catalog.db"}, SeededIds(SEED)
    )


def opened(request: pytest.FixtureRequest, folder: Path) -> Tables:
    """The kind that the fixture's parameter names; a REST catalog that other tests have used is emptied
    first."""
    if request.param == "memory":
        return MemoryTables(SeededIds(SEED), ManualClock(START_US))
    return real_tables(request, folder)


def real_tables(request: pytest.FixtureRequest, folder: Path) -> IcebergTables:
    """As `opened`, of the real ones."""
    if request.param == "iceberg":
        return sql_tables(folder)
    catalog = request.getfixturevalue("rest_catalog")
    assert isinstance(catalog, RestCatalog)
    catalog.empty()
    _address(folder).write_text(catalog.uri)
    return IcebergTables("local", catalog.properties, SeededIds(SEED))


def client(folder: Path) -> Catalog:
    """pyiceberg on the catalog that `opened` has opened for this folder, for external changes. Close it."""
    if _address(folder).exists():
        return load_catalog("local", type="rest", uri=_address(folder).read_text())
    return load_catalog("local", type="sql", uri=f"sqlite:///{folder}/catalog/catalog.db?timeout=60")


def made(tables: Tables, folder: Path) -> TableView:
    """A new table by day."""
    properties = table_properties(CLUSTER_ID, TOPIC_ID, "flights")
    return tables.create(IDENTIFIER, target_in(folder).location, schema_json(), "day", properties)


def loaded(tables: Tables) -> TableView:
    """The table, as it is now."""
    found = tables.load(IDENTIFIER)
    assert found is not None
    return found


def _address(folder: Path) -> Path:
    return folder / "rest-catalog.uri"
