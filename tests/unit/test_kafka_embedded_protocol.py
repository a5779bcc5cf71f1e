"""Metadata and assignments of consumers of the classic protocol, against those that another library writes."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from importlib import import_module
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from archiver.kafka.embedded_protocol import (
    existing,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from archiver.runtime.ids import TopicId
from intake.log.state import TopicState

VERSIONS = range(4)
OWNED: dict[str, tuple[int, ...]] = {"a": (0, 2), "é": ()}


def entity(kind: str, version: int) -> Any:
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def written(
    kind: str, version: int, name: str, partitions: dict[str, tuple[int, ...]], **fields: Any
) -> bytes:
    module = entity(kind, version)
    listed = {}
    if hasattr(module, "TopicPartition"):
        found = [module.TopicPartition(topic=topic, partitions=parts) for topic, parts in partitions.items()]
        listed = {name: tuple(found)}
    kind_of = getattr(module, f"ConsumerProtocol{kind.capitalize()}")
    buffer = io.BytesIO()
    entity_writer(kind_of)(buffer, kind_of(**listed, **fields))
    return struct.pack(">h", version) + buffer.getvalue()


def subscription(version: int, *topics: str, owned: dict[str, tuple[int, ...]] = OWNED) -> bytes:
    late: dict[str, Any] = {"generation_id": 7} if version >= 2 else {}
    late |= {"rack_id": "r"} if version >= 3 else {}
    return written("subscription", version, "owned_partitions", owned, topics=topics, user_data=b"u", **late)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription(version: int) -> None:
    data = subscription(version, "a", "é")
    found = read_subscription(data)
    assert (found.version, set(found.topics)) == (version, {"a", "é"})
    assert {topic: tuple(parts) for topic, parts in found.owned.items()} == (OWNED if version else {})
    assert found.rack_id == ("r" if version >= 3 else None)
    assert subscribed_topics(data) == found.topics
    for end in range(len(data)):
        with pytest.raises(ValueError, match="the metadata"):
            read_subscription(data[:end])


def test_a_newer_version_begins_as_the_last_known_one() -> None:
    data = struct.pack(">h", 9) + subscription(3, "a")[2:] + b"more"
    assert (read_subscription(data).version, read_subscription(data).rack_id) == (9, "r")
    with pytest.raises(ValueError, match="version -1"):
        read_subscription(struct.pack(">h", -1) + data[2:])


def test_the_topics_are_read_without_the_rest() -> None:
    names = b"".join(struct.pack(">h", len(one)) + one for one in (b"orders", b"clicks"))
    # Some clients state a version whose fields they do not write.
    whole = struct.pack(">hi", 1, 2) + names
    assert subscribed_topics(whole) == {"orders", "clicks"}
    with pytest.raises(ValueError, match="the metadata"):
        read_subscription(whole)
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="the metadata"):
            subscribed_topics(whole[:end])
    for wrong in (struct.pack(">hi", 0, 2**31 - 1) + b"\0" * 100, struct.pack(">hih", 0, 1, 0) + b"more"):
        with pytest.raises(ValueError, match="the metadata"):
            subscribed_topics(wrong)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_assignment(version: int) -> None:
    data = written("assignment", version, "assigned_partitions", OWNED, user_data=b"")
    found = read_assignment(data)
    assert ({topic: tuple(parts) for topic, parts in found.assigned.items()}, found.has_user_data) == (
        OWNED,
        False,
    )
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="the metadata"):
            read_assignment(data[:end])
    other = written("assignment", version, "assigned_partitions", {}, user_data=b"u")
    assert read_assignment(other).has_user_data


def test_a_member_without_an_assignment_has_no_bytes() -> None:
    assert read_assignment(b"").assigned == {}
    with pytest.raises(ValueError, match="version -1"):
        read_assignment(struct.pack(">hii", -1, 0, -1))


@pytest.mark.parametrize("version", [*VERSIONS, 9])
def test_an_assignment_is_written_in_the_version_of_the_metadata(version: int) -> None:
    data = write_assignment([("é", 1), ("a", 2), ("a", 0)], version)
    stated = min(version, 3)
    kind = entity("assignment", stated).ConsumerProtocolAssignment
    assert data[:2] == struct.pack(">h", stated)
    found = entity_reader(kind)(memoryview(data), 2)[0]
    assert [(one.topic, one.partitions) for one in found.assigned_partitions] == [("a", (0, 2)), ("é", (1,))]
    assert found.user_data is None


def test_only_partitions_that_exist_have_ids() -> None:
    topics = {"a": TopicState(TopicId("a" * 32), "a", 2, 0)}
    assert existing({"a": [-1, 0, 0, 1, 2], "b": [0]}, topics) == {("a" * 32, 0), ("a" * 32, 1)}


def test_bytes_that_are_changed_are_read_or_refused() -> None:
    random_ = random.Random(1)
    whole = subscription(3, "a", "é"), written("assignment", 1, "assigned_partitions", OWNED, user_data=b"u")
    for _ in range(5000):
        for data, read in zip(whole, (read_subscription, read_assignment), strict=True):
            changed = bytearray(data)
            for _ in range(random_.randrange(1, 4)):
                changed[random_.randrange(len(changed))] = random_.randrange(256)
            with contextlib.suppress(ValueError):
                read(bytes(changed))


def test_a_topic_that_is_named_often_takes_linear_time() -> None:
    repeated = 200_000
    owned = struct.pack(">hcii", 1, b"a", 1, 0) * repeated
    data = struct.pack(">hiii", 1, 0, -1, repeated) + owned
    assert len(read_subscription(data).owned["a"]) == repeated
