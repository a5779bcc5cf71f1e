"""A lock that its waiters get in request order.

`threading.Lock` has no order: a thread that releases it and requests it again usually gets it again, so a
long job with many steps starves others.
"""

from __future__ import annotations

import threading
from collections import deque


class FairQueue:
    """Each thread enters with its own ticket, any object, and leaves with the same one. Safe for several
    threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()

    def enter(self, ticket: object, timeout_s: float) -> bool:
        """Wait until all earlier tickets have left; False if that takes longer than `timeout_s`; then the
        ticket is not queued.
        """
        with self._changed:
            self._tickets.append(ticket)
            entered = False
            try:
                # A longer wait is an OverflowError in `threading`.
                limit_s = None if timeout_s >= threading.TIMEOUT_MAX else timeout_s
                entered = self._changed.wait_for(lambda: self._tickets[0] is ticket, limit_s)
            finally:
                if not entered:  # also after a Ctrl-C
                    self._drop(ticket)
            return entered

    def leave(self, ticket: object) -> None:
        """Let the next ticket in; has no effect if the ticket is not in the queue."""
        with self._changed:
            self._drop(ticket)

    @property
    def contended(self) -> bool:
        """Whether a ticket waits after the first one."""
        return len(self._tickets) > 1

    def _drop(self, ticket: object) -> None:
        # Idempotent: `leave` may follow an `enter` that gave up.
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            # All, because only the first ticket's thread may continue, and `notify` could wake another one.
            self._changed.notify_all()
