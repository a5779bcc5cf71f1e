"""Transitions of one classic group, with the errors that Kafka's coordinator gives."""

from __future__ import annotations

import itertools
import random
import struct
import tracemalloc
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka.group import (
    MEMBER_BYTES,
    NEVER,
    NEW_MEMBER_JOIN_S,
    Group,
    GroupLimits,
    Join,
    Joined,
    State,
    Sync,
    Synced,
)

SESSION_S, REBALANCE_S, DELAY_S = 10.0, 60.0, 3.0
NONE = ErrorCode.none


@dataclass
class Ground:
    """A group, its clients and the time."""

    members_max: int = 10
    delay_s: float = DELAY_S
    now_s: float = 100.0
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.group = Group(GroupLimits(self.members_max, self.delay_s), lambda: str(next(self.numbers)))

    def state(self) -> State:
        return self.group.state

    def join(self, member_id: str = "", protocols: str = "range:m", **options: Any) -> list[Joined]:
        """Send a JoinGroup; the list has the answer once there is one. `protocols`: `name:metadata …`."""
        pairs = (one.partition(":") for one in protocols.split())
        stated: dict[str, Any] = {
            "client_id": "c",
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S,
        }
        request = Join(
            member_id=member_id,
            protocols=tuple((name, metadata.encode()) for name, _, metadata in pairs),
            **(stated | options),
        )
        answers: list[Joined] = []
        self.group.join(request, answers.append, self.now_s)
        return answers

    def enter(self, protocols: str = "range:m", **options: Any) -> tuple[str, list[Joined]]:
        """A new member joins as clients do: without an id, then with it. Its id, and the answer."""
        if options.get("instance_id") is not None:
            answers = self.join(protocols=protocols, **options)
            return next(reversed(self.group._members)), answers
        (first,) = self.join(protocols=protocols, **options)
        assert (first.code, first.generation) == (ErrorCode.member_id_required, -1)
        return first.member_id, self.join(first.member_id, protocols, **options)

    def sync(self, member_id: str, generation: int | None = None, **options: Any) -> list[Synced]:
        answers: list[Synced] = []
        request = Sync(
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
            **options,
        )
        self.group.sync(request, answers.append, self.now_s)
        return answers

    def beat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance_id, generation, self.now_s)

    def commit(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.group.check_commit(member_id, instance_id, generation, self.now_s)

    def leave(self, *members: str | tuple[str, str | None]) -> list[ErrorCode]:
        stated = [(one, None) if isinstance(one, str) else one for one in members]
        return self.group.leave(stated, self.now_s)

    def wait(self, seconds: float) -> None:
        """Let time pass; ticks come when they are due."""
        end_s = self.now_s + seconds
        while self.group.wake_s <= end_s:
            self.now_s = max(self.now_s, self.group.wake_s)
            self.group.tick(self.now_s)
        self.now_s = end_s

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """Make the group stable with that many new members; their ids, the leader's first."""
        entered = [self.enter(**options) for _ in range(count)]
        self.wait(count * DELAY_S)
        assert [one[1][0].code for one in entered] == [NONE] * count
        ids = [one[0] for one in entered]
        assert self.group.leader == ids[0]
        assigned = [(one, f"to {one}".encode()) for one in ids]
        for one in [*ids[1:], ids[0]]:
            self.sync(one, assignments=assigned if one == ids[0] else ())
        assert self.group.state is State.STABLE
        return ids


@pytest.fixture
def ground() -> Ground:
    return Ground()


# --- Joining.
def test_a_first_join_gives_an_id_and_the_second_joins(ground: Ground) -> None:
    (first,) = ground.join()
    assert first == Joined(code=ErrorCode.member_id_required, member_id="c-0")
    assert not ground.group.is_idle
    answers = ground.join("c-0")
    assert (answers, ground.state()) == ([], State.PREPARING)
    ground.wait(DELAY_S)
    (joined,) = answers
    assert (joined.code, joined.generation, joined.leader) == (NONE, 1, "c-0")
    assert (joined.protocol_type, joined.protocol, joined.skip_assignment) == ("consumer", "range", False)
    assert [(one.member_id, one.metadata) for one in joined.members] == [("c-0", b"m")]


def test_an_old_client_joins_at_once(ground: Ground) -> None:
    answers = ground.join(needs_member_id=False)
    ground.wait(DELAY_S)
    assert (answers[0].code, answers[0].member_id) == (NONE, "c-0")


def test_an_id_that_is_not_used_is_forgotten(ground: Ground) -> None:
    (first,) = ground.join()
    ground.wait(SESSION_S)
    assert ground.group.is_idle
    assert ground.join(first.member_id)[0].code is ErrorCode.unknown_member_id


def test_the_first_rebalance_waits_for_more_members_within_the_rebalance_timeout(ground: Ground) -> None:
    first = ground.enter(rebalance_timeout_s=7.0)[1]
    ground.wait(DELAY_S - 1)
    second = ground.enter(rebalance_timeout_s=7.0)[1]
    ground.wait(1)
    assert (first, second) == ([], [])
    ground.enter(rebalance_timeout_s=7.0)
    ground.wait(DELAY_S)
    ground.enter(rebalance_timeout_s=7.0)
    ground.wait(0.9)
    assert first == []
    ground.wait(0.1)
    assert first[0].generation == second[0].generation == 1
    assert len(first[0].members) == 4
    assert second[0].members == ()


def test_without_a_delay_the_first_tick_completes_the_join() -> None:
    ground = Ground(delay_s=0.0)
    answers = ground.enter()[1]
    ground.wait(0)
    assert answers[0].generation == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"protocols": "sticky:"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ""}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "x", "instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
)
def test_a_join_that_a_stable_group_refuses(ground: Ground, options: dict[str, Any], code: ErrorCode) -> None:
    ground.stable()
    (answer,) = ground.join(**options)
    assert (answer.code, answer.member_id) == (code, options.get("member_id", ""))
    assert ground.state() is State.STABLE


