"""Spool folders for unfinished files that clean themselves up.

Each process with a data folder gets a folder below `.spool` and holds a lock on it. The kernel frees the lock
whenever the process ends. The next process removes all folders whose lock is free. No clock and no file age
is involved.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Final

from archiver.runtime.errors import RetryLater

# Attempts against processes that remove the new folder as abandoned.
_ATTEMPTS_MAX: Final = 10


class Spool:
    """A locked folder below `parent`, created on first use. Removed at exit, or after a kill by the next
    process.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._pid = 0
        # `next` of a counter is atomic in CPython, so threads need no lock for a path.
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """The folder; a forked process gets another one. The folder that contains `parent` must exist.

        Raises `OSError`, or `RetryLater` if other processes keep removing it.
        """
        with self._lock:
            # A child process must not use the folder: it has the parent's lock only as an inherited
            # descriptor.
            if self._folder is None or self._pid != os.getpid() or not self._folder.is_dir():
                self._parent.mkdir(exist_ok=True)
                remove_abandoned(self._parent)
                self._folder = self._make()
                self._pid = os.getpid()
            return self._folder

    def new_path(self) -> Path:
        """An unused path in the folder."""
        return self.folder() / f"object-{next(self._numbers)}"

    def owns(self, path: Path) -> bool:
        """Whether that file lies in this process's folder."""
        return (
            self._folder is not None
            and self._pid == os.getpid()
            and str(path.absolute()).startswith(f"{self._folder}/")
        )

    def _make(self) -> Path:
        for _ in range(_ATTEMPTS_MAX):
            folder = Path(tempfile.mkdtemp(prefix="process-", dir=self._parent))
            # Another process may remove the folder before we lock it: before the open, or after it.
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            # Another process may have locked and removed the folder first. The lock is then on a folder
            # without a name.
            if _try_lock(descriptor) and folder.is_dir():
                # Runs when the store is collected, or at the end of the process. It must not refer to
                # `self`.
                weakref.finalize(self, _remove, folder, descriptor, os.getpid())
                return folder
            os.close(descriptor)
        raise RetryLater(f"other processes kept removing the spool folder below {self._parent}")


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of ended processes."""
    for folder in parent.glob("process-*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # The lock is free, so the owner has ended. Age proves nothing: an upload may take hours.
            if _try_lock(descriptor):
                # Errors are ignored: another process may remove the same folder, and the rest goes next
                # time.
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def abandoned_files(parent: Path) -> list[tuple[Path, int]]:
    """Files and their sizes in the folders of ended processes, in path order. Removes nothing."""
    found: list[tuple[Path, int]] = []
    for folder in sorted(parent.glob("process-*")):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _try_lock(descriptor):
                found += [(path, path.stat().st_size) for path in sorted(folder.iterdir()) if path.is_file()]
        except FileNotFoundError:
            continue  # another process has removed it
        finally:
            os.close(descriptor)
    return found


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path, descriptor: int, pid: int) -> None:
    # A forked child inherits the finalizer and must not remove its parent's folder.
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
