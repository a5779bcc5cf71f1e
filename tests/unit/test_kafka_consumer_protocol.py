"""Transitions of one group of the consumer protocol, and clients that lose answers, pause and die."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import LEAVE, LEAVE_STATIC, Beat, Beaten, TopicRegex
from archiver.kafka.consumer_protocol import NAMES_PER_S, TOPICS_CHECK_S, ConsumerProtocolGroup
from archiver.kafka.group import State
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

SESSION_S, REBALANCE_S = 45.0, 60.0
A = TopicId("a" * 32)


def topic(name: str, partitions: int) -> TopicState:
    return TopicState(TopicId(name[0] * 32), name, partitions, 0)


def parts(text: str) -> frozenset[TopicPartition]:
    """`"a0 b1"`: partitions by the first letter of their topics."""
    return frozenset((TopicId(one[0] * 32), int(one[1:])) for one in text.split())


def text(partitions: frozenset[TopicPartition] | None) -> str | None:
    if partitions is None:
        return None
    return " ".join(f"{one[0]}{number}" for one, number in sorted(partitions))


@dataclass
class Ground:
    """A group, its topics and the time."""

    members_max: int = 10
    now_s: float = 100.0
    owners_known_s: float = 0.0
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topics = {"a": topic("a", 4)}
        self.matched: dict[str, frozenset[str]] = {}
        self.group = self.coordinator()

    def coordinator(self) -> ConsumerProtocolGroup:
        return ConsumerProtocolGroup(
            self.members_max,
            SESSION_S,
            lambda: f"new-{next(self.numbers)}",
            lambda: self.topics,
            lambda regex: self.matched[regex.pattern],
            self.owners_known_s,
        )

    def beat(self, member_id: str, epoch: int, owned: str | None = None, **stated: Any) -> Beaten:
        request = Beat(
            member_id=member_id,
            epoch=epoch,
            owned=None if owned is None else parts(owned),
            **stated,
        )
        self.tick()
        return self.group.heartbeat(request, self.now_s)

    def join(self, member_id: str, names: str = "a", **stated: Any) -> Beaten:
        first = {"rebalance_timeout_s": REBALANCE_S, "names": frozenset(names)} | stated
        return self.beat(member_id, 0, "", **first)

    def full(self, member_id: str, epoch: int, owned: str, names: str = "a", **stated: Any) -> Beaten:
        first = {"rebalance_timeout_s": REBALANCE_S, "names": frozenset(names)} | stated
        return self.beat(member_id, epoch, owned, **first)

    def refused(self, member_id: str, epoch: int, owned: str | None = None, **stated: Any) -> ErrorCode:
        with pytest.raises(Refused) as error:
            self.beat(member_id, epoch, owned, **stated)
        return error.value.code

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        if self.group.wake_s <= self.now_s:
            self.group.tick(self.now_s)

    def epoch(self, member_id: str) -> int:
        return self.group._members[member_id].epoch

    def two_members(self) -> None:
        """`m` has a0 and a1, `n` has a2 and a3."""
        self.join("m")
        self.join("n")
        first = self.beat("m", self.epoch("m"))
        self.beat("m", first.epoch, text(first.assignment))
        self.beat("n", self.epoch("n"))
        assert self.assigned() == {"m": "a0 a1", "n": "a2 a3"}

    def assigned(self) -> dict[str, str | None]:
        return {one.member_id: text(one.assigned) for one in self.group.members}


def test_the_first_member_gets_everything_at_once() -> None:
    ground = Ground()
    answer = ground.join("m")
    assert (answer.epoch, text(answer.assignment), ground.group.state) == (1, "a0 a1 a2 a3", State.STABLE)
    assert ground.beat("m", 1) == Beaten(member_id="m", epoch=1)


def test_the_server_makes_an_id_for_a_member_without_one() -> None:
    assert Ground().join("").member_id == "new-0"


def test_partitions_are_given_up_before_another_member_gets_them() -> None:
    ground = Ground()
    ground.join("m")
    new = ground.join("n")
    assert (new.epoch, text(new.assignment), ground.group.state) == (2, "", State.RECONCILING)
    revoke = ground.beat("m", 1)
    assert (revoke.epoch, text(revoke.assignment)) == (1, "a0 a1")
    # It still reads them, so the new one has to wait.
    assert ground.beat("n", 2).assignment is None
    assert ground.beat("m", 1).assignment is None
    assert ground.beat("m", 1, "a0 a1 a2 a3").assignment is None
    assert ground.beat("n", 2).assignment is None
    # One after the other.
    ground.beat("m", 1, "a0 a1 a3")
    assert text(ground.beat("n", 2).assignment) == "a2"
    assert ground.beat("m", 1, "a0 a1").epoch == 2
    assert text(ground.beat("n", 2).assignment) == "a2 a3"
    assert ground.group.state is State.STABLE


def test_a_member_that_does_not_give_up_partitions_is_removed() -> None:
    ground = Ground()
    ground.join("m", rebalance_timeout_s=10.0)
    ground.join("n")
    ground.beat("m", 1)
    ground.tick(9.9)
    ground.beat("m", 1)
    assert ground.beat("n", 2).assignment is None
    ground.tick(0.1)
    assert ground.refused("m", 1) is ErrorCode.unknown_member_id
    assert text(ground.beat("n", 2).assignment) == "a0 a1 a2 a3"


def test_a_session_ends() -> None:
    ground = Ground()
    ground.two_members()
    ground.tick(SESSION_S - 1)
    ground.beat("n", ground.epoch("n"))
    ground.tick(1)
    assert text(ground.beat("n", ground.epoch("n")).assignment) == "a0 a1 a2 a3"
    assert ground.refused("m", 2) is ErrorCode.unknown_member_id


def test_a_member_leaves() -> None:
    ground = Ground()
    ground.two_members()
    assert ground.beat("m", LEAVE) == Beaten(member_id="m", epoch=LEAVE)
    assert text(ground.beat("n", ground.epoch("n")).assignment) == "a0 a1 a2 a3"
    ground.beat("n", LEAVE)
    assert (ground.group.state, ground.group.is_idle, ground.group.size) == (State.EMPTY, True, 0)
    assert ground.refused("n", LEAVE) is ErrorCode.unknown_member_id


def test_a_lost_answer_with_a_new_epoch_is_repeated() -> None:
    ground = Ground()
    ground.join("m")
    ground.join("n")
    ground.beat("m", 1)
    assert ground.beat("m", 1, "a0 a1").epoch == 2
    # The answer was lost. The client repeats everything.
    again = ground.full("m", 1, "a0 a1")
    assert (again.epoch, text(again.assignment)) == (2, "a0 a1")


@pytest.mark.parametrize(("epoch", "owned"), [(1, None), (1, "a0 a1 a2"), (3, "a0 a1"), (9, None)])
def test_another_epoch_is_fenced(epoch: int, owned: str | None) -> None:
    ground = Ground()
    ground.two_members()
    assert ground.epoch("m") == 2
    assert ground.refused("m", epoch, owned) is ErrorCode.fenced_member_epoch


def test_a_copy_of_a_member_id_fences_the_first_process() -> None:
    ground = Ground()
    ground.two_members()
    again = ground.join("m")
    assert (again.epoch, text(again.assignment)) == (3, "a0 a1")
    assert ground.refused("m", 2, "a0 a1") is ErrorCode.fenced_member_epoch


def test_what_a_member_abandons_by_joining_again_is_free() -> None:
    ground = Ground()
    ground.join("m")
    ground.join("n")
    ground.beat("m", 1)
    assert text(ground.join("m").assignment) == "a0 a1"
    assert text(ground.beat("n", 2).assignment) == "a2 a3"


def test_what_is_on_its_way_to_a_member_is_not_given_away_by_a_full_heartbeat() -> None:
    ground = Ground()
    ground.join("m")
    # It has the answer and waits for a callback. Another request of it failed, so it repeats everything.
    ground.join("n")
    revoke = ground.full("m", 1, "")
    assert (revoke.epoch, text(revoke.assignment)) == (1, "a0 a1")
    assert ground.beat("n", 2).assignment is None
    # It has reached the first assignment before it received the second one.
    ground.full("m", 1, "a0 a1 a2 a3")
    assert ground.beat("n", 2).assignment is None
    ground.beat("m", 1, "a0 a1")
    assert text(ground.beat("n", 2).assignment) == "a2 a3"


def test_an_assignment_that_was_lost_is_free_once_the_member_has_received_the_next_one() -> None:
    ground = Ground()
    ground.join("m")
    ground.join("n")
    ground.full("m", 1, "")
    assert ground.beat("n", 2).assignment is None
    # Not a full one: it has received the answer to that.
    assert ground.beat("m", 1).epoch == 2
    assert text(ground.beat("n", 2).assignment) == "a2 a3"


def test_a_static_member_returns_to_its_partitions() -> None:
    ground = Ground()
    ground.join("m", instance_id="i")
    ground.join("n")
    ground.beat("m", 1, instance_id="i")
    ground.beat("m", 1, "a0 a1", instance_id="i")
    ground.beat("n", 2)
    assert ground.refused("m2", 0, "", instance_id="i", rebalance_timeout_s=1.0) is (
        ErrorCode.unreleased_instance_id
    )
    assert ground.beat("m", LEAVE_STATIC, instance_id="i").epoch == LEAVE_STATIC
    assert ground.group.state is State.STABLE
    assert refused_commit(ground, "m", 2) is ErrorCode.stale_member_epoch
    assert ground.refused("m", 2, instance_id="i") is ErrorCode.fenced_member_epoch
    # No other member gets them.
    assert ground.beat("n", 2).assignment is None
    back = ground.join("m2", instance_id="i")
    # Without a change of the group.
    assert (back.epoch, text(back.assignment), ground.group.epoch) == (2, "a0 a1", 2)
    assert ground.refused("m", 2, instance_id="i") is ErrorCode.fenced_instance_id
    assert ground.refused("m", LEAVE, instance_id="i") is ErrorCode.fenced_instance_id
    assert set(ground.assigned()) == {"n", "m2"}


def test_a_static_member_that_does_not_return_loses_its_partitions() -> None:
    ground = Ground()
    ground.join("m", instance_id="i")
    ground.join("n")
    ground.beat("m", 1, instance_id="i")
    ground.beat("m", 1, "a0 a1", instance_id="i")
    ground.beat("n", 2)
    ground.beat("m", LEAVE_STATIC, instance_id="i")
    ground.tick(SESSION_S - 1)
    assert ground.beat("n", 2).assignment is None
    ground.tick(1)
    assert text(ground.beat("n", 2).assignment) == "a0 a1 a2 a3"


def test_a_static_member_that_leaves_gives_up_what_it_had_to() -> None:
    ground = Ground()
    ground.join("m", instance_id="i")
    ground.join("n")
    ground.beat("m", 1, instance_id="i")
    ground.beat("m", LEAVE_STATIC, instance_id="i")
    assert text(ground.beat("n", 2).assignment) == "a2 a3"


def test_a_dynamic_member_cannot_leave_for_a_while() -> None:
    ground = Ground()
    ground.join("m")
    ground.beat("m", LEAVE_STATIC)
    assert ground.group.is_idle


def test_a_group_has_a_largest_size() -> None:
    ground = Ground(members_max=1)
    ground.join("m")
    assert ground.refused("n", 0, "") is ErrorCode.group_max_size_reached
    # Those that are in it may join again.
    assert ground.join("m").epoch == 2
    assert ground.assigned() == {"m": "a0 a1 a2 a3"}


def test_new_partitions_and_topics_are_noticed() -> None:
    ground = Ground()
    ground.join("m", names="ab")
    ground.topics["a"] = topic("a", 5)
    ground.tick(TOPICS_CHECK_S)
    assert text(ground.beat("m", 1).assignment) == "a0 a1 a2 a3 a4"
    ground.topics["b"] = topic("b", 1)
    ground.tick(TOPICS_CHECK_S)
    assert text(ground.beat("m", 2).assignment) == "a0 a1 a2 a3 a4 b0"
    del ground.topics["a"]
    ground.tick(TOPICS_CHECK_S)
    assert text(ground.beat("m", 3).assignment) == "b0"


def test_a_changed_subscription_moves_partitions() -> None:
    ground = Ground()
    ground.topics["b"] = topic("b", 2)
    ground.join("m")
    changed = ground.beat("m", 1, names=frozenset("b"))
    assert (changed.epoch, text(changed.assignment)) == (1, "")
    changed = ground.beat("m", 1, "")
    assert (changed.epoch, text(changed.assignment)) == (2, "b0 b1")
    assert (ground.group.is_subscribed("a"), ground.group.is_subscribed("b")) == (False, True)


def test_a_regex_adds_the_topics_that_match() -> None:
    ground = Ground()
    ground.topics |= {"b": topic("b", 1), "c": topic("c", 1)}
    ground.matched["b|c"] = frozenset("bc")
    answer = ground.join("m", regex=TopicRegex("User:u", "b|c"))
    assert text(answer.assignment) == "a0 a1 a2 a3 b0 c0"
    assert (ground.group.is_subscribed("c"), ground.group.is_subscribed("d")) == (True, False)
    assert ground.group.regexes == {TopicRegex("User:u", "b|c")}
    ground.beat("m", 1, regex=TopicRegex("User:u", ""))
    assert (ground.group.regexes, ground.group.is_subscribed("c")) == (set(), False)


def test_most_members_choose_the_assignor() -> None:
    ground = Ground()
    ground.join("m", assignor="range")
    assert ground.group.assignor == "range"
    ground.join("n", assignor="uniform")
    ground.join("o", assignor="uniform")
    assert ground.group.assignor == "uniform"


def test_changes_of_a_large_group_share_an_assignment() -> None:
    ground = Ground()
    ground.topics["a"] = topic("a", 20_000)
    ground.join("m")
    later = ground.join("n")
    assert (text(later.assignment), ground.group.state) == ("", State.ASSIGNING)
    ground.join("o")
    assert ground.group.assignments == 1
    ground.tick(1.1)
    assert ground.group.assignments == 2
    assert ground.group.epoch == ground.group.target_epoch > later.epoch


def test_changes_of_a_group_with_many_names_share_an_assignment() -> None:
    ground = Ground()
    names = frozenset({"a", *(f"none-{number}" for number in range(2 * NAMES_PER_S))})
    ground.beat("m", 0, "", rebalance_timeout_s=REBALANCE_S, names=names)
    ground.join("n")
    assert (ground.group.assignments, ground.group.state) == (1, State.ASSIGNING)
    ground.tick(2.1)
    assert ground.group.assignments == 2
    # New topics are looked up as rarely.
    ground.beat("n", ground.epoch("n"))
    ground.topics["a"] = topic("a", 5)
    ground.tick(TOPICS_CHECK_S)
    ground.beat("n", ground.epoch("n"))
    assert ground.group.assignments == 2
    ground.tick(2.1)
    ground.beat("n", ground.epoch("n"))
    assert ground.group.assignments == 3


def test_a_member_that_joins_again_gets_another_epoch_also_before_the_next_assignment() -> None:
    ground = Ground()
    ground.topics["a"] = topic("a", 20_000)
    first = ground.join("m")
    again = ground.join("m")
    assert (again.epoch > first.epoch, ground.group.assignments) == (True, 1)
    assert refused_commit(ground, "m", first.epoch) is ErrorCode.stale_member_epoch
    ground.beat("m", LEAVE)
    last = ground.join("m")
    assert last.epoch > again.epoch
    assert refused_commit(ground, "m", again.epoch) is ErrorCode.stale_member_epoch
    ground.tick(1.1)
    assert len(ground.beat("m", last.epoch).assignment or ()) == 20_000


# --- Commits


def refused_commit(ground: Ground, member_id: str, epoch: int) -> ErrorCode:
    with pytest.raises(Refused) as error:
        ground.group.check_commit(member_id, epoch)
    with pytest.raises(Refused) as of_fetch:
        ground.group.check_fetch(member_id, epoch)
    assert of_fetch.value.code is error.value.code
    return error.value.code


def test_only_the_epoch_of_a_member_commits() -> None:
    ground = Ground()
    ground.group.check_commit("", -1)
    ground.join("m")
    ground.group.check_commit("m", 1)
    ground.group.check_fetch("m", 1)
    ground.group.check_fetch(None, -1)
    assert refused_commit(ground, "m", 0) is ErrorCode.stale_member_epoch
    assert refused_commit(ground, "m", 2) is ErrorCode.stale_member_epoch
    assert refused_commit(ground, "n", 1) is ErrorCode.unknown_member_id
    assert refused_commit(ground, "", -1) is ErrorCode.unknown_member_id


def test_an_epoch_of_a_transaction_is_an_error_of_the_classic_protocol() -> None:
    ground = Ground()
    ground.join("m")
    for member_id, epoch in (("m", 1), ("", -1)):
        ground.group.check_commit(member_id, epoch, transactional=True)
    with pytest.raises(Refused) as error:
        ground.group.check_commit("m", 2, transactional=True)
    assert error.value.code is ErrorCode.illegal_generation


# --- After a change of coordinator


def taken_over() -> Ground:
    """A new coordinator, and two members that it does not know."""
    return Ground(owners_known_s=100.0 + SESSION_S)


FULL: dict[str, Any] = {"rebalance_timeout_s": REBALANCE_S, "names": frozenset("a")}


def test_members_of_the_earlier_coordinator_get_their_partitions_back() -> None:
    ground = taken_over()
    assert ground.refused("m", 7, "a0 a3", **FULL) is ErrorCode.unknown_member_id
    # The answer may be lost, so this gives nothing away.
    assert text(ground.join("new").assignment) == ""
    assert text(ground.join("m").assignment) == "a0 a3"
    assert ground.refused("n", 6, "a1 a2", **FULL) is ErrorCode.unknown_member_id
    ground.beat("new", LEAVE)
    assert text(ground.join("n").assignment) == "a1 a2"
    ground.beat("m", ground.epoch("m"))
    assert ground.group.state is State.STABLE
    # Nothing moves, also later.
    ground.tick(SESSION_S - 1)
    for member in ("m", "n"):
        assert ground.beat(member, ground.epoch(member)).assignment is None
    ground.tick(1)
    assert ground.beat("m", ground.epoch("m")).assignment is None


def test_partitions_of_members_that_may_still_read_are_not_given_away() -> None:
    ground = taken_over()
    assert text(ground.join("new").assignment) == ""
    ground.refused("m", 7, "a0 a1", **FULL)
    assert text(ground.join("m").assignment) == "a0 a1"
    ground.tick(SESSION_S - 1)
    assert ground.beat("new", ground.epoch("new")).assignment is None
    ground.beat("m", ground.epoch("m"))
    ground.tick(1)
    assert text(ground.beat("new", ground.epoch("new")).assignment) == "a2 a3"


def test_a_client_that_does_not_repeat_everything_is_asked_to() -> None:
    ground = taken_over()
    assert ground.refused("m", 7) is ErrorCode.not_coordinator
    assert ground.refused("m", 7, "a0") is ErrorCode.not_coordinator
    assert ground.refused("m", 7, None, **FULL) is ErrorCode.unknown_member_id
    ground.tick(SESSION_S)
    assert ground.refused("m", 7) is ErrorCode.unknown_member_id


def test_what_unknown_members_say_is_bounded() -> None:
    ground = taken_over()
    for number in range(ground.members_max + 1):
        ground.refused(f"m{number}", 7, "a0", **FULL)
    assert len(ground.group._claimed) == ground.members_max
    ground.join("m0")
    ground.tick(SESSION_S)
    assert (ground.group._claimed, ground.group._given_up) == ({}, set())


def test_a_commit_of_an_unknown_member_is_never_to_be_repeated() -> None:
    ground = taken_over()
    assert refused_commit(ground, "m", 7) is ErrorCode.unknown_member_id


# --- Hostile clients

LATE_S = 5.0
"""Time for which a coordinator may answer that was replaced."""
PARTITIONS = 6


class Client:
    """A member as clients are, with what it believes to own."""

    def __init__(self, number: int) -> None:
        self.member_id = f"c{number}"
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.to_own: frozenset[TopicPartition] | None = None
        """An assignment that it has received and not reached."""
        self.repeats = True
        """Its next heartbeat repeats everything."""
        self.alive_s = 0.0
        """When its last answered heartbeat was sent."""
        self.paused_until_s = 0.0
        self.acknowledges = False
        """It has reached an assignment, and says so in its next heartbeat."""
        self.is_old = False
        """It still talks to the coordinator that was replaced."""

    def reach(self) -> None:
        if self.to_own is not None:
            self.owned, self.to_own = self.to_own, None
            self.acknowledges = True

    def beat(self, random_: random.Random, group: ConsumerProtocolGroup, now_s: float) -> None:
        full = self.repeats or self.epoch == 0
        request = Beat(
            member_id=self.member_id,
            epoch=self.epoch,
            owned=self.owned if full or self.acknowledges else None,
            # Longer than a session, which then ends first.
            rebalance_timeout_s=300.0 if full else None,
            names=frozenset("a") if full else None,
        )
        if random_.random() < 0.1:
            self.repeats = True
            return
        if group.wake_s <= now_s:
            group.tick(now_s)
        try:
            answer = group.heartbeat(request, now_s)
        except Refused as error:
            self.repeats = True
            self.is_old = False
            if error.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                self.epoch, self.owned, self.to_own = 0, frozenset(), None
            elif error.code is not ErrorCode.not_coordinator:
                raise
            return
        if random_.random() < 0.1:
            self.repeats = True
            return
        self.alive_s = now_s
        self.repeats = self.acknowledges = False
        self.epoch = answer.epoch
        if answer.assignment is not None:
            # What it must give up ends at once; what it gets takes a while.
            self.owned &= answer.assignment
            self.to_own = answer.assignment


def owners_checked(clients: list[Client], now_s: float, excused: set[TopicPartition]) -> None:
    """No partition has two owners whose sessions may go on."""
    owners: dict[TopicPartition, str] = {}
    for client in clients:
        if now_s - client.alive_s < SESSION_S:
            for one in client.owned - excused:
                assert one not in owners, (one, client.member_id, owners[one], now_s)
                owners[one] = client.member_id


def play(seed: int) -> None:
    random_ = random.Random(seed)
    ground = Ground()
    ground.topics["a"] = topic("a", PARTITIONS)
    group, old, old_until_s = ground.group, ground.group, 0.0
    clients = [Client(number) for number in range(4)]
    excused: dict[TopicPartition, float] = {}
    now_s, made, quiet_s = 1000.0, 4, 1400.0
    while now_s < quiet_s + SESSION_S * 3:
        now_s += 1.0
        quiet = now_s > quiet_s
        for client in list(clients):
            if now_s < client.paused_until_s:
                continue
            if not quiet and random_.random() < 0.005:
                client.paused_until_s = now_s + random_.randrange(1, 90)
                continue
            if not quiet and random_.random() < 0.003:
                clients.remove(client)
                clients.append(Client(made))
                made += 1
                continue
            if random_.random() < 0.5:
                client.reach()
            if random_.random() < 0.3:
                if client.is_old and now_s < old_until_s:
                    client.beat(random_, old, now_s)
                else:
                    client.is_old = False
                    if now_s < group.owners_known_s and now_s - client.alive_s >= SESSION_S:
                        # Only the coordinator before knew that its session had ended.
                        excused |= dict.fromkeys(client.owned, now_s + SESSION_S)
                    client.beat(random_, group, now_s)
            owners_checked(clients, now_s, {one for one, end_s in excused.items() if now_s < end_s})
        if not quiet and random_.random() < 0.01 and now_s > old_until_s:
            ground.owners_known_s = now_s + SESSION_S + LATE_S
            old, old_until_s = group, now_s + random_.uniform(0, LATE_S)
            group = ground.coordinator()
            for client in clients:
                client.is_old = random_.random() < 0.5
                client.repeats = client.repeats or not client.is_old
    assert group.state is State.STABLE
    owned = sorted(one for client in clients for one in client.owned)
    assert owned == [(A, number) for number in range(PARTITIONS)]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_partition_has_two_owners_and_none_is_forgotten(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
