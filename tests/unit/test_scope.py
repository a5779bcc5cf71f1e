"""Which part of the topics is selected."""

from __future__ import annotations

import pytest

from archiver.config.settings import TopicSettings
from archiver.publish.scope import check_scope, parse_scope
from archiver.runtime.errors import InvalidInput, NotFound
from archiver.runtime.ids import TopicId
from intake.log.state import TopicState


def test_a_topic_or_some_of_its_partitions() -> None:
    assert parse_scope("orders") == ("orders", None)
    assert parse_scope("orders:3") == ("orders", frozenset({3}))
    assert parse_scope("orders:0-2") == ("orders", frozenset({0, 1, 2}))


@pytest.mark.parametrize(
    "text", ["orders:", "orders:x", "orders:3-", "orders:3-1", "orders:-1", "orders:1234567"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="orders"):
        parse_scope(text)


def test_a_part_that_is_not_there() -> None:
    topics = [TopicSettings(name="orders", partitions=3)]
    for text in ("orders", "orders:2", "orders:0-2"):
        check_scope(parse_scope(text), topics, {})
    check_scope(None, [], {})
    with pytest.raises(NotFound, match="topic orders has no partition 3; it has 3, numbered from 0"):
        check_scope(parse_scope("orders:1-7"), topics, {})
    with pytest.raises(NotFound, match="there is no topic other; the topics are orders"):
        check_scope(parse_scope("other"), topics, {})


@pytest.mark.parametrize("configured", [0, 3])
def test_the_partitions_are_those_of_the_log(configured: int) -> None:
    """A topic may have grown beyond its configuration; a mirrored one has 0 there."""
    topics = [TopicSettings(name="orders", partitions=configured)]
    in_log = {"orders": TopicState(TopicId("0" * 32), "orders", 5, 0, configured == 0)}
    check_scope(parse_scope("orders:4"), topics, in_log)
    with pytest.raises(NotFound, match="topic orders has no partition 5; it has 5, numbered from 0"):
        check_scope(parse_scope("orders:5"), topics, in_log)
