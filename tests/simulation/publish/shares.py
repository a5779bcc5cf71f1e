"""The seeds of the publishing rig that `make test` plays: of 20,000, in four files for as many workers, a
fifth, each day another.

`ARCHIVER_RIG_SHARE=whole` plays them all, `make simulate RIG=publish` as many others as you like.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.simulation.publish.publish_run import run

SHARE = 500
"""Schedules per test."""
FIFTHS = 5
DAY_S = 86_400


def _of_today(numbers: range) -> list[int]:
    day = int(time.time()) // DAY_S
    today = range(FIFTHS) if os.environ.get("ARCHIVER_RIG_SHARE") == "whole" else (day % FIFTHS,)
    return [number for number in numbers if number % FIFTHS in today]


FIRST, SECOND, THIRD, FOURTH = (_of_today(range(start, start + 10)) for start in (0, 10, 20, 30))
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
