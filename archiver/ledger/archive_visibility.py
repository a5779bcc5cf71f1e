"""Which archives nobody should begin to read: always, or as long as others hold the same records.

Pure. An archive that the ledger has killed never goes into the table from there, and is deleted once others
hold its offsets. But its commit may have landed, and been compacted and expired before the ledger heard of
it; then the range is archived, no other archive has it, and its intake goes. Such an archive stays
(`reconcile.snapshot.unreferenced_objects` asks here too), and readers take it: records are a function of the
log, so it holds the right ones. Must never give a condemned archive, or one that a replay made anew, to
anybody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from archiver.ledger.archived_ranges import ArchivedRanges
from archiver.ledger.views import TopicLedger


class Ranged(Protocol):
    """An archive as its key describes it."""

    @property
    def key(self) -> str:
        """Of the object."""

    @property
    def base(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """Exclusive."""

    @property
    def epoch(self) -> int:
        """Of the leader that made it."""


_R = TypeVar("_R", bound=Ranged)


@dataclass(frozen=True, slots=True)
class ArchiveVisibility:
    """What the ledger has given up of one partition; without arguments, nothing."""

    always: Container[str] = ()
    """Keys that are deleted, whoever reads them."""
    spare: Container[str] = ()
    """Keys that are read where nobody else holds their offsets."""
    start: int = 0
    """Nobody needs what is below (retention)."""
    watermark: int = 0
    """From here on intake has everything."""
    empty: Sequence[tuple[int, int]] = ()
    """Ranges that count as archived without an archive."""

    @classmethod
    def of(cls, ledger: TopicLedger, partition: int, condemned: Container[str] = ()) -> ArchiveVisibility:
        """By the ledger."""
        return cls(
            _Either(condemned, ledger.rewrites.replaced),
            _Either(ledger.killed, ledger.rewrites.abandoned),
            ledger.start(partition),
            ledger.watermarks.get(partition, 0),
            ledger.passed.ranges(partition),
        )

    def kept(self, archives: Iterable[_R]) -> list[_R]:
        """Of all archives of the partition those that readers take: of killed ones with the same offsets that
        of the newest epoch.
        """
        found: list[_R] = []
        spare: list[_R] = []
        for one in archives:
            if one.key not in self.always:
                (spare if one.key in self.spare else found).append(one)
        if not spare:
            return found
        held = self.coverage()
        for one in found:
            held.add(0, one.base, one.end)
        for one in sorted(spare, key=lambda item: (-item.epoch, item.base, item.end)):
            if not self.is_held(held, one.base, one.end):
                held.add(0, one.base, one.end)
                found.append(one)
        return found

    def coverage(self) -> ArchivedRanges:
        """What needs no archive, as partition 0 of a coverage that those of archives are added to."""
        held = ArchivedRanges()
        for base, end in self.empty:
            held.add(0, base, end)
        return held

    def is_held(self, held: ArchivedRanges, base: int, end: int) -> bool:
        """Whether readers find a range elsewhere: in what is held, or in intake, which has all from the
        watermark on.
        """
        base, end = max(base, self.start), min(end, self.watermark)
        return base >= end or any(low <= base and end <= high for low, high in held.ranges(0))


@dataclass(frozen=True, slots=True)
class _Either:
    """Keys of the one or the other."""

    one: Container[str]
    other: Container[str]

    def __contains__(self, key: object) -> bool:
        return key in self.one or key in self.other
