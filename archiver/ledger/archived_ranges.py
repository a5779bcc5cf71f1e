"""Archived offsets as merged ranges: a few numbers per partition, for any number of archives."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from archiver.proto import control_log_pb2
from archiver.proto import ledger_state_pb2 as pb


class ArchivedRanges:
    """Disjoint, ordered, non-touching ranges [base, end) per partition."""

    def __init__(self) -> None:
        self._bases: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}

    def add(self, partition: int, base: int, end: int) -> None:
        """Add [base, end); touching or overlapping ranges are merged."""
        bases, ends = self._bases.setdefault(partition, []), self._ends.setdefault(partition, [])
        first = bisect_left(ends, base)
        last = bisect_right(bases, end)
        if first < last:
            base, end = min(base, bases[first]), max(end, ends[last - 1])
        bases[first:last], ends[first:last] = [base], [end]

    def cut(self, partition: int, at: int) -> None:
        """Remove all offsets from `at` on (a watermark was lowered)."""
        bases, ends = self._bases.get(partition, []), self._ends.get(partition, [])
        keep = bisect_left(bases, at)
        del bases[keep:], ends[keep:]
        if ends and ends[-1] > at:
            ends[-1] = at

    def ranges(self, partition: int) -> tuple[tuple[int, int], ...]:
        """The ranges of one partition, in order."""
        return tuple(zip(self._bases.get(partition, []), self._ends.get(partition, []), strict=True))

    def partitions(self) -> tuple[int, ...]:
        """Partitions with a range, in order."""
        return tuple(sorted(partition for partition, bases in self._bases.items() if bases))

    def to_proto(self) -> list[pb.Ranges]:
        """The stored form."""
        return [
            pb.Ranges(
                partition=number,
                ranges=[control_log_pb2.OffsetRange(base=base, end=end) for base, end in self.ranges(number)],
            )
            for number in self.partitions()
        ]

    def restore(self, message: Iterable[pb.Ranges]) -> None:
        """Restore the result of `to_proto` into an empty object."""
        for item in message:
            self._bases[item.partition] = [one.base for one in item.ranges]
            self._ends[item.partition] = [one.end for one in item.ranges]
