"""Server-side assignors: complete, balanced, sticky, and co-partitioned, over random groups."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from archiver.kafka.assignors import ASSIGNORS, Assignments, Subscriber, assign_range, assign_uniform
from archiver.runtime.ids import TopicId

A, B, C = (TopicId(letter * 32) for letter in "abc")


def subscriber(member_id: str, topics: str = "a", instance_id: str | None = None) -> Subscriber:
    return Subscriber(member_id, instance_id, frozenset(TopicId(one * 32) for one in topics), frozenset())


def numbers(found: Assignments, member_id: str, topic: TopicId) -> list[int]:
    return sorted(number for one, number in found[member_id] if one == topic)


def holding(subscribers: Sequence[Subscriber], found: Assignments) -> list[Subscriber]:
    return [
        Subscriber(one.member_id, one.instance_id, one.topics, found.get(one.member_id, frozenset()))
        for one in subscribers
    ]


def check_complete(
    subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int], found: Assignments
) -> None:
    """Each partition has one owner, who subscribes to its topic."""
    assert found.keys() == {one.member_id for one in subscribers}
    topics = set().union(*(one.topics for one in subscribers)) if subscribers else set()
    every = [(topic, number) for topic in topics & partitions.keys() for number in range(partitions[topic])]
    assert sorted(each for mine in found.values() for each in mine) == sorted(every)
    for one in subscribers:
        assert {topic for topic, _ in found[one.member_id]} <= one.topics


def random_group(random_: random.Random, *, same: bool) -> tuple[list[Subscriber], dict[TopicId, int]]:
    partitions = {
        TopicId(f"{number:032x}"): random_.randrange(1, 12) for number in range(random_.randrange(1, 6))
    }
    names = list(partitions)
    shared = frozenset(random_.sample(names, random_.randrange(1, len(names) + 1)))
    subscribers = [
        Subscriber(
            f"m{number}",
            f"i{number}" if random_.random() < 0.3 else None,
            shared if same else frozenset(random_.sample(names, random_.randrange(len(names) + 1))),
            frozenset(),
        )
        for number in range(random_.randrange(1, 9))
    ]
    return subscribers, partitions


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("same", [True, False])
def test_every_partition_has_one_owner(name: str, same: bool) -> None:
    for seed in range(300):
        random_ = random.Random(seed)
        subscribers, partitions = random_group(random_, same=same)
        found = ASSIGNORS[name](subscribers, partitions)
        check_complete(subscribers, partitions, found)
        # A second time: what is held must not add or hide partitions.
        check_complete(subscribers, partitions, ASSIGNORS[name](holding(subscribers, found), partitions))


def test_uniform_is_balanced_for_equal_subscriptions() -> None:
    for seed in range(300):
        subscribers, partitions = random_group(random.Random(seed), same=True)
        sizes = [len(mine) for mine in assign_uniform(subscribers, partitions).values()]
        assert max(sizes) - min(sizes) <= 1


def test_uniform_leaves_no_move_that_balances_better() -> None:
    for seed in range(500):
        subscribers, partitions = random_group(random.Random(seed), same=False)
        found = assign_uniform(subscribers, partitions)
        for giver in subscribers:
            for taker in subscribers:
                could_move = {topic for topic, _ in found[giver.member_id]} & taker.topics
                if could_move:
                    assert len(found[giver.member_id]) - len(found[taker.member_id]) < 2, seed


@pytest.mark.parametrize("same", [True, False])
def test_uniform_without_a_change_moves_nothing(same: bool) -> None:
    for seed in range(300):
        subscribers, partitions = random_group(random.Random(seed), same=same)
        found = assign_uniform(subscribers, partitions)
        assert assign_uniform(holding(subscribers, found), partitions) == found


def test_uniform_moves_only_what_a_new_member_needs() -> None:
    for seed in range(300):
        subscribers, partitions = random_group(random.Random(seed), same=True)
        found = assign_uniform(subscribers, partitions)
        new = Subscriber("new", None, subscribers[0].topics, frozenset())
        grown = assign_uniform([*holding(subscribers, found), new], partitions)
        for one in subscribers:
            assert grown[one.member_id] <= found[one.member_id]


def test_uniform_gives_those_of_a_member_that_left_to_the_others() -> None:
    for seed in range(300):
        subscribers, partitions = random_group(random.Random(seed), same=True)
        if len(subscribers) == 1:
            continue
        found = assign_uniform(subscribers, partitions)
        rest = holding(subscribers[1:], found)
        left = assign_uniform(rest, partitions)
        check_complete(rest, partitions, left)
        for one in rest:
            assert found[one.member_id] <= left[one.member_id]


@pytest.mark.parametrize("same", [True, False])
def test_members_keep_what_they_hold_of_their_topics(same: bool) -> None:
    """Partitions that are gone, and those of other topics, are ignored. With equal subscriptions, a member loses none
    unless it has more than another one."""
    for seed in range(500):
        random_ = random.Random(seed)
        subscribers, partitions = random_group(random_, same=same)
        pool = [(topic, number) for topic, count in partitions.items() for number in range(count + 2)]
        random_.shuffle(pool)
        holders = [
            replace(one, held=frozenset(pool.pop() for _ in range(min(len(pool), random_.randrange(8)))))
            for one in subscribers
        ]
        found = assign_uniform(holders, partitions)
        check_complete(holders, partitions, found)
        fewest = min(map(len, found.values()))
        for one in holders if same else ():
            valid = {each for each in one.held if each[0] in one.topics and each[1] < partitions[each[0]]}
            assert len(valid & found[one.member_id]) >= min(len(valid), fewest), seed


def test_subscriptions_that_many_members_share_are_assigned_as_single_ones() -> None:
    """The order of the members decides, not that of their subscriptions."""
    found = assign_range(
        [subscriber("m1", "a"), subscriber("m2", "ab"), subscriber("m3", "a"), subscriber("m4", "ab")],
        {A: 4, B: 3},
    )
    assert [numbers(found, f"m{one}", A) for one in (1, 2, 3, 4)] == [[0], [1], [2], [3]]
    assert [numbers(found, f"m{one}", B) for one in (1, 2, 3, 4)] == [[], [0, 1], [], [2]]


def test_uniform_spreads_each_topic() -> None:
    found = assign_uniform([subscriber("m1", "ab"), subscriber("m2", "ab")], {A: 4, B: 4})
    assert [len(numbers(found, "m1", topic)) for topic in (A, B)] == [2, 2]


def test_range_is_contiguous_and_co_partitioned() -> None:
    found = assign_range([subscriber(one, "ab") for one in ("m2", "m1", "m3")], {A: 7, B: 7, C: 7})
    assert [numbers(found, one, A) for one in ("m1", "m2", "m3")] == [[0, 1, 2], [3, 4], [5, 6]]
    for one in ("m1", "m2", "m3"):
        assert numbers(found, one, A) == numbers(found, one, B)
        assert numbers(found, one, C) == []


def test_range_orders_static_members_by_their_instance_ids() -> None:
    before = [subscriber("x", instance_id="i2"), subscriber("y", instance_id="i1"), subscriber("a")]
    assert [numbers(assign_range(before, {A: 3}), one, A) for one in ("y", "x", "a")] == [[0], [1], [2]]


def test_range_with_different_subscriptions() -> None:
    found = assign_range([subscriber("m1", "ab"), subscriber("m2", "a")], {A: 3, B: 3})
    assert [numbers(found, "m1", A), numbers(found, "m2", A), numbers(found, "m1", B)] == [
        [0, 1],
        [2],
        [0, 1, 2],
    ]


@pytest.mark.parametrize("assign", ASSIGNORS.values())
def test_no_members_and_no_topics(assign: object) -> None:
    assert callable(assign)
    assert assign([], {A: 1}) == {}
    assert assign([subscriber("m", "")], {A: 1}) == {"m": frozenset()}
