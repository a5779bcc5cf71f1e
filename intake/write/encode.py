"""Encodes the items of a flush into intake files: sort by topic and partition, cut into segments, write
Parquet.

Pure, and no Python code runs per row of a batch. Records of one partition keep the order in which they were
accepted, and every row is in exactly one part. A *part* becomes one intake file and one log entry. A flush
whose entry would be too large is divided between segments. If a row names a partition that its topic does not
have, the whole flush is refused.

Records without an idempotent producer form one segment per partition. A producer's records form one segment
per run of sequence numbers, so single sends are joined. Records whose numbers the caller stated are not
joined with others, and with append times each batch is alone. They are also cut where the log's knowledge of
the producer ends, because known and new records must not share a batch. A batch that covers more numbers than
it has records is one segment, perhaps without a row. Records of a mirrored topic form one segment per run of
consecutive offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from archiver.runtime.errors import InvalidInput
from archiver.runtime.ids import TopicPartition
from intake.arrow_arrays import ArrowArray, Int64Array, concat_batches, list_array
from intake.batches.chunks import StoredBatch
from intake.format import (
    INTAKE_SCHEMA,
    PRODUCER_COLUMNS,
    IntakeFileBytes,
    SegmentRows,
    write_intake_file,
)
from intake.log.fold import TopicState
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.records import HEADERS, RECORD_SCHEMA, TIMESTAMP, UNKNOWN_BATCH, Record, no_headers
from intake.write.queue import BatchItem, EncodedItem, Item, RecordItem

ENTRY_BYTES = 256
"""Upper bound of an entry's own fields: format, id, key, size, digest and their tags."""
TOPIC_BYTES = 32
"""Upper bound of what a topic adds to an entry, without its segments."""
SEGMENT_BYTES = 56
"""Upper bound of a segment: four 32-bit and two 64-bit varints and a boolean with tags, and the length
prefix."""
OFFSET_BYTES = 12
"""Upper bound of a stated offset in a segment: a 64-bit varint with its tag."""
STAMP_BYTES = 34
"""Upper bound of a producer's batch in a segment: a 64-bit and three 32-bit varints and a boolean, with tags
and frame."""

KnownEnd = Callable[[TopicPartition, Stamp], "int | None"]
"""The sequence number that the log expects next from the stamp's producer in that partition; None if it is
unknown."""


_NO_PRODUCER = -1
_JOINED = -1


@dataclass(frozen=True, slots=True)
class StampedRows:
    """Producer columns, one value per row."""

    producer_ids: Int64Array
    """-1 where no idempotent producer sent the row; the other columns are undefined there."""
    epochs: Int64Array
    sequences: Int64Array
    transactional: npt.NDArray[np.bool_]
    stated: npt.NDArray[np.bool_]
    """The caller stated the sequence number."""
    whole: Int64Array
    """The item of the row, if that covers more numbers than it has records and so is a batch by itself; else
    -1."""
    numbers: Int64Array
    """How many sequence numbers the row has: 1, or the records of the batch for which it stands."""

    @property
    def stamped(self) -> npt.NDArray[np.bool_]:
        """True where there is a producer."""
        stamped: npt.NDArray[np.bool_] = self.producer_ids != _NO_PRODUCER
        return stamped

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self | None:
        """The rows of `items`, in their order; None if none of them has a stamp."""
        stamps = [item.stamp for item in items]
        if all(stamp is None for stamp in stamps):
            return None
        # Plain rows get a placeholder, so that the columns have a value for every row.
        known = [stamp or Stamp(_NO_PRODUCER, 0, 0) for stamp in stamps]
        rows = np.array([item.rows for item in items], np.int64)
        whole = [number if stamp.covered else _JOINED for number, stamp in enumerate(known)]
        return cls(
            producer_ids=np.repeat(np.array([stamp.producer_id for stamp in known], np.int64), rows),
            epochs=np.repeat(np.array([stamp.epoch for stamp in known], np.int64), rows),
            sequences=_sequences(items, known, rows),
            transactional=np.repeat(np.array([stamp.transactional for stamp in known], np.bool_), rows),
            stated=np.repeat(np.array([item.stated for item in items], np.bool_), rows),
            whole=np.repeat(np.array(whole, np.int64), rows),
            numbers=_records_of(items),
        )

    def take(self, order: Int64Array) -> StampedRows:
        """The rows in another order."""
        return StampedRows(
            self.producer_ids[order],
            self.epochs[order],
            self.sequences[order],
            self.transactional[order],
            self.stated[order],
            self.whole[order],
            self.numbers[order],
        )

    def breaks(self) -> npt.NDArray[np.bool_]:
        """Per row but the first: whether it starts another batch than the row before it."""
        others = (
            (self.producer_ids[1:] != self.producer_ids[:-1])
            | (self.epochs[1:] != self.epochs[:-1])
            | (self.transactional[1:] != self.transactional[:-1])
            | (self.stated[1:] != self.stated[:-1])
        )
        # Only rows of producers have numbers. Numbers wrap to 0, hence the modulo.
        following = (self.sequences[:-1] + self.numbers[:-1]) % SEQUENCE_COUNT
        jumps = self.stamped[1:] & (self.sequences[1:] != following)
        # Inside such an item numbers may jump, where records went to a DLQ topic.
        breaks: npt.NDArray[np.bool_] = np.where(
            self.whole[1:] == self.whole[:-1], (others | jumps) & (self.whole[1:] == _JOINED), True
        )
        return breaks

    def stamps(self, rows: Int64Array) -> list[Stamp | None]:
        """The stamps of those rows."""
        columns = (self.producer_ids, self.epochs, self.sequences, self.transactional)
        return [
            None if producer_id == _NO_PRODUCER else Stamp(producer_id, epoch, sequence, transactional)
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
            # The file has narrower types than the arrays here.
            pa.array(column[start:end], mask=none).cast(column_type)
            for column, column_type in zip(values, types, strict=True)
        ]


