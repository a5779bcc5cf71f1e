"""Rule C3: which pending archives may be offered to a table. Also: which snapshots our own expiry may remove."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.assessment import choose, complete_since
from archiver.catalog.evidence import Gaps
from archiver.catalog.expiry import expired
from archiver.catalog.tables import SnapshotView, TableView
from archiver.events.types import DataFile
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.views import PendingFile, WrittenEvent

TABLE = uuid.UUID(int=1)


def pending(
    partition: int,
    base: int,
    end: int,
    token: int = 0,
    table: uuid.UUID = TABLE,
    gap: bool = False,
    epoch: int = 1,
) -> PendingFile:
    key = "" if gap else f"archive/{partition}-{base}-{end}-{epoch}"
    archive = ArchiveFile(key, 1, b"", b"", partition, base, end, epoch, 1, end - base, 1, 0, 0)
    file = DataFile(path=f"file:///{key}", record_count=end - base, file_size=1)
    event = WrittenEvent(0, b"", b"", 1, (file,))
    return PendingFile(archive, bytes(16), table, token, 0, event, -1 if gap else 0)


def path(item: PendingFile) -> str:
    assert item.path is not None
    return item.path


def yes(_: PendingFile) -> bool:
    return True


def gaps_at(*found: tuple[int, int]) -> Gaps:
    """These gaps, in every partition."""
    return lambda _, start, end: [
        (max(low, start), min(high, end)) for low, high in found if low < end and high > start
    ]


def test_c3_a_chain_from_the_watermark_is_offered() -> None:
    files = [pending(0, 5, 8), pending(1, 0, 3), pending(0, 8, 9)]
    choice = choose(files, (5, 0, 7), frozenset(), yes)
    assert choice.offered == tuple(files)
    assert choice.killed == ()
    assert choice.reached == (9, 3, 7)  # the third partition is carried forward (C5)


def test_c3_a_path_in_the_lineage_is_committed_with_any_range() -> None:
    file = pending(0, 5, 8)
    choice = choose([file], (100,), {path(file)}, lambda _: False)
    assert (choice.committed, choice.offered, choice.killed, choice.reached) == ((file,), (), (), (100,))


def test_c3_covered_by_another_writers_file_is_killed_not_done() -> None:
    """Flaw 4: the same range, archived by another leader, is in the table."""
    choice = choose([pending(0, 0, 1)], (2,), frozenset(), yes)
    assert choice.committed == ()
    assert [why for _, why in choice.killed] == ["starts at 0, but the table is complete up to 2"]


def test_c3_straddling_is_killed_and_so_is_what_follows() -> None:
    """Flaw 5: [0,1) and [1,3) are pending when another leader's [0,2) is committed."""
    files = [pending(0, 0, 1), pending(0, 1, 3)]
    choice = choose(files, (2,), frozenset(), yes)
    assert [item for item, _ in choice.killed] == files
    assert choice.reached == (2,)


def test_c3_behind_a_hole_is_killed() -> None:
    choice = choose([pending(0, 7, 9)], (5,), frozenset(), yes)
    assert len(choice.killed) == 1


def test_c3_a_partition_does_not_disturb_another() -> None:
    good, bad = pending(1, 0, 4), pending(0, 7, 9)
    choice = choose([bad, good], (5, 0), frozenset(), yes)
    assert choice.offered == (good,)
    assert [item for item, _ in choice.killed] == [bad]


def test_c3_possibly_once_in_the_table_is_killed() -> None:
    """Flaws 9 and 10: history since the T3 token was expired, so the file may have been in the table before."""
    choice = choose([pending(0, 0, 4)], (0,), frozenset(), lambda _: False)
    assert "not complete" in choice.killed[0][1]


def test_c3_below_retentions_start_is_killed() -> None:
    choice = choose([pending(0, 0, 4)], (4,), frozenset(), yes, starts={0: 4})
    assert "retention" in choice.killed[0][1]


def test_c2_c3_bases_are_compared_modulo_gaps() -> None:
    """Flaw 12: offset 3 is a marker, the watermark by bounds is 3, the next file starts at 4."""
    choice = choose([pending(0, 4, 6)], (3,), frozenset(), yes, gaps=gaps_at((3, 4)))
    assert choice.reached == (6,)