@pytest.mark.parametrize("options", [{"protocols": ""}, {"protocol_type": ""}])
def test_an_empty_group_needs_a_type_and_an_assignor(ground: Ground, options: dict[str, Any]) -> None:
    assert ground.join(**options)[0].code is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_may_change_its_type(ground: Ground) -> None:
    (member,) = ground.stable()
    ground.leave(member)
    assert (ground.state(), ground.group.protocol_type) == (State.EMPTY, "consumer")
    answers = ground.enter("sessioned:w", protocol_type="connect")[1]
    ground.wait(DELAY_S)
    assert (answers[0].protocol_type, answers[0].protocol, answers[0].generation) == (
        "connect",
        "sessioned",
        3,
    )


def test_the_assignor_that_most_prefer_of_those_that_all_support(ground: Ground) -> None:
    ground.enter("range:1 sticky:2 old:3")
    ground.enter("sticky:4 range:5")
    answers = ground.enter("sticky:6 range:7 new:8")[1]
    ground.wait(2 * DELAY_S)
    assert answers[0].protocol == "sticky"
    # The leader gets the metadata for that one.
    assert [one.metadata(ground.group.protocol) for one in ground.group.members] == [b"2", b"4", b"6"]


def test_a_member_that_joins_again_with_other_metadata_begins_a_rebalance(ground: Ground) -> None:
    leader, other = ground.stable(2)
    answers = ground.join(other, "range:changed")
    assert (answers, ground.state()) == ([], State.PREPARING)
    assert ground.beat(leader) is ErrorCode.rebalance_in_progress
    lead = ground.join(leader)
    assert (answers[0].generation, lead[0].generation) == (2, 2)
    assert [one.metadata for one in lead[0].members] == [b"m", b"changed"]


def test_a_follower_that_joins_again_unchanged_gets_the_generation(ground: Ground) -> None:
    leader, other = ground.stable(2)
    (answer,) = ground.join(other)
    assert (answer.generation, answer.leader, answer.members) == (1, leader, ())
    assert ground.state() is State.STABLE
    assert ground.join(leader) == []
    assert ground.state() is State.PREPARING


def test_a_lost_answer_of_a_join_is_given_again(ground: Ground) -> None:
    (leader, first), (other, _) = ground.enter(), ground.enter()
    ground.wait(2 * DELAY_S)
    assert ground.state() is State.COMPLETING
    assert ground.join(leader) == first
    assert ground.join(other)[0].members == ()
    # With other metadata it is a rebalance, and those that wait for an assignment join again.
    waiting = ground.sync(other)
    ground.join(leader, "range:new")
    assert waiting == [Synced(code=ErrorCode.rebalance_in_progress)]
    assert ground.state() is State.PREPARING


