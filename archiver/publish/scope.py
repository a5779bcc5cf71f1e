"""Parses and checks the part of the topics that a command or a request is limited to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from archiver.runtime.errors import InvalidInput, no_partition, no_topic

if TYPE_CHECKING:
    from archiver.config.settings import TopicSettings
    from intake.log.state import TopicState

Scope = tuple[str, frozenset[int] | None]
"""A topic's name and some of its partitions (None: all)."""

# Six digits bound the span, which becomes a set.
_PARTITION = re.compile(r"[0-9]{1,6}")


def parse_scope(text: str) -> Scope:
    """`TOPIC`, `TOPIC:3` or `TOPIC:0-3`; raises `InvalidInput`."""
    name, colon, span = text.partition(":")
    if not colon:
        return name, None
    low, dash, high = span.partition("-")
    if not _PARTITION.fullmatch(low) or (dash and not _PARTITION.fullmatch(high)):
        raise InvalidInput(
            f"--topic {text}: after the colon stands a partition (3) or a span of partitions (0-3)"
        )
    last = int(high or low)
    if last < int(low):
        raise InvalidInput(f"--topic {text}: the span of partitions ends before it begins")
    return name, frozenset(range(int(low), last + 1))


def check_scope(
    scope: Scope | None, topics: Sequence[TopicSettings], in_log: Mapping[str, TopicState]
) -> None:
    """Raise `NotFound` unless the configured `topics` contain the topic, and the topic has the partitions.

    `in_log`: the topics of the intake log by name. A topic that is not there has the configured partitions.
    """
    if scope is None:
        return
    name, partitions = scope
    settings = next((topic for topic in topics if topic.name == name), None)
    if settings is None:
        raise no_topic(name, (topic.name for topic in topics))
    # The log's number: a topic may have more partitions than its configuration says, and a mirrored topic has
    # those of its upstream.
    count = in_log[name].partitions if name in in_log else settings.partitions
    beyond = sorted(partition for partition in partitions or () if partition >= count)
    if beyond:
        raise no_partition(name, beyond[0], count)
