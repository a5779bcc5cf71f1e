"""One run of the Kafka listener: daemons with Kafka ports, clients that produce and fetch, and writers with
transactions next to them."""

from __future__ import annotations

import random

from archiver.kafka.fetch import FetchLimits
from intake.log.fold import IntakeFold
from tests.simulation.faults import PROFILES
from tests.simulation.kafka.consumers import Consumer, judge_consumers
from tests.simulation.kafka.kafka_clients import IdempotentSender, PlainSender
from tests.simulation.kafka.kafka_daemon import Daemon
from tests.simulation.kafka.wire import Brokers
from tests.simulation.run import Result, Run, alarmed
from tests.simulation.schedule import Actor, Trace
from tests.simulation.transacting import TransactionalProducer
from tests.simulation.upkeep import Keeper, Leader
from tests.simulation.vacuuming import Cleaner

_IDLE_US = 600_000_000
"""Longer than any pause, as 7 days are: the first batch of a forgotten producer counts again (decision 0078)."""


def run(seed: int, *, keep_lines: bool = False) -> Result:
    """Play the run of that seed to its end."""
    with alarmed("intake", "archiver"):
        return KafkaRun(seed, PROFILES[seed % len(PROFILES)], Trace(keep_lines)).play()


class KafkaRun(Run):
    """A run with Kafka clients. Nothing is archived, so that intake holds every record to the end."""

    def _cast(self, choices: random.Random) -> None:
        def own() -> random.Random:
            return random.Random(choices.randrange(1 << 62))

        self.faulty_steps = choices.choice((300, 700, 1500))
        world, brokers = self._world, Brokers()
        self._senders: list[IdempotentSender | PlainSender] = [
            IdempotentSender(f"idem{n}", world, own(), brokers, choices.choice((6, 12, 24)))
            for n in range(choices.randrange(1, 3))
        ]
        self._senders += [
            PlainSender(f"plain{n}", world, own(), brokers, choices.choice((4, 12)))
            for n in range(choices.randrange(2))
        ]
        writing: list[Actor] = [
            *self._senders,
            *(
                TransactionalProducer(f"trans{n}", f"tx{n}", world, own(), choices.choice((1, 2, 3)))
                for n in range(choices.randrange(2))
            ),
        ]

        def written() -> bool:
            return all(actor.name in self._schedule.finished for actor in writing)

        self._consumers = [
            Consumer(f"consumer{n}", self._ground, own(), brokers, written, committed=committed)
            for n, committed in enumerate(choices.choice(((True,), (False,), (True, False))))
        ]
        self._busy = [*writing, *self._consumers]
        limits = FetchLimits(
            cache_bytes=choices.choice((0, 2000, 1 << 20)),
            intake_bytes=choices.choice((0, 1 << 20)),
            cursors_max=choices.choice((1, 8)),
            chunk_bytes=choices.choice((100, 1 << 20)),
        )
        others: list[Actor] = [
            Daemon(f"daemon{n}", world, own(), brokers, self._is_over, limits)
            for n in range(choices.choice((1, 2, 2)))
        ]
        others += [Leader("leader", world, own(), self._is_over, _IDLE_US)]
        others += [Keeper(f"keeper{n}", world, own(), self._is_over) for n in range(choices.randrange(2))]
        others += [Cleaner(f"cleaner{n}", world, own(), self._is_over) for n in range(choices.randrange(2))]
        for actor in [*self._busy, *others]:
            self._schedule.add(actor)

    def _judge_more(self) -> dict[str, int]:
        fold = IntakeFold()
        for index, data in enumerate(self._ground.entries):
            fold.apply(index, data)
        held = {
            tp: {
                segment.base + row: value
                for segment in fold.segments(tp)
                for row, (value, _) in enumerate(self._files.rows(segment))
            }
            for tp in self._ground.partitions()
        }
        return judge_consumers(
            self._consumers,
            held,
            [one for sender in self._senders for one in sender.stored],
            self._world.book,
        )
