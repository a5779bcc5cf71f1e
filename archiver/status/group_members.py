"""Members of a consumer group as their coordinator shows them to readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A member. What is None could not be read from what its client stated."""

    member_id: str
    instance_id: str | None
    """`group.instance.id`, of a static member."""
    client_id: str
    client_host: str
    subscribed: Sequence[str] | None
    """Names of topics, in order; those that a pattern matches are not among them."""
    pattern: str | None
    """The pattern for names of topics that it subscribes to."""
    assigned: Mapping[str, Sequence[int]] | None
    """Numbers of partitions by topic, both in order."""


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group that a daemon coordinates, with its members."""

    state: str
    """Kafka's name."""
    protocol: str
    """classic or consumer."""
    assignor: str | None
    generation: int
    """Of the classic protocol; the epoch of the group in the consumer protocol."""
    rejoining: bool
    """Whether members of the coordinator before may not have joined again yet."""
    members: Sequence[ShownMember]
    members_left: int
    """Members that are not shown."""


class GroupMembers(Protocol):
    """The groups that a daemon coordinates. Safe for several threads."""

    @property
    def node_id(self) -> int | None:
        """Number of this daemon among those that clients find; None while it is not registered."""

    def names(self) -> Sequence[str]:
        """Groups with members here, or that had some."""

    def states(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        """State and number of members of those of the groups. Raises `RetryLater`."""

    def shown(self, group: str) -> ShownGroup | None:
        """The group; None if no member has joined it here. Raises `RetryLater`."""


def no_members() -> GroupMembers | None:
    """The groups of a daemon without a Kafka listener."""
    return None
