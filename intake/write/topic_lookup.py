"""Reads of the intake log for topics that another process may have declared, bounded in their rate."""

from __future__ import annotations

import threading

from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, RetryLater
from intake.log.sequencer import Sequencer

LOOKUP_INTERVAL_S = 1.0
"""Seconds for which a read of the log counts as fresh. A topic or partition of another process is found that
much later."""


class TopicLookup:
    """Reads the log for topics and partitions that this process does not know, at most once per
    `LOOKUP_INTERVAL_S`. Thread-safe.

    Senders may ask for topics that do not exist, as often as they like. That must not make this process read
    the log each time, nor block all threads on a slow log. One thread waits; the others get `RetryLater`.
    """

    def __init__(self, sequencer: Sequencer, clock: Clock) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._asking = threading.Lock()
        self._fresh_until_s = float("-inf")
        self._failed: ArchiverError | None = None

    def refresh(self) -> None:
        """Read the log to its tail, unless it was read within the last `LOOKUP_INTERVAL_S`.

        Raises `RetryLater` if the log could not be read, or if another thread is reading it.
        """
        # Do not wait: the log may be slow, and request threads must not pile up behind it.
        if not self._asking.acquire(blocking=False):
            raise RetryLater("another thread is reading the intake log for new topics; try again")
        try:
            if self._clock.monotonic_s() >= self._fresh_until_s:
                self._read()
            # Within the interval all callers get the same failure, without another read.
            elif self._failed is not None:
                raise RetryLater(f"the intake log could not be read for new topics: {self._failed}")
        finally:
            self._asking.release()

    def _read(self) -> None:
        try:
            self._sequencer.refresh()
            self._failed = None
        except ArchiverError as error:
            self._failed = error
            raise
        finally:
            # After a failure as well, or every request would wait for a log that does not answer.
            self._fresh_until_s = self._clock.monotonic_s() + LOOKUP_INTERVAL_S
