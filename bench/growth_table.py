"""Builds a table with its ledger that gets archives round by round, for bench/growth.py and other
benches.

It has the committer on a SQL catalog in SQLite with metadata on a local disk. The ledger is in
SQLite with its checkpoints and all five events of a round. It also has a daemon's leadership and
the product's default limits. Each archive is described by the footer of one real archive of orders;
only its path, offsets and times differ. A commit never opens an archive.

A *whole* table also has what planning, a restart and an audit read. These are the intake log in
SQLite with the records of each round, its checkpoints and archived log segments. Each archive has
an object, which is a link to the one real archive.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archiver.catalog.commit import Committer
from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.identity import TableTarget, ensure_table
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import StreamFields, stream_fields
from archiver.catalog.tables import Identifier, TableView
from archiver.config.groups import LogSettings
from archiver.config.settings import ArchiveSettings, TopicSettings
from archiver.events.types import DataFile
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.paths import (
    archive_key,
    checkpoint_prefix,
    intake_key,
    partition_value_of,
    table_prefix,
)
from archiver.publish.events import RoundEvents
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan, bundle
from archiver.refine.planner import RoundLimits, choose_plans, known_gaps, paths_used
from archiver.refine.prepare_topic import TopicTable, TopicWork
from archiver.refine.task import RefineOptions, RefineTopic, TaskDescriptor, WrittenFile
from archiver.runtime.clock import Clock, ManualClock
from archiver.runtime.ids import SystemIds, new_ulid
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.protobuf.descriptors import Source
from bench import counting_io
from bench.intake_files import CLUSTER, fill_intake, plans_of
from bench.orders import descriptor_set
from intake.format import PlacedSegment
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.sequencer import Sequencer
from tests.support.log.memory_log import MemoryLease

TOPIC = "orders"
IDENTIFIER: Identifier = ("bench", "orders")
START_US = 20_000 * 86_400_000_000
ROWS = 1000
"""Offsets per archive."""
CADENCE_S = 10.0
"""Seconds between commits: the shortest interval of a daemon with default settings."""
MEMORY_BYTES = 32 * 2**30
"""Memory of the planning machine: enough to archive 500 partitions at a time."""
LINKS_MAX = 30_000
"""Hard links to one file; file systems limit them."""


@dataclass
class Costs:
    """Costs of several commits, one number each."""

    requests: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    commit_cpu_s: list[float] = field(default_factory=list)
    ledger_s: list[float] = field(default_factory=list)
    ledger_cpu_s: list[float] = field(default_factory=list)
    look_cpu_s: list[float] = field(default_factory=list)
    plan_cpu_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return means of counts and bytes, and medians of times, which other load on the machine
        disturbs.
        """
        found = {
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
        for name, seconds in (("look_cpu_p50_ms", self.look_cpu_s), ("plan_cpu_p50_ms", self.plan_cpu_s)):
            if seconds:
                found[name] = round(1e3 * statistics.median(seconds), 2)
        return found


class Stopwatch:
    """Accumulates wall seconds and the CPU seconds of all threads."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        self.wall_s += time.perf_counter() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


def catalog_properties(folder: Path) -> dict[str, str]:
    """Return the properties of the catalog in that folder."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'data'}",
    }


def topic_settings(partitions: int) -> TopicSettings:
    """Return the settings of the topic."""
    archive = {"kind": "iceberg", "catalog": "bench", "table": "bench.orders"}
    return TopicSettings.model_validate({"name": TOPIC, "partitions": partitions, "archive": archive})


def open_logs(folder: Path) -> SqliteLogStore:
    """Open the metadata store with default limits."""
    return SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)


def new_leader(log: Log, objects: LocalObjectStore, clock: Clock) -> Leader:
    """Return a leader on the ledger that has read nothing yet."""
    return Leader(log, SystemIds(), clock, "bench:1", LogSettings(), LedgerCheckpoints(objects))


def new_sequencer(log: Log, objects: LocalObjectStore, clock: Clock) -> Sequencer:
    """Return a sequencer on the intake log that has read nothing yet."""
    return Sequencer(log, SystemIds(), clock, LogSettings(), CheckpointStore(objects))


class PacedTables(IcebergTables):
    """A catalog whose snapshots have ages as if they were made at the given pace."""

    def __init__(self, folder: Path, cadence_s: float, clock: ManualClock) -> None:
        properties = catalog_properties(folder) | {"py-io-impl": counting_io.IMPLEMENTATION}
        super().__init__("bench", properties, SystemIds())
        self._cadence_s = cadence_s
        self._clock = clock

    def load(self, identifier: Identifier) -> TableView | None:
        view = super().load(identifier)
        if view is None:
            return None
        now_ms = self._clock.now_us() // 1000
        newest = view.sequence_number
        aged = (
            replace(one, timestamp_ms=now_ms - round((newest - one.sequence_number) * self._cadence_s * 1e3))
            for one in view.snapshots
        )
        return replace(view, snapshots=tuple(aged))


