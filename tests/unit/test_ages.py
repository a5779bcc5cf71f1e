"""The offset below which records are older than a limit: never above the true one and not far below it, in
bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from archiver.ledger.views import Ages

EVERYTHING = 10**12


def test_the_end_of_the_newest_archive_that_is_old_enough() -> None:
    ages = Ages()
    for end, time_us in ((10, 100), (20, 200), (30, 300)):
        ages.add(0, end, time_us)
    assert [ages.older_than(0, limit, EVERYTHING) for limit in (100, 101, 200, 201, 1000)] == [
        0,
        10,
        10,
        20,
        30,
    ]
    assert ages.older_than(1, 1000, EVERYTHING) == 0
    assert ages.older_than(0, 1000, 29) == 20, "an archive that is not committed is not retired"


def test_what_does_not_go_on_reports_nothing_new() -> None:
    ages = Ages()
    ages.add(0, 20, 200)
    ages.add(0, 10, 900)
    ages.add(0, 20, 900)
    assert ages.older_than(0, 201, EVERYTHING) == 20
    ages.add(0, 30, 100)  # a later record is never older than an earlier one
    assert [ages.older_than(0, limit, EVERYTHING) for limit in (150, 201)] == [0, 30]


def test_what_is_gone_is_forgotten() -> None:
    ages = Ages()
    for number in range(1, 6):
        ages.add(0, number * 10, number * 100)
    ages.forget(0, 30)
    ages.forget(7, 30)
    assert list(ages._ends[0]) == [40, 50]
    ages.forget(0, 50)
    ages.add(0, 45, 1)
    assert ages.older_than(0, 501, EVERYTHING) == 50


archives = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1_000_000)), min_size=1, max_size=300)


@given(archives, st.integers(2, 40), st.integers(0, 400_000_000))
def test_never_above_the_truth_and_within_a_stretch_of_it(
    steps: list[tuple[int, int]], points_max: int, limit: int
) -> None:
    ages = Ages(points_max)
    truth: list[tuple[int, int]] = []
    end = time_us = 0
    for length, later in steps:
        end, time_us = end + length, time_us + later
        truth.append((end, time_us))
        ages.add(0, end, time_us)
        assert len(ages._ends[0]) <= points_max + 1
    exact = max((one for one, when in truth if when < limit), default=0)
    found = ages.older_than(0, limit, EVERYTHING)
    assert found <= exact
    assert found in {0, *(one for one, _ in truth)}
    stretch = 4 * (truth[-1][1] - truth[0][1] + 1) // max(1, points_max // 2) + 1
    assert found >= max((one for one, when in truth if when < limit - stretch), default=0)
