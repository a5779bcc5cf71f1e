"""The commit loop on real tables and on the twin: races, lost responses, takeovers, external changes.

Each row enters the table exactly once.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from archiver.catalog.commit import CommitOutcome, iso_time, ranges_text
from archiver.catalog.table_layout import WATERMARKS
from archiver.catalog.tables import Prepared, SwapOutcome, Swapped, Tables
from archiver.ledger.bridge import append_table_committed
from archiver.ledger.leader import Body, Leader
from archiver.log.sqlite import SqliteLogStore
from archiver.runtime import failpoints
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds, new_uuid
from tests.support.catalog.foreign_hands import (
    check_rows,
    compact,
    iceberg_tables,
    roll_back,
    roll_forward,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import (
    START_US,
    TOPIC_ID,
    Bench,
    FaultyTables,
    Paused,
    SwapFault,
    log_limits,
    offsets_in,
    rows,
)


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


def test_written_archives_get_into_the_table(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    leader = bench.leader()
    view = bench.table(tables)
    assert bench.settle(tables, leader) is None
    keys = bench.write(leader, view, (0, 0, 10), (1, 0, 4), (0, 10, 12))
    outcome = bench.commit(tables, leader)
    assert outcome.committed == tuple(keys)
    assert (outcome.watermarks, outcome.killed, outcome.findings) == ({0: 12, 1: 4}, (), ())
    assert outcome.valid_through_us == START_US
    check_rows(tables, tmp_path, (0, 0, 12), (1, 0, 4))
    topic = leader.fold.topic(TOPIC_ID)
    assert (topic.pending, topic.watermarks, topic.table_uuid) == ((), {0: 12, 1: 4}, view.uuid)
    assert bench.settle(tables, leader) is None


def test_what_a_commit_says_of_itself(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10), (0, 10, 12))
    outcome = bench.commit(tables, leader)
    view = view_of(tables)
    (snapshot,) = view.snapshots
    assert snapshot.summary["archiver.ranges"] == "0:0-12"
    assert (
        snapshot.summary["archiver.valid-through-ts"]
        == iso_time(START_US)
        == view.properties["archiver.valid-through-ts"]
    )
    assert snapshot.summary["archiver.commit-id"] == view.properties["archiver.commit-id"]
    assert json.loads(view.properties[WATERMARKS]) == {
        "v": 1,
        "snapshot": outcome.snapshot_id,
        "sequence": 1,
        "epoch": 1,
        "commit": view.properties["archiver.commit-id"],
        "offsets": [12, 0],
    }


def test_c5_partitions_without_new_archives_are_carried_forward(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    bench.commit(tables, leader)
    bench.write(leader, view_of(tables), (1, 0, 3))
    assert bench.commit(tables, leader).watermarks == {0: 10, 1: 3}
    assert json.loads(view_of(tables).properties[WATERMARKS])["offsets"] == [10, 3]


@pytest.mark.parametrize(
    "script",
    [
        [SwapFault.REPLY_LOST],
        [SwapFault.DROPPED],
        [SwapFault.LATE],
        [SwapFault.FALSE_CONFLICT],
        [SwapFault.DROPPED, SwapFault.LATE, SwapFault.REPLY_LOST],
        [SwapFault.LATE, SwapFault.FALSE_CONFLICT],
    ],
    ids=lambda script: "+".join(fault.name for fault in script),
)
def test_c6_lost_replies_neither_lose_nor_double_rows(
    tables: Tables, bench: Bench, tmp_path: Path, script: list[SwapFault]
) -> None:
    leader = bench.leader()
    keys = bench.write(leader, bench.table(tables), (0, 0, 10), (1, 0, 4))
    faulty = FaultyTables(tables, *script)
    outcome = bench.commit(faulty, leader)
    faulty.deliver()
    assert sorted(outcome.committed) == sorted(keys)
    assert (outcome.watermarks, outcome.killed, outcome.valid_through_us) == ({0: 10, 1: 4}, (), START_US)
    assert leader.fold.topic(TOPIC_ID).pending == ()
    check_rows(tables, tmp_path, (0, 0, 10), (1, 0, 4))
    assert bench.settle(tables, leader) is None


def test_c6_out_of_attempts_with_an_open_request_is_unknown_and_the_next_leader_looks(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    leader = bench.leader()
    keys = bench.write(leader, bench.table(tables), (0, 0, 10))
    faulty = FaultyTables(tables, SwapFault.DROPPED, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown, match="may still land"):
        bench.commit(faulty, leader, attempts_max=2)
    assert [
        item.archive.key for item in leader.fold.topic(TOPIC_ID).pending
    ] == keys  # an unknown outcome never kills an archive
    successor = bench.leader("b")
    assert bench.settle(tables, successor) is None
    faulty.deliver()
    outcome = bench.settle(tables, successor)
    assert outcome is not None
    assert (outcome.committed, outcome.watermarks[0]) == (tuple(keys), 10)
    check_rows(tables, tmp_path, (0, 0, 10))


def test_c6_a_request_is_not_dead_while_its_base_may_come_back(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """An external engine rolls back its compaction, which was the base of the request. Then it makes the
    compaction current again."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    bench.commit(tables, leader)
    before = view_of(tables).snapshot_id or 0
    compact(tables, bench, 0, 0, 10)
    compacted = view_of(tables).snapshot_id or 0
    assert before != compacted
    bench.write(leader, view_of(tables), (0, 10, 15))

    class Away(FaultyTables):
        def swap(self, prepared: Prepared) -> Swapped:
            if self.swaps:
                return Swapped(SwapOutcome.CONFLICT, prepared.snapshot_id, "refused")
            swapped = super().swap(prepared)
            roll_back(tables, before)
            return swapped

    away = Away(tables, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown, match="may still land"):
        bench.commit(away, leader, attempts_max=2)
    roll_forward(tables, compacted)
    assert away.deliver() == [SwapOutcome.APPLIED], "it could land"
    outcome = bench.settle(tables, leader)
    assert outcome is not None
    assert outcome.watermarks[0] == 15
    check_rows(tables, tmp_path, (0, 0, 15))


