"""The folders in which files were seen, so that an emptied folder can be told from one whose file system is
not mounted.

Owns what proves that a file is gone: the nearest folder above it that is there, opened once, does not hold
it, and either holds something else or is the very folder, on the very file system, in which a file was seen
before. Promises that a mount point without its file system never proves anything. What is remembered is of
this process and bounded; without it a file is held to be there for longer, never for less.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOMES_MAX = 10_000
"""Folders that are remembered; the one that was seen longest ago is dropped first."""

_Identity = tuple[int, int, int]


class Homes:
    """Of one process. One thread uses it."""

    def __init__(self) -> None:
        self._known: dict[str, _Identity] = {}

    def saw(self, path: str) -> None:
        """A file was seen there: remember its folder, and those above it on the same file system."""
        for folder in _above(path):
            try:
                with _opened(folder) as descriptor:
                    found = os.fstat(descriptor)
                    # Seen from the open folder: what was mounted or unmounted meanwhile cannot be taken for
                    # it.
                    file = os.stat(os.path.relpath(path, folder), dir_fd=descriptor, follow_symlinks=False)
                    identity = _identity(descriptor, found)
            except OSError:
                return
            if file.st_dev != found.st_dev:
                return  # something below is a mount point: that it is not there would prove nothing
            self._known.pop(folder, None)
            self._known[folder] = identity
        while len(self._known) > HOMES_MAX:
            del self._known[next(iter(self._known))]

    def prove_gone(self, path: str) -> bool:
        """Whether the file was removed; False if it is there, or nobody knows."""
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
    """The folders above, the nearest first, without the root."""
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
    """Device and number of the folder, and the identity of its file system: a device number is given to
    another one after it.
    """
    return found.st_dev, found.st_ino, os.statvfs(descriptor).f_fsid


def _is_there(name: str, descriptor: int) -> bool:
    try:
        os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
