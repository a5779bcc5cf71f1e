"""A file being ingested: opened once, with its identity at that time.

The identity of a file is its size, its modification time and its first 4 KiB. Opening never blocks (a pipe
with the name of a file is refused) and follows no link.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from types import TracebackType
from typing import BinaryIO, Self

from archiver.runtime.errors import NotFound, RecordRefused
from intake.log.source_positions import MARK_BYTES

HEAD_BYTES = 4096
_HEAD_DIGEST_BYTES = 12
_SHAPE = struct.Struct(">Qq")
_BUFFER_BYTES = 1 << 20


class OpenedFile:
    """An open file; close it, or use it as a context manager."""

    def __init__(self, path: str) -> None:
        """Raises `NotFound` if the file is gone, `RecordRefused` if it is unreadable or no regular file."""
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"{path} has vanished") from error
        except OSError as error:
            raise RecordRefused(
                f"the file cannot be opened ({error.strerror}); give this process the right to read it"
            ) from error
        try:
            self._began = os.fstat(descriptor)
            if not stat.S_ISREG(self._began.st_mode):
                raise RecordRefused(
                    "this is no regular file; remove it from the folder, or narrow the pattern"
                )
            self.identity = _identity(self._began, os.pread(descriptor, HEAD_BYTES, 0))
            """The file's identity in the log, in addition to its name."""
        except BaseException:
            os.close(descriptor)
            raise
        self.stream: BinaryIO = os.fdopen(descriptor, "rb", _BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        self.stream.close()

    @property
    def size(self) -> int:
        """Size in bytes at open."""
        return self._began.st_size

    def is_unchanged(self) -> bool:
        """Whether size and modification time are still those at open."""
        now = os.fstat(self.stream.fileno())
        return _shape(now) == _shape(self._began)

    def has_its_name(self) -> bool:
        """Whether the path still names this file."""
        try:
            return os.path.samestat(os.lstat(self.path), self._began)
        except OSError:
            return False


def mark_of(found: os.stat_result) -> bytes:
    """The beginning of a file's identity: a digest of its size and modification time."""
    return hashlib.blake2b(_shape(found), digest_size=MARK_BYTES).digest()


def _shape(found: os.stat_result) -> bytes:
    return _SHAPE.pack(found.st_size, found.st_mtime_ns)


def _identity(found: os.stat_result, head: bytes) -> bytes:
    return mark_of(found) + _shape(found) + hashlib.blake2b(head, digest_size=_HEAD_DIGEST_BYTES).digest()
