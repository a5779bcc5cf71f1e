"""Turns the intake records of one plan into its archives.

Owns ingest times (the running maximum), the cut at day, hour or month, and the shape of an archive's rows:
the `kafka` struct and the order of the top-level columns. Guarantees: the rows of a plan's files are the
plan's offsets without its gaps, each once, in order, with ingest times that never decrease. The files follow
each other; a gap between two of them belongs to the first. A record is never skipped: a hole in the input is
an error.

Records of segments wait to be decoded as slices (`Piece`) of the row groups that were read.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.events.types import DataFile
from archiver.ledger.archives import ArchiveFile
from archiver.objects.paths import archive_key, partition_value_of
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import (
    ArchiveWriter,
    Conflict,
    Footer,
    SpooledArchive,
    StoredArchive,
    Upload,
    Uploads,
)
from archiver.refine.column_stats import Columns, describe, leaves
from archiver.refine.encodings import SharedEncodings
from archiver.refine.plan import ROW_OVERHEAD_BYTES, Plan
from archiver.refine.task import RefineOptions, RefineTopic, WrittenFile
from archiver.runtime.errors import Corrupted, Halt, RetryLater
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.field_history import ids_of
from archiver.schema.evolution.state import TopicSchema, arrow_schema, bounded_columns
from archiver.schema.protobuf.error_causes import count_errors, unknown_from
from archiver.stream.rebuild import placed
from intake.arrow_arrays import ArrowArray, copied_batches
from intake.format import READ_COLUMNS, READ_SCHEMA
from intake.log.state import merged
from intake.read.digest import RecordsDigest
from intake.records import no_headers
from intake.segments import BASE, END, FIRST_ROW, FLOOR_US, LOG_INDEX, RAW_BYTES, ROW_GROUP, Numbers

_OTHERS = [name for name in READ_COLUMNS if name != "headers"]
_NONE = no_headers(8192)
"""Most pieces have at most this many rows. A new empty column takes ten times as long as a slice of this one.
"""
_JOINED_MAX = 256
"""At most this many pieces are sliced and joined at a time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Records that wait to be decoded."""

    others: pa.RecordBatch
    """The columns of `READ_SCHEMA` without headers."""
    headers: ArrowArray | None
    """None: no record has any."""

    @property
    def nbytes(self) -> int:
        """Size of the records."""
        return self.others.nbytes + (0 if self.headers is None else int(self.headers.nbytes))


Piece: TypeAlias = tuple[Kept, int, int]
"""Records, the first row, and the number of rows. It takes a twentieth of the memory of an Arrow slice, which
has 2.7 KB however few its rows are."""


def kept(records: pa.RecordBatch) -> Kept:
    """Prepare records (columns as `READ_SCHEMA`) for pieces; copies nothing."""
    headers: ArrowArray = records.column("headers")
    # Most row groups have no headers. Slicing and joining empty ones would take a third of the time that
    # small pieces take (`docs/performance-notes.md`).
    return Kept(records.select(_OTHERS), headers if len(headers.flatten()) else None)


def together(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """The rows of the pieces, with columns as `READ_SCHEMA`; a single piece is not copied."""
    if len(pieces) == 1:
        found, first, rows = pieces[0]
    else:
        found = _joined(pieces)
        first, rows = 0, found.others.num_rows
    others = found.others.slice(first, rows)
    # The archive always has the column, so headers that were left out are empty lists here.
    headers = _none(rows) if found.headers is None else found.headers.slice(first, rows)
    columns = [headers if name == "headers" else others.column(name) for name in READ_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)


def copied(pieces: Sequence[Piece]) -> Piece:
    """The pieces joined to one, in memory of its own."""
    joined = _joined(pieces)
    return joined, 0, joined.others.num_rows


def _joined(pieces: Sequence[Piece]) -> Kept:
    # Joined level by level, because each slice costs 2.7 KB however few rows it has.
    if len(pieces) > _JOINED_MAX:
        return _joined([copied(pieces[at : at + _JOINED_MAX]) for at in range(0, len(pieces), _JOINED_MAX)])
    others = copied_batches([one.others.slice(first, rows) for one, first, rows in pieces])
    if all(one.headers is None for one, _, _ in pieces):
        return Kept(others, None)
    headers = [
        _none(rows) if one.headers is None else one.headers.slice(first, rows) for one, first, rows in pieces
    ]
    return Kept(others, pa.concat_arrays(headers))


def _none(rows: int) -> ArrowArray:
    return _NONE.slice(0, rows) if rows <= len(_NONE) else no_headers(rows)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Some consecutive records of a plan, decoded with those of other plans."""

    records: pa.RecordBatch
    """As `STREAM_SCHEMA`."""
    rows: pa.RecordBatch
    """The archive's rows."""
    offsets: npt.NDArray[np.int64]
    ingest_us: npt.NDArray[np.int64]


