"""Whose batch each row of a flush belongs to, as columns: no Python per row of a batch.

Pure. Knows where one producer's batch ends and another begins, and fills the producer columns of an intake
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from intake.arrow_arrays import ArrowArray, Int64Array
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.write.queue import BatchItem, Item

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class StampedRows:
    """Columns with a place per row."""

    producer_ids: Int64Array
    """-1 where no idempotent producer sent the row; the other columns are without a meaning there."""
    epochs: Int64Array
    sequences: Int64Array
    transactional: npt.NDArray[np.bool_]
    stated: npt.NDArray[np.bool_]
    """The caller stated the sequence number."""

    @property
    def stamped(self) -> npt.NDArray[np.bool_]:
        """Where there is a producer."""
        stamped: npt.NDArray[np.bool_] = self.producer_ids != _NOBODY
        return stamped

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self | None:
        """Of the rows of `items`, in their order; None if none of them has a stamp."""
        stamps = [item.stamp for item in items]
        if all(stamp is None for stamp in stamps):
            return None
        known = [stamp or Stamp(_NOBODY, 0, 0) for stamp in stamps]
        rows = np.array([item.rows for item in items], np.int64)
        return cls(
            producer_ids=np.repeat(np.array([stamp.producer_id for stamp in known], np.int64), rows),
            epochs=np.repeat(np.array([stamp.epoch for stamp in known], np.int64), rows),
            sequences=_sequences(items, known, rows),
            transactional=np.repeat(np.array([stamp.transactional for stamp in known], np.bool_), rows),
            stated=np.repeat(np.array([item.stated for item in items], np.bool_), rows),
        )

    def take(self, order: Int64Array) -> StampedRows:
        """The rows in another order."""
        return StampedRows(
            self.producer_ids[order],
            self.epochs[order],
            self.sequences[order],
            self.transactional[order],
            self.stated[order],
        )

    def breaks(self) -> npt.NDArray[np.bool_]:
        """Per row but the first: it does not go on with the batch of the row before it."""
        others = (
            (self.producer_ids[1:] != self.producer_ids[:-1])
            | (self.epochs[1:] != self.epochs[:-1])
            | (self.transactional[1:] != self.transactional[:-1])
            | (self.stated[1:] != self.stated[:-1])
        )
        jumps = self.stamped[1:] & (self.sequences[1:] != (self.sequences[:-1] + 1) % SEQUENCE_COUNT)
        breaks: npt.NDArray[np.bool_] = others | jumps
        return breaks

    def stamps(self, rows: Int64Array) -> list[Stamp | None]:
        """Of those rows."""
        columns = (self.producer_ids, self.epochs, self.sequences, self.transactional)
        return [
            None if producer_id == _NOBODY else Stamp(producer_id, epoch, sequence, transactional)
            for producer_id, epoch, sequence, transactional in zip(
                *(column[rows].tolist() for column in columns), strict=True
            )
        ]

    def columns(self, start: int, end: int, types: Sequence[pa.DataType]) -> list[ArrowArray]:
        """The producer columns of an intake file for the rows [start, end), in the order of
        `PRODUCER_COLUMNS`.
        """
        none = ~self.stamped[start:end]
        values = (self.producer_ids, self.epochs, self.sequences, self.transactional)
        return [
            pa.array(column[start:end], mask=none).cast(wanted)
            for column, wanted in zip(values, types, strict=True)
        ]


def _sequences(items: Sequence[Item], stamps: Sequence[Stamp], rows: Int64Array) -> Int64Array:
    ends = np.cumsum(rows)
    firsts = np.array([stamp.sequence for stamp in stamps], np.int64)
    # As if the rows of an item followed each other; what a batch says otherwise is put over it.
    places = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - rows, rows)
    sequences: Int64Array = (np.repeat(firsts, rows) + places) % SEQUENCE_COUNT
    for item, end in zip(items, ends.tolist(), strict=True):
        if isinstance(item, BatchItem) and item.sequences is not None:
            sequences[end - item.rows : end] = item.sequences
    return sequences
