"""Rule D3 on tables: up to which offset intake is no longer needed, under any external change of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from archiver.catalog.tables import Tables
from archiver.config.settings import TopicSettings
from archiver.ledger.leader import Leader
from archiver.objects.local import LocalObjectStore
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SeededIds, new_uuid
from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from reconcile.snapshot.retention_floor import RetentionFloor, RetentionFloorReader
from tests.support.catalog.foreign_hands import (
    compact,
    expire,
    expire_all_but_current,
    iceberg_tables,
    roll_back,
    roll_forward,
    swap_files,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import CLUSTER_ID, IDENTIFIER, TOPIC_ID, Bench

ICEBERG = {"kind": "iceberg", "catalog": "local", "table": "demo.flights"}


@pytest.fixture(params=["iceberg", "memory"])
def tables(request: pytest.FixtureRequest, tmp_path: Path, bench: Bench) -> Iterator[Tables]:
    found: Tables = (
        iceberg_tables(tmp_path, 7) if request.param == "iceberg" else MemoryTables(SeededIds(7), bench.clock)
    )
    yield found
    found.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def look(
    bench: Bench,
    leader: Leader,
    tables: Tables | Callable[[str], Tables],
    archive: dict[str, Any] | None = None,
    *,
    known: bool = True,
) -> RetentionFloor:
    """The retention floor of the bench's topic of two partitions."""
    fold = IntakeFold()
    declared = pb.TopicDeclared(topic_id=bytes.fromhex(TOPIC_ID), name="flights", partitions=2, created_us=1)
    fold.apply(0, pb.IntakeEntry(format=1, id=bytes(16), topic=declared).SerializeToString())
    settings = (
        [TopicSettings.model_validate({"name": "flights", "partitions": 2, "archive": archive or ICEBERG})]
        if known
        else []
    )
    reader = RetentionFloorReader(
        LocalObjectStore(bench.folder), CLUSTER_ID, tables if callable(tables) else lambda _: tables, settings
    )
    return reader.read(Backlog(fold), leader.fold)[TOPIC_ID]


def two_commits(bench: Bench, tables: Tables) -> tuple[Leader, int]:
    """Commit partition 0 to 5, then to 9 and partition 1 to 3; the id of the first snapshot."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader).snapshot_id
    bench.write(leader, view_of(tables), (0, 5, 9), (1, 0, 3))
    bench.commit(tables, leader)
    assert first is not None
    return leader, first


def test_d3_the_line_is_the_lowest_watermark_of_the_retained_snapshots(tables: Tables, bench: Bench) -> None:
    leader, _ = two_commits(bench, tables)
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (5, 0), (9, 3))
    expire_all_but_current(tables)
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (9, 3), (9, 3))


def test_d3_after_a_rollback_to_any_retained_snapshot_the_line_was_low_enough(
    tables: Tables, bench: Bench
) -> None:
    leader, first = two_commits(bench, tables)
    before = look(bench, leader, tables)
    roll_back(tables, first)
    after = look(bench, leader, tables)
    assert (after.offsets, after.doubted) == ((0, 0), True)
    assert "rolled back" in (after.why or "")
    assert before.offsets == (5, 0), "what the table is complete up to now"


def test_d3_what_another_writer_made_on_a_table_that_was_rolled_back_keeps_the_intake_that_it_lacks(
    tables: Tables, bench: Bench
) -> None:
    """After a roll forward, our own commits expire both of ours around the external snapshot. It is left
    after the cut like an ancestor."""
    leader, first = two_commits(bench, tables)
    second = view_of(tables).snapshot_id
    assert second is not None
    roll_back(tables, first)
    compact(tables, bench, 0, 0, 5)
    branch = view_of(tables).snapshot_id
    roll_forward(tables, second)
    for offset in (9, 10):
        assert look(bench, leader, tables).offsets == (5, 0)
        bench.write(leader, view_of(tables), (0, offset, offset + 1))
        bench.commit(tables, leader, snapshots_max=1, snapshots_age_s=-1e10)
    view = view_of(tables)
    assert {snapshot.snapshot_id for snapshot in view.snapshots}.isdisjoint({first, second})
    assert branch in {snapshot.snapshot_id for snapshot in view.snapshots}
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (5, 0), (11, 3), exact=False)
    expire_all_but_current(tables)
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (11, 3), (11, 3))


def test_what_others_erased_pins_intake_until_its_snapshot_expires_like_any_other(
    tables: Tables, bench: Bench
) -> None:
    leader, _ = two_commits(bench, tables)
    swap_files(tables, view_of(tables), [], "delete")
    removal = view_of(tables).snapshot_id
    for offset, line in ((9, (9, 3)), (10, (10, 3)), (11, (11, 3))):
        bench.write(leader, view_of(tables), (0, offset, offset + 1))
        bench.commit(tables, leader, snapshots_max=1, snapshots_age_s=-1e10)
        kept = removal in {snapshot.snapshot_id for snapshot in view_of(tables).snapshots}
        assert kept is (offset == 9)
        assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", line, (offset + 1, 3))


def test_what_older_versions_kept_behind_the_cut_as_the_record_of_an_erasure_pins_no_more(
    tables: Tables, bench: Bench
) -> None:
    leader, _ = two_commits(bench, tables)
    swap_files(tables, view_of(tables), [], "delete")
    removal = view_of(tables).snapshot_id
    for offset in (9, 10, 11):
        bench.write(leader, view_of(tables), (0, offset, offset + 1))
        bench.commit(tables, leader)
    view = view_of(tables)
    kept = {removal, *(snapshot.snapshot_id for snapshot in view.lineage()[:2])}
    expire(tables, [snapshot.snapshot_id for snapshot in view.snapshots if snapshot.snapshot_id not in kept])
    view = view_of(tables)
    assert removal not in {snapshot.snapshot_id for snapshot in view.lineage()}
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (9, 3), (12, 3))


def test_compaction_by_others_changes_nothing(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5), (0, 5, 10))
    bench.commit(tables, leader)
    compact(tables, bench, 0, 0, 10)
    assert look(bench, leader, tables).offsets == (10, 0)
    expire_all_but_current(tables)
    assert look(bench, leader, tables) == RetentionFloor(TOPIC_ID, "flights", (10, 0), (10, 0))


def test_rows_that_others_erased_are_not_needed_back(tables: Tables, bench: Bench) -> None:
    leader, _ = two_commits(bench, tables)
    swap_files(tables, view_of(tables), [], "delete")
    assert look(bench, leader, tables).offsets == (5, 0)


def test_what_the_ledger_does_not_record_is_still_needed(tables: Tables, bench: Bench) -> None:
    """The swap was applied, COMMIT_TO_TABLE is not in the ledger yet."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    outcome = bench.committer(tables, leader).commit(bench.target, new_uuid(bench.ids))
    assert outcome is not None
    assert outcome.watermarks[0] == 5
    assert look(bench, leader, tables).offsets == (0, 0)
    bench.tell(leader, outcome)
    assert look(bench, leader, tables).offsets == (5, 0)


