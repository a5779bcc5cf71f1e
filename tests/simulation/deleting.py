"""Clients that delete records of partitions, each behind the others' backs, while all other actors go on.

The records keep their offsets and segments, so no other actor may notice. What is deleted stays deleted for
every process, also for one that starts from a checkpoint.
"""

from __future__ import annotations

import random

from tests.simulation.schedule import Process
from tests.simulation.station import Station, World


class Deleter:
    """Deletes records of some partitions, `left` times."""

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
            topic_id, _ = self._random.choice(station.partitions())
            fold = station.sequencer.fold
            below = {
                number: self._random.randrange(fold.next_offset((topic_id, number)) + 1)
                for number in range(fold.topics_by_id[topic_id].partitions)
            }
            station.sequencer.delete_records(topic_id, below)
            for number, offset in below.items():
                assert station.sequencer.fold.partition((topic_id, number)).deleted_below >= offset
            process.require_current()
            self._left -= 1
