"""The charts of the status page: after the daemon was killed, with a damaged file, without a place for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from signal import SIGKILL

import pytest

from archiver.daemon.local_state import charts_path
from archiver.runtime.clock import SystemClock
from archiver.status.chart_file import decode
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.timeout(180)]

ROLES = ("--roles", "intake")


def peak(daemon: Served, what: str) -> float:
    """The highest value of a chart of the topic, from its description in words; 0 without one."""
    html = " ".join(daemon.get("/?topic=clicks").body.decode().split())
    caption = re.search(rf"<figcaption>{what} topic clicks([^<]*)", html)
    values = [] if caption is None else re.findall(r"(?:the most was|:) ([0-9.,]*[0-9])( k)?", caption[1])
    return max(
        (float(number.replace(",", "")) * (1000 if thousand else 1) for number, thousand in values),
        default=0.0,
    )


def kept(deployment: Deployment) -> float:
    """The highest rate of records in the file; 0 without one."""
    if not charts(deployment).exists():
        return 0.0
    data = charts(deployment).read_bytes()
    cluster_id = json.loads(data.partition(b"\n")[0])["cluster_id"]
    found = decode(data, SystemClock().now_us(), cluster_id).topics.get("clicks")
    return 0.0 if found is None else max(found.values["records_per_s"], key=lambda rate: (rate > 0, rate))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    # Steps of a second and a quarter: the rate of a step that is over stays.
    made.write(quick(made.document(), history="10m"))
    return made


def charts(deployment: Deployment) -> Path:
    (database,) = deployment.root.rglob("metadata.db")
    return charts_path(database)


def test_a_killed_daemon_continues_its_charts(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, *ROLES, scratch=tmp_path / "one") as daemon:
        daemon.until_ready()
        for _ in range(5):
            daemon.post("/v1/topics/clicks/records", b'{"value": "QQ=="}\n' * 400)
        until("the rate is on the page", lambda: peak(daemon, "Records accepted by") > 20)
        until("the rate is in the file", lambda: kept(deployment) > 20)
        daemon.command.signal(SIGKILL)
        daemon.command.wait()
    before = kept(deployment)
    with Served(deployment, *ROLES, scratch=tmp_path / "two") as daemon:
        daemon.until_ready()
        assert not daemon.logged("is ignored")
        # Each value is one byte. The mean of a step that was not over goes on.
        assert peak(daemon, "Records accepted by") == pytest.approx(before, rel=0.6)
        assert peak(daemon, "Bytes accepted by") == pytest.approx(before, rel=0.6)
        assert daemon.stop() == 0
    charts(deployment).write_bytes(b"garbage")
    with Served(deployment, *ROLES, scratch=tmp_path / "three") as daemon:
        daemon.until_ready()
        assert len(daemon.logged("is ignored, and will be written again: it does not begin as")) == 1
        assert daemon.stop() == 0
    assert charts(deployment).read_bytes().startswith(b'{"file": "stream-archiver charts"')


def test_a_daemon_works_without_a_place_for_its_charts(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, *ROLES, scratch=tmp_path / "one") as daemon:
        daemon.until_ready()
        assert daemon.stop() == 0
    charts(deployment).unlink()
    charts(deployment).mkdir()
    with Served(deployment, *ROLES, scratch=tmp_path / "two") as daemon:
        daemon.until_ready()
        daemon.until_logged("cannot be written, and it is tried again: Is a directory")
        assert daemon.post("/v1/topics/clicks/records", b'{"value": "QQ=="}\n').status == 200
        assert daemon.ready()
        assert daemon.stop() == 0
        assert len(daemon.logged("cannot be written")) == 1
