"""Finds records by event time with bounds of row groups and segments, and reads only what can match.

Event times are the producers', so they need not ascend with the offsets. The bounds of an archive are the
statistics in its footer. An intake file has no such statistics: its column of event times is read. Bounds are
kept per archive and per segment, because neither ever changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, NotFound, RetryLater, passing
from archiver.runtime.ids import TopicId
from archiver.stream.archives import FoundArchive, check_footer
from archiver.stream.rebuild import Vanished
from archiver.stream.seal import check_seal
from archiver.stream.stream import RecordStream
from intake.read.reader import IntakeReader
from intake.segments import SegmentRef

KEPT_MAX = 100_000
"""Archives and segments whose bounds are kept, about 30 MB. Beyond it the oldest are forgotten."""
READS_MAX = 2_000
"""Footers and intake files that one search reads. What they say is kept, so a repeated search goes on."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A record found by its time."""

    offset: int
    time_us: int
    """Event time, microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A row group of an archive, or a segment: offsets [start, end) and their newest event time."""

    start: int
    end: int
    newest_us: int | None
    """None if the file does not say it."""


class EventTimes:
    """Searches by event time. Thread-safe."""

    def __init__(
        self, objects: ObjectStore, cluster_id: str, kept_max: int = KEPT_MAX, reads_max: int = READS_MAX
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._reader = IntakeReader(objects)
        self._kept_max = kept_max
        self._reads_max = reads_max
        self._kept: OrderedDict[object, tuple[_Part, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def first_at(
        self,
        stream: RecordStream,
        topic_id: TopicId,
        partition: int,
        start: int,
        stop: int,
        time_us: int,
        *,
        uncommitted: bool = False,
    ) -> Timed | None:
        """The first record in [start, stop) whose event time is at or after `time_us`; None for none.

        Raises `RetryLater` if too many bounds are still unknown: the next search goes on from what was read.
        Otherwise as `RecordStream.read_batches`.
        """
        for part in self._parts(stream, topic_id, partition, start, stop):
            if part.newest_us is not None and part.newest_us < time_us:
                continue
            for offsets, times in _records(stream, topic_id, partition, part, uncommitted):
                matching = np.flatnonzero(times >= time_us)
                if len(matching):
                    return Timed(int(offsets[matching[0]]), int(times[matching[0]]))
        return None

    def newest(
        self,
        stream: RecordStream,
        topic_id: TopicId,
        partition: int,
        start: int,
        stop: int,
        *,
        uncommitted: bool = False,
    ) -> Timed | None:
        """The first of the records in [start, stop) with the newest event time; None for none. Raises as
        `first_at`.
        """
        parts = list(self._parts(stream, topic_id, partition, start, stop))
        best: Timed | None = None
        # Unknown bounds first, then from the newest on: mostly one part is read.
        for part in sorted(
            parts, key=lambda one: (one.newest_us is not None, -(one.newest_us or 0), one.start)
        ):
            if best is not None and part.newest_us is not None and part.newest_us < best.time_us:
                break
            for offsets, times in _records(stream, topic_id, partition, part, uncommitted):
                place = int(np.argmax(times))
                found = Timed(int(offsets[place]), int(times[place]))
                if best is None or (-found.time_us, found.offset) < (-best.time_us, best.offset):
                    best = found
        return best

    def _parts(
        self, stream: RecordStream, topic_id: TopicId, partition: int, start: int, stop: int
    ) -> Iterator[_Part]:
        """The parts that hold [start, stop), cut to it, in offset order."""
        reads = 0
        for place in stream.places(topic_id, partition, start, stop):
            if place.archive is not None:
                parts = self._known(place.archive.key)
                if parts is None:
                    reads = self._counted(reads)
                    parts = self._keep(place.archive.key, self._of_archive(place.archive))
                found: Iterable[_Part] = parts
            else:
                segments = list(place.segments or ())
                unknown = [one for one in segments if self._known(_identity(one)) is None]
                reads = self._counted(reads, len({one.file.log_index for one in unknown}))
                found = self._of_segments(segments, unknown)
            for part in found:
                if part.end > place.start and part.start < place.end:
                    yield _Part(max(part.start, place.start), min(part.end, place.end), part.newest_us)

    def _counted(self, reads: int, more: int = 1) -> int:
        # At least one read a search, so that a repeated search always gets further.
        if reads and reads + more > self._reads_max:
            raise RetryLater(
                f"the event times of more than {self._reads_max} files are not known yet; search again"
            )
        return reads + more

    def _known(self, identity: object) -> tuple[_Part, ...] | None:
        with self._lock:
            found = self._kept.get(identity)
            if found is not None:
                self._kept.move_to_end(identity)
            return found

    def _keep(self, identity: object, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        with self._lock:
            self._kept[identity] = parts
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        return parts

    def _of_archive(self, found: FoundArchive) -> tuple[_Part, ...]:
        try:
            with self._objects.open_input(found.key) as source:
                # Before the Parquet library parses anything: a damaged footer can end the process.
                check_seal(source, found.key)
                source.seek(0)
                metadata = pq.read_metadata(source)
        except NotFound as error:
            raise Vanished(f"{found.key} was listed and is gone; search again") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise passing(error, found.key) or Corrupted(f"{found.key} cannot be read ({error})") from error
        check_footer(found, metadata, self._cluster_id)
        return _parts_of(found, metadata)

    def _of_segments(self, segments: list[SegmentRef], unknown: list[SegmentRef]) -> Iterator[_Part]:
        # Kept here as well, because the bound on kept parts may drop what was just read.
        made: dict[object, tuple[_Part, ...]] = {}
        by_file: dict[int, list[SegmentRef]] = {}
        for one in unknown:
            by_file.setdefault(one.file.log_index, []).append(one)
        for members in by_file.values():
            groups = sorted({one.row_group for one in members})
            for row_group, times in self._reader.event_times(members[0].file, groups):
                for one in members:
                    if one.row_group == row_group:
                        newest = times[one.first_row : one.first_row + one.rows].max(initial=0)
                        made[_identity(one)] = (_Part(one.base, one.end, int(newest)),)
        for one in segments:
            identity = _identity(one)
            if identity in made:
                yield from self._keep(identity, made[identity])
            else:
                # None if another search displaced it; the segment is then read as a whole.
                yield from self._known(identity) or (_Part(one.base, one.end, None),)


def _identity(segment: SegmentRef) -> object:
    # An entry of the log never changes, so its index and the place in its file identify the records.
    return segment.file.log_index, segment.row_group, segment.first_row


def _parts_of(found: FoundArchive, metadata: pq.FileMetaData) -> tuple[_Part, ...]:
    """The row groups of an archive by the statistics of their offsets and event times."""
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    parts: list[_Part] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        offsets = _statistics(group, places.get("kafka.offset"))
        # Without offsets the parts cannot be distinguished: the archive is one part of unknown times.
        if offsets is None:
            return (_Part(found.base, found.end, None),)
        times = _statistics(group, places.get("kafka.event_timestamp"))
        # Statistics leave out nulls, and a null is no time.
        newest = None if times is None else _micros(times.max)
        parts.append(_Part(int(offsets.min), int(offsets.max) + 1, newest))
    return tuple(parts)


def _statistics(group: Any, column: int | None) -> Any:
    if column is None:
        return None
    statistics = group.column(column).statistics
    return statistics if statistics is not None and statistics.has_min_max else None


def _micros(value: Any) -> int | None:
    """A timestamp of the statistics in microseconds since 1970; None if it is of another kind."""
    try:
        return int(pa.scalar(value, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py())
    except (pa.ArrowException, OverflowError, TypeError):
        return None


def _records(
    stream: RecordStream, topic_id: TopicId, partition: int, part: _Part, uncommitted: bool
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Offsets and event times of the records of a part, batch by batch; records without a time are left
    out.
    """
    for batch in stream.read_batches(topic_id, partition, part.start, uncommitted=uncommitted):
        offsets = batch.records.column("offset").to_numpy(zero_copy_only=False)
        column = batch.records.column("event_timestamp").cast(pa.int64())
        kept = (offsets < part.end) & column.is_valid().to_numpy(zero_copy_only=False)
        times = column.fill_null(0).to_numpy(zero_copy_only=False)
        if kept.any():
            yield offsets[kept], times[kept]
        if int(offsets[-1]) >= part.end - 1:
            return
