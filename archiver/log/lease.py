"""The leadership lease, and its implementation with a file lock.

A lease avoids duplicate work; it is not a safety mechanism. Safety comes from the EPOCH entries of the
control log. A lost lease, or one held twice, may cost time and never data. No rule of the protocol may depend
on it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final, Protocol

from archiver.runtime.errors import Halt, LeaseHeld

_ATTEMPTS_MAX: Final = 100
"""Attempts against processes that only read the lease or replace its file; each takes microseconds."""
# More than any host name and process id; a longer text is cut.
_HOLDER_BYTES_MAX: Final = 1024
_UNNAMED: Final = "another process"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""File that identifies the boot of the kernel, on Linux."""


class Lease(Protocol):
    """A lease with at most one holder at a time."""

    def acquire(self) -> None:
        """Take the lease without waiting. No effect if this object holds it. Raises `LeaseHeld`."""

    def release(self) -> None:
        """Release the lease; no effect if not held."""

    def holder(self) -> str | None:
        """`host:pid` of the current holder; None if the lease is free."""


class FileLease:
    """A lease that is an exclusive `flock` on a file. The kernel frees it whenever the process ends.

    `owner` (`host:pid`) is written into the file for people to read. The file and its folder are created and
    never removed: after a removal two processes could lock two files of one name. Raises `Halt` if the file
    cannot be opened.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._owner = owner
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Take the lock or raise `LeaseHeld` with the holder's text."""
        with self._lock:
            if self._descriptor is not None:
                return
            for _ in range(_ATTEMPTS_MAX):
                descriptor = self._open()
                if self._try_exclusive(descriptor):
                    self._descriptor = descriptor
                    # After the lock, so the text of a holder is never replaced by that of a loser.
                    self._write_owner(descriptor)
                    return
                # A shared lock succeeds if the other lock was shared too: `holder` of another process was
                # reading.
                only_watched = _try_flock(descriptor, fcntl.LOCK_SH)
                # Read before the descriptor is closed; the holder may be about to write its text.
                holder = _text(descriptor)
                _free(descriptor)
                if not only_watched:
                    raise LeaseHeld(holder or _UNNAMED)
                # The other process needs the processor only for microseconds, so a sleep would cost more.
                os.sched_yield()
            raise LeaseHeld(_UNNAMED)

    def release(self) -> None:
        """Clear the text and free the lock."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                try:
                    # Before the unlock. Afterwards a new holder may have written its own text.
                    os.ftruncate(descriptor, 0)
                finally:
                    _free(descriptor)

    def holder(self) -> str | None:
        """The holder's text; None if the lock is free, even if a killed process left a text."""
        with self._lock:
            if self._descriptor is not None:
                return self._owner
            # A question must not create the file.
            if not self.path.exists():
                return None
            descriptor = self._open()
            try:
                # A shared lock succeeds only if no process holds the exclusive one; it is released at once.
                return None if _try_flock(descriptor, fcntl.LOCK_SH) else _text(descriptor) or _UNNAMED
            finally:
                _free(descriptor)

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # `O_CLOEXEC`: a child program with the descriptor would keep the lock of an ended process.
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Halt(
                f"the lease file {self.path} cannot be opened: {error.strerror}; check that its folder "
                "belongs to this user"
            ) from error

    def _try_exclusive(self, descriptor: int) -> bool:
        """Lock, and check that the locked file is still the one at that path."""
        if not _try_flock(descriptor, fcntl.LOCK_EX):
            return False
        try:
            # The file may have been removed or replaced between open and lock. Two processes would then
            # both hold a lock.
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                return True
        except FileNotFoundError:
            pass
        return False

    def _write_owner(self, descriptor: int) -> None:
        text = self._owner.encode()[:_HOLDER_BYTES_MAX]
        try:
            # Written before it is cut, so a reader never sees an empty text.
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        except OSError:
            # For example a full disk. The text is only information; the lock is the lease.
            return


def _try_flock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(descriptor: int) -> None:
    # Closing is not enough: a child process inherits the descriptor until it has executed its program.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
