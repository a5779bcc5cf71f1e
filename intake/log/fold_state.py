"""What a fold of the intake log knows, as values: topics, and the whole of it for a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.partition_state import PartitionState
from intake.log.source_positions import SourceState
from intake.log.transactions import OpenTransaction
from intake.producers import Producer


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
