"""A process that publishes: `python -m tests.support.kafka.publisher_process ROOT BROKERS TOPIC MOVES`.

The logs are below ROOT. It ends with everything published; or by SIGKILL, with events acknowledged and the
position not moved, in place of the move that follows MOVES others (0: never).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from archiver.control_topic import publisher as module
from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.control_topic.publisher import Position
from archiver.log.sqlite import SqliteLogStore
from archiver.runtime.clock import SystemClock
from tests.support.kafka.control_topic import Rig, settings_of
from tests.support.objects.memory_store import MemoryObjectStore


def rig_in(root: Path) -> Rig:
    """What stands below a folder."""
    logs = SqliteLogStore(root / "metadata.db", 30, 512 * 1024)
    return Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), SystemClock())


def main(root: str, brokers: str, topic: str, moves: str) -> None:
    """Publish what is there."""
    module.READ_ENTRIES = 10  # a position often enough to die before many of them
    settings = settings_of(brokers=brokers, topic=topic)
    rig = rig_in(Path(root))
    publisher = rig.publisher(
        lambda: KafkaTopic(settings, rig.clock), seed=os.getpid(), brokers=brokers, topic=topic
    )
    move, left = publisher._positions.move, int(moves)

    def moved(position: Position) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        move(position)

    publisher._positions.move = moved  # type: ignore[method-assign]
    print(publisher.run(), flush=True)
    publisher.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
