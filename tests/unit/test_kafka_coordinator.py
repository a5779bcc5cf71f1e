"""Coordinators of consumer groups on one log: claims, commits, taking over, and expiry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.config.groups import LogSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka import coordinator as coordinator_module
from archiver.kafka import slot_claims
from archiver.kafka.acl import Authorizer
from archiver.kafka.coordinator import GroupCoordinator, Waiting
from archiver.kafka.group import Join, Joined, Sync
from archiver.kafka.group_offsets import OffsetRequests
from archiver.kafka.groups import GroupRequests
from archiver.kafka.listener import Session
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.slot_claims import SlotClaims
from archiver.kafka.topic_configs import Refused
from archiver.kafka.topic_regexes import TopicRegexes
from archiver.log.brokers import Broker
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from archiver.runtime.logging import LINES_MAX
from archiver.status.kafka_port import GroupCounts
from intake.log.committed_offsets import Commit, CommittedOffsets, HoldOutcome, OffsetBounds, TopicCommit
from intake.log.consumer_groups import GROUP_SLOTS, ConsumerGroups, slot_of
from intake.log.sequencer import Sequencer
from intake.log.state import TopicState
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

SETTINGS = LogSettings(append_attempts_max=2)
DAY_S = 86_400.0
BROKERS = [Broker(number, "127.0.0.1", 9000 + number, "", f"{number:016x}") for number in (1, 2)]
JOIN = Join(
    protocols=(("range", b""),), session_timeout_s=20.0, rebalance_timeout_s=20.0, needs_member_id=False
)


class Daemon:
    """The coordinator of one daemon, with its own fold of the log."""

    def __init__(self, ground: Ground, number: int, live: Sequence[Broker], **settings: Any) -> None:
        self.clock = ground.clock
        self.threads = ground.threads
        self.live = list(live)
        """May differ from what the other daemons believe."""
        self.sequencer = Sequencer(ground.log, SeededIds(number), self.clock, SETTINGS)
        self.topic_id = self.sequencer.declare_topic("t", 10).topic_id
        self.offsets = CommittedOffsets(self.sequencer, self.clock, OffsetBounds(2**30, 3_600_000_000))
        self.queue = OffsetQueue(self.offsets, ground.threads)
        self.counts = GroupCounts()
        stated = {"listen": "127.0.0.1:0", "group_initial_rebalance_delay": 0, **settings}

        def groups() -> ConsumerGroups:
            return self.sequencer.fold.consumer_groups

        def topics() -> Mapping[str, TopicState]:
            return self.sequencer.fold.topics_by_name

        self.groups = GroupCoordinator(
            KafkaListenerSettings.model_validate(stated),
            lambda on_lost: SlotClaims(
                self.offsets,
                groups,
                lambda: self.live,
                lambda: BROKERS[number - 1],
                ground.threads,
                on_lost,
            ),
            self.queue,
            groups,
            topics,
            TopicRegexes(topics, lambda _, names: list(names), ground.threads),
            lambda _: self.sequencer.refresh(),
            ground.threads,
            self.clock,
            SeededIds(100 + number),
            self.counts,
        )

    async def join(
        self, group: str, member_id: str = "", ended: asyncio.Event | None = None
    ) -> Joined | None:
        request = replace(JOIN, member_id=member_id)
        waiting = Waiting(ended or asyncio.Event(), lambda: None)
        return await self.groups.join(group, request, waiting)

    async def enter(self, group: str) -> Joined:
        """A member of its own, which is assigned."""
        joined = await self.join(group)
        assert joined is not None
        sync = Sync(member_id=joined.member_id, generation=joined.generation)
        synced = await self.groups.sync(group, sync, Waiting(asyncio.Event(), lambda: None))
        assert synced is not None
        assert synced.code is ErrorCode.none
        return joined

    async def commit(self, group: str, offset: int, member: Joined | None = None) -> HoldOutcome | ErrorCode:
        try:
            claim = await self.groups.accept_commit(
                group,
                "" if member is None else member.member_id,
                None,
                -1 if member is None else member.generation,
            )
        except Refused as error:
            return error.code
        outcome = await self.queue.put(Commit(group, claim, [TopicCommit(self.topic_id, [0], [offset])]))
        self.groups.claims.check()
        return outcome

    def stored(self, group: str) -> int | None:
        found = self.offsets.read().get(group)
        row = None if found is None else found.offset(self.topic_id, 0)
        return None if row is None else row.offset


class Ground:
    """One log, and the daemons on it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self.threads = ThreadPoolExecutor(1)

    def daemon(self, number: int = 1, live: Sequence[Broker] | None = None, **settings: Any) -> Daemon:
        return Daemon(self, number, [BROKERS[number - 1]] if live is None else live, **settings)


