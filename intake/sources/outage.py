"""One log line when a source stops working and one when it works again, however often it is tried between the
two.

A source that fails with every second try is still away: it is back once it has worked for `BACK_AFTER_S`. A
further reason within the same outage is logged once. Not thread-safe: the source's own thread calls it.
"""

from __future__ import annotations

import logging
import re

from archiver.runtime.clock import Clock

BACK_AFTER_S = 5.0
REASONS_MAX = 8
"""Different reasons that are logged within one outage; every further one is in the source's state and at
DEBUG only."""
_NUMBER = re.compile(r"\d+")


class Outage:
    """Of one source."""

    def __init__(self, source: str, clock: Clock, log: logging.Logger) -> None:
        self._source = source
        self._clock = clock
        self._log = log
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._reasons: set[str] = set()

    def failed(self, why: str) -> None:
        """A try failed."""
        now_s = self._clock.monotonic_s()
        self._failed_s = now_s
        if self._since_s is None:
            self._since_s = now_s
            self._reasons.clear()
        reason = _NUMBER.sub("#", why)
        is_news = reason not in self._reasons and len(self._reasons) < REASONS_MAX
        if is_news:
            self._reasons.add(reason)
        self._log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "source %s: nothing is taken in: %s",
            self._source,
            why,
        )

    def worked(self) -> None:
        """A try succeeded."""
        if self._since_s is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._failed_s >= BACK_AFTER_S:
            self._log.warning(
                "source %s: works again after %.0f s", self._source, self._failed_s - self._since_s
            )
            self._since_s = None
