"""The Protocol of a mirrored Kafka cluster, and its values.

Every method is bounded. A missing reply or a refusal is `RetryLater`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import pyarrow as pa

from intake.arrow_arrays import Int64Array
from intake.batches.decoding import BatchHeader, Measured
from intake.sources.kafka.single_records import SingleRecord

Place = tuple[str, int]
"""Topic name and partition in the upstream cluster."""
Trouble = Literal["out_of_range", "truncated", "away", "damaged", "other"]
"""The reason why a partition cannot be read.

`out_of_range`: the position is outside its bounds. `truncated`: the log was truncated and rewritten. `away`:
the topic is missing or has another id. `damaged`: a batch has a wrong checksum."""


@dataclass(frozen=True, slots=True)
class UpstreamTopic:
    """The cluster's description of one topic."""

    name: str
    topic_id: bytes
    """Unique 16 bytes, different even for a recreated topic of the same name; empty if the cluster is too old
    for topic ids."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition."""

    low: int
    """The first existing offset."""
    high: int
    """One past the last offset, open transactions included."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A partition that the client stopped reading."""

    place: Place
    trouble: Trouble
    why: str


@dataclass(frozen=True, slots=True)
class UpstreamBatch:
    """A record batch that can be stored as it came: its records have consecutive offsets."""

    place: Place
    header: BatchHeader
    data: memoryview
    """Without the producer that it had in the cluster; all else is as `header` says."""
    sizes: Measured


@dataclass(frozen=True, slots=True)
class UpstreamRows:
    """Records of one partition that are stored as rows."""

    place: Place
    offsets: Int64Array
    """Ascending."""
    columns: pa.RecordBatch
    """As `RECORD_SCHEMA`."""


@dataclass(slots=True)
class Polled:
    """Records in reading order, one list per field, and other events of the poll."""

    topics: list[str] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    """-1 for a record without a timestamp."""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[tuple[str, bytes | None]] | None] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Problems of records that could not be read completely, by their index in the lists."""
    epochs: dict[Place, int] = field(default_factory=dict)
    """Leader epoch of the last record of each partition, where known."""
    ends: dict[Place, int] = field(default_factory=dict)
    """Partitions that were read to their end, after the records above: no further committed record is below
    this offset."""
    stopped: list[Stopped] = field(default_factory=list)
    """Stopped partitions. They deliver nothing more, in this poll or later, until they are read again."""
    batches: list[UpstreamBatch] = field(default_factory=list)
    """In reading order; in their partition, they are before all other records."""
    rows: list[UpstreamRows] = field(default_factory=list)
    """At most one for each partition, which then has no records in the lists above."""
    more: bool = False
    """The poll reached its limit: more records are available at once."""

    def add(self, place: Place, record: SingleRecord) -> None:
        """Add one record to the lists."""
        if record.broken is not None:
            self.broken[len(self.offsets)] = record.broken
        self.topics.append(place[0])
        self.partitions.append(place[1])
        self.offsets.append(record.offset)
        self.timestamps_ms.append(record.timestamp_ms)
        self.keys.append(record.key)
        self.values.append(record.value)
        self.headers.append(record.headers)


class Upstream(Protocol):
    """A connection to a cluster. One thread uses it."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        """The existing ones of the topics; None for a topic that the cluster does not describe now."""

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        """The bounds of the partitions; missing ones and those without a leader are left out."""

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        """The first offset with a record at or after that time, -1 if none; leaves out the same as
        `bounds`.
        """

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        """Read these partitions too, from that offset. With the leader epoch of the record before it, the
        cluster detects a truncation.
        """

    def stop_reading(self, places: Sequence[Place]) -> None:
        """Stop reading these partitions; nothing more of them is delivered."""

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        """At most so many batches and single records together, and events; waits for the first at most
        `timeout_s`.
        """

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The last known end offsets, without a request."""

    def close(self) -> None:
        """Close the connection."""
