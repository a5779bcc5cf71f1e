"""The consumer groups that this daemon coordinates: their members in memory, their timers, and their end.

Groups have the classic protocol or the consumer protocol (KIP-848). A member of the consumer protocol that
joins a classic group moves that to its protocol. Once the last such member is gone, it is a classic group
again. Membership is in no log: after a change of coordinator all members join again. Only the listener's loop
may call this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.consumer_members import LEAVE, LEAVE_STATIC, Beat, Beaten, TopicRegex, beat_of_join
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.group import (
    CONSUMER,
    NEVER,
    Group,
    GroupLimits,
    Join,
    Joined,
    State,
    Sync,
    Synced,
    protocols_memory,
    protocols_size,
)
from archiver.kafka.group_migration import answer_waiting, back_to_classic, enter_classic
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.protocol import CLIENT_ID_MAX
from archiver.kafka.slot_claims import SlotClaims
from archiver.kafka.topic_configs import Refused
from archiver.kafka.topic_regexes import TopicRegexes
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource, new_uuid
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from archiver.status.kafka_port import GroupCounts
from intake.log.committed_offsets import Commit, Removal
from intake.log.consumer_groups import GROUP_ID_BYTES_MAX, ConsumerGroup, ConsumerGroups, slot_of
from intake.log.state import TopicState

_log = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""Interval at which lost slots are noticed without a request."""
EXPIRY_S: Final = 600.0
"""Interval at which expired offsets are removed, as in Kafka; less for a short retention."""
REFRESHES: Final = 4
"""Times within the retention that a group with members is marked as in use, also if it commits nothing."""
TEXT_MAX: Final = 249
"""Longest `group.instance.id`, as in Kafka, and longest type of a group, in characters."""
MEMBER_ID_MAX: Final = CLIENT_ID_MAX + 1 + 36
"""Longest member id that is given out, in characters: a client id or an instance id, and a UUID."""
TOGETHER: Final = 100
"""Groups whose offsets are fetched, or checked for expiry, before other work has its turn."""
LISTED: Final = 1000
"""Groups that are listed before other work has its turn."""
CONFIRMED_S: Final = 5.0
"""Age of the last read of the log with which heartbeats of the consumer protocol are still answered. So a
coordinator that was replaced extends no session later than this."""
CLASSIC: Final = "classic"
"""Type of a group of the classic protocol."""
FIRST_EPOCHS: Final = 2**30
"""Number of first epochs of groups of the consumer protocol."""


Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Held:
    """A group in memory."""

    name: str
    group: Group | ConsumerProtocolGroup
    slot: int
    size: int = 0
    """Its part in the sum of all groups."""
    generation: int = 0
    has_members: bool = False
    """Both as of the last event."""
    armed_s: float = NEVER
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a request needs that may wait for other members."""

    ended: asyncio.Event
    """Set when the connection of the client has ended."""
    release: Callable[[], None]
    """Called when the wait begins: what is kept of the request is counted as memory of the group."""


@dataclass(frozen=True, slots=True)
class GroupShown:
    """A group as admin clients see it."""

    name: str
    group: Group | ConsumerProtocolGroup | None
    """None: no member was here since the daemon coordinates it, and it has committed offsets."""

    @property
    def state(self) -> State:
        """Kafka's name of the state is its value."""
        return State.EMPTY if self.group is None else self.group.state

    @property
    def is_of_consumer_protocol(self) -> bool:
        """Whether it has, or had last, members with `group.protocol=consumer`."""
        return isinstance(self.group, ConsumerProtocolGroup)

    @property
    def protocol_type(self) -> str:
        """Empty for a group that only commits offsets."""
        return "" if self.group is None else self.group.protocol_type or ""


