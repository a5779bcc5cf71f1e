"""One at a time, and nobody waits for long: whoever holds the lock may hang on something outside of the
process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from archiver.runtime.errors import RetryLater


@contextlib.contextmanager
def acquire_with_timeout(lock: threading.Lock, wait_s: float, why: str) -> Iterator[None]:
    """Hold the lock; raises `RetryLater` with `why` if it is not to be had in time."""
    if not lock.acquire(timeout=wait_s):
        raise RetryLater(why)
    try:
        yield
    finally:
        lock.release()
