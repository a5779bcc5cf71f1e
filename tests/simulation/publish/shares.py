"""The seeds of the publishing rig: 20,000 in 40 shares, of which `make test` plays one, each day another.

`ARCHIVER_TESTS=whole` plays them all, `make simulate RIG=publish` as many others as requested.
"""

from __future__ import annotations

from tests.simulation.publish.publish_run import run
from tests.simulation.seeds import play
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


def play_share(number: int) -> None:
    """Play one share."""
    met = play(run, "publish", range(number * SHARE, (number + 1) * SHARE))
    assert met["records"] > SHARE, "hardly anything was archived"
    missed = [what for what in OFTEN if not met[what]]
    assert not missed, f"{missed} never came up in share {number}"
