"""A deployment with archived records, and the reconciler over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from archiver.catalog.table_layout import COMMIT_ID
from reconcile.repair.run import Fix, ReconcileReport
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, catalog_table

LATER_S = 1000.0
"""Behind every bound of a commit: what was written before is not on its way any more."""


def archived(root: Path, **overrides: Any) -> Deployment:
    """Two commits to the table of `clicks`, one to that of `orders`. `clicks` has offsets 0 to 4 and 5 to 8
    of partition 0, and 0 to 2 of partition 1."""
    deployment = Deployment(root, **overrides)
    with Driver(deployment) as driver:
        driver.send("clicks", [b"a"] * 5, 0)
        driver.send("clicks", [b"b"] * 3, 1)
        driver.send("orders", [b"\x08\x01"] * 4, 0)
        driver.archive()
        driver.send("clicks", [b"c"] * 4, 0)
        driver.archive()
    return deployment


def reconciled(
    deployment: Deployment, fix: Fix = "nothing", topic: str | None = None, ahead_s: float = 0.0
) -> ReconcileReport:
    """A run in a process's application of its own, some time later."""
    clock = AheadClock()
    clock.ahead_s = ahead_s
    with Driver(deployment, clock) as driver:
        return driver.application.maintenance.reconciling(
            driver.reported.append, dry_run=fix == "nothing"
        ).run(fix, topic)


def left(report: ReconcileReport) -> list[tuple[str, str | None]]:
    """(id, topic) of what is not fixed."""
    return [(finding.id, finding.topic) for finding, fixed in report.findings if not fixed]


def fixed(report: ReconcileReport) -> list[tuple[str, str | None]]:
    """(id, topic) of what is."""
    return [(finding.id, finding.topic) for finding, done in report.findings if done]


def others_go_on(deployment: Deployment, *, halted: str = "clicks", going: str = "orders") -> None:
    """The other topic is archived in every case; this one is halted."""
    with Driver(deployment) as driver:
        driver.send(going, [b"\x08\x02"] * 2, 1)
        driver.send(halted, [b"more"], 0)
        report = driver.archive()
        assert report.topics[going].state == "archived", report.topics[going]
        assert report.topics[halted].state == "halted", report.topics[halted]
        documents = [item for item in driver.audit()["partitions"] if item["topic"] == going]
        assert {item["verdict"] for item in documents} == {"valid"}


def commits(table: Table) -> list[int]:
    """Ids of the snapshots of ours, oldest first."""
    found = sorted(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
    return [
        item.snapshot_id
        for item in found
        if item.summary is not None and COMMIT_ID in item.summary.additional_properties
    ]


def roll_back(deployment: Deployment, number: int = 0, table: str = "shop.clicks") -> None:
    """An external client rolls the table back to our commit of that number."""
    with catalog_table(deployment, table) as found, found.manage_snapshots() as manage:
        manage.rollback_to_snapshot(commits(found)[number])


def control_tail(deployment: Deployment) -> int:
    """How many entries the control log has."""
    with Driver(deployment) as driver:
        return driver.application.control_log.tail()


def metadata_location(deployment: Deployment, table: str = "shop.clicks") -> str:
    """Changes with every change of the table."""
    with catalog_table(deployment, table) as found:
        return str(found.metadata_location)
