"""Branches, rollbacks and resets of a table: what a snapshot outside of the lineage holds is neither
forgotten nor added twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.catalog.reset_watermark import WatermarkReset
from archiver.catalog.tables import Tables
from archiver.runtime.errors import OutcomeUnknown
from archiver.runtime.ids import SeededIds, new_uuid
from tests.support.catalog.foreign_hands import (
    check_rows,
    commit_to_branch,
    iceberg_tables,
    roll_back,
    roll_forward,
    view_of,
)
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import Bench, FaultyTables, SwapFault


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


def test_c3_a_commit_to_a_branch_between_two_commits_refuses_no_archive(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    bench.commit(tables, leader)
    keys = bench.write(leader, view_of(tables), (0, 5, 9))
    before = view_of(tables)
    commit_to_branch(tables, bench)
    view = view_of(tables)
    assert (view.snapshot_id, view.sequence_number) == (before.snapshot_id, before.sequence_number + 1)
    outcome = bench.commit(tables, leader)
    assert (outcome.killed, outcome.committed, outcome.watermarks[0]) == ((), tuple(keys), 9)
    check_rows(tables, tmp_path, (0, 0, 9))


def test_c3_an_archive_that_a_branch_holds_is_made_again(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """Its commit landed, then the table was rolled back and its watermarks were reset. The snapshot that
    holds it may become current again."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader)
    keys = bench.write(leader, view_of(tables), (0, 5, 9))
    with pytest.raises(OutcomeUnknown):
        bench.commit(FaultyTables(tables, SwapFault.REPLY_LOST), leader, attempts_max=1)
    assert first.snapshot_id is not None
    held = view_of(tables).snapshot_id
    roll_back(tables, first.snapshot_id)
    WatermarkReset(tables, leader).restate(
        bench.target, view_of(tables), (5, 0), new_uuid(bench.ids)
    )  # and the ledger has no entry of it
    outcome = bench.commit(tables, leader)
    assert [key for key, _ in outcome.killed] == keys
    assert "outside of the table's history" in outcome.killed[0][1]
    check_rows(tables, tmp_path, (0, 0, 5))
    assert held in {snapshot.snapshot_id for snapshot in view_of(tables).snapshots}


def test_refused_archives_that_came_back_with_an_older_snapshot_are_found(
    tables: Tables, bench: Bench, tmp_path: Path
) -> None:
    """The table is rolled back, reset, and rolled forward to refused archives. Then a run takes it over that
    dies before the ledger entry."""
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5))
    first = bench.commit(tables, leader)
    keys = bench.write(leader, view_of(tables), (0, 5, 9))
    with pytest.raises(OutcomeUnknown):
        bench.commit(FaultyTables(tables, SwapFault.REPLY_LOST), leader, attempts_max=1)
    held = view_of(tables).snapshot_id
    assert first.snapshot_id is not None
    assert held is not None
    roll_back(tables, first.snapshot_id)
    restater = WatermarkReset(tables, leader)
    bench.tell(
        leader,
        replace(
            restater.restate(bench.target, view_of(tables), (5, 0), new_uuid(bench.ids)),
            killed=((keys[0], "set back"),),
        ),
    )
    bench.write(leader, view_of(tables), (0, 5, 7))
    roll_forward(tables, held)
    # and the ledger has no entry of it
    restater.restate(bench.target, view_of(tables), (9, 0), new_uuid(bench.ids))
    outcome = bench.settle(tables, bench.leader("b"))
    assert outcome is not None
    assert keys[0] in outcome.committed
    check_rows(tables, tmp_path, (0, 0, 9))
