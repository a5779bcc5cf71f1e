"""Open and due, exactly as design section 6 says."""

from __future__ import annotations

import pytest

from archiver.jobs.triggers import EMPTY, Backlog, backlog_of, bytes_within, concurrent_limit, is_due, is_open, look_due, rows_within
from archiver.settings import ArchiveSettings
from tests.support.segments import segment

S = 1_000_000


def settings(min_bytes: int = 100, max_bytes: int = 1000, complete_delay_max: float = 300, idle_max: float = 30) -> ArchiveSettings:
    return ArchiveSettings.model_construct(
        min_bytes=min_bytes, max_bytes=max_bytes, start_delay_max=10.0, complete_delay_max=complete_delay_max, idle_max=idle_max
    )


def held(size: int, *, rows: int = 1, opened_at_s: int | None = 0, newest_s: int = 0) -> Backlog:
    return Backlog(bytes=size, rows=rows, opened_at_us=None if opened_at_s is None else opened_at_s * S, newest_us=newest_s * S)


@pytest.mark.parametrize(
    ("backlog", "min_bytes", "expected"),
    [
        (EMPTY, 0, False),
        (EMPTY, 100, False),
        (EMPTY, -1, False),
        (held(0), 0, True),
        (held(0), 1, False),
        (held(99), 100, False),
        (held(100), 100, True),
        (held(101), 100, True),
        (held(10**12), -1, False),
    ],
)
def test_open(backlog: Backlog, min_bytes: int, expected: bool) -> None:
    assert is_open(backlog, settings(min_bytes=min_bytes)) is expected


@pytest.mark.parametrize(
    ("backlog", "now_s", "changes", "expected"),
    [
        # Not open: never due, whatever else holds.
        (EMPTY, 10**6, {}, False),
        (EMPTY, 10**6, {"min_bytes": 0, "idle_max": 0}, False),
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
        # … by a delay or more it cannot tell how long they have waited, and they are due.
        (held(100, opened_at_s=100, newest_s=100), 70, {}, True),
        (held(100, opened_at_s=100, newest_s=100), 0, {}, True),
        (held(100, opened_at_s=10**9, newest_s=10**9), 0, {}, True),
        (held(100, opened_at_s=400, newest_s=400), 101, {"idle_max": 1000}, False),
        (held(100, opened_at_s=400, newest_s=400), 100, {"idle_max": 1000}, True),
        (held(100, opened_at_s=400, newest_s=110), 100, {}, True),
        (held(100, opened_at_s=90, newest_s=110), 100, {}, False),
        (held(100, opened_at_s=90, newest_s=130), 100, {}, True),
        # … but not what is too small to be open.
        (held(99, opened_at_s=None, newest_s=10**9), 0, {}, False),
        # Without a known opening the newest record stands for it.
        (held(100, opened_at_s=None, newest_s=100), 399, {"idle_max": 1000}, False),
        (held(100, opened_at_s=None, newest_s=100), 400, {"idle_max": 1000}, True),
    ],
)
def test_due(backlog: Backlog, now_s: int, changes: dict[str, int], expected: bool) -> None:
    assert is_due(backlog, now_s * S, settings(**changes)) is expected


def test_opening_is_the_segment_that_reaches_min_bytes() -> None:
    segments = [segment(0, 1, raw_bytes=60, accept_us=5), segment(1, 1, raw_bytes=39, accept_us=6), segment(2, 1, raw_bytes=1, accept_us=7)]
    assert backlog_of(segments, 0, 3, 100) == Backlog(bytes=100, rows=3, opened_at_us=7, newest_us=7)
    assert backlog_of(segments, 0, 2, 100) == Backlog(bytes=99, rows=2, opened_at_us=None, newest_us=6)
    assert backlog_of(segments, 0, 3, 0).opened_at_us == 5
    assert backlog_of(segments, 0, 3, -1).opened_at_us is None


def test_archived_and_unstable_records_do_not_count() -> None:
    segments = [segment(0, 10, accept_us=9), segment(10, 10, accept_us=5), segment(20, 10, accept_us=99)]
    assert backlog_of(segments, 10, 20, 0) == Backlog(bytes=100, rows=10, opened_at_us=5, newest_us=5)
    assert backlog_of(segments, 20, 20, 0) == EMPTY
    assert backlog_of(segments, 5, 15, 0) == Backlog(bytes=100, rows=10, opened_at_us=9, newest_us=9)


def test_part_of_a_segment_counts_in_proportion() -> None:
    one = segment(100, 3, raw_bytes=100)
    assert [rows_within(one, 0, stable) for stable in (99, 100, 101, 103, 200)] == [0, 0, 1, 3, 3]
    assert [bytes_within(one, 0, stable) for stable in (100, 101, 102, 103)] == [0, 33, 66, 100]
    assert rows_within(one, 102, 101) == 0


def test_a_clock_set_back_does_not_stop_looking() -> None:
    assert look_due(None, 0, 10.0)
    assert not look_due(0, 10 * S - 1, 10.0)
    assert look_due(0, 10 * S, 10.0)
    assert look_due(100 * S, 99 * S, 10.0)


def test_concurrency_from_the_setting_or_from_memory() -> None:
    assert concurrent_limit(3, 0, 1) == 3
    assert concurrent_limit(0, 100, 30) == 3
    assert concurrent_limit(0, 10, 30) == 1
    assert concurrent_limit(0, 10, 0) == 10
