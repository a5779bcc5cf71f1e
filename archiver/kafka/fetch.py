"""What Kafka's Fetch and ListOffsets read: encoded record batches of a partition, from archives and intake.

What intake has as record batches is given as it came, with its offsets. All else is decoded and encoded.
A reader of consecutive offsets decodes nothing twice: it goes on with an open *cursor*, and what a cursor
gives is kept encoded in a bounded cache, which all consumers share. Records at an offset never change, so a
cached chunk is right until its topic is deleted or its records are removed; both are checked first. Offsets
without a record (aborted transactions, gaps of an upstream) are skipped. If only they are left before the
end, the answer is one batch without records for them, so that a consumer's position reaches the end.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.kafka.cached_intake import CachedIntake
from archiver.kafka.log_view import Bounds, LogView
from archiver.kafka.record_batch import EncodedBatch, encode, filler, placed
from archiver.ledger.fold import LedgerFold
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, InvalidInput, NotFound, RetryLater
from archiver.runtime.ids import TopicId
from archiver.stream.event_times import EventTimes
from archiver.stream.rebuild import BATCH_ROWS, behind_gaps
from archiver.stream.records import StreamBatch
from archiver.stream.stream import RecordStream
from intake.arrow_arrays import concat_batches
from intake.log.backlog import Backlog, read_window
from intake.read.reader import IntakeReader

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
"""Times that ListOffsets requests have for the end, the start, and the record with the newest time."""

_BATCH_ROWS_MAX = 1_000_000
"""A reader inside a producer's batch goes back at most so far to its first record."""
_PULLS_MAX = 16
"""Segments, or parts of a row group, that are read for one chunk. Each may be a file of its own."""
_HELD_BYTES_MAX = 16 * 2**20
"""A producer's batch that is larger is given in parts, as it is decoded."""
_TAIL_OFFSETS = 65_536
"""A chunk that ends at most so far from the end of its partition is of consumers that keep up."""

Source = Literal["archive", "intake", "gap"]


class OffsetOutOfRange(InvalidInput):
    """The offset is below the first one that is left, or beyond the next one."""

    def __init__(self, offset: int, log_start: int, end: int) -> None:
        super().__init__(f"offset {offset} is out of range; the offsets are {log_start} to {end}")
        self.offset = offset
        self.log_start = log_start
        self.end = end


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of a `FetchReader`."""

    cache_bytes: int = 64 * 2**20
    """Encoded batches that are kept. Half of them are for consumers that keep up, so that one that is far
    behind does not displace what they share."""
    intake_bytes: int = 32 * 2**20
    """Decoded row groups, and chunks of record batches, of intake files that are kept: each holds many
    partitions."""
    cursors_max: int = 512
    """Open cursors. Each holds a file open."""
    cursor_bytes: int = 256 * 2**20
    """Memory of open cursors: decoded records, and archives or row groups. At least one stays open."""
    chunk_bytes: int = 2**20
    """Records that are encoded at a time."""
    read_s: float = 0.5
    """A fetch that has read for so long returns the batches that it has: records may lie in many small files.
    """
    wait_s: float = 30.0
    """Longest wait for another thread that decodes the same records; then they are decoded again."""


AppendTimes = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_] | None]
"""For each of some offsets, whether its record has the append time; None: none of them has."""

OpenStream = Callable[[Backlog, LedgerFold, IntakeReader, set[str]], RecordStream]
"""Opens a stream by states of both logs; the reader and the keys of verified archives are shared by all."""


# --- what is kept
_Key = tuple[TopicId, int, bool]
"""Topic, partition, and whether only committed records are in it."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The encoded batches of the offsets [start, end); those before the first batch have no record."""

    start: int
    end: int
    batches: tuple[EncodedBatch, ...]
    source: Source
    lasts: tuple[int, ...] = field(init=False)
    """The last offset of each batch."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lasts", tuple(one.last_offset for one in self.batches))
        object.__setattr__(self, "size", sum(len(one.data) for one in self.batches))

    def beyond(self, offset: int) -> Sequence[EncodedBatch]:
        """The batches with records at or beyond `offset`."""
        return self.batches[bisect_left(self.lasts, offset) :]


class _Cache:
    """Chunks by partition and start, bounded in bytes. Not thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # Separate bounds: a consumer that reads years of archives must not displace the newest chunks.
        self._pools: tuple[OrderedDict[tuple[_Key, int], _Chunk], ...] = (OrderedDict(), OrderedDict())
        self._bytes = [0, 0]
        self._starts: dict[_Key, list[int]] = {}

    def find(self, key: _Key, offset: int) -> _Chunk | None:
        """A chunk that holds `offset`."""
        starts = self._starts.get(key, [])
        place = bisect_right(starts, offset)
        # Chunks overlap if consumers began at different offsets, so the nearest may end too early.
        for start in reversed(starts[max(0, place - 4) : place]):
            for pool in self._pools:
                chunk = pool.get((key, start))
                if chunk is not None and offset < chunk.end:
                    pool.move_to_end((key, start))
                    return chunk
        return None

    def put(self, key: _Key, chunk: _Chunk, *, tail: bool) -> None:
        """Keep a chunk, and drop what was used longest ago."""
        self._drop(key, chunk.start)
        number = int(tail)
        self._pools[number][key, chunk.start] = chunk
        self._bytes[number] += chunk.size
        insort(self._starts.setdefault(key, []), chunk.start)
        while self._bytes[number] > self._bytes_max // 2:
            self._drop(*next(iter(self._pools[number])))

    def forget(self, topic_id: TopicId) -> None:
        """Drop the chunks of a topic."""
        for pool in self._pools:
            for key, start in [one for one in pool if one[0][0] == topic_id]:
                self._drop(key, start)

    def _drop(self, key: _Key, start: int) -> None:
        for number, pool in enumerate(self._pools):
            chunk = pool.pop((key, start), None)
            if chunk is None:
                continue
            self._bytes[number] -= chunk.size
            starts = self._starts[key]
            del starts[bisect_left(starts, start)]
            if not starts:
                del self._starts[key]


