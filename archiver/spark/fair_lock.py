"""Who may give work to the one Spark session of a process: one at a time, in the order of asking.

A round of archiving and a deep audit share cores and memory of a session. Each asks for a turn, uses it for
one job of bounded size, and gives it back; whoever asked meanwhile comes next, so that neither starves. Knows
nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from archiver.runtime.errors import RetryLater
from archiver.runtime.fair_queue import FairQueue

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class SparkTurns:
    """Hands out turns. Safe for several threads; not for a thread that has one already."""

    def __init__(self, wait_s: float) -> None:
        """A turn is waited for at most so long."""
        self._wait_s = wait_s
        self._queue = FairQueue()

    @contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """The session is this thread's inside of the block. Raises `RetryLater` if its turn does not come in
        time.
        """
        ticket = object()
        if not self._queue.enter(ticket, self._wait_s):
            raise RetryLater(
                f"the spark session has not been free for {what} within {self._wait_s:g} s; the next "
                "run tries again"
            )
        try:
            yield
        finally:
            self._queue.leave(ticket)

    def taking(self, work: Callable[[_Asked], _Answer], what: str) -> Callable[[_Asked], _Answer]:
        """The same work, each call in a turn of its own."""

        def in_turn(asked: _Asked) -> _Answer:
            with self.turn(what):
                return work(asked)

        return in_turn
