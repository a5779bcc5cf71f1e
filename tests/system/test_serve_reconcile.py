"""The daemon reconciles: before it cleans, soon after a commit that failed, and on request; it repairs what
is safe and reports the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.runtime import failpoints
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.reconciling import archived, roll_back
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick


def findings(daemon: Served, name: str) -> float | None:
    """How many of that id `/metrics` shows; None before the first reconciling."""
    found = [
        line
        for line in daemon.get("/metrics").body.decode().splitlines()
        if line.startswith(f'archiver_findings{{finding="{name}"')
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found) if found else None


def serving(deployment: Deployment) -> None:
    """The daemon polls quickly, and reconciles a second after a failure."""
    document = quick(deployment.document())
    deployment.write(document | {"cleanup": {"reconcile_after": "1s"}})


def test_on_request_and_on_the_page(tmp_path: Path) -> None:
    """Without the role `archive`, so that nothing but the request repairs anything."""
    deployment = archived(tmp_path / "d")
    roll_back(deployment)
    serving(deployment)
    with Served(deployment, "--roles", "reconcile", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        reported = daemon.admin("reconcile")["done"]
        assert (reported["exit_code"], [item["id"] for item in reported["document"]["findings"]]) == (
            1,
            ["rolled-back"],
        )
        assert daemon.admin("reconcile", {"topic": "nothing"})["error"]["exit_code"] == 3
        done = daemon.admin("reconcile", {"fix": True, "topic": "clicks"})["done"]
        assert (done["exit_code"], done["document"]["findings"][0]["fixed"]) == (0, True)
        until("the daemon has looked at all of it", lambda: findings(daemon, "rolled-back") == 0)
        assert daemon.cycles("reconcile", "fine") >= 1
        roll_back(deployment)
        assert daemon.admin("reconcile", {"fix": True, "topic": "orders"})["done"]["exit_code"] == 0
        until("the daemon tells of it", lambda: findings(daemon, "rolled-back") == 1)
        assert daemon.cycles("reconcile", "wrong") >= 1, "it is told, and not repaired unasked"
        page = daemon.get("/").body.decode()
        assert "rolled-back" in page
        assert "it was rolled back; roll it forward again" in page
        assert daemon.stop() == 0


@pytest.mark.slow
def test_soon_after_a_commit_that_failed(tmp_path: Path) -> None:
    """A tick meets a table that was rolled back while archives waited: the reconciler says why, long before
    the first cleaning."""
    deployment = archived(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("clicks", [b"d"] * 2, 0)
        failpoints.arm("table.swap.before=error")
        driver.archive()
    serving(deployment)
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        until("the daemon has committed what waited", lambda: daemon.cycles("tick", "fine") > 0)
        with Driver(deployment) as driver:
            until("it is in the ledger", lambda: driver.watermarks("clicks") == {0: 11, 1: 3})
            roll_back(deployment)
            driver.send("clicks", [b"e"], 1)
        until("a tick was halted", lambda: daemon.cycles("tick", "wrong") > 0)
        until("the reconciler has said why", lambda: findings(daemon, "rolled-back") == 1)
        assert daemon.cycles("cleanup", "fine") == 0
        assert daemon.stop() == 0
