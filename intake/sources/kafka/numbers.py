"""Convert numbers of the Kafka client library: its sentinel values become None.

librdkafka and Kafka use negative numbers for missing values: -1 (end of the log, no timestamp, no leader, no
epoch, no partition), -2 (beginning of the log), -1000 (stored offset) and -1001 (no offset). Such a number
must never be compared with a position, so adapters pass every number through one of these functions.
"""

from __future__ import annotations

from typing import Any

from intake.sources.kafka.upstream import Bounds

OFFSET_MAX = 2**63 - 1
NO_RECORD = -1
"""Definite reply to "the first offset since a time": the partition has no such record."""


def known(number: Any) -> int | None:
    """An offset, partition, broker id, leader epoch or size; None for a sentinel or an invalid value."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= OFFSET_MAX:
        return None
    return number


def known_since(offset: Any) -> int | None:
    """The first offset since a time: an offset or `NO_RECORD`; None if it is neither."""
    return NO_RECORD if offset == NO_RECORD else known(offset)


def known_bounds(low: Any, high: Any) -> Bounds | None:
    """The bounds of a partition; None if either end is unknown or the two contradict each other.

    An empty partition has equal ends: 0 if it is new, a higher offset if all records were deleted.
    """
    first, end = known(low), known(high)
    return None if first is None or end is None or first > end else Bounds(first, end)


def known_size(text: Any) -> int | None:
    """A number from a topic's configuration, which Kafka sends as text; None if missing."""
    try:
        return known(int(text))
    except (TypeError, ValueError):
        return None
