"""The golden deployment: logs, catalog and data folder as one released version left them.

Iceberg's metadata names files by absolute paths, so the deployment is unpacked where it was made. One test at a time may be there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "compat" / "golden_deployment"
PLACE = Path("/tmp/stream-archiver-golden")
WAIT_S = 100


@contextlib.contextmanager
def golden_place(version: str) -> Iterator[Path]:
    """An empty folder at the fixed place, ours alone until the end, and gone then."""
    PLACE.mkdir(exist_ok=True)
    lock = os.open(PLACE, os.O_RDONLY)
    try:
        _lock(lock)
        folder = PLACE / version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # a killed archiver's JVM may still be clearing its own files
            with contextlib.suppress(OSError):
                PLACE.rmdir()
    finally:
        os.close(lock)


def unpack(version: str, folder: Path) -> None:
    """Put the golden deployment of a version into its place."""
    shutil.copytree(GOLDEN / version, folder, dirs_exist_ok=True)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
