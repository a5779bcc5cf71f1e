"""Does a commit cost more the longer a table lives?

Measured: what a round costs after 100, 1,000 and 10,000 commits to a table that gets archives of 1, 10 or 200 partitions each time. Ours
alone: the product's committer on a SQL catalog in SQLite with its metadata on a local disk, the ledger in SQLite, all five events of a
round, and the product's limits as they are by default. Per commit: requests to the file system and bytes read and written in the metadata
folder, wall and CPU time of the commit, and of the ledger's entries beside it. A window is the 100 commits from that one on. What comes
seldom (merging manifests) may fall beside a window, so `between` says the means of everything from one window to the next. At each window
also: snapshots and manifests kept, size of the metadata file, and how long a start reads the ledger.

Machines are faster or slower from one minute to the next. So in each later window every commit to the old table is followed by one to a
young table, which is between its own first and second hundred of commits then, and times are compared with those.

Commits follow each other as fast as they can, but the snapshots are shown to the committer as old as if there were `--cadence` seconds from
one to the next, 10 s unless told otherwise, which is the fastest that a daemon commits by default: else it would keep every snapshot of
this run, because it keeps the young ones. Each archive is described by the footer of a real archive of orders; only its place, offsets and
times are counted on, because a commit never opens one.

    python -m bench.growth [--quick] [--partitions 1 10 200] [--commits 10000] [--cadence 10] [--output bench/results/growth.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.catalog.commit import CommitLimits, Committer
from archiver.catalog.iceberg import IcebergTables
from archiver.catalog.identity import TableTarget, ensure_table
from archiver.catalog.layout import StreamFields, stream_fields
from archiver.catalog.tables import Identifier, TableView
from archiver.clock import ManualClock
from archiver.events.types import DataFile
from archiver.ids import SystemIds
from archiver.jobs.bundle import bundle
from archiver.jobs.publish import Publisher
from archiver.jobs.refined import RefineOptions, RefineTopic, TaskDescriptor, WrittenFile
from archiver.jobs.task import run_bundle
from archiver.jobs.topic_setup import TopicTable, TopicWork
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.leader import Leader
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import archive_key, partition_value_of, table_prefix
from archiver.objects.place import StorePlace
from archiver.schema.descriptors import Source
from archiver.schema.state import TopicSchema, decide
from archiver.settings import ArchiveSettings, TopicSettings
from archiver.settings_groups import LogSettings
from bench import counting_io
from bench.intake_files import CLUSTER, fill_intake, plans_of
from bench.orders import descriptor_set
from bench.outcome import tell
from intake.fold import TopicState

TOPIC = "orders"
IDENTIFIER: Identifier = ("bench", "orders")
START_US = 20_000 * 86_400_000_000
ROWS = 1000
"""Offsets of an archive."""
WINDOWS = (100, 1000, 10_000)
WINDOW = 100
WANTED = {"bytes": 1.2, "requests": 1.2, "p50": 1.5}
"""How many times a later window may be the first one."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    partitions: Sequence[int]
    windows: Sequence[int]
    window: int
    cadence_s: float


