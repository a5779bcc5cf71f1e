"""Creates and reads one contender's tables in a SQL catalog in its folder, named `local` in
pyiceberg and Java.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from bench.deployment import CATALOG, NAMESPACE

_LINE = StructType(
    NestedField(9, "sku", StringType(), required=False),
    NestedField(10, "quantity", IntegerType(), required=False),
    NestedField(11, "price_cents", LongType(), required=False),
)
ORDER = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "customer", StringType(), required=False),
    NestedField(3, "state", StringType(), required=False),
    NestedField(4, "created", TimestamptzType(), required=False),
    NestedField(5, "lines", ListType(12, _LINE, element_required=False), required=False),
    NestedField(6, "tags", MapType(13, StringType(), 14, StringType(), value_required=False), required=False),
    NestedField(7, "total", DoubleType(), required=False),
    NestedField(8, "gift", BooleanType(), required=False),
)
PROPERTIES = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "1"}
"""Of the peers' tables: the level of archives, which is faster than their default of 3."""


class Tables:
    """The tables in the catalog of one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.database = folder / "catalog.db"
        self.warehouse = folder / "data"
        self._catalog = SqlCatalog(
            CATALOG, uri=f"sqlite:///{self.database}?timeout=60", warehouse=f"file://{self.warehouse}"
        )

    def create(self, name: str) -> str:
        """Create an empty table of orders without partitions; return its full name."""
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        self._catalog.create_table(f"{NAMESPACE}.{name}", ORDER, properties=PROPERTIES)
        return f"{NAMESPACE}.{name}"

    def rows(self, name: str) -> int:
        """Return the rows of the newest snapshot; 0 if there is no table."""
        try:
            snapshot = self.table(name).current_snapshot()
        except NoSuchTableError:
            return 0
        return 0 if snapshot is None else int(_summary(snapshot)["total-records"])

    def commits(self, name: str) -> list[int]:
        """Return when each snapshot with new rows was made, in milliseconds since 1970."""
        return [
            one.timestamp_ms
            for one in self.table(name).snapshots()
            if int(_summary(one).get("added-records", "0")) > 0
        ]

    def stored_bytes(self, name: str) -> int:
        """Return the bytes of its data files."""
        return sum(task.file.file_size_in_bytes for task in self.table(name).scan().plan_files())

    def read(self, name: str, fields: tuple[str, ...]) -> pa.Table:
        """Return all rows of these columns."""
        return self.table(name).scan(selected_fields=fields).to_arrow()

    def java(self) -> Mapping[str, str]:
        """Return the catalog properties for Iceberg's Java library."""
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{self.database}",
            "jdbc.schema-version": "V1",
            "warehouse": str(self.warehouse),
            "cache-enabled": "false",
        }

    def close(self) -> None:
        """Close the database."""
        self._catalog.close()

    def table(self, name: str) -> Table:
        """Load the table, which must exist."""
        return self._catalog.load_table(f"{NAMESPACE}.{name}")


def _summary(snapshot: Any) -> Mapping[str, str]:
    return dict(snapshot.summary.additional_properties)
