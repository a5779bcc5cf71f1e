"""Which partition each record of a topic goes to: the one asked for, else the one its key decides, else the
next without a key.

Owns how far the records without a key have got, per topic. Promises that a partition that does not exist is
refused before anything is sent. Thread-safe.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import NotFound
from archiver.runtime.ids import IdSource
from intake.arrow_arrays import Int64Array
from intake.log.fold import TopicState
from intake.records import NormalBatch, Record
from intake.write.partitioner import Unkeyed, partition_for, partition_rows

_BY_KEY = -1


class Placement:
    """The partitions of what one writer sends."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._unkeyed: dict[str, Unkeyed] = {}
        self._lock = threading.Lock()

    def of_record(self, topic: TopicState, record: Record, raw_bytes: int, asked: int | None) -> int:
        """The partition of one record; `NotFound` if the one asked for does not exist."""
        if asked is not None:
            return _existing(topic, asked)
        if record.key is not None:
            return partition_for(record.key, topic.partitions)
        with self._lock:
            return self._unkeyed_of(topic).place(raw_bytes, topic.partitions)

    def of_rows(self, topic: TopicState, batch: NormalBatch, asked: int | None) -> npt.NDArray[np.int32]:
        """The partition of every row; `NotFound` if one that is asked for, by the call or by the batch, does
        not exist.
        """
        if asked is not None:
            return np.full(len(batch.raw_bytes), _existing(topic, asked), np.int32)
        given = _given(topic, batch)
        if given is not None and not (given == _BY_KEY).any():
            return given.astype(np.int32)
        with self._lock:
            placed = partition_rows(
                batch.columns.column("key"), batch.raw_bytes, topic.partitions, self._unkeyed_of(topic)
            )
        return placed if given is None else np.where(given == _BY_KEY, placed, given).astype(np.int32)

    def _unkeyed_of(self, topic: TopicState) -> Unkeyed:
        unkeyed = self._unkeyed.get(topic.name)
        if unkeyed is None:
            unkeyed = self._unkeyed[topic.name] = Unkeyed(int.from_bytes(self._ids.random_bytes(3), "big"))
        return unkeyed


def _existing(topic: TopicState, partition: int) -> int:
    if not 0 <= partition < topic.partitions:
        raise NotFound(
            f"topic {topic.name} has no partition {partition}; it has {topic.partitions}, numbered from 0"
        )
    return partition


def _given(topic: TopicState, batch: NormalBatch) -> Int64Array | None:
    """The partitions that the batch itself asks for, `_BY_KEY` where it asks for none; None if it has no such
    column.
    """
    if batch.partitions is None:
        return None
    asked = batch.partitions.drop_null().to_numpy()
    wrong = asked[(asked < 0) | (asked >= topic.partitions)]
    if len(wrong):
        _existing(topic, int(wrong[0]))
    given: Int64Array = batch.partitions.fill_null(_BY_KEY).to_numpy()
    return given
