"""Table and ledger agree, or the topic is held: DATA_WRITTEN precedes every swap, and COMMIT_TO_TABLE follows
it."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from archiver.catalog.assessment import contradiction, revived_keys, seen_up_to
from archiver.catalog.evidence import Evidence, Known
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.views import KilledFile, PendingFile, TopicLedger
from archiver.runtime.ids import TopicId

TABLE = uuid.UUID(int=1)
OURS = Evidence(103, 3, 1, uuid.UUID(int=5), (10, 20))


def view(sequences: tuple[int, ...] = (1, 2, 3)) -> TableView:
    parents = [None, *(100 + n for n in sequences)]
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
        snapshot_id=100 + sequences[-1],
        sequence_number=sequences[-1],
        properties={},
        snapshots=tuple(
            SnapshotView(100 + n, p, n, n, "append", {}) for p, n in zip(parents, sequences, strict=False)
        ),
    )


def file(partition: int, base: int, end: int) -> ArchiveFile:
    return ArchiveFile(
        f"archive/{partition}/{base}-{end}", 1, b"", b"", partition, base, end, 1, 1, end - base, 1, 0, 0
    )


def ledger(
    watermarks: dict[int, int], *pending: ArchiveFile, killed: tuple[ArchiveFile, ...] = (), sequence: int = 3
) -> TopicLedger:
    topic = TopicLedger(TopicId("ab" * 16), table_uuid=TABLE, watermarks=watermarks, sequence_number=sequence)
    for one in pending:
        topic.add_pending(PendingFile(one, bytes(16), TABLE, sequence, 0, None, 0))
    topic.killed.update({one.key: KilledFile(one, "because", 0) for one in killed})
    return topic


def why(
    reported: TopicLedger,
    watermarks: tuple[int, ...] = (10, 20),
    revived: tuple[str, ...] = (),
    shown: TableView | None = None,
) -> str:
    return contradiction(shown or view(), Known(watermarks, OURS), reported, revived) or ""


def test_the_same_watermarks_agree() -> None:
    assert why(ledger({0: 10, 1: 20})) == ""


def test_c2_offsets_with_only_gaps_between_them_agree() -> None:
    """The table lost its evidence. Its last record is at 7, and the watermark was already after the aborted
    offsets 8 and 9."""

    def gaps(partition: int, start: int, end: int) -> list[tuple[int, int]]:
        return [(start, end)] if partition == 0 and start >= 8 else []

    reported = ledger({0: 10, 1: 20})
    assert contradiction(view(), Known((8, 20), OURS), reported, (), gaps) is None
    assert "rolled back" in (contradiction(view(), Known((7, 20), OURS), reported, (), gaps) or "")
    assert "rolled back" in why(reported, (8, 20))


def test_pending_files_bring_the_table_on() -> None:
    """The response was lost, or a part of COMMIT_TO_TABLE was never written."""
    assert why(ledger({0: 5, 1: 20}, file(0, 5, 8), file(0, 8, 10))) == ""
    assert why(ledger({}, file(0, 0, 10), file(1, 0, 25))) == ""
    assert why(ledger({0: 5, 1: 20}, file(0, 3, 10))) == "", "its entry is due: its path is in the table"


@pytest.mark.parametrize(
    "behind", [ledger({0: 5, 1: 20}), ledger({0: 10}), ledger({0: 5, 1: 20}, file(0, 5, 9)), ledger({})]
)
def test_a_watermark_that_no_one_wrote_archives_for_proves_an_old_metadata_store(behind: TopicLedger) -> None:
    assert "the metadata store is an older copy than the table" in why(behind)


def test_killed_files_explain_a_watermark_only_where_they_are_in_the_table() -> None:
    reported = ledger({0: 5, 1: 20}, file(0, 5, 7), killed=(file(0, 5, 10), file(1, 5, 10)))
    assert "only up to 7" in why(reported)
    assert why(reported, revived=(file(0, 5, 10).key,)) == ""
    assert "only up to 7" in why(reported, revived=(file(1, 5, 10).key,)), "another partition's"
    assert "only up to 7" in why(reported, watermarks=(11, 20), revived=(file(0, 5, 10).key,))


def test_killed_files_may_have_been_in_the_table_where_its_history_is_not_whole() -> None:
    reported = ledger({0: 5, 1: 20}, killed=(file(0, 5, 10),), sequence=3)
    assert why(reported, shown=view((6,))) == ""
    assert "only up to 5" in why(reported, shown=view((4, 5, 6)))
    assert "only up to 5" in why(reported, watermarks=(9, 20), shown=view((6,)))


def test_an_older_sequence_number_proves_an_old_catalog() -> None:
    assert "the ledger has seen it at 4: the catalog was restored" in why(ledger({0: 10, 1: 20}, sequence=4))


def test_a_lower_watermark_is_a_rollback_or_an_old_catalog() -> None:
    assert "up to offset 10 of partition 0, and the ledger has seen it complete up to 12" in why(
        ledger({0: 12, 1: 20})
    )


def test_rows_without_any_commit_of_ours_are_not_skipped_in_silence() -> None:
    """Otherwise rows of other programs before our first commit would count as archived offsets."""
    found = contradiction(view(), Known((900, 0), None, by_bounds=True), ledger({}), ())
    assert found is not None
    assert "no commit of the archiver" in found
    assert contradiction(view(), Known((0, 0), None), ledger({}), ()) is None


def test_what_was_seen_counts_while_our_newest_snapshot_of_then_is_an_ancestor() -> None:
    reported = ledger({0: 10, 1: 20}, sequence=5)
    reported.snapshot_id = 102
    assert seen_up_to(view(), reported) == 5, "number 5 may be a branch's"
    cut = view((3, 4))
    assert seen_up_to(cut, reported) == 0, "expired, and nothing shows that it was an ancestor"
    oldest = SnapshotView(103, 102, 3, 3, "append", {})
    assert seen_up_to(replace(cut, snapshots=(oldest, cut.snapshots[1])), reported) == 5, (
        "expired, and named as a parent"
    )
    reported.snapshot_id = 104
    assert seen_up_to(view(), reported) == 0, "the table was turned to a place that the ledger did not read"
    reported.snapshot_id = None
    assert seen_up_to(view(), reported) == 0


def test_revived_keys_are_found_by_whole_path() -> None:
    reported = ledger({}, killed=(file(0, 5, 10), file(1, 5, 10)))
    assert revived_keys(
        reported, {"s3://b/archive/1/5-10", "s3://b/archive/10/5-10", "s3://b/archive/0/15-10"}
    ) == ("archive/1/5-10",)
    assert revived_keys(replace(reported, killed={}), {"s3://b/archive/1/5-10"}) == ()
