"""One log in memory and any number of processes that append to it."""

from __future__ import annotations

from typing import Final

from archiver.config.groups import LogSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from tests.support.log.faulty_log import FaultyLog
from tests.support.log.memory_log import MemoryLogStore

NOW_US: Final = 1_700_000_000_000_000
SETTINGS: Final = LogSettings(append_attempts_max=3)


class LogBench:
    """The log with its faults, and the clock of all processes."""

    def __init__(self) -> None:
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self.clock = ManualClock(NOW_US)
        self._seed = 0

    def process(self) -> Sequencer:
        """A further process."""
        self._seed += 1
        return Sequencer(self.log, SeededIds(self._seed), self.clock, SETTINGS)

    def entries(self) -> list[bytes]:
        """What the log has."""
        return [entry.data for entry in self.log.read(0)]


def read_by(entries: list[bytes]) -> IntakeFold:
    """The fold of these entries, from the beginning."""
    fold = IntakeFold()
    for index, data in enumerate(entries):
        fold.apply(index, data)
    return fold
