"""Segments: consecutive records of one topic partition inside one intake file, as objects or as rows of
numbers.

Pure. An object per segment takes four times the memory. Half a million of them take seconds to make, collect
and send.
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
    """An intake file named in the log."""

    log_index: int
    key: str
    size: int
    """Bytes."""
    footer_sha256: bytes


class SegmentRef(NamedTuple):
    """Consecutive records of one topic partition and their place."""

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
    """Lower bound of the ingest times of its records."""

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.base + self.rows

    @property
    def ingest_max_us(self) -> int:
        """Ingest time of the last record."""
        return max(self.floor_us, self.accept_max_us)


NUMBERS = ("base", "end", "log_index", "row_group", "first_row", "raw_bytes", "accept_max_us", "floor_us")
"""The columns of a segment."""
Numbers = npt.NDArray[np.int64]
"""One row per segment, with the columns `NUMBERS`."""
LARGEST = 2**63 - 1
"""Upper bound of all these numbers; the fold rejects an entry with a larger offset."""
LARGEST_BYTES = 2**40
"""Upper bound for one segment; no intake file is as large. So the sum of millions of segments fits 64
bits."""
_LINE, _WIDTH = Struct(f"={len(NUMBERS)}q"), 8
BASE, END, LOG_INDEX, ROW_GROUP, FIRST_ROW, RAW_BYTES, ACCEPT_MAX_US, FLOOR_US = range(len(NUMBERS))
_FEW = 16


class Segments(Sequence[SegmentRef]):
    """Immutable segments of one topic partition, in offset order, as numbers. They are read from history
    files, divided into plans and sent to tasks in this form.

    Indexing and iteration give `SegmentRef` objects.
    """

    __slots__ = ("files", "numbers")

    def __init__(self, numbers: Numbers, files: Mapping[int, FileRef]) -> None:
        """`files` has at least the files that `numbers` name, by log index; it may be shared."""
        self.numbers = numbers
        self.files = files

    @classmethod
    def of(cls, segments: Iterable[SegmentRef]) -> Segments:
        """These segments."""
        return HeldSegments.of(segments)[:]

    @classmethod
    def joined(cls, parts: Sequence[Segments]) -> Segments:
        """The segments of all parts, one after the other."""
        parts = [part for part in parts if part] or parts[:1]
        if not parts:
            return NONE
        if len(parts) == 1:
            return parts[0]
        # Parts of one view share a mapping; join only different ones.
        maps = list({id(part.files): part.files for part in parts}.values())
        files = maps[0] if len(maps) == 1 else ChainMap(*maps)  # type: ignore[arg-type]  # it is only read
        return cls(np.concatenate([part.numbers for part in parts]), files)

    @classmethod
    def sharing(cls, groups: Sequence[Segments]) -> list[Segments]:
        """The same groups with one mapping of exactly their files, for sending them together."""
        # One pickle holds a shared mapping once, so the groups get a common one with only their files.
        files: dict[int, FileRef] = {}
        for group in groups:
            files.update((index, group.files[index]) for index in group.indexes.difference(files))
        return [cls(group.numbers, files) for group in groups]

    @property
    def bases(self) -> Numbers:
        """First offset of each."""
        return self.numbers[:, BASE]

    @property
    def ends(self) -> Numbers:
        """One past the last offset of each."""
        return self.numbers[:, END]

    @property
    def raw_bytes(self) -> Numbers:
        """Bytes of the records of each."""
        return self.numbers[:, RAW_BYTES]

    @property
    def indexes(self) -> set[int]:
        """Log indexes of their files."""
        return set(self.numbers[:, LOG_INDEX].tolist())

    @property
    def first_index(self) -> int:
        """Log index of the first one's file. There must be one."""
        return int(self.numbers[0, LOG_INDEX])

    @property
    def last_index(self) -> int:
        """Log index of the last one's file. There must be one."""
        return int(self.numbers[-1, LOG_INDEX])

    def where(self, mask: npt.NDArray[np.bool_]) -> Segments:
        """The segments at which the mask is true."""
        return self if mask.all() else Segments(self.numbers[mask], self.files)

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
        # `tolist` once: converting numpy numbers one by one is much slower.
        return (_segment(line, self.files) for line in self.numbers.tolist())

    def __eq__(self, other: object) -> bool:
        # Compares numbers as arrays and each file once, not object by object.
        if isinstance(other, Segments):
            same = np.array_equal(self.numbers, other.numbers)
            return same and all(self.files[index] == other.files[index] for index in self.indexes)
        # Tests and callers compare with plain lists of `SegmentRef`.
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(
                mine == theirs for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Segments({list(self)!r})"


class HeldSegments(Sequence[SegmentRef]):
    """Segments of one topic partition, in offset order; append-only.

    Other threads may read while one thread appends. Nothing is removed: `parts` makes a new object.
    """

    __slots__ = ("_files", "_numbers")

    def __init__(self) -> None:
        # Packed numbers: an object per segment takes four times the memory.
        self._numbers = bytearray()
        self._files: list[FileRef] = []
        """One per segment. Its length is the number of segments: a reader sees a segment once both parts are
        appended."""

    @classmethod
    def of(cls, segments: Iterable[SegmentRef]) -> HeldSegments:
        """These segments."""
        held = cls()
        for segment in segments:
            held.append(segment)
        return held

    def append(self, segment: SegmentRef) -> None:
        """Append a segment that begins at or after the end of the last one."""
        file, row_group, first_row, rows, base, raw_bytes, accept_max_us, floor_us = segment
        # The numbers before the file: a reader counts files, so it never sees half a segment.
        self._numbers += _LINE.pack(
            base, base + rows, file.log_index, row_group, first_row, raw_bytes, accept_max_us, floor_us
        )
        self._files.append(file)

    def parts(self, places: Iterable[tuple[int, int]]) -> HeldSegments:
        """Only those at the places [first, end)."""
        # A new object, because another thread may be reading this one.
        left = HeldSegments()
        for first, end in places:
            left._numbers += self._lines(first, end)
            left._files.extend(self._files[first:end])
        return left

    @property
    def files(self) -> Sequence[FileRef]:
        """The file of each."""
        return self._files

    def end_of(self, place: int) -> int:
        """One past the last offset of the segment at that place."""
        # Reads one number without unpacking the row: binary searches call it often.
        at = place * _LINE.size + END * _WIDTH
        return int.from_bytes(self._numbers[at : at + _WIDTH], sys.byteorder)

    def first_beyond(self, offset: int, low: int = 0) -> int:
        """The first place from `low` on whose segment reaches beyond the offset."""
        # Ends ascend, so a binary search finds the place without visiting the segments.
        return low + bisect_right(range(low, len(self)), offset, key=self.end_of)

    def sums(self, first: int, end: int) -> tuple[int, int]:
        """Records and raw bytes of those at the places [first, end)."""
        # For a few segments the calls of numpy would take most of the time.
        if end - first <= _FEW:
            lines = list(_LINE.iter_unpack(self._lines(first, end)))
            return sum(line[END] - line[BASE] for line in lines), sum(line[RAW_BYTES] for line in lines)
        numbers = self.numbers(first, end)
        rows = int(numbers[:, END].sum()) - int(numbers[:, BASE].sum())
        return rows, int(numbers[:, RAW_BYTES].sum())

    def numbers(self, first: int, end: int) -> Numbers:
        """Those at the places [first, end), which must exist."""
        return np.frombuffer(self._lines(first, end), np.int64).reshape(end - first, len(NUMBERS))

    def _lines(self, first: int, end: int) -> bytearray:
        """A copy. A view of the bytearray would block its growth."""
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
            assert step == 1, "only slices with step 1 are supported"
            # An empty slice may have its end before its begin.
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
