"""What the deep audit asks of whoever reads rows, and what it is told: plain values that travel to workers
and back.

Owns no judgement and no effect. Promises that what comes back grows with the number of runs of offsets, never
with the number of rows. Ranges are [low, high); times are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver.objects.paths import ArchiveKey
from archiver.schema.evolution.state import TopicSchema
from intake.segments import SegmentRef
from reconcile.snapshot.offset_coverage import Range


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
class Coordinates:
    """Field ids of the columns that say which record a row is."""

    kafka: int
    partition: int
    offset: int
    ingest_timestamp: int


@dataclass(frozen=True, slots=True)
class RowFile:
    """One data file whose rows are to be read."""

    uri: str
    size: int
    """Bytes."""
    key: ArchiveKey | None = None
    """What the path of an archive of ours says; None for a file of somebody else, of which only the
    coordinates are read."""
    rows: int = 0
    """By its own footer."""
    row_bytes: int = 0
    """Of a row in memory, on average, by its own footer."""
    schema_version: int = 0
    hidden: tuple[Range, ...] = ()
    """Positions of rows that delete files hide; merged."""
    offsets: tuple[Range, ...] | None = None
    """Only rows with these offsets are compared; None: all."""
    origin: int = 0
    """A number by which the results of a comparison say which file, or which of several alike, a row came
    from."""
    extent: tuple[int, int, int, int] | None = None
    """The lowest and highest partition and offset that the table's metadata promises, all inclusive; None if
    it says nothing."""
    coordinates: Coordinates | None = None
    """Of a file of another writer: the columns that must be its coordinates; None: no schema is recorded to
    compare it with."""


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
    """What the rows of all files of somebody else are, together: nobody says in which order they stand in
    which file.
    """

    counts: dict[str, int] = field(default_factory=dict)
    """Rows per file, by uri."""
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """Per partition, by offset. An offset that is there twice is in two of them."""
    removed: dict[int, list[Range]] = field(default_factory=dict)
    backwards: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    trouble: str | None = None
    """Why they could not be read."""


@dataclass(slots=True)
class Compared:
    """How the rows of other writers' files compare with the rows of our archives. Offsets by `RowFile.origin`
    and partition.
    """

    altered: dict[tuple[int, int], list[Range]] = field(default_factory=dict)
    """An archive has the offset, and none of the archives that have it has such a row."""
    alone: dict[tuple[int, int], list[Range]] = field(default_factory=dict)
    """No archive was given that has the offset."""
    trouble: str | None = None
    """Why the rows could not be compared."""


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
    """Reads rows, many files at a time. What cannot be read is told in the results; `RetryLater` if nothing
    can be read at all.
    """

    def positions(self, files: Sequence[RowFile]) -> Mapping[tuple[str, int], tuple[Range, ...]]:
        """Which positions these position-delete files name, by the path of the data file as they spell it and
        by `RowFile.origin`. Raises `RetryLater` if one of them cannot be read.
        """

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """Of archives of one topic and schema version. A file that is not in the answer could not be read at
        all.
        """

    def foreign(self, files: Sequence[RowFile]) -> ForeignRows:
        """Of files of somebody else."""

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        """Every visible row of `files`, which other writers made, compared with the rows of `archives` at the
        same offsets.

        `versions` are the recorded schemas, the oldest first. Rows are the same if all columns of the newest
        schema are; with `records`, if the columns give the same record under one of the versions.
        """

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """The digests of the records that stand in intake, by the archive's uri; of what cannot be read,
        none.
        """
