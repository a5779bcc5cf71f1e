"""Errors of a read: those that say nothing of the bytes, and those for which the bytes may be to blame."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

import pyarrow as pa

LACKING = [
    pa.ArrowMemoryError("malloc of size 1 failed"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.ECONNRESET, "Connection reset by peer"),
]
DAMAGED = [
    pa.ArrowInvalid("Corrupt snappy compressed data"),
    OSError("Unexpected end of stream"),
    OSError(errno.EIO, "Input/output error"),
]


def failing(error: Exception) -> Any:
    """A function that does nothing but raise it."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
