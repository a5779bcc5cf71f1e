"""Exchanging archives, against a table in memory and a real one: which requests succeed, and what the ledger
records."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.catalog.commit import Committer
from archiver.catalog.replace_files import Exchange, Exchanged, FileReplacer, TableContent, judge_rewrites
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.tables import LiveFile, Tables, TableView
from archiver.ledger.archives import OldArchive, Rewrite, Rewrites
from archiver.ledger.leader import Leader
from archiver.objects.paths import parse_archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.catalog.foreign_hands import (
    compact,
    expire_all_but_current,
    iceberg_tables,
    roll_back,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import (
    TOPIC_ID,
    Bench,
    FaultyTables,
    Paused,
    SwapFault,
    offsets_in,
    rows,
    topic_bytes,
)

COMMIT = uuid.UUID(int=7)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(params=["memory", "iceberg"])
def tables(request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> Iterator[Tables]:
    found: Tables = (
        MemoryTables(SeededIds(7), bench.clock) if request.param == "memory" else iceberg_tables(tmp_path, 7)
    )
    yield found
    found.close()


def begun(bench: Bench, tables: Tables) -> tuple[Leader, str]:
    """A table with offsets 0 to 9 in two files. Returns a leader that will exchange the second file, and its
    key."""
    leader = bench.leader()
    view = bench.table(tables)
    keys = bench.write(leader, view, (0, 0, 5), (0, 5, 10))
    bench.commit(tables, leader)
    leader.take_over()
    return leader, keys[1]


def rewritten(bench: Bench, tables: Tables, leader: Leader, old_key: str) -> Exchange:
    """FILES_REWRITTEN for that archive."""
    view = view_of(tables)
    parsed = parse_archive_key(old_key)
    assert parsed is not None
    archive, file = bench.archive(view, leader.epoch, parsed.partition, parsed.base, parsed.end)
    body = pb.FilesRewritten(
        commit_id=COMMIT.bytes,
        topic_id=topic_bytes(),
        table_uuid=view.uuid.bytes,
        last_sequence_number=view.sequence_number,
        files=[pb.FilesRewritten.File(old_key=old_key, old_size=1, archive=archive.to_proto())],
    )
    leader.append(body)
    return Exchange(
        leader.fold.topic(TOPIC_ID).rewrites.under_way[archive.key],
        (f"file://{bench.folder}/{old_key}",),
        file,
    )


def exchange(
    bench: Bench, tables: Tables, leader: Leader, *items: Exchange, attempts: int = 4
) -> Exchanged | None:
    """One call, recorded in the ledger."""
    limits = CommitLimits(attempts_max=attempts, backoff_s=0.01)
    committer = Committer(tables, leader, limits, bench.clock)
    made = FileReplacer(
        tables, committer, leader, limits, bench.clock, lambda key: f"file://{bench.folder}/{key}"
    )
    found = made.exchange(bench.target, items, COMMIT)
    if found is not None:
        leader.append(found.to_proto(COMMIT, TOPIC_ID))
    return found


def check(bench: Bench, tables: Tables, leader: Leader, new_key: str, *, there: bool = True) -> None:
    """Every offset is there once. The new archive is in the table iff `there`. The next write is committed."""
    assert offsets_in(tables) == rows((0, 0, 10))
    assert any(file.path.endswith(new_key) for file in tables.live_files(view_of(tables))) == there
    bench.settle(tables, leader)
    bench.write(leader, view_of(tables), (0, 10, 12))
    assert bench.commit(tables, leader).watermarks[0] == 12
    assert offsets_in(tables) == rows((0, 0, 12))


def test_an_exchange_moves_nothing_but_the_file(tables: Tables, bench: Bench) -> None:
    leader, old = begun(bench, tables)
    before = view_of(tables)
    item = rewritten(bench, tables, leader, old)
    found = exchange(bench, tables, leader, item)
    new = item.rewrite.archive.key
    assert found is not None
    assert (found.replaced, found.abandoned, found.sequence_number) == (
        (new,),
        (),
        before.sequence_number + 1,
    )
    assert found.snapshot_id == view_of(tables).snapshot_id
    assert view_of(tables).properties == before.properties
    topic = leader.fold.topic(TOPIC_ID)
    assert (topic.rewrites.replaced[old].by, topic.watermarks[0], topic.sequence_number) == (
        new,
        10,
        before.sequence_number,
    )
    assert exchange(bench, tables, leader) is None
    check(bench, tables, leader, new)


@pytest.mark.parametrize("fault", [SwapFault.REPLY_LOST, SwapFault.DROPPED, SwapFault.FALSE_CONFLICT])
def test_an_answer_that_lies_or_does_not_come(tables: Tables, bench: Bench, fault: SwapFault) -> None:
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    faulty = FaultyTables(tables, fault)
    found = exchange(bench, faulty, leader, item)
    assert found is not None
    assert found.replaced == (item.rewrite.archive.key,)
    assert faulty.swaps == (2 if fault is SwapFault.DROPPED else 1)
    check(bench, tables, leader, item.rewrite.archive.key)


def test_a_request_that_lands_late_is_one_of_two(tables: Tables, bench: Bench) -> None:
    """The first request is in flight when the next leader abandons it and rewrites the archive. Only one of
    them can succeed."""
    leader, old = begun(bench, tables)
    first = rewritten(bench, tables, leader, old)
    slow = FaultyTables(tables, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown, match="may still land"):
        exchange(bench, slow, leader, first, attempts=1)
    heir = bench.leader("b")
    heir.refresh()
    abandoned = exchange(bench, tables, heir)
    assert abandoned is not None
    assert abandoned.abandoned[0][0] == first.rewrite.archive.key
    second = rewritten(bench, tables, heir, old)
    slow.deliver()  # before the second one
    found = exchange(bench, tables, heir, second)
    assert found is not None
    assert (found.replaced, [key for key, _ in found.abandoned]) == (
        (first.rewrite.archive.key,),
        [second.rewrite.archive.key],
    )
    assert heir.fold.topic(TOPIC_ID).rewrites.replaced[old].by == first.rewrite.archive.key
    check(bench, tables, heir, first.rewrite.archive.key)


def test_a_request_that_lands_after_its_successor_is_refused(tables: Tables, bench: Bench) -> None:
    leader, old = begun(bench, tables)
    first = rewritten(bench, tables, leader, old)
    slow = FaultyTables(tables, SwapFault.LATE)
    with pytest.raises(OutcomeUnknown):
        exchange(bench, slow, leader, first, attempts=1)
    heir = bench.leader("b")
    exchange(bench, tables, heir)
    second = rewritten(bench, tables, heir, old)
    exchange(bench, tables, heir, second)
    assert [outcome.value for outcome in slow.deliver()] == ["conflict"]
    check(bench, tables, heir, second.rewrite.archive.key)


def test_c4_a_deposed_leader_asks_no_one(tables: Tables, bench: Bench) -> None:
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    bench.leader("b")
    untouched = FaultyTables(tables)
    with pytest.raises(Deposed):
        exchange(bench, untouched, leader, item)
    assert untouched.swaps == 0


def test_c5_what_comes_between_look_and_swap_is_seen(tables: Tables, bench: Bench) -> None:
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    paused = Paused(tables, lambda: compact(tables, bench, 0, 0, 10))
    found = exchange(bench, paused, leader, item)
    assert found is not None
    assert (found.replaced, len(found.abandoned)) == ((), 1)
    assert "compacted" in found.abandoned[0][1]
    assert leader.fold.topic(TOPIC_ID).rewrites.replaced == {}
    check(bench, tables, leader, item.rewrite.archive.key, there=False)


def test_one_that_landed_and_was_compacted_since_counts_as_there(tables: Tables, bench: Bench) -> None:
    """No live file has it, but a snapshot of the lineage added it."""
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    with pytest.raises(OutcomeUnknown):
        exchange(bench, _BlindAfter(FaultyTables(tables, SwapFault.REPLY_LOST)), leader, item, attempts=1)
    compact(tables, bench, 0, 0, 10)
    found = exchange(bench, tables, leader)
    assert found is not None
    assert (found.replaced, found.abandoned) == ((item.rewrite.archive.key,), ())


@pytest.mark.parametrize("place", [0, 1])
def test_delete_files_of_any_file_stand_in_the_way(tables: Tables, bench: Bench, place: int) -> None:
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    found = exchange(bench, _WithDeletes(tables, place), leader, item)
    assert found is not None
    assert (found.replaced, len(found.abandoned)) == ((), 1)
    assert "delete files" in found.abandoned[0][1]
    check(bench, tables, leader, item.rewrite.archive.key, there=False)


class _WithDeletes(FaultyTables):
    """Reports delete files for the rows of one of its files."""

    def __init__(self, tables: Tables, place: int) -> None:
        super().__init__(tables)
        self._place = place

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        for number, file in enumerate(super().live_files(view, snapshot_id, nulls_of)):
            yield replace(file, has_deletes=number == self._place)


def test_p2_a_path_that_may_have_been_in_the_table_is_not_offered(tables: Tables, bench: Bench) -> None:
    """It was committed and rolled back, and the snapshot has expired. Only the incomplete history shows it."""
    leader, old = begun(bench, tables)
    base = view_of(tables).snapshot_id
    assert base is not None
    item = rewritten(bench, tables, leader, old)
    exchange_only = FaultyTables(tables, SwapFault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        exchange(bench, _BlindAfter(exchange_only), leader, item, attempts=1)
    roll_back(tables, base)
    expire_all_but_current(tables)
    found = exchange(bench, tables, leader, item)
    assert found is not None
    assert (found.replaced, "is not complete" in found.abandoned[0][1]) == ((), True)


class _BlindAfter(FaultyTables):
    """Cannot be loaded after a swap was requested."""

    def load(self, identifier):  # type: ignore[no-untyped-def]
        if self.swaps:
            raise RetryLater("away")
        return super().load(identifier)


def test_without_an_answer_in_time_the_next_run_goes_on(tables: Tables, bench: Bench) -> None:
    leader, old = begun(bench, tables)
    item = rewritten(bench, tables, leader, old)
    with pytest.raises(RetryLater, match="not exchanged after 4 attempts"):
        exchange(bench, _Away(tables), leader, item)
    assert exchange(bench, tables, leader, item) is not None


class _Away(FaultyTables):
    def load(self, identifier):  # type: ignore[no-untyped-def]
        raise RetryLater("the catalog is away")


def exchange_of(bench: Bench, base: int, end: int) -> tuple[Rewrite, Exchange]:
    view = bench.table(MemoryTables(SeededIds(1), bench.clock))
    archive, file = bench.archive(view, 2, 0, base, end)
    rewrite = Rewrite((OldArchive(f"old-{base}", 1),), archive, uuid.UUID(int=1), 5, 0)
    return rewrite, Exchange(rewrite, (f"old-{base}",), file)


@pytest.mark.parametrize(
    ("sight", "verdict"),
    [
        ({}, "offered"),
        ({"paths": {"NEW"}}, "replaced"),
        ({"live": {}}, "compacted"),
        ({"unbroken_since": 6}, "not complete"),
        ({"uuid": uuid.UUID(int=2)}, "not complete"),
        ({"spec_id": 1}, "partition spec"),
        ({"has_deletes": True}, "delete files"),
        ({"has_deletes": True, "paths": {"NEW"}}, "replaced"),
    ],
)
def test_each_rewrite_gets_one_verdict(bench: Bench, sight: dict[str, object], verdict: str) -> None:
    rewrite, item = exchange_of(bench, 0, 5)
    new = rewrite.archive.key
    seen = replace(TableContent(uuid.UUID(int=1), 5, (), {"old-0": 0}), **sight)  # type: ignore[arg-type]
    if seen.paths:
        seen = replace(seen, paths={new})
    found = judge_rewrites(Rewrites(under_way={new: rewrite}), {new: item}, str, seen)
    reported = "offered" if found.offered else "replaced" if found.replaced else found.abandoned[0][1]
    assert verdict in reported
    assert len(found.offered) + len(found.replaced) + len(found.abandoned) == 1


def test_what_an_earlier_run_left_is_not_offered_again(bench: Bench) -> None:
    rewrite, _ = exchange_of(bench, 0, 5)
    new = rewrite.archive.key
    seen = TableContent(uuid.UUID(int=1), 5, (), {"old-0": 0})
    found = judge_rewrites(Rewrites(under_way={new: rewrite}), {}, str, seen)
    assert found.abandoned == ((new, "the run that made it ended before the table had it"),)
    revived = judge_rewrites(
        Rewrites(abandoned={new: (rewrite, "why")}), {}, str, replace(seen, live={new: 0})
    )
    assert revived.replaced == (new,)