Play = Callable[[Ground], Coroutine[Any, Any, None]]


def played(play: Play) -> Callable[[], None]:
    """Run a test in an event loop."""

    def test() -> None:
        async def run() -> None:
            ground = Ground()
            try:
                await play(ground)
            finally:
                ground.threads.shutdown()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()

        asyncio.run(run())

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


async def code_of(work: Coroutine[Any, Any, object]) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        await work
    return refused.value.code


@played
async def test_slots_are_spread_over_the_live_daemons(ground: Ground) -> None:
    one, two = (ground.daemon(number, BROKERS) for number in (1, 2))
    chosen = [one.groups.claims.coordinator(slot) for slot in range(GROUP_SLOTS)]
    assert chosen == [two.groups.claims.coordinator(slot) for slot in range(GROUP_SLOTS)]
    assert 10 < chosen.count(BROKERS[0]) < GROUP_SLOTS - 10
    groups = [f"g{number}" for number in range(20)]
    for group in groups:
        own, other = (one, two) if chosen[slot_of(group)] == BROKERS[0] else (two, one)
        assert await own.commit(group, 5) == "ok"
        assert await other.commit(group, 6) is ErrorCode.not_coordinator
    # The listing of each has its own.
    listed = [{one.name for one in await daemon.groups.all_shown()} for daemon in (one, two)]
    assert sorted(listed[0] | listed[1]) == sorted(groups)
    assert not listed[0] & listed[1]
    one.live = []
    assert one.groups.claims.coordinator(3) is None
    assert await code_of(one.groups.require("g")) is ErrorCode.not_coordinator


@played
async def test_groups_that_wait_share_a_claim(ground: Ground) -> None:
    one = ground.daemon()
    tail = ground.log.tail()
    numbers = await asyncio.gather(*(one.groups.require(f"g{number}") for number in range(50)))
    assert len(set(numbers)) <= 2
    assert ground.log.tail() - tail <= 2
    await one.groups.require("g1")
    assert ground.log.tail() - tail <= 2, "a claimed slot needs no entry"


@played
async def test_two_that_both_believe(ground: Ground) -> None:
    """The lists of the live daemons differ, so both coordinate the group. Only the newest claim counts."""
    one, two = ground.daemon(1), ground.daemon(2)
    member = await one.enter("g")
    assert await one.commit("g", 5, member) == "ok"
    waits = asyncio.create_task(one.join("g"))
    await asyncio.sleep(0)
    other = await two.enter("g")
    assert await two.commit("g", 7, other) == "ok"
    # It has not read the log, and commits what it believes.
    assert await one.commit("g", 6, member) == "stale_claim"
    joined = await waits
    assert joined is not None
    assert joined.code is ErrorCode.not_coordinator
    assert (one.counts.slots_lost, one.stored("g")) == (1, 7)
    # At once it must not claim again, or both would fill the log with claims.
    assert await one.commit("g", 6, member) is ErrorCode.not_coordinator
    slot_claims.RECLAIM_S, before_s = 0.0, slot_claims.RECLAIM_S  # type: ignore[misc]
    try:
        assert await one.commit("g", 6, member) is ErrorCode.unknown_member_id
    finally:
        slot_claims.RECLAIM_S = before_s  # type: ignore[misc]
    assert await two.commit("g", 8, other) == "stale_claim"
    assert one.stored("g") == 7


