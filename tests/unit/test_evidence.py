"""Rule C1: how far a table is complete, derived from the table alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.evidence import Doubted, Evidence, Known, judge
from archiver.catalog.table_layout import WATERMARKS
from archiver.catalog.tables import LiveFile, SnapshotView, TableView
from archiver.runtime.errors import Corrupted

COMMIT = uuid.UUID(int=5)


def snapshot(number: int, parent: int | None, sequence: int, operation: str = "append") -> SnapshotView:
    return SnapshotView(number, parent, sequence, 1000 * sequence, operation, {})


def view(
    snapshots: Sequence[SnapshotView],
    current: int | None,
    evidence: Evidence | str | None = None,
    sequence: int | None = None,
) -> TableView:
    text = evidence.to_json() if isinstance(evidence, Evidence) else evidence
    return TableView(
        identifier=("n", "t"),
        uuid=uuid.UUID(int=1),
        location="file:///t",
        metadata_location="file:///t/m",
        schema_json="{}",
        schema_id=0,
        format_version=2,
        spec_id=0,
        granularity="day",
        snapshot_id=current,
        sequence_number=max([item.sequence_number for item in snapshots], default=0)
        if sequence is None
        else sequence,
        properties={} if text is None else {WATERMARKS: text},
        snapshots=tuple(snapshots),
    )


def live(
    partition: int | None,
    low: int,
    high: int,
    partition_max: int | None = None,
    deletes: bool = False,
    count: int | None = None,
) -> LiveFile:
    return LiveFile(
        path=f"f{partition}-{low}",
        record_count=high - low + 1 if count is None else count,
        file_size=1,
        spec_id=0,
        partition=(1,),
        offset_min=low,
        offset_max=high,
        partition_min=partition,
        partition_max=partition if partition_max is None else partition_max,
        snapshot_id=1,
        sequence_number=1,
        has_deletes=deletes,
    )


def never() -> list[LiveFile]:
    raise AssertionError("bounds are not needed here")


def known(found: Known | Doubted) -> Known:
    assert isinstance(found, Known), found
    return found


def doubt(found: Known | Doubted) -> str:
    assert isinstance(found, Doubted), found
    return found.why


CHAIN = [snapshot(1, None, 1), snapshot(2, 1, 2), snapshot(3, 2, 3)]
OURS = Evidence(3, 3, 7, COMMIT, (10, 20))


def test_c1_an_empty_table_starts_at_zero() -> None:
    found = known(judge(view([], None), 3, never))
    assert (found.watermarks, found.evidence, found.by_bounds) == ((0, 0, 0), None, False)


def test_c1_evidence_in_the_lineage_is_the_watermark() -> None:
    found = known(judge(view(CHAIN, 3, OURS), 2, never))
    assert found.watermarks == (10, 20)
    assert found.evidence == OURS
    assert found.external == ()


def test_c1_foreign_snapshots_on_top_change_nothing_and_are_named() -> None:
    chain = [*CHAIN, snapshot(4, 3, 4, "replace"), snapshot(5, 4, 5, "append")]
    found = known(judge(view(chain, 5, OURS), 2, never))
    assert found.watermarks == (10, 20)
    assert [item.snapshot_id for item in found.external] == [5, 4]


def test_c1_partitions_younger_than_the_commit_start_at_zero() -> None:
    assert known(judge(view(CHAIN, 3, OURS), 4, never)).watermarks == (10, 20, 0, 0)


def test_c1_retentions_start_is_a_floor() -> None:
    assert known(judge(view(CHAIN, 3, OURS), 2, never, starts={0: 15, 1: 3})).watermarks == (15, 20)


def test_c1_our_expired_snapshot_is_an_ancestor_if_the_oldest_retained_one_names_it() -> None:
    """Another program removed rows and expired all other snapshots. The bounds do not agree, and need not."""
    removal = snapshot(4, 3, 4, "delete")
    found = known(judge(view([removal], 4, OURS), 2, never))
    assert (found.watermarks, found.external, found.by_bounds) == ((10, 20), (removal,), False)
    other = judge(view([snapshot(5, 4, 5)], 5, OURS), 2, list)
    assert "partition 0 ends at 0" in doubt(other), "the parent that it names is external"


def test_c1_a_rollback_is_seen_although_our_snapshot_is_still_listed() -> None:
    """The newest own snapshot in the metadata's list is not trusted (flaw 2 of the protocol)."""
    assert "rolled back" in doubt(judge(view(CHAIN, 2, OURS), 2, never))


def test_c1_a_rollback_with_something_on_top_is_seen() -> None:
    chain = [*CHAIN, snapshot(4, 2, 4)]
    assert "rolled back" in doubt(judge(view(chain, 4, OURS), 2, never))


def test_c1_an_emptied_table_is_seen() -> None:
    assert "no current snapshot" in doubt(judge(view([], None, OURS, sequence=3), 2, never))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"v":1}', OURS.to_json().replace("10", "-1"), OURS.to_json().replace("10", "true")],
)
def test_c1_evidence_that_cannot_be_understood_is_no_evidence(text: str) -> None:
    assert "cannot be understood" in doubt(judge(view(CHAIN, 3, text), 2, never))


