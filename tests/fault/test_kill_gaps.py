"""Kill the process at each step of a round in which there is nothing but gaps: no task, no file, and the watermark passes them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from archiver import failpoints
from tests.support.deployment import Deployment
from tests.support.driver import Driver
from tests.support.transactions import Transactional

STEPS = [name for name in failpoints.NAMES if name.startswith(("round.", "written.", "complete.", "table.swap.", "committed.", "settled."))]
"""From the plans to the end of the round; what lies before knows nothing of gaps (test_kill_everywhere)."""
PLACES = (("orders", 0), ("orders", 2), ("clicks", 1), ("files", 0))
"""Tables, and a topic without one."""


def abort_some(driver: Driver, name: str) -> None:
    producer = Transactional(driver.application, driver.clock, name)
    producer.send({place: [b"gone"] * 3 for place in PLACES})
    assert producer.abort() is None


def prepared(root: Path) -> Deployment:
    """Only aborted records, in several topics."""
    deployment = Deployment(root / "d")
    with Driver(deployment) as driver:
        for topic in driver.application.settings.topics:
            driver.application.declare_topic(topic)
        abort_some(driver, "one")
        abort_some(driver, "two")
    deployment.failpoints_asked = True
    deployment.write(deployment.document())
    return deployment


def check(deployment: Deployment, length: int) -> None:
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    audit = deployment.cli("audit", "--output", "json")
    assert audit.code == 0, audit.out
    found = {(item["topic"], item["partition"]): item for item in audit.json()["partitions"]}
    for place in PLACES:
        item = found[place]
        assert (item["watermark"], item["stable"], item["next"], item["rows"]) == (length, length, length, 0), item
        assert item["gaps"] == [[0, length]]
    assert not list(deployment.data.glob("archive/*/data/**/*.parquet")), "there is nothing to store"
    again = deployment.cli("archive", "--all", "--output", "json").json()
    assert again["rounds"] == 0


@pytest.mark.parametrize("name", STEPS)
def test_killed(name: str, tmp_path: Path) -> None:
    deployment = prepared(tmp_path)
    killed = deployment.run("archive", "--all", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, (killed.code, killed.out, killed.err)
    deployment.failpoints_asked = False
    deployment.write(deployment.document())
    with Driver(deployment) as driver:
        abort_some(driver, "three")
    check(deployment, 9)


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_fails_or_loses_its_reply(name: str, action: str, tmp_path: Path) -> None:
    deployment = prepared(tmp_path)
    failed = deployment.cli("archive", "--all", armed=f"{name}={action}")
    assert failed.code in (0, 2), (failed.out, failed.err)
    check(deployment, 6)
