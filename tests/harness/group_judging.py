"""The judge of consumer groups: what members and an observer saw of committed offsets and records. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.harness.history import GroupReading, Row
from tests.harness.loop_judging import is_loop

Partition = tuple[str, int]
Broken = tuple[str, str, str]
"""Invariant, place and what is wrong."""


class GroupCase:
    """One group, arranged to be asked."""

    def __init__(self, name: str, reading: GroupReading, rows: Mapping[Partition, Sequence[Row]]) -> None:
        """`rows`: what is in each partition, by rising offsets."""
        self._name = name
        self._reading = reading
        self._rows = rows
        self._bounds = _bounds(reading)

    def broken(self) -> Iterator[Broken]:
        """Everything that is wrong. A loop that writes exactly once notes its output only."""
        yield from self._offsets()
        yield from self._starts()
        if not is_loop(self._reading):
            yield from self._skipped()
        yield from self._altered()

    def _offsets(self) -> Iterator[Broken]:
        """H20, of what the observer saw."""
        asked = defaultdict(set)
        for commit in self._reading.commits:
            asked[commit.partition].add(commit.offset)
        for seen in self._reading.seen:
            bound, why = self._bound(seen.partition, seen.began_s)
            where = f"{self._name} {_text(seen.partition)}"
            if seen.offset < bound:
                what = f"daemon {seen.daemon} gave {seen.offset} at {seen.began_s} s, after {why}"
                yield "H20", where, what
            elif seen.offset != -1 and seen.offset not in asked[seen.partition]:
                yield "H20", where, f"daemon {seen.daemon} gave {seen.offset}, which no member has committed"

    def _starts(self) -> Iterator[Broken]:
        """H20, of the first record that a member gets of a partition."""
        assigned: dict[tuple[str, Partition], float] = {}
        changes = sorted(
            [(one.at_s, 0, one.member, one.partition, 0) for one in self._reading.assigned]
            + [
                (one.at_s, 1, one.member, (one.topic, one.partition), one.offset)
                for one in self._reading.processed
            ]
        )
        for at_s, kind, member, partition, offset in changes:
            if kind == 0:
                assigned[member, partition] = at_s
            elif (since_s := assigned.pop((member, partition), None)) is not None:
                bound, why = self._bound(partition, since_s)
                if offset < bound:
                    what = f"{member} got it at {since_s} s and started at {offset}, after {why}"
                    yield "H20", f"{self._name} {_text(partition)}", what

    def _skipped(self) -> Iterator[Broken]:
        """H21."""
        first_s: dict[Partition, dict[int, float]] = defaultdict(dict)
        for one in self._reading.processed:
            first_s[one.topic, one.partition].setdefault(one.offset, one.at_s)
        for partition, rows in self._rows.items():
            where = f"{self._name} {_text(partition)}"
            offsets = [row.offset for row in rows]
            known = first_s[partition]
            complete_s: list[float] = []
            for offset in offsets:
                before_s = complete_s[-1] if complete_s else 0.0
                complete_s.append(max(before_s, known.get(offset, float("inf"))))
            for commit in self._reading.commits:
                below = bisect_left(offsets, commit.offset)
                if commit.partition == partition and below and complete_s[below - 1] > commit.asked_s:
                    missing = next(one for one in offsets if known.get(one, float("inf")) > commit.asked_s)
                    what = f"{commit.offset} was committed at {commit.asked_s} s without offset {missing}"
                    yield "H21", where, what
                    break
            else:
                end = self._reading.ends.get(partition, 0)
                if left := [one for one in offsets if one < end and one not in known]:
                    yield "H21", where, f"{len(left)} records were never processed, offset {left[0]} for one"

    def _altered(self) -> Iterator[Broken]:
        """H22."""
        there = {
            (*partition, row.offset): row.digest for partition, rows in self._rows.items() for row in rows
        }
        for one in self._reading.processed:
            place = (one.topic, one.partition, one.offset)
            if there.get(place) != one.digest:
                has = there.get(place, "nothing")
                where = f"{self._name} {_text(place[:2])}:{one.offset}"
                yield "H22", where, f"{one.member} got {one.digest}, consume has {has}"

    def _bound(self, partition: Partition, at_s: float) -> tuple[int, str]:
        """The least offset that may be found at that time, and why."""
        times, bounds = self._bounds.get(partition, ([], []))
        at = bisect_right(times, at_s)
        return bounds[at - 1] if at else (-1, "")


def _bounds(reading: GroupReading) -> dict[Partition, tuple[list[float], list[tuple[int, str]]]]:
    """Per partition, times and the offset that each time at the latest has, with the reason."""
    known: dict[Partition, list[tuple[float, int, str]]] = defaultdict(list)
    for commit in reading.commits:
        if commit.answered_s is not None:
            why = f"{commit.offset} was acknowledged at {commit.answered_s} s"
            known[commit.partition].append((commit.answered_s, commit.offset, why))
    for seen in reading.seen:
        why = f"daemon {seen.daemon} gave {seen.offset} at {seen.ended_s} s"
        known[seen.partition].append((seen.ended_s, seen.offset, why))
    found: dict[Partition, tuple[list[float], list[tuple[int, str]]]] = {}
    for partition, items in known.items():
        times: list[float] = []
        bounds: list[tuple[int, str]] = []
        for at_s, offset, why in sorted(items):
            times.append(at_s)
            bounds.append(max(bounds[-1], (offset, why)) if bounds else (offset, why))
        found[partition] = (times, bounds)
    return found


def _text(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"
