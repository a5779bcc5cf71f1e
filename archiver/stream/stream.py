"""The records of a topic partition in offset order, from archives and then from intake.

Gives every committed record from the requested offset on, each exactly once. It raises where something is
missing or altered, and never skips it. Records of aborted transactions are never given: their offsets are
gaps. `rebuild.from_archive` says what is checked when; an archive is compared with its digest once per
`RecordStream`. Never writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import InvalidInput, NotFound, no_partition
from archiver.runtime.ids import TopicId
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema
from archiver.stream.archives import (
    NOTHING_GIVEN_UP,
    ArchiveIndex,
    FoundArchive,
    find_archives,
    read_footer,
)
from archiver.stream.rebuild import BATCH_ROWS, HeldBytes, Layout, Vanished, from_archive, from_intake
from archiver.stream.records import Source, StreamBatch, StreamRecord
from intake.log.backlog import Backlog, windows
from intake.log.fold import TopicState
from intake.log.state import merged
from intake.read.reader import IntakeReader
from intake.segments import Segments

Schemas = Callable[[TopicId, int], TopicSchema]
"""A topic's schema of that version, from the ledger."""

Given = Callable[[TopicId, int], ArchiveVisibility]
"""Archives of a topic partition that the ledger has killed, or that may be deleted for another reason."""

Starts = Callable[[TopicId, int], int]
"""The first offset of a topic partition that retention kept, by the ledger."""

_VERIFIED_MAX = 100_000
"""Keys of verified archives that are remembered, about 20 MB. Beyond it all are forgotten and verified again.
"""

_WIDTH_MAX = 500_000
"""Offsets whose gaps are in memory at a time while the last records are searched, about 50 MB if every second
offset is a gap."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the records of the offsets [start, end) are read from."""

    start: int
    end: int
    archive: FoundArchive | None
    segments: Segments | None
    """Of intake, if it is no archive; the first and the last may reach beyond the range."""


Passed = Callable[[TopicId, int], Sequence[tuple[int, int]]]
"""Ranges of a topic partition that the ledger counts as archived without an archive, because they contain
only gaps; ascending."""


def _none_given_up(_topic_id: TopicId, _partition: int) -> ArchiveVisibility:
    return NOTHING_GIVEN_UP


def _from_zero(_topic_id: TopicId, _partition: int) -> int:
    return 0


def _none_passed(_topic_id: TopicId, _partition: int) -> Sequence[tuple[int, int]]:
    return ()


