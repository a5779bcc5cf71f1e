"""One group of the classic protocol: its members, its generations and its rebalances.

The transitions and errors are those of Kafka's group coordinator. Time is passed in and nothing waits here,
so a group is a pure function of its events. A reply is called once: within the event that brought it, or
within a later one.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.embedded_protocol import subscribed_topics

CONSUMER: Final = "consumer"
"""Protocol type of consumers, whose metadata names the topics."""
NEW_MEMBER_JOIN_S: Final = 300.0
"""Time that a new member may wait in its first JoinGroup, as in Kafka. It cannot send heartbeats yet."""
NEVER: Final = float("inf")
MEMBER_BYTES: Final = 700
"""Memory of a member without its texts and its metadata, rounded up from a measurement (640 bytes); as much
for an id that is given out."""
PROTOCOL_BYTES: Final = 200
"""Memory of an assignor of a member without its name and its metadata, rounded up from a measurement."""

CHARACTER_BYTES: Final = 4
"""Most memory of a character. One rare character makes Python store all of a text so."""

Protocols = tuple[tuple[str, bytes], ...]
"""Names of assignors in the order of preference, each once, with the member's metadata."""


class State(enum.Enum):
    """State of a group, by Kafka's name."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members join."""
    COMPLETING = "CompletingRebalance"
    """Members wait for the leader's assignment."""
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    """Only of the consumer protocol: the group has changed and has no new assignment yet."""
    RECONCILING = "Reconciling"
    """Only of the consumer protocol: members have not reached their assignment."""
    DEAD = "Dead"
    """The group is no longer coordinated here."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds of every group."""

    members_max: int
    initial_delay_s: float
    """Time that a group without members waits for more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request."""

    member_id: str = ""
    """Empty for a new member."""
    instance_id: str | None = None
    """Of a static member; None for a dynamic one."""
    client_id: str = ""
    client_host: str = ""
    principal: str = ""
    """Who sends it. A daemon that assigns gives it no topics that it may not see."""
    protocol_type: str = CONSUMER
    protocols: Protocols
    session_timeout_s: float
    rebalance_timeout_s: float
    needs_member_id: bool = True
    """Whether a new member must join a second time, with the id from the first answer (version 4)."""
    may_skip_assignment: bool = True
    """Whether a leader understands that it must not assign (version 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a `Join`."""

    code: ErrorCode = ErrorCode.none
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """None in versions that lack it."""
    protocol: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()
    """Member ids and what they are assigned; from the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a `Sync`."""

    code: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


ReplyJoin = Callable[[Joined], None]
ReplySync = Callable[[Synced], None]


@dataclass(slots=True)
class Member:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_timeout_s: float
    rebalance_timeout_s: float
    principal: str = ""
    assignment: bytes = b""
    deadline_s: float = NEVER
    """When the member is removed, unless it sends a request earlier."""
    is_new: bool = False
    """Its first JoinGroup is not answered yet."""
    syncing: ReplySync | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for an assignor."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host, self.principal)
        return protocols_memory(self.protocols) + sum(map(text_memory, texts)) + len(self.assignment)


