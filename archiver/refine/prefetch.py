"""Which rows of which intake files a task needs, and reading these files ahead of their turn.

Guarantees: each segment of each plan is in exactly one `Part`. Parts, and the lines of one, follow the log:
file by file, row group by row group, row by row. They are kept as numbers, because a plan may have a segment
of a few records in each of many files.

Reading from a bucket means waiting: a file of which a task needs two row groups takes three round trips, for
a few milliseconds of work (`docs/performance-notes.md`). So files are read while the task works on those
before. `ReadAhead` gives the same row groups as the reader, and raises its error at the same row group. What
was read ahead and is not requested is dropped. Reading ahead is bounded by a number of files and by bytes: by
the size of the required rows, and by the largest row group so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from archiver.refine.plan import ROW_OVERHEAD_BYTES, Plan
from intake.read.reader import IntakeReader
from intake.segments import BASE, END, FIRST_ROW, LOG_INDEX, RAW_BYTES, ROW_GROUP, FileRef, Numbers

_OWNER, _PLACE, _OF_SEGMENT = 0, 1, 2
"""The columns of a line: the index of its plan, the index of the segment in that plan, then the columns of
the segment."""


@dataclass(frozen=True, slots=True)
class Part:
    """The required rows of one row group."""

    file: FileRef
    row_group: int
    lines: tuple[tuple[int, int, int, int], ...]
    """(index of the plan, index among its segments, first row, rows) of each segment, ordered by first
    row."""
    end_row: int
    """One past the last required row."""
    rows: int
    raw_bytes: int
    """Of all required rows."""


def parts_to_read(plans: Sequence[Plan]) -> Iterator[list[Part]]:
    """The parts of each intake file, one file after another."""
    lines = _lines(plans)
    for of_file in _runs(lines, _OF_SEGMENT + LOG_INDEX):
        # Every plan over the file has the same reference to it, so the first line's does.
        owner, index = of_file[0, _OWNER], int(of_file[0, _OF_SEGMENT + LOG_INDEX])
        file = plans[owner].segments.files[index]
        yield [_part(file, of_group) for of_group in _runs(of_file, _OF_SEGMENT + ROW_GROUP)]


def _lines(plans: Sequence[Plan]) -> Numbers:
    """A line for each segment of each plan, in the order of reading. Where two plans share a segment, the
    first plan's line is first.
    """
    counts = [len(plan.segments) for plan in plans]
    owners = np.repeat(np.arange(len(plans)), counts)
    if not len(owners):
        # `_runs` asks only for its length.
        return np.zeros((0, 1), np.int64)
    lines = np.column_stack(
        [
            owners,
            np.concatenate([np.arange(count) for count in counts]),
            np.concatenate([plan.segments.numbers for plan in plans]),
        ]
    )
    return lines[
        # The last key is the first to sort by; the sort is stable, so the first plan's line comes first.
        np.lexsort(
            (
                lines[:, _OF_SEGMENT + FIRST_ROW],
                lines[:, _OF_SEGMENT + ROW_GROUP],
                lines[:, _OF_SEGMENT + LOG_INDEX],
            )
        )
    ]


def _runs(lines: Numbers, column: int) -> list[Numbers]:
    """Neighbouring lines that have the same number in a column."""
    return np.split(lines, np.flatnonzero(np.diff(lines[:, column])) + 1) if len(lines) else []


def _part(file: FileRef, lines: Numbers) -> Part:
    first_rows, rows = (
        lines[:, _OF_SEGMENT + FIRST_ROW],
        lines[:, _OF_SEGMENT + END] - lines[:, _OF_SEGMENT + BASE],
    )
    return Part(
        file=file,
        row_group=int(lines[0, _OF_SEGMENT + ROW_GROUP]),
        lines=tuple(
            zip(
                lines[:, _OWNER].tolist(),
                lines[:, _PLACE].tolist(),
                first_rows.tolist(),
                rows.tolist(),
                strict=True,
            )
        ),
        end_row=int((first_rows + rows).max()),
        rows=int(rows.sum()),
        raw_bytes=int(lines[:, _OF_SEGMENT + RAW_BYTES].sum()),
    )


AHEAD_BYTES = 32 * 1024 * 1024
"""Memory for what is read ahead, in addition to the file that is being processed (which may have been read
ahead as well). One intake file of the usual size, or a few row groups of several."""


@dataclass(slots=True)
class _Read:
    """Result of reading a file ahead."""

    found: dict[int, pa.RecordBatch] = field(default_factory=dict)
    """Row groups."""
    failed_at: int | None = None
    """The row group that could not be read; none after it was tried."""
    error: Exception | None = None


class ReadAhead:
    """Row groups of one task's files, in the order of the files. Close it after use; for one thread."""

    def __init__(
        self, reader: IntakeReader, files_max: int, needed: Callable[[Sequence[Part]], Sequence[Part]]
    ) -> None:
        """`files_max`: number of files to read ahead; 0: each file is read at its turn, in the caller's
        thread. `needed`: the parts of a file that some plan still waits for.
        """
        self._reader = reader
        self._files_max = files_max
        self._needed = needed
        self._short = False
        """Starting a thread failed once: the remaining files are read at their turn."""
        self._pool = ThreadPoolExecutor(files_max, thread_name_prefix="intake-read") if files_max else None
        self._ahead: dict[int, Future[_Read]] = {}
        """By the file's index in the log."""
        self._largest_bytes = 0
        """Size of the largest row group read so far. Only files whose row groups fit at this size are read
        ahead."""

    def close(self) -> None:
        """Start nothing more, and wait for reads in progress."""
        # Results are dropped: no plan waits for them any more.
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def through(self, files: Iterable[Sequence[Part]]) -> Iterator[Sequence[Part]]:
        """The parts of one file after another; while the caller works on one, the next files are read."""
        queue: deque[Sequence[Part]] = deque()
        for parts in files:
            queue.append(parts)
            # The file at the front is given once as many as may be read ahead stand behind it.
            if len(queue) > self._files_max:
                yield from self._next(queue)
        while queue:
            yield from self._next(queue)

    def _next(self, queue: deque[Sequence[Part]]) -> Iterator[Sequence[Part]]:
        parts = queue.popleft()
        self._begin(queue)
        yield parts
        if (unread := self._ahead.pop(parts[0].file.log_index, None)) is not None:
            unread.cancel()  # no plan needed it any more

    def _begin(self, files: Iterable[Sequence[Part]]) -> None:
        """Read these files ahead, in their order, as far as memory allows. Each row group counts as the
        largest so far, and at least as its required rows.
        """
        # Until the first row group was read, the size of one in memory is unknown.
        if self._pool is None or self._short or not self._largest_bytes:
            return
        room = AHEAD_BYTES
        for parts in files:
            file, required = parts[0].file, self._needed(parts)
            # Files that are being read count too: their row groups are, or will be, in memory.
            room -= sum(
                max(self._largest_bytes, part.raw_bytes + ROW_OVERHEAD_BYTES * part.rows) for part in required
            )
            if room < 0:
                return
            if required and file.log_index not in self._ahead:
                try:
                    self._ahead[file.log_index] = self._pool.submit(
                        self._read, file, [part.row_group for part in required]
                    )
                except (RuntimeError, MemoryError):
                    # Pressure on threads or memory: trying again at every file would only add to it.
                    self._short = True
                    return

    def _read(self, file: FileRef, required: Sequence[int]) -> _Read:
        read = _Read()
        try:
            for row_group, records in self._reader.row_groups(file, required):
                read.found[row_group] = records
        except MemoryError:
            # The file is read again at its turn, when there may be enough.
            pass
        except Exception as error:  # noqa: BLE001 - it is raised where the row group is asked for
            # With all row groups found, only closing the file failed, which harms nothing.
            if len(read.found) < len(required):
                read.failed_at = required[len(read.found)]
                # A traceback would keep the data alive until the garbage collector finds the cycle.
                read.error = error.with_traceback(None)
        return read

    def row_groups(self, file: FileRef, required: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The records of these row groups of the file, in that order; raises as `IntakeReader.row_groups`, at
        the same row group.
        """
        for records in self._given(file, required):
            self._largest_bytes = max(self._largest_bytes, records.nbytes)
            yield records

    def _given(self, file: FileRef, required: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """What was read ahead; from the first row group that was not, what the reader gives."""
        future = self._ahead.pop(file.log_index, None)
        read = _Read() if future is None else future.result()
        for at, row_group in enumerate(required):
            if read.error is not None and row_group == read.failed_at:
                # The variable is deleted too: with the exception's frames it would form a cycle that keeps
                # the data.
                error, read.error = read.error, None
                try:
                    raise error
                finally:
                    del error
            # Removed from the result, so that a row group is freed once its plans have it.
            records = read.found.pop(row_group, None)
            if records is None:
                for _, records in self._reader.row_groups(file, required[at:]):
                    yield records
                return
            yield records
