"""Which archives of a partition a table is made of anew. Pure.

A key is used once, but a range may stand in several archives: attempts of several epochs, and archives that
were made anew. Records are a function of the log, so each of them is right; taken is a chain of which each
goes on exactly where the one before it ends, and of the same range that of the newest epoch. Must never
choose archives that overlap, and never pass over an offset in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archiver.stream.archives import FoundArchive


@dataclass(frozen=True, slots=True)
class Chain:
    """The archives of one partition that follow each other."""

    archives: tuple[FoundArchive, ...]
    twins: Mapping[str, tuple[FoundArchive, ...]]
    """By key: other archives of the very range, whose records must be the same."""
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges between archives that stand in none."""
    why: str | None = None
    """Why there is no chain; the archives are then none."""

    @property
    def start(self) -> int:
        """The first offset; 0 without archives."""
        return self.archives[0].base if self.archives else 0

    @property
    def end(self) -> int:
        """Behind the last offset; 0 without archives."""
        return self.archives[-1].end if self.archives else 0


def chain_to(
    archives: Iterable[FoundArchive], start: int, end: int, without: Sequence[tuple[int, int]] = ()
) -> Chain:
    """A chain from an offset not above `start` to exactly `end`; `without`: ranges that have no archive,
    because they hold no record.

    The first archive may begin below the start, which is where retention has come to.
    """
    choices, twins = _by_range(archives)
    came: dict[int, tuple[int, FoundArchive | None]] = {start: (start, None)}
    for found in sorted(choices, key=lambda one: -one.base):
        if found.base < start < found.end:
            came.setdefault(found.end, (start, found))
    farthest = _walk(came, choices, without, end)
    if farthest != end:
        return Chain(
            (),
            {},
            why=f"offsets from {farthest} on, up to {end}, stand in no archive that goes on from there",
        )
    return _chain(came, start, end, twins)


def chain_of_all(archives: Iterable[FoundArchive]) -> Chain:
    """A chain through everything there is, with holes only where no archive is at all."""
    choices, twins = _by_range(archives)
    taken: list[FoundArchive] = []
    holes: list[tuple[int, int]] = []
    at = 0
    while at < len(choices):
        first = at
        low, high = choices[at].base, choices[at].end
        while at < len(choices) and choices[at].base <= high:
            high = max(high, choices[at].end)
            at += 1
        came: dict[int, tuple[int, FoundArchive | None]] = {low: (low, None)}
        farthest = _walk(came, choices[first:at], (), high)
        if farthest != high:
            beyond = next(one for one in choices[first:at] if one.end == high)
            return Chain(
                (),
                {},
                why=f"archives overlap and do not follow each other: a chain ends at {farthest}, but "
                f"{beyond.key} reaches {high}",
            )
        if taken:
            holes.append((taken[-1].end, low))
        taken += _chain(came, low, high, twins).archives
    return Chain(tuple(taken), {one.key: twins[one.key] for one in taken if one.key in twins}, tuple(holes))


def _by_range(
    archives: Iterable[FoundArchive],
) -> tuple[list[FoundArchive], dict[str, tuple[FoundArchive, ...]]]:
    """One archive of each range, in order, and the others of its range."""
    ranges: dict[tuple[int, int], list[FoundArchive]] = {}
    for found in archives:
        ranges.setdefault((found.base, found.end), []).append(found)
    chosen: list[FoundArchive] = []
    twins: dict[str, tuple[FoundArchive, ...]] = {}
    for key in sorted(ranges):
        newest, *others = sorted(ranges[key], key=lambda one: (-one.epoch, one.key))
        chosen.append(newest)
        if others:
            twins[newest.key] = tuple(others)
    return chosen, twins


def _walk(
    came: dict[int, tuple[int, FoundArchive | None]],
    choices: Sequence[FoundArchive],
    without: Sequence[tuple[int, int]],
    end: int,
) -> int:
    """Note for every offset that a chain can come to where it came from; returns `end`, or the farthest
    offset before it.
    """
    by_base: dict[int, list[FoundArchive]] = {}
    for found in choices:
        by_base.setdefault(found.base, []).append(found)
    waiting = set(came)
    while waiting:
        at = min(waiting)
        waiting.remove(at)
        steps: list[tuple[int, FoundArchive | None]] = [(found.end, found) for found in by_base.get(at, ())]
        steps += [(high, None) for low, high in without if low <= at < high]
        for to, by in steps:
            if to <= end and to not in came:
                came[to] = (at, by)
                waiting.add(to)
    return max(one for one in came if one <= end)


def _chain(
    came: Mapping[int, tuple[int, FoundArchive | None]],
    start: int,
    end: int,
    twins: Mapping[str, tuple[FoundArchive, ...]],
) -> Chain:
    found: list[FoundArchive] = []
    at = end
    while at != start:
        at, archive = came[at]
        if archive is not None:
            found.append(archive)
    found.reverse()
    return Chain(tuple(found), {one.key: twins[one.key] for one in found if one.key in twins})
