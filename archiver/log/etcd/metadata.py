"""The metadata store in etcd: both logs and the leases, over the same connections."""

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
    """See `archiver.log.open.MetadataStore`. Leases last `lease_ttl_s` whole seconds without a refresh."""

    def __init__(
        self,
        access: Access,
        prefix: str,
        lease_ttl_s: int,
        entry_bytes_max: int,
        beside: Path,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        keys = Keys(prefix)
        self._lease_ttl_s = lease_ttl_s
        self._beside = beside
        self._clock = clock
        self._ids = ids
        self._leases: list[EtcdLease] = []
        with contextlib.suppress(OSError):
            beside.parent.mkdir(exist_ok=True)  # without it this machine notes nothing, and can still work
        cluster = EtcdCluster(access, keys.format(), clock)
        try:
            super().__init__(cluster, keys, entry_bytes_max, beside)
        except BaseException:
            cluster.close()
            raise

    def lease(self, name: str, owner: str) -> Lease:
        """A key with a lease of etcd's on it."""
        lives = HolderLock(self._beside.with_name(f"{self._beside.name}.{name}.lease"))
        lease = EtcdLease(
            self.cluster, self.keys.lease(name), owner, self._lease_ttl_s, self._clock, self._ids, lives
        )
        self._leases.append(lease)
        return lease

    def close(self) -> None:
        """Give the leases back, then close the connections."""
        for lease in self._leases:
            lease.release()
        super().close()
