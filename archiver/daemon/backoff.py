"""When to look again after a failure: soon, then ever later.

Owns nothing but a time. The wait begins with a first one, doubles with every look that was followed by
another failure, and ends at the longest; what went well begins anew. Safe for several threads. Must never
hold anything up: whoever asks is told whether it is time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from archiver.runtime.clock import Clock


class Backoff:
    """The time of the next look that a failure asks for."""

    def __init__(self, clock: Clock, first_s: Callable[[], float], longest_s: Callable[[], float]) -> None:
        """The waits are asked for when they are needed: settings may be read again."""
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._waited_s: float | None = None
        self._due_s: float | None = None

    def failed(self) -> None:
        """Something failed; one look is due after the wait, however often it fails until then."""
        with self._lock:
            if self._due_s is None:
                self._waited_s = min(
                    self._first_s() if self._waited_s is None else 2 * self._waited_s, self._longest_s()
                )
                self._due_s = self._clock.monotonic_s() + self._waited_s

    def fine(self) -> None:
        """It went well: nothing is due, and the next failure waits as the first did."""
        with self._lock:
            self._waited_s = self._due_s = None

    def due(self) -> bool:
        """Whether it is time; says so once."""
        with self._lock:
            if self._due_s is None or self._clock.monotonic_s() < self._due_s:
                return False
            self._due_s = None
            return True
