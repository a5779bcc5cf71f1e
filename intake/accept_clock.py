"""The writer's view of the time: the wall clock, distrusted when it runs ahead.

Owns the rule that a record accepted with a time far in the future is refused: it would raise the ingest time of everything behind it for
good. The reference is the wall clock at start plus the time that has passed since (which a step of the wall clock does not move), and
never less than the newest time in the intake log.
"""

from __future__ import annotations

from archiver.clock import Clock
from archiver.errors import RetryLater


class AcceptClock:
    """Accept times, never going back. Not thread-safe: the writer calls it under its lock."""

    def __init__(self, clock: Clock, skew_max_s: float) -> None:
        self._clock = clock
        self._skew_max_us = round(skew_max_s * 1e6)
        self._started_us = clock.now_us()
        self._started_s = clock.monotonic_s()
        self._last_us = 0

    def accept_us(self, log_newest_us: int) -> int:
        """The accept time of a record that arrives now; `RetryLater` while the clock is further ahead than allowed."""
        now_us = self.check(log_newest_us)
        self._last_us = max(self._last_us, now_us)
        return self._last_us

    def check(self, log_newest_us: int) -> int:
        """The wall clock's time; `RetryLater` while it is further ahead of its reference than allowed."""
        now_us = self._clock.now_us()
        passed_us = round((self._clock.monotonic_s() - self._started_s) * 1e6)
        ahead_us = now_us - max(self._started_us + passed_us, log_newest_us)
        if ahead_us > self._skew_max_us:
            raise RetryLater(
                f"the clock is {ahead_us / 1e6:.1f} s ahead of its reference, more than intake.clock_skew_max = "
                f"{self._skew_max_us / 1e6:g} s; set it right (or restart, if it was wrong before)"
            )
        return now_us
