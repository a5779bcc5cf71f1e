"""The plan of a run: which faults are played when, a pure function of the seed.

The same seed gives the same plan. The machine decides when a process gets to its next step. So two runs of
one seed play the same faults at the same seconds, and still need not end alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SLOW, ERROR, LOST, REPLY_LOST = WEATHER = ("slow", "error", "lost", "reply-lost")
"""A call takes long; fails with nothing done; is not done, with unknown outcome; is done, with unknown
outcome."""
KILL, STOP, DISK, ROUND, ROUND_KILL = "kill", "stop", "disk", "round", "round-kill"
FAULTS = (KILL, STOP, DISK, SLOW, ERROR, LOST, REPLY_LOST)
"""Kinds that can be asked for. `round-kill` comes by itself with two rounds of archiving or more."""

CALM_BEFORE_S = 0.5
"""The time begins when the workers are at work, in good weather, so that every run gets something
acknowledged."""
CALM_AFTER_S = 1.0
_EVERY_S = {KILL: 7.0, STOP: 20.0, DISK: 30.0, SLOW: 10.0, ERROR: 8.0, LOST: 12.0, REPLY_LOST: 8.0}
"""One such fault comes in so many seconds, and at least one in a run."""
_CHANCE = {SLOW: 0.3, ERROR: 0.25, LOST: 0.15, REPLY_LOST: 0.3}
_DISK_S = 1.5
_ROUND_DIES_S = (2.0, 12.0)
"""A round is killed so long after its start: while Spark starts, refines, or while tables are committed."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A time of bad weather."""

    start_s: float
    """After the beginning of the faults."""
    end_s: float
    kind: str
    """One of `WEATHER`."""
    chance: float
    """Of each call to be hit."""
    slow_s: float = 0.3


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One thing that the supervisor does."""

    at_s: float
    """After the beginning of the faults."""
    kind: str
    target: int = 0
    """The worker, for faults of workers."""
    length_s: float = 0.0
    """How long it lasts; for `round`, after what time it is killed (0: never)."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Everything that is going to happen to a run."""

    actions: tuple[Action, ...]
    spells: tuple[Spell, ...]
    kinds: tuple[str, ...]
    """The kinds of faults in it."""


def plan_faults(
    seed: int, seconds: float, workers: int, rounds: int, kinds: Sequence[str], stop_s: float
) -> FaultPlan:
    """The plan for a run of that length. Of several rounds the last is left to the end of the run, and every
    second other one is killed."""
    rng = random.Random(f"{seed}/faults")
    end = max(CALM_BEFORE_S + 1.0, seconds - CALM_AFTER_S)

    def times(kind: str) -> list[float]:
        count = max(1, round(seconds / _EVERY_S[kind]))
        width = (end - CALM_BEFORE_S) / count
        return [round(CALM_BEFORE_S + width * (number + rng.random()), 2) for number in range(count)]

    actions: list[Action] = []
    spells: list[Spell] = []
    for kind in FAULTS:
        drawn = [(at, rng.randrange(workers), rng.uniform(0.7, 2.0)) for at in times(kind)]
        if kind not in kinds:
            continue  # drawn all the same: leaving one kind out does not move the others
        if kind in _CHANCE:
            spells += [Spell(at, round(at + length, 2), kind, _CHANCE[kind]) for at, _, length in drawn]
        else:
            length_s = {KILL: 0.0, STOP: stop_s, DISK: _DISK_S}[kind]
            actions += [Action(at, kind, target, length_s) for at, target, _ in drawn]
    early = max(1, rounds - 1) if rounds else 0
    dying = False
    for number in range(early):
        dies = number % 2 == 0 and rounds > 1
        dying = dying or dies
        at = round(CALM_BEFORE_S + (end - CALM_BEFORE_S) * (number + 0.5) / early, 2)
        actions.append(Action(at, ROUND, 0, round(rng.uniform(*_ROUND_DIES_S), 2) if dies else 0.0))
    asked = tuple(kind for kind in FAULTS if kind in kinds)
    return FaultPlan(tuple(sorted(actions)), tuple(spells), (*asked, ROUND_KILL) if dying else asked)
