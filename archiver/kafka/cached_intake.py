"""Intake files as consumers read them: what many partitions share is read once.

A row group or a chunk of record batches holds segments of many partitions, and their consumers read it at
about the same time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from archiver.objects.store import ObjectStore
from intake.batches.decoding import StoredBatches
from intake.read.reader import ChunkPlaces, IntakeReader, check_size
from intake.segments import FileRef

_READS_AT_ONCE = 64
"""Intake files that are decoded at the same time."""
_NONE_BYTES = 200
"""What it takes to remember that a row group has rows."""
_CHUNKS_PLACED_MAX = 65_536
"""Chunks whose places in their files are remembered. Each takes about 150 bytes, and so does each file."""


class CachedIntake(IntakeReader):
    """Reads intake files and keeps the newest decoded row groups and chunks of batches, bounded in bytes.
    Thread-safe.
    """

    def __init__(self, objects: ObjectStore, bytes_max: int) -> None:
        super().__init__(objects)
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        self._batches: OrderedDict[tuple[str, int], StoredBatches | None] = OrderedDict()
        """None: a row group."""
        self._bytes = 0
        self._places: OrderedDict[FileRef, ChunkPlaces] = OrderedDict()
        self._placed = 0
        """Chunks in these files, and one for each file."""
        self._lock = threading.Lock()
        self._reading = tuple(threading.Lock() for _ in range(_READS_AT_ONCE))

    def row_groups(self, file: FileRef, numbers: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `IntakeReader.row_groups`; what is kept is not read again."""
        read: Iterator[tuple[int, pa.RecordBatch]] | None = None
        for place, number in enumerate(numbers):
            # Consumers of other partitions wait for the same row group instead of decoding it as well.
            with self._reading[hash(file.key) % len(self._reading)]:
                rows = self._find((file.key, number))
                if rows is None:
                    read = super().row_groups(file, numbers[place:]) if read is None else read
                    _, rows = next(read)
                    self._keep((file.key, number), rows)
                else:
                    # It would give this row group next.
                    read = None
            yield number, rows

    def batches(self, file: FileRef, number: int) -> StoredBatches | None:
        """As `IntakeReader.batches`; what is kept is not read again."""
        place = file.key, number
        with self._lock:
            if place in self._batches:
                self._batches.move_to_end(place)
                return self._batches[place]
        with self._reading[hash(file.key) % len(self._reading)]:
            with self._lock:
                # Another consumer may have read it while this one waited.
                if place in self._batches:
                    return self._batches[place]
            found = super().batches(file, number)
            with self._lock:
                self._batches[place] = found
                self._bytes += _kept_bytes(found)
                self._drop_oldest(self._batches)
            return found

    def _chunk_places(self, file: FileRef, source: pa.NativeFile) -> ChunkPlaces:
        # All chunks of a file are read soon after each other, and its footer tells the same about each.
        with self._lock:
            places = self._places.get(file)
        if places is not None:
            check_size(file, source)
            return places
        places = super()._chunk_places(file, source)
        with self._lock:
            self._places[file] = places
            self._placed += 1 + len(places.spans)
            while self._placed > _CHUNKS_PLACED_MAX:
                _, oldest = self._places.popitem(last=False)
                self._placed -= 1 + len(oldest.spans)
        return places

    def _find(self, place: tuple[str, int]) -> pa.RecordBatch | None:
        with self._lock:
            rows = self._kept.get(place)
            if rows is not None:
                self._kept.move_to_end(place)
            return rows

    def _keep(self, place: tuple[str, int], rows: pa.RecordBatch) -> None:
        with self._lock:
            self._kept[place] = rows
            self._bytes += _kept_bytes(rows)
            self._drop_oldest(self._kept)

    def _drop_oldest(self, kept: OrderedDict[tuple[str, int], Any]) -> None:
        """Drop what was used longest ago, of `kept` last."""
        other = self._batches if kept is self._kept else self._kept
        while self._bytes > self._bytes_max:
            _, dropped = (other or kept).popitem(last=False)
            self._bytes -= _kept_bytes(dropped)


def _kept_bytes(kept: pa.RecordBatch | StoredBatches | None) -> int:
    if kept is None:
        return _NONE_BYTES
    return kept.size if isinstance(kept, StoredBatches) else kept.nbytes
