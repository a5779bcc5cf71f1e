"""The writer's view of the time: the wall clock, distrusted when it runs ahead.

Owns the rule that a record accepted with a time far in the future is refused: it would raise the ingest time
of everything behind it for good. The *reference* is what the wall clock said once, plus the time that has
passed since by the monotonic clock, which no step of the wall clock moves; and never less than the newest
time in the intake log. It is first taken at start.

It may have been wrong: the clock was behind at start and was set right later, or the machine slept, which the
monotonic clock does not count. So the reference is taken anew whenever the wall clock has run evenly with the
monotonic clock for `settle`: a clock that was set right stays where it is. What that trades is that a clock
which is wrong but steady is believed after `settle`. Time is looked at when somebody sends or a file is
written; `settle` counts from the first look that sees the step.

Accept times never go back within one writer: each is at least the one before. Over a restart, and between
writers, they may, and nothing needs them to be in order: the ingest time of a record is the running maximum
over its partition in offset order, and never before the newest tick, which the fold carries from segment to
segment (`SegmentRef.floor_us`). A writer that starts with its clock set back states old times and its records
get the ingest time of the newest before them. To start at the newest time in the log instead would be worse:
one writer whose clock is ahead by less than the allowed skew would take every later one with it, and each in
turn could add the skew again.
"""

from __future__ import annotations

import threading

from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater

EVEN_US = 100_000
"""How far the wall clock may move against the monotonic one and still run evenly: reading both takes a
moment,"""
EVEN_SHARE = 0.001
"""and a clock that is being disciplined runs a little faster or slower (usually at most half of that)."""


class AcceptClock:
    """Accept times, never going back. Thread-safe."""

    def __init__(self, clock: Clock, skew_max_s: float, settle_s: float = 60.0) -> None:
        self._clock = clock
        self._skew_max_us = round(skew_max_s * 1e6)
        self._settle_us = round(settle_s * 1e6)
        self._lock = threading.Lock()
        now_us, passed_us = self._look()
        self._reference_us = now_us - passed_us
        """What the wall clock said when the monotonic one was 0, if it ran evenly all the time."""
        self._even_since_us = passed_us
        self._even_us = now_us - passed_us
        self._last_us = 0
        self._refusals = 0

    @property
    def refusals(self) -> int:
        """How often it has refused."""
        return self._refusals

    def accept_us(self, log_newest_us: int) -> int:
        """The accept time of a record that arrives now; `RetryLater` while the clock is further ahead than
        allowed.
        """
        with self._lock:
            self._last_us = max(self._last_us, self._checked(log_newest_us))
            return self._last_us

    def written_us(self, log_newest_us: int) -> int:
        """The time to write on a file that is made now, no earlier than the accept times given; `RetryLater`
        as `accept_us`.
        """
        with self._lock:
            return max(self._last_us, self._checked(log_newest_us))

    def _look(self) -> tuple[int, int]:
        return self._clock.now_us(), round(self._clock.monotonic_s() * 1e6)

    def _checked(self, log_newest_us: int) -> int:
        now_us, passed_us = self._look()
        self._observe(now_us - passed_us, passed_us)
        ahead_us = now_us - max(self._reference_us + passed_us, log_newest_us)
        if ahead_us > self._skew_max_us:
            self._refusals += 1
            raise RetryLater(
                f"the clock is {ahead_us / 1e6:.1f} s ahead of its reference, more than "
                "intake.clock_skew_max = "
                f"{self._skew_max_us / 1e6:g} s, and nothing was sent; set it right, or, if it is "
                "right now, try again once it has run "
                f"evenly for intake.clock_settle = {self._settle_us / 1e6:g} s"
            )
        return now_us

    def _observe(self, offset_us: int, passed_us: int) -> None:
        """Take the reference anew if the wall clock has run evenly for long enough."""
        ran_us = passed_us - self._even_since_us
        if abs(offset_us - self._even_us) > EVEN_US + EVEN_SHARE * ran_us:
            self._even_since_us, self._even_us = passed_us, offset_us
        elif ran_us >= self._settle_us:
            self._even_since_us, self._even_us = passed_us, offset_us
            self._reference_us = offset_us
