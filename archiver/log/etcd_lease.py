"""A lease in etcd: for the daemons of several machines.

Owns one key, which etcd deletes when the lease on it was not refreshed in time. A thread refreshes it while it is held. A holder that
could not do that takes the lease for lost by its own clock, which began before etcd's did: a process that was paused knows at once that it
holds nothing, whatever it believed before. As every lease it saves work and protects nothing (`archiver.log.lease`).
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from archiver.clock import Clock
from archiver.errors import ArchiverError, LeaseHeld, RetryLater
from archiver.ids import IdSource
from archiver.log.etcd import NO_SPACE, absent, get, put, values
from archiver.log.etcd_cluster import EtcdCluster, LeaseGone, NoSpace
from archiver.proto import etcd_rpc_pb2 as rpc

_REFRESHES_PER_TTL: Final = 3
_ID_MASK: Final = 2**63 - 1

_logger = logging.getLogger(__name__)


class EtcdLease:
    """A lease that lasts `ttl_s` seconds without a refresh, a whole number. `owner` (`host:pid`) is the value of the key.

    Safe for several threads. Raises `RetryLater` while etcd cannot be asked.
    """

    def __init__(self, cluster: EtcdCluster, key: bytes, owner: str, ttl_s: int, clock: Clock, ids: IdSource) -> None:
        self._cluster = cluster
        self._key = key
        self._owner = owner
        self._ttl_s = ttl_s
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._id = 0
        """Of the lease that is held, or was until it was lost; 0 for none."""
        self._until_s = 0.0
        self._stop = threading.Event()

    def acquire(self) -> None:
        """Take the lease or raise `LeaseHeld`; no effect while it is held, by this object's own clock, already."""
        with self._lock:
            if self._is_held():
                return
            self._let_go()
            # Chosen here and not by etcd, so that a grant whose answer is lost can be given back.
            lease_id = int.from_bytes(self._ids.random_bytes(8), "big") & _ID_MASK or 1
            began_s = self._clock.monotonic_s()
            try:
                self._cluster.lease("LeaseGrant", rpc.LeaseGrantRequest(TTL=self._ttl_s, ID=lease_id))
                holder = self._take(lease_id)
            except (NoSpace, LeaseGone) as error:
                self._revoke(lease_id)
                raise RetryLater(f"the lease cannot be taken: {error}" + (f"; {NO_SPACE}" * isinstance(error, NoSpace))) from error
            except ArchiverError:
                self._revoke(lease_id)
                raise
            if holder is not None:
                self._revoke(lease_id)
                raise LeaseHeld(holder)
            self._id, self._until_s = lease_id, began_s + self._ttl_s
            self._stop = threading.Event()
            threading.Thread(target=self._keep, args=(lease_id, self._stop), name="etcd lease", daemon=True).start()

    def release(self) -> None:
        """Give it back; if etcd cannot be asked, it ends by itself after its time."""
        with self._lock:
            self._let_go()

    def holder(self) -> str | None:
        """Whoever holds the key now."""
        found = values(self._cluster.ask(rpc.TxnRequest(success=[get(self._key)])))[0]
        return found[0].value.decode(errors="replace") if found else None

    def _is_held(self) -> bool:
        return self._id != 0 and self._clock.monotonic_s() < self._until_s

    def _take(self, lease_id: int) -> str | None:
        """Put the key, unless it is there with another lease: then its holder. The same answer however often it is asked."""
        request = rpc.TxnRequest(
            compare=[absent(self._key)], success=[put(self._key, self._owner.encode(), lease_id)], failure=[get(self._key)]
        )
        answer = self._cluster.ask(request)
        if answer.succeeded:
            return None
        there = values(answer)[0][0]
        return None if there.lease == lease_id else there.value.decode(errors="replace")

    def _let_go(self) -> None:
        lease_id, self._id = self._id, 0
        self._stop.set()
        if lease_id:
            self._revoke(lease_id)

    def _revoke(self, lease_id: int) -> None:
        try:
            self._cluster.lease("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease_id), once=True)
        except LeaseGone:
            return
        except (ArchiverError, NoSpace) as error:
            _logger.warning("a lease of etcd is not given back and ends by itself in %s s: %s", self._ttl_s, error)

    def _keep(self, lease_id: int, stop: threading.Event) -> None:
        """Refresh until it is given back or lost."""
        while not stop.wait(self._ttl_s / _REFRESHES_PER_TTL):
            began_s = self._clock.monotonic_s()
            refreshed = self._refresh(lease_id)
            with self._lock:
                if self._id != lease_id:
                    return
                if refreshed:
                    self._until_s = began_s + self._ttl_s
                elif refreshed is False or not self._is_held():
                    self._until_s = 0.0
                    _logger.warning("the lease of etcd is lost: it was not refreshed for %s s", self._ttl_s)
                    return

    def _refresh(self, lease_id: int) -> bool | None:
        """Whether the lease is refreshed; None if nobody says so."""
        try:
            return bool(self._cluster.lease("LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=lease_id)).TTL > 0)
        except (LeaseGone, NoSpace):
            return False
        except ArchiverError as error:
            _logger.warning("the lease of etcd was not refreshed: %s", error)
            return None
        except Exception:  # the thread would end, and nobody would know why
            _logger.exception("the lease of etcd was not refreshed")
            return None
