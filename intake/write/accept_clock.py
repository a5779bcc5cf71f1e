"""Accept times of one writer, with a check that the wall clock does not run ahead.

A record with a time far in the future would raise the ingest time of all later records for good, so it is
refused. The *reference* is a past reading of the wall clock plus the monotonic time since then; a step of the
wall clock does not move it. It is never below the newest time in the intake log. The first reading is taken
at start.

The reference may be wrong: the clock was behind at start and was corrected later, or the machine slept, which
the monotonic clock does not count. So a new reading is taken once the wall clock has run evenly with the
monotonic clock for `settle`. The price: a clock that is wrong but steady is accepted after `settle`. The
clock is read when a record is sent or a file is written; `settle` counts from the first reading after the
step.

Accept times never decrease within one writer. Between writers and over a restart they may, and nothing
requires their order. Ingest time is the running maximum over the partition in offset order, and never before
the newest tick, which the fold carries in `SegmentRef.floor_us`. So records of a writer whose clock is behind
get the ingest time of the newest record before them.

A writer does not start at the newest time in the log instead: one clock that is ahead by less than the
allowed skew would pull every later writer along, and each could add the skew again.
"""

from __future__ import annotations

import threading

from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater

EVEN_US = 100_000
"""Allowed difference between wall clock and monotonic clock, because reading both takes a moment."""
EVEN_SHARE = 0.001
"""Allowed drift in addition, as a share of the elapsed time. A disciplined clock usually drifts by at most
half of it."""


class AcceptClock:
    """Accept times that never decrease. Thread-safe."""

    def __init__(self, clock: Clock, skew_max_s: float, settle_s: float = 60.0) -> None:
        self._clock = clock
        self._skew_max_us = round(skew_max_s * 1e6)
        self._settle_us = round(settle_s * 1e6)
        self._lock = threading.Lock()
        now_us, passed_us = self._read()
        self._reference_us = now_us - passed_us
        """Wall clock minus monotonic clock, at the reference reading."""
        self._even_since_us = passed_us
        self._even_us = now_us - passed_us
        self._last_us = 0
        self._refusals = 0

    @property
    def refusals(self) -> int:
        """How often a time was refused."""
        return self._refusals

    def accept_us(self, log_newest_us: int) -> int:
        """The accept time of a record that arrives now; `RetryLater` while the clock is too far ahead."""
        with self._lock:
            # The wall clock may step back between two records.
            self._last_us = max(self._last_us, self._checked(log_newest_us))
            return self._last_us

    def written_us(self, log_newest_us: int) -> int:
        """The time to write on a new file, not before any accept time given; `RetryLater` as `accept_us`."""
        with self._lock:
            return max(self._last_us, self._checked(log_newest_us))

    def _read(self) -> tuple[int, int]:
        return self._clock.now_us(), round(self._clock.monotonic_s() * 1e6)

    def _checked(self, log_newest_us: int) -> int:
        now_us, passed_us = self._read()
        # The check is made on use; no thread watches the clock.
        self._observe(now_us - passed_us, passed_us)
        # The log has its newest time already, so accepting up to it does no further harm.
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
        """Take a new reference reading if the wall clock has run evenly for long enough."""
        ran_us = passed_us - self._even_since_us
        # A step or a drift: the even run begins again here.
        if abs(offset_us - self._even_us) > EVEN_US + EVEN_SHARE * ran_us:
            self._even_since_us, self._even_us = passed_us, offset_us
        # The clock has run evenly for long enough, so the earlier reference was wrong.
        elif ran_us >= self._settle_us:
            self._even_since_us, self._even_us = passed_us, offset_us
            self._reference_us = offset_us
