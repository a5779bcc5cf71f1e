"""The control topic as the publisher sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from archiver.control_topic.waves import TopicRecord


class Destination(Protocol):
    """A connection to the topic. After an error it is closed, and another one made."""

    def topic_id(self, stopping: Callable[[], bool]) -> bytes:
        """The topic's id in its cluster; empty if the cluster has none. Raises `Halt` if the topic is not
        there or not for us, `RetryLater` if the cluster does not answer, or has not yet when the process is
        to stop.
        """

    def send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        """Returns when every record is acknowledged by all replicas that are in sync. Else raises: `Halt` if
        one is refused for good, `RetryLater` or `OutcomeUnknown` otherwise. Any of the records may be in the
        topic then, more than once too, now or later.
        """

    def close(self) -> None:
        """Send nothing more of what was not acknowledged."""
