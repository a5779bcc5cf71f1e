"""How a backlog is cut into plans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.refine.plan import Plan, bundle, plan_partition
from archiver.runtime.errors import TopicHalted
from intake.segments import SegmentRef, Segments
from tests.support.builders.segments import TOPIC, segment

Gaps = list[tuple[int, int]]


def plans(
    segments: list[SegmentRef],
    start: int,
    stable: int,
    max_bytes: int = 100,
    partition: int = 0,
    gaps: Sequence[tuple[int, int]] = (),
) -> list[Plan]:
    return plan_partition(
        (TOPIC, partition), "orders", Segments.of(segments), start, stable, 7, max_bytes, gaps
    )


def chain(rows: list[int], *, raw_bytes: int = 100) -> list[SegmentRef]:
    found, base = [], 0
    for index, count in enumerate(rows):
        found.append(segment(base, count, raw_bytes=raw_bytes, log_index=index))
        base += count
    return found


def test_nothing_stable_is_no_plan() -> None:
    assert plans(chain([10]), 10, 10) == []
    assert plans([], 0, 0) == []
    assert plans(chain([10]), 10, 5) == []


def test_a_plan_says_everything_a_task_needs() -> None:
    (plan,) = plans(chain([10]), 0, 10)
    assert plan == Plan(TOPIC, "orders", 0, 0, 10, 7, Segments.of([segment(0, 10)]), 10, 100)


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "expected"),
    [
        ([40, 40, 40, 40], 99, [(0, 2), (2, 4)]),  # 80 is nearer than 120
        ([40, 40, 40, 40], 100, [(0, 3), (3, 4)]),  # as near as 80: fewer files
        ([100, 100], 100, [(0, 1), (1, 2)]),
        ([500, 1, 1], 100, [(0, 1), (1, 3)]),  # A segment is never divided.
        ([1, 1, 1], 100, [(0, 3)]),
        ([0, 0], 100, [(0, 2)]),
        ([1, 1], 1, [(0, 1), (1, 2)]),
    ],
)
def test_cut_at_the_segment_boundary_nearest_to_max_bytes(
    sizes: list[int], max_bytes: int, expected: list[tuple[int, int]]
) -> None:
    segments = [segment(index, 1, raw_bytes=size) for index, size in enumerate(sizes)]
    assert [(plan.base, plan.end) for plan in plans(segments, 0, len(sizes), max_bytes)] == expected


def test_start_and_stable_inside_segments() -> None:
    segments = chain([10, 10, 10])
    (plan,) = plans(segments, 5, 25, 10_000)
    assert (plan.base, plan.end, plan.rows, plan.raw_bytes) == (5, 25, 20, 200)
    assert plan.segments == tuple(segments)


@pytest.mark.parametrize(
    ("segments", "start", "stable", "named"),
    [
        ([segment(10, 10)], 0, 20, "offsets 0 to 9"),
        ([segment(0, 10), segment(20, 10)], 0, 30, "offsets 10 to 19"),
        ([segment(0, 10)], 0, 11, "offsets 10 to 10"),
        ([], 0, 5, "offsets 0 to 4"),
        ([segment(0, 10), segment(9, 10)], 0, 19, "two intake segments claim offset 9"),
        ([segment(0, 10), segment(0, 10)], 0, 10, "two intake segments claim offset 0"),
    ],
)
def test_p1_a_hole_or_an_overlap_halts_the_topic(
    segments: list[SegmentRef], start: int, stable: int, named: str
) -> None:
    with pytest.raises(TopicHalted, match=named):
        plans(segments, start, stable)


@pytest.mark.parametrize(
    ("segments", "gaps", "named"),
    [
        ([segment(0, 10), segment(20, 10)], [(10, 19)], "offsets 19 to 19"),
        ([segment(0, 10), segment(20, 10)], [(11, 20)], "offsets 10 to 10"),
        ([segment(0, 10), segment(20, 10)], [(10, 15), (16, 20)], "offsets 15 to 15"),
        ([segment(10, 20)], [(0, 9)], "offsets 9 to 9"),
        ([segment(0, 20)], [(20, 29)], "offsets 29 to 29"),
        ([], [(0, 29)], "offsets 29 to 29"),
        ([segment(0, 20), segment(20, 10)], [(5, 6)], "offset 5 is said to be a record and a gap"),
        ([segment(0, 20), segment(20, 10)], [(29, 30)], "offset 29 is said to be a record and a gap"),
        ([segment(0, 20), segment(20, 10)], [(0, 1)], "is said to be a record and a gap"),
    ],
)
def test_gaps_explain_what_they_cover_and_no_more(segments: list[SegmentRef], gaps: Gaps, named: str) -> None:
    with pytest.raises(TopicHalted, match=named):
        plans(segments, 0, 30, gaps=gaps)


@pytest.mark.parametrize(
    ("bases", "gaps", "expected"),
    [
        ([0, 20], [(10, 20)], [(0, 20, [(10, 20)]), (20, 30, [])]),  # between two plans: the first one's
        ([10, 20], [(0, 10)], [(0, 20, [(0, 10)]), (20, 30, [])]),  # in front
        ([0, 10], [(20, 30)], [(0, 10, []), (10, 30, [(20, 30)])]),  # at the end
        ([0], [(10, 20), (20, 30)], [(0, 30, [(10, 30)])]),  # neighbours are one
        ([], [(0, 30)], [(0, 30, [(0, 30)])]),
        ([], [(0, 15), (15, 99)], [(0, 30, [(0, 30)])]),
    ],
)
def test_gaps_belong_to_a_neighbour(
    bases: list[int], gaps: Gaps, expected: list[tuple[int, int, Gaps]]
) -> None:
    found = plans([segment(base, 10) for base in bases], 0, 30, 100, gaps=gaps)
    assert [(plan.base, plan.end, list(plan.gaps)) for plan in found] == expected
    assert sum(plan.rows for plan in found) == 10 * len(bases)
    assert [plan.gap_only for plan in found] == ([False] * len(bases) or [True])


def test_what_is_archived_may_be_missing() -> None:
    assert [(plan.base, plan.end) for plan in plans([segment(10, 10)], 10, 20)] == [(10, 20)]


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[list[SegmentRef], int, int, int, Gaps]:
    """Consecutive segments and gaps, and a part of them that is planned."""
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300), st.booleans()), min_size=1, max_size=30)
    )
    found: list[SegmentRef] = []
    gaps: Gaps = []
    first = base = draw(st.integers(0, 50))
    for index, (rows, raw_bytes, aborted) in enumerate(sizes):
        if aborted:
            gaps.append((base, base + rows))
        else:
            found.append(
                segment(base, rows, raw_bytes=raw_bytes, log_index=draw(st.integers(index // 3, index)))
            )
        base += rows
    start = draw(st.integers(first, base))
    return found, start, draw(st.integers(start, base)), draw(st.integers(1, 1000)), gaps


@given(backlogs())
def test_every_stable_offset_is_in_exactly_one_plan(
    case: tuple[list[SegmentRef], int, int, int, Gaps],
) -> None:
    """Against a model that knows the state of every offset."""
    segments, start, stable, max_bytes, gaps = case
    records = {offset for one in segments for offset in range(one.base, one.end)}
    found = plans(segments, start, stable, max_bytes, gaps=gaps)
    offsets = [offset for plan in found for offset in range(plan.base, plan.end)]
    assert offsets == list(range(start, stable))
    for plan in found:
        inside = set(range(plan.base, plan.end))
        empty = [offset for low, high in plan.gaps for offset in range(low, high)]
        assert empty == sorted(inside - records)
        assert all(before[1] < after[0] for before, after in zip(plan.gaps, plan.gaps[1:], strict=False)), (
            "merged"
        )
        assert {
            offset for one in plan.segments for offset in range(one.base, one.end)
        } & inside == inside & records
        assert plan.rows == len(inside & records)
        assert plan.gap_only is (plan.rows == 0)
        assert not plan.gap_only or len(found) == 1, (
            "gaps have a plan of their own only if there is nothing else"
        )
        # At most half a segment more than the target, unless there is only one segment.
        assert len(plan.segments) <= 1 or plan.raw_bytes <= max_bytes + max(
            one.raw_bytes for one in plan.segments
        )
    whole = plans(segments, start, stable, max_bytes, gaps=gaps)
    bases = [
        plan.base for plan in plans(_closed_up(segments, gaps), *_closed(gaps, start, stable), max_bytes)
    ]
    assert [_before(gaps, plan.base) for plan in whole][1:] == bases[1:], "gaps do not move the cuts"


def _before(gaps: Gaps, offset: int) -> int:
    """The place of that offset if there were no gaps."""
    return offset - sum(max(0, min(high, offset) - low) for low, high in gaps)


def _closed(gaps: Gaps, start: int, stable: int) -> tuple[int, int]:
    return _before(gaps, start), _before(gaps, stable)


def _closed_up(segments: list[SegmentRef], gaps: Gaps) -> list[SegmentRef]:
    return [one._replace(base=_before(gaps, one.base)) for one in segments]


@given(st.lists(backlogs(), max_size=8), st.integers(1, 8), st.integers(1, 2000), st.integers(1, 5))
def test_every_stable_record_is_in_exactly_one_plan_of_one_bundle(
    cases: list[tuple[list[SegmentRef], int, int, int, Gaps]],
    cores: int,
    task_bytes: int,
    open_writers_max: int,
) -> None:
    wanted, found = set(), []
    for partition, (segments, start, stable, max_bytes, gaps) in enumerate(cases):
        planned = [
            plan for plan in plans(segments, start, stable, max_bytes, partition, gaps) if not plan.gap_only
        ]
        wanted |= {(partition, offset) for plan in planned for offset in range(plan.base, plan.end)}
        found += planned
    bundles = bundle(found, cores, task_bytes, open_writers_max, task_bytes_min=1, writer_bytes=1)
    offsets = [
        (plan.partition, offset)
        for members in bundles
        for plan in members
        for offset in range(plan.base, plan.end)
    ]
    assert len(offsets) == len(wanted)
    assert set(offsets) == wanted
    assert all(0 < len(members) <= open_writers_max for members in bundles)
