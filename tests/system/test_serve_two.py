"""Two real daemons on one configuration: both accept records, one leads, and what happens to that one harms
nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from signal import SIGCONT

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.turns(2),
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

THREE = b'{"value": "AAAA"}\n' * 3
TOPIC = "/v1/topics/clicks/records"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.write(quick(made.document()))
    return made


def other_leads(daemon: Served, leader: Served) -> bool:
    return bool(daemon.logged(f":{leader.pid} leads"))


def test_when_the_leader_is_killed_the_other_takes_over(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, scratch=tmp_path / "one") as first:
        first.until_ready()
        until("the first has led", (deployment.root / "metadata.db.lease").exists)
        with Served(deployment, scratch=tmp_path / "two") as second:
            second.until_ready()
            until("the second has seen who leads", lambda: other_leads(second, first))
            assert first.address != second.address
            assert [daemon.post(TOPIC, THREE).status for daemon in (first, second)] == [200, 200]
            second.until_archived("clicks", 6)
            assert not second.logged("archived in"), "one leads"
            assert len(second.logged(f":{first.pid} leads")) == 1, "said once per holder"
            error = second.admin("archive")["error"]
            assert (error["type"], error["exit_code"]) == ("LeaseHeld", 2)
            first.kill()
            assert second.post(TOPIC, THREE).status == 200
            second.until_archived("clicks", 9)
            second.until_logged("archived in")
            assert second.stop() == 0


def test_a_leader_that_was_stopped_and_woken_harms_nothing(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, scratch=tmp_path / "one") as first:
        first.until_ready()
        assert first.post(TOPIC, THREE).status == 200
        first.until_archived("clicks", 3)
        with Served(deployment, scratch=tmp_path / "two") as second:
            second.until_ready()
            until("the second has seen who leads", lambda: other_leads(second, first))
            first.descendants()
            first.pause()
            # A lease by file lock stays with a process that is stopped; an operator who knows that it is gone
            # takes the file away.
            (deployment.root / "metadata.db.lease").unlink()
            assert second.post(TOPIC, THREE).status == 200
            second.until_archived("clicks", 6)
            first.signal(SIGCONT)
            assert first.post(TOPIC, THREE).status == 200, "it takes in records all the time"
            second.until_archived("clicks", 9)
            until(
                "the first knows that it leads no more",
                lambda: other_leads(first, second) or first.logged("step down"),
            )
            assert first.post(TOPIC, THREE).status == 200
            first.until_archived("clicks", 12)
            until("the first is told who leads", lambda: other_leads(first, second))
            assert first.stop() == 0
            assert second.stop() == 0