def test_a_join_that_is_sent_again_answers_the_first_one(ground: Ground) -> None:
    leader, other = ground.stable(2)
    first = ground.join(leader)
    second = ground.join(leader)
    assert [one.code for one in first] == [ErrorCode.rebalance_in_progress]
    ground.join(other)
    assert second[0].generation == 2


# --- Bounds.
def test_a_full_group_refuses_new_members() -> None:
    ground = Ground(members_max=2)
    ground.stable(2)
    assert ground.join()[0].code is ErrorCode.group_max_size_reached
    assert ground.state() is State.STABLE


def test_members_beyond_the_limit_are_refused_while_members_join() -> None:
    ground = Ground(members_max=2)
    leader, other = ground.stable(2)
    # The limit is lowered, for example by a restart.
    ground.group.limits = replace(ground.group.limits, members_max=1)
    first = ground.join(leader)
    assert ground.join(other)[0].code is ErrorCode.group_max_size_reached
    ground.wait(REBALANCE_S)
    assert (first[0].generation, len(first[0].members)) == (2, 1)


def test_a_member_with_many_assignors_counts_what_it_takes(ground: Ground) -> None:
    stated = tuple((f"{number:04}", bytes([number % 256])) for number in range(5000))
    tracemalloc.start()
    try:
        # As from a request: the texts are its own.
        ground.join(protocols=" ".join(f"{name}:m" for name, _ in stated), needs_member_id=False)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= ground.group.size <= 2 * taken


def test_characters_of_several_bytes_are_counted(ground: Ground) -> None:
    tracemalloc.start()
    try:
        names = ["\U0001f600" * 10_000 + str(number) for number in range(20)]
        ground.join(protocols=" ".join(f"{name}:m" for name in names), needs_member_id=False)
        del names
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken > 20 * 40_000
    assert taken <= ground.group.size


def test_ids_that_are_given_out_are_bounded() -> None:
    ground = Ground(members_max=3)
    codes = [ground.join()[0].code for _ in range(4)]
    assert codes == [ErrorCode.member_id_required] * 3 + [ErrorCode.group_max_size_reached]
    ground.wait(SESSION_S)
    assert ground.join()[0].code is ErrorCode.member_id_required


def test_a_new_member_waits_five_minutes_at_most(ground: Ground) -> None:
    (leader, other) = ground.stable(2, rebalance_timeout_s=1000.0)
    answers = ground.enter(rebalance_timeout_s=1000.0)[1]
    for _ in range(int(NEW_MEMBER_JOIN_S)):
        assert answers == []
        ground.wait(1)
        for one in (leader, other):
            assert ground.beat(one) is ErrorCode.rebalance_in_progress
    assert [one.code for one in answers] == [ErrorCode.unknown_member_id]
    assert answers[0].member_id == ""


# --- Sync.
def test_the_leader_assigns(ground: Ground) -> None:
    leader, other, third = (ground.enter()[0] for _ in range(3))
    ground.wait(3 * DELAY_S)
    waiting = ground.sync(other)
    assert waiting == []
    lead = ground.sync(leader, assignments=[(leader, b"1"), (other, b"2"), ("unknown", b"3")])
    assert (lead[0].assignment, waiting[0].assignment) == (b"1", b"2")
    assert (lead[0].protocol_type, lead[0].protocol) == ("consumer", "range")
    assert ground.state() is State.STABLE
    # Nothing was assigned to it.
    assert ground.sync(third)[0] == Synced(protocol_type="consumer", protocol="range", assignment=b"")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"generation": 0}, ErrorCode.illegal_generation),
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"instance_id": "i"}, ErrorCode.unknown_member_id),
        ({"protocol": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
    ],
)
def test_a_sync_that_is_refused(ground: Ground, options: dict[str, Any], code: ErrorCode) -> None:
    (leader,) = ground.stable()
    assert ground.sync(**({"member_id": leader} | options)) == [Synced(code=code)]


def test_a_sync_during_a_rebalance(ground: Ground) -> None:
    leader, other = ground.stable(2)
    ground.join(leader)
    assert ground.sync(other) == [Synced(code=ErrorCode.rebalance_in_progress)]


def test_a_sync_that_is_sent_again_answers_the_first_one(ground: Ground) -> None:
    leader, other = (ground.enter()[0] for _ in range(2))
    ground.wait(2 * DELAY_S)
    first, second = ground.sync(other), ground.sync(other)
    ground.sync(leader, assignments=[(other, b"2")])
    assert [one.code for one in first] == [ErrorCode.rebalance_in_progress]
    assert [one.assignment for one in second] == [b"2"]