def test_c1_evidence_of_a_newer_version_halts() -> None:
    newer = json.dumps({**json.loads(OURS.to_json()), "v": 2})
    assert "version 2" in doubt(judge(view(CHAIN, 3, newer), 2, never))


CUT = [snapshot(9, None, 9, "replace")]


def test_c1_expired_lineage_with_agreeing_bounds() -> None:
    found = known(judge(view(CUT, 9, OURS), 2, lambda: [live(0, 0, 4), live(0, 5, 9), live(1, 0, 19)]))
    assert (found.watermarks, found.by_bounds) == ((10, 20), True)


@pytest.mark.parametrize(
    "files",
    [
        [live(0, 0, 8), live(1, 0, 19)],
        [live(0, 0, 10), live(1, 0, 19)],
        [live(1, 0, 19)],
        [],
        [live(0, 0, 9), live(1, 0, 19), live(2, 0, 0)],
        [live(None, 0, 9), live(1, 0, 19)],
    ],
    ids=["short", "long", "missing", "empty", "strange partition", "no bounds"],
)
def test_c1_expired_lineage_with_other_bounds_halts(files: list[LiveFile]) -> None:
    assert "do not confirm" in doubt(judge(view(CUT, 9, OURS), 2, lambda: files))


def test_c1_bounds_of_files_that_mix_partitions_need_the_right_number_of_rows() -> None:
    def found(count: int, high: int = 19, deletes: bool = False) -> Known | Doubted:
        return judge(
            view(CUT, 9, OURS), 2, lambda: [live(0, 0, high, partition_max=1, count=count, deletes=deletes)]
        )

    assert known(found(30)).watermarks == (10, 20)
    assert "rows" in doubt(found(29))
    assert "beyond" in doubt(found(30, high=20))
    assert "deletes" in doubt(found(30, deletes=True))


def test_c1_c2_bounds_are_compared_modulo_gaps() -> None:
    """Offsets 8 and 9 are markers: rows end at 7, the watermark is 10."""

    def gaps(partition: int, start: int, end: int) -> list[tuple[int, int]]:
        return [(max(8, start), min(10, end))] if partition == 0 and start < 10 and end > 8 else []

    files = [live(0, 0, 7), live(1, 0, 19)]
    assert known(judge(view(CUT, 9, OURS), 2, lambda: files, gaps=gaps)).watermarks == (10, 20)
    assert isinstance(judge(view(CUT, 9, OURS), 2, lambda: files), Doubted)


def test_c1_c2_mixed_files_need_as_many_rows_as_the_watermarks_mean_without_gaps() -> None:
    def gaps(partition: int, start: int, end: int) -> list[tuple[int, int]]:
        return (
            [(max(8, start), min(10, end)), (max(3, start), min(4, end))]
            if partition == 0 and (start, end) == (0, 10)
            else []
        )

    def found(count: int) -> Known | Doubted:
        return judge(view(CUT, 9, OURS), 2, lambda: [live(0, 0, 19, partition_max=1, count=count)], gaps=gaps)

    assert known(found(27)).watermarks == (10, 20)
    assert "our watermarks mean 27" in doubt(found(30))


def test_c1_bounds_may_end_below_retentions_start() -> None:
    """All of partition 0 is retired: retention removed its files (flaw 13)."""
    assert known(judge(view(CUT, 9, OURS), 2, lambda: [live(1, 0, 19)], starts={0: 10})).watermarks == (
        10,
        20,
    )


def test_c1_without_any_commit_of_ours_the_bounds_are_the_watermark() -> None:
    found = known(judge(view(CHAIN, 3), 2, lambda: [live(0, 0, 4), live(0, 5, 6)]))
    assert (found.watermarks, found.evidence, found.by_bounds) == ((7, 0), None, True)


def test_c1_without_any_commit_of_ours_and_without_bounds_it_halts() -> None:
    assert WATERMARKS in doubt(judge(view(CHAIN, 3), 2, lambda: [live(None, 0, 4)]))


@given(
    st.integers(1, 2**63),
    st.integers(0, 2**40),
    st.integers(0, 2**31),
    st.uuids(),
    st.lists(st.integers(0, 2**63)),
)
def test_evidence_survives_json(
    snapshot_id: int, sequence: int, epoch: int, commit: uuid.UUID, offsets: list[int]
) -> None:
    evidence = Evidence(snapshot_id, sequence, epoch, commit, tuple(offsets))
    assert Evidence.from_json(evidence.to_json()) == evidence


def test_evidence_has_the_documented_form() -> None:
    assert OURS.to_json() == (
        '{"v":1,"snapshot":3,"sequence":3,"epoch":7,"commit":"00000000-0000-0000-0000-000000000005","offsets":[10,20]}'
    )
    with pytest.raises(Corrupted, match=r"archiver\.watermarks"):
        Evidence.from_json("nonsense")