@played
async def test_members_may_join_again_before_their_group_counts_as_empty(ground: Ground) -> None:
    one, two = ground.daemon(1), ground.daemon(2)
    member = await one.enter("g")
    assert await one.commit("g", 5, member) == "ok"
    # Nothing was there before the first claim, so nothing can come back.
    assert await one.groups.require_members("h") > 0
    slot_claims.REJOIN_S, before_s = 60.0, slot_claims.REJOIN_S  # type: ignore[misc]
    try:
        # The group has a member at the first daemon, and the second one cannot know it.
        assert await code_of(two.groups.require_members("g")) is ErrorCode.coordinator_load_in_progress
        assert await two.groups.require("g") > 0, "members may join at once"
        assert two.stored("g") == 5
        slot_claims.REJOIN_S = 0.0  # type: ignore[misc]
        assert await two.groups.require_members("g") > 0
        # A member answers the question before the time is over.
        slot_claims.REJOIN_S = 60.0  # type: ignore[misc]
        three = ground.daemon(2)
        assert await code_of(three.groups.require_members("g")) is ErrorCode.coordinator_load_in_progress
        await three.enter("g")
        assert await three.groups.require_members("g") > 0
    finally:
        slot_claims.REJOIN_S = before_s  # type: ignore[misc]


@played
async def test_a_daemon_that_is_no_longer_chosen_gives_up_its_groups(ground: Ground) -> None:
    one = ground.daemon()
    member = await one.enter("g")
    one.live = [BROKERS[1]]
    one.groups.claims.check()
    assert one.groups.shown("g") is None
    heartbeat = one.groups.heartbeat("g", member.member_id, None, member.generation)
    assert await code_of(heartbeat) is ErrorCode.not_coordinator


@played
async def test_a_slot_that_is_lost_with_its_last_member(ground: Ground) -> None:
    """The memory of the group is given back once."""
    one = ground.daemon()
    member = await one.enter("g")
    assert await one.commit("g", 5, member) == "ok"
    one.live = [BROKERS[1]]
    # Its session ends before anything else shows that the slot is lost.
    held = one.groups._held["g"]
    (only,) = held.group.members
    only.deadline_s = held.group.wake_s = 0.0
    one.groups._wake(held)
    assert (one.groups.claims.held, one.groups._held, one.groups._size) == ([], {}, 0)


class Text(str):
    """A text that can be referred to weakly."""

    __slots__ = ("__weakref__",)


@played
async def test_a_request_that_waits_keeps_nothing_that_is_not_counted(ground: Ground) -> None:
    one = ground.daemon(group_initial_rebalance_delay=0.05)
    await one.groups.require("g")
    requests = GroupRequests(one.groups, one.groups._settings, Authorizer((), authenticates=False))
    reason = Text("long")
    body = SimpleNamespace(
        group_id="g",
        session_timeout=20_000,
        rebalance_timeout=20_000,
        member_id="",
        group_instance_id="follower",
        protocol_type="consumer",
        protocols=[SimpleNamespace(name="range", metadata=b"")],
        reason=reason,
    )
    leads = asyncio.create_task(one.join("g"))
    await asyncio.sleep(0)
    joins = asyncio.ensure_future(
        requests.handlers[ApiKey.JOIN_GROUP](Session("peer"), KafkaRequest(ApiKey.JOIN_GROUP, 9, 1, "", body))
    )
    kept = weakref.ref(reason)
    del reason
    await asyncio.sleep(0)
    assert not joins.done()
    assert kept() is None
    leader, follower = await leads, await joins
    assert leader is not None
    assert follower is not None
    named = Text("member")
    body = SimpleNamespace(
        group_id="g",
        generation_id=leader.generation,
        member_id=follower["member_id"],
        group_instance_id="follower",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SimpleNamespace(member_id=named, assignment=bytes(1000))],
    )
    syncs = asyncio.ensure_future(
        requests.handlers[ApiKey.SYNC_GROUP](Session("peer"), KafkaRequest(ApiKey.SYNC_GROUP, 5, 1, "", body))
    )
    kept = weakref.ref(named)
    del named
    for _ in range(3):
        await asyncio.sleep(0)
    assert not syncs.done(), "the leader has not assigned"
    assert kept() is None
    await one.groups.leave("g", [(leader.member_id, None)])
    answer = await syncs
    assert answer is not None
    assert answer["error_code"] == int(ErrorCode.rebalance_in_progress)