@dataclass(frozen=True)
class Template:
    """A schema and one real archive of it."""

    schema: TopicSchema
    file: WrittenFile
    data: bytes
    """Bytes of the archive."""


def template() -> Template:
    """Write orders through the product's writer and refine one archive of them."""
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        sequencer, objects, topic_id, _ = fill_intake(16 * ROWS, folder)
        schema = decide(TOPIC, (), None, Source("bench.Order", descriptor_set())).schema
        plans = plans_of(sequencer, topic_id, 1)[:1]
        topics = {topic_id: RefineTopic(topic_id, TOPIC, schema, "day")}
        task = TaskDescriptor(
            CLUSTER,
            StorePlace(f"file://{objects.root}"),
            1,
            topics,
            bundle(plans, 1, 1 << 30, 64)[0],
            RefineOptions(),
        )
        (result,) = run_bundle(task, objects)
        assert result.error is None, result.why
        file = result.files[0]
        return Template(schema, file, objects.read(file.archive.key))
    finally:
        shutil.rmtree(folder)


class Objects:
    """Creates an object for each archive as a hard link to a real one."""

    def __init__(self, root: Path, data: bytes) -> None:
        self._root = root
        self._data = data
        self._made = 0
        self._from = root
        self._folders: set[Path] = set()

    def link(self, key: str) -> None:
        """Create the object of that key."""
        if self._made % LINKS_MAX == 0:
            self._from = self._root.parent / f"archive-{self._made}.parquet"
            self._from.write_bytes(self._data)
        path = self._root / key
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)
        os.link(self._from, path)
        self._made += 1


