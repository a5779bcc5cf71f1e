"""How old archived offsets are: what retention goes by.

Pure; part of the ledger's fold. Kept per partition are pairs (end, ingest time): no record below that offset
was ingested later. They come from the archives that DATA_WRITTEN names, whatever becomes of those: which
offset was ingested when is a function of the intake log. Ingest time never falls along the offsets, so of two
neighbours the first may be forgotten; then its records pass for as young as those of the second. Memory is
bounded that way, and an answer is never above the true one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from archiver.proto import ledger_state_pb2 as pb

POINTS_MAX = 512
"""Pairs that are kept of a partition, 8 KiB. The steps that retention takes are at most a 128th of what is
kept: of `retention: 30d`, six hours."""


class Ages:
    """The ingest times of one topic's archived offsets."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._ends: dict[int, array[int]] = {}
        self._times: dict[int, array[int]] = {}

    def add(self, partition: int, end: int, ingest_max_us: int) -> None:
        """No record below `end` was ingested after `ingest_max_us`. What does not go on behind the newest
        pair tells nothing new.
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
        """Of the pairs of one stretch of time the last one stays. Stretches are powers of two and lie where
        they lie: a pair that is the last of its stretch once stays so until they get longer.
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
        """The highest offset, not above `below`, under which every record was ingested before `limit_us`; 0
        if none is known.
        """
        found = 0
        for end, time_us in zip(self._ends.get(partition, ()), self._times.get(partition, ()), strict=True):
            if end > below or time_us >= limit_us:
                break
            found = end
        return found

    def forget(self, partition: int, below: int) -> None:
        """Nobody asks for offsets up to `below` any more."""
        ends, times = self._ends.get(partition), self._times.get(partition)
        if ends is None or times is None:
            return
        gone = sum(end <= below for end in ends)
        # The newest pair stays: it says from where on a pair tells something new.
        gone = min(gone, len(ends) - 1)
        del ends[:gone], times[:gone]

    def to_proto(self) -> list[pb.Ages]:
        """The stored form."""
        return [
            pb.Ages(partition=number, ends=self._ends[number], times_us=self._times[number])
            for number in sorted(self._ends)
        ]

    def restore(self, message: Iterable[pb.Ages]) -> None:
        """Take over what `to_proto` gave; nothing must be known yet."""
        for item in message:
            self._ends[item.partition], self._times[item.partition] = (
                array("q", item.ends),
                array("q", item.times_us),
            )
