"""A process that mirrors: `python -m tests.support.kafka.mirror_process ROOT BROKERS TOPIC PIECE_BYTES`.

The log and the objects are below ROOT. Prints `level N` whenever it has ingested N records in all, and goes
on until it is ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime import failpoints
from tests.support.kafka.mirroring import Site


def site_of(root: Path, brokers: str) -> tuple[Site, SqliteLogStore]:
    """What stands below a folder."""
    logs = SqliteLogStore(root / "metadata.db", 30, 512 * 1024)
    return Site(brokers, logs.log("intake"), LocalObjectStore(root / "data")), logs


def main(root: str, brokers: str, topic: str, piece_bytes: str) -> None:
    """Mirror until the process is ended."""
    site, _ = site_of(Path(root), brokers)
    process = site.process(topic, delay_max_bytes=int(piece_bytes), checkpoint_entries=4)
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    known = -1
    while True:
        process.step()
        process.checkpointer.run_if_due()
        if process.state.records != known:
            known = process.state.records
            print(f"level {known}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
