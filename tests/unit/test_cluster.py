"""Does a data folder state the cluster that owns it, and refuse every other one?"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archiver.objects.cluster import ClusterIdentity, ensure_cluster, read_cluster
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import cluster_key
from archiver.objects.s3.store import ClusterCheck
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import ConfigInvalid, Corrupted
from archiver.runtime.ids import SeededIds
from tests.support.objects.faulty_objects import FaultyObjectStore, ObjectFault
from tests.support.objects.memory_store import MemoryObjectStore


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return LocalObjectStore(tmp_path / "data") if request.param == "local" else MemoryObjectStore()


def ensure(store: ObjectStore, name: str = "demo", seed: int = 1) -> ClusterIdentity:
    return ensure_cluster(store, name, SeededIds(seed), ManualClock(1_767_323_045_678_901))


def test_an_error_during_the_check_of_a_bucket_causes_another_check() -> None:
    reads = 0
    stated = MemoryObjectStore()
    identity = ensure(stated)

    def read() -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            check.doubt()
        return stated.read(cluster_key())

    check = ClusterCheck(identity.cluster_id, "s3://bucket", read, ManualClock(0))
    for expected in (1, 2, 2):
        check.check()
        assert reads == expected
    check.doubt()
    check.check()
    assert reads == 3


def test_a_new_folder_gets_an_identity_and_keeps_it(store: ObjectStore) -> None:
    assert read_cluster(store) is None
    identity = ensure(store)
    assert (identity.name, identity.format, len(bytes.fromhex(identity.cluster_id))) == ("demo", 1, 16)
    assert ensure(store, seed=2) == identity == read_cluster(store)


def test_the_stored_form() -> None:
    """The form is frozen: later versions read it."""
    store = MemoryObjectStore()
    identity = ensure(store, name="größe")
    assert store.read("cluster.json").decode() == (
        '{\n  "format": 1,\n  "cluster_id": "' + identity.cluster_id + '",\n  "name": "größe",\n'
        '  "created": "2026-01-02T03:04:05.678901Z"\n}\n'
    )


def test_another_cluster_is_refused(store: ObjectStore) -> None:
    ensure(store)
    before = store.read("cluster.json")
    with pytest.raises(ConfigInvalid, match=r"belongs to cluster 'demo' .*cluster: other"):
        ensure(store, name="other")
    assert store.read("cluster.json") == before


def test_of_several_first_starts_one_counts(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        identities = set(pool.map(lambda seed: ensure(store, seed=seed), range(8)))
    assert identities == {read_cluster(store)}


def test_a_lost_reply_does_no_harm(store: ObjectStore) -> None:
    for fault in (ObjectFault.LOST, ObjectFault.REPLY_LOST):
        faulty = FaultyObjectStore(store)
        faulty.fail("create", fault)
        assert ensure(faulty) == read_cluster(store)


@pytest.mark.parametrize(
    "key",
    [
        "intake/2026-01-02/03/x.parquet",
        "archive/x/topic.json",
        "shelf/intake/x",
        "checkpoint/intake/v1/x.bin",
    ],
)
def test_data_without_an_identity_is_not_taken_over(store: ObjectStore, key: str) -> None:
    store.create(key, b"")
    with pytest.raises(ConfigInvalid, match=r"no cluster\.json"):
        ensure(store)
    assert read_cluster(store) is None


def test_a_process_that_meets_a_simultaneous_first_start_reads_its_identity(store: ObjectStore) -> None:
    """The identity and data appear between the first read and the listing."""

    class Racing(FaultyObjectStore):
        reads = 0

        def read(self, key: str) -> bytes:
            try:
                return super().read(key)
            finally:
                self.reads += 1
                if self.reads == 1:
                    ensure(store, seed=7)
                    store.create("intake/2026-01-02/03/x.parquet", b"")

    assert ensure(Racing(store)) == read_cluster(store)


def test_a_foreign_file_next_to_the_data_is_no_obstacle(store: ObjectStore) -> None:
    store.create("lost+found/x", b"")
    assert ensure(store).name == "demo"


def test_a_newer_format_is_refused(store: ObjectStore) -> None:
    store.create("cluster.json", json.dumps({"format": 2, "identity": "who knows"}).encode())
    with pytest.raises(ConfigInvalid, match="has format 2, this version reads 1"):
        ensure(store)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "cluster_id": "xyz", "name": "demo"}',
    ]
    + [json.dumps({"format": 1, "cluster_id": "0" * 32, "name": name}).encode() for name in (None, 7)],
)
def test_a_damaged_identity_is_neither_used_nor_replaced(store: ObjectStore, text: bytes) -> None:
    store.create("cluster.json", text)
    with pytest.raises(Corrupted, match=r"cluster\.json"):
        ensure(store)
    assert store.read("cluster.json") == text
