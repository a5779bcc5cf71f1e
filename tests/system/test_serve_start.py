"""A real daemon that starts while a dependency is absent. It is alive, says what it waits for, and creates
nothing in the place of what is missing. Once that is there it goes on by itself and archives.

How long it is absent is `ARCHIVER_TEST_ABSENT_S` (seconds; 3 unless it is set, 120 is what the daemon is made
for).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.clock import SystemClock
from archiver.spark.java import require_java
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

ABSENT_S = float(os.environ.get("ARCHIVER_TEST_ABSENT_S", "3"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(180 + 2 * round(ABSENT_S)),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]


@dataclass(frozen=True)
class Absence:
    """What is taken away before the start, and how it comes back."""

    check: str
    """The name under which /readyz has it."""
    takes_records: bool
    """The intake goes on without it."""
    take: Callable[[Deployment], object]
    give: Callable[[Deployment], object]


def away(folder: str) -> tuple[Callable[[Deployment], object], Callable[[Deployment], object]]:
    """Rename a folder of the deployment, and rename it back; nothing may have come in its place."""

    def give(deployment: Deployment) -> None:
        assert not (deployment.root / folder).exists(), "something was made in the place of what was absent"
        (deployment.root / f"{folder}.away").rename(deployment.root / folder)

    return lambda deployment: (deployment.root / folder).rename(deployment.root / f"{folder}.away"), give


def emptied(folder: str) -> tuple[Callable[[Deployment], object], Callable[[Deployment], object]]:
    """Put an empty folder in the place of one, as a mount point without its volume has it, and turn back."""

    def take(deployment: Deployment) -> None:
        (deployment.root / folder).rename(deployment.root / f"{folder}.away")
        (deployment.root / folder).mkdir()

    def give(deployment: Deployment) -> None:
        assert list((deployment.root / folder).iterdir()) == [], (
            "something was made in the place of what was absent"
        )
        (deployment.root / folder).rmdir()
        (deployment.root / f"{folder}.away").rename(deployment.root / folder)

    return take, give


def java_home(deployment: Deployment) -> Path:
    return deployment.root / "java"


def link_java(deployment: Deployment) -> None:
    java_home(deployment).symlink_to(Path(os.path.realpath(require_java(os.environ).executable)).parents[1])


ABSENCES = {
    "metadata folder": Absence("metadata", False, *away("meta")),
    "data volume": Absence("deployment", False, *emptied("data")),
    "catalog volume": Absence("catalog local", True, *emptied("catalogs")),
    "java": Absence("java", True, lambda deployment: java_home(deployment).unlink(), link_java),
}


class Placed(Deployment):
    """A deployment whose parts each have a folder of their own, and a Java that can be taken away."""

    def document(self) -> dict[str, Any]:
        found = super().document()
        found["metadata"] = {"sqlite": {"path": "meta/metadata.db"}}
        found["catalogs"] = [
            {"name": "local", "type": "sql", "uri": f"sqlite:///{self.root}/catalogs/catalog.db?timeout=60"}
        ]
        return quick(found)

    def environ(self, armed: str = "") -> dict[str, str]:
        return super().environ(armed) | {"JAVA_HOME": str(java_home(self))}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """With records and a table from before."""
    made = Placed(tmp_path / "d")
    (made.root / "meta").mkdir()
    link_java(made)
    with Driver(made) as driver:
        driver.send("clicks", [b"before"] * 5)
        driver.archive()
    return made


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ABSENCES)
def test_what_is_absent_at_the_start_is_waited_for(name: str, deployment: Deployment, tmp_path: Path) -> None:
    absence = ABSENCES[name]
    absence.take(deployment)
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        until("it says what it waits for", lambda: absence.check in names_that_fail(daemon))
        waited_from = SystemClock().monotonic_s()
        while SystemClock().monotonic_s() - waited_from < ABSENT_S:
            assert daemon.get("/healthz").status == 200
            assert absence.check in names_that_fail(daemon)
            SystemClock().sleep(0.2)
        sent = daemon.post("/v1/topics/clicks/records", b'{"value": "AAAA"}\n')
        assert (sent.status == 200) == absence.takes_records, sent
        assert len(daemon.logged("does not answer")) + len(daemon.logged("waiting for")) <= 4, (
            "said when it changes, not each time"
        )
        absence.give(deployment)
        daemon.until_ready()
        assert daemon.post("/v1/topics/clicks/records", b'{"value": "AAAA"}\n' * 3).status == 200
        daemon.until_archived("clicks", 5 + 3 + absence.takes_records)
        assert daemon.stop() == 0


def names_that_fail(daemon: Served) -> str:
    """The text of /readyz while it is not ready; empty when it is."""
    answer = daemon.get("/readyz")
    assert answer.status in (200, 503), answer
    return "" if answer.status == 200 else answer.body.decode()


def test_a_first_start_makes_everything(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert (deployment.data / "cluster.json").exists()
        token = deployment.root / "metadata.db.admin-token"
        assert token.stat().st_mode & 0o777 == 0o600
        assert daemon.token not in daemon.log_text()
        assert daemon.admin("archive", {"all": True})["done"]["exit_code"] == 0
        assert daemon.admin("clean")["done"]["document"]["deleted"] == []
        assert daemon.admin("audit", {"topic": "clicks:0-1"})["done"]["document"]["verdict"] == "valid"
        assert daemon.admin("audit", {"topic": "clicks:x"})["error"]["exit_code"] == 3
        assert daemon.admin("archive", {"topic": "unknown"})["error"]["type"] == "NotFound"
        reported = daemon.request(
            "GET", "/v1/admin/status", headers={"Authorization": f"Bearer {daemon.token}"}
        ).json()
        assert (reported["leader"] or "").endswith(f":{daemon.pid}"), "it leads"
        assert reported["daemon"]["ready"]
        assert daemon.cycles("cleanup", "fine") == 1, "what came through the port is noted as well"
        assert daemon.stop() == 0
