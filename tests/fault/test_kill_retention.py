"""Kill the process at each step of retention: nothing but what is too old is ever missing, and the next runs finish the work."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from archiver import failpoints
from archiver.objects.paths import parse_archive_key
from tests.support.deployment import Deployment
from tests.support.driver import AheadClock, Driver, catalog_table
from tests.support.retention import all_kept, forget_snapshots, keep

MOVING = [name for name in failpoints.NAMES if name.startswith(("start.", "upkeep.", "table.swap."))]
DELETING = ["condemn.append.after", "intake.delete.after", "deleted.append.before"]
"""`test_kill_everywhere.py` kills at the others, with intake to delete."""


def at(hours: float) -> AheadClock:
    clock = AheadClock()
    clock.ahead_s = hours * 3600
    return clock


def old_and_new(deployment: Deployment) -> None:
    """Records of six hours ago, and of an hour ago; two hours are kept."""
    keep(deployment, "2h")
    for hours, label in ((-6.0, "old"), (-1.0, "new")):
        with Driver(deployment, at(hours)) as driver:
            for topic in ("clicks", "files"):
                assert {one.outcome for one in driver.send(topic, [f"{label} {n}".encode() for n in range(5)], 0)} == {"ok"}
            driver.archive()


def finish(deployment: Deployment) -> None:
    """A few runs more: the old records are gone from everywhere, the others are where they were."""
    forget_snapshots(deployment, "shop.clicks")
    for hours in (0.0, 1.1, 2.2, 3.3):
        keep(deployment, "forever" if hours else "2h")  # later the new records would be too old as well
        with Driver(deployment, at(hours)) as driver:
            report = driver.application.cleaning(print).run()
            assert (report.findings, report.error, report.exit_code) == ([], None, 0), report.to_json()
    with Driver(deployment, at(3.4)) as driver:
        for topic in ("clicks", "files"):
            keys = [parse_archive_key(info.key) for info in driver.application.objects.list(f"archive/{driver.topic_id(topic)}/data/")]
            assert [(key.base, key.end) for key in keys if key is not None] == [(5, 10)]
            assert all_kept(deployment, topic) == [5, 6, 7, 8, 9]
        document = driver.audit()
        assert document["verdict"] == "valid", document
        assert {(item["topic"], item["start"]) for item in document["partitions"]} >= {("clicks", 5), ("files", 5)}
        driver.send("clicks", [b"one more"], 0)
        driver.archive()
        assert driver.audit()["verdict"] == "valid"


@pytest.mark.parametrize("name", MOVING)
def test_killed_while_a_start_moves(name: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    old_and_new(deployment)
    killed = deployment.run("clean", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, (killed.out, killed.err)
    assert all_kept(deployment, "clicks")[-5:] == [5, 6, 7, 8, 9]
    assert deployment.cli("audit").code == 0
    with catalog_table(deployment, "shop.clicks") as table:
        assert {row["offset"] for row in table.scan().to_arrow().column("kafka").to_pylist()} >= {5, 6, 7, 8, 9}
    finish(deployment)


@pytest.mark.parametrize("name", DELETING)
def test_killed_while_retired_archives_go(name: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    old_and_new(deployment)
    with Driver(deployment, at(-0.5)) as driver:
        driver.application.cleaning(print).run()
    forget_snapshots(deployment, "shop.clicks")
    if not name.startswith("condemn."):
        with Driver(deployment, at(-1.2)) as driver:
            condemned = driver.application.cleaning(print).run().kinds["condemned"]
            assert condemned["retired"]["objects"] == 1, condemned
    killed = deployment.run("clean", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, (killed.out, killed.err)
    assert all_kept(deployment, "clicks") == [5, 6, 7, 8, 9]
    assert deployment.cli("audit").code == 0
    finish(deployment)
