"""A table with everything in its folder, on real files and a real catalog, and external changes of it: for
tests of what cleaning may delete.

Judges by other means than the cleaner: pyiceberg's own reading of metadata says what is named, and the
listing what is there.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.table import Table

from archiver.catalog.commit import Committer
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Tables
from archiver.config.groups import CleanupSettings, LogSettings
from archiver.config.settings import TopicSettings
from archiver.config.topics import TopicArchiveSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import archive_key, data_prefix, metadata_prefix, parse_archive_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds, new_uuid
from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from reconcile.snapshot.retention_floor import RetentionFloorReader
from reconcile.vacuum.clean import CleanRun, ReplacedArchives
from reconcile.vacuum.report import CleanReport
from reconcile.vacuum.tables import TableFolders
from tests.support.catalog.foreign_hands import expire_all_but_current, roll_back, swap_files, view_of
from tests.support.catalog.tables import (
    CLUSTER_ID,
    IDENTIFIER,
    TOPIC_ID,
    Bench,
    data_file,
    log_limits,
    write_rows,
)
from tests.support.log.memory_log import LeasePlace, MemoryLease, MemoryLogStore

PARTITIONS = 2
HOUR_S = 3600
RETENTION_S = 6 * HOUR_S
OLD_S = 30 * 86400
METADATA_LEFT_MAX = 24
"""What the commits of the last run or two may leave behind."""


class TableFolder:
    """One topic's table, its folder, and the processes that work on them."""

    def __init__(
        self, folder: Path, tables: Tables, deletes_max: int = 1000, retention_s: float | None = RETENTION_S
    ) -> None:
        self.bench = Bench(folder)
        self.tables = tables
        self.objects = LocalObjectStore(folder)
        self.clock = self.bench.clock
        self.clock.advance(
            10 * 365 * 86400
        )  # pyiceberg stamps snapshots by the system's clock; by this one they are old
        self.place = LeasePlace()
        self.deletes_max = deletes_max
        self.numbers = 0
        archive = TopicArchiveSettings(kind="iceberg", catalog="local", table=".".join(IDENTIFIER))
        self.settings = TopicSettings(
            name="flights", partitions=PARTITIONS, retention=retention_s, archive=archive
        )
        self.log = MemoryLogStore(1 << 20).log("intake")
        self.leader = self.bench.leader()
        self.is_settled = True
        """The leader has inspected the table since it took over."""
        self.bench.table(tables)

    # what the archiver does

    def lead_again(self) -> None:
        """Another process takes over."""
        self._take_over()
        self._settle()

    def _take_over(self) -> None:
        self.numbers += 1
        self.leader = self.bench.leader(f"leader{self.numbers}")
        self.is_settled = False

    def _settle(self) -> None:
        self.bench.settle(self.tables, self.leader)
        self.is_settled = True

    def _lead(self) -> None:
        """Take over again if a cleaning run has begun an epoch."""
        if self.leader.fold.epoch > self.leader.epoch:
            self._take_over()

    def write(self, partition: int, rows: int) -> None:
        """DATA_WRITTEN for one archive more, ingested now."""
        self._lead()
        base = self.leader.fold.topic(TOPIC_ID).planned_to(partition)
        self.bench.write(self.leader, view_of(self.tables), (partition, base, base + rows))

    def commit(self) -> None:
        """Bring what is pending into the table; at most three snapshots stay."""
        self._lead()
        if not self.is_settled:
            self._settle()
        outcome = self._committer(self.leader).commit(self.bench.target, new_uuid(self.bench.ids))
        if outcome is not None and outcome.news:
            self.bench.tell(self.leader, outcome)

    def stray(self, partition: int, rows: int) -> str:
        """An archive that its writer, an older leader, never appended to the ledger."""
        base = max(0, self.leader.fold.topic(TOPIC_ID).planned_to(partition) - 1)
        key = archive_key(TOPIC_ID, partition, "day", 20_000, base, base + rows, self.leader.epoch)
        path = self.bench.folder / key
        if not path.exists():
            write_rows(path, "row", partition, range(base, base + rows), view_of(self.tables).schema_json)
        return key

    def _committer(self, leader: Leader) -> Committer:
        return Committer(
            self.tables,
            leader,
            CommitLimits(attempts_max=4, backoff_s=0.01, snapshots_max=3, snapshots_age_s=0),
            self.clock,
        )

    def cleaning(self) -> CleanRun:
        """Cleaning by a process of its own."""
        self.numbers += 1
        leader = Leader(
            self.bench.log,
            SeededIds(1000 + self.numbers),
            self.clock,
            f"cleaner{self.numbers}:1",
            log_limits(),
        )
        settings = (self.settings,)

        def tables(_catalog: str) -> Tables:
            return self.tables

        return CleanRun(
            objects=self.objects,
            sequencer=Sequencer(self.log, SeededIds(5000 + self.numbers), self.clock, LogSettings()),
            intake=self.intake,
            leadership=Leadership(leader, MemoryLease(f"cleaner{self.numbers}:1", self.place)),
            lines=RetentionFloorReader(self.objects, CLUSTER_ID, tables, settings).read,
            superseded=lambda: (),
            replaced=ReplacedArchives(tables, settings).keys,
            folders=TableFolders(
                self.objects,
                CLUSTER_ID,
                leader,
                tables,
                lambda _: self._committer(leader),
                settings,
                SeededIds(9000 + self.numbers),
            ),
            settings=CleanupSettings(grace=HOUR_S, deletes_max=self.deletes_max),
            clock=self.clock,
            progress=lambda _: None,
        )

    def clean(self, *, dry_run: bool = False) -> CleanReport:
        """One run; the files are a month old by then, so that no age protects them."""
        self.make_old()
        report = self.cleaning().run(dry_run=dry_run)
        if not dry_run:
            self.leader.refresh()
        return report

    def clean_failing(self, points: str) -> None:
        """A run that fails, or loses a reply, at these points."""
        failpoints.arm(points)
        try:
            self.clean()
        except (RetryLater, OutcomeUnknown):
            pass
        finally:
            failpoints.arm("")

    def make_old(self) -> None:
        """Everything in the folder was stored a month ago."""
        then = self.clock.now_us() / 1e6 - OLD_S
        for path in self.bench.folder.rglob("*"):
            if path.is_file() and path.suffix != ".db":
                os.utime(path, (then, then))

    def intake(self) -> Backlog:
        fold = IntakeFold()
        declared = pb.TopicDeclared(
            topic_id=bytes.fromhex(TOPIC_ID), name="flights", partitions=PARTITIONS, created_us=1
        )
        fold.apply(0, pb.IntakeEntry(format=1, id=bytes(16), topic=declared).SerializeToString())
        return Backlog(fold)

    # what others do

    def compact(self) -> None:
        """An external client rewrites all files, into one for each partition, in the table's folder."""
        view = view_of(self.tables)
        ranges: dict[int, tuple[int, int]] = {}
        for file in self.tables.live_files(view):
            assert (
                file.partition_min is not None and file.offset_min is not None and file.offset_max is not None
            )
            low, high = ranges.get(file.partition_min, (file.offset_min, file.offset_max + 1))
            ranges[file.partition_min] = (min(low, file.offset_min), max(high, file.offset_max + 1))
        added = []
        for partition, (base, end) in ranges.items():
            self.numbers += 1
            path = (
                self.bench.folder
                / data_prefix(TOPIC_ID)
                / "ingest_day=2024-10-04"
                / f"compacted-{self.numbers}.parquet"
            )
            size = write_rows(path, "row", partition, range(base, end), view.schema_json)
            one = data_file(f"file:{path}", stream_fields(view.schema_json), partition, base, end, size)
            added.append(one)
        if added:
            swap_files(self.tables, view, added, "replace")

    def expire(self) -> None:
        expire_all_but_current(self.tables)

    def roll_back(self, number: int) -> None:
        """To some ancestor; `roll_forward` makes good for it."""
        view = view_of(self.tables)
        ancestors = view.lineage()[1:]
        if ancestors:
            roll_back(self.tables, ancestors[number % len(ancestors)].snapshot_id)

    def roll_forward(self) -> None:
        """The newest snapshot is current again."""
        view = view_of(self.tables)
        newest = max(view.snapshots, key=lambda item: item.sequence_number, default=None)
        if newest is not None and newest.snapshot_id != view.snapshot_id:
            table = view.handle
            assert isinstance(table, Table)
            with table.manage_snapshots() as manage:
                manage.set_current_snapshot(newest.snapshot_id)

    # what there is

    def ledger(self) -> LedgerFold:
        reader = Leader(self.bench.log, SeededIds(1), self.clock, "reader:1", log_limits())
        reader.refresh()
        return reader.fold

    def named(self) -> set[str]:
        """Files that the metadata or a retained snapshot names, as pyiceberg reads it."""
        table = view_of(self.tables).handle
        assert isinstance(table, Table)
        found = {table.metadata_location, *(item.metadata_file for item in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {
                    entry.data_file.file_path
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                }
        return {str(Path(path.removeprefix("file://").removeprefix("file:"))) for path in found}

    def stored(self) -> dict[str, set[str]]:
        """Paths of the objects in the folder: data and metadata."""
        return {
            what: {str(self.bench.folder / info.key) for info in self.objects.list(prefix)}
            for what, prefix in (("data", data_prefix(TOPIC_ID)), ("metadata", metadata_prefix(TOPIC_ID)))
        }

    def uncovered(self, without: str = "") -> list[tuple[int, int]]:
        """(partition, offset) between start and watermark that no archive holds for a stream, when the path
        `without` is not there."""
        ledger = self.ledger()
        topic = ledger.topic(TOPIC_ID)
        held: set[tuple[int, int]] = set()
        for info in self.objects.list(data_prefix(TOPIC_ID)):
            parsed = parse_archive_key(info.key)
            unread = info.key in topic.unread or info.key in ledger.condemned
            if parsed is not None and not unread and str(self.bench.folder / info.key) != without:
                held |= {(parsed.partition, offset) for offset in range(parsed.base, parsed.end)}
        due = [
            (one, offset)
            for one in range(PARTITIONS)
            for offset in range(topic.start(one), topic.watermark(one))
        ]
        return [place for place in due if place not in held]

    def check(self) -> None:
        """Nothing that is named is gone, and streams find every record."""
        gone = sorted(path for path in self.named() if not Path(path).exists())
        assert gone == [], "something named is gone"
        assert self.uncovered() == [], "a stream misses records"

    def settle_down(self) -> None:
        """All processes do what is left to do, often enough."""
        self.roll_forward()
        for _ in range(3):
            self.lead_again()
            self.write(0, 1)
            self.commit()
            for _ in range(2):
                self.clock.advance(HOUR_S + 1)
                report = self.clean()
                assert (report.error, report.findings, report.doubted) == (None, [], False), report.to_json()
                self.check()

    def check_nothing_is_left(self) -> None:
        """After `settle_down`, the next run marks or deletes every unreferenced object, except archives that
        streams need."""
        before = {what: paths - self.named() for what, paths in self.stored().items()}
        self.clock.advance(60)  # less than the retention of the newest archive
        self.clean()
        self.check()
        condemned = {str(self.bench.folder / key) for key in self.ledger().condemned}
        after = {what: (before[what] & paths) - condemned for what, paths in self.stored().items()}
        assert sorted(after["metadata"]) == []
        for path in sorted(after["data"]):
            assert self.uncovered(without=path), f"{path} is named by nobody, and no stream needs it"
        assert len(before["metadata"]) <= METADATA_LEFT_MAX, (
            "what was condemned is deleted once the table has moved"
        )