def test_members_without_a_sync_are_removed(ground: Ground) -> None:
    options: dict[str, Any] = {"session_timeout_s": 1000.0}
    leader, other, third = (ground.enter(**options)[0] for _ in range(3))
    ground.wait(3 * DELAY_S)
    waiting = ground.sync(other)
    ground.wait(REBALANCE_S)
    # The leader is one of them.
    assert waiting == [Synced(code=ErrorCode.rebalance_in_progress)]
    assert [one.member_id for one in ground.group.members] == [other]
    assert ground.group.leader == other
    for gone in (leader, third):
        assert ground.beat(gone) is ErrorCode.unknown_member_id


def test_a_follower_that_never_syncs_is_removed_from_a_stable_group(ground: Ground) -> None:
    leader, other = (ground.enter(session_timeout_s=1000.0)[0] for _ in range(2))
    ground.wait(2 * DELAY_S)
    ground.sync(leader, assignments=[(leader, b"1"), (other, b"2")])
    ground.wait(REBALANCE_S)
    assert ground.state() is State.PREPARING
    assert [one.member_id for one in ground.group.members] == [leader]


# --- Heartbeats and sessions.
def test_heartbeats_keep_a_member(ground: Ground) -> None:
    (leader,) = ground.stable()
    for _ in range(10):
        ground.wait(SESSION_S - 1)
        assert ground.beat(leader) is NONE
    ground.wait(SESSION_S)
    assert ground.beat(leader) is ErrorCode.unknown_member_id
    assert (ground.state(), ground.group.protocol, ground.group.generation) == (State.EMPTY, None, 2)
    assert ground.group.size == 0


def test_a_heartbeat_of_another_generation_or_member(ground: Ground) -> None:
    (leader,) = ground.stable()
    assert ground.beat(leader, 2) is ErrorCode.illegal_generation
    assert ground.beat("x") is ErrorCode.unknown_member_id
    assert Ground().beat("x") is ErrorCode.unknown_member_id
    assert ground.beat(leader, instance_id="i") is ErrorCode.unknown_member_id


def test_a_member_that_ends_begins_a_rebalance(ground: Ground) -> None:
    leader, other = ground.stable(2)
    ground.wait(SESSION_S - 1)
    ground.beat(other)
    ground.wait(1)
    assert ground.state() is State.PREPARING
    answers = ground.join(other)
    assert (answers[0].generation, answers[0].leader) == (2, other)
    assert ground.beat(leader) is ErrorCode.unknown_member_id


def test_members_that_wait_for_an_answer_do_not_end(ground: Ground) -> None:
    leader, other = ground.stable(2)
    answers = ground.join(leader)
    ground.wait(SESSION_S - 1)
    ground.beat(other)
    ground.wait(SESSION_S - 1)
    ground.beat(other)
    ground.wait(5)
    ground.join(other)
    assert answers[0].generation == 2
    waiting = ground.sync(other)
    ground.wait(SESSION_S - 1)
    ground.beat(leader)
    ground.wait(SESSION_S - 1)
    assert waiting == []
    ground.sync(leader, assignments=[(other, b"2")])
    assert waiting[0].assignment == b"2"
    ground.wait(SESSION_S - 1)
    assert ground.beat(other) is NONE


def test_members_that_do_not_join_in_time_are_removed(ground: Ground) -> None:
    leader, other = ground.stable(2)
    answers = ground.join(other, "range:changed")
    for _ in range(12):
        assert answers == []
        assert ground.beat(leader) is ErrorCode.rebalance_in_progress
        ground.wait(REBALANCE_S / 12)
    assert (answers[0].generation, answers[0].leader, len(answers[0].members)) == (2, other, 1)
    assert ground.beat(leader) is ErrorCode.unknown_member_id


# --- Leaving.
def test_a_member_leaves(ground: Ground) -> None:
    leader, other = ground.stable(2)
    assert ground.leave(leader, "x", ("", None), ("", "i")) == [NONE] + 3 * [ErrorCode.unknown_member_id]
    assert (ground.state(), ground.group.leader) == (State.PREPARING, other)
    assert ground.leave("x") == [ErrorCode.unknown_member_id]
    assert ground.join(other)[0].generation == 2
    assert ground.leave(other) == [NONE]
    assert ground.state() is State.EMPTY


