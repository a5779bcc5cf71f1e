"""Breadth first through every state, or random walks in depth; from each state each daemon is also run alone
until it has nothing to do."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from tests.model.daemon import RESURRECTS, Step, steps
from tests.model.invariants import Past, past, unfinished, violation
from tests.model.state import OFF, State, initial
from tests.model.switches import Config
from tests.model.world import world

QUIET_STEPS_MAX = 400
MEMO_MAX = 1_000_000
_FIRST = ("cleaner deletes", "fencing", "plans", "that path", "cleaner picks", "looks")
"""What a daemon alone does first when it is idle."""

Memo = dict[Hashable, str | None]


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    why: str | None
    """The violation; None if there is none."""
    trace: tuple[str, ...]
    states: int
    seconds: float
    """Of this process's own time: a busy machine searches as far as an idle one."""
    whole: bool
    """Every state within the bounds was visited."""


def successors(config: Config, state: State) -> list[Step]:
    """Everything that can happen next."""
    return steps(config, state, 0) + steps(config, state, 1) + world(config, state)


def alone(config: Config, state: State, number: int, before: Past, memo: Memo) -> str | None:
    """Run one daemon with nobody else and no faults until it rests; the violation, if there is one on the way
    or at the end."""
    daemons = (state.daemons[0], OFF) if number == 0 else (OFF, state.daemons[1])
    state = state._replace(
        objects=state.objects - state.doomed,
        doomed=frozenset(),
        daemons=daemons,
        late_swap=None,
        late_append=None,
        budget=(),
    )
    passed: list[Hashable] = []
    looked: Hashable = None
    why: str | None
    while True:
        key: Hashable = (number, before, state)
        if key in memo:
            why = memo[key]
            break
        passed.append(key)
        why = (
            violation(config, state, before)
            if len(passed) <= QUIET_STEPS_MAX
            else f"GOES ROUND at {state.daemons[number]}"
        )
        if why is not None:
            break
        found = steps(config, state, number, quiet=True)
        if state.daemons[number].at == "idle":
            found.sort(
                key=lambda step: next(at for at, word in enumerate(_FIRST) if step[0].startswith(word))
            )
            if found[0][0].startswith("looks"):
                if looked == state[:6]:
                    why = unfinished(config, state, before)
                    break
                looked = state[:6]
        if not found:
            why = f"STUCK at {state.daemons[number]}"
            break
        state = found[0][1]
    for key in passed:
        memo[key] = why
    return why


def rested(config: Config, state: State, memo: Memo) -> str | None:
    """`alone` for each daemon."""
    before = past(config, state.budget)
    for number in (0, 1):
        if number == 1 and state.daemons[0].at == state.daemons[1].at == "off":
            return None
        why = alone(config, state, number, before, memo)
        if why is not None:
            return f"with daemon {number} alone: {why}"
    return None


def explore(config: Config, seconds: float, states_max: int = 10**9) -> Found:
    """Every state that can be reached, the nearest first, until one is wrong or the time is over."""
    first = initial(config)
    parents: dict[State, tuple[State, str] | None] = {first: None}
    queue, began, visited = deque([first]), time.process_time(), 0
    memo: Memo = {}

    def found(why: str | None, state: State | None, last: str = "", whole: bool = False) -> Found:
        return Found(why, _trace(parents, state, last), visited, time.process_time() - began, whole)

    while queue:
        state = queue.popleft()
        visited += 1
        why = rested(config, state, memo)
        if why is not None:
            return found(why, state)
        for label, after in successors(config, state):
            if label.startswith(RESURRECTS):
                return found(label, state, label)
            if after in parents:
                continue
            parents[after] = (state, label)
            why = violation(config, after, past(config, after.budget))
            if why is not None:
                return found(why, after)
            queue.append(after)
        if visited >= states_max or (visited % 1000 == 0 and time.process_time() - began > seconds):
            return found(None, None)
        if len(memo) > MEMO_MAX:
            memo.clear()
    return found(None, None, whole=True)


def _trace(parents: dict[State, tuple[State, str] | None], state: State | None, last: str) -> tuple[str, ...]:
    labels = [last] if last else []
    at = None if state is None else parents[state]
    while at is not None:
        labels.append(at[1])
        at = parents[at[0]]
    return tuple(reversed(labels))


def walk(
    config: Config, seconds: float, seed: int, walks_max: int = 10**9, length: int = 140
) -> tuple[Found, int]:
    """Deep random walks; also how many there were."""
    chance, memo, began, visited, walks = random.Random(seed), Memo(), time.process_time(), 0, 0
    while time.process_time() - began < seconds and walks < walks_max:
        state, labels, walks = initial(config), list[str](), walks + 1
        if len(memo) > MEMO_MAX:
            memo.clear()
        for _ in range(length):
            after = successors(config, state)
            if not after:
                break
            # Daemons' steps are more likely than everybody else's, so that histories get deep.
            ours = [step for step in after if "CRASH" not in step[0] and "THIRD" not in step[0]]
            label, state = chance.choice(ours or after) if chance.random() < 0.8 else chance.choice(after)
            labels.append(label)
            visited += 1
            why = (
                label
                if label.startswith(RESURRECTS)
                else violation(config, state, past(config, state.budget)) or rested(config, state, memo)
            )
            if why is not None:
                return Found(why, tuple(labels), visited, time.process_time() - began, False), walks
    return Found(None, (), visited, time.process_time() - began, False), walks