def test_c3_a_range_of_gaps_carries_the_watermark_on_and_is_never_killed() -> None:
    files = [pending(0, 0, 2, gap=True), pending(0, 2, 4)]
    assert choose(files, (0,), frozenset(), yes).reached == (4,)
    assert choose(files[:1], (9,), frozenset(), yes).killed == ()


def test_c3_a_range_of_gaps_cannot_be_doubled_so_its_history_is_no_matter() -> None:
    """Otherwise it would be neither offered nor killed, and the watermark could never advance beyond it."""
    files = [pending(0, 0, 2, gap=True), pending(0, 2, 4)]
    assert choose(files[:1], (0,), frozenset(), lambda _: False).offered == (files[0],)
    choice = choose(files, (0,), frozenset(), lambda _: False)
    assert (choice.offered, choice.reached) == ((files[0],), (2,))
    assert [item for item, _ in choice.killed] == [files[1]]


def test_c3_a_range_of_gaps_that_the_table_is_past_is_not_offered_again() -> None:
    """Its snapshot is in the table, and the response was lost."""
    choice = choose([pending(0, 5, 8, gap=True)], (8,), frozenset(), yes, gaps=gaps_at((5, 8)))
    assert (choice.offered, choice.killed, choice.reached) == ((), (), (8,))


@pytest.mark.parametrize(
    ("watermark", "base", "fits"),
    [(3, 3, True), (3, 5, True), (5, 3, True), (4, 5, True), (3, 6, False), (2, 5, False), (6, 3, False)],
)
def test_c2_two_offsets_are_the_same_place_if_only_gaps_lie_between(
    watermark: int, base: int, fits: bool
) -> None:
    choice = choose([pending(0, base, 9)], (watermark,), frozenset(), yes, gaps=gaps_at((3, 5)))
    assert (len(choice.offered), len(choice.killed)) == ((1, 0) if fits else (0, 1))


def test_c3_a_partition_that_the_topic_lacks_is_killed() -> None:
    assert (
        "the topic has 1 partition, not 4" in choose([pending(3, 0, 1)], (0,), frozenset(), yes).killed[0][1]
    )


def table(lineage: list[int], last: int, abandoned: tuple[int, ...] = ()) -> TableView:
    """Snapshots named by their sequence numbers."""
    shots = [
        SnapshotView(100 + n, 100 + p if p else None, n, n * 1000, "append", {})
        for p, n in zip([0, *lineage], lineage, strict=False)
    ]
    shots += [SnapshotView(100 + n, None, n, n * 1000, "append", {}) for n in abandoned]
    return TableView(
        identifier=("n", "t"),
        uuid=TABLE,
        location="",
        metadata_location="",
        schema_json="{}",
        schema_id=0,
        format_version=2,
        spec_id=0,
        granularity="day",
        snapshot_id=100 + lineage[-1] if lineage else None,
        sequence_number=last,
        properties={},
        snapshots=tuple(shots),
    )


def complete(view: TableView, token: int, uid: uuid.UUID = TABLE) -> bool:
    return complete_since(view)(pending(0, 0, 1, token=token, table=uid))


def test_c3_complete_lineage() -> None:
    view = table([1, 2, 3], 3)
    assert [complete(view, token) for token in range(4)] == [True] * 4


def test_c3_expired_lineage_is_complete_only_above_the_cut() -> None:
    view = table([3, 4], 4)
    assert [complete(view, token) for token in range(5)] == [False, False, True, True, True]


def test_c3_a_commit_to_a_branch_leaves_the_history_complete_as_long_as_it_is_retained() -> None:
    """A retained branch shows what its commit added. After its expiry, the commit may have added any file
    that was written before."""
    view = table([1, 2, 4], 4, abandoned=(3,))
    assert [complete(view, token) for token in range(5)] == [True] * 5
    assert complete(table([1, 2], 3, abandoned=(3,)), 2), "the newest commit may be the branch's"
    assert [complete(table([1, 2, 4], 4), token) for token in range(5)] == [False, False, False, True, True]
    assert not complete(table([1, 2], 3), 2)


