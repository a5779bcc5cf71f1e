"""Does each kind of damage get its verdict, and only damage? Views are synthetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from reconcile.audit.rules import PartitionFinding, judge_topic
from reconcile.snapshot.offset_coverage import Range
from reconcile.snapshot.topic_views import FileView, PartitionView, Removal, TableState, TopicView

TOPIC = TopicId("a" * 32)


def archive(base: int, end: int, partition: int = 0, **changes: Any) -> FileView:
    file = FileView(
        path=f"file:///data/{partition}/{base}-{end}.parquet",
        record_count=end - base,
        file_size=1000,
        object_size=1000,
        key=ArchiveKey(TOPIC, partition, "day", 20_000, base, end, 1),
        offset_min=base,
        offset_max=end - 1,
        partition_min=partition,
        partition_max=partition,
    )
    return replace(file, **changes)


def foreign(rows: dict[int, tuple[Range, ...]] | None, **changes: Any) -> FileView:
    count = 0 if rows is None else sum(high - low for ranges in rows.values() for low, high in ranges)
    return replace(FileView("file:///data/compacted.parquet", count, 500, 500, rows=rows), **changes)


def one(
    files: list[FileView],
    *,
    watermark: int = 30,
    stable: int = 40,
    reported: int | None = 30,
    pending: tuple[Range, ...] = (),
    doubt: str | None = None,
    gaps: tuple[Range, ...] | None = (),
    passed: tuple[Range, ...] = (),
    start: int = 0,
    **table: Any,
) -> PartitionFinding:
    """The finding on a topic of one partition."""
    state = TableState(
        "shop.orders", 7, None if reported is None else {0: reported}, doubt, tuple(files), **table
    )
    partition = PartitionView(0, start, stable, stable, watermark, pending, gaps=gaps, passed=passed)
    (found,) = judge_topic(TopicView("orders", TOPIC, "iceberg", (partition,), state))
    return found


WHOLE = [archive(0, 10), archive(10, 20), archive(20, 30)]


def test_every_offset_once_is_valid() -> None:
    found = one(WHOLE)
    assert (found.verdict, found.rows, found.proof, found.why) == ("valid", 30, "bounds", None)


def test_order_of_files_does_not_matter() -> None:
    assert one([WHOLE[2], WHOLE[0], WHOLE[1]]).verdict == "valid"


def test_a_topic_without_records_is_valid_with_zero_rows() -> None:
    found = one([], watermark=0, stable=0, reported=0)
    assert (found.verdict, found.rows) == ("valid", 0)
    view = TopicView("orders", TOPIC, "iceberg", (PartitionView(0, 0, 0, 0, 0),))
    assert judge_topic(view)[0].verdict == "valid"


def test_records_not_archived_yet_are_no_fault() -> None:
    found = one(WHOLE, stable=1000, pending=((30, 50),))
    assert (found.verdict, found.pending) == ("valid", ((30, 50),))


def test_missing_file() -> None:
    found = one([WHOLE[0], WHOLE[2]])
    assert (found.verdict, found.missing, found.doubled) == ("invalid", ((10, 20),), ())
    assert "offsets 10 to 19 are not in the table" in (found.why or "")


def test_doubled_file() -> None:
    found = one([*WHOLE, WHOLE[1]])
    assert (found.verdict, found.doubled, found.missing) == ("invalid", ((10, 20),), ())


def test_overlapping_files() -> None:
    found = one([archive(0, 15), archive(10, 30)])
    assert (found.verdict, found.doubled) == ("invalid", ((10, 15),))


@pytest.mark.parametrize("count", [9, 11, 0])
def test_wrong_number_of_rows(count: int) -> None:
    found = one([WHOLE[0], archive(10, 20, record_count=count), WHOLE[2]])
    assert (found.verdict, found.missing) == ("invalid", ((10, 20),))
    assert f"has {count} rows by the table, its name means 10" in (found.why or "")


@pytest.mark.parametrize(
    "bounds", [{"offset_min": 11}, {"offset_max": 20}, {"partition_min": 1, "partition_max": 1}]
)
def test_bounds_that_contradict_the_name(bounds: dict[str, int]) -> None:
    assert one([WHOLE[0], archive(10, 20, **bounds), WHOLE[2]]).verdict == "invalid"


def test_dangling_file() -> None:
    found = one([WHOLE[0], archive(10, 20, object_size=None), WHOLE[2]])
    assert (found.verdict, found.missing) == ("invalid", ((10, 20),))
    assert "is not in the object store" in (found.why or "")


def test_object_of_another_size() -> None:
    found = one([WHOLE[0], archive(10, 20, object_size=999), WHOLE[2]])
    assert found.verdict == "invalid"
    assert "has 999 bytes, the table says 1000" in (found.why or "")


def test_table_behind_the_ledger() -> None:
    found = one(WHOLE[:2], reported=20)
    assert (found.verdict, found.missing) == ("invalid", ((20, 30),))
    assert "complete up to offset 20 by its own evidence, the ledger says 30" in (found.why or "")


def test_evidence_behind_the_ledger_with_all_rows_there_is_not_reported() -> None:
    assert one(WHOLE, reported=20).verdict == "unknown"


def test_doubted_evidence_is_not_reported_even_if_all_rows_are_there() -> None:
    found = one(WHOLE, reported=None, doubt="it was rolled back")
    assert (found.verdict, found.why) == ("unknown", "table shop.orders: it was rolled back")


def test_doubted_evidence_and_missing_rows() -> None:
    found = one(WHOLE[:1], reported=None, doubt="it was rolled back")
    assert (found.verdict, found.missing) == ("invalid", ((10, 30),))


def test_swap_that_the_ledger_has_not_recorded_yet() -> None:
    found = one([*WHOLE, archive(30, 40)], reported=40, pending=((30, 40),))
    assert (found.verdict, found.rows, found.pending) == ("valid", 40, ())
    assert "is not in the ledger yet" in (found.why or "")


def test_commit_that_the_ledger_never_heard_of() -> None:
    assert one([*WHOLE, archive(30, 40)], reported=40).verdict == "unknown"


def test_rows_beyond_stable() -> None:
    found = one([*WHOLE, archive(30, 50)], reported=50, pending=((30, 50),))
    assert found.verdict == "invalid"
    beyond = one([*WHOLE, archive(40, 50)])
    assert beyond.verdict == "invalid"
    assert "holds offsets 40 to 49, but only those below 40 are stable" in (beyond.why or "")


def test_rows_beyond_the_watermark_that_no_one_wrote() -> None:
    found = one([*WHOLE, archive(32, 35)])
    assert found.verdict == "invalid"
    assert "32 to 34" in (found.why or "")


def test_ledger_beyond_the_log() -> None:
    assert one(WHOLE, stable=20).verdict == "invalid"
    assert one(WHOLE[:2], watermark=30, reported=30, stable=20).verdict == "invalid"


HOLED = [WHOLE[0], archive(10, 20, record_count=8, gaps=((13, 15),)), WHOLE[2]]


def test_gaps_are_not_missing() -> None:
    found = one(HOLED, gaps=((13, 15),))
    assert (found.verdict, found.gaps, found.rows) == ("valid", ((13, 15),), 28)
    above = one(HOLED, gaps=((13, 15), (33, 36)))
    assert (above.verdict, above.gaps) == ("valid", ((13, 15), (33, 36)))


def test_a_range_of_gaps_has_no_file() -> None:
    found = one([WHOLE[0], WHOLE[2]], gaps=((10, 20),))
    assert (found.verdict, found.gaps, found.missing) == ("valid", ((10, 20),), ())
    assert one([WHOLE[0], WHOLE[2]], gaps=((10, 19),)).missing == ((19, 20),)


def test_rows_in_a_gap() -> None:
    found = one([*HOLED, foreign({0: ((13, 14),)})], gaps=((13, 15),))
    assert found.verdict == "invalid"
    assert "rows at offsets 13, which are gaps" in (found.why or "")
    whole = one(WHOLE, gaps=((13, 15),))
    assert (whole.verdict, whole.missing, whole.doubled) == ("invalid", (), ())
    assert "rows at offsets 13 to 14, which are gaps" in (whole.why or "")


def test_a_gap_that_the_log_does_not_know_is_a_loss() -> None:
    found = one(HOLED)
    assert (found.verdict, found.missing, found.gaps) == ("invalid", ((13, 15),), ())
    assert "offsets 13 to 14 were archived as gaps, and the intake log has records there" in (found.why or "")
    passed = one([WHOLE[0], WHOLE[2]], passed=((10, 20),))
    assert (passed.verdict, passed.missing) == ("invalid", ((10, 20),))
    assert one(HOLED, gaps=((13, 14),)).missing == ((14, 15),)


def test_beyond_what_is_stable_the_log_has_not_the_last_word() -> None:
    """In an old copy of the log the transaction is still open. The archives show that it was aborted."""
    found = one(HOLED, stable=12)
    assert (found.missing, found.gaps) == ((), ((13, 15),))


def test_a_log_that_cannot_give_its_gaps_is_replaced() -> None:
    """The footers of archives state the gaps. For ranges without a file, the ledger does."""
    assert (one(HOLED, gaps=None).verdict, one(HOLED, gaps=None).gaps) == ("valid", ((13, 15),))
    passed = one([WHOLE[0], WHOLE[2]], gaps=None, passed=((10, 20),))
    assert (passed.verdict, passed.gaps) == ("valid", ((10, 20),))
    lost = one([WHOLE[0], WHOLE[2]], gaps=None)
    assert (lost.verdict, lost.missing) == ("unknown", ((10, 20),))
    assert "the intake log does not show which offsets are gaps" in (lost.why or "")


def test_compacted_by_others_proves_by_rows() -> None:
    found = one([foreign({0: ((0, 30),)})])
    assert (found.verdict, found.proof, found.rows) == ("valid", "rows", 30)
    assert one([foreign({0: ((0, 29),)})]).missing == ((29, 30),)
    assert one([foreign({0: ((0, 30), (4, 5))})]).doubled == ((4, 5),)


def test_foreign_file_that_could_not_be_read() -> None:
    found = one([WHOLE[0], WHOLE[1], foreign(None, unread="no permission")])
    assert (found.verdict, found.proof) == ("unknown", "bounds")
    assert "no permission" in (found.why or "")


def test_foreign_file_concerns_only_the_partitions_of_its_bounds() -> None:
    files = [archive(0, 5, 0), archive(0, 5, 1), foreign(None, unread="x", partition_min=1, partition_max=1)]
    partitions = (PartitionView(0, 0, 5, 5, 5), PartitionView(1, 0, 5, 5, 5))
    state = TableState("t", 1, {0: 5, 1: 5}, None, tuple(files))
    assert [
        found.verdict for found in judge_topic(TopicView("orders", TOPIC, "iceberg", partitions, state))
    ] == ["valid", "unknown"]


def test_removed_by_another_writer() -> None:
    found = one([foreign({0: ((0, 12), (14, 30))})], removals=(Removal(99, 2),))
    assert (found.verdict, found.removed, found.missing) == ("valid", ((12, 14),), ())
    assert "snapshot 99" in (found.why or "")


def test_a_removal_does_not_explain_what_came_after_it() -> None:
    """This holds for any counts: rows that came into the table later cannot have been removed."""
    for below, verdict in (({0: 14}, "valid"), ({0: 13}, "invalid"), ({}, "invalid"), (None, "valid")):
        found = one([foreign({0: ((0, 12), (14, 30))})], removals=(Removal(99, 2, below=below),))
        assert (found.verdict, bool(found.missing)) == (verdict, verdict == "invalid"), (below, found.why)
    assert "came before offsets 12 to 13" in (
        one([foreign({0: ((0, 12), (14, 30))})], removals=(Removal(99, 2, below={}),)).why or ""
    )
    earlier_and_later = (Removal(98, 1, below={0: 5}), Removal(99, 1, below={0: 20}))
    assert one([foreign({0: ((0, 12), (14, 30))})], removals=earlier_and_later).verdict == "valid"


def test_more_missing_than_removed() -> None:
    found = one([foreign({0: ((0, 12), (15, 30))})], removals=(Removal(99, 2),))
    assert (found.verdict, found.missing, found.removed) == ("invalid", ((12, 15),), ())


def test_fewer_missing_than_removed() -> None:
    assert one(WHOLE, removals=(Removal(99, 2),)).verdict == "unknown"


def test_which_partitions_rows_were_removed_from_is_not_shown_for_some_partitions() -> None:
    """All removed rows may be of the partitions that were not audited. Then as many rows are lost here."""
    for lost, removed, verdict in ((2, 2, "unknown"), (2, 5, "unknown"), (3, 2, "invalid"), (0, 2, "valid")):
        state = TableState(
            "t", 7, {0: 30, 1: 30}, None, (foreign({0: ((0, 12), (12 + lost, 30))}),), (Removal(99, removed),)
        )
        partition = PartitionView(0, 0, 40, 40, 30)
        (found,) = judge_topic(TopicView("orders", TOPIC, "iceberg", (partition,), state, count=2))
        assert (found.verdict, found.removed) == (verdict, ()), (lost, removed, found.why)


def test_rows_that_others_added_and_took_out_again_are_not_missed() -> None:
    """But while the counts do not match, missing rows do not count as removed."""
    for missing, removed, added, verdict in (
        (0, 3, 3, "valid"),
        (2, 5, 3, "valid"),
        (1, 3, 3, "invalid"),
        (0, 3, 2, "unknown"),
        (6, 5, 3, "invalid"),
        (5, 5, 3, "invalid"),
    ):
        left = foreign({0: ((0, 12), (12 + missing, 30))})
        assert one([left], removals=(Removal(99, removed),), additions=added).verdict == verdict, (
            missing,
            removed,
            added,
        )


def test_rows_of_others_that_are_still_there_explain_nothing() -> None:
    """They may be at offsets of ours, in gaps, or without a place. Only rows that came and went reduce the
    number of removed rows."""
    erased: tuple[Range, ...] = ((0, 12), (14, 30))
    for strange, unplaced, added, removed, explained in (
        ((), 0, 0, 2, True),
        (((3, 6),), 0, 3, 2, True),
        (((3, 6),), 0, 3, 5, False),
        (((3, 6),), 0, 5, 4, True),
        (((35, 38),), 0, 3, 2, True),
        ((), 3, 3, 2, True),
        ((), 3, 3, 5, False),
        ((), 0, 3, 5, True),
        (((3, 6),), 0, 0, 2, True),
    ):
        files = [
            foreign({0: erased}),
            foreign({0: strange}, record_count=unplaced + sum(high - low for low, high in strange)),
        ]
        found = one(files, removals=(Removal(99, removed),), additions=added)
        assert (found.removed == ((12, 14),)) is explained, (strange, unplaced, added, removed, found.why)
        assert found.verdict == ("valid" if explained and not strange else "invalid"), found.why


def test_where_retention_has_passed_part_of_a_removal_nothing_is_called_lost() -> None:
    """Rows 1 and 7 were erased and the start is 5, so the counts do not show whether 7 was one of them. More
    missing rows than removed ones are a loss."""
    for missing, removed, added, verdict in (
        (1, 2, 0, "unknown"),
        (2, 2, 0, "valid"),
        (3, 2, 0, "invalid"),
        (1, 1, 2, "unknown"),
    ):
        left = foreign({0: ((5, 7), (7 + missing, 30))})
        found = one([left], start=5, removals=(Removal(99, removed),), additions=added)
        assert found.verdict == verdict, (missing, removed, added, found.why)


def test_what_has_expired_is_named_as_such() -> None:
    removals = (Removal(99, 1), Removal(98, 1, expired=(97, 98)))
    found = one([foreign({0: ((0, 12), (14, 30))})], removals=removals)
    assert (
        found.why == "offsets 12 to 13 were removed by external snapshot 99, 98 (which has expired), 97 "
        "(which has expired)"
    )
    hidden = one(
        [foreign({0: ((0, 12), (14, 30))})], removals=removals, removed={0: ((12, 14),)}, removed_by=(98, 99)
    )
    assert "snapshot 99, 98 (which has expired)" in (hidden.why or "")


def test_without_knowing_what_expired_snapshots_changed_nothing_missing_is_reported() -> None:
    for files, removals in (
        (WHOLE, ()),
        ([foreign({0: ((0, 12), (14, 30))})], ()),
        ([foreign({0: ((0, 12), (14, 30))})], (Removal(99, 1),)),
        ([foreign({0: ((0, 12), (14, 30))})], (Removal(99, 2),)),
    ):
        found = one(files, removals=removals, changes_unknown="the property is damaged")
        assert (found.verdict, found.removed) == ("unknown", ()), found.why
        assert "the property is damaged" in (found.why or "")
    assert (
        one([*WHOLE, foreign({0: ((7, 8),)})], changes_unknown="the property is damaged").verdict == "invalid"
    )


def test_rows_that_were_hidden_and_compacted_away_are_not_missed() -> None:
    """A compaction drops hidden rows from the data files without a count. Rows that no delete file hid are
    still lost."""
    for missing, removals, verdict in (
        (1, (Removal(99, 0, 1),), "valid"),
        (2, (Removal(99, 0, 1),), "invalid"),
        (3, (Removal(98, 0, 1), Removal(99, 2)), "valid"),
        (1, (Removal(98, 0, 1), Removal(99, 1, -1)), "valid"),
        (2, (Removal(98, 0, 1), Removal(99, 1, -1)), "invalid"),
    ):
        left = foreign({0: ((0, 12), (12 + missing, 30))})
        assert one([left], removals=removals).verdict == verdict, (missing, removals)


def test_of_hidden_rows_some_are_compacted_away() -> None:
    """Position deletes name the row that is still in a file. The other row is in no file."""
    removals = (Removal(99, 0, 2),)
    for lost, verdict in ((1, "valid"), (2, "invalid")):
        left = foreign({0: ((0, 5), (6, 12), (12 + lost, 30))})
        assert one([left], removals=removals, removed={0: ((5, 6),)}).verdict == verdict, lost


def test_delete_files_hide_rows() -> None:
    assert one(WHOLE, has_deletes=True).verdict == "unknown"


def test_what_is_there_too_often_may_be_what_delete_files_hide() -> None:
    """An engine that updates rows with delete files leaves the old version in its data file."""
    for rows in ((7, 8), (33, 34), (60, 61)):
        files = [*WHOLE, foreign({0: (rows,)}, rows_in_file=1)]
        assert one(files).verdict == "invalid"
        found = one(files, has_deletes=True)
        assert (found.verdict, found.doubled) == ("unknown", ()), found.why


def test_catalog_that_is_down() -> None:
    view = TopicView(
        "orders", TOPIC, "iceberg", (PartitionView(0, 0, 9, 9, 5),), unreadable="the catalog does not answer"
    )
    (found,) = judge_topic(view)
    assert (found.verdict, found.why) == ("unknown", "the catalog does not answer")


def test_table_that_is_gone() -> None:
    view = TopicView("orders", TOPIC, "iceberg", (PartitionView(0, 0, 9, 9, 5),), absent="table t is gone")
    (found,) = judge_topic(view)
    assert (found.verdict, found.missing, found.why) == ("invalid", ((0, 5),), "table t is gone")


def test_archive_without_table_counts_only_the_part_that_is_read() -> None:
    files = [archive(0, 10, part=(0, 10)), archive(5, 30, part=(10, 30))]
    assert one(files).verdict == "valid"