@dataclass(slots=True)
class Group:
    """Members of one group. See the module."""

    limits: GroupLimits
    new_id: Callable[[], str]
    """Makes the unique part of a member id."""
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    """None before the first member; kept when the last one leaves."""
    protocol: str | None = None
    leader: str | None = None
    wake_s: float = NEVER
    """When `tick` is due. It may be earlier than needed, and never later."""
    size: int = 0
    """Estimated bytes of memory of the members."""
    _members: dict[str, Member] = field(default_factory=dict)
    _static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    _pending: dict[str, float] = field(default_factory=dict)
    """Ids that were given out and not used yet, each with the end of its validity."""
    _joining: dict[str, ReplyJoin] = field(default_factory=dict)
    """By member id, what answers a JoinGroup that waits."""
    _supported: Counter[str] = field(default_factory=Counter)
    """For each assignor, the number of members that support it."""
    _unsynced: set[str] = field(default_factory=set)
    """Members without SyncGroup in this generation."""
    _join_due_s: float = NEVER
    """When the rebalance goes on without the members that have not joined."""
    _sync_due_s: float = NEVER
    """When the members without SyncGroup are removed."""
    _is_initial: bool = False
    """The rebalance began without members, so it waits for more of them."""
    _delay_s: float = 0.0
    _delay_left_s: float = 0.0
    _grew: bool = False
    """A member was added since the last delay began."""

    @property
    def members(self) -> Collection[Member]:
        """The members in the order in which they joined first."""
        return self._members.values()

    @property
    def is_idle(self) -> bool:
        """No member, and none that was asked to join again."""
        return not self._members and not self._pending

    @property
    def assigned_bytes(self) -> int:
        """Bytes of all assignments."""
        return sum(len(one.assignment) for one in self.members)

    def joined_bytes(self, member_id: str) -> int:
        """Bytes that a member with its assignors takes; 0 if there is none of this id."""
        member = self._members.get(member_id)
        return 0 if member is None else protocols_memory(member.protocols)

    # --- Events

    def join(self, join: Join, reply: ReplyJoin, now_s: float) -> None:
        """A member joins, or joins again."""
        if not self._has_room(join.member_id):
            self._remove(join.member_id)
            reply(Joined(code=ErrorCode.group_max_size_reached))
        elif not self._supports(join):
            reply(Joined(code=ErrorCode.inconsistent_group_protocol, member_id=join.member_id))
        elif not join.member_id:
            self._join_new(join, reply, now_s)
        elif join.member_id in self._pending and join.instance_id is None:
            self._add(join, join.member_id, reply, now_s)
        elif (code := self._unknown(join.member_id, join.instance_id)) is not None:
            reply(Joined(code=code, member_id=join.member_id))
        else:
            self._join_again(join, self._members[join.member_id], reply, now_s)

    def sync(self, sync: Sync, reply: ReplySync, now_s: float) -> None:
        """A member asks for its assignment; the leader brings those of all."""
        code = self._unknown(sync.member_id, sync.instance_id, sync.generation)
        if code is None and _differ((sync.protocol_type, self.protocol_type), (sync.protocol, self.protocol)):
            code = ErrorCode.inconsistent_group_protocol
        if code is None and self.state is State.PREPARING:
            code = ErrorCode.rebalance_in_progress
        if code is not None:
            reply(Synced(code=code))
            return
        member = self._members[sync.member_id]
        self._unsynced.discard(sync.member_id)
        if not self._unsynced:
            self._sync_due_s = NEVER
        if self.state is State.STABLE:
            reply(self._synced(member))
            return
        if member.syncing is not None:
            # The client sent it again, so it has given up the first one.
            member.syncing(Synced(code=ErrorCode.rebalance_in_progress))
        member.syncing = reply
        if sync.member_id == self.leader:
            assignments = dict(sync.assignments)
            for one in self._members.values():
                self._assign(one, assignments.get(one.member_id, b""))
            self._answer_syncing(ErrorCode.none, now_s)
            self.state = State.STABLE

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> ErrorCode:
        """A member is alive."""
        code = self._unknown(member_id, instance_id, generation)
        if code is not None:
            return code
        self._extend(self._members[member_id], now_s)
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING else ErrorCode.none

    def leave(self, leaving: Sequence[tuple[str, str | None]], now_s: float) -> list[ErrorCode]:
        """Members leave: member id and instance id of each. A static member may be named by its instance id
        alone. Returns the error of each.
        """
        codes = [self._leave(member_id, instance_id) for member_id, instance_id in leaving]
        if ErrorCode.none in codes:
            if self.state in (State.STABLE, State.COMPLETING):
                self._prepare(now_s)
            elif not self._is_initial:
                self._complete_if_joined(now_s)
        return codes

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_s: float,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Whether a commit of offsets is accepted; a plain one counts as a heartbeat."""
        if generation < 0 and self.state is State.EMPTY:
            # From an admin client, or from a consumer that assigns partitions itself.
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            # Producers before KIP-447 state no member; the transactional id fences them.
            return ErrorCode.none if transactional else ErrorCode.unknown_member_id
        code = self._unknown(member_id, instance_id, generation)
        if code is not None:
            return code
        if transactional:
            return ErrorCode.none
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._extend(self._members[member_id], now_s)
        return ErrorCode.none

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if self._join_due_s <= now_s:
            self._end_of_delay(now_s)
        if self._sync_due_s <= now_s:
            self._remove_unsynced(now_s)
        for member in [one for one in self._members.values() if one.deadline_s <= now_s]:
            # The end of another member may have extended or ended this one.
            if member.deadline_s <= now_s and self._members.get(member.member_id) is member:
                self._expire(member, now_s)
        for member_id in [one for one, due_s in self._pending.items() if due_s <= now_s]:
            self._remove(member_id)
            self._complete_if_joined(now_s)
        self.wake_s = min(
            self._join_due_s,
            self._sync_due_s,
            *(one.deadline_s for one in self._members.values()),
            *self._pending.values(),
        )

    def dissolve(self, code: ErrorCode) -> None:
        """The group is coordinated elsewhere, or not at all: answer everything that waits with an error."""
        for member in list(self._members.values()):
            self._answer_waiting(member, code, member.member_id)
        self._members.clear()
        self._static.clear()
        self._pending.clear()
        self._supported.clear()
        self.state, self.leader, self.size, self.wake_s = State.DEAD, None, 0, NEVER

    def hand_over(self) -> list[tuple[Join, ReplyJoin]]:
        """Give up the JoinGroups of members that wait: another group answers them. Those that wait in their
        first one own nothing, and join from the beginning.
        """
        for member in [one for one in self._members.values() if one.is_new]:
            self._answer_waiting(member, ErrorCode.unknown_member_id, "")
        waiting = [(self._members[member_id], reply) for member_id, reply in self._joining.items()]
        self._joining.clear()
        return [
            (
                Join(
                    member_id=one.member_id,
                    instance_id=one.instance_id,
                    client_id=one.client_id,
                    client_host=one.client_host,
                    principal=one.principal,
                    protocol_type=self.protocol_type or "",
                    protocols=one.protocols,
                    session_timeout_s=one.session_timeout_s,
                    rebalance_timeout_s=one.rebalance_timeout_s,
                ),
                reply,
            )
            for one, reply in waiting
        ]

    def take_over(self, members: Iterable[Member], generation: int, now_s: float) -> None:
        """Enter the consumers of another group into this empty one, and ask them to join again."""
        assert not self._members, "only a group without members takes over those of another one"
        self.protocol_type, self.generation = CONSUMER, generation
        for member in members:
            self._members[member.member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id
            self._count(member.protocols, 1)
            self.size += member.size
            self._extend(member, now_s)
        self.leader = next(iter(self._members))
        self.state, self.protocol = State.STABLE, self._select_protocol()
        self._prepare(now_s)

    def is_subscribed(self, topic: str) -> bool:
        """Whether members of the group consume a topic; true for consumers whose topics cannot be read."""
        if self.protocol_type != CONSUMER or not self._members:
            return False
        try:
            return any(topic in subscribed_topics(one.metadata(self.protocol)) for one in self.members)
        except ValueError:
            return True

    # --- Joining

    def _join_new(self, join: Join, reply: ReplyJoin, now_s: float) -> None:
        member_id = f"{join.client_id if join.instance_id is None else join.instance_id}-{self.new_id()}"
        if join.instance_id is not None:
            old_id = self._static.get(join.instance_id)
            if old_id is None:
                self._add(join, member_id, reply, now_s)
            else:
                self._replace(join, self._members[old_id], member_id, reply, now_s)
        elif not join.needs_member_id:
            self._add(join, member_id, reply, now_s)
        elif len(self._pending) >= self.limits.members_max:
            # Kafka has no such bound; each of these ids takes memory.
            reply(Joined(code=ErrorCode.group_max_size_reached))
        else:
            self._pending[member_id] = now_s + join.session_timeout_s
            self.size += MEMBER_BYTES
            self._wake(now_s + join.session_timeout_s)
            reply(Joined(code=ErrorCode.member_id_required, member_id=member_id))

    def _add(self, join: Join, member_id: str, reply: ReplyJoin, now_s: float) -> None:
        member = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.protocols,
            join.session_timeout_s,
            join.rebalance_timeout_s,
            join.principal,
            is_new=True,
        )
        if not self._members:
            self.protocol_type = join.protocol_type
            self.leader = member_id
        self._used(member_id)
        self._members[member_id] = member
        self._joining[member_id] = reply
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        self._count(member.protocols, 1)
        self.size += member.size
        self._grew = True
        self._set_deadline(member, now_s + NEW_MEMBER_JOIN_S)
        self._prepare_or_complete(now_s)

    def _join_again(self, join: Join, member: Member, reply: ReplyJoin, now_s: float) -> None:
        changed = join.protocols != member.protocols
        leads = member.member_id == self.leader
        # A leader that joins again has a reason that its metadata may not show, for example new partitions.
        if self.state is State.PREPARING or changed or (leads and self.state is State.STABLE):
            self._update(join, member, reply)
            self._prepare_or_complete(now_s)
        else:
            # The answer to its first JoinGroup may be lost.
            reply(self._joined(member))

    def _replace(self, join: Join, member: Member, new_id: str, reply: ReplyJoin, now_s: float) -> None:
        """A static member was started again: give it a new id, and fence the process with the old one."""
        assert join.instance_id is not None, "only static members are replaced"
        old_id, old_leader = member.member_id, self.leader
        self._answer_waiting(member, ErrorCode.fenced_instance_id, old_id)
        del self._members[old_id]
        self.size += text_memory(new_id) - text_memory(old_id)
        member.member_id = new_id
        member.is_new = False
        self._members[new_id] = member
        self._static[join.instance_id] = new_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        if old_leader == old_id:
            self.leader = new_id
        self._update(join, member, reply)
        self._extend(member, now_s)
        if self.state is State.STABLE and self._select_protocol() == self.protocol:
            # It takes over the assignment, without a rebalance.
            del self._joining[new_id]
            if join.may_skip_assignment:
                reply(self._joined(member, skip_assignment=self.leader == new_id))
            else:
                # The old leader's id: the client must not assign, and has no other way to learn that.
                reply(replace(self._joined(member), leader=old_leader or "", members=()))
        else:
            # While the leader assigns, it may assign to the old id.
            self._prepare_or_complete(now_s)

    def _update(self, join: Join, member: Member, reply: ReplyJoin) -> None:
        earlier = self._joining.get(member.member_id)
        if earlier is not None:
            # The client sent it again, so it has given up the first one.
            earlier(Joined(code=ErrorCode.rebalance_in_progress, member_id=member.member_id))
        self.size -= member.size
        self._count(member.protocols, -1)
        member.principal = join.principal
        member.protocols = join.protocols
        member.session_timeout_s = join.session_timeout_s
        member.rebalance_timeout_s = join.rebalance_timeout_s
        self._joining[member.member_id] = reply
        self._count(member.protocols, 1)
        self.size += member.size

    # --- Rebalances

    def _prepare_or_complete(self, now_s: float) -> None:
        if self.state is State.PREPARING:
            if not self._is_initial:
                self._complete_if_joined(now_s)
        else:
            self._prepare(now_s)

    def _prepare(self, now_s: float) -> None:
        """Begin a rebalance."""
        if self.state is State.COMPLETING:
            for member in self._members.values():
                self._assign(member, b"")
            self._answer_syncing(ErrorCode.rebalance_in_progress, now_s)
        self._unsynced.clear()
        self._sync_due_s = NEVER
        self._is_initial = self.state is State.EMPTY
        self.state = State.PREPARING
        if self._is_initial:
            self._grew = False
            self._delay_s = self.limits.initial_delay_s
            self._delay_left_s = max(self._rebalance_timeout_s() - self._delay_s, 0.0)
            self._join_due_s = now_s + self._delay_s
            self._wake(self._join_due_s)
        elif self._all_joined():
            self._complete(now_s)
        else:
            self._join_due_s = now_s + self._rebalance_timeout_s()
            self._wake(self._join_due_s)

    def _end_of_delay(self, now_s: float) -> None:
        if self._is_initial and self._grew and self._delay_left_s > 0:
            # Members still arrive: one rebalance for all of them, within the rebalance timeout.
            self._grew = False
            before_s, self._delay_s = self._delay_s, min(self.limits.initial_delay_s, self._delay_left_s)
            self._delay_left_s = max(self._delay_left_s - before_s, 0.0)
            self._join_due_s = now_s + self._delay_s
            self._wake(self._join_due_s)
        else:
            self._complete(now_s)

    def _complete_if_joined(self, now_s: float) -> None:
        if self.state is State.PREPARING and self._all_joined():
            self._complete(now_s)

    def _complete(self, now_s: float) -> None:
        """End the joining: without the dynamic members that have not joined."""
        self._join_due_s = NEVER
        for member in list(self._members.values()):
            if member.member_id not in self._joining and member.instance_id is None:
                self._remove(member.member_id)
        if self._members and not self._elect():
            # Only static members, none of which joined; their sessions end them.
            self._join_due_s = now_s + self._rebalance_timeout_s()
            self._wake(self._join_due_s)
            return
        self.generation += 1
        self._is_initial = False
        self._unsynced.clear()
        if not self._members:
            self.state, self.protocol = State.EMPTY, None
            return
        self.state, self.protocol = State.COMPLETING, self._select_protocol()
        for member in self._members.values():
            reply = self._joining.pop(member.member_id, None)
            if reply is not None:
                reply(self._joined(member))
            member.is_new = False
            self._extend(member, now_s)
            self._unsynced.add(member.member_id)
        self._sync_due_s = now_s + self._rebalance_timeout_s()
        self._wake(self._sync_due_s)

    def _elect(self) -> bool:
        """Make a member the leader that has joined; false if none has."""
        assert self.leader is not None, "a group with members has a leader"
        if self.leader not in self._joining:
            self.leader = next((one for one in self._members if one in self._joining), self.leader)
        return self.leader in self._joining

    def _select_protocol(self) -> str:
        """The assignor that most members prefer among those that all support."""
        votes = Counter(
            next(name for name, _ in member.protocols if self._supported[name] == len(self._members))
            for member in self.members
        )
        return votes.most_common(1)[0][0]

    def _remove_unsynced(self, now_s: float) -> None:
        self._sync_due_s = NEVER
        for member_id in list(self._unsynced):
            self._remove(member_id)
        self._prepare(now_s)

    # --- Members

    def _expire(self, member: Member, now_s: float) -> None:
        if not member.is_new and (member.member_id in self._joining or member.syncing is not None):
            # It waits for an answer, so it cannot send heartbeats. The answer begins a new session.
            member.deadline_s = NEVER
            return
        self._remove(member.member_id)
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare(now_s)
        else:
            self._complete_if_joined(now_s)

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id:
            # An administrator removes a static member.
            found = None if instance_id is None else self._static.get(instance_id)
            if found is None:
                return ErrorCode.unknown_member_id
            member_id = found
        elif member_id not in self._pending:
            code = self._unknown(member_id, instance_id)
            if code is not None:
                return code
        self._remove(member_id)
        return ErrorCode.none

    def _used(self, member_id: str) -> None:
        """An id that was given out is used, or no longer valid."""
        if self._pending.pop(member_id, None) is not None:
            self.size -= MEMBER_BYTES

    def _remove(self, member_id: str) -> None:
        self._used(member_id)
        self._unsynced.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is None:
            return
        # A client that still waits joins again with this error.
        self._answer_waiting(member, ErrorCode.unknown_member_id, "")
        self.size -= member.size
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if member_id == self.leader:
            self.leader = next(iter(self._members), None)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name, _ in protocols:
            self._supported[name] += change
            # Names come from clients, so those of the past must not stay.
            if not self._supported[name]:
                del self._supported[name]

    def _extend(self, member: Member, now_s: float) -> None:
        """Begin the session of a member again."""
        self._set_deadline(member, now_s + member.session_timeout_s)

    def _set_deadline(self, member: Member, deadline_s: float) -> None:
        member.deadline_s = deadline_s
        self._wake(deadline_s)

    def _wake(self, due_s: float) -> None:
        self.wake_s = min(self.wake_s, due_s)

    def _assign(self, member: Member, assignment: bytes) -> None:
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _answer_syncing(self, code: ErrorCode, now_s: float) -> None:
        for member in self._members.values():
            reply, member.syncing = member.syncing, None
            if reply is not None:
                reply(self._synced(member) if code is ErrorCode.none else Synced(code=code))
                self._extend(member, now_s)

    def _joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        """The present generation for a member."""
        assert self.leader is not None, "a group with members has a leader"
        everyone = tuple(
            JoinedMember(
                member_id=one.member_id,
                instance_id=one.instance_id,
                metadata=one.metadata(self.protocol),
            )
            for one in (self.members if member.member_id == self.leader else ())
        )
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            skip_assignment=skip_assignment,
            members=everyone,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def _answer_waiting(self, member: Member, code: ErrorCode, member_id: str) -> None:
        joining = self._joining.pop(member.member_id, None)
        if joining is not None:
            joining(Joined(code=code, member_id=member_id))
        syncing, member.syncing = member.syncing, None
        if syncing is not None:
            syncing(Synced(code=code))

    # --- Questions

    def _has_room(self, member_id: str) -> bool:
        member = self._members.get(member_id)
        match self.state:
            case State.EMPTY | State.DEAD:
                return True
            case State.PREPARING:
                # By those that joined: the last ones to join again are refused if the limit was lowered.
                return len(self._joining) < self.limits.members_max or member_id in self._joining
            case _:
                return member is not None or len(self._members) < self.limits.members_max

    def _supports(self, join: Join) -> bool:
        """Whether a member has the type and an assignor of all others."""
        if self.state is State.EMPTY:
            return bool(join.protocol_type and join.protocols)
        return join.protocol_type == self.protocol_type and any(
            self._supported[name] == len(self._members) for name, _ in join.protocols
        )

    def _unknown(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ErrorCode | None:
        """Why a request is not of a present member, or not of this generation; None if it is."""
        if instance_id is not None:
            found = self._static.get(instance_id)
            if found is not None and found != member_id:
                return ErrorCode.fenced_instance_id
            if found is None:
                return ErrorCode.unknown_member_id
        if member_id not in self._members:
            return ErrorCode.unknown_member_id
        if generation is not None and generation != self.generation:
            return ErrorCode.illegal_generation
        return None

    def _all_joined(self) -> bool:
        return not self._pending and len(self._joining) == len(self._members)

    def _rebalance_timeout_s(self) -> float:
        return max((one.rebalance_timeout_s for one in self.members), default=0.0)


def protocols_size(protocols: Protocols) -> int:
    """Bytes that they hold, without a constant for each."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def protocols_memory(protocols: Protocols) -> int:
    """Estimated bytes of memory of a member with these assignors, without its texts."""
    metadata = sum(text_memory(name) + len(metadata) for name, metadata in protocols)
    return MEMBER_BYTES + PROTOCOL_BYTES * len(protocols) + metadata


def text_memory(text: str) -> int:
    """Most bytes that the characters of a text take in memory."""
    return CHARACTER_BYTES * len(text)


def _differ(*pairs: tuple[str | None, str | None]) -> bool:
    """Whether both are stated and different, in any pair."""
    return any(left is not None and right is not None and left != right for left, right in pairs)
