"""Where records are: consecutive records of one topic partition inside one intake file, one by one or many as numbers."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FileRef:
    """An intake file that the log names."""

    log_index: int
    key: str
    size: int
    """Bytes."""
    footer_sha256: bytes


class SegmentRef(NamedTuple):
    """Consecutive records of one topic partition and where they are."""

    file: FileRef
    row_group: int
    first_row: int
    """Inside the row group."""
    rows: int
    base: int
    """Offset of the first record."""
    raw_bytes: int
    accept_max_us: int
    floor_us: int
    """No record of the segment has an ingest time before this."""

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.base + self.rows

    @property
    def ingest_max_us(self) -> int:
        """Ingest time of the last record."""
        return max(self.floor_us, self.accept_max_us)


NUMBERS = ("base", "end", "log_index", "row_group", "first_row", "raw_bytes", "accept_max_us", "floor_us")
"""What is known of a segment, as columns."""
Numbers = npt.NDArray[np.int64]
"""A line for each segment, its columns `NUMBERS`."""
BASE, END, LOG_INDEX, ROW_GROUP, FIRST_ROW, RAW_BYTES, ACCEPT_MAX_US, FLOOR_US = range(len(NUMBERS))


class Segments(Sequence[SegmentRef]):
    """Segments of one topic partition, in offset order, as numbers.

    A round may have half a million of them. As numbers they are found in a shelf, cut into plans and sent to the tasks without an object
    for each, which took seconds; whoever needs one of them as an object takes it out like out of a list. Never changed.
    """

    __slots__ = ("files", "numbers")

    def __init__(self, numbers: Numbers, files: Mapping[int, FileRef]) -> None:
        """`files` has at least the files that `numbers` name, by their place in the log; many may share it."""
        self.numbers = numbers
        self.files = files

    @classmethod
    def of(cls, segments: Sequence[SegmentRef], files: dict[int, FileRef] | None = None) -> Segments:
        """These segments. Their files are put into `files`, if that is given."""
        files = {} if files is None else files
        numbers = np.empty((len(segments), len(NUMBERS)), np.int64)
        if segments:
            given = np.array([segment[1:] for segment in segments], np.int64)
            row_group, first_row, rows, base, raw_bytes, accept_max_us, floor_us = given.T
            files.update((segment.file.log_index, segment.file) for segment in segments)
            log_index = [segment.file.log_index for segment in segments]
            columns = (base, base + rows, log_index, row_group, first_row, raw_bytes, accept_max_us, floor_us)
            for place, column in enumerate(columns):
                numbers[:, place] = column
        return cls(numbers, files)

    @classmethod
    def joined(cls, parts: Sequence[Segments]) -> Segments:
        """Those of all parts, one after the other."""
        parts = [part for part in parts if part] or parts[:1]
        if not parts:
            return cls.of(())
        if len(parts) == 1:
            return parts[0]
        maps = list({id(part.files): part.files for part in parts}.values())
        files = maps[0] if len(maps) == 1 else ChainMap(*maps)  # type: ignore[arg-type]  # it is only read
        return cls(np.concatenate([part.numbers for part in parts]), files)

    @classmethod
    def sharing(cls, groups: Sequence[Segments]) -> list[Segments]:
        """The same groups with one mapping that has just the files they name: what is sent elsewhere with all of them."""
        files: dict[int, FileRef] = {}
        for group in groups:
            new = set(group.numbers[:, LOG_INDEX].tolist()).difference(files)
            files.update((index, group.files[index]) for index in new)
        return [cls(group.numbers, files) for group in groups]

    @property
    def bases(self) -> Numbers:
        """Of each its first offset."""
        return self.numbers[:, BASE]

    @property
    def ends(self) -> Numbers:
        """Of each one past its last offset."""
        return self.numbers[:, END]

    @property
    def raw_bytes(self) -> Numbers:
        """Of each the bytes of its records."""
        return self.numbers[:, RAW_BYTES]

    @property
    def first_index(self) -> int:
        """The place in the log of the first one's file. There must be one."""
        return int(self.numbers[0, LOG_INDEX])

    @property
    def last_index(self) -> int:
        """The place in the log of the last one's file. There must be one."""
        return int(self.numbers[-1, LOG_INDEX])

    def where(self, wanted: npt.NDArray[np.bool_]) -> Segments:
        """Those that are wanted, of a true or false for each."""
        return self if wanted.all() else Segments(self.numbers[wanted], self.files)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> SegmentRef: ...
    @overload
    def __getitem__(self, place: slice) -> Segments: ...
    def __getitem__(self, place: int | slice) -> SegmentRef | Segments:
        if isinstance(place, slice):
            return Segments(self.numbers[place], self.files)
        return _segment(self.numbers[place].tolist(), self.files)

    def __iter__(self) -> Iterator[SegmentRef]:
        return (_segment(line, self.files) for line in self.numbers.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Segments({list(self)!r})"


def _segment(line: Iterable[int], files: Mapping[int, FileRef]) -> SegmentRef:
    base, end, log_index, row_group, first_row, raw_bytes, accept_max_us, floor_us = line
    return SegmentRef(files[log_index], row_group, first_row, end - base, base, raw_bytes, accept_max_us, floor_us)
