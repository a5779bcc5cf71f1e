"""Copies of consumer groups for readers in other threads.

A copy is taken in the listener's loop and is short work. Subscriptions and assignments of the classic
protocol are bytes from clients, up to megabytes; they are read in the thread of the reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from archiver.kafka.consumer_members import Subscription
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.coordinator import CLASSIC, GroupCoordinator
from archiver.kafka.embedded_protocol import read_assignment, subscribed_topics
from archiver.kafka.group import CONSUMER, Group, State
from archiver.kafka.membership import Membership
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.status.group_members import ShownGroup, ShownMember
from intake.log.state import TopicState

MEMBERS_MAX: Final = 500
"""Members of a group that are shown."""
ANSWER_S: Final = 5.0
"""Longest wait for the listener's loop."""

Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class CopiedMember:
    """A member as of the copy."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: Subscription | bytes | None
    """Bytes: as a client of the classic protocol stated it. None: no consumer."""
    assigned: frozenset[TopicPartition] | bytes | None


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A group as of the copy."""

    state: str
    protocol: str
    assignor: str | None
    generation: int
    rejoining: bool
    members: tuple[CopiedMember, ...]
    members_left: int


def copied(group: Group | ConsumerProtocolGroup, *, rejoining: bool) -> CopiedGroup:
    """Copy a group. Only the listener's loop may call it."""
    assignor: str | None
    if isinstance(group, ConsumerProtocolGroup):
        protocol, assignor, generation = CONSUMER, group.assignor, group.epoch
        members = tuple(
            CopiedMember(
                one.member_id, one.instance_id, one.client_id, one.client_host, one.subscription, one.assigned
            )
            for one in islice(group.members, MEMBERS_MAX)
        )
    else:
        # As in Kafka, the assignor is known in a stable group.
        assignor = group.protocol if group.state is State.STABLE else None
        protocol, generation = CLASSIC, group.generation
        # Others than consumers, such as Kafka Connect, have formats of their own.
        of_consumers = group.protocol_type == CONSUMER
        members = tuple(
            CopiedMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.metadata(group.protocol) if of_consumers else None,
                one.assignment if of_consumers else None,
            )
            for one in islice(group.members, MEMBERS_MAX)
        )
    return CopiedGroup(
        group.state.value,
        protocol,
        assignor,
        generation,
        rejoining,
        members,
        len(group.members) - len(members),
    )


def shown_group(copy: CopiedGroup, topics: Mapping[TopicId, TopicState]) -> ShownGroup:
    """The group for readers, with the names of topics."""
    return ShownGroup(
        copy.state,
        copy.protocol,
        copy.assignor,
        copy.generation,
        copy.rejoining,
        [_member(one, topics) for one in copy.members],
        copy.members_left,
    )


def _member(member: CopiedMember, topics: Mapping[TopicId, TopicState]) -> ShownMember:
    subscription, regex = member.subscription, None
    if isinstance(subscription, Subscription):
        regex = None if subscription.regex is None else subscription.regex.pattern
    return ShownMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _subscribed(subscription),
        regex,
        _assigned(member.assigned, topics),
    )


def _subscribed(stated: Subscription | bytes | None) -> list[str] | None:
    if isinstance(stated, Subscription):
        return sorted(stated.names)
    # Empty: the assignor is not chosen yet, so the client's statement for it is not known either.
    if not stated:
        return None
    try:
        return sorted(subscribed_topics(stated))
    # A client may state anything, and the other members are shown all the same.
    except ValueError:
        return None


def _assigned(
    stated: frozenset[TopicPartition] | bytes | None, topics: Mapping[TopicId, TopicState]
) -> dict[str, list[int]] | None:
    found: dict[str, list[int]] = {}
    if stated is None:
        return None
    if isinstance(stated, bytes):
        try:
            found = {name: list(numbers) for name, numbers in read_assignment(stated).assigned.items()}
        except ValueError:
            return None
    else:
        for topic_id, number in stated:
            # A topic can be deleted while a member still has it.
            if topic_id in topics:
                found.setdefault(topics[topic_id].name, []).append(number)
    return {name: sorted(found[name]) for name in sorted(found)}


class CoordinatedGroups:
    """The groups that this daemon coordinates, for readers in other threads. See `GroupMembers`."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        membership: Membership,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        topics: Callable[[], Mapping[TopicId, TopicState]],
    ) -> None:
        """`loop` is the listener's while its port is open."""
        self._coordinator = coordinator
        self._membership = membership
        self._loop = loop
        self._topics = topics

    @property
    def node_id(self) -> int | None:
        """See `GroupMembers.node_id`."""
        own = self._membership.own
        return None if own is None else own.node_id

    def names(self) -> Sequence[str]:
        """See `GroupMembers.names`."""
        return self._coordinator.names()

    def states(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        """See `GroupMembers.states`."""
        return self._in_loop(self._states, names) or {}

    def shown(self, group: str) -> ShownGroup | None:
        """See `GroupMembers.shown`."""
        copy = self._in_loop(self._copied, group)
        return None if copy is None else shown_group(copy, self._topics())

    def _in_loop(self, work: Callable[[Asked], Awaitable[Found]], asked: Asked) -> Found | None:
        """What `work` finds in the listener's loop; None while the port is closed."""
        loop = self._loop()
        if loop is None:
            return None

        async def found() -> Found:
            return await work(asked)

        future = asyncio.run_coroutine_threadsafe(found(), loop)
        try:
            return future.result(ANSWER_S)
        except TimeoutError as error:
            future.cancel()
            raise RetryLater(
                "the Kafka listener is busy, so members of groups are not known; try again"
            ) from error

    async def _states(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        return self._coordinator.states(names)

    async def _copied(self, group: str) -> CopiedGroup | None:
        # Without a claim: a reader must not make this daemon the coordinator.
        if self._coordinator.claim(group) is None:
            return None
        shown = self._coordinator.shown(group)
        if shown is None or shown.group is None:
            return None
        return copied(shown.group, rejoining=self._coordinator.may_rejoin(group))
