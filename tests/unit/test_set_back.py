"""The watermark of a table that was set back: exact if the ledger saw every commit, never too high, never
below a row."""

from __future__ import annotations

import random
import uuid

import pytest

from archiver.catalog.evidence import Evidence
from archiver.catalog.table_layout import COMMIT_ID, REBUILT, REPLAYED, SET_BACK, WATERMARKS
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import TopicLedger
from archiver.runtime.ids import TopicId
from reconcile.repair.repairer import lowered, missing_below
from reconcile.snapshot.offset_coverage import Range

OURS = {COMMIT_ID: "x"}


def snapshot(
    number: int, parent: int | None, summary: dict[str, str] | None = None, operation: str = "append"
) -> SnapshotView:
    return SnapshotView(number, parent, number, 0, operation, OURS if summary is None else summary)


def view(
    *snapshots: SnapshotView, current: int | None, sequence: int = 99, newest: int | None = None
) -> TableView:
    """`newest`: the snapshot that the table's evidence names."""
    properties = (
        {} if newest is None else {WATERMARKS: Evidence(newest, newest, 1, uuid.UUID(int=1), ()).to_json()}
    )
    return TableView(
        identifier=("a", "b"), uuid=uuid.UUID(int=1), location="", metadata_location="", schema_json="{}", schema_id=0, format_version=2,
        spec_id=0, granularity="day", snapshot_id=current, sequence_number=sequence, properties=properties, snapshots=snapshots,
    )  # fmt: skip


def ledger_of(*commits: dict[int, int]) -> TopicLedger:
    """The ledger that recorded these commits, at the sequence numbers 1, 2, …"""
    made = TopicLedger(TopicId("ab" * 16))
    for number, offsets in enumerate(commits, start=1):
        commit(made, number, offsets)
    return made


def commit(made: TopicLedger, number: int, offsets: dict[int, int]) -> None:
    for partition, offset in offsets.items():
        made.past.moves(partition, made.watermark(partition), offset)
        made.watermarks[partition] = offset
    made.past.moved(number)


def no_gaps(partition: int, start: int, end: int) -> list[Range]:
    del partition, start, end
    return []


def test_the_watermark_of_the_commit_that_is_left() -> None:
    ledger = ledger_of({0: 5}, {0: 9, 1: 2}, {0: 12})
    lineage = (snapshot(1, None), snapshot(2, 1), snapshot(3, 2))
    assert lowered(view(*lineage, current=1), ledger, {0: ((0, 5),)}, 2, no_gaps) == (5, 0)
    assert lowered(view(*lineage, current=2), ledger, {0: ((0, 9),), 1: ((0, 2),)}, 2, no_gaps) == (9, 2)


def test_rows_that_were_erased_before_do_not_come_back() -> None:
    """The last rows of the remaining commit were deleted on purpose. The ledger knows that they were there."""
    ledger = ledger_of({0: 5}, {0: 9})
    erased = snapshot(2, 1, {}, "delete")
    assert lowered(view(snapshot(1, None), erased, current=2), ledger, {0: ((0, 2),)}, 1, no_gaps) == (5,)


def test_rows_that_were_erased_do_not_come_back_when_no_commit_of_ours_is_left_below() -> None:
    """The commit below has expired. The commit that followed the erasure states what the ledger knew before."""
    ledger = ledger_of({0: 5})
    commit(ledger, 3, {0: 9})
    erased, above = snapshot(2, None, {}, "delete"), snapshot(3, 2)
    compacted = snapshot(4, 3, {}, "replace")
    rows: dict[int, tuple[Range, ...]] = {0: ((0, 2),)}
    assert lowered(view(erased, above, compacted, current=2, newest=3), ledger, rows, 1, no_gaps) == (5,)
    assert lowered(view(erased, compacted, current=2, newest=3), ledger, rows, 1, no_gaps) == (2,), (
        "unknown: better twice than never"
    )


@pytest.mark.parametrize("silent", [REBUILT, REPLAYED, SET_BACK])
def test_what_the_ledger_did_not_hear_of_proves_nothing_of_what_is_below(silent: str) -> None:
    """The ledger is at the end of a history that was set back, or of a rebuilt table. Its watermarks are
    above the snapshot."""
    ledger = ledger_of({0: 5}, {0: 9})
    foreign, mine, above = (
        snapshot(3, None, {}, "replace"),
        snapshot(4, 3, {COMMIT_ID: "x", silent: "5"}),
        snapshot(5, 4),
    )
    rows: dict[int, tuple[Range, ...]] = {0: ((0, 5),)}
    assert lowered(view(foreign, mine, current=3, newest=4), ledger, rows, 1, no_gaps) == (5,)
    assert lowered(view(foreign, mine, above, current=3, newest=5), ledger, rows, 1, no_gaps) == (5,)


