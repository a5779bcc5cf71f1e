"""A lease in etcd, and the metadata store that combines it with the logs and the brokers in etcd.

The lease is one key, attached to an etcd lease that deletes it when it is not refreshed in time. A thread
refreshes it while it is held. As every lease it only avoids duplicate work (`archiver.log.lease`).

A restarted daemon need not wait until the lease of its killed predecessor expires: see `HolderLock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import threading
from pathlib import Path
from typing import Final

from archiver.log.brokers import BrokerRegistry
from archiver.log.etcd.brokers import EtcdBrokers
from archiver.log.etcd.cluster import Access, EtcdCluster, LeaseGone, NoSpace
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.log_store import NO_SPACE, EtcdLogStore, absent, get, put, values
from archiver.log.lease import BOOT_ID, Lease
from archiver.proto import etcd_kv_pb2 as kv
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, LeaseHeld, RetryLater
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
            # Reads and perhaps writes the format key, so it can fail after the connections are open.
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

    def brokers(self, timeout_s: float) -> BrokerRegistry:
        """Keys that are attached to etcd leases."""
        # etcd counts whole seconds. Rounded up, because 0 is invalid.
        return EtcdBrokers(self.cluster, self.keys, math.ceil(timeout_s), self._ids)

    def close(self) -> None:
        """Release the leases, then close the connections."""
        # Released first, because a release needs the connections. Otherwise a successor waits for the TTL.
        for lease in self._leases:
            lease.release()
        super().close()


# One refresh may fail without a loss of the lease: the next one comes before it expires.
_REFRESHES_PER_TTL: Final = 3
# etcd's lease ids are positive signed 64-bit numbers.
_ID_MASK: Final = 2**63 - 1
_TEXT_BYTES_MAX: Final = 200

_logger = logging.getLogger(__name__)


class HolderLock:
    """A file on this machine that the holder of a lease keeps locked. The kernel frees the lock whenever the
    process ends.

    The file contains the lease id. A process that can lock it knows that the holder has ended or has released
    the lease, and may revoke it. Without file, lock or text nothing is known, and the lease expires by its
    TTL. Not safe for several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def begin(self) -> int:
        """Lock the file if possible. Returns the lease id of a holder that has ended, 0 if none is known."""
        # A lock of an earlier acquire would refuse the new descriptor.
        self.end()
        descriptor: int | None = None
        try:
            # `O_NONBLOCK`: if a pipe has that name, the open must not wait for its other end.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode("ascii")
            here, _, lease_id = text.strip().rpartition(" ")
            self._descriptor = descriptor
            # A text of another boot or another file proves nothing: it may be a copy, or from another
            # machine.
            known = (
                here == self._here(descriptor) and lease_id.isdigit() and len(lease_id) <= len(str(_ID_MASK))
            )
            return int(lease_id) if known else 0
        except (OSError, UnicodeDecodeError):
            # Another holder is alive, or the file system has no locks: a lease works without this file.
            if descriptor is not None:
                os.close(descriptor)
            self._descriptor = None
            return 0

    def note(self, lease_id: int) -> None:
        """Record that this process holds the lease."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            # The lease id and not the process id: process ids are reused, and containers have their own
            # numbers.
            text = f"{self._here(self._descriptor)} {lease_id}\n".encode("ascii")
            # Emptied first, so that a crash between the two calls leaves no mixture of two texts.
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def end(self) -> None:
        """Free the lock. The text stays, so that the next process can revoke a lease that was not
        released.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # Closing is not enough: a child process inherits the descriptor until it has executed its
                # program.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @staticmethod
    def _here(descriptor: int) -> str:
        """Boot id of the kernel and identity of the file. Raises `OSError` where the kernel has no boot
        id.
        """
        found = os.fstat(descriptor)
        # The boot id is of the kernel. All containers of a machine share it, and so do their locks.
        return f"{BOOT_ID.read_text(encoding='ascii').strip()} {found.st_dev}:{found.st_ino}"


