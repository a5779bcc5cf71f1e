"""Turn polled batches and records into the content of one log entry: items with upstream offsets, and the
positions after them.

Pure except for Arrow. A batch is stored as it came. In an intake file, the rows of a partition come before
its batches. So of a partition with a record that was read by itself, all batches of the piece become rows.

The records of a partition are in offset order, without repetition and without records ingested before. A
record that cannot be stored, or should not exist, ends its partition just before it. A
leader epoch is kept only with the record that has it. The piece fits one entry of the intake log. There is no
Python work per record beyond the lists of a poll.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from intake.arrow_arrays import (
    ArrowArray,
    Int64Array,
    binary_lengths,
    header_lengths,
    list_array,
    list_lengths,
)
from intake.batches.decoding import SIZE_MAX, BatchRefused, decode, read_header
from intake.log.fold import TopicState, mirror_source
from intake.log.source_positions import Move
from intake.records import (
    HEADER_COST_BYTES,
    HEADERS,
    RECORD_SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
    no_headers,
)
from intake.sources.kafka.single_records import read_records
from intake.sources.kafka.upstream import Place, Polled, UpstreamBatch, UpstreamRows
from intake.write.acknowledgements import PendingBatch
from intake.write.encode import ENTRY_BYTES, OFFSET_BYTES, SEGMENT_BYTES, TOPIC_BYTES
from intake.write.queue import ROW_COST_BYTES, BatchItem, EncodedItem

POSITION_BYTES = 160
"""Upper bound of the position of a mirrored partition in an entry."""
NO_TIME_MS = -1
_MS_MIN, _MS_MAX = -(-TIMESTAMP_MIN_US // 1000), TIMESTAMP_MAX_US // 1000


@dataclass(slots=True)
class Cursor:
    """How far a partition is ingested, and how far it is read."""

    place: Place
    topic: TopicState
    identity: bytes
    base: int
    """End offset in the log."""
    end: int
    """End offset of the records read."""
    epoch: int
    """Leader epoch of the last record plus 1; 0 if unknown. Stored in the log as `SourcePosition.count`."""
    read_from: int | None = None
    """Offset where reading began: after the last record, so perhaps before `base`. None means `base`."""

    def is_where(self, other: Cursor) -> bool:
        """Whether both have the same position in the same local and upstream topic."""
        return (self.base, self.identity, self.topic.topic_id) == (
            other.base,
            other.identity,
            other.topic.topic_id,
        )

    def move(self, seen: int) -> Move:
        """The position change of an entry with the records read."""
        return Move(
            mirror_source(self.topic.topic_id),
            str(self.place[1]),
            self.base,
            self.end,
            False,
            self.identity,
            seen,
            self.epoch,
        )


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that breaks a rule, or appeared at an offset that was read before. The piece has nothing of
    its partition from there on.
    """

    kind: Literal["unstorable", "diverged"]
    place: Place
    offset: int
    why: str
    """The reason, and the action for an operator."""


