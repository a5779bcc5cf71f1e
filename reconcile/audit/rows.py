"""Defines the requests and results of the row reader in the deep audit.

They are plain values that travel to workers and back. Results grow with the number of runs of offsets, never
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
    """Rows with consecutive offsets."""

    low: int
    high: int
    low_us: int
    """Ingest time of the first row."""
    high_us: int
    """Ingest time of the last row."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Field ids of the columns that identify the record of a row."""

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
    # Decides how the file is read: archives by footer and schema version, other files by columns.
    key: ArchiveKey | None = None
    """The parsed path of an archive; None for a file of another writer, of which only the coordinates are
    read."""
    rows: int = 0
    """From its own footer."""
    row_bytes: int = 0
    """Average size of a row in memory, from its own footer."""
    schema_version: int = 0
    digest_version: int | None = None
    """The format of the digest in an archive's footer; None for a file of another writer."""
    # Positions and not offsets: that is what position-delete files contain.
    hidden: tuple[Range, ...] = ()
    """Positions of rows that delete files hide; merged."""
    offsets: tuple[Range, ...] | None = None
    """Only rows with these offsets are compared; None: all."""
    origin: int = 0
    """A number that identifies the file, or a group of equal files, in the results of a comparison."""
    extent: tuple[int, int, int, int] | None = None
    """The lowest and highest partition and offset in the table's metadata, all inclusive; None if it has
    none."""
    coordinates: Coordinates | None = None
    """For a file of another writer: its required coordinate columns. None: no schema is recorded for the
    check."""


@dataclass(slots=True)
class FileRows:
    """The rows of one archive."""

    uri: str
    rows: int = 0
    """Rows read; fewer than exist if the file is not readable to its end."""
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """Per partition, in file order, without hidden rows."""
    removed: dict[int, list[Range]] = field(default_factory=dict)
    """Offsets of the hidden rows."""
    disorder: tuple[int, int] | None = None
    """The first offset that is not greater than the previous one, and the previous one."""
    backwards: tuple[int, int, int] | None = None
    """The first offset whose ingest time is before that of the previous row, and both times."""
    misplaced: int | None = None
    """The first offset whose ingest time is not in the day (hour, month) of the file's path."""
    digest: bytes | None = None
    """The digest of the rebuilt records."""
    trouble: str | None = None
    """Why they could not be rebuilt."""


@dataclass(slots=True)
class ExternalRows:
    """The rows of all files of other writers together: their order across and within files is unknown."""

    counts: dict[str, int] = field(default_factory=dict)
    """Rows per file, by uri."""
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """Per partition, by offset. A duplicate offset is in two of them."""
    removed: dict[int, list[Range]] = field(default_factory=dict)
    backwards: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    trouble: str | None = None
    """Why they could not be read."""


@dataclass(slots=True)
class Compared:
    """The result of comparing other writers' rows with archive rows. Offsets by `RowFile.origin` and
    partition.
    """

    altered: dict[tuple[int, int], list[Range]] = field(default_factory=dict)
    """An archive has the offset, but no archive has an equal row."""
    alone: dict[tuple[int, int], list[Range]] = field(default_factory=dict)
    """No given archive has the offset."""
    trouble: str | None = None
    """Why the rows could not be compared."""


@dataclass(frozen=True, slots=True)
class IntakeRange:
    """The offsets of an archive in intake files."""

    uri: str
    """The uri of the archive."""
    base: int
    end: int
    segments: tuple[SegmentRef, ...]
    """In offset order; they hold every offset of the range except gaps."""
    gaps: tuple[Range, ...]
    digest_version: int
    """The format of the digest in the archive's footer."""


# A protocol, because the rules are tested without Spark.
class RowReader(Protocol):
    """Reads rows of many files at a time. The results report unreadable files; `RetryLater` if nothing is
    readable.
    """

    def positions(self, files: Sequence[RowFile]) -> Mapping[tuple[str, int], tuple[Range, ...]]:
        """The positions in these position-delete files, by the data file's path as they spell it and by
        `RowFile.origin`. Raises `RetryLater` if one is unreadable.
        """

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        """Rows of archives of one topic and schema version. A file that is missing in the result is
        unreadable.
        """

    def external(self, files: Sequence[RowFile]) -> ExternalRows:
        """Rows of files of other writers."""

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        """Compare every visible row of `files` of other writers with the rows of `archives` at the same
        offsets.

        `versions` are the recorded schemas, oldest first. Rows are equal if all columns of the newest schema
        are. With `records`, they are equal if the columns give the same record under one of the versions.
        """

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        """The digests of the records in intake, by the archive's uri; none for unreadable ranges."""
