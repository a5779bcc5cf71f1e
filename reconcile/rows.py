"""What the deep audit asks of whoever reads rows, and what it is told: plain values that travel to workers and back.

Owns no judgement and no effect. Promises that what comes back grows with the number of runs of offsets, never with the number of rows.
Ranges are [low, high); times are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver.objects.paths import ArchiveKey
from archiver.schema.state import TopicSchema
from intake.segments import SegmentRef
from reconcile.coverage import Range


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows whose offsets follow each other without a hole."""

    low: int
    high: int
    low_us: int
    """Ingest time of the first …"""
    high_us: int
    """… and of the last of them."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """One data file whose rows are to be read."""

    uri: str
    size: int
    """Bytes."""
    key: ArchiveKey | None = None
    """What the path of an archive of ours says; None for a file of somebody else, of which only the coordinates are read."""
    rows: int = 0
    """By its own footer."""
    row_bytes: int = 0
    """Of a row in memory, on average, by its own footer."""
    schema_version: int = 0
    hidden: tuple[Range, ...] = ()
    """Positions of rows that delete files hide; merged."""


@dataclass(slots=True)
class FileRows:
    """What the rows of one archive of ours are."""

    uri: str
    rows: int = 0
    """Read; fewer than there are, if the file could not be read to its end."""
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """Per partition, in the order of the file, without what is hidden."""
    removed: dict[int, list[Range]] = field(default_factory=dict)
    """Offsets of the hidden rows."""
    disorder: tuple[int, int] | None = None
    """The first offset that does not come behind the one before it, and that one."""
    backwards: tuple[int, int, int] | None = None
    """The first offset whose ingest time lies before that of the row before it, and both times."""
    misplaced: int | None = None
    """The first offset whose ingest time is not of the day (hour, month) in the file's path."""
    digest: bytes | None = None
    """Of the records that the rows give, if they can be rebuilt."""
    trouble: str | None = None
    """Why they cannot."""


@dataclass(slots=True)
class ForeignRows:
    """What the rows of all files of somebody else are, together: nobody says in which order they stand in which file."""

    counts: dict[str, int] = field(default_factory=dict)
    """Rows per file, by uri."""
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """Per partition, by offset. An offset that is there twice is in two of them."""
    removed: dict[int, list[Range]] = field(default_factory=dict)
    backwards: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    trouble: str | None = None
    """Why they could not be read."""


@dataclass(frozen=True, slots=True)
class IntakeRange:
    """An archive's offsets as they stand in intake files."""

    uri: str
    """Of the archive."""
    base: int
    end: int
    segments: tuple[SegmentRef, ...]
    """In offset order; they hold every offset of the range that is no gap."""
    gaps: tuple[Range, ...]


class RowReader(Protocol):
    """Reads rows, many files at a time. What cannot be read is told in the results; `RetryLater` if nothing can be read at all."""

    def positions(self, files: Sequence[RowFile]) -> Mapping[str, tuple[Range, ...]]:
        """Which positions these position-delete files hide, by the path of the data file as they spell it. Raises `RetryLater` if one of
        them cannot be read.
        """

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """Of archives of one topic and schema version. A file that is not in the answer could not be read at all."""

    def foreign(self, files: Sequence[RowFile]) -> ForeignRows:
        """Of files of somebody else."""

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """The digests of the records that stand in intake, by the archive's uri; of what cannot be read, none."""
