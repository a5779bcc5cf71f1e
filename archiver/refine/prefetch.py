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

import numpy as np
import pyarrow as pa

from archiver.refine.plan import ROW_OVERHEAD_BYTES, Plan
from intake.read.reader import IntakeReader
from intake.segments import BASE, END, FIRST_ROW, LOG_INDEX, RAW_BYTES, ROW_GROUP, FileRef, Numbers

_OWNER, _PLACE, _OF_SEGMENT = 0, 1, 2
"""The columns of a line that say whose it is and which of that plan's segments; those of a segment follow."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of one row group."""

    file: FileRef
    row_group: int
    lines: tuple[tuple[int, int, int, int], ...]
    """(place of the plan, place among its segments, first row, rows) of each segment, by their first rows."""
    end_row: int
    """One past the last row that is wanted."""
    rows: int
    raw_bytes: int
    """Of all that is wanted."""


def parts_to_read(plans: Sequence[Plan]) -> Iterator[list[Part]]:
    """All parts of one intake file after those of the other."""
    lines = _lines(plans)
    for of_file in _runs(lines, _OF_SEGMENT + LOG_INDEX):
        owner, index = of_file[0, _OWNER], int(of_file[0, _OF_SEGMENT + LOG_INDEX])
        file = plans[owner].segments.files[index]
        yield [_part(file, of_group) for of_group in _runs(of_file, _OF_SEGMENT + ROW_GROUP)]


def _lines(plans: Sequence[Plan]) -> Numbers:
    """A line for each segment of each plan, in the order of reading; where two plans share a segment, the
    first one's is first.
    """
    counts = [len(plan.segments) for plan in plans]
    owners = np.repeat(np.arange(len(plans)), counts)
    if not len(owners):
        return np.zeros((0, 1), np.int64)
    lines = np.column_stack(
        [
            owners,
            np.concatenate([np.arange(count) for count in counts]),
            np.concatenate([plan.segments.numbers for plan in plans]),
        ]
    )
    return lines[
        np.lexsort(
            (
                lines[:, _OF_SEGMENT + FIRST_ROW],
                lines[:, _OF_SEGMENT + ROW_GROUP],
                lines[:, _OF_SEGMENT + LOG_INDEX],
            )
        )
    ]


def _runs(lines: Numbers, column: int) -> list[Numbers]:
    """Neighbours that have the same number in a column."""
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
