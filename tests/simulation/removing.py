"""Topics that come and go: several processes declare one name, send to it, delete it, and declare it again,
each behind the others' backs.

The fate of their records is not judged in the end; the ground checks that nothing lands in a topic that was
deleted. No other actor uses these topics; the records of other topics must not suffer from them.
"""

from __future__ import annotations

import random

from archiver.runtime.errors import NotFound
from tests.simulation.book import Sent
from tests.simulation.ground import DOOMED
from tests.simulation.schedule import Process
from tests.simulation.station import Outgoing, Station, World


class Remover:
    """Declares, sends and deletes, `left` times each."""

    def __init__(self, name: str, world: World, choices: random.Random, left: int) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._left = left
        self._sent = 0

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        while self._left:
            process.sleep(self._random.randrange(50_000, 1_500_000))
            process.require_current()
            topic = station.sequencer.declare_topic(DOOMED, 1, again=True)
            for _ in range(self._random.randrange(4)):
                process.sleep(self._random.randrange(800_000))
                process.require_current()
                if topic.topic_id not in station.sequencer.fold.topics_by_id:
                    break  # another process was quicker, and this one has read the entry
                self._sent += 1
                value = f"doomed {self.name} {self._sent}".encode()
                sent = Sent(value, (topic.topic_id, 0), self.name, self._sent)
                station.send([Outgoing(sent.tp, [sent])])
            process.require_current()
            try:
                station.sequencer.delete_topic(topic.topic_id)
            except NotFound as error:
                raise AssertionError(f"{topic} was declared, and nobody knows it") from error
            self._left -= 1
