"""Where records are: consecutive records of one topic partition inside one intake file, one by one or many as
numbers.

Pure. An object for each takes four times the memory and, where there are half a million of them, seconds to
make, to collect and to send.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
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
LARGEST = 2**63 - 1
"""Of all these numbers; the fold refuses an entry that states a larger offset."""
LARGEST_BYTES = 2**40
"""Of one segment; no intake file is as large. So the bytes of millions of them still are such a number."""
_LINE, _WIDTH = Struct(f"={len(NUMBERS)}q"), 8
BASE, END, LOG_INDEX, ROW_GROUP, FIRST_ROW, RAW_BYTES, ACCEPT_MAX_US, FLOOR_US = range(len(NUMBERS))


class Segments(Sequence[SegmentRef]):
    """Segments of one topic partition, in offset order, as numbers: found in a shelf, cut into plans and sent
    to the tasks as they are.

    Whoever needs one of them as an object takes it out like out of a list. Never changed.
    """

    __slots__ = ("files", "numbers")

    def __init__(self, numbers: Numbers, files: Mapping[int, FileRef]) -> None:
        """`files` has at least the files that `numbers` name, by their place in the log; many may share
        it.
        """
        self.numbers = numbers
        self.files = files

    @classmethod
    def of(cls, segments: Iterable[SegmentRef]) -> Segments:
        """These segments."""
        return HeldSegments.of(segments)[:]

    @classmethod
    def joined(cls, parts: Sequence[Segments]) -> Segments:
        """Those of all parts, one after the other."""
        parts = [part for part in parts if part] or parts[:1]
        if not parts:
            return NONE
        if len(parts) == 1:
            return parts[0]
        maps = list({id(part.files): part.files for part in parts}.values())
        files = maps[0] if len(maps) == 1 else ChainMap(*maps)  # type: ignore[arg-type]  # it is only read
        return cls(np.concatenate([part.numbers for part in parts]), files)

    @classmethod
    def sharing(cls, groups: Sequence[Segments]) -> list[Segments]:
        """The same groups with one mapping that has just the files they name: what is sent elsewhere with all
        of them.
        """
        files: dict[int, FileRef] = {}
        for group in groups:
            files.update((index, group.files[index]) for index in group.indexes.difference(files))
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
    def indexes(self) -> set[int]:
        """The places in the log of their files."""
        return set(self.numbers[:, LOG_INDEX].tolist())

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
        if isinstance(other, Segments):
            same = np.array_equal(self.numbers, other.numbers)
            return same and all(self.files[index] == other.files[index] for index in self.indexes)
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(
                mine == theirs for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Segments({list(self)!r})"


class HeldSegments(Sequence[SegmentRef]):
    """Segments of one topic partition, in offset order, to whose end others come.

    Others may read while one thread appends. Nothing is ever taken out: what is left of them is other ones.
    """

    __slots__ = ("_files", "_numbers")

    def __init__(self) -> None:
        self._numbers = bytearray()
        self._files: list[FileRef] = []
        """One for each. It counts them: a reader sees a segment once both are there."""

    @classmethod
    def of(cls, segments: Iterable[SegmentRef]) -> HeldSegments:
        """These segments."""
        held = cls()
        for segment in segments:
            held.append(segment)
        return held

    def append(self, segment: SegmentRef) -> None:
        """One more; it begins where the last one ends, or behind that."""
        file, row_group, first_row, rows, base, raw_bytes, accept_max_us, floor_us = segment
        self._numbers += _LINE.pack(
            base, base + rows, file.log_index, row_group, first_row, raw_bytes, accept_max_us, floor_us
        )
        self._files.append(file)

    def parts(self, places: Iterable[tuple[int, int]]) -> HeldSegments:
        """Those in the places [first, end), and no others."""
        left = HeldSegments()
        for first, end in places:
            left._numbers += self._lines(first, end)
            left._files.extend(self._files[first:end])
        return left

    @property
    def files(self) -> Sequence[FileRef]:
        """Of each its file."""
        return self._files

    def end_of(self, place: int) -> int:
        """One past the last offset of the segment in that place."""
        at = place * _LINE.size + END * _WIDTH
        return int.from_bytes(self._numbers[at : at + _WIDTH], sys.byteorder)

    def first_beyond(self, offset: int, low: int = 0) -> int:
        """The place of the first segment, from the place `low` on, that reaches beyond the offset."""
        return low + bisect_right(range(low, len(self)), offset, key=self.end_of)

    def numbers(self, first: int, end: int) -> Numbers:
        """Those in the places [first, end); there must be so many."""
        return np.frombuffer(self._lines(first, end), np.int64).reshape(end - first, len(NUMBERS))

    def _lines(self, first: int, end: int) -> bytearray:
        """A copy. Nothing may look into the buffer itself: as long as somebody does, it cannot grow."""
        return self._numbers[first * _LINE.size : end * _LINE.size]

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, place: int) -> SegmentRef: ...
    @overload
    def __getitem__(self, place: slice) -> Segments: ...
    def __getitem__(self, place: int | slice) -> SegmentRef | Segments:
        if isinstance(place, slice):
            first, end, step = place.indices(len(self))
            assert step == 1, "they are taken one after the other"
            end = max(first, end)
            return Segments(
                self.numbers(first, end), {file.log_index: file for file in self._files[first:end]}
            )
        at = range(len(self))[place]
        return _segment(_LINE.unpack(self._lines(at, at + 1)), {self._files[at].log_index: self._files[at]})

    def __iter__(self) -> Iterator[SegmentRef]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HeldSegments):
            return self._numbers == other._numbers and self._files == other._files
        return self[:] == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"HeldSegments({list(self)!r})"


NONE = Segments.of(())


def _segment(line: Iterable[int], files: Mapping[int, FileRef]) -> SegmentRef:
    base, end, log_index, row_group, first_row, raw_bytes, accept_max_us, floor_us = line
    return SegmentRef(
        files[log_index], row_group, first_row, end - base, base, raw_bytes, accept_max_us, floor_us
    )
