"""Actors that keep the log short and moving: the leader that ticks and ends what is overdue, the keeper that
makes checkpoints.

They know only what the product reports. Promise to go on until all others have finished.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from archiver.runtime.errors import RetryLater
from tests.simulation.schedule import Process
from tests.simulation.station import Station, World

IDLE_US = 6_000_000
RAISED_IDLE_US = 24_000_000
"""Where clients raise their epochs: an eighth of it, less the difference of clocks, is `REPEAT_MAX_US`."""


class Leader:
    """Ticks, ends overdue transactions, forgets idle producers."""

    def __init__(
        self,
        name: str,
        world: World,
        choices: random.Random,
        is_over: Callable[[], bool],
        idle_us: int = IDLE_US,
    ) -> None:
        """A producer that was silent for `idle_us` may be forgotten."""
        self.name = name
        self._world = world
        self._random = choices
        self._is_over = is_over
        self._idle_us = idle_us

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        while True:
            process.sleep(self._random.randrange(50_000, 1_500_000))
            process.require_current()
            now_us = station.clock.now_us()
            chosen = self._random.randrange(8)
            try:
                if self._is_over():
                    # A client that went away has left a transaction open, which no other client ends.
                    station.sequencer.end_overdue(now_us)
                    if not len(station.sequencer.fold.transactions):
                        return
                elif chosen < 4:
                    station.sequencer.tick(now_us)
                elif chosen < 7:
                    station.sequencer.end_overdue(now_us)
                else:
                    idle_since_us = now_us - self._idle_us
                    station.sequencer.forget_producers(idle_since_us, 1000, idle_since_us)
            except RetryLater:
                continue


class Keeper:
    """Makes the checkpoints that are due."""

    def __init__(self, name: str, world: World, choices: random.Random, is_over: Callable[[], bool]) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._is_over = is_over

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        while not self._is_over():
            process.sleep(self._random.randrange(100_000, 2_000_000))
            process.require_current()
            try:
                station.sequencer.refresh()
                station.checkpointer.run_if_due()
            except RetryLater:
                continue
