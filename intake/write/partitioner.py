"""Assigns each record to a partition: the requested one, else Kafka's murmur2 of the key, else the sticky
one.

murmur2 gives the same partition as any Kafka producer. Records without a key stay in one partition for 16 KiB
and then move to the next, so that a flush holds few segments. A partition that does not exist is refused
before anything is sent.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import NotFound
from archiver.runtime.ids import IdSource
from intake.arrow_arrays import ArrowArray, Int64Array, binary_layout, valid_rows
from intake.log.fold import TopicState
from intake.records import NormalBatch, Record

# Constants of Kafka's murmur2. Other values would move keys to other partitions.
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
# Kafka clears the sign bit and does not take the absolute value.
_POSITIVE = 0x7FFFFFFF

STICKY_BYTES = 16 * 1024
"""Raw bytes without a key that go to one partition (Kafka's default batch size)."""


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 as an unsigned 32-bit number."""
    length = len(data)
    state = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        word = (word ^ (word >> 24)) * _M & _MASK
        state = (state * _M & _MASK) ^ word
    # The remaining 1 to 3 bytes count as one little-endian number.
    if length > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    state = (state ^ (state >> 13)) * _M & _MASK
    return state ^ (state >> 15)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key; empty bytes are a key like any other."""
    return (murmur2(key) & _POSITIVE) % partitions


def murmur2_rows(keys: ArrowArray) -> npt.NDArray[np.uint32]:
    """`murmur2` of every row of a binary array; the value of a null row is undefined."""
    offsets, data = binary_layout(keys)
    rows = len(keys)
    if rows == 0:
        return np.zeros(0, np.uint32)
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets)
    # The view below needs at least one whole word.
    padded = data if len(data) >= 4 else np.zeros(4, np.uint8)
    # A view of every position as a little-endian word turns the loop over bytes into a gather.
    words = np.ndarray(shape=(len(padded) - 3,), dtype="<u4", buffer=padded, strides=(1,))
    state = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    blocks = lengths >> 2
    longest, shortest = int(blocks.max()), int(blocks.min())
    for block in range(longest):
        # Up to the length of the shortest key every row takes part, so no index array is needed.
        if block < shortest:
            state = _mix(state, words[starts + 4 * block])
        else:
            held = np.flatnonzero(blocks > block)
            state[held] = _mix(state[held], words[starts[held] + 4 * block])
    tails = lengths & 3
    for tail in range(1, 4):
        held = np.flatnonzero(tails == tail)
        if len(held):
            state[held] = _mix_tail(state[held], data, starts[held] + lengths[held] - tail, tail)
    state ^= state >> np.uint32(13)
    state *= np.uint32(_M)
    state ^= state >> np.uint32(15)
    return state


def _mix(state: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    mixed = words * np.uint32(_M)
    mixed ^= mixed >> np.uint32(24)
    mixed *= np.uint32(_M)
    mixed ^= state * np.uint32(_M)
    return mixed


def _mix_tail(
    state: npt.NDArray[np.uint32], data: npt.NDArray[np.uint8], at: Int64Array, tail: int
) -> npt.NDArray[np.uint32]:
    for position in range(tail):
        state = state ^ (data[at + position].astype(np.uint32) << np.uint32(8 * position))
    return state * np.uint32(_M)


class Unkeyed:
    """Assigns records without a key: a running byte count, divided into pieces of `STICKY_BYTES`.

    `start` differs between writers, so that many short-lived writers do not all fill partition 0. Not
    thread-safe.
    """

    def __init__(self, start: int) -> None:
        self._bytes = start * STICKY_BYTES

    def place(self, raw_bytes: int, partitions: int) -> int:
        """The partition of one record."""
        partition = self._bytes // STICKY_BYTES % partitions
        # Count at least 1, so that empty records move on to the next partition too.
        self._bytes += max(1, raw_bytes)
        return partition

    def place_rows(self, raw_bytes: Int64Array, partitions: int) -> npt.NDArray[np.int32]:
        """The partitions of many records in order, equal to calling `place` for each."""
        ends = np.cumsum(np.maximum(raw_bytes, 1)) + self._bytes
        # The partition follows from the bytes before each record.
        starts = np.concatenate(([self._bytes], ends[:-1]))
        if len(ends):
            self._bytes = int(ends[-1])
        placed: npt.NDArray[np.int32] = (starts // STICKY_BYTES % partitions).astype(np.int32)[
            : len(raw_bytes)
        ]
        return placed


def partition_rows(
    keys: ArrowArray, raw_bytes: Int64Array, partitions: int, unkeyed: Unkeyed
) -> npt.NDArray[np.int32]:
    """The partition of every row: by key where there is one, else by `unkeyed`."""
    valid = valid_rows(keys)
    if not valid.any():
        return unkeyed.place_rows(raw_bytes, partitions)
    placed = ((murmur2_rows(keys) & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)
    if not valid.all():
        # Null rows were hashed as well, with an undefined result.
        placed[~valid] = unkeyed.place_rows(raw_bytes[~valid], partitions)
    return placed


# Marks a row without a requested partition.
_BY_KEY = -1


class Placement:
    """The partitions of the records of one writer. Thread-safe."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._unkeyed: dict[str, Unkeyed] = {}
        self._lock = threading.Lock()

    def of_record(self, topic: TopicState, record: Record, raw_bytes: int, asked: int | None) -> int:
        """The partition of one record; `NotFound` if the requested one does not exist."""
        if asked is not None:
            return _existing(topic, asked)
        if record.key is not None:
            return partition_for(record.key, topic.partitions)
        with self._lock:
            # The running count is shared by all senders of the writer.
            return self._unkeyed_of(topic).place(raw_bytes, topic.partitions)

    def of_rows(self, topic: TopicState, batch: NormalBatch, asked: int | None) -> npt.NDArray[np.int32]:
        """The partition of every row; `NotFound` if a requested one does not exist."""
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
            # A random start spreads the first records of many writers over the partitions.
            unkeyed = self._unkeyed[topic.name] = Unkeyed(int.from_bytes(self._ids.random_bytes(3), "big"))
        return unkeyed


def _existing(topic: TopicState, partition: int) -> int:
    if not 0 <= partition < topic.partitions:
        raise NotFound(
            f"topic {topic.name} has no partition {partition}; it has {topic.partitions}, numbered from 0"
        )
    return partition


def _given(topic: TopicState, batch: NormalBatch) -> Int64Array | None:
    """The partitions that the batch's own column requests, `_BY_KEY` for null; None without such a column."""
    if batch.partitions is None:
        return None
    asked = batch.partitions.drop_null().to_numpy()
    wrong = asked[(asked < 0) | (asked >= topic.partitions)]
    if len(wrong):
        _existing(topic, int(wrong[0]))
    given: Int64Array = batch.partitions.fill_null(_BY_KEY).to_numpy()
    return given
