"""Registrations in etcd beyond the Protocol: what is stored, and a cluster that is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.log.brokers import BrokerRegistry
from archiver.log.etcd.brokers import EtcdBrokers
from archiver.log.etcd.cluster import LeaseGone
from archiver.log.etcd.keys import Keys
from archiver.log.store import Appended
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.errors import Corrupted, RetryLater
from archiver.runtime.ids import SystemIds
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import etcd_metadata
from tests.support.process.processes import until

LONG_S = 600.0
LIVE = "/archiver/broker-live/00000000000000000001"
ADDRESSES = "/archiver/broker-addresses"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as server:
        yield server


def registry(
    etcd: Etcd, folder: Path, timeout_s: float = LONG_S, request_timeout_s: float = 5.0
) -> EtcdBrokers:
    metadata = etcd_metadata([etcd.address], folder, timeout_s=request_timeout_s)
    found: BrokerRegistry = metadata.brokers(timeout_s)
    assert isinstance(found, EtcdBrokers)
    return found


def stored(etcd: Etcd, key: str) -> str:
    with etcd.client() as client:
        value, _ = client.get(key)
    return "" if value is None else value.decode()


def test_the_stored_texts(etcd: Etcd, tmp_path: Path) -> None:
    """Daemons of two versions read each other's keys during an upgrade, so these texts never change."""
    broker = registry(etcd, tmp_path).register("::1", 9092, "east")
    bare = registry(etcd, tmp_path).register("b.example.com", 443, "")
    assert stored(etcd, ADDRESSES) == "1 ::1 9092\n2 b.example.com 443\n"
    assert stored(etcd, LIVE) == f"{broker.incarnation} 9092 ::1 east"
    assert stored(etcd, f"{LIVE[:-1]}2") == f"{bare.incarnation} 443 b.example.com "


def test_fields_of_a_later_version_are_ignored(etcd: Etcd, tmp_path: Path) -> None:
    one = registry(etcd, tmp_path)
    with etcd.client() as client:
        client.put(LIVE, "0a 9092 host east more and more")
    (found,) = one.live()
    assert (found.node_id, found.host, found.port, found.rack) == (1, "host", 9092, "east")


@pytest.mark.parametrize("text", ["", "0a", "0a port host east", "\x00" * 10_000])
def test_a_damaged_registration_is_named(etcd: Etcd, tmp_path: Path, text: str) -> None:
    one = registry(etcd, tmp_path)
    with etcd.client() as client:
        client.put(LIVE, text)
    with pytest.raises(Corrupted, match=rf"unreadable registration in {LIVE}.* delete that key"):
        one.live()
    with etcd.client() as client:
        client.delete(LIVE)
    assert one.register("host", 1, "") in one.live()


def test_damaged_addresses_are_named(etcd: Etcd, tmp_path: Path) -> None:
    one = registry(etcd, tmp_path)
    with etcd.client() as client:
        client.put(ADDRESSES, "1 host\n")
    with pytest.raises(Corrupted, match=ADDRESSES):
        one.register("host", 1, "")


def test_a_registration_whose_lease_was_ended_is_made_again(etcd: Etcd, tmp_path: Path) -> None:
    one = registry(etcd, tmp_path)
    broker = one.register("host", 1, "")
    with etcd.client() as client:
        client.revoke_lease(one._lease_id)
    assert one.live() == []
    assert one.heartbeat() == broker
    assert one.live() == [broker]


def test_a_registration_that_replaces_another_leaves_no_lease_behind(etcd: Etcd, tmp_path: Path) -> None:
    one = registry(etcd, tmp_path)
    leases = []
    for port in (1, 2, 2):
        one.register("host", port, "")
        leases.append(one._lease_id)
    assert [lives(one, lease_id) for lease_id in leases] == [False, False, True]
    one.release()
    assert not lives(one, leases[-1])


def test_a_registration_that_is_refused_leaves_no_lease_behind(etcd: Etcd, tmp_path: Path) -> None:
    ids = Recorded()
    one = EtcdBrokers(registry(etcd, tmp_path)._cluster, Keys("/archiver"), 600, ids)
    with etcd.client() as client:
        client.put(ADDRESSES, "damaged")
    with pytest.raises(Corrupted):
        one.register("host", 1, "")
    lease_id = int.from_bytes(ids.given[-1], "big") & (2**63 - 1)
    assert not lives(one, lease_id)


class Recorded(SystemIds):
    """Identifiers that a test sees."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def random_bytes(self, count: int) -> bytes:
        self.given.append(super().random_bytes(count))
        return self.given[-1]


def lives(one: EtcdBrokers, lease_id: int) -> bool:
    """Whether a lease exists, by a refresh of it."""
    try:
        found = one._cluster.lease("LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=lease_id))
    except LeaseGone:
        return False
    return bool(found.TTL > 0)


def test_without_etcd_every_call_ends_and_a_later_heartbeat_goes_on(etcd: Etcd, tmp_path: Path) -> None:
    one, two = (registry(etcd, tmp_path, request_timeout_s=2) for _ in range(2))
    broker = one.register("host", 1, "")
    etcd.kill()
    for call in (one.heartbeat, one.live, lambda: two.register("host", 2, "")):
        with pytest.raises(RetryLater, match="no member of the metadata store answers"):
            call()
    two.release()
    etcd.start()

    def renewed() -> bool:
        try:
            return one.heartbeat() == broker
        except RetryLater:
            return False

    until("it is renewed", renewed)
    assert one.live() == [broker]


def test_a_release_without_etcd_ends_by_the_time_limit(
    etcd: Etcd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = registry(etcd, tmp_path, 2.0, request_timeout_s=2), registry(etcd, tmp_path)
    one.register("host", 1, "")
    etcd.kill()
    one.release()
    assert "a registration for Kafka clients ends in 2 s" in caplog.text
    assert one.heartbeat() is None
    etcd.start()

    def gone() -> bool:
        try:
            return other.live() == []
        except RetryLater:
            return False

    until("it has expired", gone)


def test_an_installation_with_registrations_is_opened_again(etcd: Etcd, tmp_path: Path) -> None:
    first = etcd_metadata([etcd.address], tmp_path)
    assert first.log("intake").append(0, b"entry") is Appended.OK
    broker = first.brokers(LONG_S).register("host", 1, "")
    first.close()
    second = etcd_metadata([etcd.address], tmp_path)
    assert second.log("intake").tail() == 1
    assert second.brokers(LONG_S).live() == [broker]
    second.close()
