"""One group of the consumer protocol (KIP-848): its members, its epochs and its partitions.

The coordinator assigns. Each member moves towards its target by heartbeats: it gives partitions up, and gets
others once their owner gave them up. The transitions and errors are those of Kafka's coordinator, except
after a change of coordinator (`docs/protocols/groups.md`). Time is passed in and nothing waits here.

At every moment each partition has at most one owner (`_owners`). A partition has no owner once its member
said that it gave it up, left, or let its session or its rebalance timeout end.

Members of the classic protocol may be in the group while it is migrated. Their JoinGroup says what they own,
SyncGroup brings what they may read, and Heartbeat asks them to join again when that must change. Nothing of
this waits for other members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.assignors import ASSIGNORS, Subscriber
from archiver.kafka.consumer_members import (
    LEAVE,
    LEAVE_STATIC,
    MEMBER_BYTES,
    NO_NAMES,
    NO_PARTITIONS,
    Beat,
    Beaten,
    ClassicPart,
    ProtocolMember,
    Subscription,
    TopicRegex,
)
from archiver.kafka.embedded_protocol import named, write_assignment
from archiver.kafka.group import CONSUMER, NEVER, Joined, Protocols, State, Sync, Synced, protocols_memory
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

TOPICS_CHECK_S: Final = 1.0
"""Interval at which new topics and new partitions are noticed by heartbeats."""
ASSIGNED_PER_S: Final = 20_000
"""Partitions, and topics of members, that are assigned in a second. Further changes of a group share the next
assignment, so that large groups do not take the processor. Measured: 80,000 in a second at the least."""
NAMES_PER_S: Final = 200_000
"""As `ASSIGNED_PER_S`, for names in subscriptions, of topics that exist or do not. They are looked up at each
assignment. Measured: 3,000,000 in a second."""
ASSIGNED_AT_ONCE: Final = 1000
"""As `ASSIGNED_PER_S`: a group of this size is assigned at each change."""
PARTITION_BYTES: Final = 500
"""Memory of a partition that a group subscribes to, with its owner and its place in the assignments."""


@dataclass(slots=True, eq=False)
class ConsumerProtocolGroup:
    """Members of one group. See the module."""

    members_max: int
    session_timeout_s: float
    new_id: Callable[[], str]
    """Makes a member id."""
    topics: Callable[[], Mapping[str, TopicState]]
    """The topics that exist, by name."""
    matching: Callable[[TopicRegex], frozenset[str]]
    """Names of topics that match, as far as they were resolved."""
    owners_known_s: float = 0.0
    """Until then, a partition without an owner may belong to a member of an earlier coordinator, and is not
    given away. A member that says what it owned, and then joins, gives it up."""
    epoch: int = 0
    """Of the group, first that of no assignment. It is the next one once the group has changed."""
    target_epoch: int = field(init=False)
    """The epoch of which the targets of the members are."""
    assignments: int = 0
    """Targets that were computed."""
    assignor: str = next(iter(ASSIGNORS))
    wake_s: float = NEVER
    """When `tick` is due. It may be earlier than needed, and never later."""
    _members: dict[str, ProtocolMember] = field(default_factory=dict)
    _static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    _owners: dict[TopicPartition, str] = field(default_factory=dict)
    """Member ids by what is in their `assigned` or `revoking`."""
    _claimed: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """By member id, what members of an earlier coordinator said to own. They have not joined again yet."""
    _given_up: set[TopicPartition] = field(default_factory=set)
    """What was in `_claimed` of members that have joined since."""
    _subscriptions: Counter[Subscription] = field(default_factory=Counter)
    _classic_count: int = 0
    """Members of the classic protocol."""
    _supported: Counter[str] = field(default_factory=Counter)
    """For each assignor, the number of these members that support it."""
    _partitions: dict[TopicId, int] = field(default_factory=dict)
    """Partitions of the topics with subscribers, of the last assignment."""
    _partition_count: int = 0
    """Sum of `_partitions`."""
    _members_size: int = 0
    _topics_due_s: float = 0.0
    _assign_due_s: float = 0.0
    _is_dead: bool = False

    def __post_init__(self) -> None:
        self.target_epoch = self.epoch

    # --- Questions

    @property
    def members(self) -> Collection[ProtocolMember]:
        """The members in the order in which they joined first."""
        return self._members.values()

    @property
    def is_idle(self) -> bool:
        """Whether the group may be forgotten."""
        return not self._members

    @property
    def protocol_type(self) -> str:
        """As of a classic group of consumers."""
        return CONSUMER

    @property
    def generation(self) -> int:
        """The number of assignments."""
        return self.assignments

    @property
    def size(self) -> int:
        """Estimated bytes of memory of the members."""
        claimed = len(self._given_up) + sum(map(len, self._claimed.values()))
        return self._members_size + PARTITION_BYTES * (self._partition_count + claimed)

    def size_with(self, beat: Beat) -> int:
        """What `size` grows by at most if a member joins."""
        subscription = Subscription(beat.names or NO_NAMES, beat.regex)
        more = sum(
            count for topic, count in self._existing((subscription,)).items() if topic not in self._partitions
        )
        classic = 0 if beat.classic is None else protocols_memory(beat.classic.protocols)
        known = self._members.get(beat.member_id)
        before = 0 if known is None else known.size
        return MEMBER_BYTES + subscription.size + PARTITION_BYTES * more + classic - before

    @property
    def state(self) -> State:
        """Kafka's name of the state is its value."""
        if self._is_dead:
            return State.DEAD
        if not self._members:
            return State.EMPTY
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        moving = any(
            one.epoch != self.target_epoch or one.revoking or one.is_waiting
            for one in self.members
            if not one.has_left
        )
        return State.RECONCILING if moving else State.STABLE

    @property
    def is_all_classic(self) -> bool:
        """Whether the group has only members of the classic protocol, and should be a classic group."""
        return 0 < self._classic_count == len(self._members)

    def is_subscribed(self, topic: str) -> bool:
        """Whether members of the group consume a topic."""
        return any(
            topic in one.names or (one.regex is not None and topic in self.matching(one.regex))
            for one in self._subscriptions
        )

    def written(
        self, member: ProtocolMember, classic: ClassicPart, partitions: Iterable[TopicPartition]
    ) -> bytes:
        """Partitions of a member of the classic protocol as it reads them in SyncGroup."""
        topics = self.topics()
        subscribed = self._names(member.subscription)
        names = {topics[one].topic_id: one for one in subscribed if one in topics}
        return write_assignment(named(partitions, names), classic.version)

    @property
    def regexes(self) -> set[TopicRegex]:
        """The patterns of all members."""
        return {one.regex for one in self._subscriptions if one.regex is not None}

    # --- Events. Each raises `Refused` with the error of the answer.

    def heartbeat(self, beat: Beat, now_s: float) -> Beaten:
        """A member joins, is alive, reports what it has given up, or leaves."""
        if beat.epoch in (LEAVE, LEAVE_STATIC):
            return self._leave(beat)
        member = self._join(beat) if beat.epoch == 0 else self._known(beat, now_s)
        before = member.assigned
        self._move(member, beat, now_s)
        is_news = beat.is_full or member.assigned != before
        return Beaten(
            member_id=member.member_id,
            epoch=member.epoch,
            assignment=member.assigned if is_news else None,
        )

    def join(self, beat: Beat, now_s: float, *, needs_member_id: bool = False) -> Joined:
        """A member of the classic protocol joins, or joins again, and says what it owns."""
        assert beat.classic is not None, "it is of a JoinGroup"
        protocols = beat.classic.protocols
        self._check_supported(protocols)
        if beat.member_id:
            member = self._rejoining(beat)
        else:
            prefix = beat.client_id if beat.instance_id is None else beat.instance_id
            beat = replace(beat, member_id=f"{prefix}-{self.new_id()}")
            static_id = None if beat.instance_id is None else self._static.get(beat.instance_id)
            if static_id is not None:
                member = self._replace(self._members[static_id], beat)
            else:
                self._check_room()
                if beat.instance_id is None and needs_member_id:
                    return Joined(code=ErrorCode.member_id_required, member_id=beat.member_id)
                member = self._add(beat)
        self._move(member, beat, now_s)
        # Until it has sent SyncGroup.
        member.rebalance_due_s = now_s + member.rebalance_timeout_s
        self._wake(member.rebalance_due_s)
        return Joined(
            member_id=member.member_id,
            generation=member.epoch,
            protocol_type=CONSUMER,
            protocol=protocols[0][0],
        )

    def sync(self, sync: Sync, now_s: float) -> Synced:
        """A member of the classic protocol asks for its assignment."""
        member = self._classic(sync.member_id, sync.instance_id, sync.generation)
        assert member.classic is not None, "it is one of the classic protocol"
        protocol = member.classic.protocols[0][0]
        if sync.protocol_type not in (None, CONSUMER) or sync.protocol not in (None, protocol):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        # One that gives partitions up has to receive that first, and then joins again.
        if member.epoch != self.target_epoch and not member.revoking:
            raise Refused(ErrorCode.rebalance_in_progress)
        member.rebalance_due_s = NEVER
        self._extend(member, now_s)
        return Synced(
            protocol_type=CONSUMER,
            protocol=protocol,
            assignment=self.written(member, member.classic, member.assigned),
        )

    def heartbeat_classic(
        self, member_id: str, instance_id: str | None, generation: int, now_s: float
    ) -> ErrorCode:
        """A member of the classic protocol is alive. The answer may ask it to join again."""
        member = self._classic(member_id, instance_id, generation)
        self._extend(member, now_s)
        self._check_topics(now_s)
        self._assign(now_s)
        if not self._must_join(member, now_s):
            return ErrorCode.none
        member.rebalance_due_s = min(member.rebalance_due_s, now_s + member.rebalance_timeout_s)
        self._wake(member.rebalance_due_s)
        return ErrorCode.rebalance_in_progress

    def leave(self, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members of the classic protocol leave, as in `Group.leave`. Returns the error of each."""
        codes: list[ErrorCode] = []
        for member_id, instance_id in leaving:
            found = member_id
            if not member_id and instance_id is not None:
                # An administrator removes a static member.
                found = self._static.get(instance_id, "")
            try:
                self._remove(self._classic(found, instance_id))
            except Refused as error:
                codes.append(error.code)
            else:
                codes.append(ErrorCode.none)
        return codes

    def check_commit(
        self, member_id: str, epoch: int, *, states_epoch: bool = True, transactional: bool = False
    ) -> None:
        """Whether a commit of offsets is accepted. In older versions the client has a generation and no
        epoch (`states_epoch`).
        """
        # From an admin client, from a consumer that assigns partitions itself, or from a producer that its
        # transactional id fences.
        if epoch < 0 and (not self._members or (transactional and not member_id)):
            return
        self._check_epoch(member_id, epoch, states_epoch=states_epoch, transactional=transactional)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Whether a fetch of committed offsets is answered."""
        if member_id is None and epoch < 0:
            return
        self._check_epoch(member_id or "", epoch)

    def touch(self, member_id: str, now_s: float) -> None:
        """Extend the session of a member whose heartbeat cannot be answered now."""
        member = self._members.get(member_id)
        if member is not None and not member.has_left:
            self._extend(member, now_s)

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        for member in list(self.members):
            if min(member.deadline_s, member.rebalance_due_s) <= now_s:
                self._remove(member)
        if now_s >= self.owners_known_s:
            self._claimed.clear()
            self._given_up.clear()
        if self._members and not self.is_all_classic:
            self._assign(now_s)
        self.wake_s = min(
            (min(one.deadline_s, one.rebalance_due_s) for one in self.members),
            default=NEVER,
        )
        if self._members and self.epoch > self.target_epoch:
            self._wake(self._assign_due_s)
        if self._claimed:
            self._wake(self.owners_known_s)

    def dissolve(self, code: ErrorCode) -> None:
        """The group is coordinated elsewhere, or not at all. Nothing waits for an answer."""
        del code
        self._members.clear()
        self._static.clear()
        self._owners.clear()
        self._claimed.clear()
        self._given_up.clear()
        self._supported.clear()
        self._classic_count = 0
        self._subscriptions.clear()
        self._partitions.clear()
        self._members_size = self._partition_count = 0
        self._is_dead, self.wake_s = True, NEVER

    def enter(self, members: Iterable[ProtocolMember], generation: int, now_s: float) -> None:
        """Enter the members of a classic group, with what they own, into this empty one. All of them are to
        join again.
        """
        assert not self._members, "only a group without members becomes another one"
        for member in members:
            classic, member.classic = member.classic, None
            self._members[member.member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id
            assert self._owners.keys().isdisjoint(member.assigned), "each partition has one owner"
            self._owners.update(dict.fromkeys(member.assigned, member.member_id))
            self._subscriptions[member.subscription] += 1
            self._set_classic(member, classic)
            self._members_size += member.size
            self._extend(member, now_s)
        self._count_partitions()
        # Epochs of an earlier coordinator are not valid again, and generations of these members go on.
        self.target_epoch = max(self.target_epoch, generation)
        self._changed()

    # --- Joining and leaving

    def _move(self, member: ProtocolMember, beat: Beat, now_s: float) -> None:
        """Keep what a member states, and move it towards its target."""
        self._update(member, beat)
        self._extend(member, now_s)
        self._check_topics(now_s)
        self._assign(now_s)
        if member.epoch == 0 and self.epoch > self.target_epoch:
            # The assignment is not due yet. Until then the targets get a new epoch, because the member may
            # have had the present one before.
            self.target_epoch, self.epoch = self.epoch, self.epoch + 1
        self._reconcile(member, beat, now_s)

    def _check_supported(self, protocols: Protocols) -> None:
        """Members of the classic protocol need an assignor in common for the time after a migration back."""
        if self._classic_count and all(self._supported[name] < self._classic_count for name, _ in protocols):
            raise Refused(ErrorCode.inconsistent_group_protocol)

    def _rejoining(self, beat: Beat) -> ProtocolMember:
        """The member of a JoinGroup with an id."""
        if beat.member_id in self._members or beat.instance_id is not None:
            return self._classic(beat.member_id, beat.instance_id)
        if beat.owned:
            # It was removed. With an epoch again, it could commit old offsets of what others have got since.
            raise Refused(ErrorCode.unknown_member_id)
        # An id that was given out.
        return self._add(beat)

    def _join(self, beat: Beat) -> ProtocolMember:
        member = self._members.get(beat.member_id)
        static_id = None if beat.instance_id is None else self._static.get(beat.instance_id)
        if static_id is not None and static_id != beat.member_id:
            return self._replace(self._members[static_id], beat)
        if member is None:
            member = self._add(beat)
            claimed = self._claimed.pop(member.member_id, NO_PARTITIONS)
            self._given_up |= claimed
            # It gets them back, unless that would be unfair.
            member.target = claimed
            for one in self.members:
                if one is not member:
                    one.target -= claimed
        else:
            # It has abandoned its partitions. With another epoch, a process with a copy of the id is fenced.
            self._release(member, member.assigned | member.revoking)
            member.epoch = member.previous_epoch = 0
            member.has_left = False
            self._changed()
        return member

    def _known(self, beat: Beat, now_s: float) -> ProtocolMember:
        """The member of a heartbeat that is neither the first nor the last one."""
        if beat.instance_id is not None:
            static_id = self._static.get(beat.instance_id)
            if static_id is not None and static_id != beat.member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        member = self._members.get(beat.member_id)
        if member is None:
            raise self._unknown(beat, now_s)
        if member.classic is not None:
            raise Refused(ErrorCode.unknown_member_id)
        if beat.epoch == member.epoch and not member.has_left:
            return member
        is_repeated = beat.epoch == member.previous_epoch and beat.owned is not None
        if member.has_left or not (is_repeated and (beat.owned or NO_PARTITIONS) <= member.assigned):
            raise Refused(ErrorCode.fenced_member_epoch, "the member must give up all partitions and rejoin")
        return member

    def _unknown(self, beat: Beat, now_s: float) -> Refused:
        """The error for a member that is not known here: it gives up its partitions and joins."""
        if now_s < self.owners_known_s:
            if not beat.subscribes:
                # A client that has to find its coordinator again repeats everything.
                return Refused(ErrorCode.not_coordinator)
            if beat.owned and len(self._claimed) < self.members_max:
                self._claim(beat.member_id, beat.owned)
        return Refused(ErrorCode.unknown_member_id)

    def _claim(self, member_id: str, owned: frozenset[TopicPartition]) -> None:
        """Keep what an unknown member says to own until it joins. The first one to say so counts."""
        self._claimed.pop(member_id, None)
        taken = self._given_up.union(*self._claimed.values())
        self._claimed[member_id] = owned - taken - self._owners.keys()
        self._wake(self.owners_known_s)

    def _check_room(self) -> None:
        if len(self._members) >= self.members_max:
            raise Refused(ErrorCode.group_max_size_reached, f"the group has {self.members_max} members")

    def _add(self, beat: Beat) -> ProtocolMember:
        self._check_room()
        member = ProtocolMember(beat.member_id or self.new_id(), beat.instance_id)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._subscriptions[member.subscription] += 1
        self._members_size += member.size
        self._changed()
        return member

    def _replace(self, member: ProtocolMember, beat: Beat) -> ProtocolMember:
        """A static member returns in another process, and takes over the partitions of the one before."""
        assert member.instance_id is not None, "only static members are replaced"
        # In the classic protocol they do not leave before that.
        if not member.has_left and member.classic is None and beat.classic is None:
            raise Refused(ErrorCode.unreleased_instance_id, "another member has this instance id")
        del self._members[member.member_id]
        self._members_size -= member.size
        member.member_id = beat.member_id or self.new_id()
        self._members_size += member.size
        member.epoch = member.previous_epoch = 0
        member.has_left = False
        self._members[member.member_id] = member
        self._static[member.instance_id] = member.member_id
        self._release(member, member.revoking)
        self._owners.update(dict.fromkeys(member.assigned, member.member_id))
        member.unconfirmed = member.assigned
        return member

    def _leave(self, beat: Beat) -> Beaten:
        member = self._members.get(beat.member_id)
        if beat.instance_id is not None:
            static_id = self._static.get(beat.instance_id)
            if static_id is not None and static_id != beat.member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        if member is None or member.classic is not None:
            raise Refused(ErrorCode.unknown_member_id)
        if beat.epoch == LEAVE_STATIC and member.instance_id is not None:
            # Its session goes on, so that it must return before that ends.
            member.has_left = True
            self._release(member, member.revoking)
        else:
            self._remove(member)
        return Beaten(member_id=beat.member_id, epoch=beat.epoch)

    def _remove(self, member: ProtocolMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._release(member, member.assigned | member.revoking)
        self._members_size -= member.size
        self._set_classic(member, None)
        self._count(member.subscription, -1)
        self._changed()
        if self._members:
            # Others get its partitions in their next heartbeats.
            self._wake(self._assign_due_s)
        else:
            self._partitions, self._partition_count = {}, 0
            # Nothing to assign: a group that becomes empty is not one that waits for an assignment.
            self.target_epoch = self.epoch

    def _update(self, member: ProtocolMember, beat: Beat) -> None:
        """What a member states of itself."""
        self._members_size -= member.size
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_s is not None:
            member.rebalance_timeout_s = beat.rebalance_timeout_s
        self._set_classic(member, beat.classic)
        assignor = member.assignor if beat.assignor is None else beat.assignor
        if beat.classic is not None:
            # It names client-side ones only.
            assignor = None
        if assignor != member.assignor:
            member.assignor = assignor
            self._changed()
        names, regex = member.subscription.names, member.subscription.regex
        if beat.names is not None:
            names = beat.names
        if beat.regex is not None:
            regex = beat.regex if beat.regex.pattern else None
        if (names, regex) != (member.subscription.names, member.subscription.regex):
            subscription = Subscription(names, regex)
            self._count(member.subscription, -1)
            self._count(subscription, 1)
            member.subscription = subscription
            self._changed()
        self._members_size += member.size

    # --- Assignment

    def _check_topics(self, now_s: float) -> None:
        """Notice topics and partitions that were added or removed."""
        if now_s >= self._topics_due_s and self.epoch == self.target_epoch:
            self._topics_due_s = now_s + max(TOPICS_CHECK_S, self._names_s())
            if self._existing(self._subscriptions) != self._partitions:
                self._changed()

    def _names_s(self) -> float:
        """Interval at which the names of all subscriptions may be looked up."""
        return sum(len(one.names) for one in self._subscriptions) / NAMES_PER_S

    def _names(self, subscription: Subscription) -> Iterable[str]:
        if subscription.regex is None:
            return subscription.names
        return subscription.names | self.matching(subscription.regex)

    def _existing(self, subscriptions: Iterable[Subscription]) -> dict[TopicId, int]:
        """Partitions of the topics of subscriptions, in the order of their ids."""
        topics = self.topics()
        names = set().union(*map(self._names, subscriptions))
        found = [topics[name] for name in names if name in topics]
        return {one.topic_id: one.partitions for one in sorted(found, key=lambda one: one.topic_id)}

    def _count_partitions(self) -> None:
        self._partitions = self._existing(self._subscriptions)
        self._partition_count = sum(self._partitions.values())

    def _assign(self, now_s: float) -> None:
        """Compute the targets of the members, if they are out of date."""
        if self.epoch == self.target_epoch:
            return
        if now_s < self._assign_due_s:
            self._wake(self._assign_due_s)
            return
        topics = self.topics()
        self._count_partitions()
        topic_ids = {
            one: frozenset(topics[name].topic_id for name in self._names(one) if name in topics)
            for one in self._subscriptions
        }
        # An owner keeps its partitions. Those that it gives up stay with the member that waits for them.
        kept = {one for member in self.members for one in member.assigned}
        subscribers = [
            Subscriber(
                one.member_id,
                one.instance_id,
                topic_ids[one.subscription],
                one.assigned | (one.target - kept),
            )
            for one in self.members
        ]
        self.assignor = self._preferred()
        targets = ASSIGNORS[self.assignor](subscribers, self._partitions)
        for one in self.members:
            one.target = targets[one.member_id]
        self.target_epoch = self.epoch
        self.assignments += 1
        cost = self._partition_count + sum(len(one.topics) for one in subscribers)
        rest_s = cost / ASSIGNED_PER_S + self._names_s()
        self._assign_due_s = now_s if rest_s <= ASSIGNED_AT_ONCE / ASSIGNED_PER_S else now_s + rest_s

    def _preferred(self) -> str:
        """The assignor that most members name."""
        votes = Counter(one.assignor for one in self.members if one.assignor is not None)
        return votes.most_common(1)[0][0] if votes else next(iter(ASSIGNORS))

    # --- Reconciliation

    def _reported(self, member: ProtocolMember, beat: Beat) -> None:
        """Release what a member has given up by its report.

        A partition that was given to it and never reported may still be on its way, or wait for a callback of
        the client. Then a full heartbeat does not have it, and that is no proof: clients send one after any
        error. The next heartbeat that is not full proves that the client has received the answer.
        """
        given_up = member.denied if not beat.is_full else NO_PARTITIONS
        if beat.owned is not None:
            member.unconfirmed -= beat.owned
            given_up = (given_up | member.revoking) - beat.owned
            member.denied -= beat.owned
            if beat.is_repeated:
                member.denied |= given_up & member.unconfirmed
                given_up -= member.unconfirmed
        self._release(member, given_up)

    def _reconcile(self, member: ProtocolMember, beat: Beat, now_s: float) -> None:
        """Move a member towards its target."""
        self._reported(member, beat)
        if member.revoking:
            return
        if member.epoch == self.target_epoch and not member.is_waiting:
            return
        dropped = member.assigned - member.target
        # Without `owned`, nothing has changed for the member since its last report.
        given_up = NO_PARTITIONS if beat.owned is None else dropped - beat.owned
        if beat.is_repeated:
            given_up -= member.unconfirmed
        if not dropped <= given_up:
            member.assigned -= dropped
            member.revoking = dropped
            member.rebalance_due_s = now_s + member.rebalance_timeout_s
            self._wake(member.rebalance_due_s)
            self._reported(member, beat)
            return
        self._release(member, dropped)
        missing = member.target - member.assigned
        free = frozenset(one for one in missing if self._is_free(one, now_s))
        self._own(member, free)
        member.unconfirmed |= free
        member.is_waiting = len(free) < len(missing)
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch

    def _is_free(self, partition: TopicPartition, now_s: float) -> bool:
        is_known = now_s >= self.owners_known_s or partition in self._given_up
        return is_known and partition not in self._owners

    def _own(self, member: ProtocolMember, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            member.assigned = member.assigned.union(partitions)
            self._owners.update(dict.fromkeys(partitions, member.member_id))

    def _release(self, member: ProtocolMember, partitions: Collection[TopicPartition]) -> None:
        """A member has given up partitions."""
        for one in partitions:
            del self._owners[one]
        member.assigned = member.assigned.difference(partitions)
        member.revoking = member.revoking.difference(partitions)
        member.unconfirmed = member.unconfirmed.difference(partitions)
        member.denied = member.denied.difference(partitions)
        if not member.revoking:
            member.rebalance_due_s = NEVER

    # --- Members

    def _changed(self) -> None:
        """The group needs a new assignment. Changes until then share it."""
        self.epoch = max(self.epoch, self.target_epoch + 1)

    def _check_epoch(
        self, member_id: str, epoch: int, *, states_epoch: bool = True, transactional: bool = False
    ) -> None:
        member = self._members.get(member_id)
        if member is None:
            # Never a retriable error: clients would repeat the commit with the epoch of a later join.
            raise Refused(ErrorCode.unknown_member_id)
        if member.classic is None and not states_epoch:
            raise Refused(ErrorCode.unsupported_version)
        if epoch != member.epoch or member.has_left:
            # As in Kafka, a transactional producer gets the error of the classic protocol.
            is_classic = transactional or member.classic is not None
            raise Refused(ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch)

    def _classic(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ProtocolMember:
        """The member of the classic protocol that sends a request."""
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            raise Refused(ErrorCode.fenced_instance_id)
        member = self._members.get(member_id)
        is_known = member is not None and (instance_id is None or instance_id == member.instance_id)
        if member is None or not is_known or member.classic is None:
            raise Refused(ErrorCode.unknown_member_id)
        if generation is not None and generation != member.epoch:
            raise Refused(ErrorCode.illegal_generation)
        return member

    def _must_join(self, member: ProtocolMember, now_s: float) -> bool:
        """Whether a member of the classic protocol has something to give up, or to get."""
        if member.epoch != self.target_epoch:
            return True
        return member.is_waiting and any(self._is_free(one, now_s) for one in member.target - member.assigned)

    def _set_classic(self, member: ProtocolMember, classic: ClassicPart | None) -> None:
        for part, change in ((member.classic, -1), (classic, 1)):
            if part is not None:
                self._classic_count += change
                for name, _ in part.protocols:
                    self._supported[name] += change
                    # Names come from clients, so those of the past must not stay.
                    if not self._supported[name]:
                        del self._supported[name]
        member.classic = classic

    def _count(self, subscription: Subscription, change: int) -> None:
        self._subscriptions[subscription] += change
        if not self._subscriptions[subscription]:
            del self._subscriptions[subscription]

    def _extend(self, member: ProtocolMember, now_s: float) -> None:
        classic = member.classic
        member.deadline_s = now_s + (self.session_timeout_s if classic is None else classic.session_timeout_s)
        self._wake(member.deadline_s)

    def _wake(self, due_s: float) -> None:
        self.wake_s = min(self.wake_s, due_s)