def _sequences(items: Sequence[Item], stamps: Sequence[Stamp], rows: Int64Array) -> Int64Array:
    ends = np.cumsum(rows)
    firsts = np.array([stamp.sequence for stamp in stamps], np.int64)
    # Number the rows of each item consecutively, then overwrite those of batches with own numbers.
    places = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - rows, rows)
    sequences: Int64Array = (np.repeat(firsts, rows) + places) % SEQUENCE_COUNT
    for item, end in zip(items, ends.tolist(), strict=True):
        if isinstance(item, BatchItem) and item.sequences is not None:
            sequences[end - item.rows : end] = item.sequences
    return sequences


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive segments of a sorted flush that go into one file."""

    first_segment: int
    end_segment: int
    first_row: int
    end_row: int


class SortedFlush:
    """The rows of a flush in file order. `order[i]` is the arrival number of the row at place i.

    A record batch that is stored as it came is one row here. Its segment has its records, and no rows in the
    Parquet part of the file. Such segments follow the others of their partition: chunks come after row
    groups, and readers find the records of a partition in file order.
    """

    def __init__(self, items: Sequence[Item], known_end: KnownEnd | None = None) -> None:
        """`known_end` is called for records whose sequence numbers were stated. Raises `InvalidInput` if a
        topic lacks the partition of a row: the item was made before the topic grew.
        """
        self._gathered = _gather(items)
        self.rows = len(self._gathered.row_bytes)
        # The newest state of each topic: all its rows have the same timestamp type.
        topics = sorted(
            {topic.name: topic for topic in self._gathered.topics}.values(), key=lambda topic: topic.name
        )
        slots, begins = self._number_slots(topics)
        encoded = np.repeat([isinstance(item, EncodedItem) for item in items], self._gathered.item_rows)
        # Stable, so that the rows of a partition keep their order of arrival, and its batches theirs. No
        # client sends both: the writer finishes what waits before a topic changes.
        self.order: Int64Array = np.lexsort((encoded, slots))
        sorted_slots = slots[self.order]
        stamps = self._gathered.stamps
        self._stamps = None if stamps is None else stamps.take(self.order)
        records = self._gathered.records[self.order]
        encoded = encoded[self.order]
        self._kept: npt.NDArray[np.bool_] | None = None
        """Per row, whether it is stored as a row; None: all are."""
        if bool((encoded | (records == 0)).any()):
            self._kept = ~encoded & (records > 0)
        self.accept_us = self._gathered.accept_us[self.order]
        offsets = self._gathered.offsets
        self._offsets = None if offsets is None else offsets[self.order]
        changed = self._breaks(topics, begins, sorted_slots, records) | (encoded[1:] != encoded[:-1])
        self.starts: Int64Array = np.concatenate(([0], np.flatnonzero(changed) + 1)).astype(np.int64)
        """First row of each segment."""
        if self._stamps is not None and known_end is not None and bool(self._stamps.stated.any()):
            self._cut_at_known_ends(_places(topics, begins, sorted_slots), self._stamps, known_end)
        self.ends: Int64Array = np.append(self.starts[1:], self.rows)
        before = np.cumsum(records) - records
        self.places: Int64Array = before - np.repeat(before[self.starts], self.ends - self.starts)
        """Per row, the records of its segment before it."""
        segment_bytes = np.add.reduceat(self._gathered.row_bytes[self.order], self.starts)
        self.topics: list[TopicState] = []
        """Per segment."""
        self.segments: list[SegmentRows] = []
        counts = np.add.reduceat(records, self.starts).tolist(), segment_bytes.tolist()
        # Accept times of a writer never decrease, so the last one of a segment is its newest.
        accept_max_us = self.accept_us[self.ends - 1].tolist()
        places = _places(topics, begins, sorted_slots[self.starts])
        batches = self._segment_stamps(items)
        firsts = [None] * len(self.starts) if self._offsets is None else self._offsets[self.starts].tolist()
        of_encoded = encoded[self.starts].tolist()
        for number, ((topic, partition), count, raw_bytes, newest_us, stamp, offset) in enumerate(
            zip(places, *counts, accept_max_us, batches, firsts, strict=True)
        ):
            self.topics.append(topic)
            self.segments.append(
                SegmentRows(
                    topic.topic_id,
                    partition,
                    count,
                    raw_bytes,
                    newest_us,
                    stamp,
                    offset,
                    topic.log_append_time,
                    self._stored_batches(items, number) if of_encoded[number] else (),
                )
            )

    def _breaks(
        self,
        topics: Sequence[TopicState],
        begins: Int64Array,
        slots: npt.NDArray[np.uint16] | Int64Array,
        records: Int64Array,
    ) -> npt.NDArray[np.bool_]:
        """Per row but the first: whether it is of another partition or producer's batch than the row before
        it, or does not follow that row. `slots` and `records`: of the rows.
        """
        changed: npt.NDArray[np.bool_] = slots[1:] != slots[:-1]
        if self._stamps is not None:
            changed |= self._stamps.breaks()
            if any(topic.log_append_time for topic in topics):
                # A client repeats each of its batches alone, and gets the append time that the log knows.
                numbers = np.searchsorted(begins, slots, side="right") - 1
                appended = np.array([topic.log_append_time for topic in topics])[numbers]
                times_differ = self.accept_us[1:] != self.accept_us[:-1]
                changed |= (appended & self._stamps.stated)[1:] & times_differ
        if self._offsets is not None:
            # The entry states one offset per segment, so a gap in the upstream ends the segment.
            changed |= self._offsets[1:] != self._offsets[:-1] + records[:-1]
        return changed

    def _stored_batches(self, items: Sequence[Item], segment: int) -> tuple[StoredBatch, ...]:
        """The batches of a segment of batches."""
        arrived = self.order[self.starts[segment] : self.ends[segment]]
        of_segment = [items[number] for number in self._gathered.batches[arrived].tolist()]
        return tuple(
            StoredBatch(
                item.data,
                item.records,
                item.accept_us,
                self.topics[segment].log_append_time,
                item.offset is not None,
            )
            for item in of_segment
            if isinstance(item, EncodedItem)
        )

    def _segment_stamps(self, items: Sequence[Item]) -> list[Stamp | None]:
        if self._stamps is None:
            return [None] * len(self.starts)
        # The first row of a segment has the stamp of its whole batch.
        stamps = self._stamps.stamps(self.starts)
        whole = self._stamps.whole[self.starts]
        for number in np.flatnonzero(whole != _JOINED).tolist():
            # Its first number may be that of a record that went to a DLQ topic.
            stamps[number] = items[whole[number]].stamp
        return stamps

    def _cut_at_known_ends(self, places: _Places, stamps: StampedRows, known_end: KnownEnd) -> None:
        ends = np.append(self.starts[1:], self.rows)
        cuts: list[int] = []
        # A batch that covers more numbers than it has records is known as a whole or not at all.
        divisible = stamps.stated[self.starts] & (stamps.whole[self.starts] == _JOINED)
        for number in np.flatnonzero(divisible).tolist():
            start, end = int(self.starts[number]), int(ends[number])
            numbers_at = np.cumsum(stamps.numbers[start:end])
            topic, partition = places[start]
            (stamp,) = stamps.stamps(self.starts[number : number + 1])
            expected = None if stamp is None else known_end((topic.topic_id, partition), stamp)
            if (
                stamp is not None
                and expected is not None
                # Strictly inside the segment: the log expects a number after its first one.
                and (behind := (expected - stamp.sequence) % SEQUENCE_COUNT) < numbers_at[-1]
                and behind
            ):
                # Numbers before the cut are in the log already, those after it are new.
                known = int(np.searchsorted(numbers_at, behind, side="right"))
                cuts += [start + known] if known else []
                # No batch is divided. One that is in the log in part is refused there, by itself.
                if behind != (numbers_at[known - 1] if known else 0):
                    cuts.append(start + known + 1)
        cuts = [cut for cut in cuts if cut < self.rows]
        self.starts = np.union1d(self.starts, np.array(cuts, np.int64))

    def _number_slots(
        self, topics: Sequence[TopicState]
    ) -> tuple[npt.NDArray[np.uint16] | Int64Array, Int64Array]:
        """A number per row that sorts by topic name and partition; and the first number of each topic, then
        the end.
        """
        begins = np.concatenate(([0], np.cumsum([topic.partitions for topic in topics])))
        begin_of = {topic.name: int(begin) for topic, begin in zip(topics, begins[:-1], strict=True)}
        end_of = {topic.name: int(end) for topic, end in zip(topics, begins[1:], strict=True)}
        item_begins = np.array([begin_of[topic.name] for topic in self._gathered.topics], np.int64)
        item_ends = np.array([end_of[topic.name] for topic in self._gathered.topics], np.int64)
        slots = np.repeat(item_begins, self._gathered.item_rows) + self._gathered.partitions
        # Such a row would sort among the rows of another topic.
        if bool((self._gathered.partitions < 0).any()) or bool(
            (slots >= np.repeat(item_ends, self._gathered.item_rows)).any()
        ):
            raise InvalidInput(
                "records name a partition that their topic did not have when they were read; read them again"
            )
        # A stable sort of 16-bit numbers takes linear time.
        return (slots.astype(np.uint16) if int(begins[-1]) <= 1 << 16 else slots), begins

    def parts(self, entry_bytes_max: int) -> list[Part]:
        """Divide between segments so that each part's entry certainly fits; usually there is one part."""
        parts: list[Part] = []
        first, entry_bytes = 0, ENTRY_BYTES
        for number, segment in enumerate(self.segments):
            # Each part names its topics again.
            new_topic = number == first or segment.topic_id != self.segments[number - 1].topic_id
            alone = (
                SEGMENT_BYTES
                + (0 if segment.stamp is None else STAMP_BYTES)
                + (0 if segment.offset is None else OFFSET_BYTES)
            )
            added = alone + (TOPIC_BYTES if new_topic else 0)
            # A part has at least one segment, even if its entry might not fit.
            if number > first and entry_bytes + added > entry_bytes_max:
                parts.append(self._part(first, number))
                first, entry_bytes, added = number, ENTRY_BYTES, alone + TOPIC_BYTES
            entry_bytes += added
        parts.append(self._part(first, len(self.segments)))
        return parts

    def _part(self, first: int, end: int) -> Part:
        return Part(first, end, int(self.starts[first]), int(self.ends[end - 1]))

    def encode(self, part: Part, row_group_bytes: int, log_index: int) -> IntakeFileBytes:
        """Write the part's intake file. `log_index` goes into its footer."""
        segments = self.segments[part.first_segment : part.end_segment]
        order = self.order[part.first_row : part.end_row]
        rows = len(order)
        # With placeholders, which are dropped at the end.
        segment_rows = (self.ends - self.starts)[part.first_segment : part.end_segment]
        taken = _take(self._gathered.columns, order)
        accept_us = self.accept_us[part.first_row : part.end_row]
        # Names are taken by number, so no Python string is made per row.
        names = sorted({topic.name for topic in self.topics[part.first_segment : part.end_segment]})
        name_numbers = [
            names.index(topic.name) for topic in self.topics[part.first_segment : part.end_segment]
        ]
        topic_column = pa.array(names, pa.string()).take(pa.array(np.repeat(name_numbers, segment_rows)))
        partition_column = pa.array(
            np.repeat([segment.partition for segment in segments], segment_rows).astype(np.int32)
        )
        accept_column = pa.array(accept_us).cast(TIMESTAMP)
        event_column = _event_times(taken.column("event_timestamp"), accept_column)
        if any(segment.log_append_time for segment in segments):
            replaced = np.repeat([segment.log_append_time for segment in segments], segment_rows)
            event_column = pc.if_else(pa.array(replaced), accept_column, event_column)
        arrays = [
            topic_column,
            partition_column,
            taken.column("key"),
            taken.column("value"),
            taken.column("headers"),
            event_column,
            accept_column,
            pa.array(self._batch_numbers(part)),
            *self._producer_columns(part, rows),
        ]
        table = pa.Table.from_arrays(arrays, schema=INTAKE_SCHEMA)
        if self._kept is not None:
            table = table.filter(pa.array(self._kept[part.first_row : part.end_row]))
        return write_intake_file(table, segments, row_group_bytes, log_index)

    def _producer_columns(self, part: Part, rows: int) -> list[ArrowArray]:
        types = [INTAKE_SCHEMA.field(name).type for name in PRODUCER_COLUMNS]
        if self._stamps is None:
            return [pa.nulls(rows, column_type) for column_type in types]
        return self._stamps.columns(part.first_row, part.end_row, types)

    def _batch_numbers(self, part: Part) -> npt.NDArray[np.int32]:
        """Per row: rows of the same segment and producer batch before it, or `UNKNOWN_BATCH`."""
        if self._offsets is not None:
            # The upstream does not show where batches of its producers began.
            return np.full(part.end_row - part.first_row, UNKNOWN_BATCH, np.int32)
        batches = self._gathered.batches[self.order[part.first_row : part.end_row]]
        begins = np.zeros(len(batches), np.bool_)
        begins[1:] = batches[1:] != batches[:-1]
        # Records that a session numbered are one batch per segment, even if they came from several items.
        if self._gathered.joined is not None:
            begins &= ~self._gathered.joined[self.order[part.first_row : part.end_row]]
        begins[self.starts[part.first_segment : part.end_segment] - part.first_row] = True
        places = np.arange(len(batches), dtype=np.int64)
        # The distance of each row from the newest begin at or before it.
        return (places - np.maximum.accumulate(np.where(begins, places, 0))).astype(np.int32)


