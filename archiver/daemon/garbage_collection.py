"""Threshold of Python's cyclic garbage collector.

By default it runs after 700 net allocations. One poll of a Kafka source holds thousands of messages, none of
them in a cycle: scanning them took a tenth of the mirror thread's time (docs/performance-notes.md). Benches
use it without the daemon.
"""

from __future__ import annotations

import gc

OBJECTS = 10_000
"""More than one request of the client holds (`intake.sources.kafka.client`); cycles keep little memory until
then."""


def collect_less_often() -> None:
    """Raise the threshold for this process."""
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
