"""Reads history files: the segments and gaps of one partition over all spans trimmed from the log.

It reads only footers and the row groups of the requested partitions. It caches at most `rows_bytes` of row
groups and `cache_bytes` of the rest. A history file that is missing, short or altered is an error that names
it. Thread-safe.

A process that slept while another made checkpoints may hold refs of files that were replaced and deleted.
Then the newest list is fetched, once; it covers the same offsets in other files.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from archiver.objects.paths import history_key
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, Halt, NotFound
from archiver.runtime.ids import TopicPartition
from intake.format import FOOTER_TAIL_BYTES, footer_length
from intake.log.backlog import EMPTY, BacklogSummary, joined, summed
from intake.log.checkpoint import HistoryRef
from intake.log.history_file import (
    HistoryIndex,
    PartitionIndex,
    Rows,
    damaged,
    gaps_of,
    groups_of,
    inside,
    read_files,
    read_group,
    read_index,
    rows_of,
    segments_of,
)
from intake.log.state import Gap
from intake.segments import NONE, FileRef, Segments

CACHE_BYTES = 64 * 2**20
"""A history file of 10,000 entries has an index of about 0.2 MB and file names of about 4 MB, as Python
objects."""
ROWS_BYTES = 64 * 2**20
"""Cached row groups, as numbers: a million segments. A row group holds dozens of partitions, and a round
requests thousands one after the other."""
PARTS_MAX = 20_000
"""Cached sums of parts of history files: one per partition whose backlog begins inside a file. About 0.4 KB
each."""
_FOOTER_GUESS_BYTES = 128 * 1024
"""Usually covers the whole footer: one request instead of two."""
_PARTITION_COST_BYTES = 600
"""Of an index, per partition."""
_FILE_COST_BYTES = 400

_T = TypeVar("_T")


@dataclass(slots=True)
class _Opened:
    """The cached content of one history file."""

    index: HistoryIndex
    files: Mapping[int, FileRef] | None = None

    @property
    def cost_bytes(self) -> int:
        """Estimated memory."""
        return len(self.index.partitions) * _PARTITION_COST_BYTES + len(self.files or ()) * _FILE_COST_BYTES


class History:
    """The history files of the newest checkpoint that this process knows; see
    `intake.log.backlog.HistorySegments`.

    `newest` returns the list of the newest checkpoint in the store. Methods raise `Corrupted` for a file that
    is damaged or missing, and errors of the object store.
    """

    def __init__(
        self,
        objects: ObjectStore,
        newest: Callable[[], Sequence[HistoryRef]],
        cache_bytes: int = CACHE_BYTES,
        rows_bytes: int = ROWS_BYTES,
    ) -> None:
        self._objects = objects
        self._newest = newest
        self._cache_bytes = cache_bytes
        self._rows_bytes = rows_bytes
        self._groups: OrderedDict[tuple[HistoryRef, int], Rows] = OrderedDict()
        self._groups_bytes = 0
        self._refs: tuple[HistoryRef, ...] = ()
        self._cache: OrderedDict[HistoryRef, _Opened] = OrderedDict()
        self._parts: OrderedDict[tuple[HistoryRef, TopicPartition, int, int], BacklogSummary] = OrderedDict()
        # Reentrant: `_reading` holds it and calls `learn`.
        self._lock = threading.RLock()

    @property
    def refs(self) -> tuple[HistoryRef, ...]:
        """The history files, in order."""
        return self._refs

    def learn(self, refs: Sequence[HistoryRef]) -> None:
        """Use the history files of a newer checkpoint."""
        with self._lock:
            self._refs = tuple(refs)
            known = set(self._refs)
            # A ref that is not in the list is never read again.
            for ref in [ref for ref in self._cache if ref not in known]:
                del self._cache[ref]
            for group in [group for group in self._groups if group[0] not in known]:
                self._groups_bytes -= self._groups.pop(group).nbytes

    def segments(self, tp: TopicPartition, start: int, end: int, bytes_max: int | None) -> Segments:
        """Those that reach beyond `start` and end at or before `end`, in offset order, until their bytes
        reach `bytes_max`.
        """

        def collect() -> Segments:
            found: list[Segments] = []
            total = 0
            for ref, place in self._places(tp, start, end):
                segments, size = self._segments(
                    ref, place, tp, start, end, None if bytes_max is None else bytes_max - total
                )
                if segments:
                    found.append(segments)
                total += size
                if found and bytes_max is not None and total >= bytes_max:
                    break
            return Segments.joined(found)

        return self._reading(collect)

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The gaps that overlap `start` to `end`; ascending."""

        def collect() -> list[Gap]:
            # The index says how many gaps a file has, so most files are not read for them.
            refs = [ref for ref, place in self._places(tp, start, end) if place.gaps]
            return [
                gap for ref in refs for gap in gaps_of(self._rows(ref, tp)) if gap[1] > start and gap[0] < end
            ]

        return self._reading(collect)

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        """The records beyond `start` and below `end`. Rows are read only from a file that one of the two lies
        inside of.
        """

        def collect() -> BacklogSummary:
            found = EMPTY
            for ref, place in self._places(tp, start, end):
                # The sums in the index answer for a whole file.
                if start <= place.start and place.end <= end:
                    whole = BacklogSummary(
                        place.records,
                        place.raw_bytes,
                        place.first_accept_us,
                        place.newest_us,
                        place.first_floor_us,
                    )
                    found = joined(found, whole)
                else:
                    found = joined(found, self._part(ref, place, tp, start, min(end, place.end)))
            return found

        return self._reading(collect)

    def key_of(self, log_index: int) -> str | None:
        """The history file whose span contains the entry. Segments that an open transaction held back may be
        in a later one.
        """
        return next(
            (history_key(ref.start, ref.end) for ref in self._refs if ref.start <= log_index < ref.end), None
        )

    def _reading(self, collect: Callable[[], _T]) -> _T:
        with self._lock:
            try:
                return collect()
            except NotFound as error:
                # Another process may have deleted replaced history files while this one slept.
                known = self._refs
                self.learn(self._newest())
                # The newest list names the missing file too, so it is really lost.
                if self._refs == known:
                    raise _gone(error) from error
            # Once only: a file that is missing from the newest list as well is an error.
            try:
                return collect()
            except NotFound as error:
                raise _gone(error) from error

    def _places(
        self, tp: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[HistoryRef, PartitionIndex]]:
        """The history files with content of the partition between `start` and `end`, and its index entry in
        each.

        A file that cannot be opened is an error only if it holds such content. The offsets of a partition
        continue from file to file without a hole. So where the readable files on both sides meet, the file
        between them holds nothing of it.
        """
        # One tuple for the whole iteration: `learn` replaces it.
        refs = self._refs
        unopened: NotFound | Halt | None = None
        reached = start
        for ref in refs[self._first(tp, start) :]:
            place = self._tried(ref, tp)
            if isinstance(place, NotFound | Halt):
                unopened = unopened or place
                continue
            if place is None:
                unopened = None  # the partition is younger
                continue
            # The readable files leave a hole here, so the unreadable file must hold its content.
            if unopened is not None and min(place.start, end) > reached:
                raise unopened
            if place.start >= end:
                return
            unopened, reached = None, max(reached, place.end)
            if place.end > start and (place.segments or place.gaps):
                yield ref, place
        if unopened is not None and end > reached:
            raise unopened

    def _first(self, tp: TopicPartition, start: int) -> int:
        """The index of the first file that may hold content of the partition beyond `start`."""
        # Binary search by end offset. An unreadable file gives no answer, so the next readable one is probed.
        refs = self._refs
        low, high = 0, len(refs)
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while isinstance(place := self._tried(refs[probe], tp), NotFound | Halt) and probe + 1 < high:
                probe += 1
            if not isinstance(place, NotFound | Halt) and (place is None or place.end <= start):
                low = probe + 1
            else:
                high = middle
        return low

    def _tried(self, ref: HistoryRef, tp: TopicPartition) -> PartitionIndex | NotFound | Halt | None:
        """The partition's entry in the file's index, None if the partition is younger, or the error of
        reading it.
        """
        try:
            return self._opened(ref).index.partitions.get(tp)
        except (NotFound, Halt) as error:
            return error

    def _segments(
        self,
        ref: HistoryRef,
        place: PartitionIndex,
        tp: TopicPartition,
        start: int,
        end: int,
        bytes_max: int | None = None,
    ) -> tuple[Segments, int]:
        """The segments in one history file, and their bytes."""
        if not place.segments:
            return NONE, 0
        rows, size = inside(self._rows(ref, tp), start, end, bytes_max)
        return segments_of(rows, self._files(ref)), size

    def _part(
        self, ref: HistoryRef, place: PartitionIndex, tp: TopicPartition, start: int, end: int
    ) -> BacklogSummary:
        """The sum of a part of one history file. Cached: files never change, and the status poll asks every
        few seconds.
        """
        key = (ref, tp, start, end)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = summed(self._segments(ref, place, tp, start, end)[0], start)
            while len(self._parts) > PARTS_MAX:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return found

    def _rows(self, ref: HistoryRef, tp: TopicPartition) -> Rows:
        index = self._opened(ref).index
        numbers = groups_of(index.partitions[tp])
        # Take the groups out of the cache; they return at its end, as the most recently used.
        groups = {
            number: group
            for number in numbers
            if (group := self._groups.pop((ref, number), None)) is not None
        }
        self._groups_bytes -= sum(group.nbytes for group in groups.values())
        if missing := [number for number in numbers if number not in groups]:
            with self._objects.open_input(history_key(ref.start, ref.end)) as source:
                groups.update((number, read_group(ref, index, source, number)) for number in missing)
        found = rows_of(ref, index, tp, [groups[number] for number in numbers])
        # Cache only after the check: a damaged row group must be read again, because it may be restored.
        self._groups.update(((ref, number), group) for number, group in groups.items())
        self._groups_bytes += sum(group.nbytes for group in groups.values())
        while self._groups_bytes > self._rows_bytes:
            self._groups_bytes -= self._groups.popitem(last=False)[1].nbytes
        return found

    def _files(self, ref: HistoryRef) -> Mapping[int, FileRef]:
        opened = self._opened(ref)
        # Read only on demand: sums and gaps need no file names.
        if opened.files is None:
            with self._objects.open_input(history_key(ref.start, ref.end)) as source:
                opened.files = {file.log_index: file for file in read_files(ref, opened.index, source)}
            self._evict(ref)
        return opened.files

    def _opened(self, ref: HistoryRef) -> _Opened:
        opened = self._cache.get(ref)
        if opened is None:
            # The index is cached only after its digest was compared.
            opened = self._cache[ref] = _Opened(read_index(ref, self._footer(ref)))
            self._evict(ref)
        self._cache.move_to_end(ref)
        return opened

    def _footer(self, ref: HistoryRef) -> bytes:
        key = history_key(ref.start, ref.end)
        # The size first: a file of another size needs no read.
        info = self._objects.info(key)
        if info is None:
            raise NotFound(f"there is no object {key}")
        if info.size != ref.size:
            raise damaged(ref, f"it has {info.size} bytes, the checkpoint says {ref.size}")
        tail = self._objects.read_range(key, -_FOOTER_GUESS_BYTES, _FOOTER_GUESS_BYTES)
        length = footer_length(tail[-FOOTER_TAIL_BYTES:])
        if length is None or length > ref.size:
            raise damaged(ref, "it does not end in a Parquet footer")
        # Most footers are in the bytes already read.
        footer = (
            tail[-length:]
            if length <= len(tail)
            else self._objects.read_range(key, ref.size - length, length)
        )
        # Checked before parsing, because the parser allocates by the numbers in the footer.
        if hashlib.sha256(footer).digest() != ref.footer_sha256:
            raise damaged(ref, "its footer is not the one that was written")
        return footer

    def _evict(self, kept: HistoryRef) -> None:
        """Drop the least recently used entries, except `kept`."""
        total = sum(opened.cost_bytes for opened in self._cache.values())
        for ref in list(self._cache):
            if total <= self._cache_bytes:
                return
            # The caller still needs it, even if it alone exceeds the limit.
            if ref != kept:
                total -= self._cache.pop(ref).cost_bytes


def _gone(error: NotFound) -> Corrupted:
    return Corrupted(
        f"a history file that the newest checkpoint names is missing ({error}); restore it from a copy; "
        "until then its records cannot be archived"
    )
