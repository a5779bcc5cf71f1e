"""Removing files below a start from a table: which ones, with lost responses, external changes and pending
archives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.catalog.commit import below_start
from archiver.catalog.evidence import Known, judge, read_evidence
from archiver.catalog.table_layout import StreamFields
from archiver.catalog.tables import LiveFile, Tables
from archiver.ledger.leader import Leader
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Deposed
from archiver.runtime.ids import SeededIds, new_uuid
from tests.support.catalog.foreign_hands import (
    check_rows,
    compact,
    expire_all_but_current,
    iceberg_tables,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import (
    IDENTIFIER,
    Bench,
    FaultyTables,
    SwapFault,
    offsets_in,
    rows,
    topic_bytes,
)

FIELDS = StreamFields(1, 2, 3)
OURS = (
    "s3://b/archive/"
    + "ab" * 16
    + "/data/partition=00000/year=2024/month=10/day=04/"
    + f"{0:020}-{10:020}-{1:08}.parquet"
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(params=["iceberg", "memory"])
def tables(request: pytest.FixtureRequest, tmp_path: Path, bench: Bench) -> Iterator[Tables]:
    found: Tables = (
        iceberg_tables(tmp_path, 7) if request.param == "iceberg" else MemoryTables(SeededIds(7), bench.clock)
    )
    yield found
    found.close()


def live(path: str, low: int, high: int, last: int, **nulls: int) -> LiveFile:
    counts = tuple((field, nulls.get(name, 0)) for field, name in ((1, "partition"), (2, "offset")))
    return LiveFile(path, 1, 1, 0, (0,), 0, last, low, high, 1, 1, null_counts=counts)


def test_only_files_of_which_every_row_is_below_its_start() -> None:
    files = [
        live("a", 0, 0, 9),
        live("b", 0, 0, 10),
        live("c", 1, 1, 0),
        live("d", 0, 1, 4),
        live("e", 0, 1, 5),
        live("f", 0, 2, 1),
    ]
    assert list(below_start(files, {0: 10, 1: 5}, FIELDS)) == ["a", "c", "d"]
    assert list(below_start(files, {}, FIELDS)) == []


def test_a_file_whose_rows_need_not_have_coordinates_stays() -> None:
    without = replace(live("a", 0, 0, 1), null_counts=())
    unknown = [
        live("b", 0, 0, 1, offset=3),
        live("c", 0, 0, 1, partition=1),
        without,
        replace(without, offset_max=None),
    ]
    assert list(below_start(unknown, {0: 10}, FIELDS)) == []
    assert list(below_start([replace(without, path=OURS)], {0: 10}, FIELDS)) == [OURS], (
        "archives of ours have them in every row"
    )


def begun(bench: Bench, tables: Tables) -> Leader:
    """Two archives of partition 0 and one of partition 1, and a start that passes the first."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5), (0, 5, 9), (1, 0, 4))
    bench.commit(tables, leader)
    move(leader, 7)
    return leader


def move(leader: Leader, start: int) -> None:
    leader.append(
        pb.StartMoved(topic_id=topic_bytes(), starts=[pb.PartitionOffset(partition=0, offset=start)])
    )


def retire(bench: Bench, tables: Tables, leader: Leader) -> None:
    outcome = bench.committer(tables, leader).retire(bench.target, new_uuid(bench.ids))
    assert outcome is not None
    if outcome.news:
        bench.tell(leader, outcome)


def test_c5_evidence_is_carried_forward_and_a_second_call_finds_nothing(tables: Tables, bench: Bench) -> None:
    leader = begun(bench, tables)
    retire(bench, tables, leader)
    check_rows(tables, bench.folder, (0, 5, 9), (1, 0, 4))
    view = view_of(tables)
    evidence = read_evidence(view.properties)
    assert evidence is not None
    assert (evidence.snapshot_id, evidence.offsets) == (view.snapshot_id, (9, 4))
    retire(bench, tables, leader)
    assert view_of(tables).sequence_number == view.sequence_number
    bench.write(leader, view_of(tables), (0, 9, 12))
    bench.commit(tables, leader)
    check_rows(tables, bench.folder, (0, 5, 12), (1, 0, 4))


def test_what_is_pending_stays_pending(tables: Tables, bench: Bench) -> None:
    leader = begun(bench, tables)
    bench.write(leader, view_of(tables), (0, 9, 12))
    retire(bench, tables, leader)
    check_rows(tables, bench.folder, (0, 5, 9), (1, 0, 4))
    bench.commit(tables, leader)
    check_rows(tables, bench.folder, (0, 5, 12), (1, 0, 4))


@pytest.mark.parametrize(
    "fault", [SwapFault.REPLY_LOST, SwapFault.DROPPED, SwapFault.FALSE_CONFLICT, SwapFault.LATE]
)
def test_c6_after_a_lost_reply_the_table_says_what_became_of_it(
    fault: SwapFault, tables: Tables, bench: Bench
) -> None:
    leader = begun(bench, tables)
    faulty = FaultyTables(tables, fault)
    retire(bench, faulty, leader)
    faulty.deliver()
    check_rows(tables, bench.folder, (0, 5, 9), (1, 0, 4))
    bench.write(leader, view_of(tables), (0, 9, 12))
    bench.commit(tables, leader)
    check_rows(tables, bench.folder, (0, 5, 12), (1, 0, 4))


def test_c4_a_deposed_leader_takes_nothing_out(tables: Tables, bench: Bench) -> None:
    leader = begun(bench, tables)
    bench.leader("b")
    with pytest.raises(Deposed):
        retire(bench, tables, leader)
    assert offsets_in(tables) == rows((0, 0, 9), (1, 0, 4))


def test_c1_all_retired_and_the_evidence_expired_nothing_is_archived_again(
    tables: Tables, bench: Bench
) -> None:
    """Finding 13 of the model: by bounds alone the partition would end at 0."""
    leader = begun(bench, tables)
    move(leader, 9)
    retire(bench, tables, leader)
    compact(tables, bench, 1, 0, 4)
    expire_all_but_current(tables)
    view = view_of(tables)
    assert view.identifier == IDENTIFIER
    known = judge(view, 2, lambda: tables.live_files(view), leader.fold.topics[bench.target.topic_id].starts)
    assert isinstance(known, Known)
    assert known.watermarks == (9, 4)
    assert bench.settle(tables, leader) is None or leader.fold.topic(bench.target.topic_id).watermark(0) == 9
    bench.write(leader, view, (0, 9, 12))
    bench.commit(tables, leader)
    check_rows(tables, bench.folder, (0, 9, 12), (1, 0, 4))
