"""Is this machine's clock right? Asked at the start, of what other clocks wrote: the object store, and the
newest time in the intake log.

A writer whose clock is ahead raises the ingest time of every later record of every topic, for good: ingest
times are a running maximum. The object store is asked for its time: a bucket answers with the `Date` of its
server, a folder with the time of a file just written, which is another clock only on a network file system.
etcd gives no time. A simulated clock is compared with nothing.

A log that is ahead while the store agrees with this machine was written by a wrong clock earlier. That keeps
no writer from starting, because it cannot be undone: it is reported (`log_ahead_s`).
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
    """A store that can say what time it is where it keeps objects."""

    def time_us(self) -> int | None:
        """Now, cut to the second or finer; None if it does not say. Raises as a read."""


def log_ahead_s(log_newest_us: int, now_us: int, skew_max_s: float) -> float | None:
    """How far the newest time in the log is ahead of now, in seconds; None if that is within
    `intake.clock_skew_max`.
    """
    ahead_s = (log_newest_us - now_us) / 1e6
    return ahead_s if ahead_s > skew_max_s else None


def log_ahead_text(log_newest_us: int, ahead_s: float) -> str:
    """What that means, for people, on one line."""
    return (
        f"the newest ingest time in the intake log is {moment(log_newest_us)}, {ahead_s:,.0f} s ahead "
        "of this machine's clock: "
        "new records get that time until the clock has reached it"
    )


def check_start_clock(store: ObjectStore, clock: Clock, log_newest_us: int, skew_max_s: float) -> None:
    """Raise `RetryLater` if the clock is further ahead of the store's than allowed, or if store and log both
    say that it is behind.
    """
    if type(clock) is not SystemClock or not isinstance(store, StatesTime):
        return
    before_us = clock.now_us()
    stated_us = store.time_us()
    after_us = clock.now_us()
    if stated_us is None:
        return
    skew_max_us = skew_max_s * 1e6
    ahead_us = before_us - (stated_us + RESOLUTION_US)
    if ahead_us > skew_max_us:
        raise RetryLater(
            f"this machine's clock says {moment(before_us)} and is {ahead_us / 1e6:.0f} s ahead of the "
            "object store's, more than "
            f"intake.clock_skew_max = {skew_max_s:g} s; nothing is taken in, because a time once in "
            "the log holds back every later one. "
            "Set the wrong one of the two clocks right; it is asked again"
        )
    behind_us = stated_us - after_us
    if behind_us <= skew_max_us:
        return
    behind = (
        f"this machine's clock says {moment(after_us)} and is {behind_us / 1e6:.0f} s behind the object "
        "store's"
    )
    if log_ahead_s(log_newest_us, after_us, skew_max_s) is not None:
        raise RetryLater(
            f"{behind}, and the intake log has times that are later too; set it right; it is asked again"
        )
    _log.warning("%s: check both clocks", behind)
