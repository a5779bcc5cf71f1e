"""Which manifests of a table are merged with each other. Pure.

Without merging, a table has one more manifest with every commit. If all manifests were merged each time,
every entry would be rewritten by each merge. So small manifests are merged at every merge, and larger ones
only once `TOGETHER_MIN` of them exist. One commit merges at most three times `TARGET_BYTES`. Thus the cost of
a merge is bounded, and an entry is rewritten a bounded number of times over the life of the table. Measured
by `make bench-growth`.
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
