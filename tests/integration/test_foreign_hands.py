"""An external compaction, expiry, append, rollback or drop: each row is in the table once, or the topic
halts.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from archiver.catalog.external_changes import Change, read_expired
from archiver.catalog.table_layout import RETIRED, stream_fields
from archiver.catalog.tables import Tables
from archiver.ledger.leader import Leader
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.ids import SeededIds, new_uuid
from tests.support.catalog.foreign_hands import (
    check_rows,
    compact,
    expire_all_but_current,
    iceberg_tables,
    roll_back,
    swap_files,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import (
    IDENTIFIER,
    TOPIC_ID,
    Bench,
    FaultyTables,
    Paused,
    SwapFault,
    data_file,
    offsets_in,
    rows,
)
from tests.support.log.memory_log import MemoryLogStore


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


def test_foreign_compaction_is_carried_on_from(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5), (0, 5, 10))
    bench.commit(tables, leader)
    compact(tables, bench, 0, 0, 10)
    bench.write(leader, view_of(tables), (0, 10, 12))
    outcome = bench.commit(tables, leader)
    assert (outcome.watermarks[0], outcome.findings) == (12, ())
    check_rows(tables, tmp_path, (0, 0, 12))


def test_compaction_between_look_and_swap_is_a_conflict_and_then_carried_on_from(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    bench.write(leader, view_of(tables), (0, 5, 9))
    assert bench.commit(Paused(tables, lambda: compact(tables, bench, 0, 0, 5)), leader).watermarks[0] == 9
    check_rows(tables, tmp_path, (0, 0, 9))


def test_foreign_compaction_and_expiry_leave_bounds_that_agree(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5), (0, 5, 10))
    bench.commit(tables, leader)
    compact(tables, bench, 0, 0, 10)
    expire_all_but_current(tables)
    successor = bench.leader("b")
    bench.settle(tables, successor)
    bench.write(successor, view_of(tables), (0, 10, 12))
    assert bench.commit(tables, successor).watermarks[0] == 12
    check_rows(tables, tmp_path, (0, 0, 12))


def test_c3_lost_reply_then_compaction_and_expiry_adds_nothing_again(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """Flaw 9: path and history are gone when the successor reads the table; the file is killed, the watermark
    holds."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    with pytest.raises(OutcomeUnknown):
        bench.commit(FaultyTables(tables, SwapFault.REPLY_LOST), leader, attempts_max=1)
    compact(tables, bench, 0, 0, 10)
    expire_all_but_current(tables)
    successor = bench.leader("b")
    outcome = bench.settle(tables, successor)
    assert outcome is not None
    assert (len(outcome.killed), outcome.committed, outcome.watermarks[0]) == (1, (), 10)
    assert successor.fold.topic(TOPIC_ID).planned_to(0) == 10
    check_rows(tables, tmp_path, (0, 0, 10))


def test_c1_a_rollback_halts_the_topic(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader)
    bench.write(leader, view_of(tables), (0, 5, 10))
    bench.commit(tables, leader)
    assert first.snapshot_id is not None
    roll_back(tables, first.snapshot_id)
    bench.write(leader, view_of(tables), (0, 10, 12))
    with pytest.raises(TopicHalted, match="rolled back"):
        bench.commit(tables, leader)
    with pytest.raises(TopicHalted, match="rolled back"):
        bench.committer(tables, bench.leader("b")).settle(bench.target)
    check_rows(tables, tmp_path, (0, 0, 5))


def test_c1_a_rollback_hidden_by_a_foreign_commit_and_expiry_halts(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader)
    bench.write(leader, view_of(tables), (0, 5, 10))
    bench.commit(tables, leader)
    assert first.snapshot_id is not None
    roll_back(tables, first.snapshot_id)
    compact(tables, bench, 0, 0, 5)
    with pytest.raises(TopicHalted, match="rolled back"):
        bench.committer(tables, leader).settle(bench.target)
    expire_all_but_current(tables)
    with pytest.raises(TopicHalted, match="partition 0 ends at 5, our watermark is 10"):
        bench.committer(tables, leader).settle(bench.target)


