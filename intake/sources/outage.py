"""Log one line when a source fails and one when it works again, independent of the number of retries.

A source counts as back once it has worked for `BACK_AFTER_S`, so alternating failures are one outage. A
further reason within an outage is logged once. Not thread-safe: only the source's own thread calls it.
"""

from __future__ import annotations

import logging
import re

from archiver.runtime.clock import Clock

BACK_AFTER_S = 5.0
REASONS_MAX = 8
"""Different reasons to log within one outage; further ones appear in the source's state and at DEBUG only."""
_NUMBER = re.compile(r"\d+")


class Outage:
    """The outages of one source."""

    def __init__(self, source: str, clock: Clock, log: logging.Logger) -> None:
        self._source = source
        self._clock = clock
        self._log = log
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._reasons: set[str] = set()

    def failed(self, why: str) -> None:
        """Record a failed attempt."""
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
            "source %s: nothing is ingested: %s",
            self._source,
            why,
        )

    def worked(self) -> None:
        """Record a successful attempt."""
        if self._since_s is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._failed_s >= BACK_AFTER_S:
            self._log.warning(
                "source %s: works again after %.0f s", self._source, self._failed_s - self._since_s
            )
            self._since_s = None
