"""Coordinators of groups of the consumer protocol on one log: taking over, an unreadable log, and patterns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka import coordinator as coordinator_module
from archiver.kafka.consumer_members import LEAVE, Beat, Beaten, TopicRegex
from archiver.kafka.coordinator import MEMBER_ID_MAX, Waiting
from archiver.kafka.embedded_protocol import read_assignment
from archiver.kafka.group import Join, Joined, State, Sync
from archiver.kafka.topic_configs import Refused
from archiver.kafka.topic_regexes import PATTERN_MAX, TopicRegexes, full_matches
from archiver.runtime.errors import RetryLater
from archiver.runtime.logging import LINES_MAX
from tests.support.kafka.migrating import metadata
from tests.unit.test_kafka_coordinator import JOIN, Daemon, Ground, code_of, played

WAITING = Waiting(asyncio.Event(), lambda: None)


def beat(member_id: str, epoch: int = 0, *owned: tuple[Any, int], full: bool = True) -> Beat:
    return Beat(
        member_id=member_id,
        epoch=epoch,
        rebalance_timeout_s=60.0 if full else None,
        names=frozenset("t") if full else None,
        owned=frozenset(owned) if full else None,
    )


async def join(daemon: Daemon, member_id: str) -> Beaten:
    return await daemon.groups.beat("g", beat(member_id))


def everything(daemon: Daemon) -> list[tuple[Any, int]]:
    return [(daemon.topic_id, number) for number in range(10)]


@played
async def test_members_get_their_partitions_back_from_the_next_coordinator(ground: Ground) -> None:
    one = ground.daemon(1)
    first = await join(one, "m")
    assert sorted(first.assignment or ()) == everything(one)
    two = ground.daemon(2)
    # Its own claim is the newest one. It does not know the member, and what the member owns.
    again = await two.groups.beat("g", beat("n"))
    assert again.assignment == frozenset()
    assert again.epoch > first.epoch, "epochs of the earlier coordinator are not valid again"
    assert (
        await code_of(two.groups.beat("g", beat("m", first.epoch, full=False))) is ErrorCode.not_coordinator
    )
    owned = everything(two)[:5]
    refused = two.groups.beat("g", beat("m", first.epoch, *owned))
    assert await code_of(refused) is ErrorCode.unknown_member_id
    assert sorted((await join(two, "m")).assignment or ()) == owned
    # The earlier coordinator has not read the log for a while.
    ground.clock.advance(coordinator_module.CONFIRMED_S + 1)
    assert await code_of(one.groups.beat("g", beat("m", first.epoch))) is ErrorCode.not_coordinator


@played
async def test_without_the_log_no_heartbeat_is_answered_and_no_session_ends(ground: Ground) -> None:
    one = ground.daemon(group_consumer_session_timeout=1.0, group_consumer_heartbeat_interval=0.1)
    first = await join(one, "m")

    def fails(_: float) -> object:
        raise RetryLater("the log does not answer")

    one.groups._read_on, works = fails, one.groups._read_on
    assert (await one.groups.beat("g", beat("m", first.epoch, full=False))).epoch == first.epoch
    ground.clock.advance(coordinator_module.CONFIRMED_S + 1)
    for _ in range(5):
        await asyncio.sleep(0.3)
        refused = one.groups.beat("g", beat("m", first.epoch, full=False))
        assert await code_of(refused) is ErrorCode.coordinator_load_in_progress
    one.groups._read_on = works
    assert (await one.groups.beat("g", beat("m", first.epoch, full=False))).epoch == first.epoch
    await asyncio.sleep(1.1)
    assert (
        await code_of(one.groups.beat("g", beat("m", first.epoch, full=False))) is ErrorCode.unknown_member_id
    )


def consumer(owned: str = "", **options: Any) -> Join:
    """A JoinGroup of a consumer of the topic `t`."""
    return replace(JOIN, protocols=(("range", metadata("t", owned)),), **options)


async def enter(daemon: Daemon, member_id: str = "") -> Joined:
    """A consumer of the classic protocol, with an assignment."""
    joined = await daemon.groups.join("g", consumer(member_id=member_id), WAITING)
    assert joined is not None
    assert joined.code is ErrorCode.none
    await sync(daemon, joined)
    return joined


async def sync(daemon: Daemon, joined: Joined) -> int:
    """The number of its partitions."""
    request = Sync(member_id=joined.member_id, generation=joined.generation)
    synced = await daemon.groups.sync("g", request, WAITING)
    assert synced is not None
    assert synced.code is ErrorCode.none
    return len(read_assignment(synced.assignment).assigned.get("t", ()))


def shown(daemon: Daemon) -> tuple[State, bool]:
    found = daemon.groups.shown("g")
    assert found is not None
    return found.state, found.is_of_consumer_protocol


@played
async def test_an_empty_group_changes_its_protocol(ground: Ground) -> None:
    one = ground.daemon(group_session_timeout_min=0.1)
    member = await one.enter("g")
    assert await code_of(one.groups.beat("g", beat("m", LEAVE))) is ErrorCode.unknown_member_id
    await one.groups.leave("g", [(member.member_id, None)])
    await join(one, "m")
    await one.groups.beat("g", beat("m", LEAVE))
    assert shown(one) == (State.EMPTY, True)
    await one.enter("g")
    assert shown(one)[1] is False


@played
async def test_epochs_of_an_empty_group_go_on_when_it_changes_its_protocol(ground: Ground) -> None:
    one = ground.daemon(group_session_timeout_min=0.1)
    epochs = [(await join(one, "m")).epoch]
    for _ in range(2):
        await one.groups.beat("g", beat("m", LEAVE))
        classic = await enter(one)
        await one.groups.leave("g", [(classic.member_id, None)])
        epochs += [classic.generation, (await join(one, "m")).epoch]
    assert epochs == sorted(set(epochs))


@played
async def test_a_member_id_longer_than_any_that_was_given_out_is_unknown(ground: Ground) -> None:
    one = ground.daemon(group_session_timeout_min=0.1)
    await join(one, "m")
    longest = "i" * MEMBER_ID_MAX
    assert (await enter(one, longest)).member_id == longest
    refused = one.groups.join("g", consumer(member_id=longest + "i"), WAITING)
    assert await code_of(refused) is ErrorCode.unknown_member_id


def test_moves_of_a_group_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @played
    async def play(ground: Ground) -> None:
        one = ground.daemon(group_session_timeout_min=0.1)
        await enter(one)
        for _ in range(LINES_MAX):
            await join(one, "m")
            await one.groups.beat("g", beat("m", LEAVE))

    with caplog.at_level(logging.INFO, "archiver.kafka.coordinator"):
        play()
    assert sum("has moved to" in one for one in caplog.messages) == LINES_MAX


@played
async def test_a_group_in_use_changes_its_protocol_and_back(ground: Ground) -> None:
    one = ground.daemon(group_session_timeout_min=0.1)
    joined = await enter(one)
    # It does not know a member that another coordinator, or this one, has forgotten.
    assert await code_of(one.groups.beat("g", beat("m", 7))) is ErrorCode.unknown_member_id
    first = await join(one, "m")
    assert shown(one) == (State.RECONCILING, True)
    assert await one.groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.rebalance_in_progress
    assert await one.groups.accept_commit("g", joined.member_id, None, 1, states_epoch=False) > 0
    assert await code_of(one.groups.heartbeat("g", "m", None, first.epoch)) is ErrorCode.unknown_member_id
    assert await one.groups.leave("g", [("m", None)]) == [ErrorCode.unknown_member_id]
    # Requests of a member are not answered later: nothing waits for others.
    again = await enter(one, joined.member_id)
    assert (again.member_id, again.generation, again.leader) == (joined.member_id, first.epoch, "")
    assert await sync(one, again) == 5
    await one.groups.beat("g", beat("m", LEAVE))
    assert shown(one) == (State.PREPARING, False)
    assert (
        await one.groups.heartbeat("g", joined.member_id, None, first.epoch)
        is ErrorCode.rebalance_in_progress
    )
    assert one.groups._size == one.groups._held["g"].group.size


@played
async def test_a_group_whose_members_cannot_be_read_keeps_its_protocol(ground: Ground) -> None:
    one = ground.daemon()
    joined = await one.enter("g")
    assert await code_of(join(one, "m")) is ErrorCode.group_id_not_found
    assert shown(one) == (State.STABLE, False)
    assert await one.groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.none


@played
async def test_the_session_of_the_last_new_member_ends(ground: Ground) -> None:
    one = ground.daemon(group_consumer_session_timeout=1.0, group_consumer_heartbeat_interval=0.1)
    await join(one, "m")
    joined = await enter(one)
    await asyncio.sleep(1.1)
    assert shown(one) == (State.PREPARING, False)
    assert await one.groups.heartbeat("g", joined.member_id, None, joined.generation) is (
        ErrorCode.rebalance_in_progress
    )


@played
async def test_the_memory_for_a_group_that_moves_is_bounded(ground: Ground) -> None:
    one = ground.daemon(groups_bytes_max=2**20)
    joined = await enter(one)
    one.sequencer.grow_topic("t", 10_000)
    assert await code_of(join(one, "m")) is ErrorCode.coordinator_not_available
    assert shown(one) == (State.STABLE, False)
    assert await one.groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.none


@played
async def test_the_memory_of_more_names_is_bounded(ground: Ground) -> None:
    one = ground.daemon(groups_bytes_max=2**20)
    epoch = (await join(one, "m")).epoch
    names = frozenset(f"topic-{number}" for number in range(2**15))
    more = replace(beat("m", epoch, *everything(one)), names=names)
    assert await code_of(one.groups.beat("g", more)) is ErrorCode.coordinator_not_available
    assert one.groups._size < 2**20


@played
async def test_the_memory_of_members_is_bounded(ground: Ground) -> None:
    one = ground.daemon(groups_bytes_max=2**20)
    one.sequencer.grow_topic("t", 10_000)
    assert await code_of(join(one, "m")) is ErrorCode.coordinator_not_available


# --- Patterns


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.*", {"a", "ab", "a-b"}),
        ("a|b", {"a", "b"}),
        ("b", {"b"}),
        ("(?i)A", {"a"}),
        ("", set()),
        ("a\n", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, found: set[str]) -> None:
    assert full_matches(pattern, ["a", "ab", "b", "cab", "a-b"]) == found


@pytest.mark.parametrize("pattern", ["(", "a)(b", r"\Qa", "a{1001}", "(a{1000}){1000}", "(?=a)", "a\\"])
def test_a_pattern_that_re2_does_not_accept(pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        full_matches(pattern, ["a"])
    assert refused.value.code is ErrorCode.invalid_regular_expression


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def test_patterns_follow_the_topics_and_are_forgotten(threads: ThreadPoolExecutor) -> None:
    names = ["a1", "b1"]
    hidden = {"User:u": "a2"}

    def allowed(principal: str, found: Any) -> list[str]:
        return [one for one in found if one != hidden.get(principal)]

    async def run() -> None:
        regexes = TopicRegexes(lambda: names, allowed, threads)
        one, other = TopicRegex("User:u", "a.*"), TopicRegex("User:v", "a.*")
        for regex in (one, other):
            await regexes.resolve(regex)
            assert regexes.matching(regex) == {"a1"}
        names.append("a2")
        await regexes.refresh({one, other})
        assert [set(regexes.matching(regex)) for regex in (one, other)] == [{"a1"}, {"a1", "a2"}]
        await regexes.refresh({other})
        assert regexes.matching(one) == frozenset()
        assert await code_of(regexes.resolve(TopicRegex("u", "a" * (PATTERN_MAX + 1)))) is (
            ErrorCode.invalid_regular_expression
        )

    asyncio.run(run())
