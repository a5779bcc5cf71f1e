"""Failed operations are retried with exponential backoff."""

from __future__ import annotations

from archiver.daemon.operations import Backoff
from archiver.runtime.clock import ManualClock


def waits(again: Backoff, clock: ManualClock) -> float:
    """Seconds until a retry is due, in steps of one second."""
    for second in range(1, 1000):
        clock.advance(1)
        if again.due():
            return second
    raise AssertionError("it is never time")


def test_the_wait_doubles_up_to_the_longest_and_begins_again() -> None:
    clock = ManualClock(0)
    again = Backoff(clock, lambda: 30.0, lambda: 100.0)
    assert not again.due()
    found = []
    for _ in range(4):
        again.failed()
        again.failed()  # further failures before the retry do not lengthen the wait
        found.append(waits(again, clock))
        assert not again.due(), "it says so once"
    assert found == [30, 60, 100, 100]
    again.succeeded()
    assert not again.due()
    again.failed()
    assert waits(again, clock) == 30


def test_what_went_well_in_between_removes_the_poll() -> None:
    clock = ManualClock(0)
    again = Backoff(clock, lambda: 30.0, lambda: 100.0)
    again.failed()
    again.succeeded()
    clock.advance(1000)
    assert not again.due()


def test_the_longest_wait_bounds_the_first() -> None:
    clock = ManualClock(0)
    again = Backoff(clock, lambda: 30.0, lambda: 10.0)
    again.failed()
    assert waits(again, clock) == 10
