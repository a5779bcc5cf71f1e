"""One group of the consumer protocol (KIP-848): its members, its epochs and its partitions.

The coordinator assigns. Each member moves towards its target by heartbeats: it gives partitions up, and gets
others once their owner gave them up. The transitions and errors are those of Kafka's coordinator, except
after a change of coordinator (`docs/protocols/groups.md`). Time is passed in and nothing waits here.

At every moment each partition has at most one owner (`_owners`). A partition has no owner once its member
said that it gave it up, left, or let its session or its rebalance timeout end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.assignors import ASSIGNORS, Subscriber
from archiver.kafka.group import CONSUMER, NEVER, State
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

LEAVE: Final = -1
"""Epoch of a heartbeat with which a member leaves."""
LEAVE_STATIC: Final = -2
"""Epoch of a heartbeat with which a static member leaves for a while; it keeps its partitions."""
TOPICS_CHECK_S: Final = 1.0
"""Interval at which new topics and new partitions are noticed by heartbeats."""
ASSIGNED_PER_S: Final = 20_000
"""Partitions, and topics of members, that are assigned in a second. Further changes of a group share the next
assignment, so that large groups do not take the processor. Measured: 80,000 in a second at the least."""
ASSIGNED_AT_ONCE: Final = 1000
"""As `ASSIGNED_PER_S`: a group of this size is assigned at each change."""
MEMBER_BYTES: Final = 1500
"""Memory of a member without its texts."""
PARTITION_BYTES: Final = 500
"""Memory of a partition that a group subscribes to, with its owner and its place in the assignments."""
TEXT_BYTES: Final = 60
"""Memory of a text without its characters."""

_NOTHING: Final[frozenset[TopicPartition]] = frozenset()
_NO_NAMES: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicRegex:
    """A subscription to all topics whose names match."""

    principal: str
    """Who subscribes: topics that it may not see never match."""
    pattern: str
    """In RE2's syntax, of the whole name."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member subscribes to."""

    names: frozenset[str] = _NO_NAMES
    regex: TopicRegex | None = None

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        texts = self.names if self.regex is None else (*self.names, self.regex.pattern, self.regex.principal)
        return sum(TEXT_BYTES + len(one) for one in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A ConsumerGroupHeartbeat request. Fields that are None have not changed."""

    member_id: str
    epoch: int
    """Of the member: 0 to join, `LEAVE` or `LEAVE_STATIC` to leave."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_s: float | None = None
    names: frozenset[str] | None = None
    regex: TopicRegex | None = None
    """With an empty pattern, none any more."""
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    """What the member has not given up."""

    @property
    def subscribes(self) -> bool:
        """Whether it has what a first heartbeat has."""
        return self.rebalance_timeout_s is not None and (self.names is not None or self.regex is not None)

    @property
    def is_full(self) -> bool:
        """Whether the member repeats everything; the answer then has its assignment."""
        return self.epoch == 0 or self.is_repeated

    @property
    def is_repeated(self) -> bool:
        """Whether it is full and not the first one: clients send that after an error."""
        return self.epoch != 0 and self.subscribes and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beaten:
    """The answer to a `Beat`."""

    member_id: str
    epoch: int
    assignment: frozenset[TopicPartition] | None = None
    """None if the member has it already."""


@dataclass(slots=True, eq=False)
class ProtocolMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_s: float = 0.0
    subscription: Subscription = field(default_factory=Subscription)
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    """Accepted too: the answer with the newer one may be lost."""
    assigned: frozenset[TopicPartition] = _NOTHING
    """What it may read."""
    revoking: frozenset[TopicPartition] = _NOTHING
    """What it must give up, and has not."""
    unconfirmed: frozenset[TopicPartition] = _NOTHING
    """Parts of both that it was given and has never reported."""
    denied: frozenset[TopicPartition] = _NOTHING
    """Parts of `revoking` that a full heartbeat did not report, although they may be on their way to it."""
    target: frozenset[TopicPartition] = _NOTHING
    """What it has when the group is stable."""
    is_waiting: bool = False
    """Parts of its target are not free yet."""
    has_left: bool = False
    """A static member that may return; it keeps its partitions until its session ends."""
    deadline_s: float = NEVER
    """When its session ends."""
    revoke_due_s: float = NEVER
    """When it is removed unless it has given up `revoking`."""

    @property
    def size(self) -> int:
        """Estimated bytes of memory, without its partitions."""
        texts = (self.member_id, self.instance_id, self.client_id, self.client_host, self.rack_id)
        return MEMBER_BYTES + sum(len(one or "") for one in texts) + self.subscription.size


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
        """What `size` grows by at most if a new member joins."""
        subscription = Subscription(beat.names or _NO_NAMES, beat.regex)
        more = sum(
            count for topic, count in self._existing((subscription,)).items() if topic not in self._partitions
        )
        return MEMBER_BYTES + subscription.size + PARTITION_BYTES * more

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

    def is_subscribed(self, topic: str) -> bool:
        """Whether members of the group consume a topic."""
        return any(
            topic in one.names or (one.regex is not None and topic in self.matching(one.regex))
            for one in self._subscriptions
        )

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
        self._update(member, beat)
        self._extend(member, now_s)
        self._check_topics(now_s)
        self._assign(now_s)
        self._reconcile(member, beat, now_s)
        is_news = beat.is_full or member.assigned != before
        return Beaten(
            member_id=member.member_id,
            epoch=member.epoch,
            assignment=member.assigned if is_news else None,
        )

    def check_commit(self, member_id: str, epoch: int, *, transactional: bool = False) -> None:
        """Whether a commit of offsets is accepted."""
        # From an admin client, from a consumer that assigns partitions itself, or from a producer that its
        # transactional id fences.
        if epoch < 0 and (not self._members or (transactional and not member_id)):
            return
        # As in Kafka, a transactional producer gets the error of the classic protocol.
        stale = ErrorCode.illegal_generation if transactional else ErrorCode.stale_member_epoch
        self._check_epoch(member_id, epoch, stale)

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
            if min(member.deadline_s, member.revoke_due_s) <= now_s:
                self._remove(member)
        if now_s >= self.owners_known_s:
            self._claimed.clear()
            self._given_up.clear()
        if self._members:
            self._assign(now_s)
        self.wake_s = min(
            (min(one.deadline_s, one.revoke_due_s) for one in self.members),
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
        self._subscriptions.clear()
        self._partitions.clear()
        self._members_size = self._partition_count = 0
        self._is_dead, self.wake_s = True, NEVER

    # --- Joining and leaving

    def _join(self, beat: Beat) -> ProtocolMember:
        member = self._members.get(beat.member_id)
        static_id = None if beat.instance_id is None else self._static.get(beat.instance_id)
        if static_id is not None and static_id != beat.member_id:
            return self._replace(self._members[static_id], beat.member_id)
        if member is None:
            member = self._add(beat)
            claimed = self._claimed.pop(member.member_id, _NOTHING)
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
        if beat.epoch == member.epoch and not member.has_left:
            return member
        is_repeated = beat.epoch == member.previous_epoch and beat.owned is not None
        if member.has_left or not (is_repeated and (beat.owned or _NOTHING) <= member.assigned):
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

    def _add(self, beat: Beat) -> ProtocolMember:
        if len(self._members) >= self.members_max:
            raise Refused(ErrorCode.group_max_size_reached, f"the group has {self.members_max} members")
        member = ProtocolMember(beat.member_id or self.new_id(), beat.instance_id)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._subscriptions[member.subscription] += 1
        self._members_size += member.size
        return member

    def _replace(self, member: ProtocolMember, new_id: str) -> ProtocolMember:
        """A static member returns in another process, and takes over the partitions of the one that left."""
        if not member.has_left:
            raise Refused(ErrorCode.unreleased_instance_id, "another member has this instance id")
        assert member.instance_id is not None, "only static members leave for a while"
        del self._members[member.member_id]
        self._members_size -= member.size
        member.member_id = new_id or self.new_id()
        self._members_size += member.size
        member.epoch = member.previous_epoch = 0
        member.has_left = False
        self._members[member.member_id] = member
        self._static[member.instance_id] = member.member_id
        self._owners.update(dict.fromkeys(member.assigned, member.member_id))
        return member

    def _leave(self, beat: Beat) -> Beaten:
        member = self._members.get(beat.member_id)
        if beat.instance_id is not None:
            static_id = self._static.get(beat.instance_id)
            if static_id is not None and static_id != beat.member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        if member is None:
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
        if beat.assignor is not None and beat.assignor != member.assignor:
            member.assignor = beat.assignor
            self._changed()
        names, regex = member.subscription.names, member.subscription.regex
        if beat.names is not None:
            names = beat.names
        if beat.regex is not None:
            regex = beat.regex if beat.regex.pattern else None
        subscription = Subscription(names, regex)
        if subscription != member.subscription:
            self._count(member.subscription, -1)
            self._count(subscription, 1)
            member.subscription = subscription
            self._changed()
        self._members_size += member.size

    # --- Assignment

    def _check_topics(self, now_s: float) -> None:
        """Notice topics and partitions that were added or removed."""
        if now_s >= self._topics_due_s and self.epoch == self.target_epoch:
            self._topics_due_s = now_s + TOPICS_CHECK_S
            if self._existing(self._subscriptions) != self._partitions:
                self._changed()

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

    def _assign(self, now_s: float) -> None:
        """Compute the targets of the members, if they are out of date."""
        if self.epoch == self.target_epoch:
            return
        if now_s < self._assign_due_s:
            self._wake(self._assign_due_s)
            return
        topics = self.topics()
        self._partitions = self._existing(self._subscriptions)
        self._partition_count = sum(self._partitions.values())
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
        self._assign_due_s = now_s if cost <= ASSIGNED_AT_ONCE else now_s + cost / ASSIGNED_PER_S

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
        given_up = member.denied if not beat.is_full else _NOTHING
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
        given_up = _NOTHING if beat.owned is None else dropped - beat.owned
        if beat.is_repeated:
            given_up -= member.unconfirmed
        if not dropped <= given_up:
            member.assigned -= dropped
            member.revoking = dropped
            member.revoke_due_s = now_s + member.rebalance_timeout_s
            self._wake(member.revoke_due_s)
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
            member.revoke_due_s = NEVER

    # --- Members

    def _changed(self) -> None:
        """The group needs a new assignment. Changes until then share it."""
        self.epoch = max(self.epoch, self.target_epoch + 1)

    def _check_epoch(
        self, member_id: str, epoch: int, stale: ErrorCode = ErrorCode.stale_member_epoch
    ) -> None:
        member = self._members.get(member_id)
        if member is None:
            # Never a retriable error: clients would repeat the commit with the epoch of a later join.
            raise Refused(ErrorCode.unknown_member_id)
        if epoch != member.epoch or member.has_left:
            raise Refused(stale)

    def _count(self, subscription: Subscription, change: int) -> None:
        self._subscriptions[subscription] += change
        if not self._subscriptions[subscription]:
            del self._subscriptions[subscription]

    def _extend(self, member: ProtocolMember, now_s: float) -> None:
        member.deadline_s = now_s + self.session_timeout_s
        self._wake(member.deadline_s)

    def _wake(self, due_s: float) -> None:
        self.wake_s = min(self.wake_s, due_s)
