"""What the suites of tables share: every catalog they run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.catalog.iceberg import IcebergTables
from archiver.catalog.tables import Tables
from tests.support.rest_catalog import rest_catalog
from tests.support.table_catalogs import KINDS, REAL, opened, real_tables

__all__ = ["iceberg", "rest_catalog", "tables"]


@pytest.fixture(params=KINDS)
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    """Each kind."""
    found = opened(request, tmp_path)
    yield found
    found.close()


@pytest.fixture(params=REAL)
def iceberg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergTables]:
    """Each kind but the twin in memory."""
    found = real_tables(request, tmp_path)
    yield found
    found.close()
