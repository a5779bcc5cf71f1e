"""A process's folder for scratch files, and the removal of folders whose process died.

A folder is removed only if it belongs to this user and its process is dead. A process holds a lock on a file
in its folder while it lives; the kernel releases the lock however the process dies. Links are never followed,
and a folder without that file is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from archiver.runtime.errors import Halt

PREFIX = "archiver-spark-"
LOCK_NAME = "owner.lock"
_ATTEMPTS_MAX = 100
"""Attempts, because another process may remove the folder between its creation and its locking."""


def scratch_folder(where: Path) -> Path:
    """A new folder below `where` that belongs to this process until it ends; folders of dead processes are
    removed. Raises `OSError`.
    """
    sweep(where)
    for _ in range(_ATTEMPTS_MAX):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
        # Never closed: the lock ends with the process.
        if _locked(folder, os.O_CREAT) is not None:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    raise Halt(f"no scratch folder could be made in {where}: others keep removing it")


def sweep(where: Path) -> None:
    """Remove the folders of this user's processes that are dead."""
    with contextlib.suppress(OSError):
        for folder in where.glob(f"{PREFIX}*"):
            _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):
        # Not `stat`: a link must never be followed, and another user could place one here.
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        # Without O_CREAT: a folder without the file is not ours, or not locked yet.
        descriptor = _locked(folder, 0)
        if descriptor is None:
            return
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _locked(folder: Path, flags: int) -> int | None:
    """The locked descriptor of the folder's lock file; None if another process holds the lock, or the file is
    gone.
    """
    path = folder / LOCK_NAME
    try:
        # O_CLOEXEC: a child that inherited the descriptor would keep the lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been removed between open and lock: the locked file must be the one at the path.
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
