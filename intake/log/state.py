"""One topic partition of the intake fold: how far it is, its segments in offset order, and its gaps.

Pure. Segments and gaps up to `shelved_to` are not held any more: they stand in shelves (object storage).
Promises that segments and gaps together cover the offsets from `shelved_to` to `next_offset`, each once.

Others may read while one thread changes it: a list that anything is taken out of is replaced by another, and
`shelved_to` rises before what is below it goes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.source_positions import SourceState
from intake.log.transactions import OpenTransaction
from intake.producers import Producer
from intake.segments import HeldSegments, SegmentRef, Segments


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as its first declaration says, and how far it has grown since."""

    topic_id: TopicId
    name: str
    partitions: int
    """Of a mirrored topic it may grow."""
    created_us: int
    mirrored: bool = False
    """Its records have the offsets that an upstream gave them, and nobody but its source writes to it."""


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that was deleted. Its name may be another topic's by now."""

    topic_id: TopicId
    name: str
    partitions: int
    created_us: int
    deleted_us: int


Gap = tuple[int, int]
"""Offsets [from, to) that hold no record anybody ever sees: those of an aborted transaction, and those an
upstream has no record for."""


@dataclass(slots=True)
class PartitionState:
    """State of one topic partition."""

    next_offset: int = 0
    ingest_max_us: int = 0
    """Newest accept time so far; the running maximum goes on from here."""
    history_end: int = 0
    """Segments and gaps below this offset are in shelves."""
    segments: HeldSegments = field(default_factory=HeldSegments)
    gaps: list[Gap] = field(default_factory=list)
    """Ascending; two that follow each other at once may stand apart."""

    def append(self, segment: SegmentRef) -> None:
        """The segment follows at `next_offset`."""
        self.segments.append(segment)
        self.next_offset = segment.end
        self.ingest_max_us = max(self.ingest_max_us, segment.accept_max_us, segment.floor_us)

    def pass_over(self, offset: int) -> None:
        """The next record has this offset: what lies before it is a gap. Before the partition grows, so that
        no reader finds a hole.
        """
        if offset > self.next_offset:
            self.gaps.append((self.next_offset, offset))
            self.next_offset = offset

    def from_offset(self, start: int) -> Segments:
        """The segments that reach beyond `start`."""
        segments = self.segments
        return segments[segments.first_beyond(start) :]

    def abort(self, ranges: Iterable[Gap]) -> None:
        """The records of those offsets are gone: whole segments, for a transaction never shares one."""
        gaps, kept, segments, reached = list(self.gaps), list[tuple[int, int]](), self.segments, 0
        for base, end in ranges:
            first = segments.first_beyond(base, reached)
            kept.append((reached, first))
            reached = segments.first_beyond(end, first)
            insort(gaps, (base, end))
        self.segments, self.gaps = segments.parts([*kept, (reached, len(segments))]), gaps

    def forget_below(self, offset: int) -> None:
        """Everything below `offset` is in a shelf; a segment or gap never reaches beyond such an offset."""
        self.history_end = max(self.history_end, offset)
        self.segments = self.segments.parts([(self.segments.first_beyond(offset), len(self.segments))])
        self.gaps = [gap for gap in self.gaps if gap[1] > offset]


@dataclass(frozen=True, slots=True)
class FoldState:
    """What a checkpoint keeps of a fold."""

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
    ids: Iterable[bytes]


def merged(gaps: Iterable[Gap], start: int, end: int) -> list[Gap]:
    """The gaps (ascending) inside [start, end), cut to it, those that touch joined."""
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
