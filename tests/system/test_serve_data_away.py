"""A daemon whose data folder goes away before it has written anything: nothing is acknowledged that is not in
that folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment
from tests.support.builders.refining import identify
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

LINE = b'{"value": "AAAA"}\n'
WRITES_FOR_S = 2.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment that was used before."""
    made = Deployment(tmp_path / "d")
    made.write(quick(made.document()))
    made.produce([{"topic": "kept", "value": "AAAA"}])
    return made


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another cluster's"])
def test_what_is_acknowledged_is_in_the_folder(left: str, deployment: Deployment, tmp_path: Path) -> None:
    data, away = deployment.data, tmp_path / "away"
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        data.rename(away)
        if left == "an empty folder":
            data.mkdir()
        elif left != "nothing":
            identify(data, "d" * 32)
        until_s = SystemClock().monotonic_s() + WRITES_FOR_S
        while SystemClock().monotonic_s() < until_s:
            answer = daemon.post("/v1/topics/kept/records", LINE)
            assert answer.status != 200, answer
        assert data.exists() == (left != "nothing")
        assert [path.name for path in data.rglob("*")] == (
            ["cluster.json"] if left == "another cluster's" else []
        )
        if left != "nothing":
            data.rename(tmp_path / "other")
        away.rename(data)
        until("it takes records again", lambda: daemon.post("/v1/topics/kept/records", LINE).status == 200)
        assert daemon.stop() == 0
    assert [record["offset"] for record in deployment.consume("kept")] == [0, 1]
