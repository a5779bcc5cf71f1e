"""Server-side assignors of the consumer protocol (KIP-848): which member gets which partitions.

Pure functions. Each partition of a topic with subscribers gets exactly one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from archiver.runtime.ids import TopicId, TopicPartition

BALANCE_ROUNDS_MAX: Final = 100
"""Rounds in which `assign_uniform` moves partitions between members of different subscriptions. Each round
goes over all topics. 40,000 random groups of up to 8 members and 5 topics needed at most 7."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member of a group, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: AbstractSet[TopicId]
    """Existing topics that it subscribes to."""
    held: AbstractSet[TopicPartition]
    """What it has now, or is about to get. No other member holds the same."""


Assignments = dict[str, frozenset[TopicPartition]]
"""Partitions by member id."""
Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], Assignments]
"""Assigns the partitions of topics, given their numbers."""


def assign_range(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    """Contiguous partitions of each topic, in the order of the instance ids and then of the member ids.

    Members that subscribe to the same topics get the same numbers of topics with equally many partitions.
    """
    ordered = sorted(
        subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id)
    )
    found: dict[str, set[TopicPartition]] = {one.member_id: set() for one in subscribers}
    for topic, count in partitions.items():
        takers = [one for one in ordered if topic in one.topics]
        first = 0
        for place, one in enumerate(takers):
            share, more = divmod(count, len(takers))
            end = first + share + (place < more)
            found[one.member_id].update((topic, number) for number in range(first, end))
            first = end
    return _frozen(found)


def assign_uniform(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    """Equally many partitions for each member, of which it keeps as many as possible.

    With different subscriptions, no single move to a member with at least two fewer partitions is left.
    """
    if not subscribers:
        return {}
    topics = subscribers[0].topics
    if all(one.topics == topics for one in subscribers):
        return _equal_shares(subscribers, {one: partitions[one] for one in partitions if one in topics})
    return _least_loaded(subscribers, partitions)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By name. The first one is used if no member names another."""


def _equal_shares(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    """For members that all subscribe to these topics."""
    every = [(topic, number) for topic, count in partitions.items() for number in range(count)]
    existing = set(every)
    held = {one.member_id: one.held & existing for one in subscribers}
    share, more = divmod(len(every), len(subscribers))
    found: dict[str, set[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    room: list[tuple[set[TopicPartition], int]] = []
    # Those that hold most keep one more.
    for place, one in enumerate(sorted(subscribers, key=lambda one: -len(held[one.member_id]))):
        limit = share + (place < more)
        kept = held[one.member_id] - taken
        if len(kept) > limit:
            kept = set(sorted(kept)[:limit])
        found[one.member_id] = mine = set(kept)
        taken |= mine
        if len(mine) < limit:
            room.append((mine, limit))
    # In turns, so that the partitions of one topic are spread.
    free = (one for one in every if one not in taken)
    while room:
        for mine, _ in room:
            mine.add(next(free))
        room = [(mine, limit) for mine, limit in room if len(mine) < limit]
    return _frozen(found)


def _least_loaded(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    found: dict[str, set[TopicPartition]] = {one.member_id: set() for one in subscribers}
    takers: dict[TopicId, list[str]] = {topic: [] for topic in partitions}
    for one in subscribers:
        for topic in one.topics & partitions.keys():
            takers[topic].append(one.member_id)
    taken: set[TopicPartition] = set()
    for one in subscribers:
        kept = {
            (topic, number)
            for topic, number in one.held
            if topic in one.topics and number < partitions.get(topic, 0)
        } - taken
        found[one.member_id] |= kept
        taken |= kept
    # Topics with the fewest subscribers first: they have the least choice.
    topics = sorted((one for one in partitions if takers[one]), key=lambda one: (len(takers[one]), one))
    for topic in topics:
        loads = [(len(found[one]), one) for one in takers[topic]]
        heapq.heapify(loads)
        for number in range(partitions[topic]):
            if (topic, number) not in taken:
                load, taker = loads[0]
                found[taker].add((topic, number))
                heapq.heapreplace(loads, (load + 1, taker))
    for _ in range(BALANCE_ROUNDS_MAX):
        moved = [topic for topic in topics if _balanced(topic, takers[topic], found)]
        if not moved:
            break
    return _frozen(found)


def _balanced(topic: TopicId, takers: Collection[str], found: Mapping[str, set[TopicPartition]]) -> bool:
    """Move partitions of a topic from the members with most partitions to those with fewest; whether any was
    moved.
    """
    movable = {one: sorted(each for each in found[one] if each[0] == topic) for one in takers}
    fewest = [(len(found[one]), one) for one in takers]
    most = [(-len(found[one]), one) for one in takers if movable[one]]
    heapq.heapify(fewest)
    heapq.heapify(most)
    moved = False
    while most:
        load, giver = -most[0][0], most[0][1]
        # An entry may be out of date: the load of its member has changed since.
        if load != len(found[giver]) or not movable[giver]:
            heapq.heappop(most)
            continue
        low, taker = fewest[0]
        if low != len(found[taker]):
            heapq.heappop(fewest)
            continue
        if load - low < 2:
            break
        one = movable[giver].pop()
        movable[taker].append(one)
        found[giver].remove(one)
        found[taker].add(one)
        moved = True
        for member in (giver, taker):
            heapq.heappush(most, (-len(found[member]), member))
            heapq.heappush(fewest, (len(found[member]), member))
    return moved


def _frozen(found: Mapping[str, set[TopicPartition]]) -> Assignments:
    return {member_id: frozenset(mine) for member_id, mine in found.items()}