@played
async def test_texts_that_stay_in_memory_are_bounded(ground: Ground) -> None:
    one = ground.daemon()
    for join in (replace(JOIN, instance_id="i" * 250), replace(JOIN, protocol_type="t" * 250)):
        waiting = Waiting(asyncio.Event(), lambda: None)
        assert await code_of(one.groups.join("g", join, waiting)) is ErrorCode.invalid_request
    assert one.groups.shown("g") is None


@played
async def test_those_that_wait_share_a_claim_that_fails(ground: Ground) -> None:
    """Else each would wait for the attempts of all before it, and its connection with it."""
    one = ground.daemon()
    ground.log.script(*[AppendFault.DROPPED] * 1000)
    asked = len(ground.log.appends)
    codes = await asyncio.gather(*(code_of(one.groups.require(f"g{number}")) for number in range(50)))
    assert set(codes) == {ErrorCode.coordinator_load_in_progress}
    assert len(ground.log.appends) - asked <= 3 * SETTINGS.append_attempts_max
    ground.log.heal()
    assert await one.commit("g", 5) == "ok"


@played
async def test_a_claim_that_fails(ground: Ground) -> None:
    one = ground.daemon()
    for fault in (AppendFault.DROPPED, AppendFault.REPLY_LOST):
        ground.log.script(*[fault] * 100)
        assert await one.commit("g", 5) is ErrorCode.coordinator_load_in_progress
        ground.log.heal()
    assert await one.commit("g", 5) == "ok"


@played
async def test_a_stopped_coordinator_answers_what_waits(ground: Ground) -> None:
    one = ground.daemon(group_initial_rebalance_delay=60)
    waits = asyncio.create_task(one.join("g"))
    ended = asyncio.Event()
    leaves = asyncio.create_task(one.join("g", ended=ended))
    # Afterwards the joins need no wait for the claim.
    await one.groups.require("g")
    await asyncio.sleep(0)
    # The connection of one ends before.
    ended.set()
    assert await leaves is None
    one.groups.stop()
    joined = await waits
    assert joined is not None
    assert joined.code is ErrorCode.not_coordinator
    assert await code_of(one.groups.require("g")) is ErrorCode.not_coordinator


@played
async def test_a_fetch_waits_for_the_commits_of_its_group(ground: Ground) -> None:
    one = ground.daemon()
    await one.groups.require("g")
    commits = [asyncio.create_task(one.commit("g", number)) for number in range(5)]
    await asyncio.sleep(0)
    await one.queue.settled("g")
    assert one.stored("g") == 4
    assert [task.result() for task in commits] == ["ok"] * 5
    await one.queue.settled("other")


@played
async def test_offsets_of_groups_without_members_expire(ground: Ground) -> None:
    one = ground.daemon(offsets_retention="7d")
    assert await one.commit("simple", 5) == "ok"
    member = await one.enter("used")
    assert await one.commit("used", 5, member) == "ok"
    leaver = await one.enter("left")
    assert await one.commit("left", 5, leaver) == "ok"
    for _ in range(9):
        ground.clock.advance(DAY_S)
        await one.groups._expire()
    # One has a member. The others are a week and an hour older than their last commit.
    assert (one.stored("simple"), one.stored("used"), one.stored("left")) == (None, 5, 5)
    await one.groups.leave("left", [(leaver.member_id, None)])
    await asyncio.sleep(0)
    await one.queue.settled("left")
    # Longer than the retention since it was last marked as in use while it had a member.
    ground.clock.advance(6.5 * DAY_S)
    await one.groups._expire()
    assert one.stored("left") == 5, "it was in use 6.5 days ago"
    ground.clock.advance(2 * DAY_S)
    await one.groups._expire()
    assert (one.stored("used"), one.stored("left")) == (5, None)
    assert one.groups.shown("simple") is None


