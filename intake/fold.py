"""The fold of the intake log: from entries to topics, offsets and backlog.

Pure, deterministic: whoever applies the same entries has the same state. Promises that a refused entry changes nothing. Never reads a
file or a clock.

Ingest time. A record's ingest time is the running maximum of accept times over its partition, and never before the newest tick that
stands earlier in the log. `SegmentRef.floor_us` carries that maximum to the beginning of each segment, so the ingest time of a segment's
record is max(`floor_us`, accept times of the segment up to and with that record).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from google.protobuf.message import DecodeError

from archiver.errors import Corrupted, Halt, NotFound
from archiver.ids import TopicId, TopicPartition
from archiver.proto import intake_log_pb2 as pb

ENTRY_FORMAT = 1
NO_TIME_US = 0
"""The floor of a partition that has seen no record and no tick."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """An intake file that the log names."""

    log_index: int
    key: str
    size: int
    """Bytes."""
    footer_sha256: bytes


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Consecutive records of one topic partition and where they are."""

    file: FileRef
    row_group: int
    first_row: int
    """Inside the row group."""
    rows: int
    base: int
    """Offset of the first record."""
    raw_bytes: int
    accept_max_us: int
    floor_us: int
    """No record of the segment has an ingest time before this."""

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.base + self.rows

    @property
    def ingest_max_us(self) -> int:
        """Ingest time of the last record."""
        return max(self.floor_us, self.accept_max_us)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as its first declaration says."""

    topic_id: TopicId
    name: str
    partitions: int
    created_us: int


Placed = tuple[TopicPartition, SegmentRef]


@dataclass(slots=True)
class _Partition:
    segments: list[SegmentRef] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.ends[-1] if self.ends else 0


class IntakeFold:
    """State of the intake log up to `next_index`. One thread applies; others may read meanwhile."""

    def __init__(self) -> None:
        self._next_index = 0
        self._cluster_id: str | None = None
        self._tick_us = NO_TIME_US
        self._newest_us = NO_TIME_US
        self._by_name: dict[str, TopicState] = {}
        self._by_id: dict[TopicId, TopicState] = {}
        self._partitions: dict[TopicPartition, _Partition] = {}

    @property
    def next_index(self) -> int:
        """Index of the entry that `apply` expects."""
        return self._next_index

    @property
    def cluster_id(self) -> str | None:
        """The cluster whose data folder this log belongs to (32 hex digits); None before the entry that says so."""
        return self._cluster_id

    @property
    def tick_us(self) -> int:
        """The newest tick: nothing later in the log has an ingest time before it. 0 before the first."""
        return self._tick_us

    @property
    def newest_us(self) -> int:
        """The newest time in the log, accept time or tick; 0 if there is none."""
        return self._newest_us

    @property
    def topics_by_name(self) -> Mapping[str, TopicState]:
        """Every topic, in order of declaration."""
        return MappingProxyType(self._by_name)

    @property
    def topics_by_id(self) -> Mapping[TopicId, TopicState]:
        """Every topic, in order of declaration."""
        return MappingProxyType(self._by_id)

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset the partition's next record will get; `NotFound` if there is no such partition."""
        return self._partition(tp).next_offset

    def stable_offset(self, tp: TopicPartition) -> int:
        """Nothing at or beyond it is archived; the end of the partition, for there are no transactions in this version."""
        return self._partition(tp).next_offset

    def segments(self, tp: TopicPartition, start: int = 0) -> Sequence[SegmentRef]:
        """The segments that reach beyond offset `start`, in offset order; `NotFound` if there is no such partition."""
        held = self._partition(tp)
        return held.segments[bisect_right(held.ends, start) :]

    def apply(self, index: int, data: bytes) -> tuple[Placed, ...]:
        """Take in the entry at `index`; returns the segments it brought, in its order.

        Raises `Halt` for an entry of an unknown format or out of turn, `Corrupted` for one that contradicts itself or the log before it.
        """
        if index != self._next_index:
            raise Halt(f"intake log: entry {index} was offered to a fold that expects entry {self._next_index}")
        entry = parse_entry(index, data)
        placed: tuple[Placed, ...] = ()
        body = entry.WhichOneof("body")
        if body == "topic":
            self._declare(index, entry.topic)
        elif body == "file":
            placed = self._place(index, entry.file)
            for tp, segment in placed:
                held = self._partitions[tp]
                held.segments.append(segment)
                held.ends.append(segment.end)
                self._newest_us = max(self._newest_us, segment.accept_max_us)
        elif body == "cluster":
            self._bind(index, entry.cluster)
        else:
            self._tick_us = max(self._tick_us, entry.tick.time_us)
            self._newest_us = max(self._newest_us, self._tick_us)
        self._next_index = index + 1
        return placed

    def _partition(self, tp: TopicPartition) -> _Partition:
        held = self._partitions.get(tp)
        if held is None:
            topic = self._by_id.get(tp[0])
            if topic is None:
                raise NotFound(f"there is no topic with the id {tp[0]}")
            raise NotFound(f"topic {topic.name} has no partition {tp[1]}; it has {topic.partitions}, numbered from 0")
        return held

    def _bind(self, index: int, bound: pb.ClusterBound) -> None:
        cluster_id = bound.cluster_id.hex()
        if len(bound.cluster_id) != 16:
            raise Corrupted(
                f"intake log: entry {index} names a cluster id of {len(bound.cluster_id)} bytes; it must have 16: restore the log"
            )
        if self._cluster_id not in (None, cluster_id):
            raise Corrupted(f"intake log: entry {index} names cluster {cluster_id}, an earlier one {self._cluster_id}; restore the log")
        self._cluster_id = cluster_id

    def _declare(self, index: int, declared: pb.TopicDeclared) -> None:
        if len(declared.topic_id) != 16 or not declared.name or declared.partitions == 0:
            raise Corrupted(f"intake log: entry {index} declares a topic without a name, a 16-byte id or partitions; restore the log")
        topic_id = TopicId(declared.topic_id.hex())
        if declared.name in self._by_name or topic_id in self._by_id:
            return  # somebody was first: a double is void
        topic = TopicState(topic_id, declared.name, declared.partitions, declared.created_us)
        for number in range(declared.partitions):
            self._partitions[topic_id, number] = _Partition()
        self._by_id[topic_id] = topic
        self._by_name[declared.name] = topic

    def _place(self, index: int, file: pb.IntakeFile) -> tuple[Placed, ...]:
        """The entry's segments with their offsets and floors; changes nothing."""
        if not file.key or len(file.footer_sha256) != 32:
            raise Corrupted(f"intake log: entry {index} names a file without a key or digest; restore the log")
        ref = FileRef(index, file.key, file.size, file.footer_sha256)
        placed: list[Placed] = []
        newest: dict[TopicPartition, SegmentRef] = {}
        for group in file.topics:
            topic_id = TopicId(group.topic_id.hex())
            topic = self._by_id.get(topic_id)
            if topic is None:
                raise Corrupted(f"intake log: entry {index} ({file.key}) holds records of a topic {topic_id} that was never declared")
            for segment in group.segments:
                if segment.partition >= topic.partitions or segment.rows == 0:
                    raise Corrupted(
                        f"intake log: entry {index} ({file.key}) has a segment of {segment.rows} rows for partition {segment.partition} "
                        f"of topic {topic.name}, which has {topic.partitions} partitions"
                    )
                tp = (topic_id, segment.partition)
                newest[tp] = self._follow(ref, tp, newest.get(tp), segment)
                placed.append((tp, newest[tp]))
        return tuple(placed)

    def _follow(self, ref: FileRef, tp: TopicPartition, earlier: SegmentRef | None, segment: pb.Segment) -> SegmentRef:
        held = self._partitions[tp].segments
        before = earlier if earlier is not None else held[-1] if held else None
        return SegmentRef(
            file=ref,
            row_group=segment.row_group,
            first_row=segment.first_row,
            rows=segment.rows,
            base=before.end if before is not None else 0,
            raw_bytes=segment.raw_bytes,
            accept_max_us=segment.accept_max_us,
            floor_us=max(self._tick_us, before.ingest_max_us if before is not None else NO_TIME_US),
        )


def parse_entry(index: int, data: bytes) -> pb.IntakeEntry:
    """One entry of the intake log; `Corrupted` if it is none, `Halt` if a newer version wrote it."""
    try:
        entry = pb.IntakeEntry.FromString(data)
    except DecodeError as error:
        raise Corrupted(f"intake log: entry {index} is not an intake entry ({len(data)} bytes); restore the log") from error
    if entry.format != ENTRY_FORMAT or entry.WhichOneof("body") is None:
        raise Halt(
            f"intake log: entry {index} has the format {entry.format}, this version knows {ENTRY_FORMAT}; upgrade before reading this log"
        )
    return entry