def test_leaving_answers_the_requests_that_wait(ground: Ground) -> None:
    leader, other = ground.stable(2)
    joining = ground.join(leader)
    ground.leave(leader)
    assert [(one.code, one.member_id) for one in joining] == [(ErrorCode.unknown_member_id, "")]
    ground.join(other)
    ground.join()
    syncing = ground.sync(other, generation=2)
    assert syncing[0].code is NONE
    ground.leave(other)
    assert ground.state() is State.PREPARING, "an id was given out and is not used yet"
    ground.wait(SESSION_S)
    assert ground.state() is State.EMPTY


def test_a_leaving_member_completes_the_rebalance_of_the_others(ground: Ground) -> None:
    leader, other, third = ground.stable(3)
    answers = [ground.join(leader), ground.join(other)]
    ground.leave(third)
    assert [one[0].generation for one in answers] == [2, 2]


def test_an_unused_id_can_leave(ground: Ground) -> None:
    (leader,) = ground.stable()
    (first,) = ground.join()
    again = ground.join(leader)
    assert ground.state() is State.PREPARING
    assert ground.leave(first.member_id) == [NONE]
    assert again[0].generation == 2


# --- Static members.
def test_a_static_member_that_restarts_takes_over_its_assignment(ground: Ground) -> None:
    (leader, _), (other, _) = ground.enter(instance_id="a"), ground.enter(instance_id="b")
    assert leader.startswith("a-")
    ground.wait(2 * DELAY_S)
    ground.sync(other, instance_id="b")
    ground.sync(leader, instance_id="a", assignments=[(leader, b"1"), (other, b"2")])
    (answer,) = ground.join(instance_id="b")
    assert (answer.generation, answer.leader, answer.skip_assignment, answer.members) == (
        1,
        leader,
        False,
        (),
    )
    assert ground.sync(answer.member_id, instance_id="b")[0].assignment == b"2"
    (answer,) = ground.join(instance_id="a")
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert {one.instance_id for one in answer.members} == {"a", "b"}
    assert ground.state() is State.STABLE
    # A client that cannot skip must not believe that it leads.
    (older,) = ground.join(instance_id="a", may_skip_assignment=False)
    assert (older.leader, older.skip_assignment, older.members) == (answer.member_id, False, ())
    assert ground.group.leader == older.member_id


def test_the_process_with_the_old_id_is_fenced(ground: Ground) -> None:
    (old, _) = ground.enter(instance_id="a")
    ground.wait(DELAY_S)
    ground.sync(old, assignments=())
    ground.join(instance_id="a")
    fenced = ErrorCode.fenced_instance_id
    assert ground.beat(old, instance_id="a") is fenced
    assert ground.commit(old, 1, "a") is fenced
    assert ground.sync(old, instance_id="a")[0].code is fenced
    assert ground.join(old, instance_id="a")[0].code is fenced
    assert ground.leave((old, "a")) == [fenced]
    # Without its instance id it is only unknown.
    assert ground.beat(old) is ErrorCode.unknown_member_id


def test_requests_of_the_old_id_that_wait_are_fenced(ground: Ground) -> None:
    leader, _ = ground.enter()
    old, joining = ground.enter(instance_id="a")
    new = ground.join(instance_id="a")
    assert [(one.code, one.member_id) for one in joining] == [(ErrorCode.fenced_instance_id, old)]
    ground.wait(2 * DELAY_S)
    member_id = new[0].member_id
    assert member_id != old
    syncing = ground.sync(member_id, instance_id="a")
    # The leader may assign to the old id, so there is another rebalance.
    newest = ground.join(instance_id="a")
    assert [one.code for one in syncing] == [ErrorCode.fenced_instance_id]
    assert ground.state() is State.PREPARING
    ground.join(leader)
    assert newest[0].generation == 2


def test_a_static_member_that_restarts_with_another_assignor(ground: Ground) -> None:
    (leader, _) = ground.enter("range:1 sticky:2", instance_id="a")
    ground.wait(DELAY_S)
    ground.sync(leader, assignments=())
    (answer,) = ground.join(instance_id="a", protocols="sticky:2 range:1")
    assert (answer.protocol, answer.generation, answer.skip_assignment) == ("sticky", 2, False)


