"""Rounds of archiving that become due while a job has the turn: for tests of what goes first."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from reconcile.vacuum.clean import CleanRun
from tests.support.builders.cleaning import Vacuumed
from tests.support.log.memory_log import MemoryLease
from tests.support.process.processes import until

WAIT_S = 30.0


class WaitingRounds:
    """The leadership of a daemon, and rounds in threads of their own that wait for a turn of it."""

    def __init__(self, leader: Leader, vacuumed: Vacuumed) -> None:
        self.leadership = Leadership(
            leader, MemoryLease(leader.owner, vacuumed.place), lasting=True, wait_s=WAIT_S
        )
        with self.leadership.turn():
            self.leadership.lead()
        self.order: list[str] = []
        """What happened, as the test and the rounds note it."""
        self._threads: list[threading.Thread] = []

    def cleaning(self, vacuumed: Vacuumed) -> CleanRun:
        """The vacuum of this daemon."""
        return dataclasses.replace(vacuumed.cleaning(self.leadership.leader), leadership=self.leadership)

    def ask(self, work: Callable[[], object] = lambda: None) -> None:
        """A round becomes due; returns when it waits for its turn."""

        def round_() -> None:
            with self.leadership.turn("archiving"):
                self.order.append("round")
                work()

        self._threads.append(threading.Thread(target=round_, daemon=True))
        self._threads[-1].start()
        until("the round waits", lambda: self.leadership._queue.contended)

    def join(self) -> None:
        """Wait for the rounds."""
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
