"""The seeds of the publishing rig: 20,000 in 40 shares, of which `make test` plays one, each day another.

`ARCHIVER_TESTS=whole` plays them all, `make simulate RIG=publish` as many others as requested.
"""

from __future__ import annotations

from collections import Counter

from tests.simulation.publish.publish_run import run
from tests.support.amount import DAY, WHOLE

SHARE = 500
"""Schedules per test."""
SHARES = 40
"""As many days until every share was played."""


def shares_of_today() -> list[int]:
    """The numbers of the shares that this run plays."""
    return [number for number in range(SHARES) if WHOLE or number == DAY % SHARES]


OFTEN = (
    "takeovers",
    "commits",
    "audit valid",
    "compact",
    "roll back",
    "retired rows",
    "deleted archive",
    "deleted intake",
    "swept to the end",
)
"""What every share must have met."""


def play(seeds: range) -> Counter[str]:
    """Play them; what they met. Fails at the first in which something does not hold."""
    met: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed)
        assert result.violation is None, f"{result.violation}\nagain: make simulate RIG=publish SEED={seed}"
        met.update(result.counts)
    return met


def play_share(number: int) -> None:
    """Play one share."""
    met = play(range(number * SHARE, (number + 1) * SHARE))
    assert met["records"] > SHARE, "hardly anything was archived"
    missed = [what for what in OFTEN if not met[what]]
    assert not missed, f"{missed} never came up in share {number}"
