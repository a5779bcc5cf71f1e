"""etcd restored from a snapshot while the data folder went on: refused, reported, and repaired as
docs/operations/backup.md says."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment, check_present, jsonl, sample_records
from tests.support.deploy.installation import OPERATIONS
from tests.support.log.etcd_part import CONTROL, required, restoring
from tests.support.log.etcd_server import Etcd
from tests.support.pages import blocks

pytestmark = pytest.mark.timeout(240)

(COMMANDS,) = [
    block.text.splitlines()
    for block in blocks(OPERATIONS / "backup.md")
    if "etcdctl snapshot save" in block.text
]
SAVE, RESTORE = COMMANDS


def play(command: str, etcd: Etcd, folder: Path) -> None:
    """A command of the page, with this member's name and places."""
    replaced = {
        "etcdctl snapshot restore": f"{shlex.quote(str(restoring()))} snapshot restore",
        "etcdctl snapshot save": f"{shlex.quote(str(required(CONTROL)))} --endpoints={etcd.address} snapshot save",
        "http://10.0.0.1:2380": etcd.peer_url,
        "/var/lib/etcd": shlex.quote(str(etcd.folder / "data")),
    }
    for old, new in replaced.items():
        command = command.replace(old, new)
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={"ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_snapshot_of_etcd_with_a_folder_that_went_on(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        settings = {"addresses": [etcd.address], "state": "state", "request_timeout": "5s"}
        deployment = Deployment(tmp_path / "d", overrides={"metadata": {"etcd": settings}})
        sent = sample_records(30)
        acknowledged = deployment.produce(sent)
        play(SAVE, etcd, tmp_path)
        shutil.copytree(deployment.data, tmp_path / "then")
        for first in (30, 36, 42):
            deployment.produce(sample_records(6, first))
        etcd.stop()
        shutil.rmtree(etcd.folder / "data")
        play(RESTORE, etcd, tmp_path)
        etcd.start()
        time.sleep(1.0)  # The time for which a read of etcd's revision holds.

        def refused(words: str) -> None:
            done = deployment.cli("produce", stdin=jsonl(sample_records(1)))
            assert done.code == 1, (done.out, done.err)
            assert words in done.err
            assert "put the newest one in place" in done.err

        refused("was written when the intake log had")
        deployment.data.rename(tmp_path / "later")
        (tmp_path / "then").rename(deployment.data)
        refused("etcd.intake.tail says that it once had")
        for path in (deployment.root / "state").glob("etcd.*.tail"):
            path.unlink()
        more = sample_records(6, first=48)
        acknowledged += deployment.produce(more)
        check_present(deployment, [*sent, *more], acknowledged)
        assert deployment.cli("audit").code == 0