class EtcdLease:
    """A lease that expires `ttl_s` whole seconds after its last refresh. `owner` (`host:pid`) is the value of
    the key.

    Safe for several threads. Raises `RetryLater` while etcd is unavailable.
    """

    def __init__(
        self,
        cluster: EtcdCluster,
        key: bytes,
        owner: str,
        ttl_s: int,
        clock: Clock,
        ids: IdSource,
        holder_lock: HolderLock,
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._owner = owner
        self._ttl_s = ttl_s
        self._clock = clock
        self._ids = ids
        self._holder_lock = holder_lock
        self._timeout_s = ttl_s / _REFRESHES_PER_TTL
        """Timeout per member, short enough to try another member before the lease expires."""
        self._lock = threading.Lock()
        self._id = 0
        """Id of the lease that is held or was lost; 0 for none."""
        self._until_s = 0.0
        self._stop = threading.Event()

    def acquire(self) -> None:
        """Take the lease or raise `LeaseHeld`. No effect while this object holds it by its own clock."""
        with self._lock:
            if self._is_held():
                return
            # The lease that this object lost may still exist in etcd; then its key would block the new one.
            self._drop()
            # The id is chosen here and not by etcd, so that a grant whose reply is lost can be revoked.
            # `or 1`: for id 0 etcd would choose one itself.
            lease_id = int.from_bytes(self._ids.random_bytes(8), "big") & _ID_MASK or 1
            # Before the grant. Afterwards the text is of this process, and the id of the predecessor is
            # lost.
            gone = self._holder_lock.begin()
            # Before the request: our clock then starts before etcd's, and the lease ends here first.
            began_s = self._clock.monotonic_s()
            try:
                self._cluster.lease(
                    "LeaseGrant",
                    rpc.LeaseGrantRequest(TTL=self._ttl_s, ID=lease_id),
                    timeout_s=self._timeout_s,
                )
                holder = self._take(lease_id)
                # Only a lease that the file names: another one may be held by a process on another machine.
                if holder is not None and gone and holder.lease == gone:
                    _logger.info(
                        "the process on this machine that held the etcd lease has ended: revoking its lease"
                    )
                    # Deletes the key with it, so the second attempt can succeed.
                    self._revoke(gone)
                    holder = self._take(lease_id)
            except (NoSpace, LeaseGone) as error:
                # Also if the grant failed: its reply may have been lost.
                self._end(lease_id)
                raise RetryLater(
                    f"the lease cannot be taken: {error}" + (f"; {NO_SPACE}" * isinstance(error, NoSpace))
                ) from error
            except ArchiverError:
                self._end(lease_id)
                raise
            if holder is not None:
                self._end(lease_id)
                raise LeaseHeld(holder.value.decode(errors="replace"))
            self._holder_lock.note(lease_id)
            self._id, self._until_s = lease_id, began_s + self._ttl_s
            # A new event for each thread, so that the thread of the previous lease still sees its own.
            self._stop = threading.Event()
            threading.Thread(
                target=self._keep, args=(lease_id, self._stop), name="etcd lease", daemon=True
            ).start()

    def release(self) -> None:
        """Release the lease; if etcd is unavailable, it expires by its TTL."""
        with self._lock:
            self._drop()

    def holder(self) -> str | None:
        """The owner text of the current holder; None if the lease is free."""
        found = values(self._cluster.ask(rpc.TxnRequest(success=[get(self._key)])))[0]
        return found[0].value.decode(errors="replace") if found else None

    def _is_held(self) -> bool:
        # By our own clock, which started before etcd's: a process that was paused finds at once that it
        # holds nothing.
        return self._id != 0 and self._clock.monotonic_s() < self._until_s

    def _take(self, lease_id: int) -> kv.KeyValue | None:
        """Create the key. Returns the existing key if it has another lease, None on success. Idempotent."""
        request = rpc.TxnRequest(
            compare=[absent(self._key)],
            success=[put(self._key, self._owner.encode(), lease_id)],
            failure=[get(self._key)],
        )
        answer = self._cluster.ask(request)
        if answer.succeeded:
            return None
        there = values(answer)[0][0]
        return None if there.lease == lease_id else there

    def _drop(self) -> None:
        lease_id, self._id = self._id, 0
        # Stops the refresh thread before the revoke. It is not joined, because it may wait for our lock.
        self._stop.set()
        if lease_id:
            self._end(lease_id)

    def _end(self, lease_id: int) -> None:
        self._revoke(lease_id)
        self._holder_lock.end()

    def _revoke(self, lease_id: int) -> None:
        try:
            self._cluster.revoke(lease_id, self._timeout_s)
        except (ArchiverError, NoSpace) as error:
            _logger.warning("an etcd lease was not released and expires in %s s: %s", self._ttl_s, error)

    def _keep(self, lease_id: int, stop: threading.Event) -> None:
        """Refresh the lease until it is released or lost."""
        while not stop.wait(self._ttl_s / _REFRESHES_PER_TTL):
            # Before the request, as in `acquire`.
            began_s = self._clock.monotonic_s()
            refreshed = self._refresh(lease_id)
            # The request runs without the lock, so that `release` need not wait for it.
            with self._lock:
                # Released or replaced during the refresh: its result is of no interest.
                if self._id != lease_id:
                    return
                if refreshed:
                    self._until_s = began_s + self._ttl_s
                # An unknown result is tolerated until the lease has expired by our own clock.
                elif refreshed is False or not self._is_held():
                    self._until_s = 0.0
                    # The lease is gone, so another process on this machine may acquire one.
                    self._holder_lock.end()
                    _logger.warning("the etcd lease is lost: it was not refreshed for %s s", self._ttl_s)
                    return

    def _refresh(self, lease_id: int) -> bool | None:
        """Whether the lease was refreshed; None if unknown."""
        try:
            return bool(
                self._cluster.lease(
                    "LeaseKeepAlive",
                    rpc.LeaseKeepAliveRequest(ID=lease_id),
                    timeout_s=self._timeout_s,
                    # etcd answers a refresh of an expired lease with TTL 0 and not with an error.
                ).TTL
                > 0
            )
        # Both replies are final: the lease will not be extended.
        except (LeaseGone, NoSpace):
            return False
        except ArchiverError as error:
            _logger.warning("the etcd lease was not refreshed: %s", error)
            return None
        except Exception:  # an unlogged error would end the refresh thread silently
            _logger.exception("the etcd lease was not refreshed")
            return None
