"""Numbers of the Kafka client library: the one place where its sentinel values become "not known".

librdkafka and Kafka use negative numbers where a number is missing: -1 (end of the log, no timestamp, no
leader, no epoch, no partition), -2 (beginning of the log), -1000 (stored offset) and -1001 (no offset). Such
a number is never compared with a position: every adapter passes each number of the library through one of
these functions, and a missing number is None.
"""

from __future__ import annotations

from typing import Any

from intake.sources.kafka.upstream import Bounds

OFFSET_MAX = 2**63 - 1
NO_RECORD = -1
"""A definite answer to "the first offset since a time": the partition has no record that new."""


def known(number: Any) -> int | None:
    """An offset, partition, broker id, leader epoch or size; None for a sentinel, or for anything that is not
    such a number.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= OFFSET_MAX:
        return None
    return number


def known_since(offset: Any) -> int | None:
    """The answer to a question for the first offset since a time: an offset, or `NO_RECORD`; None if it is
    neither.
    """
    return NO_RECORD if offset == NO_RECORD else known(offset)


def known_bounds(low: Any, high: Any) -> Bounds | None:
    """What a partition has; None if either end is not known, or if the two answers contradict each other.

    An empty partition has equal ends: 0 and 0 where it just begins, a higher offset where every record was
    deleted.
    """
    first, end = known(low), known(high)
    return None if first is None or end is None or first > end else Bounds(first, end)


def known_size(text: Any) -> int | None:
    """A number from a topic's configuration, which Kafka sends as text; None if there is none."""
    try:
        return known(int(text))
    except (TypeError, ValueError):
        return None
