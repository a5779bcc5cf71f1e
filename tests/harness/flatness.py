"""Decides whether a series is flat or grows. Pure: from samples to a finding.

The rule. The judged window is the steady phase without its warm-up. It is cut into blocks, and each block
stands for its median, which removes the teeth that collections, pools and rounds leave. A series *grows* if
both hold:

1. the median of the window's last quarter is above that of its second quarter by more than the series'
   allowance;
2. the Theil-Sen slope over the second half is still more than half of the allowance's rate. The slope is the
   median of the slopes between all pairs of blocks. The rate is the allowance over half a window.

A leak shows in both. Either alone is fooled by something harmless: the first by a plateau that was reached
late, or by one step when something was first needed; the second by a wave that happens to rise at the end.
Medians of blocks and of slopes bear a quarter of wild values. A leak of `detects_per_s` or more is found; how
small that is depends on the window's length alone, so a short run can only find large leaks and says so. The
finding is `unmeasured`, not `flat`, in three cases: blocks scatter by more than half of the allowance,
samples are missing, or there are too few blocks.

Apart from growth each series has a ceiling, that catches what rises in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import Any, Literal

BLOCKS_MAX = 60
BLOCKS_MIN = 12
BLOCK_S_MIN = 3.0
"""A run with fewer blocks in its window is too short to judge growth in."""
MISSING_MAX = 0.2
"""Share of blocks that may be without a sample, and of samples that may be without a value."""
SCATTER_MAX = 0.5
"""In allowances: how far two neighbouring blocks may lie apart, in the median."""
SURE = 1.5
"""A leak so many times as large as the smallest that the rule covers is found almost surely, in any noise
that the rule admits."""

Sample = tuple[float, float | None]
"""Seconds since the beginning of the run, value; None if it could not be measured."""
State = Literal["flat", "grows", "too high", "unmeasured", "below its ceiling"]
"""The last one: the run is too short for more to be said, by the rule's own word."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is asked of one series."""

    name: str
    unit: str
    allowance: float
    """How much higher it may get within half a window; what harmless processes do was measured to be less."""
    ceiling: float
    """No sample may be above it."""
    settles_s: float = 60.0
    """Warm-up at the beginning of the steady phase; at least a fifth of the phase."""
    lasts_s: float = 0.0
    """A window shorter than this says nothing about growth by the nature of the series; then only the ceiling
    is judged."""
    every_s: float = 1.0
    """At most so long between two samples."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one series. Numbers are None if they could not be computed."""

    name: str
    unit: str
    state: State
    why: str
    samples: int
    minimum: float | None = None
    median: float | None = None
    maximum: float | None = None
    step: float | None = None
    """Last quarter's median minus the second quarter's."""
    slope_per_day: float | None = None
    """Theil-Sen over the second half, extrapolated."""
    scatter: float | None = None
    window_s: float = 0.0
    detects_per_hour: float | None = None
    """A leak of this size would have been found."""

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def judge_series(rule: Rule, samples: Sequence[Sample], begin_s: float, end_s: float) -> Finding:
    """The finding on a series that was sampled during the steady phase from `begin_s` to `end_s`."""
    start_s = begin_s + max(rule.settles_s, (end_s - begin_s) / 5)
    inside = [(at, value) for at, value in samples if begin_s <= at <= end_s]
    every = [value for _, value in inside if value is not None]
    window = [(at, value) for at, value in inside if at >= start_s]
    known = [(at, value) for at, value in window if value is not None]
    window_s = max(0.0, end_s - start_s)
    if not every:
        return Finding(rule.name, rule.unit, "unmeasured", "no sample has a value", 0)
    found: dict[str, Any] = {
        "samples": len(every),
        "minimum": min(every),
        "median": median(every),
        "maximum": max(every),
        "window_s": window_s,
    }

    def finding(state: State, why: str, **more: Any) -> Finding:
        return Finding(rule.name, rule.unit, state, why, **found, **more)

    if max(every) > rule.ceiling:
        return finding("too high", f"{max(every):g} {rule.unit} are above the ceiling of {rule.ceiling:g}")
    block_s = max(BLOCK_S_MIN, 2 * rule.every_s, window_s / BLOCKS_MAX)
    wanted = int(window_s / block_s)
    if window_s < rule.lasts_s:
        return finding(
            "below its ceiling",
            f"growth shows from {rule.lasts_s:.0f} s on only, and there are {window_s:.0f}",
        )
    if wanted < BLOCKS_MIN:
        return finding("unmeasured", f"{window_s:.0f} s are too few to see growth in")
    if len(known) < (1 - MISSING_MAX) * len(window):
        return finding("unmeasured", f"{len(window) - len(known)} of {len(window)} samples have no value")
    blocks = _blocks(known, start_s, block_s, wanted)
    if len(blocks) < (1 - MISSING_MAX) * wanted:
        return finding(
            "unmeasured", f"{wanted - len(blocks)} of {wanted} blocks of {block_s:.0f} s have no sample"
        )
    edge_per_s = rule.allowance / (window_s / 2)
    step = _median_of(known, start_s + 0.75 * window_s, end_s) - _median_of(
        known, start_s + 0.25 * window_s, start_s + 0.5 * window_s
    )
    slope = theil_sen([block for block in blocks if block[0] >= start_s + window_s / 2])
    scatter = _scatter(blocks)
    numbers = {
        "step": step,
        "slope_per_day": slope * 86400,
        "scatter": scatter,
        "detects_per_hour": SURE * edge_per_s * 3600,
    }
    if step > rule.allowance and slope > edge_per_s / 2:
        return finding(
            "grows",
            f"by {step:.4g} {rule.unit} within {window_s / 2:.0f} s (allowed: {rule.allowance:g}), and "
            "it went on at the end",
            **numbers,
        )
    if scatter > SCATTER_MAX * rule.allowance:
        return finding(
            "unmeasured",
            f"it scatters by {scatter:.4g} {rule.unit}, too much to see a growth of {rule.allowance:g}",
            **numbers,
        )
    return finding("flat", "", **numbers)


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points; 0 for fewer than two."""
    slopes = [
        (second[1] - first[1]) / (second[0] - first[0])
        for first, second in combinations(points, 2)
        if second[0] != first[0]
    ]
    return median(slopes) if slopes else 0.0


def _blocks(
    known: Sequence[tuple[float, float]], start_s: float, block_s: float, count: int
) -> list[tuple[float, float]]:
    """The middle and the median of each block that has samples."""
    members: list[list[float]] = [[] for _ in range(count)]
    for at, value in known:
        members[min(count - 1, int((at - start_s) / block_s))].append(value)
    return [
        (start_s + (number + 0.5) * block_s, median(values))
        for number, values in enumerate(members)
        if values
    ]


def _median_of(known: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    return median([value for at, value in known if start_s <= at <= end_s] or [0.0])


def _scatter(blocks: Sequence[tuple[float, float]]) -> float:
    """The median distance of a block from the one before it, which neither a trend nor a step changes
    much."""
    return median([abs(after[1] - before[1]) for before, after in pairwise(blocks)] or [0.0])
