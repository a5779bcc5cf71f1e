"""Which plans share a task."""

from __future__ import annotations

from archiver.refine.plan import PLANS_MAX, Plan, bundle, written_together
from tests.support.builders.segments import plan_of, segment


def small(partition: int, raw_bytes: int = 10, log_index: int = 0) -> Plan:
    return plan_of(
        [segment(0, 1, raw_bytes=raw_bytes, log_index=log_index, first_row=partition)], partition=partition
    )


def sizes(bundles: list[tuple[Plan, ...]]) -> list[int]:
    return [sum(plan.raw_bytes for plan in members) for members in bundles]


def test_no_plans_no_bundles() -> None:
    assert bundle([], 4, 100, 10) == []


def test_little_work_is_one_task() -> None:
    assert len(bundle([small(partition) for partition in range(20)], 4, 10**9, 64)) == 1


def test_work_is_shared_among_the_cores() -> None:
    bundles = bundle([small(partition) for partition in range(20)], 4, 10**9, 64, task_bytes_min=1)
    assert sizes(bundles) == [50, 50, 50, 50]


def test_a_task_does_not_exceed_task_bytes() -> None:
    bundles = bundle([small(partition) for partition in range(20)], 1, 35, 64, task_bytes_min=1)
    assert max(sizes(bundles)) <= 35
    assert sum(sizes(bundles)) == 200


def test_a_large_plan_stands_alone_and_first() -> None:
    bundles = bundle([small(0), small(1), small(2, raw_bytes=1000)], 1, 100, 64)
    assert [[plan.partition for plan in members] for members in bundles] == [[2], [0, 1]]


def test_no_more_plans_than_open_writers() -> None:
    bundles = bundle([small(partition) for partition in range(10)], 1, 10**9, 3, writer_bytes=10)
    assert sorted(len(members) for members in bundles) == [1, 3, 3, 3]
    assert all(len(members) == 1 for members in bundle([small(0), small(1)], 1, 10**9, 0, writer_bytes=10))


def test_plans_over_the_same_files_stay_together() -> None:
    plans = [small(partition, log_index=index) for partition in range(4) for index in (0, 9)]
    bundles = bundle(plans, 2, 10**9, 64, task_bytes_min=1)
    assert [{plan.segments[0].file.log_index for plan in members} for members in bundles] in (
        [{0}, {9}],
        [{9}, {0}],
    )


def test_overlapping_spans_are_one_window_in_the_order_of_the_files_rows() -> None:
    long = plan_of(
        [segment(0, 1, log_index=0, raw_bytes=10), segment(1, 1, log_index=5, raw_bytes=10)], partition=3
    )
    later = small(1, log_index=4)
    (together,) = bundle([long, later], 1, 10**9, 64)
    assert [plan.partition for plan in together] == [1, 3]


def test_tasks_come_in_whole_waves() -> None:
    # 200 bytes, at most 90 per task, would be three tasks for two cores: the second core would wait.
    bundles = bundle([small(partition) for partition in range(20)], 2, 90, 64, task_bytes_min=1)
    assert sizes(bundles) == [50, 50, 50, 50]


def test_small_plans_count_by_their_bytes() -> None:
    plans = [small(partition, raw_bytes=36) for partition in range(40)]  # and 64 per record
    assert [len(members) for members in bundle(plans, 1, 10**9, 2, writer_bytes=1000)] == [20, 20]
    large = [small(partition, raw_bytes=5000) for partition in range(4)]
    assert [len(members) for members in bundle(large, 1, 10**9, 2, writer_bytes=1000)] == [2, 2], (
        "a large one is one writer, not five"
    )


def test_a_task_writes_at_the_same_time_what_was_bundled() -> None:
    plans = [small(partition, raw_bytes=36) for partition in range(40)]
    (members,) = bundle(plans, 1, 10**9, 4, writer_bytes=1000)
    assert [len(together) for together in written_together(members, 4, 1000)] == [40]
    assert [len(together) for together in written_together(members, 1, 1000)] == [10, 10, 10, 10]
    assert [len(together) for together in written_together(plans[:3], 0, 1)] == [1, 1, 1], "one at least"
    tiny = [small(partition, raw_bytes=0) for partition in range(PLANS_MAX + 1)]
    assert [len(together) for together in written_together(tiny, 1, 64 * 2 * PLANS_MAX)] == [PLANS_MAX, 1], (
        "each has a spool file"
    )