@dataclass
class Costs:
    """Of some commits, one number each."""

    requests: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    commit_cpu_s: list[float] = field(default_factory=list)
    ledger_s: list[float] = field(default_factory=list)
    ledger_cpu_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Means of what adds up, middles of what a neighbour disturbs."""
        return {
            "commits": len(self.requests),
            "requests": round(statistics.mean(self.requests), 2),
            "bytes_read": round(statistics.mean(self.read)),
            "bytes_written": round(statistics.mean(self.written)),
            "p50_ms": round(1e3 * statistics.median(self.commit_s), 2),
            "p99_ms": round(1e3 * sorted(self.commit_s)[len(self.commit_s) * 99 // 100], 2),
            "cpu_p50_ms": round(1e3 * statistics.median(self.commit_cpu_s), 2),
            "cpu_mean_ms": round(1e3 * statistics.mean(self.commit_cpu_s), 2),
            "ledger_p50_ms": round(1e3 * statistics.median(self.ledger_s), 2),
            "ledger_cpu_p50_ms": round(1e3 * statistics.median(self.ledger_cpu_s), 2),
        }


class PacedTables(IcebergTables):
    """The catalog, with snapshots as old as if they had been made at the given pace."""

    def __init__(self, folder: Path, cadence_s: float, clock: ManualClock) -> None:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": f"file://{folder / 'data'}",
            "py-io-impl": counting_io.IMPLEMENTATION,
        }
        super().__init__("bench", properties, SystemIds())
        self._cadence_s = cadence_s
        self._clock = clock

    def load(self, identifier: Identifier) -> TableView | None:
        view = super().load(identifier)
        if view is None:
            return None
        now_ms = self._clock.now_us() // 1000
        newest = view.sequence_number
        aged = (replace(one, timestamp_ms=now_ms - round((newest - one.sequence_number) * self._cadence_s * 1e3)) for one in view.snapshots)
        return replace(view, snapshots=tuple(aged))


def template() -> tuple[TopicSchema, WrittenFile]:
    """A schema, and one real archive with it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        sequencer, objects, topic_id, _ = fill_intake(16 * ROWS, folder)
        schema = decide(TOPIC, (), None, Source("bench.Order", descriptor_set())).schema
        plans = plans_of(sequencer, topic_id, 1)[:1]
        topics = {topic_id: RefineTopic(topic_id, TOPIC, schema, "day")}
        task = TaskDescriptor(CLUSTER, StorePlace(f"file://{objects.root}"), 1, topics, bundle(plans, 1, 1 << 30, 64)[0], RefineOptions())
        (result,) = run_bundle(task, objects)
        assert result.error is None, result.why
        return schema, result.files[0]
    finally:
        shutil.rmtree(folder)


