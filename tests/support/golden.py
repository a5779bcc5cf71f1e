"""The golden deployment: logs, catalog and data folder as one released version left them.

Iceberg's metadata names files by absolute paths, so the deployment is unpacked where it was made. One test at a time may be there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "compat" / "golden_deployment"
PLACE = Path("/tmp/stream-archiver-golden")
LOCK = PLACE.with_name(f"{PLACE.name}.lock")
"""Stays: whoever waits for a lock on a file that another removes gets a lock on nothing."""


@contextlib.contextmanager
def golden_place(version: str) -> Iterator[Path]:
    """An empty folder at the fixed place, ours alone until the end, and gone then."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # blocks, in turn: the test's own time-out bounds it
        PLACE.mkdir(exist_ok=True)
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
