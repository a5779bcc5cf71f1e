"""One group as its coordinator holds it, of either protocol, in the time of a test."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import Beat, Beaten, ProtocolMember, beat_of_join
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.group import Group, GroupLimits, Join, Joined, ReplyJoin, ReplySync, Sync
from archiver.kafka.group_migration import answer_waiting, back_to_classic, enter_classic
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

SESSION_S, DELAY_S = 45.0, 3.0


def parts(written: str) -> frozenset[TopicPartition]:
    """`"a0 b1"`: partitions by the first letter of their topics."""
    return frozenset((TopicId(one[0] * 32), int(one[1:])) for one in written.split())


def text(partitions: frozenset[TopicPartition]) -> str:
    return " ".join(f"{one[0]}{number}" for one, number in sorted(partitions))


def named(assigned: Mapping[str, Sequence[int]]) -> frozenset[TopicPartition]:
    return frozenset((TopicId(name[0] * 32), one) for name, found in assigned.items() for one in found)


def metadata(names: str, owned: str, generation: int = -1) -> bytes:
    """A subscription of version 2 to topics of one letter."""

    def topic(name: str) -> bytes:
        return struct.pack(">hc", 1, name.encode())

    by_topic = {
        name: [int(one[1:]) for one in owned.split() if one[0] == name]
        for name in {*owned} - {*" 0123456789"}
    }
    listed = b"".join(
        topic(name) + struct.pack(f">i{len(found)}i", len(found), *found) for name, found in by_topic.items()
    )
    return (
        struct.pack(">hi", 2, len(names))
        + b"".join(map(topic, names))
        + struct.pack(">ii", -1, len(by_topic))
        + listed
        + struct.pack(">i", generation)
    )


class Migrating:
    """A group of either protocol, and the topics and the time."""

    def __init__(self, members_max: int = 10, first_epoch: int = 0, partitions: int = 4) -> None:
        self.now_s = 100.0
        self.topics: dict[str, TopicState] = {}
        self.topics |= self.more("a", partitions)
        self.group: Group | ConsumerProtocolGroup | None = None
        self.hidden: dict[str, str] = {}
        """Topics that a principal may not see."""
        self.upgrades = self.downgrades = 0
        self._numbers = itertools.count()
        self._first_epoch = first_epoch
        self._limits = GroupLimits(members_max, DELAY_S)

    def more(self, name: str, partitions: int) -> dict[str, TopicState]:
        return {name: TopicState(TopicId(name * 32), name, partitions, 0)}

    def grow(self, partitions: int) -> None:
        self.topics |= self.more("a", partitions)

    def _visible(self, principal: str, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) - frozenset(self.hidden.get(principal, ""))

    def _new_id(self) -> str:
        return f"new-{next(self._numbers)}"

    # --- Requests, as `GroupCoordinator` answers them

    def beat(self, beat: Beat) -> Beaten:
        self.tick()
        if isinstance(self.group, ConsumerProtocolGroup):
            try:
                return self.group.heartbeat(beat, self.now_s)
            finally:
                self.tick()
        if beat.epoch != 0:
            raise Refused(ErrorCode.unknown_member_id)
        old = self.group
        new = ConsumerProtocolGroup(
            self._limits.members_max,
            SESSION_S,
            self._new_id,
            lambda: self.topics,
            lambda _: frozenset(),
            epoch=max(self._first_epoch, 0 if old is None else old.generation),
        )
        if old is None or old.is_idle:
            beaten = new.heartbeat(beat, self.now_s)
            self.group = new
            return beaten
        enter_classic(new, old, self.topics, self._visible, self.now_s)
        beaten = new.heartbeat(beat, self.now_s)
        self.group = new
        self.upgrades += 1
        answer_waiting(new, old, self.topics, self._visible, self.now_s)
        self.tick()
        return beaten

    def join(self, join: Join, reply: ReplyJoin) -> None:
        self.tick()
        group = self.group
        if isinstance(group, ConsumerProtocolGroup) and not group.is_idle:
            joined = group.join(
                beat_of_join(join, self.topics, self._visible),
                self.now_s,
                needs_member_id=join.needs_member_id,
            )
            self.tick()
            reply(joined)
            return
        if not isinstance(group, Group):
            if join.member_id:
                reply(Joined(code=ErrorCode.unknown_member_id))
                return
            generation = 0 if group is None else group.epoch
            self.group = group = Group(self._limits, self._new_id, generation=generation)
        group.join(join, reply, self.now_s)
        self.tick()

    def sync(self, sync: Sync, reply: ReplySync) -> None:
        self.tick()
        if isinstance(self.group, ConsumerProtocolGroup):
            reply(self.group.sync(sync, self.now_s))
        elif self.group is not None:
            self.group.sync(sync, reply, self.now_s)

    def alive(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Heartbeat. Raises `Refused` for any error but that of a rebalance."""
        self.tick()
        if isinstance(self.group, ConsumerProtocolGroup):
            code = self.group.heartbeat_classic(member_id, instance_id, generation, self.now_s)
        else:
            code = self.classic().heartbeat(member_id, instance_id, generation, self.now_s)
        if code not in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            raise Refused(code)
        return code

    def leave(self, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        self.tick()
        if isinstance(self.group, ConsumerProtocolGroup):
            codes = self.group.leave(leaving)
        else:
            codes = self.classic().leave(leaving, self.now_s)
        self.tick()
        return codes

    def commit(
        self, member_id: str, epoch: int, *, states_epoch: bool = True, transactional: bool = False
    ) -> None:
        """Raises `Refused` if the commit does not count."""
        self.tick()
        if isinstance(self.group, ConsumerProtocolGroup):
            self.group.check_commit(member_id, epoch, states_epoch=states_epoch, transactional=transactional)
            return
        code = self.classic().check_commit(member_id, None, epoch, self.now_s, transactional=transactional)
        if code is not ErrorCode.none:
            raise Refused(code)

    def refused_commit(self, member_id: str, epoch: int, **options: bool) -> ErrorCode:
        with pytest.raises(Refused) as error:
            self.commit(member_id, epoch, **options)
        return error.value.code

    # --- What is so

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        group = self.group
        if group is not None and group.wake_s <= self.now_s:
            group.tick(self.now_s)
        if isinstance(group, ConsumerProtocolGroup) and group.is_all_classic:
            self.group = back_to_classic(group, self._limits, self._new_id, self.now_s)
            self.downgrades += 1

    def classic(self) -> Group:
        assert isinstance(self.group, Group)
        return self.group

    @property
    def consumer_group(self) -> ConsumerProtocolGroup | None:
        return self.group if isinstance(self.group, ConsumerProtocolGroup) else None

    def consumers(self) -> ConsumerProtocolGroup:
        assert isinstance(self.group, ConsumerProtocolGroup)
        return self.group

    def member(self, member_id: str) -> ProtocolMember:
        return next(one for one in self.consumers().members if one.member_id == member_id)

    def epoch(self, member_id: str) -> int:
        return self.member(member_id).epoch

    def owners(self) -> dict[str, str]:
        """Member ids by partition."""
        return {text(frozenset([one])): owner for one, owner in sorted(self.consumers()._owners.items())}
