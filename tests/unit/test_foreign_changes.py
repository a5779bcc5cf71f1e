"""What external snapshots changed, what the table keeps of it after their expiry, and which may expire at
all."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.expiry import expired, recorded
from archiver.catalog.external_changes import (
    CHANGES_MAX,
    OFFSETS_MAX,
    SNAPSHOTS_MAX,
    Change,
    ExpiredChanges,
    change_of,
    placed,
    property_after_repair,
    read_expired,
    retained_changes,
    rows_removed,
    unretired,
)
from archiver.catalog.table_layout import COMMIT_ID, EXPIRED_CHANGES
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import TopicLedger, WatermarkHistory
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId

NOW_US = 100_000_000
TOPIC = TopicId("a" * 32)


def snapshot(number: int, parent: int | None, operation: str = "append", **counts: int) -> SnapshotView:
    """A snapshot of ours, unless it has counts."""
    summary = {name.replace("_", "-"): str(count) for name, count in counts.items()} or {COMMIT_ID: "ours"}
    return SnapshotView(number, parent, number, 0, operation, summary)


def table(
    *snapshots: SnapshotView, reported: str | None = None, pinned: frozenset[int] = frozenset()
) -> TableView:
    """A table whose last snapshot is the current one."""
    properties = {} if reported is None else {EXPIRED_CHANGES: reported}
    current = snapshots[-1].snapshot_id
    return TableView(
        ("demo", "flights"),
        uuid.UUID(int=1),
        "",
        "",
        "",
        0,
        2,
        0,
        "day",
        current,
        current,
        properties,
        snapshots,
        pinned=pinned,
    )


def chain(*foreign: SnapshotView, length: int = 5) -> tuple[SnapshotView, ...]:
    """Snapshots 1 to `length`, each on the one before. Those in `foreign` replace ours of the same number."""
    known = {one.snapshot_id: one for one in foreign}
    return tuple(known.get(number, snapshot(number, number - 1 or None)) for number in range(1, length + 1))


DELETED = snapshot(3, 2, "delete", deleted_records=2)


def gone(view: TableView) -> list[int]:
    return sorted(expired(view, (), 1, 0, NOW_US))


def ledger(**starts: int) -> TopicLedger:
    return TopicLedger(TOPIC, starts={int(name[1:]): start for name, start in starts.items()})


@pytest.mark.parametrize(
    ("operation", "counts", "expected"),
    [
        ("delete", {"deleted_records": 3}, (3, 0, 0)),
        ("overwrite", {"deleted_records": 10, "added_records": 8}, (2, 0, 0)),
        ("overwrite", {"deleted_records": 8, "added_records": 8}, None),
        ("overwrite", {"deleted_records": 8, "added_records": 9}, (0, 0, 1)),
        ("overwrite", {"added_records": 1, "added_position_deletes": 1}, None),  # an update with delete files
        ("overwrite", {"added_records": 1, "added_position_deletes": 3}, (0, 2, 0)),
        ("delete", {"added_position_deletes": 3}, (0, 3, 0)),
        ("delete", {"deleted_records": 4, "removed_position_deletes": 1}, (4, -1, 0)),
        ("delete", {"deleted_records": 0}, None),
        ("replace", {"deleted_records": 9, "added_records": 7}, None),
        ("append", {"added_records": 5}, (0, 0, 5)),
        ("", {"added_records": 5}, (0, 0, 5)),
        ("append", {"deleted_records": 5}, None),
    ],
)
def test_a_change_is_what_the_summary_counts(
    operation: str, counts: dict[str, int], expected: tuple[int, int, int] | None
) -> None:
    one = snapshot(7, None, operation, **counts)
    found = change_of(one)
    assert (None if found is None else (found.rows, found.hidden, found.added)) == expected
    assert found is None or found.snapshots == (7,)
    assert change_of(replace(one, summary={**one.summary, COMMIT_ID: "ours"})) is None


def test_a_change_that_no_one_can_undo_expires_like_any_other() -> None:
    assert gone(table(*chain(DELETED))) == [1, 2, 3, 4]
    assert gone(table(*chain(snapshot(3, 2, "append", added_records=2)))) == [1, 2, 3, 4]


def test_a_change_stays_as_long_as_an_older_snapshot_does() -> None:
    """A rollback to that snapshot restores the rows, and the numbers would be wrong for good."""
    tagged = table(*chain(DELETED), pinned=frozenset({2}))
    assert gone(tagged) == [1, 4]
    assert gone(table(*chain(DELETED), pinned=frozenset({4}))) == [1, 2, 3], "made on it"
    ordinary = table(*chain(), pinned=frozenset({2}))
    assert gone(ordinary) == [1, 3, 4]


def test_a_change_stays_while_a_snapshot_outside_the_lineage_is_retained() -> None:
    """The table was rolled back to before the deletion, continued, and rolled forward again. Snapshot 4 is
    newer than the deletion and has the rows."""
    alongside = (snapshot(1, None), snapshot(2, 1), DELETED, snapshot(4, 2), snapshot(5, 3), snapshot(6, 5))
    assert gone(table(*alongside)) == [1, 2, 5]
    branch = (*alongside[:3], snapshot(4, 3), snapshot(5, 3), snapshot(6, 5))
    assert gone(table(*branch)) == [1, 2, 3, 5], "that one was made on it"


def test_of_two_changes_the_one_that_is_older_than_what_stays_goes() -> None:
    later = snapshot(4, 3, "delete", deleted_records=1)
    alongside = (
        snapshot(1, None),
        snapshot(2, 1, "delete", deleted_records=1),
        snapshot(3, 2),
        later,
        snapshot(6, 4),
        snapshot(7, 6),
    )
    assert gone(table(snapshot(5, 3), *alongside)) == [1, 2, 3, 6]


def test_a_change_that_a_pending_file_needs_or_that_is_young_stays() -> None:
    view = table(*chain(DELETED))
    assert sorted(expired(view, (), 4, 0, NOW_US)) == [1, 2]
    assert expired(view, (), 1, 200.0, NOW_US) == ()


def test_what_expires_is_reported_in_the_property_with_its_place() -> None:
    mine = ledger()
    mine.watermarks.update({0: 30, 1: 8})
    mine.past.moves(0, 0, 20)
    mine.past.moved(1)
    mine.past.moves(0, 20, 30)
    mine.past.moved(4)
    view = table(*chain(DELETED, snapshot(2, 1, "append", added_records=7)))
    reported = recorded(view, gone(view), mine, (30, 9))
    assert list(reported) == [EXPIRED_CHANGES]
    changes = [{"rows": 0, "hidden": 0, "added": 7, "below": [20, 9], "snapshots": [2]}]
    changes += [{"rows": 2, "hidden": 0, "added": 0, "below": [20, 9], "snapshots": [3]}]
    assert json.loads(reported[EXPIRED_CHANGES]) == {"v": 1, "changes": changes}
    assert recorded(view, [1], mine, (30, 9)) == {}
    assert recorded(replace(view, properties=reported), gone(view), mine, (30, 9)) == {}, (
        "the catalog took the property and kept the snapshots"
    )
    cut = recorded(view, [1, 4], mine, (30, 9))
    assert json.loads(cut[EXPIRED_CHANGES]) == {"v": 1, "changes": [], "kept": [2, 3]}, (
        "they stay, and nothing reaches them any more"
    )
    more = replace(
        table(*chain(replace(DELETED, snapshot_id=6, sequence_number=6), length=2)), properties=reported
    )
    again = replace(
        more,
        snapshots=(*more.snapshots, replace(DELETED, snapshot_id=6, parent_id=2), snapshot(7, 6)),
        snapshot_id=7,
    )
    assert [one.snapshots for one in read_expired(recorded(again, [6], mine, (30, 9))).changes] == [
        (2,),
        (3,),
        (6,),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"v":2,"changes":[]}',
        '{"v":1}',
        '{"v":1,"changes":7}',
        '{"v":1,"changes":[{}]}',
        '{"v":1,"changes":[{"rows":-1,"hidden":0,"added":0,"below":null,"snapshots":[]}]}',
        '{"v":1,"changes":[{"rows":true,"hidden":0,"added":0,"below":null,"snapshots":[]}]}',
        '{"v":1,"changes":[{"rows":1,"hidden":0,"added":0,"below":[1.5],"snapshots":[]}]}',
        '{"v":1,"changes":[{"rows":1,"hidden":0,"added":0,"below":[],"snapshots":["x"]}]}',
        "[" * 100_000,
    ],
)
def test_a_property_that_cannot_be_read_is_an_error_and_keeps_every_change(text: str) -> None:
    with pytest.raises(Corrupted, match=EXPIRED_CHANGES):
        ExpiredChanges.from_json(text)
    view = table(*chain(DELETED), reported=text)
    assert gone(view) == [1, 2], (
        "nothing could say of what the lineage is cut above whether it is an ancestor"
    )
    assert recorded(view, gone(view), ledger(), (1,)) == {}, "and is never written over"


CHANGES = st.builds(
    Change,
    st.integers(0, 9),
    st.integers(-3, 9),
    st.integers(0, 9),
    st.none() | st.lists(st.integers(0, 99), min_size=3, max_size=3).map(tuple),
    st.integers(1, 2**62).map(lambda number: (number,)),
)


@given(st.lists(CHANGES, max_size=40))
def test_sums_and_the_highest_place_survive_every_bound(changes: list[Change]) -> None:
    kept = ExpiredChanges()
    for one in changes:
        kept = ExpiredChanges.from_json(kept.with_more([one], {}).to_json())
    assert len(kept.changes) <= CHANGES_MAX

    def sums(found: list[Change]) -> tuple[int, int, int]:
        return (
            sum(one.rows for one in found),
            sum(one.hidden for one in found),
            sum(one.added for one in found),
        )

    left = list(unretired(changes, {}))
    # A change whose offsets are all 0 may be dropped once it is the oldest.
    if not any(one.below is not None and not any(one.below) for one in changes):
        assert sums(list(kept.changes)) == sums(left)
    if len(left) == len(changes) <= CHANGES_MAX:
        assert list(kept.changes) == left
    assert all(len(one.snapshots) <= SNAPSHOTS_MAX for one in kept.changes)


def test_a_property_is_bounded_also_for_thousands_of_partitions() -> None:
    wide = [Change(1, 0, 0, (10**12,) * 2000, (2**62 + number,)) for number in range(30)]
    kept = ExpiredChanges()
    for one in wide:
        kept = kept.with_more([one], {})
    assert sum(len(one.below or ()) for one in kept.changes) <= OFFSETS_MAX
    assert sum(one.rows for one in kept.changes) == 30
    assert len(kept.to_json()) < 64 * 1024
    alone = ExpiredChanges().with_more(
        [Change(1, 0, 0, (1,) * 9000, (1,)), Change(1, 0, 0, (2,) * 9000, (2,))], {}
    )
    assert alone.changes == (Change(2, 0, 0, (2,) * 9000, (1, 2)),)


def test_a_place_that_is_not_known_makes_the_sum_unknown() -> None:
    assert Change(1, below=(3,)).plus(Change(1, below=None)).below is None
    assert Change(added=1).plus(Change(1, below=(3, 4))).below == (3, 4)
    assert Change(1, below=(9, 1)).plus(Change(1, below=(3, 4))).below == (9, 4)


@pytest.mark.parametrize(
    ("lacking", "left"),
    # Five rows in total: four in the property, one in a snapshot.
    [
        (5, None),
        (6, None),
        (4, 3),
        (3, 2),
        (2, 1),
        (1, 0),
        (0, 0),
    ],
)
def test_a_repair_reports_no_more_rows_than_are_still_missing(lacking: int, left: int | None) -> None:
    """Restored rows are subtracted from the recorded removals. Other losses are not added."""
    reported = ExpiredChanges(
        (Change(rows=3, below=(5,), snapshots=(7,)), Change(hidden=1, below=(9,), snapshots=(8,)))
    ).to_json()
    view = replace(
        table(*chain(snapshot(3, 2, "delete", deleted_records=1))), properties={EXPIRED_CHANGES: reported}
    )
    assert rows_removed(view) == 5
    found = property_after_repair(view, lacking, (12,))
    if left is None:
        assert found == {}
    else:
        changes = (Change(rows=left, below=(12,), snapshots=(7, 8)),) if left else ()
        assert read_expired(found) == ExpiredChanges(changes)
    assert property_after_repair(replace(view, properties={EXPIRED_CHANGES: "damaged"}), lacking, (12,)) == {}


def test_where_the_ledger_merged_its_past_the_place_is_where_the_table_ends_now() -> None:
    """An offset that is too high does no harm, and retention passes it in the end."""
    mine = ledger()
    mine.past = WatermarkHistory(offsets_max=1)
    for number in (2, 3, 4):
        mine.past.moves(0, number, number + 1)
        mine.past.moved(number)
    view = table(*chain())
    assert placed(Change(1), view, mine, (9,), 2).below == (9,)
    assert placed(Change(1), view, mine, (9,), mine.past.exact_since).below == (9,)
    assert placed(Change(added=1), view, mine, (9,), 1).below == (9,), "what was added has a place as well"


def test_what_lies_closest_together_is_added_up_so_that_retention_passes_the_oldest() -> None:
    """Three rows are erased each day for a year. With thirty days of retention and a hundred offsets a day,
    the sums stay near the starts."""
    reported = ExpiredChanges()
    for day in range(365):
        reported = reported.with_more(
            [Change(1, below=(100 * day + at,)) for at in range(3)], {0: 100 * max(day - 30, 0)}
        )
        assert len(reported.changes) <= CHANGES_MAX
        assert sum(one.rows for one in reported.changes) <= 3 * 32, day
    assert ExpiredChanges((Change(1, below=(10,)),)).with_more([Change(1, below=(20,))], {0: 10}).changes == (
        Change(1, below=(20,)),
    )


@pytest.mark.parametrize(
    ("reported", "gone", "below"),
    [
        ({1: 3, 2: 5, 5: 9}, (), 5),
        ({2: 5, 5: 9}, (), 5),
        ({1: 3, 4: 7, 5: 9}, (), 7),  # the ledger recorded the commit at 2 only at 4
        ({1: 3, 4: 7, 5: 9}, (1, 2), 7),
        ({4: 7, 5: 9}, (1, 2), 7),
        ({5: 9}, (), 9),
        ({}, (), 9),
    ],
)
def test_a_commit_that_the_ledger_heard_of_late_may_have_come_before_the_removal(
    reported: dict[int, int], gone: tuple[int, ...], below: int
) -> None:
    """The publishing rig found this case. Ours are 1, 2, 4 and 5, the removal is 3. `told` maps sequence
    numbers to the watermarks that the ledger recorded then."""
    mine, at = ledger(), 0
    for number, offset in reported.items():
        mine.past.moves(0, at, offset)
        mine.past.moved(number)
        at = offset
    view = table(*(one for one in chain(DELETED) if one.snapshot_id not in gone))
    assert placed(Change(1), view, mine, (9,), 3).below == (below,)


def test_what_others_did_since_the_ledger_heard_last_moves_no_place() -> None:
    mine = ledger()
    for number, before, offset in ((2, 0, 5), (5, 5, 9)):
        mine.past.moves(0, before, offset)
        mine.past.moved(number)
    compacted = chain(
        snapshot(3, 2, "replace", added_records=0),
        replace(DELETED, snapshot_id=4, parent_id=3, sequence_number=4),
    )
    assert placed(Change(1), table(*compacted), mine, (9,), 4).below == (5,)
    assert placed(Change(1), table(*chain(length=4)), mine, (9,), 4).below == (9,), (
        "one of ours was there that moved nothing, or was recorded late"
    )


def test_retention_passes_what_can_only_have_been_below_it() -> None:
    old, new = Change(3, below=(10, 4)), Change(2, below=(20, 4))
    assert unretired((old, new), {}) == (old, new)
    assert unretired((old, new), {0: 10}) == (old, new), "of the other partition it may be"
    assert unretired((old, new), {0: 19, 1: 4}) == (new,)
    assert unretired((old, new), {0: 20, 1: 9}) == ()
    assert unretired((Change(3, below=None), new), {0: 99, 1: 99}) == (Change(3, below=None), new)
    assert unretired((new, old), {0: 10, 1: 4}) == (new, old), "in order"


def test_what_was_added_is_not_passed_before_as_much_was_removed() -> None:
    added, removed = Change(added=3, below=(8,)), Change(3, below=(10,))
    assert unretired((added,), {0: 7}) == (added,)
    assert unretired((added,), {0: 8}) == (), "retention took it out as well"
    assert unretired((added, removed), {0: 9}) == (added, removed), "it is what was removed later, perhaps"
    assert unretired((added, removed), {0: 99}) == ()
    assert unretired((removed, added), {0: 99}) == ()
    assert unretired((Change(added=3),), {}) == (Change(added=3),)
    assert ExpiredChanges((removed,)).with_more([Change(1, below=(12,))], {0: 11}).changes == (
        Change(1, below=(12,)),
    )


def test_changes_of_the_history_come_oldest_first_and_ours_are_none() -> None:
    view = table(*chain(DELETED, snapshot(4, 3, "append", added_records=1)))
    assert [one.snapshot_id for one, _ in retained_changes(view)] == [3, 4]