class _Places(Sequence[tuple[TopicState, int]]):
    """Topic and partition of each of some slots."""

    def __init__(self, topics: Sequence[TopicState], numbers: Int64Array, partitions: Int64Array) -> None:
        self._topics = topics
        self._numbers = numbers
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: int) -> tuple[TopicState, int]:  # type: ignore[override]
        return self._topics[self._numbers[at]], int(self._partitions[at])

    def __iter__(self) -> Iterator[tuple[TopicState, int]]:
        return zip(
            (self._topics[number] for number in self._numbers.tolist()),
            self._partitions.tolist(),
            strict=True,
        )


def _places(
    topics: Sequence[TopicState], begins: Int64Array, slots: npt.NDArray[np.uint16] | Int64Array
) -> _Places:
    """Map slots back to topics and partitions."""
    wide = slots.astype(np.int64)
    numbers = np.searchsorted(begins, wide, side="right") - 1
    return _Places(topics, numbers, wide - begins[numbers])


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The items of a flush as columns, in order of arrival."""

    topics: list[TopicState]
    """Per item."""
    item_rows: list[int]
    columns: pa.RecordBatch
    partitions: npt.NDArray[np.int32]
    row_bytes: Int64Array
    records: Int64Array
    """Per row, the records that it stands for."""
    accept_us: Int64Array
    batches: npt.NDArray[np.int32]
    """The item of each row: rows of one item are one producer batch."""
    stamps: StampedRows | None
    """None if no idempotent producer sent any of it."""
    joined: npt.NDArray[np.bool_] | None
    """Per row, whether a producer session of this process numbered it; None if it numbered none. Batches that
    a Kafka client numbered keep their bounds."""
    offsets: Int64Array | None
    """Per row; None unless all rows are of mirrored topics."""


def _gather(items: Sequence[Item]) -> _Gathered:
    batches: list[pa.RecordBatch] = []
    partitions: list[npt.NDArray[np.int32]] = []
    row_bytes: list[Int64Array] = []
    # Single records are converted to columns together: one conversion each would be slow.
    for piece in _pieces(items):
        if isinstance(piece, BatchItem):
            batches.append(piece.columns)
            partitions.append(piece.partitions)
            row_bytes.append(piece.row_bytes)
            continue
        if isinstance(piece[0], EncodedItem):
            batches.append(_no_records(len(piece)))
            partitions.append(
                np.array([item.partition for item in piece if isinstance(item, EncodedItem)], np.int32)
            )
        else:
            single = [item for item in piece if isinstance(item, RecordItem)]
            batches.append(record_columns([item.record for item in single]))
            partitions.append(np.array([item.pending.partition for item in single], np.int32))
        row_bytes.append(np.array([item.raw_bytes for item in piece], np.int64))
    item_rows = [item.rows for item in items]
    return _Gathered(
        topics=[item.topic for item in items],
        item_rows=item_rows,
        columns=concat_batches(batches),
        partitions=np.concatenate(partitions),
        row_bytes=np.concatenate(row_bytes),
        records=_records_of(items),
        accept_us=np.repeat(np.array([item.accept_us for item in items], np.int64), item_rows),
        batches=np.repeat(np.arange(len(items), dtype=np.int32), item_rows),
        stamps=StampedRows.of(items),
        joined=_joined(items, item_rows),
        offsets=_offsets(items),
    )


def _joined(items: Sequence[Item], item_rows: list[int]) -> npt.NDArray[np.bool_] | None:
    numbered = [item.stamp is not None and item.source is not None for item in items]
    return np.repeat(np.array(numbered, np.bool_), item_rows) if any(numbered) else None


def _offsets(items: Sequence[Item]) -> Int64Array | None:
    """The upstream's offset of every row; None if the topics are not mirrored."""
    stated: list[Int64Array] = []
    for item in items:
        if isinstance(item, BatchItem) and item.offsets is not None:
            stated.append(item.offsets)
        elif isinstance(item, EncodedItem) and item.offset is not None:
            stated.append(np.array([item.offset], np.int64))
    if not stated:
        return None
    assert len(stated) == len(items), "records of mirrored topics are flushed separately"
    return np.concatenate(stated)


