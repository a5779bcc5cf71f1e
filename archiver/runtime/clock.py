"""Time, passed in.

Only this module calls the system's clocks, so that a simulation can replace them. Times are integers:
microseconds since 1970 in UTC (`_us`), as Iceberg and Parquet store them; durations are float seconds (`_s`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The current time, elapsed time, and a way to wait."""

    def now_us(self) -> int:
        """Wall-clock time, microseconds since 1970 UTC. May step back."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed point; never steps back."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        # Integer arithmetic: a float of seconds loses microseconds at the current date.
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def uptime_s() -> float:
    """Seconds since the machine started, with the time for which it was suspended where the system has it.

    `monotonic_s` stands still while the machine is suspended.
    """
    known = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if known is None else time.clock_gettime(known)


class ManualClock:
    """A clock that moves only by `advance` and `sleep`. For tests and simulation."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return self._elapsed_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance both clocks by `seconds`."""
        # Whole microseconds, so that many small steps do not add up to a rounding error.
        moved_us = round(seconds * 1e6)
        self._now_us += moved_us
        self._elapsed_us += moved_us

    def set_wall(self, now_us: int) -> None:
        """Step the wall clock, as an operator or NTP does; the monotonic clock is unaffected."""
        self._now_us = now_us
