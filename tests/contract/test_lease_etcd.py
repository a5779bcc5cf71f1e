"""Properties of a lease in etcd beyond the Protocol, because etcd and its holder have a clock each."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archiver.log.etcd.lease import EtcdLease
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import LeaseHeld, RetryLater
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import etcd_metadata
from tests.support.process.processes import until

REPOSITORY = Path(__file__).parents[2]
TTL_S = 4
"""A refresh has a third of it, also on a machine that is slow for a moment."""
PATIENCE_S = 60.0

HOLDING = """
import sys
from pathlib import Path
from tests.support.log.etcd_stores import etcd_metadata
lease = etcd_metadata([sys.argv[1]], Path(sys.argv[2]), ttl_s=int(sys.argv[3])).lease("leader", "elsewhere:4711")
lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as server:
        yield server


def lease_of(
    etcd: Etcd,
    folder: Path,
    owner: str,
    clock: ManualClock | None = None,
    timeout_s: float = 5.0,
    ttl_s: int = TTL_S,
) -> EtcdLease:
    lease = etcd_metadata([etcd.address], folder, ttl_s, clock=clock, timeout_s=timeout_s).lease(
        "leader", owner
    )
    assert isinstance(lease, EtcdLease)
    return lease


def taken_after(lease: EtcdLease) -> float:
    """Seconds until the lease is acquired; a server that has just started may not answer at once."""
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
    until_s = time.monotonic() + 1.75 * TTL_S
    while time.monotonic() < until_s:
        with pytest.raises(LeaseHeld, match="host:1"):
            two.acquire()
        time.sleep(0.2)
    one.acquire()
    assert two.holder() == "host:1"
    one.release()
    two.acquire()
    two.release()


@contextmanager
def holding(etcd: Etcd, folder: Path, ttl_s: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lease, and keeps the file of its machine in `folder`."""
    command = [sys.executable, "-c", HOLDING, etcd.address, str(folder), str(ttl_s)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_holder_of_another_machine_that_is_killed_loses_it_in_time(etcd: Etcd, tmp_path: Path) -> None:
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    with holding(etcd, tmp_path / "there", TTL_S) as process:
        lease = lease_of(etcd, tmp_path / "here", "here:1")
        assert lease.holder() == "elsewhere:4711"
        with pytest.raises(LeaseHeld, match="elsewhere:4711"):
            lease.acquire()
        process.kill()
        process.wait()
        assert taken_after(lease) < PATIENCE_S
    assert lease.holder() == "here:1"
    lease.release()


LONG_S = 600
"""No test waits for the end of such a lease."""


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_at_once(etcd: Etcd, tmp_path: Path) -> None:
    for _ in range(2):
        with holding(etcd, tmp_path, LONG_S) as process:
            lease = lease_of(etcd, tmp_path, "here:1", ttl_s=LONG_S)
            with pytest.raises(LeaseHeld, match="elsewhere:4711"):
                lease.acquire()
            process.kill()
            process.wait()
            lease.acquire()
        assert lease.holder() == "here:1"
        lease.release()


def test_a_paused_process_of_this_machine_keeps_its_lease(etcd: Etcd, tmp_path: Path) -> None:
    with holding(etcd, tmp_path, LONG_S) as process:
        process.send_signal(signal.SIGSTOP)
        lease = lease_of(etcd, tmp_path, "here:1", ttl_s=LONG_S)
        for _ in range(2):
            with pytest.raises(LeaseHeld, match="elsewhere:4711"):
                lease.acquire()
        process.kill()
        process.wait()
        lease.acquire()
        lease.release()


@pytest.mark.parametrize(
    "change", ["another folder", "copied", "another boot", "another lease", "garbled", "a folder"]
)
def test_a_file_that_proves_nothing_takes_no_lease(etcd: Etcd, tmp_path: Path, change: str) -> None:
    """As after a restore of the folder on another machine, or with one disk for two machines."""
    path = tmp_path / "etcd.leader.lease"
    with holding(etcd, tmp_path, LONG_S) as process:
        process.kill()
        process.wait()
    text = path.read_text()
    boot, file, lease_id = text.split()
    if change == "another folder":
        path.rename(tmp_path / "original")
    elif change == "copied":
        path.rename(tmp_path / "original")
        path.write_text(text)
    elif change == "another boot":
        path.write_text(f"{boot[::-1]} {file} {lease_id}\n")
    elif change == "another lease":
        path.write_text(f"{boot} {file} {int(lease_id) // 2}\n")
    elif change == "garbled":
        path.write_bytes(b"\xff" * 10_000)
    else:
        path.unlink()
        path.mkdir()
    lease = lease_of(etcd, tmp_path, "here:1", ttl_s=LONG_S)
    with pytest.raises(LeaseHeld, match="elsewhere:4711"):
        lease.acquire()


def test_a_lease_that_could_not_be_given_back_is_taken_at_once_after_a_restart(
    etcd: Etcd, tmp_path: Path
) -> None:
    one, two = (
        lease_of(etcd, tmp_path, "host:1", ttl_s=LONG_S),
        lease_of(etcd, tmp_path, "host:2", ttl_s=LONG_S),
    )
    one.acquire()
    etcd.kill()
    one.release()
    etcd.start()
    assert taken_after(two) < LONG_S / 2
    assert two.holder() == "host:2"
    two.release()


def test_a_member_has_a_third_of_a_lease_to_answer_a_refresh(etcd: Etcd, tmp_path: Path) -> None:
    """One member that hangs must not cost a short lease, although other requests may take longer."""
    lease = lease_of(etcd, tmp_path, "host:1", timeout_s=60, ttl_s=3)
    limits: list[float] = []
    for member in lease._cluster._members:
        call = member.call

        def noted(
            stub: str, method: str, request: object, timeout_s: float, call: Callable[..., object] = call
        ) -> object:
            limits.append(timeout_s) if method.startswith("Lease") else None
            return call(stub, method, request, timeout_s)

        member.call = noted  # type: ignore[method-assign,assignment]
    lease.acquire()
    until("it is refreshed", lambda: len(limits) > 1)
    lease.release()
    assert set(limits) == {1.0}


def test_a_holder_that_slept_knows_that_it_holds_nothing(etcd: Etcd, tmp_path: Path) -> None:
    """Its thread may not have run yet. Its own clock shows the loss, and its next action first acquires the
    lease."""
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


def test_a_lease_that_etcd_ended_is_taken_again(etcd: Etcd, tmp_path: Path) -> None:
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
    one, two = (
        lease_of(etcd, tmp_path, "host:1", timeout_s=2),
        lease_of(etcd, tmp_path, "host:2", timeout_s=2),
    )
    one.acquire()
    etcd.kill()
    for work in (two.acquire, two.holder):
        with pytest.raises(RetryLater, match="no member of the metadata store answers"):
            work()
    until("its own clock shows the loss", lambda: not one._is_held())
    one.release()
    etcd.start()
    taken_after(two)
    two.release()