class _Cursor:
    """An open read of a partition, which gives chunk after chunk. Used by one thread at a time."""

    def __init__(
        self,
        stream: RecordStream,
        batches: Iterator[StreamBatch],
        at: int,
        stop: int,
        chunk_bytes: int,
        append_times: AppendTimes,
    ) -> None:
        self._append_times = append_times
        self.stream = stream
        self.stop = stop
        """Without a further chunk there is no record from its place up to here."""
        self._at = at
        self._batches = batches
        self._chunk_bytes = chunk_bytes
        self._held: list[pa.RecordBatch] = []
        """Decoded records that were not given yet."""
        self._source: Source = "intake"
        self._ended = False
        self._error: ArchiverError | None = None
        self.last: _Chunk | None = None
        """The last chunk: its consumer may have had room for a part of it, and the cache may have dropped it.
        """

    @property
    def done(self) -> bool:
        """Whether nothing is left, not even an error."""
        return self._ended and not self._held and self._error is None

    @property
    def size(self) -> int:
        """About its memory."""
        last = 0 if self.last is None else self.last.size
        return self.stream.held_bytes + sum(one.nbytes for one in self._held) + last

    def close(self) -> None:
        """Close the files that are open."""
        self._held.clear()
        # A generator of `RecordStream`; closing it ends the blocks that it is in.
        if isinstance(self._batches, Generator):
            self._batches.close()

    def batch_start(self) -> int | None:
        """The start of the producer's batch with the next record; None if that is unknown."""
        if not self._held:
            self._pull()
        return None if not self._held else self._held[0].column("batch_start")[0].as_py()

    def next(self) -> _Chunk | None:
        """The next chunk, None at the end. Raises what reading raises, after all records before it."""
        for pulls in count():
            rows, size = sum(one.num_rows for one in self._held), sum(one.nbytes for one in self._held)
            if rows and (self._ended or size >= self._chunk_bytes or pulls >= _PULLS_MAX):
                records = concat_batches(self._held)
                given = _whole(records, max(1, rows * self._chunk_bytes // max(1, size)), self._ended)
                if not given and size >= _HELD_BYTES_MAX:
                    given = rows
                self._held = [records.slice(given)] if given < rows else []
                if given:
                    return self._encoded(records.slice(0, given))
            if self._ended:
                break
            self._pull()
        if self._error is not None:
            raise self._error
        return None

    def _pull(self) -> None:
        try:
            batch = next(self._batches, None)
        # Kept until the records before it were given.
        except ArchiverError as error:
            batch, self._error = None, error
        if batch is None:
            self._ended = True
            return
        # A chunk that begins in an archive counts as read from it.
        if not self._held:
            self._source = batch.source
        self._held.append(batch.records)

    def _encoded(self, records: pa.RecordBatch) -> _Chunk:
        offsets = records.column("offset").to_numpy(zero_copy_only=False)
        batches = encode(_joined(records), append_times=self._append_times(offsets))
        start, self._at = self._at, int(offsets[-1]) + 1
        self.last = _Chunk(start, self._at, tuple(batches), self._source)
        return self.last


def _joined(records: pa.RecordBatch) -> pa.RecordBatch:
    """The same records without the start of producers' batches of one record, so that these share a batch.

    Producers that send single records would otherwise cost consumers 61 bytes and a checksum for each.
    """
    column = records.column("batch_start")
    starts = column.fill_null(-1).to_numpy(zero_copy_only=False)
    # Different from both neighbours.
    edges = np.concatenate(([True], starts[1:] != starts[:-1], [True]))
    alone = edges[1:] & edges[:-1]
    if not alone.any():
        return records
    place = records.schema.get_field_index("batch_start")
    cleared = pa.array(starts, pa.int64(), mask=alone | (starts < 0))
    return records.set_column(place, records.schema.field(place), cleared)


class _Cursors:
    """Open cursors by partition and position, bounded in number and bytes. Not thread-safe."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._open: OrderedDict[tuple[_Key, int], tuple[_Cursor, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def chunk(self, key: _Key, offset: int) -> _Chunk | None:
        """The last chunk of a cursor, if it holds `offset`."""
        for (of, _), (cursor, _) in self._open.items():
            last = cursor.last
            if of == key and last is not None and last.start <= offset < last.end:
                return last
        return None

    def take(self, place: tuple[_Key, int]) -> _Cursor | None:
        """Remove the cursor that stands there, for the caller alone."""
        cursor, size = self._open.pop(place, (None, 0))
        self._bytes -= size
        return cursor

    def put(self, place: tuple[_Key, int], cursor: _Cursor) -> list[_Cursor]:
        """Add a cursor; returns those that the caller must close."""
        # At the end of a partition nothing is left to go on with, and there are as many ends as partitions.
        if cursor.done:
            return [cursor]
        replaced = self.take(place)
        unused = [] if replaced is None else [replaced]
        size = cursor.size
        self._open[place] = cursor, size
        self._bytes += size
        while len(self._open) > self._count_max or (self._bytes > self._bytes_max and len(self._open) > 1):
            oldest = self.take(next(iter(self._open)))
            assert oldest is not None
            unused.append(oldest)
        return unused

    def clear(self, topic_id: TopicId | None = None) -> list[_Cursor]:
        """Remove the cursors of a topic, or all; the caller must close them."""
        gone = [place for place in self._open if topic_id in (None, place[0][0])]
        return [cursor for place in gone if (cursor := self.take(place)) is not None]


def _whole(records: pa.RecordBatch, rows_max: int, ended: bool) -> int:
    """How many leading rows are whole batches of producers and about `rows_max`; 0 if no batch ends."""
    starts = records.column("batch_start").fill_null(-1).to_numpy(zero_copy_only=False)
    # Without a known start every record may begin a batch.
    ends = np.flatnonzero((starts[1:] != starts[:-1]) | (starts[1:] < 0)) + 1
    if ended or starts[-1] < 0:
        ends = np.append(ends, len(starts))
    if not len(ends):
        return 0
    return int(ends[max(0, int(np.searchsorted(ends, rows_max, side="right")) - 1)])


# --- reading
@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch of one partition gives."""

    batches: tuple[bytes, ...]
    """Whole record batches; the first contains the requested offset, or is the first beyond it."""
    bounds: Bounds
    next_offset: int
    """Where the next fetch begins."""
    source: Source | None
    """Where the first batch was read from; None without a batch."""
    cached: bool = False
    """Whether the first batch had been read and encoded before."""

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return sum(len(one) for one in self.batches)


class _Job:
    """A chunk that a thread decodes; others that need it wait."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.done = threading.Event()
        self.chunk: _Chunk | None = None


class FetchReader:
    """Reads partitions for Kafka consumers. Thread-safe; close it."""

    def __init__(
        self,
        log: LogView,
        objects: ObjectStore,
        open_stream: OpenStream,
        cluster_id: str,
        clock: Clock,
        limits: FetchLimits | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._open_stream = open_stream
        self._limits = limits or FetchLimits()
        self._reader = CachedIntake(objects, self._limits.intake_bytes)
        self._times = EventTimes(objects, cluster_id)
        self._verified: set[str] = set()
        self._lock = threading.Lock()
        self._cache = _Cache(self._limits.cache_bytes)
        self._cursors = _Cursors(self._limits.cursors_max, self._limits.cursor_bytes)
        self._jobs: dict[_Key, list[_Job]] = {}
        # A stream holds codecs, which only one thread may use at a time, and which take long to make.
        self._streams: list[RecordStream] = []

    def close(self) -> None:
        """Close the open cursors."""
        with self._lock:
            cursors = self._cursors.clear()
        for cursor in cursors:
            self._close(cursor)

    def read(
        self,
        topic_id: TopicId,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        committed: bool,
        read_s: float | None = None,
        asked_s: float | None = None,
    ) -> Fetched:
        """The batches from the one with `offset` on: at least one, then as many as `max_bytes` has room for
        and as are read within `read_s` (default: the limit). None at the end.

        An offset beyond the known end is checked against the log as of `asked_s` (monotonic; default: now).
        Partitions of one request share that read of the log.

        Raises `OffsetOutOfRange`, `NotFound` for an unknown partition, `Corrupted` if records are damaged,
        `RetryLater` if they cannot be read now.
        """
        began_s = self._clock.monotonic_s()
        try:
            # Retention, or a client at another daemon, may have moved the start.
            self._log.ledger()
            self._log.follow()
            bounds = self._log.bounds(topic_id, partition)
            if offset > bounds.high_watermark:
                # Another daemon may have stored these records. A consumer that is refused would skip records
                # or read all of them again.
                self._refresh(began_s if asked_s is None else asked_s)
                bounds = self._log.bounds(topic_id, partition)
            if not bounds.log_start <= offset <= bounds.high_watermark:
                raise OffsetOutOfRange(offset, bounds.log_start, bounds.high_watermark)
            until_s = self._clock.monotonic_s() + (self._limits.read_s if read_s is None else read_s)
            taken, source, at, cached = self._collect(
                topic_id, partition, offset, bounds, max_bytes, until_s, committed=committed
            )
            # Again, because a chunk may have records that came after the first bounds.
            return Fetched(tuple(taken), self._log.bounds(topic_id, partition), at, source, cached)
        except NotFound:
            self._forget(topic_id)
            raise

    def list_offset(
        self, topic_id: TopicId, partition: int, time_ms: int, *, committed: bool
    ) -> tuple[int, int]:
        """Offset and time of the first record at or after `time_ms`, (-1, -1) if there is none.

        `MAX_TIMESTAMP` stands for the record with the newest time. For `EARLIEST` and `LATEST` the time of
        the result is -1. Raises as `read`; `RetryLater` also if many archives were not searched before.
        """
        self._log.ledger()
        bounds = self._log.bounds(topic_id, partition)
        end = bounds.end(committed=committed)
        if time_ms == EARLIEST:
            return bounds.log_start, -1
        if time_ms == LATEST:
            return end, -1
        if time_ms < 0 and time_ms != MAX_TIMESTAMP:
            raise InvalidInput(f"{time_ms} is no time; it is counted in milliseconds since 1970")
        stream = self._lend()
        place = (topic_id, partition, bounds.log_start, end)
        try:
            if time_ms == MAX_TIMESTAMP:
                found = self._times.newest(stream, *place, uncommitted=not committed)
            else:
                found = self._times.first_at(stream, *place, time_ms * 1000, uncommitted=not committed)
        finally:
            self._give_back(stream)
        return (-1, -1) if found is None else (found.offset, found.time_us // 1000)

    def _refresh(self, since_s: float) -> None:
        try:
            self._log.refresh(since_s=since_s)
        except ArchiverError as error:
            raise RetryLater(f"the end of the partition is not known, because {error}") from error

    def _collect(
        self,
        topic_id: TopicId,
        partition: int,
        offset: int,
        bounds: Bounds,
        max_bytes: int,
        until_s: float,
        *,
        committed: bool,
    ) -> tuple[list[bytes], Source | None, int, bool]:
        """Batches, the source of the first, the offset behind the last, and whether the first was cached."""
        taken: list[bytes] = []
        cached = False
        size, at, source = 0, offset, None
        end = bounds.end(committed=committed)
        for chunks in count():
            if at >= end or (taken and size >= max_bytes):
                break
            if chunks and self._clock.monotonic_s() >= until_s:
                if not taken:
                    raise RetryLater(f"offset {offset} was not reached within the time of a fetch; try again")
                break
            # Up to the stable offset consumers of both isolation levels share the chunks.
            key = topic_id, partition, at < bounds.last_stable_offset
            try:
                chunk, known = self._chunk(key, at)
            except NotFound:
                raise
            # What was read before the damage is given first; the next fetch begins with the error.
            except ArchiverError:
                if not taken:
                    raise
                break
            if source is None:
                source, cached = chunk.source, known
            for batch in chunk.beyond(at):
                # A chunk of a read from another place is cut at other records. A client skips records
                # before the offset that it asked for, and not those of an earlier batch of the answer.
                # The next fetch begins with this batch.
                if taken and batch.base_offset < at:
                    return taken, source, at, cached
                size += len(batch.data)
                if taken and size > max_bytes:
                    return taken, source, at, cached
                taken.append(batch.data)
                at = batch.last_offset + 1
            at = max(at, chunk.end)
        return taken, source, at, cached

    def _chunk(self, key: _Key, at: int) -> tuple[_Chunk, bool]:
        """The chunk with that offset, which must be below the end, and whether it was kept or in work."""
        waited = False
        while True:
            with self._lock:
                chunk = self._cache.find(key, at) or self._cursors.chunk(key, at)
                if chunk is not None:
                    return chunk, True
                cursor = self._cursors.take((key, at))
                running = None if waited or cursor is not None else self._running(key, at)
                if running is None:
                    job = _Job(at)
                    self._jobs.setdefault(key, []).append(job)
                    break
            # Once: if the other chunk does not reach this offset, this thread reads by itself.
            waited = True
            running.done.wait(self._limits.wait_s)
            if running.chunk is not None and running.chunk.start <= at < running.chunk.end:
                return running.chunk, True
        try:
            job.chunk = self._produce(key, at, cursor)
            return job.chunk, False
        finally:
            with self._lock:
                jobs = self._jobs[key]
                jobs.remove(job)
                if not jobs:
                    del self._jobs[key]
            job.done.set()

    def _running(self, key: _Key, at: int) -> _Job | None:
        """A job that probably decodes that offset."""
        jobs = self._jobs.get(key, ())
        return next((job for job in jobs if job.start <= at < job.start + BATCH_ROWS), None)

    def _produce(self, key: _Key, at: int, cursor: _Cursor | None) -> _Chunk:
        """Decode the chunk with that offset, with the cursor that stands there, or a new one."""
        attempts = 0
        if cursor is None and (found := self._as_it_came(key, at)) is not None:
            self._keep(key, found, None)
            return found
        while True:
            if cursor is None:
                attempts += 1
                cursor = self._open(key, at)
            try:
                chunk = cursor.next()
                # A producer's batch that is given in parts may have several before this offset. One at a time
                # is in memory.
                while chunk is not None and chunk.end <= at:
                    chunk = cursor.next()
                if chunk is not None:
                    self._keep(key, chunk, cursor)
                    return chunk
            except Corrupted:
                self._close(cursor)
                cursor = None
                # Archiving and cleaning may have moved the records. The newest logs say where they are.
                if attempts > 1:
                    raise
                self._log.refresh(since_s=self._clock.monotonic_s())
                self._log.ledger(force=True)
                self._check_start(key, at)
                continue
            except BaseException:
                self._close(cursor)
                raise
            reached = cursor.stop
            self._close(cursor)
            cursor = None
            if reached > at:
                return _Chunk(at, reached, (filler(at, reached - 1),), "gap")
            # It was opened when the partition ended here. A new one reaches what came since.

    def _as_it_came(self, key: _Key, at: int) -> _Chunk | None:
        """The record batches that intake has from the one with `at` on; None if there are none, if they have
        to be decoded, or if something is wrong with them.
        """
        topic_id, partition, committed = key
        tp = topic_id, partition
        # Below it archives have the records, and intake files may be gone.
        if at < self._log.ledger().topic(topic_id).watermarks.get(partition, 0):
            return None
        stop = self._log.bounds(topic_id, partition).end(committed=committed)
        window = read_window(self._log.backlog, tp, at, stop, self._limits.chunk_bytes)
        reached, size = behind_gaps(window.gaps, at), 0
        taken: list[EncodedBatch] = []
        appended = self._log.have_append_time(topic_id, partition, window.segments.bases)
        for number, segment in enumerate(window.segments):
            end = segment.end
            if segment.base > reached or end > stop or size >= self._limits.chunk_bytes:
                break
            # Their batches have the times that the client gave.
            if appended is not None and appended[number]:
                break
            try:
                found = self._reader.batches(segment.file, segment.row_group)
                batches = [] if found is None else found.of(segment.first_row, segment.rows)
            # Archiving and cleaning may have moved the records since.
            except (Corrupted, InvalidInput):
                break
            if not batches:
                break
            base = segment.base
            for records, newest_ms, data in batches:
                last = base + records - 1
                if last >= at:
                    taken.append(EncodedBatch(base, last, records, newest_ms, placed(data, base)))
                    size += len(data)
                base = last + 1
            reached = behind_gaps(window.gaps, end)
        if not taken:
            return None
        # Up to its last record: offsets without one at the end get a batch of their own.
        return _Chunk(min(at, taken[0].base_offset), taken[-1].last_offset + 1, tuple(taken), "intake")

    def _keep(self, key: _Key, chunk: _Chunk, cursor: _Cursor | None) -> None:
        """Keep a new chunk, and the cursor that goes on behind it, if there is one."""
        bounds = self._log.bounds(key[0], key[1])
        tail = bounds.end(committed=key[2]) - chunk.end <= _TAIL_OFFSETS
        with self._lock:
            self._cache.put(key, chunk, tail=tail)
            unused = [] if cursor is None else self._cursors.put((key, chunk.end), cursor)
        for one in unused:
            self._close(one)

    def _open(self, key: _Key, at: int) -> _Cursor:
        """A cursor from the beginning of the producer's batch with `at` on."""
        cursor = self._cursor_at(key, at)
        begin = cursor.batch_start()
        first = self._log.bounds(key[0], key[1]).log_start
        if begin is None or not max(first, at - _BATCH_ROWS_MAX) <= begin < at:
            return cursor
        self._close(cursor)
        return self._cursor_at(key, begin)

    def _cursor_at(self, key: _Key, at: int) -> _Cursor:
        topic_id, partition, committed = key
        # Before the stream is opened, so that it reaches at least this far.
        stop = self._log.bounds(topic_id, partition).end(committed=committed)
        # Listing archives takes long in a bucket, and a consumer that keeps up needs none.
        archived = self._log.ledger().topic(topic_id).watermarks.get(partition, 0)
        stream = self._lend()
        try:
            batches = stream.read_batches(
                topic_id, partition, at, uncommitted=not committed, intake_only=at >= archived
            )
        except BaseException:
            self._give_back(stream)
            raise
        append_times = partial(self._log.have_append_time, topic_id, partition)
        return _Cursor(stream, batches, at, stop, self._limits.chunk_bytes, append_times)

    def _check_start(self, key: _Key, at: int) -> None:
        bounds = self._log.bounds(key[0], key[1])
        if at < bounds.log_start:
            raise OffsetOutOfRange(at, bounds.log_start, bounds.high_watermark)

    def _lend(self) -> RecordStream:
        """A stream that no other thread uses."""
        backlog = self._log.backlog
        with self._lock:
            stream = self._streams.pop() if self._streams else None
        if stream is None:
            return self._open_stream(backlog, self._log.ledger(), self._reader, self._verified)
        stream.follow(backlog)
        return stream

    def _give_back(self, stream: RecordStream) -> None:
        with self._lock:
            if len(self._streams) < self._limits.cursors_max:
                self._streams.append(stream)

    def _close(self, cursor: _Cursor) -> None:
        cursor.close()
        self._give_back(cursor.stream)

    def _forget(self, topic_id: TopicId) -> None:
        """Drop what is kept of a topic that was deleted."""
        with self._lock:
            self._cache.forget(topic_id)
            cursors = self._cursors.clear(topic_id)
        for cursor in cursors:
            self._close(cursor)
