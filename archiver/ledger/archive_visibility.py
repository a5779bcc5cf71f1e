"""Archives that readers must skip: always, or while other archives hold the same records.

Pure. Deletion (`reconcile.snapshot.unreferenced_objects`) and readers use the same rule, so no archive that a
reader needs is deleted. A reader never gets an archive that is marked for deletion or that a rewrite
replaced.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from archiver.ledger.views import ArchivedRanges, TopicLedger


class Ranged(Protocol):
    """An archive as described by its key."""

    @property
    def key(self) -> str:
        """The object key."""

    @property
    def base(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """Exclusive."""

    @property
    def epoch(self) -> int:
        """Epoch of the leader that made it."""


_R = TypeVar("_R", bound=Ranged)


@dataclass(frozen=True, slots=True)
class ArchiveVisibility:
    """The archives of one partition that readers skip; none by default."""

    always: Container[str] = ()
    """Keys that are deleted, always skipped."""
    spare: Container[str] = ()
    """Keys that are read only if no other archive holds their offsets."""
    start: int = 0
    """Offsets below it are expired (retention)."""
    watermark: int = 0
    """Intake has all records from here on."""
    empty: Sequence[tuple[int, int]] = ()
    """Ranges that count as archived without an archive."""

    @classmethod
    def of(cls, ledger: TopicLedger, partition: int, condemned: Container[str] = ()) -> ArchiveVisibility:
        """The visibility by the ledger."""
        return cls(
            _Either(condemned, ledger.rewrites.replaced),
            # The commit of a killed archive may have been applied, compacted and expired before the ledger
            # recorded it. Then no other archive has the range, and its intake is deleted. Records are a
            # function of the log, so the killed archive holds the right ones.
            _Either(ledger.killed, ledger.rewrites.abandoned),
            ledger.start(partition),
            ledger.watermarks.get(partition, 0),
            ledger.passed.ranges(partition),
        )

    def kept(self, archives: Iterable[_R]) -> list[_R]:
        """The archives of the partition that readers use; of killed ones with the same offsets, the one of
        the newest epoch.
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
        # The newest epoch first, and in a fixed order, so that all readers choose the same archives.
        for one in sorted(spare, key=lambda item: (-item.epoch, item.base, item.end)):
            if not self.is_held(held, one.base, one.end):
                held.add(0, one.base, one.end)
                found.append(one)
        return found

    def coverage(self) -> ArchivedRanges:
        """The ranges that need no archive, as partition 0 of a coverage to which archives are added."""
        held = ArchivedRanges()
        for base, end in self.empty:
            held.add(0, base, end)
        return held

    def is_held(self, held: ArchivedRanges, base: int, end: int) -> bool:
        """Whether readers find a range elsewhere: in `held`, or in intake, which has everything from the
        watermark on.
        """
        # Below the start records are expired. From the watermark on intake has them.
        base, end = max(base, self.start), min(end, self.watermark)
        # One range must contain all of it: `held` merges ranges that touch.
        return base >= end or any(low <= base and end <= high for low, high in held.ranges(0))


@dataclass(frozen=True, slots=True)
class _Either:
    """The keys in either container."""

    one: Container[str]
    other: Container[str]

    def __contains__(self, key: object) -> bool:
        # A view: joining the sets would copy all keys of the ledger for each partition.
        return key in self.one or key in self.other
