"""The age of archived offsets, on which retention is based.

Pure; part of the ledger's fold. Per partition it keeps pairs (end, ingest time): no record below that offset
was ingested later. They come from all archives in DATA_WRITTEN, of every outcome: the ingest time of an
offset is a function of the intake log. Ingest times never decrease with offsets. So the first of two
neighbouring pairs may be dropped; its records then count as young as those of the second. This bounds memory,
and a result is never above the true one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from archiver.proto import ledger_state_pb2 as pb

POINTS_MAX = 512
"""Most pairs per partition, 8 KiB. Retention then advances in steps of at most a 128th of the retention time:
six hours for `retention: 30d`."""


class Ages:
    """The ingest times of one topic's archived offsets."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._ends: dict[int, array[int]] = {}
        self._times: dict[int, array[int]] = {}

    def add(self, partition: int, end: int, ingest_max_us: int) -> None:
        """Record that no record below `end` was ingested after `ingest_max_us`. A pair that does not continue
        after the newest one has no new information.
        """
        ends, times = (
            self._ends.setdefault(partition, array("q")),
            self._times.setdefault(partition, array("q")),
        )
        if ends and end <= ends[-1]:
            return
        ends.append(end)
        times.append(max(ingest_max_us, times[-1] if times else ingest_max_us))
        if len(ends) > self._points_max:
            self._coarsen(partition, ends, times)

    def _coarsen(self, partition: int, ends: array[int], times: array[int]) -> None:
        """Keep the last pair of each time interval. Intervals are aligned powers of two: a pair that is the
        last of its interval stays so until the intervals grow.
        """
        stretch_us = 1 << ((times[-1] - times[0]) * 2 // self._points_max).bit_length()
        kept = [
            place
            for place, time_us in enumerate(times)
            if place == len(times) - 1 or time_us // stretch_us != times[place + 1] // stretch_us
        ]
        self._ends[partition] = array("q", (ends[place] for place in kept))
        self._times[partition] = array("q", (times[place] for place in kept))

    def older_than(self, partition: int, limit_us: int, below: int) -> int:
        """The highest offset, not above `below`, such that every earlier record was ingested before
        `limit_us`; 0 if unknown.
        """
        found = 0
        for end, time_us in zip(self._ends.get(partition, ()), self._times.get(partition, ()), strict=True):
            if end > below or time_us >= limit_us:
                break
            found = end
        return found

    def forget(self, partition: int, below: int) -> None:
        """Drop pairs for offsets up to `below`, which are no longer requested."""
        ends, times = self._ends.get(partition), self._times.get(partition)
        if ends is None or times is None:
            return
        gone = sum(end <= below for end in ends)
        # The newest pair stays: it decides whether a later pair has new information.
        gone = min(gone, len(ends) - 1)
        del ends[:gone], times[:gone]

    def to_proto(self) -> list[pb.Ages]:
        """The stored form."""
        return [
            pb.Ages(partition=number, ends=self._ends[number], times_us=self._times[number])
            for number in sorted(self._ends)
        ]

    def restore(self, message: Iterable[pb.Ages]) -> None:
        """Restore the result of `to_proto` into an empty object."""
        for item in message:
            self._ends[item.partition], self._times[item.partition] = (
                array("q", item.ends),
                array("q", item.times_us),
            )