@dataclass(slots=True)
class MirrorPiece:
    """Polled records that are not yet ingested."""

    entry_bytes_max: int
    record_bytes_max: int
    items: list[BatchItem | EncodedItem] = field(default_factory=list)
    rows: int = 0
    raw_bytes: int = 0
    moved: dict[Place, Cursor] = field(default_factory=dict)
    """The partitions with a new position."""
    _segments: int = 0
    _topics: set[str] = field(default_factory=set)
    _as_rows: set[Place] = field(default_factory=set)
    """Partitions whose records are rows."""
    _encoded: dict[Place, list[int]] = field(default_factory=dict)
    """The places in `items` of the batches of each partition."""

    def records_max(self, partitions: int) -> int:
        """The number of further batches and single records that fit in the worst case; below 1 the piece must
        be sent first.
        """
        # Counted in upper bounds, so that the entry fits in any case.
        used = (
            ENTRY_BYTES
            + len(self._topics) * TOPIC_BYTES
            + len(self.moved) * POSITION_BYTES
            + self._segments * _SEGMENT
        )
        left = self.entry_bytes_max - used
        # At worst each of them is a segment of its own with a topic and a position. There are at most as many
        # topics and positions as partitions.
        most = (left - partitions * (TOPIC_BYTES + POSITION_BYTES)) // _SEGMENT
        return max(left // (_SEGMENT + TOPIC_BYTES + POSITION_BYTES), most)

    def add(self, polled: Polled, cursors: Mapping[Place, Cursor], accept_us: int) -> list[Broken]:
        """Add a poll of at most `records_max` records; returns those that cannot be ingested.

        Records of partitions without a cursor, and records before the start of reading, are skipped.
        """
        broken: list[Broken] = []
        self._add_batches(polled.batches, cursors, accept_us, broken)
        for one in polled.rows:
            self._add_rows(_Rows.of_columns(one, self.record_bytes_max), cursors, accept_us, broken)
        self._add_records(polled, cursors, accept_us, broken)
        stopped = {one.place for one in broken}
        for place, epoch in polled.epochs.items():
            # A broken record ends the partition before it, and the epoch belongs to a record after that.
            if place in self.moved and place not in stopped:
                self.moved[place].epoch = epoch + 1
        for place, end in polled.ends.items():
            cursor = cursors.get(place)
            # Only markers or aborted records lie before the end, so the position may pass them.
            if cursor is not None and place not in stopped and end > cursor.end:
                cursor.end = end
                self.moved[place] = cursor
                # The next record begins another segment, even if it is at the cursor.
                self._segments += 1
        return broken

    def _add_batches(
        self,
        batches: Sequence[UpstreamBatch],
        cursors: Mapping[Place, Cursor],
        accept_us: int,
        broken: list[Broken],
    ) -> None:
        stopped: set[Place] = set()
        for batch in batches:
            cursor = cursors.get(batch.place)
            if cursor is None or batch.place in stopped:
                continue
            base = batch.header.base_offset
            if base < cursor.end or batch.sizes.largest_weight > self.record_bytes_max:
                # One of its records may be the first that cannot be ingested.
                self._add_records(_single_records(batch), cursors, accept_us, broken)
                stopped = {one.place for one in broken}
                continue
            self._segments += int(batch.place not in self.moved or base != cursor.end)
            cursor.end = base + batch.header.count
            # Until the poll reports that of this batch.
            cursor.epoch = 0
            self.moved[batch.place] = cursor
            self._topics.add(batch.place[0])
            self.rows += batch.header.count
            self.raw_bytes += batch.sizes.raw_bytes
            self._encoded.setdefault(batch.place, []).append(len(self.items))
            self.items.append(_encoded_item(batch, cursor.topic, accept_us))
        for place in {batch.place for batch in batches} & self._as_rows:
            self._make_rows(place)

    def _make_rows(self, place: Place) -> None:
        """Make rows of the batches of a partition."""
        self._as_rows.add(place)
        numbers = self._encoded.pop(place, [])
        for number, item in zip(
            numbers, _decoded_items([self.items[number] for number in numbers]), strict=True
        ):
            self.items[number] = item

    def _add_records(
        self, polled: Polled, cursors: Mapping[Place, Cursor], accept_us: int, broken: list[Broken]
    ) -> None:
        if polled.offsets:
            self._add_rows(_Rows.of_lists(polled, self.record_bytes_max), cursors, accept_us, broken)

    def _add_rows(
        self, rows: _Rows, cursors: Mapping[Place, Cursor], accept_us: int, broken: list[Broken]
    ) -> None:
        for topic, of_topic in rows.by_topic():
            self._add_topic(topic, of_topic, rows, cursors, accept_us, broken)

    def _add_topic(
        self,
        topic: str,
        taken: Int64Array,
        rows: _Rows,
        cursors: Mapping[Place, Cursor],
        accept_us: int,
        broken: list[Broken],
    ) -> None:
        partitions = rows.partitions[taken]
        # Rows that are not ingested are dropped in one step for all partitions.
        kept = np.ones(len(taken), np.bool_)
        state: TopicState | None = None
        # Nothing behind a bad record is ingested.
        stopped = {one.place for one in broken}
        for partition in np.unique(partitions).tolist():
            mine = np.flatnonzero(partitions == partition)
            place = (topic, partition)
            cursor = None if place in stopped else cursors.get(place)
            good = 0 if cursor is None else self._follow(cursor, taken[mine], rows, kept, mine, broken)
            if cursor is None:
                kept[mine] = False
            elif good:
                self._make_rows(cursor.place)
                state = cursor.topic
        if state is None:
            return
        self._topics.add(topic)
        taken, partitions = taken[kept], partitions[kept]
        raw_bytes = int(rows.raw_bytes[taken].sum())
        self.items.append(
            BatchItem(
                topic=state,
                # Usually a poll has records of one topic that are all new, and needs no copy.
                columns=rows.columns if len(taken) == len(rows.offsets) else rows.columns.take(taken),
                row_bytes=rows.raw_bytes[taken],
                partitions=partitions,
                raw_bytes=raw_bytes,
                cost=raw_bytes + ROW_COST_BYTES * len(taken),
                accept_us=accept_us,
                first_row=0,
                pending=PendingBatch(state.name, partitions, _NO_WAITER),
                offsets=rows.offsets[taken],
            )
        )
        self.rows += len(taken)
        self.raw_bytes += raw_bytes

    def _follow(
        self,
        cursor: Cursor,
        taken: Int64Array,
        rows: _Rows,
        kept: npt.NDArray[np.bool_],
        mine: Int64Array,
        broken: list[Broken],
    ) -> int:
        """Move a cursor over its rows of a poll; returns how many are new."""
        offsets = rows.offsets[taken]
        # Reading may begin before the position, to compare the leader epoch of the last record.
        new = offsets >= cursor.end
        began = cursor.base if cursor.read_from is None else cursor.read_from
        # A record between the start of reading and the position was not there when that range was read.
        bad = np.flatnonzero((rows.bad[taken] & new) | ((offsets >= began) & ~new))
        if len(bad):
            row, first = int(taken[bad[0]]), int(offsets[bad[0]])
            if bool(new[bad[0]]):
                broken.append(Broken("unstorable", cursor.place, first, rows.why(row)))
            else:
                broken.append(Broken("diverged", cursor.place, first, _WAS_NOT_THERE))
            # Nothing behind a bad record is ingested: records must not be overtaken.
            new[bad[0] :] = False
        kept[mine] = new
        offsets = offsets[new]
        if not len(offsets):
            return 0
        steps = np.diff(offsets)
        # The offsets of a segment depend on this order, so a violation must not be stored.
        assert bool((steps > 0).all()), f"{cursor.place}: the client gave offsets out of order"
        # Each run of consecutive offsets becomes a segment of the entry.
        self._segments += int((steps != 1).sum()) + int(
            cursor.place not in self.moved or offsets[0] != cursor.end
        )
        cursor.end = int(offsets[-1]) + 1
        cursor.epoch = 0  # until the poll reports the epoch of this record
        self.moved[cursor.place] = cursor
        return len(offsets)

    def moves(self, seen: int) -> list[Move]:
        """The positions after the piece."""
        return [cursor.move(seen) for cursor in self.moved.values()]


_SEGMENT = SEGMENT_BYTES + OFFSET_BYTES
_WAS_NOT_THERE = (
    "was not there when its offset was read: the cluster has lost what was read, and has assigned its "
    "offsets to other records; delete the topic "
    "here and mirror it again"
)
_LEAVE_OUT = (
    "to continue without it, delete it in the cluster (DeleteRecords), declare it in the source's lost, and "
    "restart"
)
_NO_WAITER = threading.Condition()
"""No caller waits for single records of a mirror, so all share one condition."""


def _encoded_item(batch: UpstreamBatch, topic: TopicState, accept_us: int) -> EncodedItem:
    partition = batch.place[1]
    return EncodedItem(
        topic=topic,
        partition=partition,
        data=batch.data,
        records=batch.header.count,
        raw_bytes=batch.sizes.raw_bytes,
        cost=len(batch.data) + ROW_COST_BYTES,
        accept_us=accept_us,
        pending=PendingBatch(topic.name, np.full(1, partition, np.int32), _NO_WAITER),
        offset=batch.header.base_offset,
    )


def _decoded_items(items: Sequence[BatchItem | EncodedItem]) -> list[BatchItem]:
    """The records of batches as rows."""
    encoded = [item for item in items if isinstance(item, EncodedItem)]
    found = decode([(read_header(item.data), item.data) for item in encoded], uncompressed_max=SIZE_MAX)
    return [_decoded_item(item, columns) for item, columns in zip(encoded, found, strict=True)]


def _decoded_item(item: EncodedItem, columns: pa.RecordBatch | BatchRefused) -> BatchItem:
    assert isinstance(columns, pa.RecordBatch), "it was measured"
    assert item.offset is not None, "it is of a mirrored topic"
    partitions = np.full(item.records, item.partition, np.int32)
    return BatchItem(
        topic=item.topic,
        columns=columns,
        row_bytes=_raw_bytes(columns),
        partitions=partitions,
        raw_bytes=item.raw_bytes,
        cost=item.raw_bytes + ROW_COST_BYTES * item.records,
        accept_us=item.accept_us,
        first_row=0,
        pending=PendingBatch(item.topic.name, partitions, _NO_WAITER),
        offsets=np.arange(item.records, dtype=np.int64) + item.offset,
    )


def _raw_bytes(columns: pa.RecordBatch) -> Int64Array:
    sizes: Int64Array = binary_lengths(columns.column("key")) + binary_lengths(columns.column("value"))
    return sizes + header_lengths(columns.column("headers"))


def _single_records(batch: UpstreamBatch) -> Polled:
    """The records of a batch, one by one."""
    polled = Polled()
    for one in read_records(batch.header, memoryview(batch.data), SIZE_MAX):
        polled.add(batch.place, one)
    return polled


class _Rows:
    """Records of one poll as columns."""

    def __init__(
        self,
        topics: Sequence[str],
        partitions: npt.NDArray[np.int32],
        offsets: Int64Array,
        columns: pa.RecordBatch,
        record_bytes_max: int,
    ) -> None:
        self._topics = topics
        self._record_bytes_max = record_bytes_max
        self.partitions = partitions
        self.offsets = offsets
        self.columns = columns
        self.raw_bytes = _raw_bytes(columns)
        counts = list_lengths(columns.column("headers"))
        self._weights = self.raw_bytes + HEADER_COST_BYTES * counts
        self.bad: npt.NDArray[np.bool_] = self._weights > record_bytes_max
        self._broken: Mapping[int, str] = {}
        self._times_ms = offsets
        """Only of records that were read one by one."""

    @classmethod
    def of_columns(cls, rows: UpstreamRows, record_bytes_max: int) -> Self:
        """Decoded records of one partition."""
        partitions = np.full(len(rows.offsets), rows.place[1], np.int32)
        topics = [rows.place[0]] * len(rows.offsets)
        return cls(topics, partitions, rows.offsets, rows.columns, record_bytes_max)

    @classmethod
    def of_lists(cls, polled: Polled, record_bytes_max: int) -> Self:
        """Records that were read one by one."""
        # `array` converts a list of numbers in half the time of numpy's type inference.
        partitions = np.frombuffer(array("i", polled.partitions), np.int32)
        offsets = np.frombuffer(array("q", polled.offsets), np.int64)
        times_ms = np.frombuffer(array("q", polled.timestamps_ms), np.int64)
        # Times outside the years 1 to 9999 would overflow the conversion, so they are nulled and marked as
        # bad.
        none = times_ms == NO_TIME_MS
        late = ~none & ((times_ms < _MS_MIN) | (times_ms > _MS_MAX))
        times = pa.array(np.where(none | late, 0, times_ms) * 1000, mask=none | late).cast(TIMESTAMP)
        keys, values = pa.array(polled.keys, pa.binary()), pa.array(polled.values, pa.binary())
        columns = pa.RecordBatch.from_arrays(
            [keys, values, _headers(polled.headers), times], schema=RECORD_SCHEMA
        )
        rows = cls(polled.topics, partitions, offsets, columns, record_bytes_max)
        rows._times_ms, rows._broken = times_ms, polled.broken
        rows.bad |= late
        rows.bad[list(polled.broken)] = True
        return rows

    def by_topic(self) -> list[tuple[str, Int64Array]]:
        """The rows of each topic, in order."""
        names = set(self._topics)
        if len(names) == 1:
            return [(names.pop(), np.arange(len(self.offsets)))]
        numbers = {name: number for number, name in enumerate(sorted(names))}
        # Topics as numbers, so that the rows of each are found without Python comparisons.
        codes = np.array([numbers[name] for name in self._topics], np.int64)
        return [(name, np.flatnonzero(codes == number)) for name, number in numbers.items()]

    def why(self, row: int) -> str:
        """The problem of a bad row, and the action for an operator."""
        if row in self._broken:
            return f"{self._broken[row]} and cannot be stored; {_LEAVE_OUT}"
        if self._weights[row] > self._record_bytes_max:
            return (
                f"has {self.raw_bytes[row]} bytes (plus {HEADER_COST_BYTES} for each header), "
                "more than intake.record_bytes_max = "
                f"{self._record_bytes_max}; raise the limit and restart"
            )
        return (
            f"has the timestamp {self._times_ms[row]} ms since 1970, which is outside the years 1 "
            "to 9999 and cannot be stored; its "
            f"producer may have given micro- or nanoseconds; {_LEAVE_OUT}"
        )


def _headers(given: list[list[tuple[str, bytes | None]] | None]) -> ArrowArray:
    """The column of headers."""
    # Most topics have no headers at all, which saves the work per record.
    if not any(given):
        return no_headers(len(given))
    counts = np.array([0 if one is None else len(one) for one in given], np.int64)
    pairs = [pair for one in given if one for pair in one]
    names, values = (
        pa.array([name for name, _ in pairs], pa.string()),
        pa.array([value for _, value in pairs], pa.binary()),
    )
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return list_array(
        ends, pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type)), HEADERS
    )