def test_a_catalog_restored_from_an_older_copy_halts_the_topic(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """Nothing in the table shows it: the table is whole, only older than the ledger. Its rows are not
    archived again unasked."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    with restorable(tables, tmp_path) as restore:
        bench.write(leader, view_of(tables), (0, 5, 10))
        bench.commit(tables, leader)
    restored = restore()
    successor = bench.leader("b")
    with pytest.raises(
        TopicHalted,
        match="at sequence number 1, and the ledger has seen it at 2: the catalog was restored from an older "
        "copy",
    ):
        bench.settle(restored, successor)
    compact(restored, bench, 0, 0, 5)
    with pytest.raises(
        TopicHalted, match="up to offset 5 of partition 0, and the ledger has seen it complete up to 10"
    ):
        bench.settle(restored, successor)
    assert successor.fold.topic(TOPIC_ID).watermark(0) == 10
    assert offsets_in(restored) == rows((0, 0, 5))


@contextlib.contextmanager
def restorable(tables: Tables, folder: Path) -> Iterator[Callable[[], Tables]]:
    """A copy of the catalog as it is now, and how to put it back."""
    if isinstance(tables, MemoryTables):
        kept = dict(tables._tables)

        def put_back() -> Tables:
            tables._tables.clear()
            tables._tables.update(kept)
            return tables

        yield put_back
        return
    copy = folder / "copy.db"
    copy.write_bytes((folder / "catalog.db").read_bytes())

    def reopen() -> Tables:
        tables.close()
        (folder / "catalog.db").write_bytes(copy.read_bytes())
        return iceberg_tables(folder, 8)

    yield reopen


def test_a_ledger_older_than_the_table_halts_the_topic(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    """The metadata store was restored from an older copy: offsets that the table holds are now given to other
    records."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    older = MemoryLogStore(1 << 20).log("control")
    for entry in bench.log.read(0):
        older.append(entry.index, entry.data)
    bench.write(leader, view_of(tables), (0, 5, 10))
    bench.commit(tables, leader)
    restored = bench.leader("b", log=older)
    for _ in range(2):
        with pytest.raises(
            TopicHalted,
            match=r"up to offset 10 of partition 0.* only up to 5: the metadata store is an older copy",
        ):
            bench.settle(tables, restored)
    bench.write(restored, view_of(tables), (0, 5, 7))
    with pytest.raises(TopicHalted, match="only up to 7"):
        bench.commit(tables, restored)
    assert restored.fold.topic(TOPIC_ID).watermark(0) == 5
    check_rows(tables, tmp_path, (0, 0, 10))


def test_a_leader_that_slept_is_deposed_and_blames_no_store(tables: Tables, bench: Bench) -> None:
    zombie = bench.leader("a")
    bench.write(zombie, bench.table(tables), (0, 0, 5))
    bench.commit(tables, zombie)
    successor = bench.leader("b")
    bench.write(successor, view_of(tables), (0, 5, 10))
    bench.commit(tables, successor)
    with pytest.raises(Deposed):
        bench.commit(tables, zombie)


def test_l4_a_leader_that_slept_is_deposed_before_it_doubts_a_table(tables: Tables, bench: Bench) -> None:
    """Found by the model: the starts of retention, without which bounds cannot be judged, may be a newer
    leader's."""
    zombie = bench.leader("a")
    bench.write(zombie, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, zombie)
    bench.write(zombie, view_of(tables), (0, 5, 10))
    bench.commit(tables, zombie)
    assert first.snapshot_id is not None
    roll_back(tables, first.snapshot_id)
    bench.leader("b")
    with pytest.raises(Deposed):
        bench.committer(tables, zombie).settle(bench.target)


@pytest.mark.parametrize("hidden", [False, True], ids=["in the lineage", "compacted and expired"])
def test_a_killed_file_that_lands_late_is_no_sign_of_an_old_ledger(
    tables: Tables, bench: Bench, tmp_path: Path, hidden: bool
) -> None:
    zombie = bench.leader("a")
    keys = bench.write(zombie, bench.table(tables), (0, 0, 10))
    late = FaultyTables(tables, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown):
        bench.commit(late, zombie, attempts_max=1)
    successor = bench.leader("b")
    killed = pb.TableCommitted(topic_id=bytes.fromhex(TOPIC_ID), table_uuid=view_of(tables).uuid.bytes)
    killed.killed.add(key=keys[0], why="because")
    successor.append(killed)
    assert successor.fold.topic(TOPIC_ID).planned_to(0) == 0
    late.deliver()
    if hidden:
        compact(tables, bench, 0, 0, 10)
        expire_all_but_current(tables)
    outcome = bench.settle(tables, successor)
    assert outcome is not None
    assert (outcome.committed, outcome.watermarks[0]) == (() if hidden else tuple(keys), 10)
    assert successor.fold.topic(TOPIC_ID).planned_to(0) == 10
    check_rows(tables, tmp_path, (0, 0, 10))


def erased(tables: Tables, bench: Bench, leader: Leader) -> int:
    """Commit five rows, all of which an external program deletes; the id of its snapshot."""
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    swap_files(tables, view_of(tables), [], "delete")
    snapshot_id = view_of(tables).snapshot_id
    assert snapshot_id is not None
    return snapshot_id


def expiring(bench: Bench, tables: Tables, leader: Leader, at: int, **limits: int) -> None:
    """A commit of one row that retains as few snapshots as it may."""
    bench.write(leader, view_of(tables), (0, at, at + 1))
    bench.commit(tables, leader, snapshots_max=1, snapshots_age_s=-1e10, **limits)


def test_our_own_expiry_takes_a_foreign_delete_and_reports_it_in_the_same_commit(
    tables: Tables, bench: Bench
) -> None:
    leader = bench.leader()
    erasure = erased(tables, bench, leader)
    expiring(bench, tables, leader, 5)
    view = view_of(tables)
    assert erasure in {item.snapshot_id for item in view.snapshots}, "it is what that commit was made on"
    assert read_expired(view.properties).changes == ()
    for at in (6, 7):
        expiring(bench, tables, leader, at)
        view = view_of(tables)
        assert erasure not in {item.snapshot_id for item in view.snapshots}
        assert read_expired(view.properties).changes == (Change(5, 0, 0, (5, 0), (erasure,)),)
    assert len(view.snapshots) == 2, "the newest and its base"
    assert offsets_in(tables) == rows((0, 5, 8))


@pytest.mark.parametrize("fault", [fault for fault in SwapFault if fault is not SwapFault.NONE])
def test_a_lost_reply_reports_it_once(tables: Tables, bench: Bench, fault: SwapFault) -> None:
    leader = bench.leader()
    erasure = erased(tables, bench, leader)
    expiring(bench, tables, leader, 5)
    bench.write(leader, view_of(tables), (0, 6, 7))
    faulty = FaultyTables(tables, fault)
    with contextlib.suppress(OutcomeUnknown, RetryLater):
        bench.commit(faulty, leader, attempts_max=1, snapshots_max=1, snapshots_age_s=-1e10)
    successor = bench.leader("b")
    bench.settle(tables, successor)
    base = successor.fold.topic(TOPIC_ID).planned_to(0)
    for at in range(base, base + 3):
        expiring(bench, tables, successor, at)
    faulty.deliver()
    view = view_of(tables)
    assert erasure not in {item.snapshot_id for item in view.snapshots}
    assert [(one.rows, one.snapshots) for one in read_expired(view.properties).changes] == [(5, (erasure,))]


def test_retire_and_forget_report_it_as_well(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    erasure = erased(tables, bench, leader)
    bench.write(leader, view_of(tables), (0, 5, 9))
    bench.commit(tables, leader)
    bench.write(leader, view_of(tables), (0, 9, 12))
    bench.commit(tables, leader)
    leader.append(
        pb.StartMoved(topic_id=bytes.fromhex(TOPIC_ID), starts=[pb.PartitionOffset(partition=0, offset=3)])
    )
    reported = [Change(5, 0, 0, (5, 0), (erasure,))]
    committer = bench.committer(tables, leader, snapshots_age_s=-1e10)
    outcome = committer.forget(bench.target, new_uuid(bench.ids))
    assert outcome is not None
    bench.tell(leader, outcome)
    assert list(read_expired(view_of(tables).properties).changes) == reported
    swap_files(tables, view_of(tables), [], "delete")
    second = view_of(tables).snapshot_id
    bench.write(leader, view_of(tables), (0, 12, 15), (1, 0, 2))
    bench.commit(tables, leader)
    leader.append(
        pb.StartMoved(topic_id=bytes.fromhex(TOPIC_ID), starts=[pb.PartitionOffset(partition=1, offset=2)])
    )
    outcome = bench.committer(tables, leader, snapshots_age_s=-1e10).retire(bench.target, new_uuid(bench.ids))
    assert outcome is not None
    view = view_of(tables)
    assert view.snapshots[-1].summary.get(RETIRED) == "1"
    assert second not in {item.snapshot_id for item in view.snapshots}
    assert [one.snapshots for one in read_expired(view.properties).changes] == [(erasure,), (second,)]


def test_foreign_rows_are_a_finding_and_carried_on_from(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    view = view_of(tables)
    stranger = data_file(f"{view.location}/x.parquet", stream_fields(view.schema_json), 1, 900, 905)
    swap_files(tables, view, [stranger], "append", remove=False)
    bench.write(leader, view_of(tables), (0, 5, 9))
    outcome = bench.commit(tables, leader)
    assert outcome.watermarks == {0: 9, 1: 0}
    assert "(append) is not the archiver's" in outcome.findings[0]


def test_a_dropped_table_halts_and_is_not_made_again(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    if isinstance(tables, MemoryTables):
        tables.drop(IDENTIFIER)
    else:
        table = view_of(tables).handle
        assert isinstance(table, Table)
        table.catalog.drop_table(IDENTIFIER)
    with pytest.raises(TopicHalted, match="dropped or renamed"):
        bench.commit(tables, leader)
    assert tables.load(IDENTIFIER) is None


@pytest.mark.parametrize("seed", range(6))
def test_anything_at_any_time_on_the_twin(tmp_path: Path, seed: int) -> None:
    """Seeded runs of leaders, lost responses, compaction and expiry: each offset once, no hole, everything
    enters the table."""
    rng = random.Random(seed)
    bench = Bench(tmp_path, seed=seed)
    tables = MemoryTables(SeededIds(seed), bench.clock)
    bench.table(tables)
    late: list[FaultyTables] = []
    leader: Leader = bench.leader()
    for _ in range(40):
        faulty = FaultyTables(tables, *rng.choices(list(SwapFault), k=3))
        late.append(faulty)
        try:
            step = rng.random()
            if step < 0.2:
                leader = bench.leader(f"l{rng.random()}")
                bench.settle(tables, leader)
            elif step < 0.35 and offsets_in(tables):
                compact(tables, bench, 0, 0, offsets_in(tables)[-1][1] + 1)
            elif step < 0.45:
                expire_all_but_current(tables)
            elif step < 0.55:
                for one in late:
                    one.deliver()
            elif step < 0.8:
                base = leader.fold.topic(TOPIC_ID).planned_to(0)
                key_used = {item.archive.key for item in leader.fold.topic(TOPIC_ID).killed.values()}
                if not any(f"{base:020}" in key for key in key_used):
                    bench.write(leader, view_of(tables), (0, base, base + rng.randint(1, 5)))
                else:
                    leader = bench.leader("again")
            else:
                bench.commit(faulty, leader, attempts_max=2)
        except (RetryLater, OutcomeUnknown):
            pass
        found = offsets_in(tables)
        assert found == rows((0, 0, len(found)))
    leader = bench.leader("last")
    bench.settle(tables, leader)
    bench.commit(tables, leader)
    for one in late:
        one.deliver()
    bench.settle(tables, leader)
    topic = leader.fold.topic(TOPIC_ID)
    assert topic.pending == ()
    assert offsets_in(tables) == rows((0, 0, topic.watermark(0)))
