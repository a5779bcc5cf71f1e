"""An external snapshot on a rolled-back table still needs the intake of the records it lacks, also after a
roll forward."""

from __future__ import annotations

import uuid
from dataclasses import replace

from archiver.catalog.table_layout import COMMIT_ID
from archiver.catalog.tables import LiveFile, SnapshotView, TableView
from reconcile.snapshot.retention_floor import external_branches, keeps_change, lacks, reached_by

OURS = {COMMIT_ID: "any"}


def snapshot(number: int, parent: int | None, *, ours: bool = True) -> SnapshotView:
    return SnapshotView(number, parent, number, 0, "append" if ours else "overwrite", OURS if ours else {})


def ids(view: TableView) -> list[int]:
    return [branch.snapshot_id for branch in external_branches(view)]


def named(path: str, sequence_number: int) -> LiveFile:
    return replace(file((0, 0), 1), path=path, sequence_number=sequence_number)


def table(current: int, *snapshots: SnapshotView) -> TableView:
    return TableView(
        ("demo", "flights"), uuid.UUID(int=1), "", "", "", 0, 2, 0, "day", current, 9, {}, snapshots
    )


def test_a_branch_is_recognized_by_its_root_as_long_as_that_is_retained() -> None:
    """Two snapshots of ours, then an external one on the first after a rollback. Then the second is current
    again."""
    whole = table(
        2, snapshot(1, None), snapshot(2, 1), snapshot(3, 1, ours=False), snapshot(4, 3, ours=False)
    )
    assert ids(whole) == []
    for parent in (None, 1):  # some catalogs keep the number of the expired parent
        expired = replace(
            whole, snapshots=(snapshot(2, None), snapshot(3, parent, ours=False), snapshot(4, 3, ours=False))
        )
        assert ids(expired) == [3, 4]


def test_the_lineage_itself_is_no_branch() -> None:
    assert ids(table(3, snapshot(2, None, ours=False), snapshot(3, 2))) == []
    assert ids(table(2, snapshot(2, None, ours=False))) == []


def test_behind_the_cut_a_branch_looks_like_an_ancestor_and_only_changes_of_rows_are_taken_for_one() -> None:
    """The older snapshot of ours and the next one are expired. Nothing states the parent of the external one."""
    for operation, kept in (("replace", False), ("append", False), ("delete", True), ("overwrite", True)):
        foreign = replace(snapshot(3, 1, ours=False), operation=operation)
        view = table(5, foreign, snapshot(4, 2), snapshot(5, 4))
        assert ids(view) == [3]
        assert keeps_change(view, foreign) is kept
        assert keeps_change(view, replace(foreign, summary={"added-records": "3"})) is (
            operation != "replace"
        )
        assert not keeps_change(view, replace(foreign, summary={**OURS, "added-records": "3"}))
        assert not keeps_change(replace(view, snapshots=(snapshot(2, 1), *view.snapshots)), foreign), (
            "newer than what it lacks"
        )


def test_a_removal_behind_the_cut_is_no_ancestor_of_a_table_that_has_an_older_file_without_it() -> None:
    held = [named("a", 1), named("b", 3)]
    assert not lacks(held, [named("a", 1), named("b", 3), named("c", 4)], 3)
    assert not lacks(held, [named("a compacted", 3), named("c", 4)], 3), (
        "some tools give the sequence number of what they began with"
    )
    assert lacks(held, [named("a", 1), named("lost", 2)], 3)


def file(partition: tuple[int | None, int | None], offset_max: int | None) -> LiveFile:
    return LiveFile("p", 1, 1, 0, (0,), 0, offset_max, *partition, 1, 1)


def test_files_report_how_far_a_snapshot_reaches_at_least() -> None:
    """A file gives no bound if it mixes partitions, is external, or is of a partition that the topic does not
    have."""
    files = [
        file((0, 0), 3),
        file((0, 0), 1),
        file((0, 1), 9),
        file((None, None), None),
        file((1, 1), None),
        file((7, 7), 5),
    ]
    assert reached_by(files, 2) == (4, 0)