def test_c3_what_a_snapshot_outside_of_the_history_holds_is_not_offered() -> None:
    """The table may be rolled back to that snapshot."""
    files = [pending(0, 5, 8), pending(1, 0, 3)]
    choice = choose(files, (5, 0), frozenset(), yes, aside={path(files[0])})
    assert (choice.offered, [item for item, _ in choice.killed]) == ((files[1],), [files[0]])
    assert choose(files, (5, 0), {path(files[0])}, yes, aside={path(files[0])}).committed == (files[0],)


def test_c3_another_table_is_never_complete() -> None:
    assert not complete(table([1], 1), 1, uuid.UUID(int=2))


def test_c3_an_empty_table_is_complete() -> None:
    assert complete(table([], 0), 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4), st.booleans(), st.booleans()),
        max_size=8,
    ),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_c3_every_file_gets_one_verdict_and_what_is_offered_is_a_chain(
    ranges: list[tuple[int, int, int, bool, bool]], watermarks: tuple[int, int]
) -> None:
    files = [pending(p, base, base + size, epoch=n) for n, (p, base, size, _, _) in enumerate(ranges)]
    paths = {path(file) for file, one in zip(files, ranges, strict=True) if one[3]}
    incomplete = {path(file) for file, one in zip(files, ranges, strict=True) if one[4]}
    choice = choose(files, watermarks, paths, lambda item: path(item) not in incomplete)
    verdicts = [*choice.committed, *choice.offered, *(item for item, _ in choice.killed)]
    assert sorted(map(path, verdicts)) == sorted(map(path, files))
    assert {path(item) for item in choice.committed} == paths
    at = list(watermarks)
    for item in choice.offered:
        assert path(item) not in incomplete
        assert item.archive.base == at[item.archive.partition]
        at[item.archive.partition] = item.archive.end
    assert choice.reached == tuple(at)


NOW_US = 100_000_000
"""The snapshots are from the first ten seconds."""


def gone(view: TableView, files: list[PendingFile], most: int = 1, age_s: float = 0) -> list[int]:
    return sorted(snapshot - 100 for snapshot in expired(view, files, most, age_s, NOW_US))


def test_expiry_keeps_a_number_of_snapshots_however_old() -> None:
    view = table([1, 2, 3, 4, 5], 5)
    assert gone(view, [], most=3) == [1, 2, 3]  # 4, 5 and the new one remain
    assert gone(view, [], most=6) == []


def test_expiry_never_takes_the_base() -> None:
    assert gone(table([1, 2], 2), [], most=1, age_s=0) == [1]


def test_expiry_keeps_young_snapshots_however_many() -> None:
    view = table([1, 2, 9, 10], 10)
    assert gone(view, [], age_s=95.0) == [1, 2]
    assert gone(view, [], age_s=1e6) == []
    assert gone(view, [], most=4, age_s=95.0) == [1], "2 is old, and among the newest four"


def test_expiry_keeps_what_pending_files_need() -> None:
    view = table([1, 2, 3, 4, 5], 5)
    kept = [pending(0, 0, 1, token=2)]
    assert gone(view, kept, most=1) == [1, 2]
    after = table([3, 4, 5], 5)
    assert complete_since(after)(kept[0])


def test_expiry_keeps_tags_and_other_peoples_snapshots() -> None:
    view = replace(table([1, 2, 3], 3, abandoned=(9,)), pinned=frozenset({102}))
    assert gone(view, [], most=1) == [1]


def test_what_expiry_left_behind_the_cut_is_history_and_no_lineage() -> None:
    view = table([1, 2, 3, 4], 4)
    cut = replace(view, snapshots=tuple(s for s in view.snapshots if s.sequence_number in {2, 4}))
    assert [item.sequence_number for item in cut.lineage()] == [4]
    assert [item.sequence_number for item in cut.history()] == [4, 2]
    rolled_back = replace(view, snapshot_id=103)
    assert [item.sequence_number for item in rolled_back.history()] == [3, 2, 1]
