"""A long intake log, made quickly: entries of 20 segments over 400 partitions, an idempotent producer for
each. They are put into the database by hand, because a million appends with an fsync each would take an hour.

`python -m tests.support.log.log_filling ROOT` is the process that starts on such a log: it prints how long
that took, as JSON.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from archiver.config.groups import LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Entry
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import intake_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.sequencer import Sequencer
from tests.support.intake.intake_entries import topic_id_of

PARTITIONS = 400
SEGMENTS = 20
START_US = 1_767_323_045_000_000


def entries(seed: int) -> Iterator[bytes]:
    """A topic, a producer for each partition, then files without end."""
    chance = random.Random(seed)
    topic_id = bytes.fromhex(topic_id_of(1))

    def entry(**body: object) -> bytes:
        made = pb.IntakeEntry(format=2, id=chance.randbytes(16), **body)  # type: ignore[arg-type]
        return made.SerializeToString(deterministic=True)

    yield entry(
        topic=pb.TopicDeclared(topic_id=topic_id, name="orders", partitions=PARTITIONS, created_us=START_US)
    )
    for _ in range(PARTITIONS):
        yield entry(producer=pb.ProducerOpened(time_us=START_US))
    sequences = [0] * PARTITIONS
    now_us, number = START_US, 0
    while True:
        now_us += chance.randrange(100_000, 300_000)
        group = pb.TopicSegments(topic_id=topic_id)
        first_row = 0
        for partition in sorted((number * SEGMENTS + place) % PARTITIONS for place in range(SEGMENTS)):
            rows = chance.randrange(1, 60)
            segment = group.segments.add(
                partition=partition,
                first_row=first_row,
                rows=rows,
                raw_bytes=rows * 150,
                accept_max_us=now_us - chance.randrange(200_000),
            )
            segment.producer.producer_id, segment.producer.sequence = partition + 1, sequences[partition]
            sequences[partition] += rows
            first_row += rows
        number += 1
        key = intake_key(now_us, "01" + f"{chance.getrandbits(80):024}"[-24:])
        yield entry(
            file=pb.IntakeFile(
                key=key, size=first_row * 40, footer_sha256=chance.randbytes(32), topics=[group]
            )
        )


class LongLog:
    """One process on the log at `root`, with the settings of life, and the way to make the log longer."""

    def __init__(self, root: Path, settings: LogSettings) -> None:
        self.path = root / "metadata.db"
        self._logs = SqliteLogStore(self.path, 30, settings.entry_bytes_max)
        self.log = self._logs.log("intake")
        self.read_entries = 0
        wrapped = self.log.read

        def counted(start: int, limit: int = 1000) -> list[Entry]:
            found = wrapped(start, limit)
            self.read_entries += len(found)
            return found

        self.log.read = counted  # type: ignore[method-assign]
        self.objects = LocalObjectStore(root / "data")
        store = CheckpointStore(self.objects)
        self.sequencer = Sequencer(self.log, SystemIds(), SystemClock(), settings, store)
        self.checkpointer = Checkpointer(self.log, store, self.sequencer, settings)

    def fill(self, made: Iterator[bytes], count: int) -> None:
        """Put so many entries behind the tail, in one transaction."""
        tail = self.log.tail()
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("begin immediate")
            lines = ((tail + place, next(made)) for place in range(count))
            connection.executemany("insert into log_intake (idx, data) values (?, ?)", lines)
            connection.execute("commit")
        finally:
            connection.close()

    def metadata_bytes(self) -> int:
        """Of the metadata store: every file of it."""
        return sum(path.stat().st_size for path in self.path.parent.glob(self.path.name + "*"))

    def close(self) -> None:
        """Close the log."""
        self._logs.close()


def peak_bytes() -> int:
    """Most memory that this process ever had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main(root: str) -> None:
    """Open, load, read on, append once."""
    began_s = time.monotonic()
    opened = LongLog(Path(root), LogSettings())
    fold = opened.sequencer.refresh()
    ready_s = time.monotonic() - began_s
    report = {
        "ready_s": round(ready_s, 2),
        "read_entries": opened.read_entries,
        "peak_bytes": peak_bytes(),
        "next": fold.next_index,
    }
    opened.sequencer.tick(fold.newest_us + 1)
    print(json.dumps(report))
    opened.close()


if __name__ == "__main__":
    main(sys.argv[1])
