"""Stores and leases in the etcd of a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from archiver.log.etcd.cluster import Access, EtcdCluster
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.lease import EtcdMetadata
from archiver.log.etcd.log_store import EtcdLogStore
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.ids import SystemIds
from tests.support.log.etcd_certificates import Certificates
from tests.support.log.etcd_server import User

ENTRY_BYTES_MAX = 512 * 1024


def access_to(
    addresses: Sequence[str],
    timeout_s: float = 5.0,
    certificates: Certificates | None = None,
    user: User | None = None,
) -> Access:
    """How a test reaches etcd."""
    files = (
        (None, None, None)
        if certificates is None
        else (certificates.authority, certificates.client, certificates.client_key)
    )
    who = (None, None) if user is None else (user.name, user.password)
    return Access(tuple(addresses), timeout_s, *files, *who)


def cluster_of(access: Access, prefix: str) -> EtcdCluster:
    """A connection of its own."""
    return EtcdCluster(access, Keys(prefix).format(), SystemClock())


def store_of(
    access: Access, folder: Path, prefix: str = "/archiver", entry_bytes_max: int = ENTRY_BYTES_MAX
) -> EtcdLogStore:
    """The logs below a prefix; what this machine notes of them is in `folder`."""
    return EtcdLogStore(cluster_of(access, prefix), Keys(prefix), entry_bytes_max, folder / "etcd")


def etcd_store(
    addresses: Sequence[str], folder: Path, prefix: str = "/archiver", entry_bytes_max: int = ENTRY_BYTES_MAX
) -> EtcdLogStore:
    """The same, in the clear and without a user."""
    return store_of(access_to(addresses), folder, prefix, entry_bytes_max)


def etcd_metadata(
    addresses: Sequence[str],
    folder: Path,
    ttl_s: int = 10,
    prefix: str = "/archiver",
    timeout_s: float = 5.0,
    clock: Clock | None = None,
) -> EtcdMetadata:
    """Logs and leases over one connection, as one daemon has them."""
    access = access_to(addresses, timeout_s)
    return EtcdMetadata(
        access, prefix, ttl_s, ENTRY_BYTES_MAX, folder / "etcd", clock or SystemClock(), SystemIds()
    )
