"""What consumers of the classic protocol state in JoinGroup, and what they are assigned in SyncGroup.

These are Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3. The bytes come
from clients: reading them takes linear time, and a count is checked against what is left before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

VERSION_MAX: Final = 3
"""Newer versions begin as this one does."""

NamedPartitions = Mapping[str, Sequence[int]]
"""Numbers of partitions by the name of their topic."""


@dataclass(frozen=True, slots=True)
class StatedSubscription:
    """A ConsumerProtocolSubscription."""

    version: int
    topics: frozenset[str]
    owned: NamedPartitions
    """What the member has not given up. Eager assignors give up everything before."""
    rack_id: str | None


@dataclass(frozen=True, slots=True)
class StatedAssignment:
    """A ConsumerProtocolAssignment."""

    assigned: NamedPartitions
    has_user_data: bool
    """Whether an assignor has added bytes of its own."""


class _Fields:
    """Reads one field after the other. Raises `ValueError` where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (found,) = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise ValueError("the metadata is cut off") from error
        self._at += struct.calcsize(form)
        assert isinstance(found, int), "the form is that of an integer"
        return found

    def part(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError("a field is longer than the metadata")
        self._at += size
        return self._data[self._at - size : self._at]

    def name(self) -> str:
        """The name of a topic, which is not empty."""
        data, at = self._data, self._at
        begin = at + 2
        # Without `number` and `part`: there may be very many of them.
        end = begin + int.from_bytes(data[at:begin])
        if not begin < end <= len(data):
            raise ValueError("a name is longer than the metadata")
        self._at = end
        return data[begin:end].decode()

    def optional_text(self) -> str | None:
        size = self.number(">h")
        return None if size < 0 else self.part(size).decode()

    def optional_bytes(self) -> bytes:
        return self.part(max(self.number(">i"), 0))

    def count(self, item_size: int) -> int:
        """Number of items that follow, each of at least `item_size` bytes."""
        found = self.number(">i")
        if not 0 <= found * item_size <= len(self._data) - self._at:
            raise ValueError("a list is longer than the metadata")
        return found

    def partitions(self) -> NamedPartitions:
        found: dict[str, list[int]] = {}
        for _ in range(self.count(7)):
            numbers = found.setdefault(self.name(), [])
            count = self.count(4)
            numbers.extend(struct.unpack(f">{count}i", self.part(4 * count)))
        return found


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """The topics in a consumer's metadata. Raises `ValueError` if they cannot be read."""
    return _topics(_Fields(metadata))[1]


def _topics(fields: _Fields) -> tuple[int, frozenset[str]]:
    version = fields.number(">h")
    if version < 0:
        raise ValueError(f"version {version} of the metadata")
    return version, frozenset(fields.name() for _ in range(fields.count(3)))


def read_subscription(metadata: bytes) -> StatedSubscription:
    """Read the metadata of a consumer. Raises `ValueError` if it cannot be read."""
    fields = _Fields(metadata)
    version, topics = _topics(fields)
    fields.optional_bytes()
    owned = fields.partitions() if version >= 1 else {}
    if version >= 2:
        # The generation in which it got them. Kafka's coordinator ignores it too.
        fields.number(">i")
    rack_id = fields.optional_text() if version >= 3 else None
    return StatedSubscription(version, topics, owned, rack_id or None)


def read_assignment(data: bytes) -> StatedAssignment:
    """Read the assignment of a consumer. Raises `ValueError` if it cannot be read."""
    if not data:
        # Of a member that has none yet.
        return StatedAssignment({}, has_user_data=False)
    fields = _Fields(data)
    version = fields.number(">h")
    if version < 0:
        raise ValueError(f"version {version} of the assignment")
    assigned = fields.partitions()
    return StatedAssignment(assigned, has_user_data=bool(fields.optional_bytes()))


def write_assignment(assigned: Iterable[tuple[str, int]], version: int) -> bytes:
    """The assignment for a member whose metadata has this version."""
    numbers: dict[str, list[int]] = {}
    for name, number in sorted(assigned):
        numbers.setdefault(name, []).append(number)
    written = [struct.pack(">hi", min(version, VERSION_MAX), len(numbers))]
    for name, found in numbers.items():
        encoded, count = name.encode(), len(found)
        written.append(struct.pack(f">h{len(encoded)}si{count}i", len(encoded), encoded, count, *found))
    # No bytes of an assignor.
    return b"".join((*written, struct.pack(">i", -1)))


def existing(partitions: NamedPartitions, topics: Mapping[str, TopicState]) -> frozenset[TopicPartition]:
    """Those of the partitions that exist, by the ids of their topics."""
    found: set[TopicPartition] = set()
    for name, numbers in partitions.items():
        topic = topics.get(name)
        if topic is not None:
            found.update((topic.topic_id, one) for one in numbers if 0 <= one < topic.partitions)
    return frozenset(found)


def named(partitions: Iterable[TopicPartition], names: Mapping[TopicId, str]) -> list[tuple[str, int]]:
    """The partitions whose topics have names, by these."""
    return [(names[topic], number) for topic, number in partitions if topic in names]
