"""The writer distrusts a clock that runs ahead."""

from __future__ import annotations

import pytest

from archiver.clock import ManualClock
from archiver.errors import RetryLater
from intake.accept_clock import AcceptClock

START = 1_700_000_000_000_000


def test_time_that_passes_is_no_skew() -> None:
    clock = ManualClock(START)
    accept = AcceptClock(clock, 10)
    clock.advance(3600)
    assert accept.accept_us(0) == START + 3_600_000_000


def test_a_step_ahead_is_refused_until_it_is_taken_back() -> None:
    clock = ManualClock(START)
    accept = AcceptClock(clock, 10)
    clock.set_wall(START + 10_000_000)
    assert accept.accept_us(0) == START + 10_000_000
    clock.set_wall(START + 10_000_001)
    with pytest.raises(RetryLater, match=r"10\.0 s ahead.*clock_skew_max = 10 s"):
        accept.accept_us(0)
    clock.set_wall(START + 5_000_000)
    assert accept.accept_us(0) == START + 10_000_000  # never back


def test_the_log_vouches_for_a_later_time() -> None:
    clock = ManualClock(START)
    accept = AcceptClock(clock, 10)
    clock.set_wall(START + 60_000_000)
    assert accept.accept_us(START + 55_000_000) == START + 60_000_000


def test_a_step_back_keeps_accept_times_from_falling() -> None:
    clock = ManualClock(START)
    accept = AcceptClock(clock, 10)
    first = accept.accept_us(0)
    clock.set_wall(START - 3_600_000_000)
    assert accept.accept_us(0) == first
