"""Seeds of a simulation that a test plays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.simulation.run import Result


def play(run: Callable[[int], Result], rig: str, seeds: range) -> Counter[str]:
    """Play the seeds; how often each situation came up. Fails at the first seed with a violation."""
    met: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed)
        assert result.violation is None, f"{result.violation}\nagain: make simulate RIG={rig} SEED={seed}"
        met.update(result.counts)
    return met
