"""Two daemons and four writers on one etcd of three members: leaders of both kinds are killed, and the
outside harness judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.judging import judge
from tests.harness.loading import load
from tests.soak.stage import free_port
from tests.support.log.etcd_run import DAEMON_KILLED, MEMBER_KILLED, EtcdRun, EtcdScene
from tests.support.log.etcd_server import EtcdThree

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

SEED = 8
SECONDS = 30.0


def test_nothing_is_lost_or_doubled_when_leaders_die(tmp_path: Path) -> None:
    with EtcdThree(tmp_path / "etcd") as members:
        scene = EtcdScene(
            tmp_path / "run", tmp_path / "run" / "disk", port=free_port(), addresses=tuple(members.addresses)
        )
        run = EtcdRun(scene, members, SEED, SECONDS, print)
        run.run()
    told = judge(load(scene.folder))
    assert told.verdict == "valid", (told.to_json(), run.told())
    counts = told.counts
    assert {DAEMON_KILLED, MEMBER_KILLED} <= set(counts["faults"])
    assert counts["outcomes"]["ok"] > 200
    assert counts["table_rows"] > 200
    assert counts["unsettled"] == 0
    first, last = run.seen.leaders[0], run.seen.leaders[-1]
    assert first != last, "another daemon leads after the first was killed"
    assert run.seen.stopped == [0, 0]
    state = sorted(path.name for path in Path(scene.state).iterdir())
    leases = [
        "etcd.checkpoint.lease",
        "etcd.leader.lease",
    ]  # the lock is free, the file stays for the next holder
    assert state == sorted(["etcd.admin-token", "etcd.control.tail", "etcd.intake.tail", *leases])
    assert not list(scene.disk.glob("*.db*.lease")), "nothing of SQLite's is there"
