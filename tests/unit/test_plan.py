"""The cut of a backlog into plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.errors import TopicHalted
from archiver.jobs.bundle import bundle
from archiver.jobs.plan import Plan, plan_partition
from intake.segments import SegmentRef
from tests.support.segments import TOPIC, segment


def plans(segments: list[SegmentRef], start: int, stable: int, max_bytes: int = 100, partition: int = 0) -> list[Plan]:
    return plan_partition((TOPIC, partition), "orders", segments, start, stable, 7, max_bytes)


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
    assert plan == Plan(TOPIC, "orders", 0, 0, 10, 7, (segment(0, 10),), 10, 100)


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "expected"),
    [
        ([40, 40, 40, 40], 99, [(0, 2), (2, 4)]),  # 80 is nearer than 120
        ([40, 40, 40, 40], 100, [(0, 3), (3, 4)]),  # as near as 80: fewer files
        ([100, 100], 100, [(0, 1), (1, 2)]),
        ([500, 1, 1], 100, [(0, 1), (1, 3)]),  # a segment is never divided
        ([1, 1, 1], 100, [(0, 3)]),
        ([0, 0], 100, [(0, 2)]),
        ([1, 1], 1, [(0, 1), (1, 2)]),
    ],
)
def test_cut_at_the_segment_boundary_nearest_to_max_bytes(sizes: list[int], max_bytes: int, expected: list[tuple[int, int]]) -> None:
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
def test_a_hole_or_an_overlap_halts_the_topic(segments: list[SegmentRef], start: int, stable: int, named: str) -> None:
    with pytest.raises(TopicHalted, match=named):
        plans(segments, start, stable)


def test_what_is_archived_may_be_missing() -> None:
    assert [(plan.base, plan.end) for plan in plans([segment(10, 10)], 10, 20)] == [(10, 20)]


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[list[SegmentRef], int, int, int]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300)), min_size=1, max_size=30))
    found, base = [], draw(st.integers(0, 50))
    for index, (rows, raw_bytes) in enumerate(sizes):
        found.append(segment(base, rows, raw_bytes=raw_bytes, log_index=draw(st.integers(index // 3, index))))
        base += rows
    start = draw(st.integers(found[0].base, base))
    return found, start, draw(st.integers(start, base)), draw(st.integers(1, 1000))


@given(backlogs())
def test_every_stable_record_is_in_exactly_one_plan(case: tuple[list[SegmentRef], int, int, int]) -> None:
    segments, start, stable, max_bytes = case
    found = plans(segments, start, stable, max_bytes)
    offsets = [offset for plan in found for offset in range(plan.base, plan.end)]
    assert offsets == list(range(start, stable))
    for plan in found:
        covered = {offset for one in plan.segments for offset in range(one.base, one.end)}
        assert covered.issuperset(range(plan.base, plan.end))
        assert plan.rows == plan.end - plan.base > 0
        # No more than half a segment beyond the target, unless there is one segment only.
        largest = max(one.raw_bytes for one in plan.segments)
        assert len(plan.segments) == 1 or plan.raw_bytes <= max_bytes + largest


@given(st.lists(backlogs(), max_size=8), st.integers(1, 8), st.integers(1, 2000), st.integers(1, 5))
def test_every_stable_record_is_in_exactly_one_plan_of_one_bundle(
    cases: list[tuple[list[SegmentRef], int, int, int]], cores: int, task_bytes: int, open_writers_max: int
) -> None:
    wanted, found = set(), []
    for partition, (segments, start, stable, max_bytes) in enumerate(cases):
        wanted |= {(partition, offset) for offset in range(start, stable)}
        found += plans(segments, start, stable, max_bytes, partition)
    bundles = bundle(found, cores, task_bytes, open_writers_max, task_bytes_min=1)
    offsets = [(plan.partition, offset) for members in bundles for plan in members for offset in range(plan.base, plan.end)]
    assert len(offsets) == len(wanted)
    assert set(offsets) == wanted
    assert all(0 < len(members) <= open_writers_max for members in bundles)
