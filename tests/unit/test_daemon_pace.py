"""A round without progress is detected; a round with progress is not reported."""

from __future__ import annotations

import pytest

from archiver.daemon.operations import Pace
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater


def test_a_round_without_a_message_is_reported() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    clock.advance(100)
    pace.check(10)
    with pace.round() as progress:
        clock.advance(9)
        pace.check(10)
        progress("refining")
        clock.advance(9)
        pace.check(10)
        clock.advance(2)
        with pytest.raises(RetryLater, match="no progress for 11 s"):
            pace.check(10)
        progress("committing")
        pace.check(10)
    clock.advance(100)
    pace.check(10)


def test_a_round_that_fails_is_over() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    with pytest.raises(ZeroDivisionError), pace.round():
        raise ZeroDivisionError
    clock.advance(100)
    pace.check(10)