class Table:
    """A table, its ledger, and who archives to it."""

    def __init__(self, folder: Path, partitions: int, cadence_s: float, made: tuple[TopicSchema, WrittenFile]) -> None:
        self.partitions = partitions
        self._folder = folder
        self._cadence_s = cadence_s
        self._clock = ManualClock(START_US)
        self._schema, self._made = made
        self._ids = SystemIds()
        self._logs = SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)
        self._checkpoints = LedgerCheckpoints(LocalObjectStore(folder / "checkpoints"))
        self._leader = self._new_leader()
        self._leader.take_over()
        self._checkpointer = LedgerCheckpointer(self.control(), self._checkpoints, self._leader, LogSettings())
        self._checkpointing = Stopwatch()
        self.tables = PacedTables(folder, cadence_s, self._clock)
        state = TopicState(uuid.uuid4().hex, TOPIC, partitions, START_US)  # type: ignore[arg-type]  # a new type of str
        location = f"file://{folder / 'data' / table_prefix(state.topic_id)}"
        self._target = TableTarget(TOPIC, state.topic_id, CLUSTER, IDENTIFIER, partitions, "day", location)
        view = ensure_table(self.tables, self._target, None, self._schema.iceberg_json)
        self._fields = stream_fields(view.schema_json)
        self._leader.append(self._schema.to_entry(bytes.fromhex(state.topic_id)))
        settings = TopicSettings.model_validate(
            {"name": TOPIC, "partitions": partitions, "archive": {"kind": "iceberg", "catalog": "bench", "table": "bench.orders"}}
        )
        table = TopicTable("bench", self.tables, self._target, view.uuid)
        self._work = TopicWork(settings, ArchiveSettings(), state, self._schema, "day", table)
        self._publisher = Publisher("bench", self._leader, self._clock, self._ids)
        self._committer = Committer(self.tables, self._leader, CommitLimits(), self._clock)
        self._at = 0

    def _new_leader(self) -> Leader:
        return Leader(self.control(), self._ids, self._clock, "bench:1", LogSettings(), self._checkpoints)

    def close(self) -> None:
        """Release files."""
        self.tables.close()
        self._logs.close()

    def write(self) -> bytes:
        """The first half of a round: an archive of every partition waits for its commit; returns the id of that."""
        self._clock.advance(self._cadence_s)
        files = [self._archive(partition) for partition in range(self.partitions)]
        self._at += ROWS
        commit_id = self._publisher.round_started()
        self._publisher.files_written(commit_id, self._work, files)
        self._publisher.round_written(commit_id, [self._work])
        return commit_id

    def reader(self) -> Leader:
        """Another process's view of the ledger, nothing of it read yet."""
        return self._new_leader()

    def control(self) -> Log:
        """The ledger's log."""
        return self._logs.log("control")

    def commit(self, costs: Sequence[Costs], written: bytes | None = None) -> None:
        """One round, or what is left of the one that `write` has begun, counted into all of `costs`."""
        ledger = Stopwatch()
        with ledger:
            commit_id = written or self.write()
        before, watch = counting_io.TOTAL.copy(), Stopwatch()
        with watch:
            outcome = self._committer.commit(self._target, uuid.UUID(bytes=commit_id), self._clock.now_us())
        counted = counting_io.TOTAL.since(before)
        assert outcome is not None
        assert len(outcome.committed) == self.partitions
        assert not outcome.killed
        with ledger:
            self._publisher.table_committed(commit_id, self._work, outcome)
            self._publisher.round_settled(commit_id, [self._work])
        with self._checkpointing:
            self._checkpointer.run_if_due()
        for one in costs:
            one.requests.append(counted.requests)
            one.read.append(counted.bytes_read)
            one.written.append(counted.bytes_written)
            one.commit_s.append(watch.wall_s)
            one.commit_cpu_s.append(watch.cpu_s)
            one.ledger_s.append(ledger.wall_s)
            one.ledger_cpu_s.append(ledger.cpu_s)

    def _archive(self, partition: int) -> tuple[ArchiveFile, DataFile]:
        base, end, now_us = self._at, self._at + ROWS, self._clock.now_us()
        day = partition_value_of(now_us, "day")
        key = archive_key(self._work.state.topic_id, partition, "day", day, base, end, self._leader.epoch)
        archive = replace(
            self._made.archive, key=key, partition=partition, base=base, end=end, epoch=self._leader.epoch,
            ingest_min_us=now_us, ingest_max_us=now_us,
        )  # fmt: skip
        described = self._made.data_file
        low, high = dict(described.lower_bounds or {}), dict(described.upper_bounds or {})
        _place(self._fields, low, partition, base, now_us)
        _place(self._fields, high, partition, end - 1, now_us)
        path = f"file://{self._folder / 'data' / key}"
        day_number = now_us // 86_400_000_000
        return archive, replace(described, path=path, partition=(day_number,), record_count=ROWS, lower_bounds=low, upper_bounds=high)

    def standing(self) -> dict[str, Any]:
        """What is kept now, and how long a new process reads the ledger."""
        view = self.tables.load(IDENTIFIER)
        assert view is not None
        table: Any = view.handle
        manifests = table.metadata.current_snapshot().manifests(table.io)
        reader, watch = self._new_leader(), Stopwatch()
        with watch:
            reader.refresh()
        return {
            "snapshots": len(view.snapshots),
            "snapshot_log": len(table.metadata.snapshot_log),
            "metadata_log": len(table.metadata.metadata_log),
            "metadata_file_bytes": Path(view.metadata_location.removeprefix("file://")).stat().st_size,
            "manifests": len(manifests),
            "manifest_bytes": sum(one.manifest_length for one in manifests),
            "ledger_entries": reader.fold.next_index,
            "ledger_entries_kept": self.control().tail() - self.control().floor(),
            "checkpoints": len(self._checkpoints.indexes()),
            "checkpoint_bytes": max((item.size for item in self._checkpoints.objects.list("checkpoint/")), default=0),
            "checkpoints_cpu_s": round(self._checkpointing.cpu_s, 3),
            "ledger_bytes": sum(path.stat().st_size for path in self._folder.glob("metadata.db*")),
            "ledger_start_s": round(watch.wall_s, 3),
            "ledger_start_cpu_s": round(watch.cpu_s, 3),
        }


