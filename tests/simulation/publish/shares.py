"""The seeds of the publishing rig that `make test` plays: 20,000, in four files for as many workers.

`make simulate RIG=publish` plays others.
"""

from __future__ import annotations

from collections import Counter

from tests.simulation.publish.publish_run import run

SHARE = 500
"""Schedules per test."""
FIRST, SECOND, THIRD, FOURTH = range(10), range(10, 20), range(20, 30), range(30, 40)
"""40 shares make the 20,000."""
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