class TopicRows:
    """What all plans of one topic share: the layout of rows and the codec. Building it compiles descriptors,
    so it is built once per task.
    """

    def __init__(self, topic: RefineTopic, options: RefineOptions) -> None:
        self.topic = topic
        self.columns = Columns.of(
            arrow_schema(topic.schema), {column.field_id for column in bounded_columns(topic.schema)}
        )
        self.encodings = SharedEncodings()
        self.codec = RecordCodec(topic.schema, engine=options.engine)

    def built(self, partition: int, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The archive's rows for records in `STREAM_SCHEMA`, in parts of bounded size; mostly one part."""
        for start, end in self.codec.portions(records.column("key"), records.column("value")):
            yield self.build(np.full(end - start, partition, np.int32), records.slice(start, end - start))

    def in_one_part(self, records: pa.RecordBatch) -> bool:
        """Whether the columns of these records are so small that `build` may be called for all of them."""
        return len(self.codec.portions(records.column("key"), records.column("value"))) <= 1

    def build(self, partitions: npt.NDArray[np.int32], records: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one part. `partitions`: of each record."""
        key, value = self.codec.encode_columns(records.column("key"), records.column("value"))
        kafka: dict[str, pa.Array[Any]] = {
            "partition": pa.array(partitions),
            **{
                name: records.column(name)
                for name in ("offset", "event_timestamp", "ingest_timestamp", "batch_start")
            },
        }
        schema = self.columns.schema
        fields = list(schema.field("kafka").type)
        struct = pa.StructArray.from_arrays(
            [_as(kafka[field.name], field.type) for field in fields], fields=fields
        )
        columns = {
            "key": key,
            "value": value,
            "headers": records.column("headers"),
            "kafka": struct,
        }
        return pa.RecordBatch.from_arrays(
            [_as(columns[field.name], field.type) for field in schema], schema=schema
        )


def _as(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return column if column.type.equals(kind) else column.cast(kind)


_JOINABLE_SHARE = 4
"""A plan is decoded with others if its records are at most this part of what is decoded at a time."""

_FEW_SEGMENTS = 16
"""Up to as many, a loop takes less time than the calls of numpy."""
_OWN_PIECES_MAX = 16
"""Copies that are left as they are when further pieces are copied, so that no record is copied each time."""


class _OpenFile:
    """The archive that is being written: one partition value of the table, from `base` on."""

    def __init__(self, value: int, base: int, ingest_min_us: int, writer: ArchiveWriter) -> None:
        self.value = value
        self.base = base
        self.raw_bytes = 0
        self.ingest_min_us = ingest_min_us
        self.ingest_max_us = ingest_min_us
        self.writer = writer
        self.digest = RecordsDigest()
        self.decode_errors: Counter[tuple[str, str]] = Counter()


@dataclass(frozen=True, slots=True)
class _Upload:
    """A complete archive that is being uploaded."""

    file: _OpenFile
    spooled: SpooledArchive
    upload: Upload


class PlanWriter:
    """Writes one plan. Call `add` with the records of its segments in order, `decode` when that is due,
    `finish`, then `outcome`; or `discard` at any time before.

    Work is done for many segments at a time where possible, because a segment may have a single record.
    Raises `Corrupted` if the plan's segments do not follow each other.
    """

    def __init__(
        self,
        plan: Plan,
        rows: TopicRows,
        cluster_id: str,
        objects: ObjectStore,
        uploads: Uploads,
        options: RefineOptions,
    ) -> None:
        self.plan = plan
        self._rows = rows
        self._cluster_id = cluster_id
        self._objects = objects
        self._uploads = uploads
        self._options = options
        self._reached = _reached(plan)
        lines = plan.segments.numbers
        rows_of = lines[:, END] - lines[:, BASE]
        self._rows_before = _sums_before(rows_of)
        self._bytes_before = _sums_before(lines[:, RAW_BYTES] + ROW_OVERHEAD_BYTES * rows_of)
        """For each segment, and for the end: the sum over the segments before it."""
        self._given = self._decoded = self._copied = 0
        """Numbers of segments."""
        self._due = self._next_due()
        self._pieces: list[Piece] = []
        """Records of the segments that were added and are not decoded: a piece for each, or fewer."""
        self._ready: Decoded | None = None
        """The records of all pieces, if they were decoded with those of other plans."""
        self._own = 0
        """Number of leading pieces that are copies and point into no intake row group."""
        self._file: _OpenFile | None = None
        self._begun = False
        self._uploading: _Upload | None = None
        self._stored: list[WrittenFile] = []
        self._conflict: Conflict | None = None

    @property
    def pinning_bytes(self) -> int:
        """Estimate of the records that point into intake row groups. More memory is pinned if no other plan
        needs the rest of these groups.
        """
        return int(self._bytes_before[self._given] - self._bytes_before[max(self._decoded, self._copied)])

    @property
    def held_bytes(self) -> int:
        """Estimate of the memory that this writer holds."""
        loose = int(self._bytes_before[self._given] - self._bytes_before[self._decoded])
        return loose + (self._file.writer.pending_bytes if self._file is not None else 0)

    @property
    def complete(self) -> bool:
        """Whether all segments were added."""
        return self._given == len(self.plan.segments)

    @property
    def rows(self) -> int:
        """Records of the plan's segments."""
        return int(self._rows_before[-1])

    @property
    def joinable(self) -> bool:
        """Whether its records can be decoded with those of other plans: all were added, none is decoded, and
        they are few.
        """
        return (
            self.complete
            and not self._decoded
            and self.rows <= self._options.decode_rows // _JOINABLE_SHARE
            and self.held_bytes <= self._options.decode_bytes // _JOINABLE_SHARE
        )

    @property
    def pieces(self) -> Sequence[Piece]:
        """Records that were added and are not decoded."""
        return self._pieces

    def use_decoded(self, records: Piece, decoded: Decoded) -> None:
        """Replace all `pieces` by one with the same records, which are decoded."""
        self._pieces, self._ready, self._own = [records], decoded, 0

    def add(self, place: int, records: Kept, first: int, rows: int) -> bool:
        """Add the records of the plan's next segment: this many rows of `records`. Rows outside of the plan
        count for ingest times only.

        Returns whether decoding is due: enough is held, or this was the last segment. Raises `Halt` if it is
        not the segment at that place.
        """
        if place != self._given:
            raise Halt(
                f"{self.plan.topic} partition {self.plan.partition}: segment {self._given} of the plan "
                f"comes next, not {place}"
            )
        self._pieces.append((records, first, rows))
        self._given += 1
        return self._given >= self._due

    def _next_due(self) -> int:
        """The number of added segments at which decoding is due: the most within both bounds, or all; at
        least one.
        """
        rows = self._rows_before[self._decoded] + self._options.decode_rows
        held_bytes = self._bytes_before[self._decoded] + self._options.decode_bytes
        # Most plans are small.
        if self._rows_before[-1] <= rows and self._bytes_before[-1] <= held_bytes:
            return len(self.plan.segments)
        # Beyond a bound, a short rest would be decoded by itself, at the cost of the calls for a whole part.
        beyond = (
            np.searchsorted(sums, bound, side="right")
            for sums, bound in ((self._rows_before, rows), (self._bytes_before, held_bytes))
        )
        return max(self._decoded + 1, int(min(beyond)) - 1)

    def _runs(self, ingest_us: npt.NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(partition value, end) of each run of rows that belong to one partition of the table; times never
        decrease.
        """
        granularity = self._rows.topic.granularity
        last = partition_value_of(int(ingest_us[stop - 1]), granularity)
        while start < stop:
            value = partition_value_of(int(ingest_us[start]), granularity)
            end = stop
            # Times never decrease. If the first row has the value of the last, all between have it too.
            if value != last:
                end = bisect.bisect_right(
                    ingest_us,
                    value,
                    lo=start,
                    hi=stop,
                    key=lambda time_us: partition_value_of(int(time_us), granularity),
                )
            yield value, end
            start = end

    def detach(self) -> None:
        """Copy what points into intake row groups, so that these can be freed."""
        if self._own == len(self._pieces):
            return
        # Few copies stay as they are; many are joined to one, so that their number stays bounded.
        first = self._own if self._own < _OWN_PIECES_MAX else 0
        self._pieces[first:] = [copied(self._pieces[first:])]
        self._own = first + 1
        self._copied = self._given

    def relieve(self) -> None:
        """Free memory: decode what is held and write it as a row group."""
        self.decode()
        if self._file is not None:
            self._file.writer.close_row_group()

    def decode(self) -> None:
        """Turn the added records into rows of the open file, and of a new file after each boundary of the
        table's partitioning.

        Raises `Corrupted` if the segments have other rows than the log says, and every error of storing a
        file that is complete now.
        """
        lines = self.plan.segments.numbers[self._decoded : self._given]
        pieces, self._pieces, self._own = self._pieces, [], 0
        ready, self._ready = self._ready, None
        if not pieces:
            return
        held_rows, held_bytes = (
            int(of[self._given] - of[self._decoded]) for of in (self._rows_before, self._bytes_before)
        )
        self._decoded = self._given
        self._due = self._next_due()
        if ready is None:
            records = together(pieces)
            offsets, ingest_us = self.places(lines, records.column("accept_timestamp"))
        else:
            records, offsets, ingest_us = ready.records, ready.offsets, ready.ingest_us
        bases, raw_bytes = lines[:, BASE], lines[:, RAW_BYTES]
        rows = lines[:, END] - bases
        # The first and the last segment may reach beyond the plan.
        start, stop = np.searchsorted(offsets, (self.plan.base, self.plan.end)).tolist()
        taken = 0
        for value, end in self._runs(ingest_us, start, stop):
            base, last = int(offsets[start]), int(offsets[end - 1])
            if self._file is not None and self._file.value != value:
                self._hand_over(base)
                # The outcome is awaited here: after a conflict the plan must not make another file.
                self._await_stored()
            if self._conflict is not None:
                return
            # The first file begins at the base of the plan, so that gaps before the first record belong to
            # it.
            file = self._file or self._open_file(
                value, base if self._begun else self.plan.base, int(ingest_us[start])
            )
            run, found = slice(start, end), records.slice(start, end - start)
            if ready is None:
                # An average: it only sets how many records are decoded at a time.
                self._write(placed(offsets[run], found, ingest_us[run]), held_bytes // held_rows)
            else:
                self._count(found)
                self._append(ready.rows.slice(start, end - start))
            if end == held_rows and base <= bases[0] and not taken:
                reached = int(raw_bytes.sum())
            else:
                # Of a segment that is in part in the plan or in the file, in proportion to its rows.
                inside = np.clip(
                    np.minimum(bases + rows, last + 1) - np.maximum(bases, self.plan.base), 0, None
                )
                reached = int((raw_bytes * inside // rows).sum())
            file.raw_bytes += reached - taken
            start, taken = end, reached

    def places(
        self, lines: Numbers, accept: pa.Array[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Offsets and ingest times of the records of these segments from their accept times."""
        bases, floors_us = lines[:, BASE], lines[:, FLOOR_US]
        rows = lines[:, END] - bases
        held_rows = int(rows.sum())
        # Offsets are not stored with the rows. A row too few or too many would shift every offset after it.
        if len(accept) != held_rows:
            raise Corrupted(
                f"{self.plan.topic} partition {self.plan.partition}: {len(accept)} rows came for "
                f"{len(lines)} segments from offset "
                f"{bases[0]} on; the log says {held_rows}"
            )
        # Row `i` of a segment has the offset `base + i`; `firsts` is where each segment begins among the
        # rows.
        firsts = np.cumsum(rows) - rows
        offsets = np.repeat(bases - firsts, rows) + np.arange(held_rows)
        # A copy, because the array from Arrow is read-only.
        accept_us = accept.view(pa.int64()).to_numpy().copy()
        # The floor applies to the first row of a segment; the running maximum carries it on to the others.
        accept_us[firsts] = np.maximum(accept_us[firsts], floors_us)
        # The maximum may begin in this call: a segment's floor is never below the time reached before it.
        return offsets, np.maximum.accumulate(accept_us)

    def _count(self, records: pa.RecordBatch) -> None:
        """Take the records of the open file into its digest and its times."""
        assert self._file is not None
        # The last row is the latest, because ingest times never decrease.
        self._file.ingest_max_us = records.column("ingest_timestamp")[-1].value
        # Digest of the records and not of the columns, which depend on the schema version.
        self._file.digest.update(records)

    def _write(self, records: pa.RecordBatch, record_bytes: int) -> None:
        """Write records to the open file. They are decoded some ten thousand at a time: what fits into the
        processor's cache decodes fastest.
        """
        self._count(records)
        rows, options = records.num_rows, self._options
        # Equal parts, because of a short rest the calls would cost as much as of a whole part.
        parts = max(-(-rows // options.decode_rows), -(-rows * record_bytes // options.decode_bytes))
        step = -(-rows // parts)
        for start in range(0, rows, step):
            for built in self._rows.built(self.plan.partition, records.slice(start, step)):
                self._append(built)

    def _append(self, rows: pa.RecordBatch) -> None:
        """Add rows to the open file."""
        assert self._file is not None
        count_errors(rows, self._file.decode_errors)
        # Before `append`: once the row is in an archive, only a replay can decode it.
        self._check_judged(rows)
        writer = self._file.writer
        writer.append(rows)
        if (
            writer.pending_rows >= self._options.row_group_rows
            or writer.pending_bytes >= self._options.row_group_bytes
        ):
            writer.close_row_group()

    def _check_judged(self, rows: pa.RecordBatch) -> None:
        """Raise `RetryLater` if a record would be marked as undecodable only because its registry id could
        not be looked up yet.
        """
        assert self._file is not None
        judged_to = self._rows.topic.judged_to
        # The counts of the file save the search through rows without such a mark.
        if judged_to is None or not any(cause == "unknown_schema" for _, cause in self._file.decode_errors):
            return
        beyond = unknown_from(rows, judged_to.get(self.plan.partition, 0))
        if beyond is not None:
            raise RetryLater(
                f"offset {beyond[0]}: {beyond[1]} as far as is known, but the ids in the registry were "
                "looked up before the record came or "
                "could not be; it is tried again with the next lookup"
            )

    def _open_file(self, value: int, base: int, ingest_us: int) -> _OpenFile:
        writer = ArchiveWriter(
            self._objects.spool_dir(), self._rows.columns, self._rows.encodings, self._options.zstd_level
        )
        self._file = _OpenFile(value, base, ingest_us, writer)
        self._begun = True
        return self._file

    def _hand_over(self, end: int) -> None:
        """Finish the open file, which ends at offset `end`, and start its upload."""
        file = self._file
        if file is None:
            return
        spooled = file.writer.finish(self._footer(file, end))
        # Not before `finish` has succeeded: until then `discard` must find the spool file.
        self._file = None
        topic = self._rows.topic
        # The key contains the range, so it is known only now that the file is complete.
        key = archive_key(
            topic.topic_id,
            self.plan.partition,
            topic.granularity,
            file.value,
            file.base,
            end,
            self.plan.epoch,
        )
        self._uploading = _Upload(file, spooled, self._uploads.begin(key, spooled))

    def _await_stored(self) -> None:
        """Wait for the file that is being uploaded; a conflict is remembered and ends the plan."""
        if self._uploading is None:
            return
        upload, self._uploading = self._uploading, None
        file, stored = upload.file, upload.upload.result()
        if not isinstance(stored, Conflict) and stored.adopted:
            # An existing object may have been written with an earlier schema version.
            stored = _unless_ids_lost(stored, self._rows.topic.schema)
        if isinstance(stored, Conflict):
            # The first conflict is the one to report.
            self._conflict = self._conflict or stored
            return
        data_file = data_file_of(self._objects, self._rows, file.value, stored)
        self._stored.append(
            WrittenFile(self._archive(file, upload.spooled, stored), data_file, dict(file.decode_errors))
        )

    def _footer(self, file: _OpenFile, end: int) -> Footer:
        topic = self._rows.topic
        return Footer(
            cluster_id=self._cluster_id,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=self.plan.partition,
            base=file.base,
            end=end,
            gaps=tuple(merged(self.plan.gaps, file.base, end)),
            epoch=self.plan.epoch,
            schema=topic.schema.version,
            records_digest=file.digest.digest(),
            digest_version=file.digest.version,
        )

    def _archive(self, file: _OpenFile, spooled: SpooledArchive, stored: StoredArchive) -> ArchiveFile:
        return ArchiveFile(
            key=stored.key,
            size=stored.size,
            sha256=stored.sha256,
            records_digest=spooled.footer.records_digest,
            partition=self.plan.partition,
            base=file.base,
            end=spooled.footer.end,
            gaps=spooled.footer.gaps,
            epoch=self.plan.epoch,
            schema_version=stored.schema_version,
            rows=stored.metadata.num_rows,
            raw_bytes=file.raw_bytes,
            ingest_min_us=file.ingest_min_us,
            ingest_max_us=file.ingest_max_us,
        )

    def finish(self) -> None:
        """Start the upload of the last file. Raises `Halt` if records of the plan are missing."""
        # Checked before the last file is closed: a short archive would leave a hole in the partition.
        if not self.complete or self._reached != self.plan.end:
            raise Halt(
                f"{self.plan.topic} partition {self.plan.partition}: the plan ends at offset "
                f"{self.plan.end}, its segments at "
                f"{self._reached}; {self._given} of its {len(self.plan.segments)} segments came"
            )
        self.decode()
        self._hand_over(self.plan.end)

    @property
    def stored(self) -> bool:
        """Whether `outcome` returns without waiting."""
        return self._uploading is None or self._uploading.upload.done()

    def outcome(self) -> tuple[WrittenFile, ...] | Conflict:
        """The outcome of a finished plan. Waits for its last file, and raises the error of storing it."""
        self._await_stored()
        return self._conflict or tuple(self._stored)

    @property
    def conflict(self) -> Conflict | None:
        """Set once a file of the plan met another archive under its key."""
        return self._conflict

    def discard(self) -> None:
        """Drop all records and remove the spool file; files that are stored or being uploaded stay."""
        self._pieces, self._ready, self._own = [], None, 0
        if self._file is not None:
            self._file.writer.discard()
            self._file = None


def decode_together(rows: TopicRows, writers: Sequence[PlanWriter]) -> None:
    """Make the rows of several `joinable` plans of one topic at a time; `finish` of each then writes its
    part.

    The calls of the decoder, the encoder and Arrow cost as much as a thousand records do. Changes nothing if
    it raises, or if the columns would be too large: each plan then decodes its own.
    """
    counts = [sum(count for _, _, count in writer.pieces) for writer in writers]
    records = together([piece for writer in writers for piece in writer.pieces])
    if not rows.in_one_part(records):
        return
    accept, first = records.column("accept_timestamp"), 0
    places: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for writer, count in zip(writers, counts, strict=True):
        places.append(writer.places(writer.plan.segments.numbers, accept.slice(first, count)))
        first += count
    offsets, ingest_us = (np.concatenate(part) for part in zip(*places, strict=True))
    stream = placed(offsets, records, ingest_us)
    partitions = np.repeat(np.array([writer.plan.partition for writer in writers], np.int32), counts)
    built = rows.build(partitions, stream)
    joined, first = kept(records), 0
    # From here on nothing raises.
    for writer, count, (its_offsets, its_times) in zip(writers, counts, places, strict=True):
        decoded = Decoded(stream.slice(first, count), built.slice(first, count), its_offsets, its_times)
        writer.use_decoded((joined, first, count), decoded)
        first += count


def data_file_of(objects: ObjectStore, rows: TopicRows, value: int, stored: StoredArchive) -> DataFile:
    """The Iceberg entry of an archive in the table's partition `value`, from the stored archive's footer and
    the counts of its writer.
    """
    columns = (
        # A reused object may have the columns of an earlier version, so its own footer names them.
        Columns.of(stored.metadata.schema.to_arrow_schema(), rows.columns.bounded)
        if stored.adopted
        else rows.columns
    )
    found = describe(stored.metadata, columns, stored.floats)
    return DataFile(
        path=objects.uri(stored.key),
        record_count=found.record_count,
        file_size=stored.size,
        spec_id=rows.topic.spec_id,
        partition=(value,),
        column_sizes=found.column_sizes,
        value_counts=found.value_counts,
        null_value_counts=found.null_value_counts,
        nan_value_counts=found.nan_value_counts or None,
        lower_bounds=found.lower_bounds,
        upper_bounds=found.upper_bounds,
        split_offsets=found.split_offsets,
        sort_order_id=rows.topic.sort_order_id,
    )


def _unless_ids_lost(stored: StoredArchive, schema: TopicSchema) -> StoredArchive | Conflict:
    """A reused archive of an earlier schema version, unless the topic has given up field ids in it since: the
    table would read those columns as null.
    """
    known = set(ids_of(schema.schema()))
    lost = [
        leaf.path for leaf in leaves(stored.metadata.schema.to_arrow_schema()) if leaf.field_id not in known
    ]
    if not lost:
        return stored
    return Conflict(
        f"{stored.key} was stored with field ids that the topic's schema has no more "
        f"({', '.join(lost)}), because the table lost those "
        "columns before the archive was in it; move it away, or restart the archiver, which then takes "
        "another key"
    )


def _sums_before(numbers: Numbers) -> Numbers:
    """For each number, and for the end: the sum of the numbers before it."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=sums[1:])
    return sums


def _follows(plan: Plan) -> bool:
    """Whether the segments of a plan of few segments without gaps follow each other, as `_reached` checks."""
    lines, at = plan.segments.numbers, plan.base
    if plan.gaps or not 0 < len(lines) <= _FEW_SEGMENTS:
        return False
    before = (-1, 0, 0)
    for base, end, log_index, row_group, first_row, *_ in lines.tolist():
        place = (log_index, row_group, first_row)
        if max(base, plan.base) != at or place < before:
            return False
        at, before = min(end, plan.end), (log_index, row_group, first_row + end - base)
    return True


def _reached(plan: Plan) -> int:
    """The offset after the plan's segments and gaps.

    Raises `Corrupted` unless each begins where the one before it ends. Segments must also be in the log in
    the order of their offsets, none overlapping another. Then reading in log order gives offset order, each
    offset once.
    """
    lines = plan.segments.numbers
    if _follows(plan):
        return int(min(lines[-1, END], plan.end))
    starts, stops = np.maximum(lines[:, BASE], plan.base), np.minimum(lines[:, END], plan.end)
    # Where each segment must begin: at the end of the one before it, or of the gap that begins there.
    behind = np.concatenate([[plan.base], stops])
    if plan.gaps:
        lows, highs = np.array(plan.gaps, np.int64).T
        # `searchsorted` answers one past the last gap for offsets above all gaps.
        at = np.minimum(np.searchsorted(lows, behind), len(lows) - 1)
        begins = lows[at] == behind
        if np.count_nonzero(begins) != len(lows):
            raise Corrupted(
                f"{plan.topic} partition {plan.partition}: a gap of {list(plan.gaps)} lies where the "
                "log has records"
            )
        behind = np.where(begins, highs[at], behind)
    wrong = np.flatnonzero(behind[:-1] != starts)
    if not len(wrong):
        # Plus 1, because the comparison begins with the second segment.
        wrong = 1 + np.flatnonzero(~_later(lines[1:], lines[:-1]))
    if len(wrong):
        segment = plan.segments[int(wrong[0])]
        raise Corrupted(
            f"{plan.topic} partition {plan.partition}: offset {behind[wrong[0]]} comes next, but the "
            f"segment in {segment.file.key} has "
            f"{segment.rows} rows from {segment.base} on, or stands in the log before or among the "
            "records that it follows"
        )
    return int(behind[-1])


def _later(lines: Numbers, before: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the rows of each segment come after all rows of the segment before it."""
    same_file = lines[:, LOG_INDEX] == before[:, LOG_INDEX]
    same_group = same_file & (lines[:, ROW_GROUP] == before[:, ROW_GROUP])
    behind = lines[:, FIRST_ROW] >= before[:, FIRST_ROW] + before[:, END] - before[:, BASE]
    later: npt.NDArray[np.bool_] = np.where(
        same_group,
        behind,
        np.where(
            same_file, lines[:, ROW_GROUP] > before[:, ROW_GROUP], lines[:, LOG_INDEX] > before[:, LOG_INDEX]
        ),
    )
    return later
