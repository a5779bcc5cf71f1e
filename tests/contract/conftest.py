"""Fixtures that the suites share: every catalog that those of tables run on, the S3 server and its proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.tables import Tables
from tests.support.catalog.table_catalogs import KINDS, REAL, opened, real_tables
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import S3Server

__all__ = ["faults", "iceberg", "server", "tables"]


@pytest.fixture(params=KINDS)
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    """Tables of each kind."""
    found = opened(request, tmp_path)
    yield found
    found.close()


@pytest.fixture(params=REAL)
def iceberg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergTables]:
    """Tables of each kind but the twin in memory."""
    found = real_tables(request, tmp_path)
    yield found
    found.close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> S3Server:
    """The module's own server; each test has its own bucket."""
    found: S3Server = request.getfixturevalue("s3_server")
    return found


@pytest.fixture
def faults(server: S3Server) -> Iterator[S3Faults]:
    """A proxy that loses, refuses and counts requests."""
    with S3Faults(server) as proxy:
        yield proxy
