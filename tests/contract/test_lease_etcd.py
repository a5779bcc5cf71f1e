"""What a lease in etcd owes beyond the Protocol, because etcd and its holder have a clock each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.clock import ManualClock
from archiver.errors import LeaseHeld, RetryLater
from archiver.log.etcd_lease import EtcdLease
from tests.support.etcd_server import Etcd
from tests.support.etcd_stores import etcd_metadata

REPOSITORY = Path(__file__).parents[2]
TTL_S = 2
PATIENCE_S = 20.0

HOLDING = """
import sys
from pathlib import Path
from tests.support.etcd_stores import etcd_metadata
lease = etcd_metadata([sys.argv[1]], Path(sys.argv[2]), ttl_s=2).lease("leader", "elsewhere:4711")
lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as server:
        yield server


def lease_of(etcd: Etcd, folder: Path, owner: str, clock: ManualClock | None = None, timeout_s: float = 5.0) -> EtcdLease:
    lease = etcd_metadata([etcd.address], folder, TTL_S, clock=clock, timeout_s=timeout_s).lease("leader", owner)
    assert isinstance(lease, EtcdLease)
    return lease


def taken_after(lease: EtcdLease) -> float:
    """Seconds until it can be had; a server that has just begun may not answer at once."""
    began_s = time.monotonic()
    while True:
        try:
            lease.acquire()
        except (LeaseHeld, RetryLater):
            assert time.monotonic() < began_s + PATIENCE_S
            time.sleep(0.05)
        else:
            return time.monotonic() - began_s


def test_a_holder_keeps_it_far_beyond_its_time_to_live(etcd: Etcd, tmp_path: Path) -> None:
    one, two = lease_of(etcd, tmp_path, "host:1"), lease_of(etcd, tmp_path, "host:2")
    one.acquire()
    until_s = time.monotonic() + 2.5 * TTL_S
    while time.monotonic() < until_s:
        with pytest.raises(LeaseHeld, match="host:1"):
            two.acquire()
        time.sleep(0.2)
    one.acquire()
    assert two.holder() == "host:1"
    one.release()
    two.acquire()
    two.release()


def test_a_holder_that_is_killed_loses_it_in_time(etcd: Etcd, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, etcd.address, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lease = lease_of(etcd, tmp_path, "here:1")
        assert lease.holder() == "elsewhere:4711"
        process.kill()
        assert taken_after(lease) < TTL_S + 3
    assert lease.holder() == "here:1"
    lease.release()


def test_a_holder_that_slept_knows_that_it_holds_nothing(etcd: Etcd, tmp_path: Path) -> None:
    """Its thread may not have run yet: its own clock says so, and what it does next begins with taking the lease."""
    clock = ManualClock()
    one, two = lease_of(etcd, tmp_path, "host:1", clock), lease_of(etcd, tmp_path, "host:2")
    one.acquire()
    one._stop.set()  # the thread sleeps with the process
    taken_after(two)
    clock.advance(TTL_S - 0.1)
    one.acquire()
    assert two.holder() == "host:2", "until then it believes in it: that is what epochs are for"
    clock.advance(0.2)
    with pytest.raises(LeaseHeld, match="host:2"):
        one.acquire()
    two.release()


def test_a_lease_that_etcd_ended_is_taken_anew(etcd: Etcd, tmp_path: Path) -> None:
    one = lease_of(etcd, tmp_path, "host:1")
    one.acquire()
    with etcd.client() as client:
        client.delete(one._key)
        client.revoke_lease(one._id)
    until_s = time.monotonic() + PATIENCE_S
    while one._is_held():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert one.holder() is None
    one.acquire()
    assert one.holder() == "host:1"
    one.release()


def test_without_etcd_it_is_neither_had_nor_waited_for(etcd: Etcd, tmp_path: Path) -> None:
    one, two = lease_of(etcd, tmp_path, "host:1", timeout_s=0.5), lease_of(etcd, tmp_path, "host:2", timeout_s=0.5)
    one.acquire()
    etcd.kill()
    for work in (two.acquire, two.holder):
        with pytest.raises(RetryLater, match="no member of the metadata store answers"):
            work()
    time.sleep(TTL_S + 0.5)
    assert not one._is_held()
    one.release()
    etcd.start()
    taken_after(two)
    two.release()
