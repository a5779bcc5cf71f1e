"""How much can be archived while a catalog is unavailable: the plans that stay within the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from archiver.refine.catalog_outage import limit_plans
from archiver.refine.plan import Plan
from archiver.runtime.ids import TopicId
from intake.segments import Segments

TOPICS = {"a": TopicId("aa" * 16), "b": TopicId("bb" * 16)}


def plan(topic: str, partition: int, base: int) -> Plan:
    return Plan(TOPICS[topic], topic, partition, base, base + 10, 1, Segments.of(()), 10, 100)


def places(plans: list[Plan]) -> list[tuple[str, int, int]]:
    return [(one.topic, one.partition, one.base) for one in plans]


def test_partitions_share_the_room_and_none_gets_a_hole() -> None:
    plans = [plan("a", partition, base) for partition in (0, 1) for base in (0, 10, 20)]
    assert places(limit_plans(plans, {"a": 3})) == [("a", 0, 0), ("a", 0, 10), ("a", 1, 0)]
    assert limit_plans(plans, {"a": 0}) == []
    assert limit_plans(plans, {"a": 6}) == plans


def test_topics_without_a_bound_are_not_touched() -> None:
    plans = [plan("a", 0, 0), plan("a", 0, 10), plan("b", 0, 0), plan("b", 0, 10)]
    assert places(limit_plans(plans, {"a": 1})) == [("a", 0, 0), ("b", 0, 0), ("b", 0, 10)]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 5)), unique=True, max_size=30
    ),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 12)),
)
def test_what_is_left_begins_where_the_archives_end(
    asked: list[tuple[str, int, int]], rooms: dict[str, int]
) -> None:
    plans = [plan(topic, partition, 10 * number) for topic, partition, number in asked]
    taken = limit_plans(plans, rooms)
    for topic in TOPICS:
        mine = [one for one in plans if one.topic == topic]
        left = [one for one in taken if one.topic == topic]
        assert len(left) == min(len(mine), rooms.get(topic, len(mine)))
        for partition in {one.partition for one in mine}:
            bases = sorted(one.base for one in mine if one.partition == partition)
            kept = sorted(one.base for one in left if one.partition == partition)
            assert kept == bases[: len(kept)], "a later one only behind all that come before it"