def test_out_of_attempts_without_an_open_request_is_tried_later(tables: Tables, bench: Bench) -> None:
    class Busy(FaultyTables):
        """An external commit precedes each of our swaps."""

        def swap(self, prepared: Prepared) -> Swapped:
            view = view_of(tables)
            assert tables.swap(tables.prepare(view, [], lambda *_: {}, {}, False, ())).snapshot_id
            return super().swap(prepared)

    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    with pytest.raises(RetryLater, match="3 attempts"):
        bench.commit(Busy(tables), leader, attempts_max=3)
    assert bench.commit(tables, leader).watermarks[0] == 10


def test_time_bounds_the_loop(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    faulty = FaultyTables(tables, *[SwapFault.DROPPED] * 50)
    with pytest.raises(OutcomeUnknown):
        bench.commit(faulty, leader, attempts_max=50, backoff_s=1.0, timeout_s=5.0)
    assert faulty.swaps <= 4


def test_c4_a_deposed_leader_does_not_swap(tables: Tables, bench: Bench) -> None:
    zombie = bench.leader("a")
    bench.write(zombie, bench.table(tables), (0, 0, 10))
    bench.leader("b")
    faulty = FaultyTables(tables)
    with pytest.raises(Deposed):
        bench.committer(faulty, zombie).commit(bench.target, new_uuid(bench.ids))
    assert faulty.swaps == 0


def test_c4_a_leader_that_is_deposed_while_it_prepares_does_not_swap(tables: Tables, bench: Bench) -> None:
    """The log's tail is read last: after the table was loaded and the snapshot's files were written."""

    class Slow(FaultyTables):
        def prepare(self, *arguments: Any, **named: Any) -> Prepared:
            prepared = super().prepare(*arguments, **named)
            bench.leader("b")
            return prepared

    zombie = bench.leader("a")
    bench.write(zombie, bench.table(tables), (0, 0, 10))
    slow = Slow(tables)
    with pytest.raises(Deposed):
        bench.committer(slow, zombie).commit(bench.target, new_uuid(bench.ids))
    assert slow.swaps == 0


def test_a_paused_leaders_swap_after_a_takeover_doubles_no_row(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """T2: the successor inherits and commits the same file; the swap of the deposed leader meets another base
    (C5)."""
    zombie = bench.leader("a")
    keys = bench.write(zombie, bench.table(tables), (0, 0, 10))
    found: list[CommitOutcome] = []

    def takeover() -> None:
        successor = bench.leader("b")
        bench.settle(tables, successor)
        found.append(bench.commit(tables, successor))
        bench.write(successor, view_of(tables), (0, 10, 15))
        found.append(bench.commit(tables, successor))

    with pytest.raises(Deposed):
        bench.commit(Paused(tables, takeover), zombie)
    assert found[0].committed == tuple(keys)
    check_rows(tables, tmp_path, (0, 0, 15))


def test_a_zombies_swap_that_lands_after_the_takeover_is_adopted(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """The successor has read the table and planned; the deposed leader's request lands before its first swap.
    The file is found in the table by path."""
    zombie = bench.leader("a")
    keys = bench.write(zombie, bench.table(tables), (0, 0, 10))
    late = FaultyTables(tables, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown):
        bench.commit(late, zombie, attempts_max=1)
    successor = bench.leader("b")
    bench.settle(tables, successor)
    more = bench.write(successor, view_of(tables), (0, 10, 12))
    outcome = bench.commit(Paused(tables, late.deliver), successor)
    assert sorted(outcome.committed) == sorted([*keys, *more])
    check_rows(tables, tmp_path, (0, 0, 12))
    with pytest.raises(Deposed):
        bench.commit(tables, zombie)


def test_two_leaders_racing_on_one_table(tmp_path: Path) -> None:
    """Leaders of two processes depose each other again and again, on a real catalog and a real log; then one
    works alone."""
    stores = [SqliteLogStore(tmp_path / "log.db", 30.0, 1 << 20) for _ in range(2)]
    catalogs = [iceberg_tables(tmp_path, seed) for seed in (1, 2)]
    first = Bench(tmp_path, stores[0].log("control"))
    first.table(catalogs[0])
    failures: list[BaseException] = []
    target_end = 60

    def work(number: int) -> None:
        bench = Bench(tmp_path, stores[number].log("control"), seed=100 + number)
        tables, rng = catalogs[number], random.Random(number)
        try:
            for _ in range(12):
                lead_a_while(bench, tables, rng, target_end)
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(55)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)
    found = offsets_in(catalogs[0])
    assert found == rows((0, 0, len(found)))
    alone = Bench(tmp_path, stores[0].log("control"), seed=3)
    assert any(lead_a_while(alone, catalogs[0], random.Random(3), target_end) for _ in range(30))
    check_rows(catalogs[0], tmp_path, (0, 0, target_end))
    for store, catalog in zip(stores, catalogs, strict=True):
        store.close()
        catalog.close()


def lead_a_while(bench: Bench, tables: Tables, rng: random.Random, target_end: int) -> bool:
    """Take over and archive a few ranges until deposed; True if everything is archived."""
    try:
        leader = bench.leader("a")
        bench.settle(tables, leader)
        for _ in range(3):
            base = leader.fold.topic(TOPIC_ID).planned_to(0)
            if base < target_end:
                bench.write(leader, view_of(tables), (0, base, min(target_end, base + rng.randint(1, 6))))
            bench.commit(tables, leader)
        return leader.fold.topic(TOPIC_ID).watermark(0) >= target_end
    except (Deposed, RetryLater, OutcomeUnknown):
        return False


@pytest.mark.parametrize("point", ["table.swap.before=error", "table.swap.after=error"])
def test_stopped_around_the_swap_the_next_run_goes_on(
    tables: Tables, bench: Bench, tmp_path: Path, point: str
) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    try:
        failpoints.arm(point)
        with pytest.raises(RetryLater):
            bench.commit(tables, leader)
    finally:
        failpoints.arm("")
    successor = bench.leader("b")
    bench.settle(tables, successor)
    if successor.fold.topic(TOPIC_ID).pending:
        bench.commit(tables, successor)
    assert successor.fold.topic(TOPIC_ID).watermark(0) == 10
    check_rows(tables, tmp_path, (0, 0, 10))


def test_a_reply_lost_at_the_failpoint_is_looked_up(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    try:
        failpoints.arm("table.swap.after=unknown")
        assert bench.commit(tables, leader).watermarks[0] == 10
    finally:
        failpoints.arm("")
    check_rows(tables, tmp_path, (0, 0, 10))


def test_killed_by_c3_and_archived_again(tables: Tables, bench: Bench, tmp_path: Path) -> None:
    """A file across the watermark is killed in the ledger; a new epoch plans from the watermark."""
    leader = bench.leader()
    view = bench.table(tables)
    bench.write(leader, view, (0, 0, 5))
    bench.commit(tables, leader)
    keys = bench.write(leader, view_of(tables), (0, 3, 9), (1, 0, 2))
    outcome = bench.commit(tables, leader)
    assert [key for key, _ in outcome.killed] == keys[:1]
    assert (outcome.committed, outcome.valid_through_us) == (tuple(keys[1:]), 0)
    assert "archiver.valid-through-ts" not in view_of(tables).lineage()[0].summary
    assert set(leader.fold.topic(TOPIC_ID).killed) == set(keys[:1])
    bench.write(bench.leader("b"), view_of(tables), (0, 5, 9))
    successor = bench.leader("c")
    assert bench.commit(tables, successor).watermarks == {0: 9, 1: 2}
    check_rows(tables, tmp_path, (0, 0, 9), (1, 0, 2))


def test_our_own_expiry_and_merging_keep_the_table_small(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    leader = bench.leader()
    bench.table(tables)
    for at in range(12):
        bench.clock.advance(1)
        bench.write(leader, view_of(tables), (0, at, at + 1))
        bench.commit(
            tables, leader, snapshots_max=3, merge_every=4, snapshots_age_s=-1e10
        )  # any age: real tables have another clock
        assert len(view_of(tables).snapshots) <= 3
    assert leader.fold.topic(TOPIC_ID).killed == {}
    check_rows(tables, tmp_path, (0, 0, 12))
    view = view_of(tables)
    if isinstance(view.handle, Table):
        snapshot = view.handle.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(view.handle.io)) <= 4


def reported_in_parts(leader: Leader, outcome: CommitOutcome, parts: int | None = None) -> int:
    """Append COMMIT_TO_TABLE in parts; the leader dies after so many of them. Returns how many were appended."""
    append, done = leader.append, 0

    def dying(body: Body) -> int:
        nonlocal done
        if done == parts:
            raise RetryLater("died")
        done += 1
        return append(body)

    leader.append = dying  # type: ignore[method-assign]
    with contextlib.suppress(RetryLater):
        append_table_committed(leader, outcome.to_proto(uuid.UUID(int=1), TOPIC_ID))
    return done


@pytest.mark.parametrize("parts", range(5))
def test_t1_a_commit_that_was_recorded_in_part_is_resolved_by_the_next_leader(
    tables: Tables, bench: Bench, tmp_path: Path, parts: int
) -> None:
    """After every part: the next plan starts where the table ends, and the successor's check completes the
    ledger."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    view = view_of(tables)
    keys = bench.write(
        leader, view, *((0, 5 + at, 6 + at) for at in range(6)), *((1, at, at + 1) for at in range(6))
    )
    (killed,) = bench.write(leader, view, (1, 2, 9))
    small = bench.leader("small", log_limits(entry_bytes_max=800))
    outcome = bench.committer(tables, small).commit(bench.target, new_uuid(bench.ids))
    assert outcome is not None
    assert reported_in_parts(small, outcome, parts) == parts
    successor = bench.leader("b")
    topic = successor.fold.topic(TOPIC_ID)
    assert topic.planned_to(0) == 11
    assert topic.planned_to(1) == 9, "the end of the file that was to be killed with the last part"
    settled = bench.settle(tables, successor)
    assert settled is not None
    assert (topic.pending, topic.watermarks, set(topic.killed)) == ((), {0: 11, 1: 6}, {killed})
    assert (topic.covered.ranges(0), topic.covered.ranges(1), topic.sequence_number) == (
        ((0, 11),),
        ((0, 6),),
        2,
    )
    assert topic.totals.files == 1 + len(keys)
    assert bench.settle(tables, successor) is None
    bench.write(successor, view_of(tables), (0, topic.planned_to(0), 14), (1, topic.planned_to(1), 7))
    bench.commit(tables, successor)
    check_rows(tables, tmp_path, (0, 0, 14), (1, 0, 7))


def test_d2_a_fence_is_an_empty_commit(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader)
    fence = bench.committer(tables, leader).commit(bench.target, new_uuid(bench.ids), fence=True)
    assert fence is not None
    assert fence.snapshot_id != first.snapshot_id
    assert (fence.watermarks, fence.committed) == (first.watermarks, ())


def test_pending_without_a_table_halts(tables: Tables, bench: Bench) -> None:
    leader = bench.leader()
    assert bench.committer(tables, leader).commit(bench.target, new_uuid(bench.ids)) is None


def test_long_range_lists_are_counted() -> None:
    class Item:
        def __init__(self, partition: int) -> None:
            self.archive = type("A", (), {"partition": partition, "base": 10**12, "end": 10**12 + 5})

    many: Any = tuple(Item(partition) for partition in range(100))
    assert ranges_text(many) == "100 partitions"
    assert ranges_text(many[:1]) == "0:1000000000000-1000000000005"