def test_a_static_member_stays_through_a_rebalance_and_until_its_session_ends(ground: Ground) -> None:
    options: dict[str, Any] = {"instance_id": "a", "session_timeout_s": 100.0, "rebalance_timeout_s": 20.0}
    leader, _ = ground.enter(rebalance_timeout_s=20.0)
    static, _ = ground.enter(**options)
    ground.wait(2 * DELAY_S)
    ground.sync(leader, assignments=())
    ground.sync(static)
    answers = ground.join(leader, rebalance_timeout_s=20.0)
    ground.wait(20)
    assert [one.instance_id for one in answers[0].members] == [None, "a"]
    # It did not ask for its assignment, so it goes with the end of the second phase.
    assert ground.sync(leader, assignments=())[0].code is NONE
    for _ in range(4):
        assert ground.beat(leader) is NONE
        ground.wait(5)
    assert [one.member_id for one in ground.group.members] == [leader]


def test_a_static_member_alone_does_not_complete_a_rebalance(ground: Ground) -> None:
    options: dict[str, Any] = {"session_timeout_s": 100.0, "rebalance_timeout_s": 20.0}
    leader, _ = ground.enter(**options, instance_id="a")
    other, _ = ground.enter(**options)
    ground.wait(2 * DELAY_S)
    ground.sync(leader, assignments=())
    ground.sync(other)
    ground.leave(other)
    assert ground.state() is State.PREPARING
    ground.wait(21)
    assert (ground.state(), ground.group.generation) == (State.PREPARING, 1)
    again = ground.join(instance_id="a")
    assert again[0].generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance(ground: Ground) -> None:
    ground.enter(instance_id="a")
    ground.wait(DELAY_S)
    assert ground.leave(("", "a")) == [NONE]
    assert ground.state() is State.EMPTY


# --- Commits.
def test_commits_of_members_and_of_others(ground: Ground) -> None:
    assert ground.commit("", -1) is NONE
    assert ground.commit("x", -1) is NONE, "as in Kafka, for a group without members"
    assert ground.commit("", 0) is ErrorCode.unknown_member_id
    (leader,) = ground.stable()
    assert ground.commit(leader, 1) is NONE
    assert ground.commit(leader, 0) is ErrorCode.illegal_generation
    assert ground.commit(leader, -1) is ErrorCode.illegal_generation
    assert ground.commit("x", 1) is ErrorCode.unknown_member_id
    assert ground.commit("", -1) is ErrorCode.unknown_member_id
    assert ground.commit("", -1, "a") is ErrorCode.unknown_member_id


def test_commits_during_a_rebalance(ground: Ground) -> None:
    leader, other = ground.stable(2)
    ground.join(leader)
    # Before it joins again, a member commits what it has read.
    assert ground.commit(other, 1) is NONE
    ground.join(other)
    assert ground.state() is State.COMPLETING
    assert ground.commit(leader, 2) is ErrorCode.rebalance_in_progress


def test_a_commit_keeps_a_member(ground: Ground) -> None:
    (leader,) = ground.stable()
    for _ in range(3):
        ground.wait(SESSION_S - 1)
        assert ground.commit(leader, 1) is NONE


def test_commits_in_a_transaction(ground: Ground) -> None:
    def commit(member_id: str, generation: int) -> ErrorCode:
        return ground.group.check_commit(member_id, None, generation, ground.now_s, transactional=True)

    assert commit("", -1) is NONE
    leader, other = ground.stable(2)
    assert commit(leader, 1) is NONE
    assert commit(leader, 0) is ErrorCode.illegal_generation
    assert commit("x", 1) is ErrorCode.unknown_member_id
    assert commit("", -1) is NONE, "an earlier client states no member"
    assert commit("x", -1) is ErrorCode.unknown_member_id
    ground.join(leader)
    assert commit(other, 1) is NONE
    ground.join(other)
    assert ground.state() is State.COMPLETING
    assert commit(leader, 2) is NONE
    assert commit(other, 1) is ErrorCode.illegal_generation


def test_a_commit_in_a_transaction_does_not_keep_a_member(ground: Ground) -> None:
    (leader,) = ground.stable()
    ground.wait(SESSION_S - 1)
    assert ground.group.check_commit(leader, None, 1, ground.now_s, transactional=True) is NONE
    ground.wait(2)
    assert ground.beat(leader, 1) is ErrorCode.unknown_member_id


