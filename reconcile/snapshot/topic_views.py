"""Defines the plain values that the audit judges: log, ledger and table of one topic.

`observer.py` creates these, `reconcile/audit/` judges them. Ranges are [low, high).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from reconcile.snapshot.offset_coverage import Range

Kind = Literal["none", "parquet", "iceberg"]


@dataclass(frozen=True, slots=True)
class Lost:
    """Stable offsets [low, high) that no archive holds, with an intake file that is missing or altered."""

    low: int
    high: int
    why: str
    """Which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One topic partition according to the intake log and the ledger."""

    partition: int
    start: int
    """First offset that retention keeps."""
    stable: int
    """Only offsets below it may be archived."""
    next: int
    """The offset of the next record."""
    watermark: int
    """By the ledger: archived without a hole up to this offset."""
    pending: tuple[Range, ...] = ()
    """Ranges of archives that are in the ledger and not known to be in the table."""
    lost: tuple[Lost, ...] = ()
    """Acknowledged records that can neither be archived nor read any more."""
    doubts: tuple[str, ...] = ()
    """Reasons to doubt that log and data folder belong together."""
    gaps: tuple[Range, ...] | None = ()
    """Offsets below `next` without a record, by the intake log: of aborted transactions. None if the log is
    unreadable."""
    passed: tuple[Range, ...] = ()
    """Ranges that count as archived without an archive, because the ledger has them as gaps only."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault that is visible in rows and not in lists of offsets."""

    partition: int | None
    """None: any partition whose rows the file may hold."""
    why: str
    unclear: bool = False
    """Whether it prevents a verdict; otherwise it makes the verdict invalid."""


@dataclass(frozen=True, slots=True)
class FileView:
    """One data file of a table's current snapshot (or, without a table, one archive)."""

    path: str
    """As in the table's metadata."""
    record_count: int
    """By the table's metadata."""
    file_size: int | None
    """Bytes, by the table's metadata; None if it has no size."""
    object_size: int | None
    """Bytes of the object; None if the object is missing."""
    key: ArchiveKey | None = None
    """Parsed from the path of an archive of this topic; None for a file of another writer."""
    offset_min: int | None = None
    offset_max: int | None = None
    """Bounds of kafka.offset, both inclusive; None where the table has none."""
    partition_min: int | None = None
    partition_max: int | None = None
    """Bounds of kafka.partition."""
    gaps: tuple[Range, ...] = ()
    """Offsets of the key's range without a record, by the file's own footer."""
    rows: Mapping[int, tuple[Range, ...]] | None = None
    """Offsets per partition in the file's rows: one range per run, a duplicate offset in two. None if they
    were not read."""
    unread: str | None = None
    """Why required rows were not read."""
    rows_in_file: int | None = None
    """Number of rows by the file's own footer; None if it was not read."""
    part: Range | None = None
    """Of an archive without a table: the part of its range that readers use. None: all of it."""
    partition: tuple[object, ...] = ()
    """The partition tuple, by the table's metadata."""
    removed: Mapping[int, tuple[Range, ...]] | None = None
    """Offsets per partition of rows that delete files hide, as read; they are not in `rows`."""
    faults: tuple[RowFault, ...] = ()
    snapshot_id: int = 0
    """The snapshot that added it to the table."""
    sequence_number: int = 0
    """Of that snapshot. It decides which delete files apply."""


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """A delete file of another writer."""

    path: str
    size: int
    readable: bool
    """Whether it hides positions, in Parquet. Equality deletes and deletion vectors are not supported."""
    snapshot_id: int
    """The snapshot that added it."""
    sequence_number: int = 0
    equality: bool = False
    """Whether it hides rows by value, in data files of lower sequence numbers. Position deletes also hide
    rows in files of their own number."""


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Rows in another writer's files of one partition that differ from the archives, or may differ."""

    ranges: tuple[Range, ...]
    snapshot_id: int
    """The snapshot that added the files."""
    why: str = ""
    """Why it is unknown whether they equal the archived rows; empty: they differ."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A snapshot of another writer that removed rows, or several expired ones that are counted together."""

    snapshot_id: int
    """Of several the newest."""
    rows: int
    """By how many the rows in data files decreased, by the snapshot's summary."""
    hidden: int = 0
    """How many more rows position-delete files hide; negative if such files were removed."""
    below: Mapping[int, int] | None = None
    """Per partition, the table's end at that time: it removed nothing beyond. None if the ledger lacks it."""
    expired: tuple[int, ...] = ()
    """Their ids, oldest first, if only a table property records them; of many only the newest."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A topic's table at its current snapshot."""

    name: str
    snapshot_id: int | None
    watermarks: Mapping[int, int] | None
    """By the table's own evidence (rule C1); None if that cannot be trusted."""
    doubt: str | None = None
    """Why the evidence cannot be trusted."""
    files: tuple[FileView, ...] = ()
    removals: tuple[Removal, ...] = ()
    additions: int = 0
    """Rows that snapshots of other writers added, expired or not. A removal may concern them."""
    added_by: tuple[tuple[int, int], ...] = ()
    """(newest id, rows) of those that are expired."""
    changes_unknown: str | None = None
    """Why the changes of other writers' expired snapshots are unknown. `removals` and `additions` then cover
    retained ones only."""
    has_deletes: bool = False
    """Whether the snapshot has delete files that hide unknown rows. Row counts of data files are then upper
    bounds."""
    hidden: tuple[HiddenRows, ...] = ()
    """Those delete files, if the manifests were read for them."""
    spans: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Offsets per partition in the rows of other writers' files, all files together, without hidden rows."""
    removed: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Offsets per partition of the rows of those files that delete files hide."""
    removed_by: tuple[int, ...] = ()
    """Snapshots whose delete files hide rows."""
    faults: tuple[RowFault, ...] = ()
    """Faults between files."""
    rewritten: Mapping[int, tuple[RewrittenRows, ...]] = field(default_factory=dict)
    """Per partition: rows of other writers' files that differ from the archives, or could not be compared."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """Everything that the audit needs of one topic."""

    topic: str
    topic_id: TopicId | None
    """None if it is unknown: the intake log has lost the topic."""
    kind: Kind
    partitions: tuple[PartitionView, ...]
    """The partitions in the scope."""
    table: TableState | None = None
    """None if the topic has no table of its own; `absent` says why, if it should have one."""
    absent: str | None = None
    unreadable: str | None = None
    """Why the table could not be read; then the verdict is unknown."""
    count: int | None = None
    """The number of the topic's partitions; None: as many as are viewed."""
    by_rows: bool = False
    """Whether every row had to be read (deep audit)."""
    stray: bool = False
    """Whether only objects in the data folder show the topic."""