def _records_of(items: Sequence[Item]) -> Int64Array:
    """Per row, the records that it stands for."""
    records: list[int] = []
    for item in items:
        if isinstance(item, EncodedItem):
            records.append(item.records)
        elif isinstance(item, BatchItem) and item.numbers_only:
            records.append(0)
        else:
            records.append(1)
    return np.repeat(np.array(records, np.int64), [item.rows for item in items])


def _pieces(items: Sequence[Item]) -> Iterator[BatchItem | list[RecordItem | EncodedItem]]:
    """Runs of single records together, and of encoded batches; batches in columns by themselves."""
    for kind, run in groupby(items, key=type):
        if kind is BatchItem:
            yield from (item for item in run if isinstance(item, BatchItem))
        else:
            yield [item for item in run if not isinstance(item, BatchItem)]


def _no_records(count: int) -> pa.RecordBatch:
    """Placeholders: rows that are not stored as rows."""
    nulls = [pa.nulls(count, RECORD_SCHEMA.field(name).type) for name in ("key", "value")]
    times = pa.nulls(count, TIMESTAMP)
    return pa.RecordBatch.from_arrays([*nulls, no_headers(count), times], schema=RECORD_SCHEMA)


def record_columns(records: Sequence[Record]) -> pa.RecordBatch:
    """Validated records as columns of `RECORD_SCHEMA`."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            _headers_of(records),
            pa.array([record.timestamp_us for record in records], pa.int64()).cast(TIMESTAMP),
        ],
        schema=RECORD_SCHEMA,
    )


def _headers_of(records: Sequence[Record]) -> ArrowArray:
    """The headers column, built without further Python objects per header."""
    ends = np.cumsum([len(record.headers) for record in records])
    names = pa.array((name for record in records for name, _ in record.headers), pa.string())
    values = pa.array((value for record in records for _, value in record.headers), pa.binary())
    # Names and values are converted as two flat columns; a Python object per header would be slower.
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return list_array(np.concatenate(([0], ends)).astype(np.int32), pairs, HEADERS)


def _take(columns: pa.RecordBatch, order: Int64Array) -> pa.RecordBatch:
    if len(order) == columns.num_rows and bool((order[1:] > order[:-1]).all()):
        # The rows are in file order already, so no copy is needed.
        return columns
    return columns.take(order)


def _event_times(column: ArrowArray, accept_times: ArrowArray) -> ArrowArray:
    """Use the accept time where a record has no event time, as a Kafka producer does."""
    if column.null_count == 0:
        return column
    return pc.coalesce(column, accept_times)