# --- The end of coordination.
def test_a_dissolved_group_answers_what_waits(ground: Ground) -> None:
    leader, _ = ground.stable(2)
    joining = ground.join(leader)
    ground.group.dissolve(ErrorCode.not_coordinator)
    assert [(one.code, one.member_id) for one in joining] == [(ErrorCode.not_coordinator, leader)]
    assert (ground.state(), ground.group.wake_s, ground.group.size) == (State.DEAD, NEVER, 0)
    assert ground.beat(leader) is ErrorCode.unknown_member_id


# --- Topics.
def metadata(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(one.encode())) + one.encode() for one in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def test_whether_a_group_consumes_a_topic(ground: Ground) -> None:
    assert not ground.group.is_subscribed("orders")
    (member,) = ground.stable(protocols="range:m")
    # What cannot be read may name any topic.
    assert ground.group.is_subscribed("orders")
    ground.join(member, "range:m")
    ground.group._members[member].protocols = (("range", metadata("orders")),)
    assert (ground.group.is_subscribed("orders"), ground.group.is_subscribed("clicks")) == (True, False)
    ground.group.protocol_type = "connect"
    assert not ground.group.is_subscribed("orders")


# --- Everything.
def check(group: Group) -> None:
    """What is true of a group at any time."""
    members = list(group.members)
    assert (group.leader in group._members) == bool(members)
    assert group.size == sum(one.size for one in members) + MEMBER_BYTES * len(group._pending)
    assert group._unsynced <= set(group._members)
    assert group._static == {one.instance_id: one.member_id for one in members if one.instance_id}
    assert group._joining.keys() <= group._members.keys()
    counts: dict[str, int] = {}
    for name, _ in itertools.chain.from_iterable(one.protocols for one in members):
        counts[name] = counts.get(name, 0) + 1
    assert group._supported == counts
    if members:
        assert len(members) in counts.values(), "all support one assignor"
    due = [
        group._join_due_s,
        group._sync_due_s,
        *group._pending.values(),
        *(one.deadline_s for one in members),
    ]
    assert group.wake_s <= min(due)
    if group.state in (State.EMPTY, State.STABLE):
        assert group._join_due_s == NEVER
        assert not group._joining
        assert not any(one.syncing for one in members)
    if group.state is State.PREPARING:
        assert group._join_due_s < NEVER
        assert not any(one.syncing for one in members)
    if group.state is State.EMPTY:
        assert not members
    if group.state in (State.COMPLETING, State.STABLE):
        assert members
        assert (group._sync_due_s < NEVER) == bool(group._unsynced)


@pytest.mark.parametrize("seed", range(60))
def test_random_clients(seed: int) -> None:
    chance = random.Random(seed)
    ground = Ground(members_max=chance.choice([2, 5]), delay_s=chance.choice([0.0, DELAY_S]))
    ids = ["", "unknown"]
    asked: list[list[Any]] = []
    for _ in range(400):
        kind = chance.choice(["join", "join", "join", "sync", "sync", "beat", "leave", "commit", "wait"])
        instance = chance.choice([None, None, "a", "b"])
        member = chance.choice(ids)
        generation = ground.group.generation - chance.choice([0, 0, 0, 0, 1])
        if kind == "join":
            answers = ground.join(
                member,
                chance.choice(["range:1", "range:1 sticky:2", "sticky:2 range:3"]),
                instance_id=instance,
                protocol_type=chance.choice(["consumer"] * 9 + ["connect"]),
                needs_member_id=chance.random() < 0.7,
                may_skip_assignment=chance.random() < 0.5,
            )
            asked.append(answers)
        elif kind == "sync":
            if chance.random() < 0.5:
                member = ground.group.leader or member
            asked.append(ground.sync(member, generation, instance_id=instance, assignments=[(member, b"x")]))
        elif kind == "beat":
            ground.beat(member, generation, instance)
        elif kind == "commit":
            ground.commit(member, generation, instance)
        elif kind == "leave":
            ground.leave((member, instance))
        else:
            ground.wait(chance.choice([0.0, 1.0, DELAY_S, SESSION_S / 2]))
        ids = ["", "unknown", *(one.member_id for one in ground.group.members), *ground.group._pending]
        check(ground.group)
    # Without requests everything is answered and the group becomes empty.
    ground.wait(NEW_MEMBER_JOIN_S + 3 * REBALANCE_S + SESSION_S)
    check(ground.group)
    assert ground.group.is_idle
    assert (ground.state(), ground.group.wake_s) == (State.EMPTY, NEVER)
    assert [len(one) for one in asked] == [1] * len(asked)