def test_a_part_of_a_table_that_was_made_again_says_nothing_of_the_watermark() -> None:
    """The ledger knows the old table's whole extent, and records the new one when all parts are committed."""
    ledger = ledger_of({0: 9})
    parts = (
        snapshot(1, None, {COMMIT_ID: "x", REBUILT: "1"}),
        snapshot(2, 1, {COMMIT_ID: "x", REBUILT: "1"}),
    )
    assert lowered(view(*parts, current=1, newest=2), ledger, {0: ((0, 5),)}, 1, no_gaps) == (5,)


def test_aborted_offsets_are_the_same_place() -> None:
    ledger = ledger_of({0: 5}, {0: 9})
    assert lowered(view(snapshot(1, None), current=1), ledger, {0: ((0, 5),)}, 1, lambda *_: [(5, 9)]) == (
        9,
    ), "nothing is missing"


def test_a_replay_says_nothing_of_the_watermark() -> None:
    """It carries the evidence of the commit before it. The commits between them were set back and are not in
    the lineage."""
    ledger = ledger_of({0: 5}, {0: 9})
    replay = snapshot(3, 1, {COMMIT_ID: "x", REPLAYED: "1"}, "replace")
    assert lowered(view(snapshot(1, None), replay, current=3), ledger, {0: ((0, 5),)}, 1, no_gaps) == (5,)


def test_an_earlier_takeover_says_nothing_of_the_watermark() -> None:
    """Its process died before the ledger entry. The ledger's watermarks at its number are of the history that
    was set back."""
    ledger = ledger_of({0: 5}, {0: 9})
    taken_over = snapshot(3, 1, {COMMIT_ID: "x", SET_BACK: "5"})
    assert lowered(view(snapshot(1, None), taken_over, current=3), ledger, {0: ((0, 5),)}, 1, no_gaps) == (5,)


def test_without_a_commit_of_ours_only_rows_count() -> None:
    ledger = ledger_of({0: 5}, {0: 9})
    assert lowered(view(current=None), ledger, {}, 1, no_gaps) == (0,)
    foreign = snapshot(7, 1, {}, "replace")
    assert lowered(view(foreign, current=7), ledger, {0: ((0, 5),)}, 1, no_gaps) == (5,)
    holed = lowered(view(foreign, current=7), ledger, {0: ((0, 2), (3, 5))}, 1, no_gaps)
    assert isinstance(holed, str)
    assert "offsets 2 between them are missing" in holed


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({0: ((0, 5), (7, 8))}, "offsets 5 to 6 between them are missing"),
        ({0: ((0, 5), (3, 5))}, "offsets 3 to 4 more than once"),
        ({0: ((0, 15),)}, "holds offsets up to 14, but the ledger ends at 9"),
        ({0: ((0, 5),), 4: ((0, 1),)}, "rows of partitions [4]"),
    ],
)
def test_what_is_unknown_is_refused(rows: dict[int, tuple[Range, ...]], why: str) -> None:
    refused = lowered(view(snapshot(1, None), current=1), ledger_of({0: 5}, {0: 9}), rows, 1, no_gaps)
    assert isinstance(refused, str)
    assert why in refused


def test_behind_a_cut_what_others_removed_may_be_missing_between_the_rows() -> None:
    found = view(snapshot(5, None, {}, "replace"), current=5, newest=3)
    ledger, rows = ledger_of({0: 20}, {1: 10}), {0: ((0, 3), (4, 18)), 1: ((2, 10),)}
    assert lowered(found, ledger, rows, 2, no_gaps, 3) == (18, 10)
    refused = lowered(found, ledger, rows, 2, no_gaps, 2)
    assert isinstance(refused, str)
    assert refused.startswith(
        "partition 1 was complete up to offset 0; it holds rows beyond, and offsets 0 to 1 between "
        "them are missing"
    )
    assert refused.endswith(", and others removed 2 rows")
    assert missing_below(ledger, rows, (18, 10), no_gaps) == 3


def test_random_histories_give_the_watermark_of_the_snapshot_that_is_left() -> None:
    """Commits of several partitions, rollbacks, takeovers and further commits. Each rollback gives the true
    watermarks."""
    for seed in range(300):
        dice = random.Random(seed)
        ledger = ledger_of()
        snapshots: list[SnapshotView] = []
        vectors: dict[int, list[int]] = {}
        current: int | None = None
        reached, number = [0, 0, 0], 0
        for _ in range(dice.randint(1, 12)):
            number += 1
            reached = [offset + dice.choice((0, 0, 3, 7)) for offset in reached]
            snapshots.append(snapshot(number, current))
            current, vectors[number] = number, list(reached)
            commit(ledger, number, dict(enumerate(reached)))
            if dice.random() < 0.3:
                ancestors = [item.snapshot_id for item in view(*snapshots, current=current).lineage()]
                current = dice.choice(ancestors)
                here = vectors[current]
                found = lowered(
                    view(*snapshots, current=current, sequence=number),
                    ledger,
                    {p: ((0, end),) for p, end in enumerate(here)},
                    3,
                    no_gaps,
                )
                assert found == tuple(here), f"seed {seed}"
                number += 1
                snapshots.append(snapshot(number, current))
                current, vectors[number], reached = number, list(here), list(here)
                commit(ledger, number, dict(enumerate(here)))
