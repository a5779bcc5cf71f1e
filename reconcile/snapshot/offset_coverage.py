"""Computes how often each offset is covered: arithmetic on ranges of offsets.

A range is `(low, high)` with `high` exclusive; results are ascending, disjoint, non-empty and merged where
they touch. Work grows with the number of ranges, never with the number of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SHOWN_MAX = 5
"""Most ranges that a text lists; of the rest it has the number."""


def shown(ranges: Sequence[Range]) -> str:
    """The first few ranges as text, both ends inclusive."""
    texts = [str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in ranges[:SHOWN_MAX]]
    more = f" and {len(ranges) - SHOWN_MAX} more ranges" if len(ranges) > SHOWN_MAX else ""
    return ", ".join(texts) + more


Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OffsetCoverage:
    """How a set of rows covers the expected offsets."""

    once: tuple[Range, ...]
    """Expected and covered exactly once."""
    missing: tuple[Range, ...]
    """Expected and not covered."""
    doubled: tuple[Range, ...]
    """Covered more than once, expected or not."""
    outside: tuple[Range, ...]
    """Covered, but not expected: before the start, at or beyond the end, or in a gap."""


def cover(start: int, end: int, gaps: Iterable[Range], spans: Iterable[Range]) -> OffsetCoverage:
    """Compare the expected offsets, [start, end) without `gaps`, with the offsets that `spans` hold.

    `spans` may overlap and come in any order; a span given twice counts twice.
    """
    expected = subtract(merge([(start, end)]), merge(gaps))
    once: list[Range] = []
    doubled: list[Range] = []
    for low, high, depth in _depths(spans):
        (once if depth == 1 else doubled).append((low, high))
    covered = merge([*once, *doubled])
    return OffsetCoverage(
        once=intersect(merge(once), expected),
        missing=subtract(expected, covered),
        doubled=merge(doubled),
        outside=subtract(covered, expected),
    )


def merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same offsets in the fewest ranges, ascending; empty ranges are dropped."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if high <= low:
            continue
        # `<=`: ranges that only touch become one.
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def subtract(ranges: Sequence[Range], removed: Sequence[Range]) -> tuple[Range, ...]:
    """The offsets of `ranges` that are not in `removed`; both merged."""
    left: list[Range] = []
    position = 0
    for low, high in ranges:
        # Both inputs ascend, so each removed range is passed once.
        while position < len(removed) and removed[position][1] <= low:
            position += 1
        # A second index, because a removed range may reach into the next range.
        reached, following = low, position
        while following < len(removed) and removed[following][0] < high:
            if removed[following][0] > reached:
                left.append((reached, removed[following][0]))
            reached = max(reached, removed[following][1])
            following += 1
        if reached < high:
            left.append((reached, high))
    return tuple(left)


def intersect(first: Sequence[Range], second: Sequence[Range]) -> tuple[Range, ...]:
    """The offsets in both; both merged."""
    shared: list[Range] = []
    left = right = 0
    while left < len(first) and right < len(second):
        low = max(first[left][0], second[right][0])
        high = min(first[left][1], second[right][1])
        if low < high:
            shared.append((low, high))
        # The range that ends first cannot meet any later range.
        if first[left][1] <= second[right][1]:
            left += 1
        else:
            right += 1
    return tuple(shared)


def total(ranges: Iterable[Range]) -> int:
    """The number of offsets; `ranges` are merged."""
    return sum(high - low for low, high in ranges)


def _depths(spans: Iterable[Range]) -> Iterator[tuple[int, int, int]]:
    """`(low, high, times covered)`, ascending, for every stretch covered at least once."""
    # A sweep over range ends: +1 where a span begins, -1 where it ends.
    steps: dict[int, int] = {}
    for low, high in spans:
        if low < high:
            steps[low] = steps.get(low, 0) + 1
            steps[high] = steps.get(high, 0) - 1
    depth = 0
    reached = 0
    for at in sorted(steps):
        # A depth of 0 is a hole between spans.
        if depth:
            yield reached, at, depth
        depth += steps[at]
        reached = at
