"""Small files in the local state of a machine: a bounded read, and an atomic replacement."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class NotUsable(ValueError):
    """A file that this program cannot have written, with the reason."""


def read_local_file(path: Path, bytes_max: int) -> bytes | None:
    """The whole file; None if there is none.

    Raises `NotUsable` for what is no regular file or has more than `bytes_max` bytes, and for a file that
    other users may write. Raises `OSError` if it cannot be read.
    """
    try:
        # A pipe must not wait for its writer, and a link could name any file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Of the open file, not of the path: the file checked is the file read.
        _check(os.fstat(descriptor), path.parent.stat().st_uid)
        data = _read(descriptor, bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise NotUsable(f"it has more than {bytes_max:,} bytes")
    return data


def _check(found: os.stat_result, folder_uid: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotUsable("it is no regular file")
    # A command may run as root. The owner of the folder may replace any file in it. Any other user could
    # plant a text that an operator trusts.
    if found.st_uid not in (os.geteuid(), 0, folder_uid) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotUsable("another user owns it or may write it")


def _read(descriptor: int, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    # One read may return less than it was asked for.
    while bytes_max > 0 and (piece := os.read(descriptor, bytes_max)):
        pieces.append(piece)
        bytes_max -= len(piece)
    return b"".join(pieces)


def replace_local_file(path: Path, data: bytes, mode: int) -> None:
    """Replace the file atomically: a reader gets the old or the new bytes. Raises `OSError`; then the old
    file stays.

    It is not synced: what is stored this way may be lost with the machine's power.
    """
    # The process id keeps two daemons of one folder apart. A file that a killed process left is overwritten
    # by the next process of that id.
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(draft, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
