"""Server-side assignors of the consumer protocol (KIP-848): which member gets which partitions.

Pure functions. Each partition of a topic with subscribers gets exactly one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
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
    topics: frozenset[TopicId]
    """Existing topics that it subscribes to."""
    held: frozenset[TopicPartition]
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
    found: dict[str, list[TopicPartition]] = {one.member_id: [] for one in subscribers}
    for topic, takers in _takers(ordered, partitions).items():
        share, more = divmod(partitions[topic], len(takers))
        first = 0
        # Those behind get nothing if there are more of them than partitions.
        for place, one in enumerate(takers if share else takers[:more]):
            end = first + share + (place < more)
            found[one].extend((topic, number) for number in range(first, end))
            first = end
    return {member_id: frozenset(mine) for member_id, mine in found.items()}


def assign_uniform(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    """Equally many partitions for each member, of which it keeps as many as possible.

    With different subscriptions, no single move to a member with at least two fewer partitions is left.
    """
    if not subscribers:
        return {}
    topics = subscribers[0].topics
    if all(one.topics == topics for one in subscribers):
        return _equal_shares(subscribers, {one: partitions[one] for one in partitions if one in topics})
    balance = _Balance(subscribers, partitions)
    balance.give(subscribers)
    for _ in range(BALANCE_ROUNDS_MAX):
        if not balance.improve():
            break
    return balance.assigned()


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By name. The first one is used if no member names another."""


def _equal_shares(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignments:
    """For members that all subscribe to these topics."""
    # Flags of the partitions of each topic: sets of pairs take several times as long.
    free = _all_free(partitions)
    held = {one.member_id: _existing(one.held, partitions) for one in subscribers}
    share, more = divmod(sum(partitions.values()), len(subscribers))
    found: Assignments = {}
    room: list[tuple[str, int]] = []
    # Those that hold most keep one more.
    for place, one in enumerate(sorted(subscribers, key=lambda one: -len(held[one.member_id]))):
        limit = share + (place < more)
        kept = held[one.member_id]
        if len(kept) > limit:
            kept = frozenset(sorted(kept)[:limit])
        found[one.member_id] = kept = _taken(kept, free)
        if len(kept) < limit:
            room.append((one.member_id, limit - len(kept)))
    # In turns, so that the partitions of one topic are spread.
    following = (
        (topic, number) for topic, flags in free.items() for number in compress(range(len(flags)), flags)
    )
    given: dict[str, list[TopicPartition]] = {member_id: [] for member_id, _ in room}
    while room:
        for member_id, _ in room:
            given[member_id].append(next(following))
        room = [(member_id, count - 1) for member_id, count in room if count > 1]
    for member_id, further in given.items():
        found[member_id] = found[member_id].union(further)
    return found


def _all_free(partitions: Mapping[TopicId, int]) -> dict[TopicId, bytearray]:
    return {topic: bytearray(b"\1") * count for topic, count in partitions.items()}


def _existing(
    held: frozenset[TopicPartition], partitions: Mapping[TopicId, int]
) -> frozenset[TopicPartition]:
    gone = [one for one in held if one[1] >= partitions.get(one[0], 0)]
    return held.difference(gone) if gone else held


def _taken(asked: frozenset[TopicPartition], free: Mapping[TopicId, bytearray]) -> frozenset[TopicPartition]:
    """Those that are free, which are not any more."""
    refused = []
    for topic, number in asked:
        flags = free[topic]
        if flags[number]:
            flags[number] = 0
        else:
            refused.append((topic, number))
    return asked.difference(refused) if refused else asked


def _takers(
    subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]
) -> dict[TopicId, Sequence[str]]:
    """Member ids of the subscribers of each topic that has some, in their order. Topics with the same
    subscribers share one sequence.
    """
    places: dict[frozenset[TopicId], list[int]] = {}
    for place, one in enumerate(subscribers):
        places.setdefault(one.topics, []).append(place)
    of_topic: dict[TopicId, list[int]] = {topic: [] for topic in partitions}
    for first, *_ in places.values():
        for topic in subscribers[first].topics & partitions.keys():
            of_topic[topic].append(first)
    shared: dict[tuple[int, ...], Sequence[str]] = {}
    for firsts in of_topic.values():
        key = tuple(firsts)
        if key and key not in shared:
            merged = sorted(place for first in firsts for place in places[subscribers[first].topics])
            shared[key] = [subscribers[place].member_id for place in merged]
    return {topic: shared[tuple(firsts)] for topic, firsts in of_topic.items() if firsts}


