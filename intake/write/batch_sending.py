"""What a writer needs to number and cut a batch on its way into the queue.

Owns the Protocol by which a writer sees an idempotent producer, and the rules of sequence numbers that a
caller states. Promises that the rows of a piece are numbered in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import InvalidInput
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from intake.log.fold import TopicState
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.records import NormalBatch
from intake.write.acknowledgements import PendingBatch
from intake.write.queue import BatchItem, Item, ItemSource, Piece

NO_SEQUENCE = -1
"""In the place of the number of a row that has none."""


class Stamper(ItemSource, Protocol):
    """An idempotent producer, as the writer sees it: numbers its records in the order of the queue. Called
    under the queue's lock.
    """

    @property
    def generation(self) -> int:
        """Of the numbers that it gives now."""

    @property
    def transactional_id(self) -> str:
        """Empty: it has no transactions."""

    def stamp(self, tp: TopicPartition, stated: int | None) -> Stamp:
        """Of the next record, or of the one with the sequence number that its sender states; raises if it
        must not be sent.
        """

    def stamp_rows(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], stated: npt.NDArray[np.int32] | None
    ) -> tuple[Stamp, npt.NDArray[np.int32]]:
        """Of the next rows: the stamp of the first, and the sequence number of each."""

    def in_log(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Which rows the log, as far as it is known, has passed with their numbers: it stores none of them
        anew.
        """

    def given_up(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int32]
    ) -> None:
        """Rows with these numbers are certainly not in the log, and are not sent any more."""

    def queued(self, item: Item) -> None:
        """The item that was numbered last goes into the queue."""

    def left_out(self) -> None:
        """Rows behind the last piece found no room."""


@dataclass(frozen=True, slots=True)
class BatchSending:
    """A batch on its way into the queue."""

    topic: TopicState
    pending: PendingBatch
    stamper: Stamper | None
    stated: npt.NDArray[np.int32] | None
    """Per row of the call."""

    def item(
        self,
        batch: NormalBatch,
        partitions: npt.NDArray[np.int32],
        piece: Piece,
        first_row: int,
        accept_us: int,
    ) -> BatchItem:
        """The piece of one Arrow batch, which begins at `first_row` of the call; made under the queue's
        lock.
        """
        rows = slice(piece.start, piece.end)
        row = first_row + piece.start
        stamp = sequences = None
        if self.stamper is not None:
            of_call = slice(row, first_row + piece.end)
            stated = None if self.stated is None else self.stated[of_call]
            stamp, sequences = self.stamper.stamp_rows(self.topic.topic_id, partitions[rows], stated)
            assert self.pending.sequences is not None, "made with the stamper"
            self.pending.sequences[of_call] = sequences
        self.pending.expect(row)
        item = BatchItem(
            topic=self.topic,
            columns=batch.columns.slice(piece.start, piece.end - piece.start),
            row_bytes=batch.raw_bytes[rows],
            partitions=partitions[rows],
            raw_bytes=piece.raw_bytes,
            cost=piece.cost,
            accept_us=accept_us,
            first_row=row,
            pending=self.pending,
            stamp=stamp,
            sequences=sequences,
            stated=self.stated is not None,
            source=self.stamper,
            generation=0 if self.stamper is None else self.stamper.generation,
        )
        if self.stamper is not None:
            self.stamper.queued(item)
        return item


def stated_sequences(
    sequence: int | Sequence[int] | npt.NDArray[np.int32], partitions: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The sequence numbers that a caller states, per row, `NO_SEQUENCE` for a row that had none; raises
    `InvalidInput`.
    """
    if isinstance(sequence, int):
        if len(np.unique(partitions)) > 1:
            raise InvalidInput(
                "the rows go to several partitions, and sequence numbers count per partition: state "
                "one for each row"
            )
        return (
            (check_sequence(sequence) + np.arange(len(partitions), dtype=np.int64)) % SEQUENCE_COUNT
        ).astype(np.int32)
    numbers = np.asarray(sequence)
    if numbers.shape != partitions.shape or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidInput(
            f"{len(numbers)} sequence numbers were stated for {counted(len(partitions), 'row')}; one "
            "whole number per row is needed"
        )
    numbered = numbers[numbers != NO_SEQUENCE]
    for number in (numbered.min(), numbered.max()) if len(numbered) else ():
        check_sequence(int(number))
    return numbers.astype(np.int32)


def check_sequence(sequence: int) -> int:
    """The number, if it can be one; raises `InvalidInput`."""
    if not 0 <= sequence < SEQUENCE_COUNT:
        raise InvalidInput(f"{sequence} is no sequence number; they go from 0 to {SEQUENCE_COUNT - 1}")
    return sequence
