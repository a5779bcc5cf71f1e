"""Registrations for Kafka clients in etcd.

Each live daemon has a key that is attached to an etcd lease. One more key has the node ids of all addresses.
`heartbeat` refreshes the lease; there is no thread. etcd's clock alone decides when a lease ends, so no times
of different machines are compared.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from archiver.log.brokers import (
    ADDRESSES_MAX,
    Broker,
    address_taken,
    check_address,
    new_incarnation,
    node_id_for,
)
from archiver.log.etcd.cluster import EtcdCluster, LeaseGone, NoSpace
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.log_store import NO_SPACE, get, put, values
from archiver.proto import etcd_kv_pb2 as kv
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.errors import ArchiverError, Corrupted, RetryLater
from archiver.runtime.ids import IdSource

_ATTEMPTS_MAX: Final = 100
"""Attempts against other daemons that register at the same moment; one of them succeeds each time."""
_REFRESHES_PER_TTL: Final = 3
_ID_MASK: Final = 2**63 - 1
# More than the longest line of an address, and than the longest registration.
_LINE_BYTES_MAX: Final = 2048

_logger = logging.getLogger(__name__)


class EtcdBrokers:
    """See `archiver.log.brokers.BrokerRegistry`. A registration ends `ttl_s` whole seconds after its last
    renewal.
    """

    def __init__(self, cluster: EtcdCluster, keys: Keys, ttl_s: int, ids: IdSource) -> None:
        self._cluster = cluster
        self._keys = keys
        self._ttl_s = ttl_s
        self._ids = ids
        self._timeout_s = ttl_s / _REFRESHES_PER_TTL
        """Timeout per member, short enough to try another member before the lease expires."""
        self._incarnation = new_incarnation(ids)
        self._broker: Broker | None = None
        self._lease_id = 0
        """Id of the lease of our key; 0 for none."""
        self._lock = threading.Lock()

    def register(self, host: str, port: int, rack: str) -> Broker:
        """See `BrokerRegistry.register`."""
        check_address(host, port, rack)
        with self._lock:
            self._broker = self._enter(host, port, rack, take_over=True)
            return self._broker

    def heartbeat(self) -> Broker | None:
        """See `BrokerRegistry.heartbeat`."""
        with self._lock:
            broker = self._broker
            if broker is not None and not self._renewed(broker):
                self._broker = self._enter(broker.host, broker.port, broker.rack, take_over=False)
            return self._broker

    def live(self) -> list[Broker]:
        """See `BrokerRegistry.live`."""
        return [self._parsed(found) for found in values(self._ask([self._all()]))[0]]

    def release(self) -> None:
        """See `BrokerRegistry.release`."""
        with self._lock:
            self._broker = None
            self._drop()

    def _renewed(self, broker: Broker) -> bool:
        """Whether our key is there and its lease was refreshed. Raises `AddressTaken`."""
        (found,) = values(self._ask([get(self._keys.broker(broker.node_id))]))
        # Gone: the lease has expired. A key of another lease: another process has taken the address, or an
        # earlier registration of ours had an unknown outcome.
        if not found or found[0].lease != self._lease_id:
            if found and self._parsed(found[0]).incarnation != self._incarnation:
                raise address_taken(broker.host, broker.port)
            return False
        try:
            answer = self._cluster.lease(
                "LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=self._lease_id), timeout_s=self._timeout_s
            )
        except (LeaseGone, NoSpace):
            return False
        # etcd answers a refresh of an expired lease with TTL 0 and not with an error.
        return bool(answer.TTL > 0)

    def _enter(self, host: str, port: int, rack: str, take_over: bool) -> Broker:
        """Register under a new lease, and end the earlier one."""
        # Chosen here and not by etcd, so that a grant whose reply is lost can be revoked. `or 1`: for id 0
        # etcd would choose one itself.
        lease_id = int.from_bytes(self._ids.random_bytes(8), "big") & _ID_MASK or 1
        try:
            self._cluster.lease(
                "LeaseGrant", rpc.LeaseGrantRequest(TTL=self._ttl_s, ID=lease_id), timeout_s=self._timeout_s
            )
            broker = self._put(lease_id, host, port, rack, take_over)
        except (NoSpace, LeaseGone) as error:
            # Also if the grant failed: its reply may have been lost.
            self._revoke(lease_id)
            raise RetryLater(
                f"this daemon cannot be registered for Kafka clients: {error}"
                + (f"; {NO_SPACE}" * isinstance(error, NoSpace))
            ) from error
        except ArchiverError:
            self._revoke(lease_id)
            raise
        # After the key has the new lease; the revoke would delete a key that still has the earlier one.
        self._drop()
        self._lease_id = lease_id
        return broker

    def _put(self, lease_id: int, host: str, port: int, rack: str, take_over: bool) -> Broker:
        for _ in range(_ATTEMPTS_MAX):
            stored, registered = values(self._ask([get(self._keys.broker_addresses()), self._all()]))
            known = self._known(stored)
            live = {broker.node_id: broker for broker in map(self._parsed, registered)}
            node_id = node_id_for(known, live, host, port)
            holder = live.get(node_id)
            if not take_over and holder is not None and holder.incarnation != self._incarnation:
                raise address_taken(host, port)
            # Last in the order: it is the newest registration.
            lines = [*(one for one in known if one[0] != node_id), (node_id, host, port)]
            addresses = "".join(f"{number} {name} {at}\n" for number, name, at in lines)
            value = f"{self._incarnation} {port} {host} {rack}"
            request = rpc.TxnRequest(
                # Every registration writes this key. If it is unchanged, so are all ids, and there was
                # no other registration since. Applied twice or late, the request changes nothing.
                compare=[_unchanged(self._keys.broker_addresses(), stored)],
                success=[
                    put(self._keys.broker_addresses(), addresses.encode()),
                    put(self._keys.broker(node_id), value.encode(), lease_id),
                ],
            )
            answer = self._cluster.ask(request)
            if answer.succeeded:
                return Broker(node_id, host, port, rack, self._incarnation)
        raise RetryLater(
            f"this daemon is not registered for Kafka clients: others registered {_ATTEMPTS_MAX} times; try "
            "again"
        )

    def _ask(self, requests: list[rpc.RequestOp]) -> rpc.TxnResponse:
        """Read in one transaction."""
        try:
            return self._cluster.ask(rpc.TxnRequest(success=requests))
        except NoSpace as error:
            raise RetryLater(f"{error}; {NO_SPACE}") from error

    def _all(self) -> rpc.RequestOp:
        first, end = self._keys.brokers()
        # At most as many as there are node ids, so one reply holds them all.
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=first, range_end=end, limit=ADDRESSES_MAX))

    def _known(self, stored: list[kv.KeyValue]) -> list[tuple[int, str, int]]:
        """The remembered addresses, the longest unregistered first."""
        if not stored:
            return []
        lines = stored[0].value[: ADDRESSES_MAX * _LINE_BYTES_MAX].decode(errors="replace").splitlines()
        try:
            return [(int(number), host, int(port)) for number, host, port in map(str.split, lines)]
        except ValueError:
            raise self._damaged(stored[0].key) from None

    def _parsed(self, found: kv.KeyValue) -> Broker:
        """One registration. Raises `Corrupted`."""
        # Fields that a later version adds come last.
        fields = found.value[:_LINE_BYTES_MAX].decode(errors="replace").split(" ")
        try:
            incarnation, port, host, rack = fields[:4]
            return Broker(int(found.key.rpartition(b"/")[2]), host, int(port), rack, incarnation)
        except ValueError:
            raise self._damaged(found.key) from None

    def _damaged(self, key: bytes) -> Corrupted:
        return Corrupted(
            f"{self._cluster.name} has an unreadable registration in {key.decode(errors='replace')}; another "
            f"program has written below {self._keys.prefix}; delete that key"
        )

    def _drop(self) -> None:
        lease_id, self._lease_id = self._lease_id, 0
        if lease_id:
            self._revoke(lease_id)

    def _revoke(self, lease_id: int) -> None:
        try:
            self._cluster.revoke(lease_id, self._timeout_s)
        except (ArchiverError, NoSpace) as error:
            _logger.warning("a registration for Kafka clients ends in %s s: %s", self._ttl_s, error)


def _unchanged(key: bytes, stored: list[kv.KeyValue]) -> rpc.Compare:
    """Condition: the key was not written since it was read."""
    # A key that does not exist has modification revision 0 in etcd.
    revision = stored[0].mod_revision if stored else 0
    return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)
