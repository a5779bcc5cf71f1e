"""Open the metadata store that the settings select: its logs, its leases and its brokers.

Only the selected adapter is imported.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from archiver.config.metadata import EtcdSettings, MetadataSettings
from archiver.log.brokers import BrokerRegistry, SqliteBrokers
from archiver.log.lease import FileLease, Lease
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource

if TYPE_CHECKING:
    from archiver.log.etcd.cluster import Access

LEADER: Final = "leader"
"""Lease of the process that archives and cleans."""
CHECKPOINT: Final = "checkpoint"
"""Lease of the process that makes checkpoints."""
PUBLISH: Final = "publish"
"""Lease of the process that publishes control events."""


class MetadataStore(Protocol):
    """The logs, leases and brokers of one deployment."""

    def log(self, name: str) -> Log:
        """The log of that name, created if new."""

    def lease(self, name: str, owner: str) -> Lease:
        """A lease shared by all processes on this store; `owner` is `host:pid`. Release it before `close`."""

    def brokers(self, timeout_s: float) -> BrokerRegistry:
        """The daemons that answer Kafka clients; one that is not renewed within `timeout_s` is not live.
        Release it before `close`.
        """

    def close(self) -> None:
        """Release everything; the store cannot be used afterwards."""


class SqliteMetadata(SqliteLogStore):
    """A SQLite database file, with leases as lock files next to it."""

    def __init__(
        self, path: Path, busy_timeout_s: float, entry_bytes_max: int, clock: Clock, ids: IdSource
    ) -> None:
        super().__init__(path, busy_timeout_s, entry_bytes_max, clock)
        self._ids = ids

    def lease(self, name: str, owner: str) -> Lease:
        """A lock on a file next to the database."""
        # The leader's lock file is `{path}.lease` in every version; another name would allow two leaders.
        suffix = "lease" if name == LEADER else name
        return FileLease(self.path.with_name(f"{self.path.name}.{suffix}"), owner)

    def brokers(self, timeout_s: float) -> BrokerRegistry:
        """Rows of the database."""
        return SqliteBrokers(self, timeout_s, self._clock, self._ids)


def open_metadata(
    settings: MetadataSettings, entry_bytes_max: int, clock: Clock, ids: IdSource
) -> MetadataStore:
    """Open the store that the settings select. Errors of opening pass through."""
    if settings.sqlite is not None:
        return SqliteMetadata(settings.sqlite.path, settings.sqlite.busy_timeout, entry_bytes_max, clock, ids)
    assert settings.etcd is not None, "settings demand a metadata store"
    return _open_etcd(settings.etcd, settings.local_path, entry_bytes_max, clock, ids)


def _open_etcd(
    settings: EtcdSettings, local_path: Path, entry_bytes_max: int, clock: Clock, ids: IdSource
) -> MetadataStore:
    from archiver.log.etcd.lease import EtcdMetadata

    # etcd counts whole seconds. Rounded up, because 0 is invalid.
    lease_ttl_s = math.ceil(settings.lease_ttl)
    return EtcdMetadata(
        etcd_access(settings), settings.prefix, lease_ttl_s, entry_bytes_max, local_path, clock, ids
    )


def etcd_access(settings: EtcdSettings) -> Access:
    """Addresses, TLS files and credentials of the cluster in the settings."""
    from archiver.log.etcd.cluster import Access

    tls = settings.tls
    return Access(
        addresses=settings.addresses,
        timeout_s=settings.request_timeout,
        ca_file=None if tls is None else tls.ca_file,
        cert_file=None if tls is None else tls.cert_file,
        key_file=None if tls is None else tls.key_file,
        user=settings.user,
        password=None if settings.password is None else settings.password.get_secret_value(),
    )
