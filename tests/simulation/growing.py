"""Topics that get more partitions: several processes add them, each behind the others' backs, while all other
actors write, read, archive and clean."""

from __future__ import annotations

import random
from contextlib import suppress

from archiver.runtime.errors import InvalidInput
from tests.simulation.schedule import Process
from tests.simulation.station import TOPICS, Station, World

PARTITIONS_MAX = 6
"""So that the actors still meet in one partition."""


class Grower:
    """Adds partitions, `left` times."""

    def __init__(self, name: str, world: World, choices: random.Random, left: int) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._left = left

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        while self._left:
            process.sleep(self._random.randrange(50_000, 1_500_000))
            process.require_current()
            topic = self._random.choice(list(TOPICS))
            partitions = self._random.randrange(2, PARTITIONS_MAX + 1)
            # Refused if another process has added more already.
            with suppress(InvalidInput):
                grown = station.sequencer.grow_topic(topic, partitions)
                assert grown.partitions >= partitions, grown
            assert station.sequencer.fold.topics_by_name[topic].partitions >= partitions
            process.require_current()
            self._left -= 1
