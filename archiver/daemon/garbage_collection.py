"""How often Python looks for objects that only refer to each other.

By default it looks after 700 more objects than were let go of, and every hundredth time at everything there
is. One poll of a Kafka source holds thousands of messages for a moment, none of which is ever part of a
circle: looking at them was a tenth of what the mirror's thread took (decision 0055).
"""

from __future__ import annotations

import gc

OBJECTS = 10_000
"""Above what one request of the client holds (`intake.sources.kafka.client`); what circles may keep until the
next look is still small."""


def look_less_often() -> None:
    """For the whole process."""
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
