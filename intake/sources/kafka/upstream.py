"""What a mirror needs of a Kafka cluster: the Protocol, and the values that pass through it.

No SDK and no decisions here. Every method has a bound of its own; what the cluster does not answer, or
refuses, is `RetryLater`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Place = tuple[str, int]
"""A topic's name and a partition of it, upstream."""
Trouble = Literal["out_of_range", "truncated", "away", "damaged", "other"]
"""What stops the reading of a partition: the position is outside of what is there, the log was cut off and
written anew since, the topic is not there (any more, or under that id), a batch does not have the checksum it
states, anything else."""


@dataclass(frozen=True, slots=True)
class UpstreamTopic:
    """One topic, as the cluster describes it."""

    name: str
    topic_id: bytes
    """16 bytes that no other topic ever has, not even one of the same name; empty if the cluster is too old
    to have any."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition has."""

    low: int
    """The first offset that is still there."""
    high: int
    """One past the last one, open transactions included."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A partition that is not read on."""

    place: Place
    trouble: Trouble
    why: str


@dataclass(slots=True)
class Polled:
    """Records in the order of reading, one list for each field, and what else was heard."""

    topics: list[str] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    """-1: the record has none."""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[tuple[str, bytes | None]] | None] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Records that could not be read whole, by their number above: what is wrong with each."""
    epochs: dict[Place, int] = field(default_factory=dict)
    """Leader epoch of the last record of each partition that knows it."""
    ends: dict[Place, int] = field(default_factory=dict)
    """Partitions that were read to their end, behind the records above: no committed record lies below this
    offset."""
    stopped: list[Stopped] = field(default_factory=list)
    """Nothing of these partitions comes behind what stopped them, in this poll or later, until they are read
    anew."""
    more: bool = False
    """It ended because it had enough: there is more to be had at once."""


class Upstream(Protocol):
    """A connection to a cluster. One thread uses it."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        """Those of the topics that are there; None: the cluster does not tell of that one now."""

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        """What the partitions have; those that are not there, or have no leader now, are left out."""

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        """The first offset with a record that is not older, -1 if there is none; as `bounds` leaves out."""

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        """Read these partitions as well, from the offset on; the leader epoch of the record before it lets
        the cluster tell whether what was read is still there.
        """

    def stop_reading(self, places: Sequence[Place]) -> None:
        """Read these no longer: nothing of them comes any more."""

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        """What has come; waits for some of it, no longer than `timeout_s`."""

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The high offsets that were heard of last, without asking."""

    def close(self) -> None:
        """Let go of everything."""