class GroupCoordinator:
    """Answers the requests of members. Every method raises `Refused` if this daemon does not coordinate the
    group.
    """

    def __init__(
        self,
        settings: KafkaListenerSettings,
        claims: Callable[[Callable[[int], None]], SlotClaims],
        queue: OffsetQueue,
        groups: Callable[[], ConsumerGroups],
        topics: Callable[[], Mapping[str, TopicState]],
        regexes: TopicRegexes,
        read_on: Callable[[float], object],
        threads: Executor,
        clock: Clock,
        ids: IdSource,
        counts: GroupCounts,
    ) -> None:
        """`claims` makes the claims, given what is called for each lost slot. `groups` and `topics` are those
        of the log as far as it was read, and `regexes` are of the same topics. `read_on` reads it to its tail
        in one of the `threads`, unless a read began after a time of the clock.
        """
        self._settings = settings
        self._claims = claims(self._lost)
        self._queue = queue
        self._stored = groups
        self._topics = topics
        self._regexes = regexes
        self._read_on = read_on
        self._threads = threads
        self._clock = clock
        self._ids = ids
        self._counts = counts
        self._expiry_s = min(EXPIRY_S, settings.offsets_retention / REFRESHES)
        self._limits = GroupLimits(settings.group_members_max, settings.group_initial_rebalance_delay)
        self._held: dict[str, _Held] = {}
        self._size = 0
        self._read_s = float("-inf")
        """Time of the clock at which the last read of the log began that succeeded."""
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._log_limit = LogLimit(_log)
        self._refusals_limit = LogLimit(_log)
        self._moves_limit = LogLimit(_log)

    def watch(self) -> None:
        """Begin to notice lost slots and expired offsets, also without a request. Watching twice is no
        error.
        """
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._watch())

    @property
    def claims(self) -> SlotClaims:
        """The slots of this daemon."""
        return self._claims

    async def require(self, name: str, *, may_be_empty: bool = False) -> int:
        """The claim under which this daemon coordinates a group. Without a wait if its slot is claimed."""
        if not (name or may_be_empty) or len(name.encode()) > GROUP_ID_BYTES_MAX:
            raise Refused(ErrorCode.invalid_group_id)
        if self._stopped:
            raise Refused(ErrorCode.not_coordinator)
        return await self._claims.require(slot_of(name))

    def claim(self, name: str) -> int | None:
        """The claim under which this daemon coordinates a name; None if it does not now."""
        try:
            return self._claims.number(slot_of(name))
        except Refused:
            return None

    async def require_members(self, name: str, *, may_be_empty: bool = False) -> int:
        """As `require`, for a request that depends on whether the group has members.

        Raises `Refused` also after a change of coordinator, until members could have joined again: a group
        that is in use would seem to be empty.
        """
        number = await self.require(name, may_be_empty=may_be_empty)
        group = self._group(name)
        if (group is None or not group.members) and self._claims.may_rejoin(slot_of(name)):
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return number

    # --- Members

    async def join(self, name: str, join: Join, waiting: Waiting) -> Joined | None:
        """Answer a JoinGroup; None if the connection ended first."""
        settings = self._settings
        if protocols_size(join.protocols) > settings.group_metadata_bytes_max:
            raise Refused(ErrorCode.message_too_large)
        # Newer versions of the protocol bound no text.
        if len(join.instance_id or "") > TEXT_MAX or len(join.protocol_type) > TEXT_MAX:
            raise Refused(ErrorCode.invalid_request)
        if len(join.member_id) > MEMBER_ID_MAX:
            raise Refused(ErrorCode.unknown_member_id)
        session_s = join.session_timeout_s
        if not settings.group_session_timeout_min <= session_s <= settings.group_session_timeout_max:
            raise Refused(ErrorCode.invalid_session_timeout)
        await self.require(name)
        held = self._held.get(name)
        generation = 0
        if held is not None and isinstance(held.group, ConsumerProtocolGroup) and held.group.is_idle:
            generation = held.group.epoch
            self._drop(held, ErrorCode.unknown_member_id)
            held = None
        if held is None:
            if join.member_id:
                raise Refused(ErrorCode.unknown_member_id)
            held = self._added(name, Group(self._limits, self._new_id, generation=generation))
            held.generation = generation
        group = held.group
        if isinstance(group, ConsumerProtocolGroup):
            beat = beat_of_join(join, self._topics(), self._regexes.visible)
            self._check_memory(name, group.size_with(beat))
            with self._changing(held):
                return group.join(beat, self._now_s(), needs_member_id=join.needs_member_id)
        self._check_memory(name, protocols_memory(join.protocols) - group.joined_bytes(join.member_id))
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        group.join(join, lambda joined: _set(answer, joined), self._now_s())
        self._changed(held)
        return await _first(answer, waiting)

    async def sync(self, name: str, sync: Sync, waiting: Waiting) -> Synced | None:
        """Answer a SyncGroup; None if the connection ended first."""
        await self.require(name)
        held = self._member_of(name)
        group = held.group
        if isinstance(group, ConsumerProtocolGroup):
            with self._changing(held):
                return group.sync(sync, self._now_s())
        largest = max((len(assignment) for _, assignment in sync.assignments), default=0)
        if largest > self._settings.group_metadata_bytes_max:
            raise Refused(ErrorCode.message_too_large)
        if sync.member_id == group.leader and sync.assignments:
            # They replace the present ones.
            assigned = sum(len(assignment) for _, assignment in sync.assignments)
            self._check_memory(name, assigned - group.assigned_bytes)
        answer: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group.sync(sync, lambda synced: _set(answer, synced), self._now_s())
        self._changed(held)
        # Those of a member that does not lead are ignored, and must take no memory while it waits.
        del sync
        return await _first(answer, waiting)

    async def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Answer a Heartbeat."""
        await self.require(name)
        held = self._member_of(name)
        with self._changing(held):
            if isinstance(held.group, ConsumerProtocolGroup):
                return held.group.heartbeat_classic(member_id, instance_id, generation, self._now_s())
            return held.group.heartbeat(member_id, instance_id, generation, self._now_s())

    async def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Answer a LeaveGroup; the error of each member."""
        await self.require(name)
        held = self._held.get(name)
        if held is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        with self._changing(held):
            if isinstance(held.group, ConsumerProtocolGroup):
                return held.group.leave(leaving)
            return held.group.leave(leaving, self._now_s())

    async def beat(self, name: str, beat: Beat) -> Beaten:
        """Answer a ConsumerGroupHeartbeat."""
        await self.require(name)
        try:
            await self._confirm(name)
            if beat.regex is not None:
                await self._regexes.resolve(beat.regex)
                await self.require(name)
        except Refused:
            # The client cannot help it, so its session must not end.
            held = self._held.get(name)
            if held is not None and isinstance(held.group, ConsumerProtocolGroup):
                held.group.touch(beat.member_id, self._now_s())
            raise
        held = self._held.get(name)
        group = None if held is None else held.group
        if held is None or not isinstance(group, ConsumerProtocolGroup):
            return self._first_beat(name, held, beat)
        if beat.epoch == 0 or beat.names is not None:
            self._check_memory(name, group.size_with(beat))
        with self._changing(held):
            return group.heartbeat(beat, self._now_s())

    async def accept_commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        states_epoch: bool = True,
        transactional: bool = False,
    ) -> int:
        """The claim under which a commit of these offsets is stored; raises `Refused` if it must not be.

        `generation` is the epoch of a member of the consumer protocol, if `states_epoch`.
        """
        is_claimed = not transactional or self.claim(name) is not None
        number = await self.require(name, may_be_empty=not transactional)
        if not is_claimed:
            # As for EndTxn: the request may be from before the claim, and of an earlier transaction.
            raise Refused(ErrorCode.coordinator_load_in_progress)
        held = self._held.get(name)
        code = ErrorCode.none
        if held is None:
            if generation >= 0:
                # Its members have not joined this coordinator yet.
                code = ErrorCode.unknown_member_id
        elif isinstance(held.group, ConsumerProtocolGroup):
            held.group.check_commit(
                member_id, generation, states_epoch=states_epoch, transactional=transactional
            )
        else:
            code = held.group.check_commit(
                member_id, instance_id, generation, self._now_s(), transactional=transactional
            )
            self._changed(held)
        if code is not ErrorCode.none:
            raise Refused(code)
        return number

    def check_fetch(self, name: str, member_id: str | None, epoch: int) -> None:
        """Raise `Refused` if a member must not get the committed offsets.

        As in Kafka, members of a classic group are not checked. Some clients (franz-go) state their
        generation as the epoch.
        """
        held = self._held.get(name)
        if held is None:
            # Its members have not joined this coordinator yet; with this error they do.
            if member_id is not None and epoch >= 0:
                raise Refused(ErrorCode.unknown_member_id)
        elif isinstance(held.group, ConsumerProtocolGroup):
            held.group.check_fetch(member_id, epoch)

    # --- Administration

    def shown(self, name: str) -> GroupShown | None:
        """A group of a slot that this daemon claimed; None if there is none."""
        held, stored = self._held.get(name), self._stored()
        if held is None and not stored.pending(name) and stored.get(name) is None:
            return None
        return GroupShown(name, None if held is None else held.group)

    def may_rejoin(self, name: str) -> bool:
        """Whether members of the coordinator before may not have joined a group again yet."""
        return self._claims.may_rejoin(slot_of(name))

    def names(self) -> list[str]:
        """Groups with members, or that had some. Any thread may call it."""
        # In one step: the loop may add groups at the same time.
        return list(self._held)

    def states(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        """State and number of members of those of the groups that have or had members."""
        found = ((name, self._group(name)) for name in names)
        return {name: (one.state.value, len(one.members)) for name, one in found if one is not None}

    def _group(self, name: str) -> Group | ConsumerProtocolGroup | None:
        held = self._held.get(name)
        return None if held is None else held.group

    async def all_shown(self) -> list[GroupShown]:
        """The groups of all slots of this daemon, also of those that it has not claimed yet."""
        await self.read_on()
        own = self._claims.own_slots()
        # Of a group whose first offsets a transaction will commit, there is nothing else yet.
        pending = (one.group for one in self._stored().all_pending if slot_of(one.group) in own)
        names = dict.fromkeys((*self._held, *pending))
        found: list[GroupShown] = []
        # There may be hundreds of thousands of them.
        for place, stored in enumerate(self._stored()):
            if place % LISTED == 0:
                await asyncio.sleep(0)
            if stored.group not in names and slot_of(stored.group) in own:
                # As of now: it may have members since.
                found.append(GroupShown(stored.group, self._group(stored.group)))
        return [one for name in names if (one := self.shown(name)) is not None] + found

    async def read_on(self) -> None:
        """Read the log up to its present tail. Raises `Refused` if it cannot be read."""
        # The time of the call, not that of the thread: those that wait share one read.
        since_s = self._clock.monotonic_s()
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._read_on, since_s)
        except ArchiverError as error:
            self._log_limit.log(
                self._now_s(), logging.WARNING, "consumer groups cannot be read now: %s", error
            )
            raise Refused(ErrorCode.coordinator_load_in_progress) from error
        self._read_s = max(self._read_s, since_s)

    async def _confirm(self, name: str) -> None:
        """Make sure that this daemon coordinated a group within `CONFIRMED_S`."""
        if self._clock.monotonic_s() - self._read_s > CONFIRMED_S:
            await self.read_on()
            await self.require(name)

    def forget(self, name: str) -> None:
        """Forget a group that was deleted, unless it has members again."""
        held = self._held.get(name)
        if held is not None and not held.group.members:
            self._drop(held, ErrorCode.unknown_member_id)

    def show(self) -> None:
        """Count the groups for the metrics. Any thread may call it."""
        # A copy: the loop may add groups at the same time.
        held = list(self._held.values())
        states = Counter(one.group.state.value for one in held)
        self._counts.states = dict(states)
        self._counts.members = sum(len(one.group.members) for one in held)
        self._counts.slots = len(self._claims.held)

    # --- The end

    def stop(self) -> None:
        """Give up every group, so that its members go to another daemon."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        for held in list(self._held.values()):
            self._drop(held, ErrorCode.not_coordinator)

    def _lost(self, slot: int) -> None:
        self._counts.slots_lost += 1
        for held in [one for one in self._held.values() if one.slot == slot]:
            self._drop(held, ErrorCode.not_coordinator)

    # --- Groups in memory

    def _first_beat(self, name: str, held: _Held | None, beat: Beat) -> Beaten:
        """Answer a ConsumerGroupHeartbeat to a group that is not of this protocol yet."""
        if beat.epoch in (LEAVE, LEAVE_STATIC):
            raise Refused(ErrorCode.unknown_member_id)
        slot = slot_of(name)
        taken_over_s = self._claims.taken_over_s(slot)
        settings = self._settings
        owners_known_s = 0.0
        if taken_over_s is not None:
            owners_known_s = taken_over_s + settings.group_consumer_session_timeout + CONFIRMED_S
        in_use = held is not None and not held.group.is_idle
        if beat.epoch > 0 and (in_use or self._now_s() >= owners_known_s):
            raise Refused(ErrorCode.unknown_member_id)
        group = ConsumerProtocolGroup(
            settings.group_members_max,
            settings.group_consumer_session_timeout,
            self._new_id,
            self._topics,
            self._regexes.matching,
            owners_known_s,
            # Later than the epochs of an earlier coordinator and of an earlier group, so that none of them is
            # valid again.
            max(
                (self._claims.number(slot) or 0) % FIRST_EPOCHS,
                0 if held is None else held.group.generation,
            ),
        )
        if held is not None and in_use:
            return self._upgraded(held, group, beat)
        if held is not None:
            self._drop(held, ErrorCode.unknown_member_id)
        held = self._added(name, group)
        if beat.epoch == 0:
            self._check_memory(name, group.size_with(beat))
        with self._changing(held):
            return group.heartbeat(beat, self._now_s())

    def _upgraded(self, held: _Held, group: ConsumerProtocolGroup, beat: Beat) -> Beaten:
        """Answer the first heartbeat of a member of the consumer protocol in a classic group."""
        old, now_s = held.group, self._now_s()
        assert isinstance(old, Group), "it is not of the consumer protocol yet"
        # The classic group stays as it is until the heartbeat is accepted.
        enter_classic(group, old, self._topics(), self._regexes.visible, now_s)
        self._check_memory(held.name, group.size + group.size_with(beat) - held.size)
        beaten = group.heartbeat(beat, now_s)
        held.group, held.generation = group, 0
        with self._changing(held):
            answer_waiting(group, old, self._topics(), self._regexes.visible, now_s)
        self._log_move(held, CONSUMER)
        return beaten

    def _back_to_classic(self, held: _Held, group: ConsumerProtocolGroup) -> Group:
        """The last member of the consumer protocol has gone, and others are left."""
        new = back_to_classic(group, self._limits, self._new_id, self._now_s())
        held.group, held.generation = new, new.generation
        self._log_move(held, CLASSIC)
        return new

    def _log_move(self, held: _Held, protocol: str) -> None:
        self._moves_limit.log(
            self._now_s(),
            logging.INFO,
            "consumer group %s has moved to the %s protocol",
            excerpt(held.name),
            protocol,
        )

    def _new_id(self) -> str:
        return str(new_uuid(self._ids))

    def _added(self, name: str, group: Group | ConsumerProtocolGroup) -> _Held:
        if len(self._held) >= self._settings.groups_max:
            for one in [one for one in self._held.values() if one.group.is_idle]:
                self._drop(one, ErrorCode.unknown_member_id)
        if len(self._held) >= self._settings.groups_max:
            self._refusals_limit.log(
                self._now_s(),
                logging.WARNING,
                "consumer group %s is refused: this daemon coordinates kafka.groups_max = %d groups",
                excerpt(name),
                self._settings.groups_max,
            )
            raise Refused(ErrorCode.coordinator_not_available)
        held = self._held[name] = _Held(name, group, slot_of(name))
        return held

    def _member_of(self, name: str) -> _Held:
        held = self._held.get(name)
        if held is None:
            raise Refused(ErrorCode.unknown_member_id)
        return held

    def _check_memory(self, name: str, size: int) -> None:
        # What takes no more than before may stay, also if the limit was lowered.
        if size > 0 and self._size + size > self._settings.groups_bytes_max:
            self._refusals_limit.log(
                self._now_s(),
                logging.WARNING,
                "a member of consumer group %s is refused: the members of all groups hold %d bytes, and "
                "kafka.groups_bytes_max is %d",
                excerpt(name),
                self._size,
                self._settings.groups_bytes_max,
            )
            raise Refused(ErrorCode.coordinator_not_available)

    @contextlib.contextmanager
    def _changing(self, held: _Held) -> Iterator[None]:
        """Around an event, also one that raises `Refused`."""
        try:
            yield
        finally:
            self._changed(held)

    def _changed(self, held: _Held) -> None:
        """After an event: do what is due already, and set the timer."""
        group, now_s = held.group, self._now_s()
        if group.wake_s <= now_s:
            group.tick(now_s)
        if isinstance(group, ConsumerProtocolGroup) and group.is_all_classic:
            group = self._back_to_classic(held, group)
        self._counts.rebalances += group.generation - held.generation
        held.generation = group.generation
        became_empty = held.has_members and not group.members
        held.has_members = bool(group.members)
        self._size += group.size - held.size
        held.size = group.size
        if group.wake_s < held.armed_s:
            if held.timer is not None:
                held.timer.cancel()
            held.armed_s = group.wake_s
            held.timer = asyncio.get_running_loop().call_at(group.wake_s, self._wake, held)
        # Last: it may find that the slot is lost, and then the group is dropped.
        if became_empty:
            self._mark_in_use(held.name)

    def _wake(self, held: _Held) -> None:
        held.armed_s, held.timer = NEVER, None
        self._changed(held)

    def _drop(self, held: _Held, code: ErrorCode) -> None:
        del self._held[held.name]
        if held.timer is not None:
            held.timer.cancel()
        held.group.dissolve(code)
        self._size -= held.size

    # --- Expiry of committed offsets

    def _mark_in_use(self, name: str) -> None:
        """Let the retention of a group's offsets begin again."""
        with contextlib.suppress(Refused):
            number = self._claims.number(slot_of(name))
            if number is not None and self._stored().get(name) is not None:
                # It was only an expectation: a later pass of the expiry marks it again, or not.
                self._queue.put(Commit(name, number))

    async def _watch(self) -> None:
        """Notice lost slots, and let offsets expire."""
        loop = asyncio.get_running_loop()
        expiry_s = loop.time() + self._expiry_s
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                if any(one.has_members for one in self._held.values()):
                    # Without it, members of a daemon that was replaced would go on until they commit.
                    with contextlib.suppress(Refused):
                        await self.read_on()
                self._claims.check()
                await self._regexes.refresh(self._used_regexes())
                if loop.time() >= expiry_s:
                    # This daemon may have read nothing since, and slots without a coordinator may be its own.
                    with contextlib.suppress(Refused):
                        await self.read_on()
                    await self._expire()
                    expiry_s = loop.time() + self._expiry_s
            except Exception:  # noqa: BLE001
                # The head of the loop: groups must be watched also after a defect.
                _log.exception("unexpected error while consumer groups are watched")

    def _used_regexes(self) -> set[TopicRegex]:
        groups = [one.group for one in self._held.values()]
        return set().union(*(one.regexes for one in groups if isinstance(one, ConsumerProtocolGroup)))

    async def _expire(self) -> None:
        for held in [one for one in self._held.values() if one.group.is_idle]:
            if self._stored().get(held.name) is None:
                self._drop(held, ErrorCode.unknown_member_id)
        own = self._claims.own_slots()
        stored = [one for one in self._stored() if slot_of(one.group) in own]
        for first in range(0, len(stored), TOGETHER):
            await asyncio.gather(*map(self._expire_group, stored[first : first + TOGETHER]))

    async def _expire_group(self, stored: ConsumerGroup) -> None:
        """Remove the old offsets of a group without members; mark one with members as in use."""
        settings, now_us = self._settings, self._clock.now_us()
        held = self._held.get(stored.group)
        in_use = held is not None and held.has_members
        # The stored time of an unchanged offset may be too old by the second term.
        kept_s = settings.offsets_retention + settings.offsets_refresh
        before_us = now_us - round((settings.offsets_retention / REFRESHES if in_use else kept_s) * 1e6)
        oldest_us = min(min(topic.times_us) for topic in stored.topics.values())
        if max(stored.active_us, oldest_us) >= before_us:
            return
        with contextlib.suppress(Refused):
            number = await self.require(stored.group, may_be_empty=True)
            claim = self._stored().claim(slot_of(stored.group))
            if in_use:
                await self._queue.put(Commit(stored.group, number))
            # Members of the coordinator before may not have joined again.
            elif claim is not None and claim.time_us < now_us - round(self._expiry_s * 1e6):
                await self._queue.put(Removal(stored.group, number, committed_before_us=before_us))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _set(future: asyncio.Future[Answer], answer: Answer) -> None:
    # The client may be gone.
    if not future.done():
        future.set_result(answer)


async def _first(answer: asyncio.Future[Answer], waiting: Waiting) -> Answer | None:
    """The answer; None if the connection ends first."""
    if not answer.done():
        waiting.release()
        ended = asyncio.create_task(waiting.ended.wait())
        try:
            await asyncio.wait((answer, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
    return answer.result() if answer.done() else None
