"""One run: from a seed to a world with actors in it, and from there to a verdict."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from archiver.config.groups import LogSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import ArchiverError, Corrupted
from tests.simulation.book import Book
from tests.simulation.clients import IdempotentProducer, PlainWriter
from tests.simulation.deleting import Deleter
from tests.simulation.faults import PROFILES, Profile
from tests.simulation.files import Files
from tests.simulation.ground import Ground
from tests.simulation.growing import Grower
from tests.simulation.light_files import light_files
from tests.simulation.readers import Archiver, Reader, Sightings
from tests.simulation.removing import Remover
from tests.simulation.schedule import Actor, Schedule, Trace, Violation
from tests.simulation.sourcing import SourceTaker, Upstream
from tests.simulation.station import World
from tests.simulation.transacting import TransactionalProducer
from tests.simulation.upkeep import IDLE_US, RAISED_IDLE_US, Keeper, Leader
from tests.simulation.vacuuming import Cleaner
from tests.simulation.verdict import judge

FAULTY_STEPS = 700
CALM_STEPS = 60_000
"""A checkpoint reads every history file there is: with one at every fourth entry, a long log takes its
time."""
SOURCES_EVERY = 5
"""In one seed of so many, sources are ingested as well; in those of every kind of trouble, for no kind's
number divides it."""

GROWERS_EVERY = 13
"""In one seed of so many, topics get more partitions."""
DELETERS_EVERY = 19
"""In one seed of so many, clients delete records."""
REMOVERS_EVERY = 7
"""In one seed of so many, a topic comes and goes."""

RAISES_EVERY = 3
"""In one seed of so many, idempotent producers raise their epochs."""


@dataclass
class Result:
    """How a run ended."""

    seed: int
    profile: str
    steps: int
    digest: str
    """Of everything that happened."""
    violation: str | None = None
    """What does not hold, and where it was noticed."""
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def run(seed: int, *, keep_lines: bool = False) -> Result:
    """Play the run of that seed to its end."""
    trace = Trace(keep_lines)
    profile = PROFILES[seed % len(PROFILES)]
    with alarmed("intake"), nullcontext() if seed % 64 < 8 else light_files():
        return Run(seed, profile, trace).play()


class Run:
    """Everything that belongs to one run."""

    faulty_steps = FAULTY_STEPS
    """Steps after which the faults stop."""

    def __init__(self, seed: int, profile: Profile, trace: Trace) -> None:
        self._seed = seed
        self._trace = trace
        self._profile = profile
        self._schedule = Schedule(seed, profile, trace)
        choices = random.Random(seed ^ 0x5EED)
        settings = LogSettings.model_construct(
            # As small as the second, a flush of a few batches takes several entries; settings that are read
            # from a file may not be.
            entry_bytes_max=choices.choice((1 << 19, 700)),
            append_attempts_max=choices.choice((1, 2, 4)),
            append_backoff=0.05,
            checkpoint_entries=choices.choice((4, 10, 20, 1_000)),
            checkpoint_bytes=1 << 24,
        )
        self._ground = Ground(ManualClock(), 1 << 19)
        self._ground.strikes = self._schedule.strikes
        self._world = World(seed, self._ground, Book(), settings)
        self._files = Files(self._ground.objects)
        self._sightings = Sightings()
        self._busy: list[Actor] = []
        self._cast(choices)

    def _cast(self, choices: random.Random) -> None:
        """Who takes part."""

        def own() -> random.Random:
            return random.Random(choices.randrange(1 << 62))

        def load() -> int:
            return choices.choice((1, 1, 2, 2, 3, 5))

        world = self._world
        raises = self._seed % RAISES_EVERY == 2
        idle_us = RAISED_IDLE_US if raises else IDLE_US
        self._busy.extend(PlainWriter(f"plain{n}", world, own(), load()) for n in range(choices.randrange(3)))
        self._busy.extend(
            IdempotentProducer(f"idem{n}", world, own(), load(), raises=raises)
            for n in range(choices.randrange(1, 3))
        )
        names = choices.randrange(1, 3)
        self._busy.extend(
            TransactionalProducer(f"trans{n}", f"tx{n % names}", world, own(), load())
            for n in range(choices.randrange(3))
        )
        others: list[Actor] = [
            Leader(f"leader{n}", world, own(), self._is_over, idle_us)
            for n in range(choices.choice((1, 1, 2)))
        ]
        others.extend(
            Keeper(f"keeper{n}", world, own(), self._is_over) for n in range(choices.choice((0, 1, 1, 2)))
        )
        others.extend(
            Cleaner(f"cleaner{n}", world, own(), self._is_over) for n in range(choices.choice((0, 0, 1, 2)))
        )
        if choices.random() < 0.5:
            others.append(Archiver("archiver", world, own(), self._is_over, self._files, self._sightings))
        if choices.random() < 0.7:
            others.append(Reader("reader", world, own(), self._is_over, self._files, self._sightings))
        if self._seed % SOURCES_EVERY == SOURCES_EVERY // 2:
            upstream = Upstream(world.book, own())
            self._busy.extend(
                SourceTaker(f"source{n}", world, own(), upstream) for n in range(choices.randrange(1, 4))
            )
        if self._seed % REMOVERS_EVERY == REMOVERS_EVERY // 2:
            self._busy.extend(
                Remover(f"remover{n}", world, own(), load()) for n in range(choices.randrange(1, 4))
            )
        if self._seed % GROWERS_EVERY == GROWERS_EVERY // 2:
            self._busy.extend(
                Grower(f"grower{n}", world, own(), load()) for n in range(choices.randrange(1, 4))
            )
        if self._seed % DELETERS_EVERY == DELETERS_EVERY // 2:
            self._busy.extend(
                Deleter(f"deleter{n}", world, own(), load()) for n in range(choices.randrange(1, 4))
            )
        for actor in [*self._busy, *others]:
            self._schedule.add(actor)

    def _is_over(self) -> bool:
        return all(actor.name in self._schedule.finished for actor in self._busy)

    def _judge_more(self) -> dict[str, int]:
        """What is checked in the end of this kind of run alone; raises `Violation`."""
        return {}

    def play(self) -> Result:
        """To the end."""
        violation = None
        counts: dict[str, int] = {}
        try:
            self._schedule.run(self.faulty_steps, CALM_STEPS)
            if len(self._ground.fold.transactions):
                # A request that arrived after all actors had ended has begun one; in the world outside the
                # leader is never gone.
                self._schedule.add(
                    Leader("last leader", self._world, random.Random(self._seed), self._is_over)
                )
                self._schedule.run(self.faulty_steps, CALM_STEPS)
            counts = judge(self._ground, self._world.book, self._files, self._sightings)
            counts |= self._world.book.answers | self._ground.met | self._judge_more()
        except Violation as error:
            violation = str(error)
        except Corrupted as error:
            violation = f"nothing is damaged: {error}"
        except Exception:  # noqa: BLE001
            # Any error that the product raises and should not have: part of the verdict, with the place.
            violation = f"nothing breaks: {traceback.format_exc()}"
        if violation is not None:
            self._schedule.note("-", violation)
        return Result(
            self._seed,
            self._profile.name,
            self._schedule.steps,
            self._trace.digest(),
            violation,
            counts,
            self._trace.lines,
        )


class _Alarm(logging.Handler):
    """Loops that go on after any error log it: here it ends the run."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ArchiverError):
            raise Violation(
                "nothing breaks", f"{record.getMessage()}: {type(error).__name__}: {error}"
            ) from error


@contextmanager
def alarmed(*packages: str) -> Iterator[None]:
    """Let no error of these packages pass unseen; the warnings of faults that the product meets are not worth
    a line."""
    alarm = _Alarm(logging.ERROR)
    before = [(logger, logger.level, logger.propagate) for logger in map(logging.getLogger, packages)]
    for logger, _, _ in before:
        logger.addHandler(alarm)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(alarm)
            logger.setLevel(level)
            logger.propagate = propagate
