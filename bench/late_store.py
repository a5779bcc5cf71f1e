"""Measures what store latency costs a refinement task, and how much read-ahead and background
uploads recover.

One task in this process, without Spark, refines a topic. It has 200 partitions with few records of
each in every intake file, or 4 partitions. One variant has `archive.reads_max` and
`archive.uploads_max` 0, so the task waits for each intake file and archive. The other has the
settings for a bucket. The store is a local folder that delays opening an intake file and the
response to an archive's create by 0, 10 or 30 ms. This simulates a distant bucket, except that
further reads of an open file are as fast as the disk. Repetitions alternate. Ratios are of the same
repetition, by wall time and by CPU.

    python -m bench.late_store [--quick] [--repetitions 3] [--output bench/results/late_store.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from archiver.config.topics import READS_OF_A_BUCKET
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import RefineJob, RefineOptions, RefineTopic, TaskDescriptor
from archiver.schema.evolution.state import decide
from bench.intake_files import CLUSTER, ZSTD_LEVEL, fill_intake, plans_of
from bench.outcome import tell
from bench.shapes import SHAPES
from bench.writer import spread

LATE_MS = (0, 10, 30)
PARTITIONS = (200, 4)
RECORDS = 2_000_000
AHEAD = RefineOptions(zstd_level=ZSTD_LEVEL, reads_max=READS_OF_A_BUCKET)
WAITING = RefineOptions(zstd_level=ZSTD_LEVEL, reads_max=0, uploads_max=0)


class LateStore:
    """A store that delays its responses."""

    def __init__(self, store: LocalObjectStore, late_s: float) -> None:
        self._store = store
        self._late_s = late_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open_input(self, key: str) -> pa.NativeFile:
        """Open the object after the delay."""
        time.sleep(self._late_s)
        return self._store.open_input(key)

    def create_from_file(self, key: str, path: Path) -> None:
        """Store the object at once and return after the delay."""
        self._store.create_from_file(key, path)
        time.sleep(self._late_s)


@dataclass(frozen=True)
class Work:
    """One task over the same records for every run."""

    store: LocalObjectStore
    task: TaskDescriptor

    @classmethod
    def of(cls, records: int, partitions: int, folder: Path) -> Work:
        """Create intake files in the folder and a task that refines them."""
        shape = SHAPES["nested"]
        sequencer, objects, topic_id, _ = fill_intake(records, folder, shape.make, partitions)
        topics = {
            topic_id: RefineTopic(topic_id, "orders", decide("orders", (), None, shape.source).schema, "day")
        }
        plans = plans_of(sequencer, topic_id, 1)
        (task,) = RefineJob(
            CLUSTER, StorePlace(f"file://{objects.root}"), 1, topics, [tuple(plans)]
        ).descriptors()
        return cls(objects, task)

    @property
    def files(self) -> int:
        """Number of intake files."""
        return sum(1 for _ in self.store.list("intake/"))

    @property
    def archives(self) -> int:
        """Number of archives; each plan writes one."""
        return len(self.task.plans)

    def run(self, late_ms: int, options: RefineOptions) -> tuple[float, float]:
        """Return wall and CPU seconds of one run."""
        task = replace(self.task, options=options)
        cpu_s, clock_s = time.process_time(), time.perf_counter()
        results = list(run_bundle(task, LateStore(self.store, late_ms / 1000)))
        taken = time.perf_counter() - clock_s, time.process_time() - cpu_s
        assert len(results) == len(task.plans)
        assert all(result.error is None for result in results), results
        for result in results:
            for file in result.files:
                self.store.delete(file.archive.key)
        return taken


def case(work: Work, late_ms: int, repetitions: int) -> dict[str, Any]:
    """Measure one store latency, alternating both variants."""
    waiting: list[tuple[float, float]] = []
    ahead: list[tuple[float, float]] = []
    for repetition in range(-1, repetitions):
        for label, options, found in (("waiting", WAITING, waiting), ("ahead", AHEAD, ahead)):
            clock_s, cpu_s = work.run(late_ms, options)
            print(
                f"{work.archives} archives, {late_ms} ms, {label}: {clock_s:.2f} s, {cpu_s:.2f} s of CPU",
                file=sys.stderr,
                flush=True,
            )
            if repetition >= 0:  # the first run warms up
                found.append((clock_s, cpu_s))
    pairs = list(zip(waiting, ahead, strict=True))
    return {
        "late_ms": late_ms,
        "waiting_s": spread([one[0] for one, _ in pairs]),
        "ahead_s": spread([other[0] for _, other in pairs]),
        "clock_ratio": spread([one[0] / other[0] for one, other in pairs]),
        "cpu_ratio": spread([one[1] / other[1] for one, other in pairs]),
    }


def measure(
    records: int, partitions: Sequence[int], repetitions: int, late_ms: Sequence[int]
) -> dict[str, Any]:
    """The result document."""
    topics: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-late-store-") as folder:
        for count in partitions:
            work = Work.of(records, count, Path(folder) / str(count))
            cases = [case(work, late, repetitions) for late in late_ms]
            topics.append(
                {"partitions": count, "archives": work.archives, "intake_files": work.files, "cases": cases}
            )
    return {
        "what": "a task with a store that answers late: everything waited for, by intake read ahead and "
        "archives stored beside the work",
        "records": records,
        "repetitions": repetitions,
        "reads_max": AHEAD.reads_max,
        "uploads_max": AHEAD.uploads_max,
        "topics": topics,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyarrow": version("pyarrow")},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a few archives: a smoke test, the figures mean little"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document = (
        measure(8_000, (20,), 1, LATE_MS[-1:])
        if options.quick
        else measure(RECORDS, PARTITIONS, options.repetitions, LATE_MS)
    )
    tell(document, options.output)


if __name__ == "__main__":
    main()
