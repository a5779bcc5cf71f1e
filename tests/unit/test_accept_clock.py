"""The writer refuses a clock that runs ahead, and accepts it again once it has run evenly."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from intake.write.accept_clock import EVEN_SHARE, EVEN_US, AcceptClock

START = 1_700_000_000_000_000
S = 1_000_000
SKEW_S, SETTLE_S = 10, 60


def clocks(now_us: int = START) -> tuple[ManualClock, AcceptClock]:
    clock = ManualClock(now_us)
    return clock, AcceptClock(clock, SKEW_S, SETTLE_S)


def refuses(accept: AcceptClock, log_newest_us: int = 0) -> bool:
    try:
        accept.accept_us(log_newest_us)
    except RetryLater:
        return True
    return False


def test_time_that_passes_is_no_skew() -> None:
    clock, accept = clocks()
    clock.advance(3600)
    assert accept.accept_us(0) == START + 3600 * S


def test_a_step_ahead_is_refused_until_it_is_taken_back() -> None:
    clock, accept = clocks()
    clock.set_wall(START + 10 * S)
    assert accept.accept_us(0) == START + 10 * S
    clock.set_wall(START + 10 * S + 1)
    with pytest.raises(RetryLater, match=r"10\.0 s ahead.*clock_skew_max = 10 s.*clock_settle = 60 s"):
        accept.accept_us(0)
    with pytest.raises(RetryLater):
        accept.written_us(0)
    assert accept.refusals == 2
    clock.set_wall(START + 5 * S)
    assert accept.accept_us(0) == START + 10 * S  # never back
    assert accept.written_us(0) == START + 10 * S


def test_the_log_vouches_for_a_later_time() -> None:
    clock, accept = clocks()
    clock.set_wall(START + 60 * S)
    assert accept.accept_us(START + 55 * S) == START + 60 * S


def test_a_step_back_keeps_accept_times_from_falling() -> None:
    clock, accept = clocks()
    first = accept.accept_us(0)
    clock.set_wall(START - 3600 * S)
    assert accept.accept_us(0) == first


@pytest.mark.parametrize("step_s", [3600, -3600, 11])
def test_a_clock_that_was_wrong_and_is_set_right_is_believed_after_a_while(step_s: int) -> None:
    """This also holds after the machine slept: its wall clock continued, its monotonic clock did not."""
    clock, accept = clocks()
    accept.accept_us(0)
    clock.set_wall(START + step_s * S)
    assert refuses(accept) is (step_s > 0)
    clock.advance(SETTLE_S - 0.001)
    assert refuses(accept) is (step_s > 0)
    clock.advance(0.001)
    assert not refuses(accept)
    clock.set_wall(clock.now_us() + (SKEW_S + 1) * S)
    assert refuses(accept), "and the next step is refused as the first one was"


def test_a_clock_that_goes_on_jumping_is_never_believed() -> None:
    clock, accept = clocks()
    for _ in range(20):
        clock.advance(SETTLE_S * 0.9)
        clock.set_wall(clock.now_us() + (SKEW_S + 1) * S)
        assert refuses(accept)


def test_a_clock_that_is_disciplined_runs_evenly() -> None:
    clock, accept = clocks()
    for _ in range(1000):
        clock.advance(30)
        clock.set_wall(clock.now_us() + round(30 * S * EVEN_SHARE * 0.9))
        assert not refuses(accept), "30 s ahead in the end, little by little"


def test_reading_both_clocks_takes_a_moment() -> None:
    clock, accept = clocks()
    clock.set_wall(START + 3600 * S)
    for number in range(7):
        clock.set_wall(clock.now_us() + (EVEN_US // 2) * (1 if number % 2 else -1))
        refused = refuses(accept)
        clock.advance(SETTLE_S / 6)
    assert not refused


_MOVES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30), st.integers(0, 200)),  # seconds that pass
        # Seconds by which the wall clock steps.
        st.one_of(st.just(0), st.just(0), st.integers(-100, 100), st.integers(-100_000, 100_000)),
        st.integers(-200, 200),  # seconds from the start to the log's newest time
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(_MOVES)
def test_any_steps(moves: list[tuple[int, int, int]]) -> None:
    """Accept times never decrease. A time is refused exactly while it is ahead of the last clock that ran
    evenly for long enough. So refusals end without an operator."""
    clock, accept = clocks()
    looks = [(0, START)]  # seconds passed, and the wall clock minus these seconds
    last_us = log_us = 0
    for passed, step, alongside in moves:
        clock.advance(passed)
        clock.set_wall(max(0, clock.now_us() + step * S))
        log_us = max(log_us, START + alongside * S)
        now_s = round(clock.monotonic_s())
        looks.append((now_s, clock.now_us() - now_s * S))
        runs = [list(run) for _, run in groupby(looks, key=lambda look: look[1])]
        even = [run[0][1] for run in runs if run[-1][0] - run[0][0] >= SETTLE_S]
        reference_us = max((even[-1] if even else START) + now_s * S, log_us)
        ahead = clock.now_us() > reference_us + SKEW_S * S
        assert refuses(accept, log_us) is ahead
        if runs[-1][-1][0] - runs[-1][0][0] >= SETTLE_S:
            assert not ahead, "within the bound"
        if not ahead:
            accepted = accept.accept_us(log_us)
            assert accepted == max(last_us, clock.now_us())
            last_us = accepted
