"""Compares this machine's clock at start with the object store's clock and the newest time in the intake log.

A writer whose clock is ahead raises the ingest time of every later record for good, because ingest times are
a running maximum. A bucket states its time in the `Date` header. A folder states it by the time of a file
just written, which is another clock only on a network file system. etcd states no time. A simulated clock is
not compared.

If the log is ahead while the store agrees with this machine, an earlier writer had a wrong clock. That cannot
be undone, so writers start all the same, and the fact is reported (`log_ahead_s`).
"""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.text import moment

RESOLUTION_US = 1_000_000
"""A server states its time in whole seconds."""
_log = logging.getLogger(__name__)


@runtime_checkable
class StatesTime(Protocol):
    """An object store that can state its time."""

    def time_us(self) -> int | None:
        """The store's present time, at least to the second; None if it states none. Raises as a read."""


def log_ahead_s(log_newest_us: int, now_us: int, skew_max_s: float) -> float | None:
    """Seconds by which the newest time in the log is ahead of now; None if within `intake.clock_skew_max`."""
    ahead_s = (log_newest_us - now_us) / 1e6
    return ahead_s if ahead_s > skew_max_s else None


def log_ahead_text(log_newest_us: int, ahead_s: float) -> str:
    """The same as a sentence."""
    return (
        f"the newest ingest time in the intake log is {moment(log_newest_us)}, {ahead_s:,.0f} s ahead "
        "of this machine's clock: "
        "new records get that time until the clock has reached it"
    )


def certain_skew_us(before_us: int, stated_us: int, after_us: int) -> int:
    """By how much this machine's clock is certainly ahead of another one (positive), or behind it (negative).

    The clock is read on both sides of the request, so its duration never counts as a difference.
    """
    # The stated second may be almost over.
    ahead_us = before_us - (stated_us + RESOLUTION_US)
    return ahead_us if ahead_us > 0 else min(0, after_us - stated_us)


def check_start_clock(store: ObjectStore, clock: Clock, log_newest_us: int, skew_max_s: float) -> None:
    """Raise `RetryLater` if the clock is ahead of the store's by more than allowed, or if store and log both
    show that it is behind.
    """
    # A simulated clock has nothing in common with the time of a real store.
    if type(clock) is not SystemClock or not isinstance(store, StatesTime):
        return
    before_us = clock.now_us()
    stated_us = store.time_us()
    after_us = clock.now_us()
    if stated_us is None:
        return
    skew_max_us = skew_max_s * 1e6
    ahead_us = certain_skew_us(before_us, stated_us, after_us)
    if ahead_us > skew_max_us:
        raise RetryLater(
            f"this machine's clock says {moment(before_us)} and is {ahead_us / 1e6:.0f} s ahead of the "
            "object store's, more than "
            f"intake.clock_skew_max = {skew_max_s:g} s; no records are accepted, because a time in the "
            "log raises every later ingest time. "
            "Correct the wrong clock; the check is repeated"
        )
    behind_us = -ahead_us
    if behind_us <= skew_max_us:
        return
    behind = (
        f"this machine's clock says {moment(after_us)} and is {behind_us / 1e6:.0f} s behind the object "
        "store's"
    )
    # A clock that is behind cannot raise ingest times, so one other clock is not enough to stop the writer.
    if log_ahead_s(log_newest_us, after_us, skew_max_s) is not None:
        raise RetryLater(
            f"{behind}, and the intake log has later times too; correct the clock; the check is repeated"
        )
    _log.warning("%s: check both clocks", behind)
