"""A lease in etcd: for the daemons of several machines.

Owns one key, which etcd deletes when the lease on it was not refreshed in time. A thread refreshes it while
it is held. A holder that could not do that takes the lease for lost by its own clock, which began before
etcd's did: a process that was paused knows at once that it holds nothing, whatever it believed before. As
every lease it saves work and protects nothing (`archiver.log.lease`).

A restarted daemon need not wait until the lease of its killed predecessor ends: see `HolderLock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from pathlib import Path
from typing import Final

from archiver.log.etcd.cluster import EtcdCluster, LeaseGone, NoSpace
from archiver.log.etcd.log_store import NO_SPACE, absent, get, put, values
from archiver.proto import etcd_kv_pb2 as kv
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, LeaseHeld, RetryLater
from archiver.runtime.ids import IdSource

_REFRESHES_PER_TTL: Final = 3
_ID_MASK: Final = 2**63 - 1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TEXT_BYTES_MAX: Final = 200

_logger = logging.getLogger(__name__)


class HolderLock:
    """A file of this machine that the holder of a lease keeps locked. The kernel frees the lock when the
    process dies, however it dies.

    The file names the lease. Who can lock it knows that the holder of that lease is dead, or has given the
    lease back, and may revoke it. A process number would prove less: it is used again, and containers have
    numbers of their own. The text also names the boot of the kernel and the file itself, because a lock says
    nothing on another machine, or for a copy of the file. Where any of this is missing nothing is known, and
    the lease ends by its time. Not safe for several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def begin(self) -> int:
        """Lock the file, if that is possible; the lease of a holder that is gone, 0 if none is known."""
        self.end()
        descriptor: int | None = None
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode("ascii")
            here, _, lease_id = text.strip().rpartition(" ")
            self._descriptor = descriptor
            known = (
                here == self._here(descriptor) and lease_id.isdigit() and len(lease_id) <= len(str(_ID_MASK))
            )
            return int(lease_id) if known else 0
        except (OSError, UnicodeDecodeError):
            # Another holder lives, or there is no such file system: a lease works without this file.
            if descriptor is not None:
                os.close(descriptor)
            self._descriptor = None
            return 0

    def note(self, lease_id: int) -> None:
        """The lease is held now, by this process."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            text = f"{self._here(self._descriptor)} {lease_id}\n".encode("ascii")
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def end(self) -> None:
        """Free the lock. The text stays: a lease that could not be given back may be revoked by it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # Closing is not enough while a child process that is being started has the descriptor too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @staticmethod
    def _here(descriptor: int) -> str:
        """The boot of this kernel, and the file. Raises `OSError` where the kernel does not tell its boot."""
        found = os.fstat(descriptor)
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {found.st_dev}:{found.st_ino}"


class EtcdLease:
    """A lease that lasts `ttl_s` seconds without a refresh, a whole number. `owner` (`host:pid`) is the value
    of the key.

    Safe for several threads. Raises `RetryLater` while etcd cannot be asked.
    """

    def __init__(
        self,
        cluster: EtcdCluster,
        key: bytes,
        owner: str,
        ttl_s: int,
        clock: Clock,
        ids: IdSource,
        lives: HolderLock,
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._owner = owner
        self._ttl_s = ttl_s
        self._clock = clock
        self._ids = ids
        self._lives = lives
        self._timeout_s = ttl_s / _REFRESHES_PER_TTL
        """For one member to answer, so that there is time to ask another one before the lease ends."""
        self._lock = threading.Lock()
        self._id = 0
        """Of the lease that is held, or was until it was lost; 0 for none."""
        self._until_s = 0.0
        self._stop = threading.Event()

    def acquire(self) -> None:
        """Take the lease or raise `LeaseHeld`; no effect while it is held, by this object's own clock,
        already.
        """
        with self._lock:
            if self._is_held():
                return
            self._let_go()
            # Chosen here and not by etcd, so that a grant whose answer is lost can be given back.
            lease_id = int.from_bytes(self._ids.random_bytes(8), "big") & _ID_MASK or 1
            gone = self._lives.begin()
            began_s = self._clock.monotonic_s()
            try:
                self._cluster.lease(
                    "LeaseGrant",
                    rpc.LeaseGrantRequest(TTL=self._ttl_s, ID=lease_id),
                    timeout_s=self._timeout_s,
                )
                holder = self._take(lease_id)
                if holder is not None and gone and holder.lease == gone:
                    _logger.info(
                        "the process that held the lease of etcd on this machine is gone: its lease is "
                        "revoked"
                    )
                    self._revoke(gone)
                    holder = self._take(lease_id)
            except (NoSpace, LeaseGone) as error:
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
            self._lives.note(lease_id)
            self._id, self._until_s = lease_id, began_s + self._ttl_s
            self._stop = threading.Event()
            threading.Thread(
                target=self._keep, args=(lease_id, self._stop), name="etcd lease", daemon=True
            ).start()

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

    def _take(self, lease_id: int) -> kv.KeyValue | None:
        """Put the key, unless it is there with another lease: then the key as it is. The same answer however
        often it is asked.
        """
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

    def _let_go(self) -> None:
        lease_id, self._id = self._id, 0
        self._stop.set()
        if lease_id:
            self._end(lease_id)

    def _end(self, lease_id: int) -> None:
        self._revoke(lease_id)
        self._lives.end()

    def _revoke(self, lease_id: int) -> None:
        try:
            self._cluster.lease(
                "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease_id), once=True, timeout_s=self._timeout_s
            )
        except LeaseGone:
            return
        except (ArchiverError, NoSpace) as error:
            _logger.warning(
                "a lease of etcd is not given back and ends by itself in %s s: %s", self._ttl_s, error
            )

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
                    self._lives.end()
                    _logger.warning("the lease of etcd is lost: it was not refreshed for %s s", self._ttl_s)
                    return

    def _refresh(self, lease_id: int) -> bool | None:
        """Whether the lease is refreshed; None if nobody says so."""
        try:
            return bool(
                self._cluster.lease(
                    "LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=lease_id), timeout_s=self._timeout_s
                ).TTL
                > 0
            )
        except (LeaseGone, NoSpace):
            return False
        except ArchiverError as error:
            _logger.warning("the lease of etcd was not refreshed: %s", error)
            return None
        except Exception:  # the thread would end, and nobody would know why
            _logger.exception("the lease of etcd was not refreshed")
            return None
