"""Which manifests of a table are merged with each other. Pure.

A table that only grows would have one more manifest with every commit; a table whose manifests are all merged
each time would write every entry that it ever had again and again. So small manifests are merged whenever the
caller merges, and what has grown out of that only once so many have come together, and never more than three
times `TARGET_BYTES` in one commit: an entry is written again a bounded number of times however long the table
lives, and what a merge costs has a bound. Measured by `make bench-growth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL_BYTES = 64 * 1024
"""Manifests below are merged at every merge."""

LARGE_BYTES = 2 * 1024 * 1024
"""Manifests from this size on are left as they are."""

TOGETHER_MIN = 25
"""So many manifests between the two are merged with each other."""

TARGET_BYTES = 8 * 1024 * 1024
"""Of one merged manifest: Iceberg's default."""

GROWN_GROUPS_MAX = 2
"""So many manifests are made of grown ones in one commit."""


@dataclass(frozen=True, slots=True)
class ManifestSize:
    """A manifest of data files as the manifest list describes it."""

    length: int
    """Bytes."""
    spec_id: int
    """Manifests of different partition specs cannot be merged."""


def groups(manifests: Sequence[ManifestSize]) -> list[list[int]]:
    """Positions in `manifests` (the newest first) that become one manifest each; each at most in one group,
    and none alone.
    """
    found: list[list[int]] = []
    for spec_id in sorted({item.spec_id for item in manifests}):
        mine = [position for position, item in enumerate(manifests) if item.spec_id == spec_id]
        small = [position for position in mine if manifests[position].length < SMALL_BYTES]
        middle = [position for position in mine if SMALL_BYTES <= manifests[position].length < LARGE_BYTES]
        chosen = [_within_target(manifests, small)]
        if len(middle) >= TOGETHER_MIN:
            rest = middle[::-1]  # the oldest first: neighbours in time stay together
            for _ in range(GROWN_GROUPS_MAX):
                taken = _within_target(manifests, rest)
                chosen.append(taken[::-1])
                rest = rest[len(taken) :]
        found += [group for group in chosen if len(group) > 1]
    return found


def _within_target(manifests: Sequence[ManifestSize], positions: Sequence[int]) -> list[int]:
    """As many of them, from the first, as fit into one manifest."""
    taken: list[int] = []
    total = 0
    for position in positions:
        total += manifests[position].length
        if total > TARGET_BYTES:
            break
        taken.append(position)
    return taken
