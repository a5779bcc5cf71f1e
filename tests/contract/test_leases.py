"""Does every lease have one holder at a time?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archiver.log.lease import FileLease, Lease
from archiver.runtime.errors import LeaseHeld
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import etcd_metadata
from tests.support.log.memory_log import LeasePlace, MemoryLease

Make = Callable[[str], Lease]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["file", "memory", "etcd"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "file":
        yield lambda owner: FileLease(tmp_path / "new" / "archiver.lease", owner)
    elif request.param == "memory":
        place = LeasePlace()
        yield lambda owner: MemoryLease(owner, place)
    else:
        metadata = etcd_metadata(
            [request.getfixturevalue("etcd").address], tmp_path, prefix=f"/{tmp_path.name}"
        )
        yield lambda owner: metadata.lease("leader", owner)
        metadata.close()


def test_one_holds_it_until_released(make: Make) -> None:
    one, two = make("host:1"), make("host:2")
    assert one.holder() is None
    one.acquire()
    assert (one.holder(), two.holder()) == ("host:1", "host:1")
    with pytest.raises(LeaseHeld, match="host:1") as caught:
        two.acquire()
    assert caught.value.holder == "host:1"
    two.release()
    assert two.holder() == "host:1"
    one.release()
    assert (one.holder(), two.holder()) == (None, None)
    two.acquire()
    assert one.holder() == "host:2"
    two.release()


def test_acquiring_and_releasing_twice_is_harmless(make: Make) -> None:
    one, two = make("host:1"), make("host:2")
    one.acquire()
    one.acquire()
    one.release()
    one.release()
    two.acquire()
    two.release()


def test_of_all_who_want_it_one_gets_it_while_others_look(make: Make) -> None:
    """Reading the holder must not keep the lease from its contenders."""
    done = threading.Event()
    watcher = make("watcher:0")

    def watch() -> None:
        while not done.is_set():
            watcher.holder()

    def want(lease: Lease) -> bool:
        try:
            lease.acquire()
        except LeaseHeld:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        watching = [pool.submit(watch) for _ in range(2)]
        try:
            for number in range(50):
                leases = [make(f"host:{number}-{worker}") for worker in range(4)]
                assert list(pool.map(want, leases)).count(True) == 1
                for lease in leases:
                    lease.release()
        finally:
            done.set()
        for future in watching:
            future.result()
