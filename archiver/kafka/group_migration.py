"""Migration of a group in use between the classic protocol and the consumer protocol, in both directions.

Pure functions of the two groups. No partition that a member may still read is without an owner in the new
group (`docs/protocols/groups.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import ClassicPart, ProtocolMember, Subscription, Visible, beat_of_join
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.embedded_protocol import existing, read_assignment, read_subscription
from archiver.kafka.group import CONSUMER, Group, GroupLimits, Joined, Member
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicPartition
from intake.log.state import TopicState

KAFKA_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors whose own bytes in an assignment may be left out. Those of others, for example of Kafka Streams,
must reach the members."""
READ_MAX: Final = 2**22
"""Bytes of metadata and assignments that are read when a group moves. Nothing else is answered in that time:
0.2 s for topics with names of 25 bytes, and 1 s for the worst bytes. Kafka has no such bound."""


def enter_classic(
    new: ConsumerProtocolGroup,
    old: Group,
    topics: Mapping[str, TopicState],
    visible: Visible,
    now_s: float,
) -> None:
    """Enter the members of a classic group into a new group of the consumer protocol.

    The classic group does not change. Raises `Refused` if the members cannot be in another one.
    """
    if old.members and old.protocol_type != CONSUMER:
        raise Refused(ErrorCode.group_id_not_found, "the group has members that are no consumers")
    # Others wait in their first JoinGroup. They own nothing, and join the new group with the next one.
    members = [one for one in old.members if not one.is_new]
    if sum(len(one.assignment) + len(one.protocols[0][1]) for one in members) > READ_MAX:
        raise Refused(ErrorCode.group_id_not_found, f"members have more than {READ_MAX} bytes of metadata")
    assigned: dict[str, frozenset[TopicPartition]] = {}
    owned: dict[str, frozenset[TopicPartition]] = {}
    entered: list[ProtocolMember] = []
    for one in members:
        try:
            assignment = read_assignment(one.assignment)
            stated = read_subscription(one.protocols[0][1])
        except ValueError as error:
            why = f"a member of the classic protocol cannot be read: {error}"
            raise Refused(ErrorCode.group_id_not_found, why) from error
        if assignment.has_user_data and old.protocol not in KAFKA_ASSIGNORS:
            raise Refused(ErrorCode.group_id_not_found, "the group has an assignor of its own in use")
        assigned[one.member_id] = existing(assignment.assigned, topics)
        owned[one.member_id] = existing(stated.owned, topics)
        entered.append(
            ProtocolMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                stated.rack_id,
                one.rebalance_timeout_s,
                Subscription(visible(one.principal, stated.topics)),
                classic=ClassicPart(one.protocols, one.session_timeout_s, stated.version, one.principal),
                epoch=old.generation,
                previous_epoch=old.generation,
            )
        )
    # Clients assigned these, so two of them may have the same. One of them loses it when it joins again.
    taken: set[TopicPartition] = set()
    # What a cooperative member had before the present generation, it may not have given up yet.
    for found in (assigned, owned):
        for member in entered:
            more = found[member.member_id] - taken
            member.assigned |= more
            taken |= more
    for member in entered:
        member.target = member.assigned
    new.enter(entered, old.generation, now_s)


def answer_waiting(
    new: ConsumerProtocolGroup,
    old: Group,
    topics: Mapping[str, TopicState],
    visible: Visible,
    now_s: float,
) -> None:
    """Answer what waits in the classic group. That ends with it."""
    for join, reply in old.hand_over():
        try:
            joined = new.join(beat_of_join(join, topics, visible), now_s)
        except Refused as error:
            joined = Joined(code=error.code, member_id=join.member_id)
        reply(joined)
    # Members that wait for the assignment of their leader join again.
    old.dissolve(ErrorCode.rebalance_in_progress)


def back_to_classic(
    old: ConsumerProtocolGroup, limits: GroupLimits, new_id: Callable[[], str], now_s: float
) -> Group:
    """A classic group of the members of another one, all of which have the classic protocol.

    They are asked to rebalance. Those that have not reached the newest epoch abandon their partitions first,
    because a classic group has one generation.
    """
    members: list[Member] = []
    for one in old.members:
        assert one.classic is not None, "only members of the classic protocol are left"
        members.append(
            Member(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.classic.protocols,
                one.classic.session_timeout_s,
                one.rebalance_timeout_s,
                one.classic.principal,
                # What it may still read, also if it was asked to give it up.
                assignment=old.written(one, one.classic, one.assigned | one.revoking),
            )
        )
    new = Group(limits, new_id)
    new.take_over(members, old.target_epoch, now_s)
    old.dissolve(ErrorCode.unknown_member_id)
    return new
