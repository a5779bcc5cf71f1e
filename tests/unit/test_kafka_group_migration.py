"""A group that moves between the classic protocol and the consumer protocol while its members consume."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import LEAVE, LEAVE_STATIC, Beat, beat_of_join
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.embedded_protocol import read_assignment, write_assignment
from archiver.kafka.group import Join, Joined, State, Sync, Synced
from archiver.kafka.group_migration import READ_MAX
from archiver.kafka.topic_configs import Refused
from tests.support.kafka.migrating import DELAY_S, Migrating, metadata, named, parts, text

SESSION_S, REBALANCE_S = 10.0, 60.0


def ignored(answer: object) -> None:
    """A reply that does not matter."""
    del answer


class Ground(Migrating):
    """A group of which the members are written by hand."""

    def enter(self, member_id: str = "", owned: str = "", names: str = "a", **options: Any) -> list[Joined]:
        """Send a JoinGroup; the list has the answer once there is one."""
        stated: dict[str, Any] = {
            "protocols": (("range", metadata(names, owned)),),
            "client_id": "c",
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S,
            "needs_member_id": False,
        }
        answers: list[Joined] = []
        self.join(Join(member_id=member_id, **(stated | options)), answers.append)
        return answers

    def begin(self) -> None:
        """Let the first rebalance of a classic group end."""
        for _ in range(3):
            self.tick(DELAY_S)

    def rejoin(self, member_id: str, owned: str = "", **options: Any) -> Joined:
        (answer,) = self.enter(member_id, owned, **options)
        return answer

    def refused_join(self, member_id: str, owned: str = "", **options: Any) -> ErrorCode:
        with pytest.raises(Refused) as error:
            self.enter(member_id, owned, **options)
        return error.value.code

    def synced(self, member_id: str, generation: int, **options: Any) -> str:
        answers: list[Synced] = []
        self.sync(Sync(member_id=member_id, generation=generation, **options), answers.append)
        (answer,) = answers
        assert answer.code is ErrorCode.none
        return text(named(read_assignment(answer.assignment).assigned))

    def refused_sync(self, member_id: str, generation: int, **options: Any) -> ErrorCode:
        with pytest.raises(Refused) as error:
            self.synced(member_id, generation, **options)
        return error.value.code

    def refused_beat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        with pytest.raises(Refused) as error:
            self.alive(member_id, generation, instance_id)
        return error.value.code

    def first_beat(self, member_id: str, **options: Any) -> Any:
        stated: dict[str, Any] = {"rebalance_timeout_s": REBALANCE_S, "names": frozenset("a")} | options
        return self.beat(Beat(member_id=member_id, epoch=0, owned=frozenset(), **stated))

    def next_beat(self, member_id: str, epoch: int, owned: str | None = None, **options: Any) -> Any:
        stated = None if owned is None else parts(owned)
        return self.beat(Beat(member_id=member_id, epoch=epoch, owned=stated, **options))

    def two_classic(self, **options: Any) -> tuple[str, str, int]:
        """Two members of a stable classic group: the first has a0 and a1, the second a2 and a3."""
        first, second = self.enter(**options), self.enter(**options)
        self.begin()
        one, other = first[0], second[0]
        assignments = [
            (one.member_id, write_assignment([("a", 0), ("a", 1)], 1)),
            (other.member_id, write_assignment([("a", 2), ("a", 3)], 1)),
        ]
        answers: list[Synced] = []
        for member_id in (one.member_id, other.member_id):
            sync = Sync(member_id=member_id, generation=1, assignments=assignments)
            self.sync(sync, answers.append)
        assert self.classic().state is State.STABLE
        return one.member_id, other.member_id, 1

    def settled(self, member_id: str, owned: str = "") -> tuple[int, str]:
        """Join again; generation and assignment."""
        joined = self.rejoin(member_id, owned)
        return joined.generation, self.synced(member_id, joined.generation)

    def settled_static(self, member_id: str, instance_id: str) -> str:
        joined = self.rejoin(member_id, instance_id=instance_id)
        return self.synced(member_id, joined.generation, instance_id=instance_id)


# --- From the classic to the consumer protocol


def test_members_that_revoke_everything_first() -> None:
    ground = Ground()
    one, other, generation = ground.two_classic()
    new = ground.first_beat("m")
    assert (text(new.assignment), ground.consumers().state) == ("", State.RECONCILING)
    for member_id in (one, other):
        ground.commit(member_id, generation)
        assert ground.alive(member_id, generation) is ErrorCode.rebalance_in_progress
    assert ground.owners() == {"a0": one, "a1": one, "a2": other, "a3": other}
    assert ground.rejoin(other) == Joined(
        member_id=other, generation=new.epoch, protocol_type="consumer", protocol="range"
    )
    assert ground.synced(other, new.epoch) == "a2"
    assert ground.alive(other, new.epoch) is ErrorCode.none
    ground.commit(other, new.epoch)
    assert ground.refused_commit(other, generation) is ErrorCode.illegal_generation
    assert text(ground.next_beat("m", new.epoch).assignment) == "a3"
    # The other one keeps what it has, and joins again to learn the generation.
    assert ground.settled(one) == (new.epoch, "a0 a1")
    assert ground.consumers().state is State.STABLE


def test_members_that_revoke_only_what_they_must() -> None:
    ground = Ground()
    one, other, generation = ground.two_classic()
    new = ground.first_beat("m")
    joined = ground.rejoin(other, "a2 a3")
    assert joined.generation == generation
    # It reads on, and commits before it gives the partition up.
    assert ground.synced(other, generation) == "a2"
    ground.commit(other, generation)
    assert ground.next_beat("m", new.epoch).assignment is None
    assert ground.alive(other, generation) is ErrorCode.rebalance_in_progress
    assert ground.rejoin(other, "a2").generation == new.epoch
    assert ground.synced(other, new.epoch) == "a2"
    assert text(ground.next_beat("m", new.epoch).assignment) == "a3"
    assert ground.settled(one, "a0 a1") == (new.epoch, "a0 a1")


def test_a_classic_member_that_waits_joins_again_once_partitions_are_free() -> None:
    ground = Ground()
    ground.first_beat("m")
    first = ground.rejoin("", "")
    assert ground.synced(first.member_id, first.generation) == ""
    assert ground.alive(first.member_id, first.generation) is ErrorCode.none
    ground.next_beat("m", ground.epoch("m"))
    assert ground.alive(first.member_id, first.generation) is ErrorCode.none
    ground.next_beat("m", ground.epoch("m"), "a0 a1")
    assert ground.alive(first.member_id, first.generation) is ErrorCode.rebalance_in_progress
    assert ground.settled(first.member_id) == (first.generation, "a2 a3")
    assert ground.alive(first.member_id, first.generation) is ErrorCode.none


def test_what_a_cooperative_member_may_not_have_given_up_yet_has_an_owner() -> None:
    ground = Ground()
    one, other, _ = ground.two_classic()
    # A rebalance of the classic group: the first has joined with both, and is to give up one.
    answers = ground.enter(one, "a0 a1"), ground.enter(other, "a2 a3")
    generation = answers[0][0].generation
    sync = Sync(member_id=one, generation=generation, assignments=[(one, write_assignment([("a", 0)], 1))])
    ground.sync(sync, ignored)
    new = ground.first_beat("m")
    assert ground.owners() == {"a0": one, "a1": one, "a2": other, "a3": other}
    # It has given it up, and gets it again.
    assert ground.settled(one, "a0") == (new.epoch, "a0 a1")


def test_what_waits_in_the_classic_group_is_answered() -> None:
    ground = Ground()
    one, other, generation = ground.two_classic()
    waiting = ground.enter(one, "a0")
    new_member = ground.enter()
    assert waiting == new_member == []
    ground.first_beat("m")
    assert (waiting[0].code, waiting[0].member_id) == (ErrorCode.none, one)
    # It owns nothing, and joins from the beginning.
    assert (new_member[0].code, new_member[0].member_id) == (ErrorCode.unknown_member_id, "")
    assert len(ground.consumers().members) == 3
    assert ground.owners()["a0"] == one
    # A member that waits for its leader joins again.
    assert ground.alive(other, generation) is ErrorCode.rebalance_in_progress


def test_a_member_that_waits_for_its_leader_joins_again() -> None:
    ground = Ground()
    _, other, _ = ground.two_classic()
    ground.enter(ground.classic().leader or "")
    generation = ground.enter(other)[0].generation
    answers: list[Synced] = []
    ground.sync(Sync(member_id=other, generation=generation), answers.append)
    ground.first_beat("m")
    assert [one.code for one in answers] == [ErrorCode.rebalance_in_progress]


def refused_upgrade(ground: Ground, **options: Any) -> ErrorCode:
    with pytest.raises(Refused) as error:
        ground.first_beat("m", **options)
    return error.value.code


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": (("range", b"?"),)},
        {"protocols": (("range", struct.pack(">h", -1)),)},
    ],
)
def test_a_group_that_is_not_of_consumers_stays(options: dict[str, Any]) -> None:
    ground = Ground()
    one, _, generation = ground.two_classic(**options)
    assert refused_upgrade(ground) is ErrorCode.group_id_not_found
    assert ground.alive(one, generation) is ErrorCode.none


@pytest.mark.parametrize(("assignor", "moves"), [("streams", False), ("cooperative-sticky", True)])
def test_bytes_of_an_unknown_assignor_keep_a_group_in_its_protocol(assignor: str, moves: bool) -> None:
    ground = Ground()
    one, _, generation = ground.two_classic(protocols=((assignor, metadata("a", "")),))
    for member in ground.classic().members:
        member.assignment = member.assignment[:-4] + struct.pack(">i", 1) + b"u"
    if moves:
        ground.first_beat("m")
    else:
        assert refused_upgrade(ground) is ErrorCode.group_id_not_found
        assert ground.alive(one, generation) is ErrorCode.none


def test_a_group_with_too_much_metadata_stays() -> None:
    ground = Ground()
    one, _, generation = ground.two_classic(protocols=(("range", metadata("a", "") + bytes(READ_MAX // 2)),))
    assert refused_upgrade(ground) is ErrorCode.group_id_not_found
    assert ground.alive(one, generation) is ErrorCode.none


def test_a_refused_member_changes_nothing() -> None:
    ground = Ground(members_max=2)
    one, other, generation = ground.two_classic()
    assert refused_upgrade(ground) is ErrorCode.group_max_size_reached
    for member_id in (one, other):
        assert ground.alive(member_id, generation) is ErrorCode.none


def test_partitions_that_two_classic_members_have_get_one_owner() -> None:
    ground = Ground()
    one, other, _ = ground.two_classic()
    for member in ground.classic().members:
        member.assignment = write_assignment([("a", 0), ("gone", 1), ("a", 9)], 1)
    ground.first_beat("m")
    assert ground.owners()["a0"] == one
    assert other not in ground.owners().values()


def test_epochs_go_on() -> None:
    ground = Ground(first_epoch=50)
    _, _, generation = ground.two_classic()
    assert (generation, ground.first_beat("m").epoch) == (1, 51)
    ground.next_beat("m", LEAVE)
    assert ground.classic().generation == 51
    assert ground.first_beat("m").epoch == 52


# --- Back to the classic protocol


def test_the_group_is_a_classic_one_when_the_last_new_member_leaves() -> None:
    ground = Ground()
    one, other, _ = ground.two_classic()
    epoch = ground.first_beat("m").epoch
    for member_id in (one, other):
        ground.settled(member_id)
    ground.next_beat("m", LEAVE)
    group = ground.classic()
    assert (group.state, group.generation) == (State.PREPARING, epoch)
    for member_id in (one, other):
        assert ground.alive(member_id, epoch) is ErrorCode.rebalance_in_progress
        ground.commit(member_id, epoch)
    answers = ground.enter(one, "a0"), ground.enter(other, "a2 a3")
    (leading,) = answers[0]
    assert (leading.generation, leading.leader, len(leading.members)) == (epoch + 1, one, 2)


def test_the_group_is_a_classic_one_when_the_session_of_the_last_new_member_ends() -> None:
    ground = Ground()
    one, _, _ = ground.two_classic()
    epoch = ground.first_beat("m").epoch
    generation, _ = ground.settled(one)
    for _ in range(9):
        ground.tick(5)
        if ground.alive(one, generation) is ErrorCode.rebalance_in_progress:
            generation, _ = ground.settled(one)
    assert [member.member_id for member in ground.classic().members] == [one]
    # It gives up everything and joins again, which moves the group once more.
    with pytest.raises(Refused) as error:
        ground.next_beat("m", epoch)
    assert error.value.code is ErrorCode.unknown_member_id
    assert ground.first_beat("m").epoch > epoch


def test_a_group_without_members_stays_of_the_consumer_protocol() -> None:
    ground = Ground()
    ground.first_beat("m")
    ground.next_beat("m", LEAVE)
    assert ground.consumers().state is State.EMPTY


def test_what_a_member_may_still_read_has_an_owner_when_the_group_moves_twice() -> None:
    ground = Ground()
    one, other, generation = ground.two_classic()
    ground.first_beat("m")
    ground.rejoin(one, "a0 a1")
    # It has not given up its second partition yet.
    ground.next_beat("m", LEAVE)
    ground.first_beat("n")
    assert ground.owners() == {"a0": one, "a1": one, "a2": other, "a3": other}
    assert ground.refused_beat(one, generation) is ErrorCode.illegal_generation


# --- Members of the classic protocol in a group of the other one


def test_a_classic_member_joins_with_the_id_that_it_was_given() -> None:
    ground = Ground()
    ground.first_beat("m")
    asked = ground.rejoin("", needs_member_id=True)
    assert (asked.code, asked.member_id) == (ErrorCode.member_id_required, "c-new-0")
    assert len(ground.consumers().members) == 1
    assert ground.rejoin(asked.member_id, needs_member_id=True).code is ErrorCode.none
    assert len(ground.consumers().members) == 2


def test_a_removed_member_that_says_to_own_partitions_gives_them_up_first() -> None:
    ground = Ground()
    ground.first_beat("m")
    assert ground.refused_join("c-old", "a0") is ErrorCode.unknown_member_id
    assert ground.rejoin("c-old").code is ErrorCode.none


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (("range", b"?"),)},
        {"protocols": (("sticky", metadata("a", "")),)},
    ],
)
def test_a_classic_member_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    ground = Ground()
    ground.two_classic()
    ground.first_beat("m")
    assert ground.refused_join("", **options) is ErrorCode.inconsistent_group_protocol


def test_any_assignor_fits_a_group_without_classic_members() -> None:
    ground = Ground()
    ground.first_beat("m")
    sticky = ground.rejoin("", protocols=(("sticky", metadata("a", "")), ("range", metadata("a", ""))))
    assert sticky.protocol == "sticky"
    other = ground.rejoin("", protocols=(("range", metadata("a", "")),))
    assert other.protocol == "range"
    # Now all have only this one.
    assert ground.refused_join("", protocols=(("sticky", metadata("a", "")),)) is (
        ErrorCode.inconsistent_group_protocol
    )
    ground.next_beat("m", LEAVE)
    assert ground.classic().protocol == "range"


def test_a_full_group_refuses_a_classic_member() -> None:
    ground = Ground(members_max=1)
    ground.first_beat("m")
    for needs_member_id in (True, False):
        assert ground.refused_join("", needs_member_id=needs_member_id) is ErrorCode.group_max_size_reached


def test_requests_of_the_other_protocol_do_not_know_a_member() -> None:
    ground = Ground()
    epoch = ground.first_beat("m", instance_id="i").epoch
    joined = ground.rejoin("")
    classic = joined.member_id
    assert ground.refused_beat("m", epoch) is ErrorCode.unknown_member_id
    assert ground.refused_sync("m", epoch) is ErrorCode.unknown_member_id
    assert ground.refused_join("m") is ErrorCode.unknown_member_id
    assert ground.leave([("m", None), ("", "i"), ("n", None)]) == [ErrorCode.unknown_member_id] * 3
    for member_epoch in (joined.generation, LEAVE):
        with pytest.raises(Refused) as error:
            ground.next_beat(classic, member_epoch)
        assert error.value.code is ErrorCode.unknown_member_id


def test_a_generation_is_that_of_the_member() -> None:
    ground = Ground()
    ground.first_beat("m")
    joined = ground.rejoin("")
    member_id, generation = joined.member_id, joined.generation
    assert ground.refused_beat(member_id, generation + 1) is ErrorCode.illegal_generation
    assert ground.refused_sync(member_id, generation - 1) is ErrorCode.illegal_generation
    assert ground.refused_sync(member_id, generation, protocol="sticky") is (
        ErrorCode.inconsistent_group_protocol
    )
    assert ground.refused_sync(member_id, generation, protocol_type="connect") is (
        ErrorCode.inconsistent_group_protocol
    )
    assert ground.synced(member_id, generation, protocol="range", protocol_type="consumer") == ""
    # Its commits are also those of older versions.
    ground.commit(member_id, generation, states_epoch=False)
    assert ground.refused_commit("m", ground.epoch("m"), states_epoch=False) is ErrorCode.unsupported_version
    assert ground.refused_commit(member_id, generation + 1, transactional=True) is (
        ErrorCode.illegal_generation
    )


def test_an_assignment_that_is_out_of_date_is_not_given() -> None:
    ground = Ground()
    ground.first_beat("m")
    joined = ground.rejoin("")
    ground.first_beat("n")
    assert ground.refused_sync(joined.member_id, joined.generation) is ErrorCode.rebalance_in_progress


def test_a_classic_member_leaves() -> None:
    ground = Ground()
    one, _, _ = ground.two_classic()
    epoch = ground.first_beat("m").epoch
    assert ground.leave([(one, None), (one, None)]) == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert ground.epoch("m") == epoch
    assert text(ground.next_beat("m", epoch).assignment) == "a0 a1"


def test_the_session_timeout_of_a_classic_member_is_its_own() -> None:
    ground = Ground()
    one, other, generation = ground.two_classic()
    ground.first_beat("m")
    ground.tick(SESSION_S - 1)
    ground.alive(one, generation)
    ground.tick(1)
    assert ground.refused_beat(other, generation) is ErrorCode.unknown_member_id
    assert ground.alive(one, generation) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("has_joined", [False, True])
def test_a_classic_member_that_does_not_join_or_sync_is_removed(has_joined: bool) -> None:
    ground = Ground()
    one, _, generation = ground.two_classic()
    ground.first_beat("m")
    assert ground.alive(one, generation) is ErrorCode.rebalance_in_progress
    if has_joined:
        generation = ground.rejoin(one).generation
    for _ in range(11):
        ground.tick(5)
        ground.alive(one, generation)
        ground.next_beat("m", ground.epoch("m"))
    ground.tick(5)
    assert ground.refused_beat(one, generation) is ErrorCode.unknown_member_id


def test_a_classic_member_notices_new_partitions() -> None:
    ground = Ground()
    ground.first_beat("m")
    joined = ground.rejoin("")
    ground.next_beat("m", ground.epoch("m"))
    ground.next_beat("m", ground.epoch("m"), "a0 a1")
    ground.settled(joined.member_id)
    ground.grow(6)
    ground.tick(1)
    assert ground.alive(joined.member_id, joined.generation) is ErrorCode.rebalance_in_progress


def test_the_subscription_of_a_classic_member_is_that_of_its_join() -> None:
    ground = Ground()
    ground.topics |= ground.more("b", 2)
    ground.first_beat("m", names=frozenset("ab"))
    joined = ground.rejoin("", names="b")
    member = ground.member(joined.member_id)
    assert member.subscription.names == {"b"}
    ground.rejoin(joined.member_id, names="a")
    assert member.subscription.names == {"a"}
    assert {one for one, _ in member.target} == {"a" * 32}


def test_a_classic_member_gets_no_topics_that_it_may_not_see() -> None:
    ground = Ground()
    ground.topics |= ground.more("b", 2)
    ground.hidden["User:u"] = "a"
    ground.first_beat("m")
    joined = ground.rejoin("", names="ab", principal="User:u")
    assert ground.synced(joined.member_id, joined.generation) == "b0 b1"
    ground.next_beat("m", LEAVE)
    # Also after the group has moved, and to a member that waits.
    (asked,) = ground.enter(needs_member_id=True)
    waiting = ground.enter(joined.member_id, names="ab", principal="User:u")
    assert (asked.code, waiting) == (ErrorCode.member_id_required, [])
    ground.first_beat("m")
    assert waiting[0].code is ErrorCode.none
    subscribed = {one.member_id: set(one.subscription.names) for one in ground.consumers().members}
    assert subscribed == {joined.member_id: {"b"}, "m": {"a"}}
    ground.rejoin(joined.member_id, names="ab", principal="User:u")
    assert ground.member(joined.member_id).subscription.names == {"b"}


# --- Static members


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    ground = Ground()
    one = ground.enter(instance_id="i")
    other = ground.enter(instance_id="j")
    ground.begin()
    assignments = [
        (one[0].member_id, write_assignment([("a", 0), ("a", 1)], 1)),
        (other[0].member_id, write_assignment([("a", 2), ("a", 3)], 1)),
    ]
    ground.sync(Sync(member_id=one[0].member_id, generation=1, assignments=assignments), ignored)
    # It does not leave before, as static members of the classic protocol do.
    new = ground.first_beat("m", instance_id="i")
    assert text(new.assignment) == "a0 a1"
    assert ground.refused_beat(one[0].member_id, 1, "i") is ErrorCode.fenced_instance_id
    assert ground.settled(other[0].member_id)[1] == "a2 a3"
    # And back.
    assert ground.next_beat("m", LEAVE_STATIC, instance_id="i").epoch == LEAVE_STATIC
    back = ground.rejoin("", instance_id="i")
    assert back.code is ErrorCode.none
    assert ground.classic().state is State.PREPARING
    assert ground.alive(back.member_id, back.generation) is ErrorCode.rebalance_in_progress


def test_a_static_member_of_the_classic_protocol_is_replaced_by_another() -> None:
    ground = Ground()
    ground.first_beat("m")
    first = ground.rejoin("", instance_id="i")
    ground.next_beat("m", ground.epoch("m"))
    ground.next_beat("m", ground.epoch("m"), "a0 a1")
    assert ground.settled_static(first.member_id, "i") == "a2 a3"
    second = ground.rejoin("", instance_id="i")
    assert second.member_id != first.member_id
    assert ground.synced(second.member_id, second.generation, instance_id="i") == "a2 a3"
    assert ground.refused_beat(first.member_id, first.generation, "i") is ErrorCode.fenced_instance_id
    assert ground.refused_join(first.member_id, instance_id="i") is ErrorCode.fenced_instance_id
    assert ground.refused_join("c-x", instance_id="k") is ErrorCode.unknown_member_id
    assert ground.leave([("", "i")]) == [ErrorCode.none]
    assert ground.leave([("", "i")]) == [ErrorCode.unknown_member_id]


def test_a_static_member_replaces_its_process_that_still_waits_in_its_first_join() -> None:
    ground = Ground()
    waiting = ground.enter(instance_id="i")
    new = ground.first_beat("m", instance_id="i")
    # The process may be gone, so its request must not fence the one after it.
    assert [answer.code for answer in waiting] == [ErrorCode.unknown_member_id]
    assert ground.next_beat("m", new.epoch, instance_id="i").epoch == new.epoch


# --- Memory


def test_the_size_of_a_group_returns_to_nothing() -> None:
    ground = Ground()
    one, other, _ = ground.two_classic()
    ground.first_beat("m")
    group = ground.consumers()
    ground.rejoin(one)
    join = Join(
        member_id=one,
        client_id="c",
        protocols=(("range", metadata("a", "") + bytes(1000)),),
        session_timeout_s=SESSION_S,
        rebalance_timeout_s=REBALANCE_S,
    )
    before = group.size
    grows = group.size_with(beat_of_join(join, ground.topics, ground._visible))
    ground.join(join, ignored)
    assert 1000 <= group.size - before <= grows
    ground.next_beat("m", LEAVE_STATIC)
    again = ground.first_beat("n")
    assert again.epoch > 0
    ground.leave([(one, None), (other, None)])
    ground.next_beat("n", LEAVE)
    assert isinstance(ground.group, ConsumerProtocolGroup)
    assert (ground.consumers().size, ground.consumers().is_idle) == (0, True)
    assert not ground.consumers()._supported