@played
async def test_a_new_coordinator_lets_nothing_expire_at_once(ground: Ground) -> None:
    one = ground.daemon()
    assert await one.commit("g", 5) == "ok"
    ground.clock.advance(30 * DAY_S)
    two = ground.daemon(2)
    await two.groups._expire()
    assert two.stored("g") == 5, "its members may not have joined again"
    ground.clock.advance(2 * coordinator_module.EXPIRY_S)
    await two.groups._expire()
    assert two.stored("g") is None


@played
async def test_offsets_expire_on_a_daemon_without_requests(ground: Ground) -> None:
    """After a restart no client may ever use these groups again."""
    two = ground.daemon(2)
    one = ground.daemon()
    assert await one.commit("g", 5) == "ok"
    ground.clock.advance(30 * DAY_S)
    two.groups._expiry_s = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_module, "CHECK_S", 0.01)
        two.groups.watch()
        task = two.groups._task
        two.groups.watch()
        assert two.groups._task is task
        for _ in range(500):
            await asyncio.sleep(0.01)
            ground.clock.advance(1.0)
            if two.stored("g") is None:
                break
    assert two.stored("g") is None
    two.groups.stop()
    two.groups.watch()
    assert two.groups._task is task


@played
async def test_refusals_and_store_errors_take_few_lines(ground: Ground) -> None:
    """Clients ask again many times a second."""
    lines = Lines()
    with lines.of("archiver.kafka"):
        one = ground.daemon(groups_max=1)
        await one.enter("a")
        for number in range(3 * LINES_MAX):
            assert await code_of(one.join(f"b{number}")) is ErrorCode.coordinator_not_available
        assert len(lines.found) == LINES_MAX
        ground.log.script(*[AppendFault.DROPPED] * 1000)
        two = ground.daemon(2)
        for number in range(3 * LINES_MAX):
            code = await code_of(two.groups.require(f"g{number}"))
            assert code is ErrorCode.coordinator_load_in_progress
        assert len(lines.found) == 2 * LINES_MAX
    ground.log.heal()


