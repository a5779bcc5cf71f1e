"""Selects the archives of a partition from which a table is rebuilt. Pure.

A key is used once, but a range may be in several archives: attempts of several epochs, and rewritten
archives. Records are a function of the log, so each of them is correct. The result is a chain in which each
archive starts exactly where the previous one ends; for equal ranges it uses the newest epoch. A chain never
overlaps and never skips an offset silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archiver.stream.archives import FoundArchive


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive archives of one partition."""

    archives: tuple[FoundArchive, ...]
    twins: Mapping[str, tuple[FoundArchive, ...]]
    """By key: other archives of exactly the same range, whose records must be equal."""
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges between archives that no archive holds."""
    why: str | None = None
    """Why there is no chain; `archives` is then empty."""

    @property
    def start(self) -> int:
        """The first offset; 0 without archives."""
        return self.archives[0].base if self.archives else 0

    @property
    def end(self) -> int:
        """The offset after the last one; 0 without archives."""
        return self.archives[-1].end if self.archives else 0


def chain_to(
    archives: Iterable[FoundArchive], start: int, end: int, without: Sequence[tuple[int, int]] = ()
) -> Chain:
    """A chain from an offset not above `start` to exactly `end`. `without`: ranges without an archive,
    because they hold no record.

    The first archive may begin below `start`, the current end of retention.
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
            why=f"no archive that continues there holds the offsets from {farthest} on, up to {end}",
        )
    return _chain(came, start, end, twins)


def chain_of_all(archives: Iterable[FoundArchive]) -> Chain:
    """A chain of all archives, with holes only where no archive exists."""
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
                why=f"archives overlap and are not consecutive: a chain ends at {farthest}, but "
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
    """Record the predecessor of every offset that a chain can reach. Returns `end`, or the farthest offset
    before it.
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
