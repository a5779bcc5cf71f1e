"""The reconciler compares one snapshot of a table: one load serves the whole snapshot of a topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archiver.catalog.tables import Identifier, Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.leader import Leader
from archiver.objects.local import LocalObjectStore
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import SeededIds, new_uuid
from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from reconcile.findings.diff import differences
from reconcile.snapshot.collector import SnapshotCollector
from reconcile.snapshot.topic_snapshot import FolderSnapshot, TopicSnapshot
from tests.support.catalog.foreign_hands import view_of
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import CLUSTER_ID, TOPIC_ID, Bench, FaultyTables

ICEBERG = {"kind": "iceberg", "catalog": "local", "table": "demo.flights"}


class OtherWriter(FaultyTables):
    """Simulates another process that writes to the table directly after the first load."""

    def __init__(self, tables: Tables, write: Callable[[], object]) -> None:
        super().__init__(tables)
        self.loads = 0
        self._write = write

    def load(self, identifier: Identifier) -> TableView | None:
        view = super().load(identifier)
        self.loads += 1
        if self.loads == 1:
            self._write()
        return view


def picture(bench: Bench, leader: Leader, tables: Tables) -> TopicSnapshot:
    """What the reconciler collects of the bench's topic."""
    fold = IntakeFold()
    declared = pb.TopicDeclared(topic_id=bytes.fromhex(TOPIC_ID), name="flights", partitions=2, created_us=1)
    fold.apply(0, pb.IntakeEntry(format=1, id=bytes(16), topic=declared).SerializeToString())
    settings = TopicSettings.model_validate({"name": "flights", "partitions": 2, "archive": ICEBERG})
    collector = SnapshotCollector(
        objects=LocalObjectStore(bench.folder),
        cluster_id=CLUSTER_ID,
        tables=lambda _: tables,
        topics=[settings],
        clock=bench.clock,
        holder=lambda: None,
        owner="a:1",
        grace_s=3600.0,
        commit_s=2.0,
        silence_s=60.0,
    )
    views = collector.collect(lambda: leader.fold, lambda: Backlog(fold), "flights")
    assert views.unread == {}
    return views.topics[0]


def test_a_commit_between_two_loads_cannot_mix_two_snapshots(tmp_path: Path) -> None:
    """Files, watermarks and sequence number are of one snapshot while another writer commits."""
    bench = Bench(tmp_path)
    memory = MemoryTables(SeededIds(7), bench.clock)
    leader = bench.leader()
    bench.write(leader, bench.table(memory), (0, 0, 5))
    bench.commit(memory, leader)
    bench.write(leader, view_of(memory), (0, 5, 9))

    def lose_the_reply() -> None:
        bench.committer(memory, leader).commit(bench.target, new_uuid(bench.ids))

    tables = OtherWriter(memory, lose_the_reply)
    seen = picture(bench, leader, tables)
    assert seen.view.table is not None and seen.table is not None
    numbers = {item.snapshot_id: item.sequence_number for item in view_of(memory).snapshots}
    assert seen.view.table.watermarks == {0: 5, 1: 0}
    assert seen.table.sequence_number == numbers[seen.view.table.snapshot_id or 0]
    assert (seen.table.landed, dict(seen.table.ahead)) == ((), {})
    assert len(seen.view.table.files) == 1
    assert tables.loads == 1
    assert "unknown-commit" not in {item.id for item in differences([seen], FolderSnapshot())}