class Lines(logging.Handler):
    """Warnings of some loggers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        logging.getLogger(name).addHandler(self)
        try:
            yield
        finally:
            logging.getLogger(name).removeHandler(self)


@played
async def test_assignments_and_assignors_replace_the_former_ones(ground: Ground) -> None:
    """A group that takes more than half of the memory can still be rebalanced."""
    one = ground.daemon(groups_bytes_max=2**20, group_metadata_bytes_max=600_000)
    large = bytes(500_000)
    joining = replace(JOIN, protocols=(("range", bytes(100_000)),))
    member_id = ""
    for _ in range(3):
        waiting = Waiting(asyncio.Event(), lambda: None)
        joined = await one.groups.join("g", replace(joining, member_id=member_id), waiting)
        assert joined is not None
        member_id = joined.member_id
        sync = Sync(member_id=member_id, generation=joined.generation, assignments=[(member_id, large)])
        synced = await one.groups.sync("g", sync, waiting)
        assert synced is not None
        assert synced.assignment == large
    too_much = replace(sync, assignments=[(member_id, bytes(600_000))] * 2)
    assert await code_of(one.groups.sync("g", too_much, waiting)) is ErrorCode.coordinator_not_available


@played
async def test_empty_groups_give_way(ground: Ground) -> None:
    one = ground.daemon(groups_max=2)
    members = {group: await one.enter(group) for group in ("a", "b")}
    assert await code_of(one.join("c")) is ErrorCode.coordinator_not_available
    await one.groups.leave("a", [(members["a"].member_id, None)])
    assert (await one.enter("c")).code is ErrorCode.none
    one.groups.show()
    assert (one.counts.members, one.counts.states) == (2, {"Stable": 2})


@played
async def test_other_work_has_its_turn_while_groups_are_listed(ground: Ground) -> None:
    one = ground.daemon()
    names = sorted(f"g{number}" for number in range(3 * coordinator_module.LISTED))
    await asyncio.gather(*(one.commit(name, 5) for name in names))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def nothing() -> None:
        """The read of the log gives turns as well."""

    one.groups.read_on = nothing  # type: ignore[method-assign]
    other = asyncio.create_task(turn())
    assert sorted(shown.name for shown in await one.groups.all_shown()) == names
    assert turns == 3
    other.cancel()


async def fetched(daemon: Daemon, group: str) -> int | None:
    """The committed offset, -1 for none; None while this daemon may not answer."""
    requests = OffsetRequests(
        daemon.groups,
        daemon.queue,
        lambda: daemon.sequencer.fold.consumer_groups,
        lambda: daemon.sequencer.fold.topics_by_name,
        daemon.groups.read_on,
        Authorizer((), authenticates=False),
        daemon.threads,
        4096,
        daemon.counts,
    )
    asked = SimpleNamespace(name="t", partition_indexes=[0])
    body = SimpleNamespace(group_id=group, topics=[asked])
    answer = await requests.handlers[ApiKey.OFFSET_FETCH](
        Session("peer"), KafkaRequest(ApiKey.OFFSET_FETCH, 7, 1, "", body)
    )
    assert answer is not None
    if answer["error_code"]:
        return None
    offset: int = answer["topics"][0]["partitions"][0]["committed_offset"]
    return offset


@pytest.mark.parametrize("seed", range(60))
def test_no_committed_offset_goes_backwards(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two daemons that often disagree on who coordinates, lost answers, and members that know only their own."""
    monkeypatch.setattr(slot_claims, "RECLAIM_S", 0.0)
    chance = random.Random(seed)

    async def play(ground: Ground) -> None:
        daemons = [ground.daemon(number, BROKERS) for number in (1, 2)]
        members: dict[tuple[int, str], Joined] = {}
        acknowledged = dict.fromkeys(("a", "b", "c"), -1)
        answered = 0
        for offset in range(500):
            place, group = chance.randrange(2), chance.choice("abc")
            daemon, member = daemons[place], members.get((place, group))
            if chance.random() < 0.15:
                daemon.live = chance.choice([BROKERS, BROKERS[:1], BROKERS[1:]])
            if chance.random() < 0.15:
                fault = chance.choice([AppendFault.REPLY_LOST, AppendFault.LATE, AppendFault.REFUSED])
                ground.log.script(*[fault] * chance.randrange(1, 4))
            kind = chance.choice(["join", "commit", "commit", "fetch"])
            if kind == "join" or member is None:
                with contextlib.suppress(Refused):
                    if member is not None:
                        # Or the new one would wait for it.
                        await daemon.groups.leave(group, [(member.member_id, None)])
                    members[place, group] = await daemon.enter(group)
            elif kind == "commit":
                if await daemon.commit(group, offset, member) == "ok":
                    acknowledged[group] = offset
                    answered += 1
            else:
                ground.log.heal()
                least, found = acknowledged[group], await fetched(daemon, group)
                # A commit of unknown outcome may count as well.
                assert found is None or least <= found < offset, (group, found, least)
        assert answered > 5
        ground.log.heal()
        for daemon in daemons:
            daemon.live = BROKERS
            for group, least in acknowledged.items():
                found = await fetched(daemon, group)
                assert found is None or found >= least

    played(play)()


@played
async def test_a_commit_of_unknown_outcome_may_be_sent_again(ground: Ground) -> None:
    one = ground.daemon()
    assert await one.commit("g", 5) == "ok"
    ground.log.script(*[AppendFault.REPLY_LOST] * 100)
    assert await one.commit("g", 6) == "unknown"
    ground.log.heal()
    assert await one.commit("g", 6) == "ok"
    assert await fetched(one, "g") == 6


@played
async def test_a_fetch_waits_for_a_commit_of_unknown_outcome(ground: Ground) -> None:
    """Else the next member starts before it, and sees the offset go backwards by its own commit."""
    one = ground.daemon()
    assert await one.commit("g", 5) == "ok"
    # The last attempt is on its way, and arrives just before the next append.
    ground.log.script(*[AppendFault.DROPPED] * (SETTINGS.append_attempts_max - 1), AppendFault.LATE)
    assert await one.commit("g", 6) == "unknown"
    assert await fetched(one, "g") == 6
    ground.log.script(*[AppendFault.DROPPED] * 100)
    assert await one.commit("g", 7) == "unknown"
    assert await fetched(one, "g") is None, "it is not known yet"
    ground.log.heal()
    assert await fetched(one, "g") == 7
