"""Batches that a client sent, and numbered itself if it is idempotent: how they are divided between their
topic and DLQ topics.

Pure. Such a batch is stored as a whole: each part is one item of the queue. The part in its own topic has the
sequence numbers of all records. It depends on the parts in DLQ topics, so that numbers in the log prove that
every record of the batch is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import RecordRefused
from intake.batches.decoding import Bytes, Measured
from intake.log.fold import TopicState
from intake.producers import SEQUENCE_COUNT, Producers, Stamp
from intake.records import NormalBatch, Record, check_weight, normalise_batch
from intake.write.acknowledgements import PendingBatch
from intake.write.encode import record_columns
from intake.write.queue import ROW_COST_BYTES, BatchItem, EncodedItem, ReceivedBatch
from intake.write.validation import Rows

_ITEM_BYTES = 2600
"""Measured: memory of a batch on its way through Produce and the queue, in addition to its bytes."""


@dataclass(frozen=True, slots=True)
class ReceivedPart:
    """The records of a received batch that go to the same topic."""

    topic: TopicState
    content: NormalBatch
    partitions: npt.NDArray[np.int32]
    stamp: Stamp | None
    sequences: npt.NDArray[np.int32] | None = None
    """Per row; None: they follow the stamp's."""
    numbers_only: bool = False
    """As in `BatchItem`."""

    @property
    def raw_bytes(self) -> int:
        """Of all rows."""
        return int(self.content.raw_bytes.sum())

    @property
    def cost(self) -> int:
        """Bytes of the queue they use."""
        return int(self.content.weights.sum()) + ROW_COST_BYTES * len(self.partitions)

    def item(self, pending: PendingBatch, accept_us: int, elsewhere: Sequence[PendingBatch]) -> BatchItem:
        """All of it as one piece. `elsewhere`: the parts of the batch that go to DLQ topics, for the part in
        its own topic.
        """
        pending.expect(0)
        pending.admitted()
        return BatchItem(
            topic=self.topic,
            columns=self.content.columns,
            row_bytes=self.content.raw_bytes,
            partitions=self.partitions,
            raw_bytes=self.raw_bytes,
            cost=self.cost,
            accept_us=accept_us,
            first_row=0,
            pending=pending,
            stamp=self.stamp,
            sequences=self.sequences,
            # A client repeats a batch under its numbers without notice, so each may be in the log already.
            stated=self.stamp is not None,
            numbers_only=self.numbers_only,
            after=elsewhere,
        )


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """A record batch of one partition as a client sent it, whose records were measured."""

    topic: TopicState
    partition: int
    data: Bytes
    records: int
    sizes: Measured
    stamp: Stamp | None
    """The producer and the sequence number of the first record, which the others follow; None: none."""

    @property
    def cost(self) -> int:
        """Bytes of the queue it uses."""
        # As its rows would, because a reader makes them: what compresses well must not become large there.
        decoded = self.sizes.weight + ROW_COST_BYTES * self.records
        return max(decoded, len(self.data)) + _ITEM_BYTES

    def check(self, record_bytes_max: int, queue_bytes_max: int) -> None:
        """Raise `RecordRefused` if it can never be stored."""
        sizes = self.sizes
        try:
            check_weight(sizes.largest_bytes, sizes.largest_weight, record_bytes_max)
        except RecordRefused as error:
            raise RecordRefused(f"row {sizes.heaviest}: {error}") from error
        # Without the part that every batch has: a record may be as large as the queue.
        if self.cost - _ITEM_BYTES > queue_bytes_max:
            raise RecordRefused(
                f"a batch of {self.records} records takes {self.cost} bytes of the queue's room, more than "
                f"intake.queue_bytes_max = {queue_bytes_max}; send smaller batches"
            )

    def item(self, topic: TopicState, pending: PendingBatch, accept_us: int) -> EncodedItem:
        """All of it as one item, of the newest state of its topic."""
        pending.expect(0)
        pending.admitted()
        return EncodedItem(
            topic,
            self.partition,
            self.data,
            self.records,
            self.sizes.raw_bytes,
            self.cost,
            accept_us,
            pending,
            self.stamp,
        )


def kept(topic: TopicState, batch: ReceivedBatch, rows: Rows) -> list[ReceivedPart]:
    """The part of a batch that stays in its own topic: `rows`; empty if there is none."""
    stamp, count = batch.stamp, batch.columns.num_rows
    if len(rows.rows):
        (content,) = rows.batches
        if stamp is None or len(rows.rows) == count:
            return [ReceivedPart(topic, content, rows.partitions, stamp)]
        sequences = ((stamp.sequence + rows.rows) % SEQUENCE_COUNT).astype(np.int32)
        return [ReceivedPart(topic, content, rows.partitions, replace(stamp, covered=count), sequences)]
    if stamp is None:
        return []
    # Its numbers must reach the log, or the next batch would not follow.
    placeholder = normalise_batch(record_columns([Record(None, None)]), 0)
    partitions, sequences = np.full(1, batch.partition, np.int32), np.full(1, stamp.sequence, np.int32)
    numbers = replace(stamp, covered=count)
    return [ReceivedPart(topic, placeholder, partitions, numbers, sequences, numbers_only=True)]


def has_passed(batch: ReceivedBatch, producers: Producers) -> bool:
    """Whether the log has passed all numbers of the batch, so that it stores nothing of it."""
    stamp = batch.stamp
    if stamp is None:
        return False
    tp = (batch.topic.topic_id, batch.partition)
    expected = producers.next_sequence(tp, stamp.producer_id, stamp.epoch)
    # Unknown here, but perhaps known to a process that has read more of the log.
    if expected is None:
        return False
    behind = (expected - stamp.sequence) % SEQUENCE_COUNT
    return batch.columns.num_rows <= behind <= SEQUENCE_COUNT // 2
