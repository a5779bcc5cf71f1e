"""From the settings to the metadata store: its logs and its leases. The one place that knows which adapter
stands behind them.

Nothing of an adapter that is not used is imported.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from archiver.config.metadata import EtcdSettings, MetadataSettings
from archiver.log.lease import FileLease, Lease
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource

if TYPE_CHECKING:
    from archiver.log.etcd.cluster import Access

LEADER: Final = "leader"
"""The lease of who archives and cleans."""
CHECKPOINT: Final = "checkpoint"
"""The lease of who makes checkpoints."""
PUBLISH: Final = "publish"
"""The lease of who publishes control events."""


class MetadataStore(Protocol):
    """The logs, and who may do what."""

    def log(self, name: str) -> Log:
        """The log of that name, created if new."""

    def lease(self, name: str, owner: str) -> Lease:
        """A lease that everybody who uses the same store competes for; `owner` is `host:pid`. Release it
        before `close`.
        """

    def close(self) -> None:
        """Release everything; it cannot be used any more."""


class SqliteMetadata(SqliteLogStore):
    """A database file, and leases in files beside it."""

    def lease(self, name: str, owner: str) -> Lease:
        """A lock on a file beside the database."""
        suffix = "lease" if name == LEADER else name
        return FileLease(self.path.with_name(f"{self.path.name}.{suffix}"), owner)


def open_metadata(
    settings: MetadataSettings, entry_bytes_max: int, clock: Clock, ids: IdSource
) -> MetadataStore:
    """The store that the settings name; raises what opening it raises."""
    if settings.sqlite is not None:
        return SqliteMetadata(settings.sqlite.path, settings.sqlite.busy_timeout, entry_bytes_max)
    assert settings.etcd is not None, "settings demand a metadata store"
    return _open_etcd(settings.etcd, settings.local_path, entry_bytes_max, clock, ids)


def _open_etcd(
    settings: EtcdSettings, beside: Path, entry_bytes_max: int, clock: Clock, ids: IdSource
) -> MetadataStore:
    from archiver.log.etcd.metadata import EtcdMetadata

    lease_ttl_s = math.ceil(settings.lease_ttl)
    return EtcdMetadata(
        etcd_access(settings), settings.prefix, lease_ttl_s, entry_bytes_max, beside, clock, ids
    )


def etcd_access(settings: EtcdSettings) -> Access:
    """How the cluster of the settings is reached."""
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