class RecordStream:
    """Reads topics as the intake log has them; records produced later need a newer view."""

    def __init__(
        self,
        objects: ObjectStore,
        intake: Backlog,
        schemas: Schemas,
        *,
        cluster_id: str,
        given_up: Given = _none_given_up,
        passed: Passed = _none_passed,
        starts: Starts = _from_zero,
        batch_rows: int = BATCH_ROWS,
        reader: IntakeReader | None = None,
        verified: set[str] | None = None,
    ) -> None:
        """`reader` and `verified`, the keys of archives whose digest was right, may be shared by several
        streams. A stream itself must only be used by one thread at a time.
        """
        self._objects = objects
        self._intake = intake
        self._schemas = schemas
        self._cluster_id = cluster_id
        self._given_up = given_up
        self._passed = passed
        self._starts = starts
        self._batch_rows = batch_rows
        self._reader = IntakeReader(objects) if reader is None else reader
        self._layouts: dict[tuple[TopicId, int], Layout] = {}
        self._verified: set[str] = set() if verified is None else verified
        self._held = HeldBytes()

    @property
    def held_bytes(self) -> int:
        """About how much memory the last read holds, while it is open."""
        return self._held.count

    def follow(self, backlog: Backlog) -> None:
        """Read by another view of the intake log from the next call on. No read may be open.

        A view keeps a reference to each intake file that it was asked for, so it should not be used for good.
        """
        self._intake = backlog

    def read(
        self,
        topic_id: TopicId,
        partition: int,
        start: int = 0,
        limit: int | None = None,
        *,
        uncommitted: bool = False,
    ) -> Iterator[StreamRecord]:
        """The records of `read_batches`, one by one."""
        batches = self.read_batches(topic_id, partition, start, limit, uncommitted=uncommitted)
        return (record for batch in batches for record in batch)

    def read_batches(
        self,
        topic_id: TopicId,
        partition: int,
        start: int = 0,
        limit: int | None = None,
        *,
        uncommitted: bool = False,
        intake_only: bool = False,
    ) -> Iterator[StreamBatch]:
        """The stable records from offset `start` on, at most `limit` of them. Offsets that retention removed,
        or clients deleted, are skipped (`first_offset`).

        With `uncommitted` also the records from the first open transaction on: its own, which may still be
        aborted, and all after them. With `intake_only` no archive is listed or read; intake has all records
        from the ledger's watermark on.

        Empty at the end of what is stable. Raises at once `NotFound` for an unknown topic or partition and
        `InvalidInput` for a negative `start` or `limit` or a `start` beyond the next offset; while iterating
        `Corrupted` if an offset cannot be read or is not what was written. The error can come after some
        records of an archive that is larger than `rebuild.VERIFY_BYTES_MAX`.
        """
        topic = self._topic(topic_id, partition)
        tp = (topic_id, partition)
        if start < 0:
            raise InvalidInput(f"offset {start} is negative; offsets begin at 0")
        if limit is not None and limit < 0:
            raise InvalidInput(f"a limit of {limit} records is negative")
        following = self._intake.next_offset(tp)
        if start > following:
            raise InvalidInput(
                f"{topic.name} partition {partition} ends before offset {start}: its next record gets "
                f"offset {following}"
            )
        # Below it records were removed on purpose, which is no damage.
        start = max(start, self.first_offset(topic_id, partition))
        stop = following if uncommitted else self._intake.stable_offset(tp)
        return self._read(topic, partition, start, stop, limit, intake_only)

    def places(self, topic_id: TopicId, partition: int, start: int, stop: int) -> Iterator[Place]:
        """Where the records in [start, stop) would be read from, in offset order. Offsets in no place have
        no record. Nothing is read of the archives and intake files.

        Raises `NotFound` for an unknown topic or partition.
        """
        self._topic(topic_id, partition)
        archives = self._find(topic_id, partition)
        begin = max(start, self.first_offset(topic_id, partition))
        for low, high, found in _parts(archives, self._passed(topic_id, partition), begin, stop):
            if found is not None:
                yield Place(low, high, found, None)
                continue
            at = low
            for window in windows(self._intake, (topic_id, partition), low, high):
                yield Place(at, window.end, None, window.segments)
                at = window.end

    def start_of_last(
        self, topic_id: TopicId, partition: int, count: int, *, uncommitted: bool = False
    ) -> int:
        """The offset from which on `read_batches` gives the last `count` records; the first offset if there
        are fewer.

        No record is read: the gaps of archives are in their footers, those of intake in its log. Going back
        from the end, it visits at most `count` offsets more than twice those from the result on.

        Raises `NotFound` for an unknown topic or partition, and as `archives.read_footer`.
        """
        self._topic(topic_id, partition)
        tp = (topic_id, partition)
        first = self.first_offset(topic_id, partition)
        high = self._intake.next_offset(tp) if uncommitted else self._intake.stable_offset(tp)
        # There cannot be more records than offsets, so a large count needs no search.
        if high - first <= count:
            return first
        if count <= 0:
            return high
        archives = self._find(topic_id, partition)
        gaps: dict[str, Sequence[tuple[int, int]]] = {}
        missing, width = count, min(count, _WIDTH_MAX)
        while high > first:
            low = max(first, high - width)
            for begin, end in reversed(self._dense(tp, archives, gaps, low, high)):
                if end - begin >= missing:
                    return end - missing
                missing -= end - begin
            # Twice as far each time: an aborted transaction may have left a gap of millions of offsets.
            high, width = low, min(2 * width, _WIDTH_MAX)
        return first

    def _dense(
        self,
        tp: tuple[TopicId, int],
        archives: ArchiveIndex,
        gaps: dict[str, Sequence[tuple[int, int]]],
        start: int,
        stop: int,
    ) -> list[tuple[int, int]]:
        """The ranges of [start, stop) with a record at each offset, ascending. `gaps` remembers those of
        archives by key.
        """
        ranges: list[tuple[int, int]] = []
        for begin, until, found in _parts(archives, self._passed(*tp), start, stop):
            if found is None:
                between = self._intake.gaps(tp, begin, until)
            else:
                if found.key not in gaps:
                    gaps[found.key] = read_footer(self._objects, found, self._cluster_id).gaps
                between = merged(gaps[found.key], begin, until)
            at = begin
            for low, high in between:
                if low > at:
                    ranges.append((at, low))
                at = high
            if at < until:
                ranges.append((at, until))
        return ranges

    def first_offset(self, topic_id: TopicId, partition: int) -> int:
        """The first offset that neither retention removed nor a client deleted; reading begins there even if
        a lower offset is requested.
        """
        return self._intake.log_start((topic_id, partition), self._starts(topic_id, partition))

    def _find(self, topic_id: TopicId, partition: int) -> ArchiveIndex:
        return find_archives(self._objects, topic_id, partition, self._given_up(topic_id, partition))

    def _read(
        self,
        topic: TopicState,
        partition: int,
        start: int,
        stop: int,
        limit: int | None,
        intake_only: bool,
    ) -> Iterator[StreamBatch]:
        if start >= stop or limit == 0:
            return
        # Listed once per read; if an archive is gone when it is opened, they are listed again.
        archives = ArchiveIndex(()) if intake_only else self._find(topic.topic_id, partition)
        remaining = stop - start if limit is None else limit
        for source, records in self._records(topic.topic_id, partition, archives, start, stop, remaining):
            kept = records.slice(0, min(remaining, records.num_rows))
            yield StreamBatch(topic.name, topic.topic_id, partition, source, kept)
            remaining -= kept.num_rows
            if remaining == 0:
                return

    def _records(
        self,
        topic_id: TopicId,
        partition: int,
        archives: ArchiveIndex,
        start: int,
        stop: int,
        records_max: int,
    ) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """Batches from where the next offset is: an archive if one covers it, else intake up to the next
        archive.
        """
        at = start
        # A reader of one record must not decode a whole batch.
        batch_rows = min(self._batch_rows, records_max)
        passed = self._passed(topic_id, partition)
        gone: set[str] = set()
        while at < stop:
            low, high = _next_passed(passed, at, stop)
            # Only gaps, by the ledger. The intake log may have forgotten them, so it is not read.
            if low <= at:
                at = high
                continue
            found = archives.covering(at)
            if found is not None:
                # All at once, because the set does not know which is the oldest.
                if len(self._verified) >= _VERIFIED_MAX:
                    self._verified.clear()
                try:
                    for batch in from_archive(
                        self._objects,
                        found,
                        at,
                        stop,
                        self._cluster_id,
                        self._layout,
                        batch_rows,
                        self._verified,
                        self._held,
                    ):
                        yield "archive", batch
                    at = found.end
                # Raised before the first batch, so no record was given twice.
                except Vanished:
                    gone.add(found.key)
                    again = self._find(topic_id, partition)
                    other = again.covering(at)
                    # No other archive covers the offset, or that one is gone as well: the records cannot be
                    # read.
                    if other is None or other.key in gone:
                        raise
                    # Archives that were merged or rewritten in between have the same records.
                    archives = again
                continue
            # Intake only up to the next archive: what archives hold may be gone from intake.
            until = min(stop, archives.next_base(at) or stop, low)
            # In windows, because a backlog may have millions of segments.
            for window in windows(self._intake, (topic_id, partition), at, until):
                for batch in from_intake(self._reader, window.segments, window.gaps, at, window.end):
                    yield "intake", batch
                at = window.end

    def _topic(self, topic_id: TopicId, partition: int) -> TopicState:
        topic = self._intake.topics_by_id.get(topic_id)
        if topic is None:
            # A deleted topic is named, because its id alone says little to a reader.
            gone = self._intake.fold.deleted_topics.get(topic_id)
            what = (
                f"there is no topic with id {topic_id}" if gone is None else f"topic {gone.name} was deleted"
            )
            raise NotFound(f"{what}; `archiver topics list` shows those there are")
        if not 0 <= partition < topic.partitions:
            raise no_partition(topic.name, partition, topic.partitions)
        return topic

    def _layout(self, topic_id: TopicId, version: int) -> Layout:
        known = self._layouts.get((topic_id, version))
        if known is None:
            schema = self._schemas(topic_id, version)
            known = self._layouts[(topic_id, version)] = Layout(arrow_schema(schema), RecordCodec(schema))
        return known


def _next_passed(passed: Sequence[tuple[int, int]], at: int, stop: int) -> tuple[int, int]:
    """The first range that ends beyond `at`, whether it contains `at` or follows; (stop, stop) for none."""
    place = bisect_right(passed, at, key=lambda empty: empty[1])
    return passed[place] if place < len(passed) else (stop, stop)


def _parts(
    archives: ArchiveIndex, passed: Sequence[tuple[int, int]], start: int, stop: int
) -> Iterator[tuple[int, int, FoundArchive | None]]:
    """[start, stop) in parts (from, to, archive) as they are read; no archive: from intake. Ranges in
    `passed` are left out.
    """
    at = start
    while at < stop:
        low, high = _next_passed(passed, at, stop)
        if low <= at:
            at = high
            continue
        found = archives.covering(at)
        until = min(stop, archives.next_base(at) or stop, low) if found is None else min(stop, found.end)
        yield at, until, found
        at = until
