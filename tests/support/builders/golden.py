"""The golden deployment: logs, catalog and data folder as one released version left them.

Iceberg's metadata names files by absolute paths, so the deployment is unpacked where it was made. One test at
a time may use that place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.builders.deployment import Deployment

GOLDEN = Path(__file__).parents[2] / "compat" / "golden_deployment"
PLACE = Path("/tmp/stream-archiver-golden")
LOCK = PLACE.with_name(f"{PLACE.name}.lock")
"""Stays: a process that waits for a lock on a file gets a useless lock if another removes the file."""


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
            shutil.rmtree(
                folder, ignore_errors=True
            )  # a killed archiver's JVM may still be clearing its own files
            with contextlib.suppress(OSError):
                PLACE.rmdir()
    finally:
        os.close(lock)


def unpack(version: str, folder: Path, stored: Path = GOLDEN) -> None:
    """Put the golden deployment of a version into its place."""
    shutil.copytree(stored / version, folder, dirs_exist_ok=True)


class Golden(Deployment):
    """A deployment whose configuration is the one that was stored."""

    def __post_init__(self) -> None:
        """Nothing is written: everything is there."""

    def jsonl(self, name: str) -> list[Any]:
        """A stored list."""
        return [json.loads(line) for line in (self.root / name).read_text().splitlines()]

    def gaps(self) -> set[tuple[str, int, int]]:
        """What was aborted: topic, partition, offset. Version 1 knows no transactions."""
        return (
            {(topic, partition, offset) for topic, partition, offset in self.jsonl("gaps.jsonl")}
            if (self.root / "gaps.jsonl").exists()
            else set()
        )

    def pending(self) -> list[str]:
        """Archives that are in the ledger and in no table."""
        topics = self.cli("ledger", "show", "--output", "json").json()["topics"]
        return [key for topic in topics for key in topic["pending"]]

    def digests(self) -> dict[str, str]:
        """By path, of everything in the data folder."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.data.rglob("*")
            if path.is_file()
        }

    def check_taken_over(self, before: dict[str, str]) -> None:
        """What an earlier version stored stands as it was, and its archives came into the tables as they
        are."""
        after = self.digests()
        assert {path: digest for path, digest in after.items() if path in before} == before, (
            "what was stored is never changed"
        )
        assert not self.pending()
        killed = [
            item
            for topic in self.cli("ledger", "show", "--output", "json").json()["topics"]
            for item in topic["killed"]
        ]
        assert not killed, "the archives of the earlier version were committed as they are"
