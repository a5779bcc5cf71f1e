"""One run of the Kafka listener: daemons with Kafka ports, clients that produce and fetch, and writers with
transactions next to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.fetch import FetchLimits
from intake.log.fold import IntakeFold
from tests.simulation.faults import PROFILES
from tests.simulation.kafka.consumers import Consumer, judge_consumers
from tests.simulation.kafka.coordination import Coordinating
from tests.simulation.kafka.group_consumers import GroupConsumer
from tests.simulation.kafka.group_members import Habits
from tests.simulation.kafka.group_watch import GroupWatch
from tests.simulation.kafka.kafka_clients import IdempotentSender, PlainSender
from tests.simulation.kafka.kafka_daemon import Daemon, Setup
from tests.simulation.kafka.loop_watch import LoopWatch
from tests.simulation.kafka.loop_workers import Loop, LoopWorker
from tests.simulation.kafka.registrations import Registrations
from tests.simulation.kafka.transactional_clients import TransactionalSender
from tests.simulation.kafka.wire import Brokers
from tests.simulation.run import Result, Run, alarmed
from tests.simulation.schedule import Actor, Trace
from tests.simulation.station import TOPICS
from tests.simulation.transacting import TransactionalProducer
from tests.simulation.upkeep import Keeper, Leader
from tests.simulation.vacuuming import Cleaner

_IDLE_US = 600_000_000
"""Longer than any pause, as 7 days are: the first batch of a forgotten producer counts again (decision 0078)."""
KINDS = 4
"""Kinds of runs; a seed is of the kind at its remainder."""
GROUPS, TRANSACTIONS, LOOPS = 0, 1, 3
"""Consumer groups; clients with transactional ids; loops that read, process and write. The rest has neither."""
_NEVER_S = 7 * 86_400.0
"""Retention of offsets that a loop needs: without them it begins again."""


def run(seed: int, *, keep_lines: bool = False) -> Result:
    """Play the run of that seed to its end."""
    with alarmed("intake", "archiver"):
        return KafkaRun(seed, PROFILES[seed % len(PROFILES)], Trace(keep_lines)).play()


class KafkaRun(Run):
    """A run with Kafka clients. Nothing is archived, so that intake holds every record to the end."""

    def _cast(self, choices: random.Random) -> None:
        self.faulty_steps = choices.choice((300, 700, 1500))
        self._brokers = Brokers()
        self._watch: GroupWatch | None = None
        self._senders: list[IdempotentSender | PlainSender | TransactionalSender | LoopWorker] = []
        self._consumers: list[Consumer | GroupConsumer | LoopWorker] = []
        self._writing: list[Actor] = []
        if self._seed % KINDS == GROUPS:
            self._cast_groups(choices)
        elif self._seed % KINDS == TRANSACTIONS:
            self._cast_transactions(choices)
        elif self._seed % KINDS == LOOPS:
            self._cast_loops(choices)
        else:
            self._cast_followers(choices)

    def _cast_followers(self, choices: random.Random) -> None:
        """Clients that produce, and consumers that follow every partition."""
        own, world = _seeded(choices), self._world
        self._senders += [
            IdempotentSender(f"idem{n}", world, own(), self._brokers, choices.choice((6, 12, 24)))
            for n in range(choices.randrange(1, 3))
        ]
        self._senders += [
            PlainSender(f"plain{n}", world, own(), self._brokers, choices.choice((4, 12)))
            for n in range(choices.randrange(2))
        ]
        self._writing += [*self._senders, *self._native(choices)]
        self._consumers += [
            Consumer(
                f"consumer{n}", self._ground, own(), self._brokers, self._is_written, committed=committed
            )
            for n, committed in enumerate(choices.choice(((True,), (False,), (True, False))))
        ]
        self._enter(choices, Setup(_limits(choices)), (1, 2, 2))

    def _cast_groups(self, choices: random.Random) -> None:
        """A producer, and the members of one or two consumer groups."""
        own = _seeded(choices)
        sender = IdempotentSender("idem0", self._world, own(), self._brokers, choices.choice((6, 12)))
        self._senders.append(sender)
        self._writing += [sender, *self._native(choices)]
        settings = _settings(choices)
        self._watch = watch = self._group_watch(settings)
        self._ground.watchers.append(watch.applied)
        habits = Habits(
            session_s=choices.choice((1.0, 3.0)),
            rebalance_s=choices.choice((1.0, 2.0)),
            long_sleep_us=choices.choice((3_000_000, 3_000_000, 90_000_000)),
            is_numbered=choices.random() < 0.5,
        )
        for group in choices.choice((("g",), ("g",), ("g", "other"))):
            watch.enter(group)
            is_static = choices.random() < 0.3
            for n in range(choices.choice((1, 2, 3)) if group == "g" else 1):
                self._consumers.append(
                    GroupConsumer(
                        f"{group}{n}",
                        group,
                        f"instance{n}" if is_static else None,
                        self._ground,
                        watch,
                        own(),
                        self._brokers,
                        self._is_written,
                        habits,
                    )
                )
        registrations = _registrations(choices)
        setup = Setup(_limits(choices), Coordinating(settings, registrations, watch))
        self._enter(choices, setup, (1, 2, 3))

    def _cast_transactions(self, choices: random.Random) -> None:
        """Clients with transactional ids, two of which may share one, and consumers."""
        own = _seeded(choices)
        ids = choices.choice((1, 2, 2))
        self._senders += [
            TransactionalSender(
                f"txn{n}", f"id{n % ids}", self._world, own(), self._brokers, choices.choice((2, 4, 6))
            )
            for n in range(choices.choice((1, 2, 3)))
        ]
        if choices.random() < 0.3:
            self._senders.append(IdempotentSender("idem0", self._world, own(), self._brokers, 6))
        self._writing += [*self._senders, *self._native(choices)]
        self._consumers += [
            Consumer(
                f"consumer{n}", self._ground, own(), self._brokers, self._is_written, committed=committed
            )
            for n, committed in enumerate(choices.choice(((True,), (True, False))))
        ]
        watch = GroupWatch(self._ground, self._now_us, 0, None)
        self._ground.watchers.append(watch.applied)
        shared = Coordinating(_settings(choices), _registrations(choices), watch)
        self._enter(choices, Setup(_limits(choices), shared), (1, 2, 3))

    def _cast_loops(self, choices: random.Random) -> None:
        """A loop from one topic to the other, of workers that may share a transactional id; its input has
        aborted records, too.
        """
        own, world = _seeded(choices), self._world
        inputs: list[IdempotentSender | TransactionalSender] = [
            IdempotentSender("idem0", world, own(), self._brokers, choices.choice((6, 12))),
            *(
                TransactionalSender(f"txn{n}", f"id{n}", world, own(), self._brokers, choices.choice((2, 4)))
                for n in range(choices.randrange(2))
            ),
        ]
        writing: list[Actor] = [*inputs, *self._native(choices)]
        settings = _settings(choices, _NEVER_S)
        self._watch = watch = self._group_watch(settings)
        judge = LoopWatch(self._ground, self._files, watch)
        # First: what breaks a loop is a matter of its judge.
        self._ground.watchers += [judge.applied, watch.applied]
        habits = Habits(
            session_s=choices.choice((1.5, 3.0)),
            rebalance_s=choices.choice((1.0, 2.0)),
            long_sleep_us=3_000_000,
            is_numbered=True,
        )
        names = choices.choice((tuple(TOPICS), tuple(reversed(TOPICS))))
        loop = Loop("loop", names[:1], names[1:], watch, judge)
        watch.enter(loop.group, loop.inputs)
        judge.enter(loop.group)
        workers, ids = choices.choice(((1, 1), (2, 1), (2, 2), (2, 2), (3, 3)))
        is_static = choices.random() < 0.3
        loops = [
            LoopWorker(
                f"loop{n}",
                loop,
                f"loop-id{n % ids}",
                f"instance{n}" if is_static else None,
                world,
                own(),
                self._brokers,
                lambda: self._are_finished(writing),
                habits,
            )
            for n in range(workers)
        ]
        self._senders += [*inputs, *loops]
        self._writing += [*writing, *loops]
        self._consumers += [
            Consumer(
                f"consumer{n}", self._ground, own(), self._brokers, self._is_written, committed=committed
            )
            for n, committed in enumerate(choices.choice(((True,), (True,), (True, False))))
        ]
        self._consumers += loops
        shared = Coordinating(settings, _registrations(choices), watch)
        self._enter(choices, Setup(_limits(choices), shared), (1, 2, 3))

    def _group_watch(self, settings: KafkaListenerSettings) -> GroupWatch:
        # As the coordinator counts: the time of an unchanged offset may be too old by the second term.
        retention_s = settings.offsets_retention + settings.offsets_refresh
        kept_us = None if self._profile.clock else round(settings.offsets_retention * 1e6)
        return GroupWatch(self._ground, self._now_us, round(retention_s * 1e6), kept_us)

    def _now_us(self) -> int:
        return self._schedule.now_us

    def _native(self, choices: random.Random) -> list[Actor]:
        """A producer with transactions that is no Kafka client, perhaps."""
        own = _seeded(choices)
        return [
            TransactionalProducer(f"trans{n}", f"tx{n}", self._world, own(), choices.choice((1, 2, 3)))
            for n in range(choices.randrange(2))
        ]

    def _enter(self, choices: random.Random, setup: Setup, daemons: Sequence[int]) -> None:
        """Add the clients, the daemons, and the actors that keep the log short."""
        own, world = _seeded(choices), self._world
        # In their order, and those that do both once.
        self._busy = list(dict.fromkeys((*self._writing, *self._consumers)))
        others: list[Actor] = [
            Daemon(f"daemon{n}", world, own(), self._brokers, self._is_over, setup)
            for n in range(choices.choice(daemons))
        ]
        others += [Leader("leader", world, own(), self._is_over, _IDLE_US)]
        others += [Keeper(f"keeper{n}", world, own(), self._is_over) for n in range(choices.randrange(2))]
        others += [Cleaner(f"cleaner{n}", world, own(), self._is_over) for n in range(choices.randrange(2))]
        for actor in [*self._busy, *others]:
            self._schedule.add(actor)

    def _is_written(self) -> bool:
        """Whether no record comes any more."""
        return self._are_finished(self._writing)

    def _are_finished(self, actors: Sequence[Actor]) -> bool:
        return all(actor.name in self._schedule.finished for actor in actors)

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
        counts = {} if self._watch is None else self._watch.judge(held)
        return counts | judge_consumers(
            self._consumers,
            held,
            [one for sender in self._senders for one in sender.stored],
            self._world.book,
        )


def _seeded(choices: random.Random) -> Callable[[], random.Random]:
    return lambda: random.Random(choices.randrange(1 << 62))


def _limits(choices: random.Random) -> FetchLimits:
    return FetchLimits(
        cache_bytes=choices.choice((0, 2000, 1 << 20)),
        intake_bytes=choices.choice((0, 1 << 20)),
        cursors_max=choices.choice((1, 8)),
        chunk_bytes=choices.choice((100, 1 << 20)),
    )


def _registrations(choices: random.Random) -> Registrations:
    return Registrations(choices.choice((2_000_000, 5_000_000)), choices.choice((0.0, 0.3)))


def _settings(choices: random.Random, retention_s: float | None = None) -> KafkaListenerSettings:
    """Times of seconds, where a deployment has minutes and days."""
    return KafkaListenerSettings.model_construct(
        listen="127.0.0.1:0",
        group_session_timeout_min=0.5,
        group_initial_rebalance_delay=choices.choice((0.0, 0.3)),
        offsets_retention=retention_s or choices.choice((20.0, 40.0)),
    )
