"""State of the intake fold as values: topics, partitions, and the whole state for a checkpoint.

Pure. Segments and gaps below `history_end` are no longer in memory: they are in history files. Segments and
gaps together cover the offsets from `history_end` to `next_offset`, each once.

Other threads may read while one thread changes a partition. So a list that loses elements is replaced by a
new one, and `history_end` rises before the elements below it are dropped.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from intake.log.consumer_groups import ConsumerGroup, PendingOffsets, SlotClaim
from intake.log.source_positions import SourceState
from intake.log.transactions import OpenTransaction
from intake.producers import Producer
from intake.segments import HeldSegments, SegmentRef, Segments

Configs = tuple[tuple[str, str], ...]
"""Names and values, in ascending order of the names."""
CONFIGS_MAX = 100
"""Most configs of a topic."""
CONFIG_CHARS_MAX = 255
"""Most characters of a config's name or value."""
APPEND_TIME_CHANGES_MAX = 100
"""Most changes of the timestamp type in a partition, by which clients can make checkpoints larger."""
TIMESTAMP_TYPE = "message.timestamp.type"
"""The only config with a meaning to the intake log."""
_LOG_APPEND_TIME = (TIMESTAMP_TYPE, "LogAppendTime")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as declared first, with its present number of partitions."""

    topic_id: TopicId
    name: str
    partitions: int
    """Of the log, which may be more than a configuration says. It grows and never decreases."""
    created_us: int
    mirrored: bool = False
    """Its records have offsets from an upstream, and only its source writes to it."""
    configs: Configs = ()
    """What clients set for this topic; `archiver.config.topic_configs` has their meaning."""

    @property
    def log_append_time(self) -> bool:
        """Whether the accept time replaces the event time of new records."""
        # Records of a mirrored topic are those of its upstream.
        return not self.mirrored and _LOG_APPEND_TIME in self.configs


def fewer_configured(topic: TopicState, configured: int) -> str:
    """The only text for a topic with more partitions than its configuration says."""
    return (
        f"topic {topic.name} has {counted(topic.partitions, 'partition')}, the configuration says "
        f"{configured}; set `partitions: {topic.partitions}` in archiver.yaml, because the topic keeps all "
        "of them"
    )


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic. Another topic may have its name by now."""

    topic_id: TopicId
    name: str
    partitions: int
    created_us: int
    deleted_us: int


Gap = tuple[int, int]
"""Offsets [from, to) without a visible record: of an aborted transaction, or missing in the upstream."""


@dataclass(slots=True)
class PartitionState:
    """State of one topic partition."""

    next_offset: int = 0
    ingest_max_us: int = 0
    """Newest accept time so far; the running maximum continues from here."""
    history_end: int = 0
    """Segments and gaps below this offset are in history files."""
    segments: HeldSegments = field(default_factory=HeldSegments)
    gaps: list[Gap] = field(default_factory=list)
    """Ascending; two adjacent gaps may be separate elements."""
    append_time_changes: list[int] = field(default_factory=list)
    """Ascending offsets, also below `history_end`. From the first on, records have the append time; from the
    second on, they do not; and so on."""
    deleted_below: int = 0
    """Clients deleted the records below this offset. Segments and gaps below it stay: they are archived."""

    def append(self, segment: SegmentRef, *, log_append_time: bool = False) -> None:
        """Append the segment at `next_offset`."""
        # The offset before the segment, so that a reader of its records knows their timestamp type.
        if log_append_time != bool(len(self.append_time_changes) % 2):
            self.append_time_changes.append(segment.base)
        # The segment before `next_offset`, so that a concurrent reader finds all records below the end it
        # read.
        self.segments.append(segment)
        self.next_offset = segment.end
        self.ingest_max_us = max(self.ingest_max_us, segment.accept_max_us, segment.floor_us)

    def pass_over(self, offset: int) -> None:
        """The next record has this offset; the offsets before it become a gap. Called before the partition
        grows, so that no reader finds a hole.
        """
        if offset > self.next_offset:
            # The gap first: a reader that sees the new end must find no hole below it.
            self.gaps.append((self.next_offset, offset))
            self.next_offset = offset

    def have_append_time(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """For each of these offsets, whether its record has the append time; None: none of them has."""
        if not self.append_time_changes:
            return None
        # A copy, because the fold may append to the list.
        changes = np.array(list(self.append_time_changes), np.int64)
        mask: npt.NDArray[np.bool_] = np.searchsorted(changes, offsets, side="right") % 2 == 1
        return mask if mask.any() else None

    def from_offset(self, start: int) -> Segments:
        """The segments that reach beyond `start`."""
        segments = self.segments
        return segments[segments.first_beyond(start) :]

    def abort(self, ranges: Iterable[Gap]) -> None:
        """Turn these offsets into gaps. They cover whole segments, because a transaction never shares one."""
        gaps, kept, segments, reached = list(self.gaps), list[tuple[int, int]](), self.segments, 0
        for base, end in ranges:
            first = segments.first_beyond(base, reached)
            kept.append((reached, first))
            reached = segments.first_beyond(end, first)
            # An aborted range may lie between gaps of earlier aborts.
            insort(gaps, (base, end))
        # New objects: a reader that iterates over the old ones must not be disturbed.
        self.segments, self.gaps = segments.parts([*kept, (reached, len(segments))]), gaps

    def forget_below(self, offset: int) -> None:
        """Drop everything below `offset`, which is in a history file. No segment or gap reaches across such
        an offset.
        """
        # Raised before anything is dropped: a reader that misses a segment then reads the history file.
        self.history_end = max(self.history_end, offset)
        self.segments = self.segments.parts([(self.segments.first_beyond(offset), len(self.segments))])
        self.gaps = [gap for gap in self.gaps if gap[1] > offset]


@dataclass(frozen=True, slots=True)
class FoldState:
    """The state of a fold, as a checkpoint stores it."""

    next_index: int
    cluster_id: str | None
    tick_us: int
    newest_us: int
    newest_key: str
    barrier_ms: int
    topics: Sequence[TopicState]
    deleted: Sequence[DeletedTopic]
    partitions: Mapping[TopicPartition, PartitionState]
    producers: Sequence[Producer]
    transactions: Sequence[OpenTransaction]
    sources: Sequence[SourceState]
    slot_claims: Sequence[SlotClaim]
    consumer_groups: Sequence[ConsumerGroup]
    pending_offsets: Sequence[PendingOffsets]
    ids: Iterable[bytes]


def merged(gaps: Iterable[Gap], start: int, end: int) -> list[Gap]:
    """The gaps (ascending) inside [start, end), cut to it; adjacent ones are joined."""
    found: list[Gap] = []
    for low, high in gaps:
        base, until = max(low, start), min(high, end)
        if base >= until:
            continue
        if found and found[-1][1] >= base:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((base, until))
    return found