class Stopwatch:
    """Adds up wall time, and CPU time of all threads."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        self.wall_s += time.perf_counter() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


def _place(fields: StreamFields, bounds: dict[int, bytes], partition: int, offset: int, time_us: int) -> None:
    bounds[fields.partition] = struct.pack("<i", partition)
    bounds[fields.offset] = struct.pack("<q", offset)
    bounds[fields.ingest_timestamp] = struct.pack("<q", time_us)


@contextmanager
def new_table(partitions: int, sizes: Sizes, made: tuple[TopicSchema, WrittenFile]) -> Iterator[Table]:
    """A table in a folder of its own, which goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        table = Table(folder, partitions, sizes.cadence_s, made)
        yield table
        table.close()
    finally:
        shutil.rmtree(folder)


def run(partitions: int, sizes: Sizes, made: tuple[TopicSchema, WrittenFile]) -> dict[str, Any]:
    """One table, from its first commit to the last window."""
    windows: dict[int, Any] = {}
    with new_table(partitions, sizes, made) as table:
        done, between = 0, Costs()
        for start in sizes.windows:
            for _ in range(done, start):
                table.commit([between])
            inside, young = Costs(), Costs()
            if start == sizes.windows[0]:
                for _ in range(sizes.window):
                    table.commit([inside, between])
                young = inside
            else:
                with new_table(partitions, sizes, made) as beside:
                    for _ in range(sizes.windows[0]):
                        beside.commit([])
                    for _ in range(sizes.window):
                        table.commit([inside, between])
                        beside.commit([young])
            done = start + sizes.window
            print(f"{partitions} partitions, {done} commits, {inside.figures()}, young {young.figures()}", file=sys.stderr, flush=True)
            windows[start] = {"window": inside.figures(), "young": young.figures(), "between": between.figures(), "then": table.standing()}
            between = Costs()
    return {"partitions": partitions, "windows": windows, "growth": growth(windows)}


def growth(windows: dict[int, Any]) -> dict[str, Any]:
    """How many times that of a young table each number came to, in the worst of the later windows, and whether that is what was wanted:
    sizes against the first window, times against the young table of the same minutes.
    """
    first = next(iter(windows.values()))["window"]
    later = list(windows.values())[1:]
    costs = [one[kind] for one in later for kind in ("window", "between")]
    times = {
        "bytes": max(_bytes(one) for one in costs) / _bytes(first),
        "requests": max(one["requests"] for one in costs) / first["requests"],
        "p50": max(one["window"]["p50_ms"] / one["young"]["p50_ms"] for one in later),
        "cpu_p50": max(one["window"]["cpu_p50_ms"] / one["young"]["cpu_p50_ms"] for one in later),
        "ledger_cpu_p50": max(one["window"]["ledger_cpu_p50_ms"] / one["young"]["ledger_cpu_p50_ms"] for one in later),
    }
    shown: dict[str, Any] = {name: round(value, 3) for name, value in times.items()}
    return shown | {"reached": all(times[name] <= limit for name, limit in WANTED.items())}


def _bytes(figures: dict[str, float]) -> float:
    return figures["bytes_read"] + figures["bytes_written"]


def measure(sizes: Sizes) -> dict[str, Any]:
    """The result document."""
    made = template()
    return {
        "what": "what a round costs after so many commits to one table, and how many times the first window the worst later one is",
        "cadence_s": sizes.cadence_s,
        "window_commits": sizes.window,
        "wanted": WANTED,
        "tables": [run(partitions, sizes, made) for partitions in sizes.partitions],
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyiceberg": version("pyiceberg")},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few commits: shows that it works, the numbers mean little")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 10, 200])
    parser.add_argument("--commits", type=int, default=WINDOWS[-1], help="where the last window begins")
    parser.add_argument("--cadence", type=float, default=10.0, help="seconds from a commit to the next, as the snapshots show them")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    windows = [start for start in WINDOWS if start < options.commits] + [options.commits]
    sizes = Sizes(options.partitions, windows, WINDOW, options.cadence)
    if options.quick:
        sizes = Sizes([1, 3], [5, 27], 3, options.cadence)
    tell(measure(sizes), options.output)


if __name__ == "__main__":
    main()
