"""The one thread in which every simulated process runs, and the one seed that decides everything.

Owns simulated time, the processes and the requests on their way. A process runs until its next step (`step`),
where the seed decides who goes on and what happens until then. Promises that the same seed gives the same
run: nothing here depends on real time, hash order or threads. Must never be asked for anything by a process
that is dead: `step` does not return to it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from archiver.runtime.errors import ArchiverError, Corrupted
from tests.simulation.faults import Blow, Fate, Profile

_T = TypeVar("_T")
START_US = 1_700_000_000_000_000
_STEP_US = 20_000
"""The longest time that a step takes."""
_SLOW_US = 1_000_000
_PAUSE_US = 12_000_000
"""The longest time that a process sleeps."""
_LATE_US = 4_000_000
"""The longest time that a request is on its way."""
_CUT_US = 5_000_000
"""The longest time that a process is cut off."""
_RESTART_US = 500_000
_GHOSTS_MAX = 3
"""Replaced processes of one actor that still run."""


class Violation(BaseException):
    """An invariant does not hold; `invariant` names it. Not an `Exception`, so that no product code catches
    it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Actor(Protocol):
    """An actor with work to do. What it keeps in itself is durable; its processes come and go."""

    name: str

    def live(self, process: Process) -> None:
        """Do what is left to do. Returns when all is done; an `ArchiverError` ends the process, and another
        one follows."""


class Process:
    """One life of an actor."""

    def __init__(self, schedule: Schedule, actor: Actor, number: int) -> None:
        self.schedule = schedule
        self.actor = actor
        self.number = number
        self.name = f"{actor.name}#{number}"
        self.started_us = schedule.now_us
        self.wake_us = schedule.now_us
        self.skew_us = 0
        self._waits_until_us = -1
        self.cut_until_us = 0
        """Before that, it gets no answers."""
        self.between: Callable[[], None] | None = None
        """Called after every step: what goes on in the process while one of its threads waits."""
        self.sent: Callable[[], object] | None = None
        """The request on its way, which may arrive even if the process is gone."""
        self.greenlet = greenlet(self._run, schedule.hub)
        self.completed = False
        self.failed: ArchiverError | None = None

    def _run(self) -> None:
        try:
            self.actor.live(self)
            self.completed = True
        except Corrupted as error:
            raise Violation("nothing is damaged", f"{self.name}: {error}") from error
        except ArchiverError as error:
            self.failed = error

    def step(self, what: str) -> None:
        """Let others run, and time pass."""
        self.schedule.note(self.name, what)
        self.schedule.hub.switch()
        if self.between is not None:
            self.between()

    def sleep(self, duration_us: int) -> None:
        """Do nothing for so long."""
        self.wake_us = self.schedule.now_us + max(0, duration_us)
        self.step(f"sleeps {duration_us}")

    def wait(self, duration_us: int) -> None:
        """Do nothing for so long, or until `wake`."""
        self.wake_us = self._waits_until_us = self.schedule.now_us + max(0, duration_us)
        self.step(f"waits {duration_us}")

    def wake(self) -> None:
        """What the process waits for has come. A process that is paused stays so."""
        if self.wake_us == self._waits_until_us:
            self.wake_us = min(self.wake_us, self.schedule.now_us)

    def require_current(self) -> None:
        """A process that was replaced ends here: nothing it sends counts any more."""
        if self.schedule.current[self.actor.name] is not self:
            raise GreenletExit


@dataclass
class Trace:
    """What happened, as a digest, and as lines if asked for."""

    keep: bool = False
    _lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add = self._lines.append
        """One more event."""

    @property
    def lines(self) -> list[str]:
        """All events so far, if lines were asked for."""
        return self._lines if self.keep else []

    def digest(self) -> str:
        """Of all events so far."""
        return hashlib.blake2b(
            "".join(f"{line}\n" for line in self._lines).encode(), digest_size=16
        ).hexdigest()


