"""A topic `orders` with one partition and a table, for tests of a format from records to rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import catalog_table

TABLE = "shop.orders"


def deployed(folder: Path, value: dict[str, Any], **more: Any) -> Deployment:
    """A deployment with the topic; `value` and `key` (in `more`) are its schemas, the rest its settings."""
    key = more.pop("key", None)
    topic = {
        "name": "orders",
        "partitions": 1,
        **({} if key is None else {"key": key}),
        "value": value,
        "archive": {"kind": "iceberg", "catalog": "local", "table": TABLE},
    }
    return Deployment(folder, overrides={"topics": [topic], **more})


def rows(deployment: Deployment) -> list[dict[str, Any]]:
    """The values in its table that are not null, by offset."""
    with catalog_table(deployment, TABLE) as table:
        found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["kafka"]["offset"])
    return [{name: one for name, one in (row["value"] or {}).items() if one is not None} for row in found]
