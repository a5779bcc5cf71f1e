"""The metadata store in etcd: both logs and the leases over the same connections."""

from __future__ import annotations

import contextlib
from pathlib import Path

from archiver.log.etcd.cluster import Access, EtcdCluster
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.lease import EtcdLease, HolderLock
from archiver.log.etcd.log_store import EtcdLogStore
from archiver.log.lease import Lease
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource


class EtcdMetadata(EtcdLogStore):
    """See `archiver.log.open.MetadataStore`. A lease expires `lease_ttl_s` whole seconds after its last
    refresh.

    Files of this machine (tail markers, lease locks) are named after `local_path`.
    """

    def __init__(
        self,
        access: Access,
        prefix: str,
        lease_ttl_s: int,
        entry_bytes_max: int,
        local_path: Path,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        keys = Keys(prefix)
        self._lease_ttl_s = lease_ttl_s
        self._local_path = local_path
        self._clock = clock
        self._ids = ids
        self._leases: list[EtcdLease] = []
        with contextlib.suppress(OSError):
            # Without this folder there are no tail markers and lease locks on this machine; both are
            # optional.
            local_path.parent.mkdir(exist_ok=True)
        cluster = EtcdCluster(access, keys.format(), clock)
        try:
            super().__init__(cluster, keys, entry_bytes_max, local_path)
        except BaseException:
            cluster.close()
            raise

    def lease(self, name: str, owner: str) -> Lease:
        """A lease whose key is attached to an etcd lease."""
        lock = HolderLock(self._local_path.with_name(f"{self._local_path.name}.{name}.lease"))
        lease = EtcdLease(
            self.cluster, self.keys.lease(name), owner, self._lease_ttl_s, self._clock, self._ids, lock
        )
        self._leases.append(lease)
        return lease

    def close(self) -> None:
        """Release the leases, then close the connections."""
        for lease in self._leases:
            lease.release()
        super().close()
