"""The publishing rig with compaction in every cleaning, also in days that go on: each day another share of
5,000 seeds; `ARCHIVER_TESTS=whole` plays them all.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.publish.publish_run import run
from tests.support.amount import DAY, WHOLE

SEEDS = range(40_000, 45_000)
SHARE = 250
OFTEN = (
    "merged",
    "merges committed",
    "condemned: replaced",
    "compact",
    "roll back",
    "deleted archive",
    "audit valid",
    "takeovers",
)


def shares_of_today() -> list[int]:
    """The first seeds of the shares that this run plays."""
    firsts = SEEDS[::SHARE]
    return list(firsts) if WHOLE else [firsts[DAY % len(firsts)]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", shares_of_today())
def test_no_invariant_breaks_while_archives_are_merged(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + SHARE):
        result = run(seed, compacts=True)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        met.update(result.counts)
    missed = [what for what in OFTEN if not met[what]]
    assert not missed, f"{missed} never came up"
