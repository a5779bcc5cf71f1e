"""Folders in which files were seen, to tell an emptied folder from one whose file system is not mounted.

A file is proven gone by the nearest existing folder above it, which must not contain the file. That folder
must also have another entry, or be the same folder on the same file system in which a file was seen before. A
bare mount point therefore proves nothing. The memory is per process and bounded; without it a file only
counts as present for longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDERS_MAX = 10_000
"""Folders to remember; the one seen longest ago is dropped first."""

_Identity = tuple[int, int, int]


class SeenFolders:
    """The seen folders of one process. One thread uses it."""

    def __init__(self) -> None:
        self._known: dict[str, _Identity] = {}

    def saw(self, path: str) -> None:
        """Remember the folder of a seen file, and the folders above it on the same file system."""
        for folder in _above(path):
            try:
                with _opened(folder) as descriptor:
                    found = os.fstat(descriptor)
                    # Relative to the open folder, so a concurrent mount or unmount cannot mix two folders.
                    file = os.stat(os.path.relpath(path, folder), dir_fd=descriptor, follow_symlinks=False)
                    identity = _identity(descriptor, found)
            except OSError:
                return
            if file.st_dev != found.st_dev:
                return  # a mount point is in between, so a missing file would prove nothing
            self._known.pop(folder, None)
            self._known[folder] = identity
        while len(self._known) > FOLDERS_MAX:
            del self._known[next(iter(self._known))]

    def prove_gone(self, path: str) -> bool:
        """Whether the file was certainly removed; False if it exists or this is unknown."""
        for folder in _above(path):
            try:
                with _opened(folder) as descriptor:
                    if _is_there(os.path.relpath(path, folder), descriptor):
                        return False
                    with os.scandir(descriptor) as entries:
                        if next(entries, None) is not None:
                            return True
                    return self._known.get(folder) == _identity(descriptor, os.fstat(descriptor))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return False
        return False


def _above(path: str) -> Iterator[str]:
    """The folders above, nearest first, without the root."""
    for folder in Path(path).parents:
        if folder != folder.parent:
            yield str(folder)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(descriptor: int, found: os.stat_result) -> _Identity:
    """Device and inode of the folder, and the id of its file system, because device numbers are reused."""
    return found.st_dev, found.st_ino, os.statvfs(descriptor).f_fsid


def _is_there(name: str, descriptor: int) -> bool:
    try:
        os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
