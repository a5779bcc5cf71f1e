"""Shares the one Spark session of a process: one job at a time, in the order of requests.

An archiving round and a deep audit share the cores and memory of a session. Each requests a turn, runs one
job of bounded size, and returns the turn. The next in the queue follows, so that neither starves. Independent
of Spark.
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
    """Hands out turns. Thread-safe; a thread that has a turn must not ask for another."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s` bounds the wait for a turn."""
        self._wait_s = wait_s
        self._queue = FairQueue()

    @contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """The session belongs to this thread inside of the block. Raises `RetryLater` if no turn comes in
        time.
        """
        # One per call: the queue distinguishes calls by it.
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