class Schedule:
    """Runs actors until all have done their work."""

    def __init__(self, seed: int, profile: Profile, trace: Trace) -> None:
        self.random = random.Random(seed)
        self.profile = profile
        self.trace = trace
        self._noted = trace.add
        self.now_us = START_US
        self.steps = 0
        self.calm = False
        """Faults have stopped."""
        self.hub = getcurrent()
        self.actors: list[Actor] = []
        self.current: dict[str, Process] = {}
        self.finished: set[str] = set()
        self._fates_sum = _sum(profile.fates)
        self._blows_sum = _sum(profile.blows)
        self._processes: list[Process] = []
        self._on_their_way: list[tuple[int, str, Callable[[], object]]] = []
        self._started = 0

    def add(self, actor: Actor) -> None:
        """Add an actor that takes part from the beginning."""
        self.actors.append(actor)
        self._start(actor, 0)

    def note(self, who: str, what: str) -> None:
        """Put an event into the trace."""
        self._noted(f"{self.now_us - START_US} {who} {what}")

    def send_late(self, what: str, apply: Callable[[], object]) -> None:
        """The request arrives some time later; its answer is lost."""
        self._on_their_way.append((self.now_us + self.random.randrange(1, _LATE_US), what, apply))

    def fate(self, process: Process) -> Fate:
        """What happens to a request of that process."""
        if self.now_us < process.cut_until_us and not self.calm:
            return Fate.LATE if self.random.random() < 0.2 else Fate.DROPPED
        return (
            _drawn(self.random, self.profile.fates, Fate.FINE, self._fates_sum)
            if not self.calm
            else Fate.FINE
        )

    def strikes(self) -> bool:
        """Whether a bit goes wrong now."""
        return not self.calm and self.random.random() < self.profile.damage

    def run(self, faulty_steps: int, calm_steps: int) -> None:
        """Let all actors work, with faults for so many steps. Raises `Violation`, among others if an actor
        has not finished `calm_steps` after the faults have stopped.
        """
        try:
            while len(self.finished) < len(self.actors):
                if self.steps == faulty_steps:
                    self._calm_down()
                if self.steps >= faulty_steps + calm_steps:
                    stuck = [
                        f"{actor.name} ({self._why(actor)})"
                        for actor in self.actors
                        if actor.name not in self.finished
                    ]
                    raise Violation(
                        "nobody is stuck",
                        f"{', '.join(stuck)} did not finish within {calm_steps} steps without faults",
                    )
                self._step()
            self._drain()
        finally:
            for process in self._processes:
                process.greenlet.throw(GreenletExit)

    def _why(self, actor: Actor) -> str:
        return str(getattr(actor, "trouble", "")) or "no error"

    def _calm_down(self) -> None:
        self.calm = True
        self.note("-", "faults stop")
        for process in self._processes:
            process.skew_us = process.cut_until_us = 0

    def _drain(self) -> None:
        """What is still on its way arrives, and replaced processes come to an end."""
        self.calm = True
        while self._processes or self._on_their_way:
            self._step()

    def _step(self) -> None:
        self._land()
        ready = [process for process in self._processes if process.wake_us <= self.now_us]
        if not ready and not self._processes and not self._on_their_way:
            return
        if not ready:
            times = [process.wake_us for process in self._processes] + [
                due_us for due_us, _, _ in self._on_their_way
            ]
            self.now_us = min(times)
            return
        self.steps += 1
        process = ready[_between(self.random, 0, len(ready))]
        slow = not self.calm and self.random.random() < self.profile.slow
        self.now_us += _between(self.random, 1, _SLOW_US if slow else _STEP_US)
        if self._survives(process):
            process.greenlet.switch()
            if process.greenlet.dead:
                self._ended(process)

    def _survives(self, process: Process) -> bool:
        """Strike the process, perhaps; False if it does not run now."""
        blow = (
            _drawn(self.random, self.profile.blows, Blow.NONE, self._blows_sum)
            if not self.calm
            else Blow.NONE
        )
        if blow is Blow.NONE:
            return True
        self.note(process.name, blow.value)
        if blow is Blow.CRASH:
            if process.sent is not None and self.random.random() < 0.5:
                self.send_late(f"the request of {process.name}", process.sent)
            process.greenlet.throw(GreenletExit)
            self._ended(process)
            return False
        if blow is Blow.PAUSE:
            process.wake_us = self.now_us + self.random.randrange(1, _PAUSE_US)
            return False
        if blow is Blow.CUT:
            process.cut_until_us = self.now_us + self.random.randrange(1, _CUT_US)
            return True
        if blow is Blow.CLOCK:
            process.skew_us += self.random.randrange(
                -self.profile.clock_step_us, self.profile.clock_step_us + 1
            )
            return True
        actor = process.actor
        if (
            self.current[actor.name] is process
            and sum(one.actor is actor for one in self._processes) <= _GHOSTS_MAX
        ):
            self._start(actor, 1)
        return True

    def _ended(self, process: Process) -> None:
        self._processes.remove(process)
        actor = process.actor
        if process.failed is not None:
            self.note(process.name, f"ends: {type(process.failed).__name__}")
        if self.current[actor.name] is not process:
            return
        if process.completed:
            self.note(process.name, "has finished")
            self.finished.add(actor.name)
        else:
            self._start(actor, self.random.randrange(1, _RESTART_US))

    def _start(self, actor: Actor, delay_us: int) -> None:
        process = Process(self, actor, self._started)
        self._started += 1
        process.wake_us = self.now_us + delay_us
        if not self.calm and self.random.random() < self.profile.clock:
            process.skew_us = self.random.randrange(
                -self.profile.clock_step_us, self.profile.clock_step_us + 1
            )
        self.current[actor.name] = process
        self._processes.append(process)

    def _land(self) -> None:
        """Deliver the requests whose time has come."""
        if not self._on_their_way:
            return
        due = [late for late in self._on_their_way if late[0] <= self.now_us]
        for late in due:
            self._on_their_way.remove(late)
            self.note("late:", late[1])
            try:
                late[2]()
            except Corrupted:
                raise
            except ArchiverError as error:
                self.note("late:", type(error).__name__)


def _between(random_source: random.Random, low: int, high: int) -> int:
    """As `randrange(low, high)`, the very number of the same seed, in a third of the time: it is asked for at
    every step."""
    width = high - low
    bits = width.bit_length()
    drawn = random_source.getrandbits(bits)
    while drawn >= width:
        drawn = random_source.getrandbits(bits)
    return low + drawn


def _sum(chances: tuple[tuple[_T, float], ...]) -> float:
    """Certainly not below the sum of the chances."""
    return sum(chance for _, chance in chances) + 1e-9


def _drawn(
    random_source: random.Random, chances: tuple[tuple[_T, float], ...], otherwise: _T, most: float
) -> _T:
    drawn = random_source.random()
    if drawn > most:
        return otherwise
    for what, chance in chances:
        if drawn < chance:
            return what
        drawn -= chance
    return otherwise