def test_nothing_is_reported_of_a_table_that_is_gone_or_cannot_be_reached(
    tables: Tables, bench: Bench
) -> None:
    leader, _ = two_commits(bench, tables)

    def down(_: str) -> Tables:
        raise RetryLater("the catalog does not answer")

    line = look(bench, leader, down)
    assert (line.offsets, line.doubted, line.why) == ((0, 0), True, "the catalog does not answer")
    if isinstance(tables, MemoryTables):
        tables.drop(IDENTIFIER)
    else:
        table = view_of(tables).handle
        assert isinstance(table, Table)
        table.catalog.drop_table(IDENTIFIER)
    line = look(bench, leader, tables)
    assert (line.offsets, line.doubted) == ((0, 0), True)
    assert "dropped or renamed" in (line.why or "")


def test_a_kind_that_does_not_fit_what_is_archived_is_a_doubt(tables: Tables, bench: Bench) -> None:
    leader, _ = two_commits(bench, tables)
    line = look(bench, leader, tables, {"kind": "parquet"})
    assert (line.offsets, line.doubted) == ((0, 0), True)
    leader.fold.topic(TOPIC_ID).table_uuid = None
    line = look(bench, leader, tables)
    assert (line.offsets, line.doubted) == ((0, 0), True)


def test_kinds_without_a_table(tables: Tables, bench: Bench) -> None:
    leader, _ = two_commits(bench, tables)
    leader.fold.topic(TOPIC_ID).table_uuid = None
    assert look(bench, leader, tables, {"kind": "parquet"}) == RetentionFloor(
        TOPIC_ID, "flights", (9, 3), (9, 3)
    )
    none = look(bench, leader, tables, {"kind": "none"})
    assert (none.offsets, none.doubted, none.why) == ((0, 0), False, "the topic has archive kind none")
    unknown = look(bench, leader, tables, known=False)
    assert (unknown.offsets, unknown.doubted, unknown.why) == (
        (0, 0),
        False,
        "the topic is not in the configuration",
    )


def test_a_topic_without_a_table_yet_needs_everything(tables: Tables, bench: Bench) -> None:
    assert look(bench, bench.leader(), tables) == RetentionFloor(TOPIC_ID, "flights", (0, 0), (0, 0))
    bench.table(tables)
    assert look(bench, bench.leader("b"), tables) == RetentionFloor(TOPIC_ID, "flights", (0, 0), (0, 0))
