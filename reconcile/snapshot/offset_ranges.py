"""Ranges of offsets as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from reconcile.snapshot.offset_coverage import Range

SHOWN_MAX = 5
"""So many ranges are named; of the rest their number."""


def shown(ranges: Sequence[Range]) -> str:
    """The first few ranges, both ends inclusive."""
    texts = [str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in ranges[:SHOWN_MAX]]
    more = f" and {len(ranges) - SHOWN_MAX} more ranges" if len(ranges) > SHOWN_MAX else ""
    return ", ".join(texts) + more