class Table:
    """A table, its ledger, and the components that archive to it."""

    def __init__(self, folder: Path, partitions: int, made: Template, cadence_s: float, whole: bool) -> None:
        self.partitions = partitions
        self.folder = folder
        self.whole = whole
        self._cadence_s = cadence_s
        self._clock = ManualClock(START_US)
        self._made = made
        self._ids = SystemIds()
        self._logs = open_logs(folder)
        self._objects = LocalObjectStore(folder / "data")
        self._links = Objects(folder / "data", made.data)
        intake_log = self._logs.log("intake")
        self._sequencer = new_sequencer(intake_log, self._objects, self._clock)
        self._shelving = Checkpointer(
            intake_log, CheckpointStore(self._objects), self._sequencer, LogSettings()
        )
        state = self._sequencer.declare_topic(TOPIC, partitions)
        self._checkpoints = LedgerCheckpoints(self._objects)
        self._leader = new_leader(self.control(), self._objects, self._clock)
        self._leadership = Leadership(self._leader, MemoryLease("bench:1"), lasting=True, clock=self._clock)
        self._leadership.lead()
        self._checkpointer = LedgerCheckpointer(
            self.control(), self._checkpoints, self._leader, LogSettings()
        )
        self._checkpointing = Stopwatch()
        self.tables = PacedTables(folder, cadence_s, self._clock)
        location = f"file://{folder / 'data' / table_prefix(state.topic_id)}"
        self._target = TableTarget(TOPIC, state.topic_id, CLUSTER, IDENTIFIER, partitions, "day", location)
        view = ensure_table(self.tables, self._target, None, made.schema.iceberg_json)
        self._fields = stream_fields(view.schema_json)
        self._leader.append(made.schema.to_entry(bytes.fromhex(state.topic_id)))
        table = TopicTable("bench", self.tables, self._target, view.uuid)
        self._work = TopicWork(
            topic_settings(partitions), ArchiveSettings(), state, made.schema, "day", table
        )
        self._publisher = RoundEvents("bench", self._leader, self._clock, self._ids)
        self._committer = Committer(self.tables, self._leader, CommitLimits(), self._clock)
        self._at = 0

    def close(self) -> None:
        """Close the catalog and the logs."""
        self.tables.close()
        self._logs.close()

    def arrive(self) -> None:
        """Append an intake file with the records for one archive of each partition."""
        now_us, topic_id, size = (
            self._clock.now_us(),
            self._work.state.topic_id,
            self._made.file.archive.raw_bytes,
        )
        placed = [
            PlacedSegment(topic_id, number, number, 0, ROWS, size, now_us)
            for number in range(self.partitions)
        ]
        self._sequencer.append_file(
            intake_key(now_us, new_ulid(self._ids, now_us)), size * self.partitions, bytes(32), placed
        )
        self._shelving.run_if_due()

    def plan(self) -> list[Plan]:
        """Return the plans of the next round, as a round computes them."""
        fold, intake = self._leader.fold, self._sequencer.backlog()
        limits = RoundLimits(MEMORY_BYTES, ArchiveSettings().round_bytes_max, everything=True)
        planned = choose_plans(
            [self._work], intake, fold, fold.epoch, self._clock.now_us(), limits, frozenset()
        )
        assert not planned.halted
        assert not paths_used(fold, planned.plans)
        return planned.plans

    def look(self) -> None:
        """Check the table as a round does before it plans (rule T1)."""
        outcome = self._committer.settle(
            self._target, known_gaps(self._sequencer.backlog(), self._work.state.topic_id)
        )
        assert outcome is None, "the ledger and the table differ"

    def write(self) -> bytes:
        """Run the first half of a round and return its commit id. An archive of every partition
        then waits for its commit.
        """
        self._clock.advance(self._cadence_s)
        files = [self._archive(partition) for partition in range(self.partitions)]
        self._at += ROWS
        commit_id = self._publisher.round_started()
        self._publisher.files_written(commit_id, self._work, files)
        self._publisher.round_written(commit_id, [self._work])
        return commit_id

    def reader(self) -> Leader:
        """Return another process's view of the ledger that has read nothing yet."""
        return new_leader(self.control(), self._objects, self._clock)

    def control(self) -> Log:
        """Return the ledger's log."""
        return self._logs.log("control")

    def commit(self, costs: Sequence[Costs], written: bytes | None = None, *, closely: bool = False) -> None:
        """Run one round, or the rest of the round that `write` began, and add it to all of `costs`.

        `closely` also measures planning and the check of the table; the commit does not need them
        here.
        """
        if self.whole:
            self.arrive()
        if written is None:
            self._leadership.lead()
        planning, looking, ledger = Stopwatch(), Stopwatch(), Stopwatch()
        if closely:
            with looking:
                self.look()
            with planning:
                plans = self.plan()
            assert [(plan.base, plan.end) for plan in plans] == [
                (self._at, self._at + ROWS)
            ] * self.partitions
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
            if closely:
                one.look_cpu_s.append(looking.cpu_s)
                one.plan_cpu_s.append(planning.cpu_s)

    def _archive(self, partition: int) -> tuple[ArchiveFile, DataFile]:
        base, end, now_us = self._at, self._at + ROWS, self._clock.now_us()
        day = partition_value_of(now_us, "day")
        key = archive_key(self._work.state.topic_id, partition, "day", day, base, end, self._leader.epoch)
        if self.whole:
            self._links.link(key)
        archive = replace(
            self._made.file.archive,
            key=key,
            partition=partition,
            base=base,
            end=end,
            epoch=self._leader.epoch,
            ingest_min_us=now_us,
            ingest_max_us=now_us,
        )
        described = self._made.file.data_file
        low, high = dict(described.lower_bounds or {}), dict(described.upper_bounds or {})
        _place(self._fields, low, partition, base, now_us)
        _place(self._fields, high, partition, end - 1, now_us)
        path = f"file://{self.folder / 'data' / key}"
        day_number = now_us // 86_400_000_000
        return archive, replace(
            described,
            path=path,
            partition=(day_number,),
            record_count=ROWS,
            lower_bounds=low,
            upper_bounds=high,
        )

    def standing(self) -> dict[str, Any]:
        """Return the sizes of the retained state."""
        view = self.tables.load(IDENTIFIER)
        assert view is not None
        table: Any = view.handle
        manifests = table.metadata.current_snapshot().manifests(table.io)
        entries = sum((one.existing_files_count or 0) + (one.added_files_count or 0) for one in manifests)
        fold, log = self._leader.fold, self.control()
        return {
            "archives": fold.topic(self._work.state.topic_id).totals.files,
            "snapshots": len(view.snapshots),
            "snapshot_log": len(table.metadata.snapshot_log),
            "metadata_log": len(table.metadata.metadata_log),
            "metadata_file_bytes": Path(view.metadata_location.removeprefix("file://")).stat().st_size,
            "manifests": len(manifests),
            "manifest_bytes": sum(one.manifest_length for one in manifests),
            "manifest_entries": entries,
            "ledger_entries": fold.next_index,
            "ledger_entries_kept": log.tail() - log.floor(),
            "ledger_epoch": fold.epoch,
            "checkpoints": len(self._checkpoints.indexes()),
            "checkpoint_bytes": max(
                (item.size for item in self._objects.list(checkpoint_prefix("control"))), default=0
            ),
            "checkpoints_cpu_s": round(self._checkpointing.cpu_s, 3),
            "metadata_store_bytes": sum(path.stat().st_size for path in self.folder.glob("metadata.db*")),
        }


def _place(stream: StreamFields, bounds: dict[int, bytes], partition: int, offset: int, time_us: int) -> None:
    bounds[stream.partition] = struct.pack("<i", partition)
    bounds[stream.offset] = struct.pack("<q", offset)
    bounds[stream.ingest_timestamp] = struct.pack("<q", time_us)


@contextmanager
def new_table(
    partitions: int, made: Template, cadence_s: float = CADENCE_S, *, whole: bool = False
) -> Iterator[Table]:
    """Yield a table in a new folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        table = Table(folder, partitions, made, cadence_s, whole)
        yield table
        table.close()
    finally:
        shutil.rmtree(folder)
