"""When a partition is open and when it is due, exactly as design section 6 defines it."""

from __future__ import annotations

import pytest

from archiver.config.settings import ArchiveSettings
from archiver.refine.triggers import (
    bytes_within,
    concurrent_limit,
    gaps_due,
    is_due,
    is_open,
    poll_due,
    rows_within,
)
from intake.log.backlog import EMPTY, BacklogSummary
from tests.support.builders.segments import segment

S = 1_000_000


def settings(
    min_bytes: int = 100, max_bytes: int = 1000, complete_delay_max: float = 300, idle_max: float = 30
) -> ArchiveSettings:
    return ArchiveSettings.model_construct(
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        start_delay_max=10.0,
        complete_delay_max=complete_delay_max,
        idle_max=idle_max,
    )


def held(size: int, *, rows: int = 1, opened_at_s: int = 0, newest_s: int = 0) -> tuple[BacklogSummary, int]:
    """A backlog, and when it reached `min_bytes`."""
    return BacklogSummary(rows, size, 0, newest_s * S, 0), opened_at_s * S


NOTHING = (EMPTY, 0)


@pytest.mark.parametrize(
    ("backlog", "min_bytes", "expected"),
    [
        (NOTHING, 0, False),
        (NOTHING, 100, False),
        (NOTHING, -1, False),
        (held(0), 0, True),
        (held(0), 1, False),
        (held(99), 100, False),
        (held(100), 100, True),
        (held(101), 100, True),
        (held(10**12), -1, False),
    ],
)
def test_open(backlog: tuple[BacklogSummary, int], min_bytes: int, expected: bool) -> None:
    assert is_open(backlog[0], settings(min_bytes=min_bytes)) is expected


@pytest.mark.parametrize(
    ("backlog", "now_s", "changes", "expected"),
    [
        # Not open: never due, under any other condition.
        (NOTHING, 10**6, {}, False),
        (NOTHING, 10**6, {"min_bytes": 0, "idle_max": 0}, False),
        (held(99), 10**6, {}, False),
        (held(10**9), 10**6, {"min_bytes": -1, "idle_max": 0}, False),
        # Size.
        (held(999), 0, {}, False),
        (held(1000), 0, {}, True),
        (held(1001), 0, {}, True),
        # Open for complete_delay_max, with records still arriving.
        (held(100, opened_at_s=0, newest_s=299), 299, {}, False),
        (held(100, opened_at_s=0, newest_s=300), 300, {}, True),
        (held(100, opened_at_s=0, newest_s=0), 0, {"complete_delay_max": 0}, True),
        # Nothing new for idle_max.
        (held(100, opened_at_s=0, newest_s=100), 129, {}, False),
        (held(100, opened_at_s=0, newest_s=100), 130, {}, True),
        (held(100, opened_at_s=100, newest_s=100), 100, {"idle_max": 0}, True),
        # A clock behind the records by less than a delay makes nothing due …
        (held(100, opened_at_s=100, newest_s=100), 71, {}, False),
        (held(100, opened_at_s=100, newest_s=100), 99, {}, False),
        # … by a delay or more, it cannot determine how long they have waited, and they are due.
        (held(100, opened_at_s=100, newest_s=100), 70, {}, True),
        (held(100, opened_at_s=100, newest_s=100), 0, {}, True),
        (held(100, opened_at_s=10**9, newest_s=10**9), 0, {}, True),
        (held(100, opened_at_s=400, newest_s=400), 101, {"idle_max": 1000}, False),
        (held(100, opened_at_s=400, newest_s=400), 100, {"idle_max": 1000}, True),
        (held(100, opened_at_s=400, newest_s=110), 100, {}, True),
        (held(100, opened_at_s=90, newest_s=110), 100, {}, False),
        (held(100, opened_at_s=90, newest_s=130), 100, {}, True),
        # … but not a backlog that is too small to be open.
        (held(99, newest_s=10**9), 0, {}, False),
    ],
)
def test_due(
    backlog: tuple[BacklogSummary, int], now_s: int, changes: dict[str, int], expected: bool
) -> None:
    assert is_due(backlog[0], lambda: backlog[1], now_s * S, settings(**changes)) is expected


@pytest.mark.parametrize(
    ("size", "newest_s", "changes"),
    [
        (99, 1000, {}),
        (1000, 1000, {}),
        (100, 1000, {"idle_max": 0}),
        (100, 900, {}),
        (100, 1000, {"min_bytes": -1}),
    ],
)
def test_the_opening_is_not_looked_for_where_it_does_not_matter(
    size: int, newest_s: int, changes: dict[str, int]
) -> None:
    def never() -> int:
        raise AssertionError("finding it takes a look at the backlog")

    is_due(held(size, newest_s=newest_s)[0], never, 1000 * S, settings(**changes))


@pytest.mark.parametrize(
    ("written_s", "now_s", "min_bytes", "expected"),
    [
        (0, 10**6, 0, True),
        (1000, 1299, 0, False),
        (1000, 1300, 0, True),
        (1000, 1300, 10**9, True),  # Gaps make no file, so its minimum size does not matter.
        (1000, 1300, -1, False),  # `never` means never.
        (1000, 701, 0, False),
        (1000, 700, 0, True),  # a clock that was set back
    ],
)
def test_gaps_alone_are_passed_once_in_a_delay(
    written_s: int, now_s: int, min_bytes: int, expected: bool
) -> None:
    assert gaps_due(written_s * S, now_s * S, settings(min_bytes=min_bytes)) is expected


def test_part_of_a_segment_counts_in_proportion() -> None:
    one = segment(100, 3, raw_bytes=100)
    assert [rows_within(one, 0, stable) for stable in (99, 100, 101, 103, 200)] == [0, 0, 1, 3, 3]
    assert [bytes_within(one, 0, stable) for stable in (100, 101, 102, 103)] == [0, 33, 66, 100]
    assert rows_within(one, 102, 101) == 0


def test_a_clock_set_back_does_not_stop_looking() -> None:
    assert poll_due(None, 0, 10.0)
    assert not poll_due(0, 10 * S - 1, 10.0)
    assert poll_due(0, 10 * S, 10.0)
    assert poll_due(100 * S, 99 * S, 10.0)


def test_concurrency_from_the_setting_or_from_memory() -> None:
    assert concurrent_limit(3, 0, 1) == 3
    assert concurrent_limit(0, 100, 30) == 3
    assert concurrent_limit(0, 10, 30) == 1
    assert concurrent_limit(0, 10, 0) == 10
