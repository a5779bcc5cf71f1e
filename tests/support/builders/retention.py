"""Retention on a deployment: asking for it, and forgetting what would be in its way."""

from __future__ import annotations

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import catalog_table


def keep(deployment: Deployment, retention: str) -> None:
    """Every topic's retention, from the next process on."""
    document = deployment.document()
    for topic in document["topics"]:
        topic["retention"] = retention
    deployment.write(document)


def forget_snapshots(deployment: Deployment, table_name: str) -> None:
    """An external client expires all snapshots but the current one. pyiceberg stamps them by the system's
    clock, which a test cannot move."""
    with catalog_table(deployment, table_name) as table:
        gone = [
            item.snapshot_id
            for item in table.metadata.snapshots
            if item.snapshot_id != table.metadata.current_snapshot_id
        ]
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids(gone)