class _Balance:
    """Partitions of members with different subscriptions, while they are assigned."""

    def __init__(self, subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> None:
        self._partitions = partitions
        self._takers = _takers(subscribers, partitions)
        # Topics with the fewest subscribers first: they have the least choice.
        self._topics = sorted(self._takers, key=lambda one: (len(self._takers[one]), one))
        self._loads = {one.member_id: 0 for one in subscribers}
        self._numbers: dict[TopicId, dict[str, list[int]]] = {topic: {} for topic in self._topics}
        """Of each topic, the partitions of its members."""
        self._moves = 0
        self._fewest: dict[int, tuple[int, int]] = {}
        """Lowest load of a sequence of takers, and the number of moves after which it was that."""

    def assigned(self) -> Assignments:
        """By member id."""
        found: dict[str, list[TopicPartition]] = {member_id: [] for member_id in self._loads}
        for topic, numbers in self._numbers.items():
            for member_id, mine in numbers.items():
                found[member_id].extend((topic, number) for number in mine)
        return {member_id: frozenset(mine) for member_id, mine in found.items()}

    def give(self, subscribers: Sequence[Subscriber]) -> None:
        """Give each member what it holds, and the other partitions to those with the fewest."""
        free = _all_free(self._partitions)
        for one in subscribers:
            for topic, number in one.held:
                if topic in one.topics and number < self._partitions.get(topic, 0) and free[topic][number]:
                    free[topic][number] = 0
                    self._add(topic, number, one.member_id)
        heaps: dict[int, list[tuple[int, str]]] = {}
        for topic in self._topics:
            takers = self._takers[topic]
            if id(takers) not in heaps:
                heaps[id(takers)] = [(self._loads[one], one) for one in takers]
                heapq.heapify(heaps[id(takers)])
            fewest = heaps[id(takers)]
            for number in compress(range(len(free[topic])), free[topic]):
                # Members also take partitions of other topics, so their loads may be higher by now.
                while fewest[0][0] != (load := self._loads[fewest[0][1]]):
                    heapq.heapreplace(fewest, (load, fewest[0][1]))
                self._add(topic, number, fewest[0][1])

    def _add(self, topic: TopicId, number: int, member_id: str) -> None:
        numbers = self._numbers[topic]
        if member_id in numbers:
            numbers[member_id].append(number)
        else:
            numbers[member_id] = [number]
        self._loads[member_id] += 1

    def improve(self) -> bool:
        """Move partitions of each topic to members with at least two fewer; whether any was moved."""
        before = self._moves
        for topic in self._topics:
            most = max(map(self._loads.__getitem__, self._numbers[topic]), default=0)
            if most - self._lowest(self._takers[topic]) >= 2:
                self._move(topic)
        return self._moves > before

    def _lowest(self, takers: Sequence[str]) -> int:
        lowest, moves = self._fewest.get(id(takers), (0, -1))
        if moves != self._moves:
            lowest = min(map(self._loads.__getitem__, takers))
            self._fewest[id(takers)] = lowest, self._moves
        return lowest

    def _move(self, topic: TopicId) -> None:
        """Move partitions of a topic from the members with most partitions to those with fewest."""
        loads, numbers = self._loads, self._numbers[topic]
        fewest = [(loads[one], one) for one in self._takers[topic]]
        most = [(-loads[one], one) for one in numbers]
        heapq.heapify(fewest)
        heapq.heapify(most)
        ordered: set[str] = set()
        while most:
            load, giver = -most[0][0], most[0][1]
            # An entry may be out of date: the load of its member has changed since.
            if load != loads[giver] or not numbers[giver]:
                heapq.heappop(most)
                continue
            low, taker = fewest[0]
            if low != loads[taker]:
                heapq.heappop(fewest)
                continue
            if load - low < 2:
                break
            if giver not in ordered:
                numbers[giver].sort()
                ordered.add(giver)
            loads[giver] -= 1
            self._add(topic, numbers[giver].pop(), taker)
            self._moves += 1
            for member in (giver, taker):
                heapq.heappush(most, (-loads[member], member))
                heapq.heappush(fewest, (loads[member], member))
        for one in [one for one, mine in numbers.items() if not mine]:
            del numbers[one]
