"""Intake files that are read while their task works on those before.

To read from a bucket is to wait: a file of which a task of many partitions needs two row groups takes three
round trips for the work of a few milliseconds (decision 0060). Promises the row groups that the reader would
give, and its error at the row group that has it; what was read ahead and is not asked for is dropped. Bounded
by a number of files, and by bytes as far as they are known: by what is wanted, and by the largest row group
so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from archiver.refine.plan import ROW_OVERHEAD_BYTES
from archiver.refine.read_plan import Part
from intake.read.reader import IntakeReader
from intake.segments import FileRef

AHEAD_BYTES = 32 * 1024 * 1024
"""What is read ahead may take so much in memory together, beside the file that is worked on, which may have
been read ahead as well: an intake file of the usual size, or a few row groups of several."""


@dataclass(slots=True)
class _Read:
    """What came of reading a file ahead."""

    found: dict[int, pa.RecordBatch] = field(default_factory=dict)
    """Row groups."""
    failed_at: int | None = None
    """The row group that could not be read; behind it none was tried."""
    error: Exception | None = None


class ReadAhead:
    """Row groups of one task's files, in its order. To be closed; for one thread."""

    def __init__(
        self, reader: IntakeReader, files_max: int, needed: Callable[[Sequence[Part]], Sequence[Part]]
    ) -> None:
        """`files_max`: so many files are read ahead; 0: each is read when its turn comes, in the caller's
        thread. `needed`: of a file's parts, those that anybody still waits for.
        """
        self._reader = reader
        self._files_max = files_max
        self._needed = needed
        self._short = False
        """No thread could be had for one of them: the rest is read in turn."""
        self._pool = ThreadPoolExecutor(files_max, thread_name_prefix="intake-read") if files_max else None
        self._ahead: dict[int, Future[_Read]] = {}
        """By the place of the file in the log."""
        self._largest_bytes = 0
        """Of the row groups that were read so far: only files of as many such as there is room for are read
        ahead."""

    def close(self) -> None:
        """Begin nothing more, and wait for what is being read."""
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def through(self, files: Iterable[Sequence[Part]]) -> Iterator[Sequence[Part]]:
        """The files' parts as they come; behind each the next ones are being read."""
        queue: deque[Sequence[Part]] = deque()
        for parts in files:
            queue.append(parts)
            if len(queue) > self._files_max:
                yield from self._next(queue)
        while queue:
            yield from self._next(queue)

    def _next(self, queue: deque[Sequence[Part]]) -> Iterator[Sequence[Part]]:
        parts = queue.popleft()
        self._begin(queue)
        yield parts
        if (unread := self._ahead.pop(parts[0].file.log_index, None)) is not None:
            unread.cancel()  # nobody needed it any more

    def _begin(self, files: Iterable[Sequence[Part]]) -> None:
        """Read these files, in their order, as far as there is room for them. Each row group counts as the
        largest so far does, and as what is wanted of it at least.
        """
        if self._pool is None or self._short or not self._largest_bytes:
            return
        room = AHEAD_BYTES
        for parts in files:
            file, wanted = parts[0].file, self._needed(parts)
            room -= sum(
                max(self._largest_bytes, part.raw_bytes + ROW_OVERHEAD_BYTES * part.rows) for part in wanted
            )
            if room < 0:
                return
            if wanted and file.log_index not in self._ahead:
                try:
                    self._ahead[file.log_index] = self._pool.submit(
                        self._read, file, [part.row_group for part in wanted]
                    )
                except (RuntimeError, MemoryError):
                    self._short = True
                    return

    def _read(self, file: FileRef, wanted: Sequence[int]) -> _Read:
        read = _Read()
        try:
            for row_group, records in self._reader.row_groups(file, wanted):
                read.found[row_group] = records
        except MemoryError:
            pass  # there may be enough when its turn comes
        except Exception as error:  # noqa: BLE001 - it is raised where the row group is asked for
            if len(read.found) < len(wanted):  # else the file could not be closed, which harms nothing
                read.failed_at = wanted[len(read.found)]
                read.error = error.with_traceback(
                    None
                )  # which would hold what was read until Python looks for circles
        return read

    def row_groups(self, file: FileRef, wanted: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The records of these row groups of the file, in that order; raises what `IntakeReader.row_groups`
        raises, at the same place.
        """
        for records in self._given(file, wanted):
            self._largest_bytes = max(self._largest_bytes, records.nbytes)
            yield records

    def _given(self, file: FileRef, wanted: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """What was read ahead; the rest, from the first that was not, by the reader."""
        future = self._ahead.pop(file.log_index, None)
        read = _Read() if future is None else future.result()
        for at, row_group in enumerate(wanted):
            if read.error is not None and row_group == read.failed_at:
                error, read.error = read.error, None
                try:
                    raise error
                finally:
                    del error
            records = read.found.pop(row_group, None)
            if records is None:
                for _, records in self._reader.row_groups(file, wanted[at:]):
                    yield records
                return
            yield records
