"""The Protocol of the control topic for the publisher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from archiver.control_topic.waves import TopicRecord


class Destination(Protocol):
    """A connection to the topic. After an error the publisher closes it and opens another one."""

    def topic_id(self, stopping: Callable[[], bool]) -> bytes:
        """The topic's id in its cluster; empty if the cluster has no topic ids.

        Raises `Halt` if the topic is missing or access is denied. Raises `RetryLater` if the cluster does not
        answer, or the process stops before it does.
        """

    def send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        """Send the records and return when all in-sync replicas acknowledged each of them.

        Raises `Halt` if a record is refused permanently, `RetryLater` or `OutcomeUnknown` otherwise. After an
        error any of the records may be in the topic, also repeatedly, now or later.
        """

    def close(self) -> None:
        """Close the connection and send no further unacknowledged record."""
