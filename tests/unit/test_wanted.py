"""Which rows of which intake files the plans of a task need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from archiver.refine.plan import Plan
from archiver.refine.prefetch import Part, parts_to_read
from intake.segments import SegmentRef
from tests.support.builders.segments import plan_of, segment


def test_nothing_is_wanted_of_no_plans() -> None:
    assert list(parts_to_read([])) == []


def test_plans_without_records_want_nothing() -> None:
    one = plan_of([segment(0, 5)])
    only_gaps = Plan(one.topic_id, one.topic, 1, 0, 5, 1, one.segments[:0], 0, 0, ((0, 5),))
    assert list(parts_to_read([only_gaps])) == []
    assert [part.lines for (part,) in parts_to_read([only_gaps, one])] == [((1, 0, 0, 5),)]


def test_a_segment_that_two_plans_share_is_wanted_by_both() -> None:
    shared = segment(0, 10, first_row=3)
    ((part,),) = parts_to_read([plan_of([shared]), plan_of([shared])])
    assert part.lines == ((0, 0, 3, 10), (1, 0, 3, 10))
    assert (part.rows, part.raw_bytes) == (20, 200)


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    """Plans with segments at any place, in the order of the log."""
    places = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 50), st.integers(1, 5))
    found = []
    for partition in range(draw(st.integers(1, 5))):
        segments: list[SegmentRef] = []
        for log_index, row_group, first_row, rows in sorted(draw(st.lists(places, min_size=1, max_size=8))):
            base = segments[-1].end if segments else 0
            segments.append(
                segment(
                    base,
                    rows,
                    log_index=log_index,
                    row_group=row_group,
                    first_row=first_row,
                    raw_bytes=7 * rows,
                )
            )
        found.append(plan_of(segments, partition=partition))
    return found


@given(plans())
def test_each_segment_is_in_one_part_and_parts_follow_the_log(made: list[Plan]) -> None:
    files = list(parts_to_read(made))
    read: list[Part] = [part for parts in files for part in parts]
    assert [(part.file.log_index, part.row_group) for part in read] == sorted(
        {(part.file.log_index, part.row_group) for part in read}
    )
    assert [{part.file.log_index for part in parts} for parts in files] == [
        {parts[0].file.log_index} for parts in files
    ]
    for owner, plan in enumerate(made):
        of_plan = [
            (part.file.log_index, part.row_group, *line[1:])
            for part in read
            for line in part.lines
            if line[0] == owner
        ]
        assert of_plan == [
            (one.file.log_index, one.row_group, at, one.first_row, one.rows)
            for at, one in enumerate(plan.segments)
        ]
    for part in read:
        assert [line[2] for line in part.lines] == sorted(line[2] for line in part.lines)
        assert part.end_row == max(line[2] + line[3] for line in part.lines)
        assert part.rows == sum(line[3] for line in part.lines)
        assert part.raw_bytes == 7 * part.rows
