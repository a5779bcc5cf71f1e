"""What the audit judges: log, ledger and table of one topic as plain values.

No judgement and no effect: `observer.py` creates these, `reconcile/audit/` judges them. Ranges are [low,
high).
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
    """Stable offsets [low, high) that no archive holds and whose intake file is not there as the log says."""

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
    """Nothing at or beyond it may be archived."""
    next: int
    """The offset the next record will get."""
    watermark: int
    """The ledger's: archived without a hole up to here."""
    pending: tuple[Range, ...] = ()
    """Ranges that the ledger has written and not yet seen in the table."""
    lost: tuple[Lost, ...] = ()
    """Records that were acknowledged and can neither be archived nor read any more."""
    doubts: tuple[str, ...] = ()
    """Why log and data folder do not seem to belong together."""
    gaps: tuple[Range, ...] | None = ()
    """Offsets below `next` that hold no record, by the intake log: of aborted transactions. None if the log
    could not tell."""
    passed: tuple[Range, ...] = ()
    """Ranges that count as archived without an archive, because the ledger took them in as nothing but
    gaps."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault that rows show and lists of offsets do not."""

    partition: int | None
    """None: any partition that the file can hold rows of."""
    why: str
    unclear: bool = False
    """It prevents a verdict; otherwise it is a fault."""


@dataclass(frozen=True, slots=True)
class FileView:
    """One data file of a table's current snapshot (or, without a table, one archive)."""

    path: str
    """As the table names it."""
    record_count: int
    """As the table says."""
    file_size: int | None
    """Bytes, as the table says; None if it does not."""
    object_size: int | None
    """Bytes of the object; None if there is none."""
    key: ArchiveKey | None = None
    """Parsed from its path, if that is the path of an archive of this topic; None for a file of another
    writer."""
    offset_min: int | None = None
    offset_max: int | None = None
    """Bounds of kafka.offset, both inclusive; None where the table has none."""
    partition_min: int | None = None
    partition_max: int | None = None
    """Bounds of kafka.partition."""
    gaps: tuple[Range, ...] = ()
    """Offsets of the key's range that hold no record, by the file's own footer."""
    rows: Mapping[int, tuple[Range, ...]] | None = None
    """Offsets per partition as read from the file's rows (a range for each run; doubled offsets twice); None
    if they were not read."""
    unread: str | None = None
    """Why the rows were not read, though they had to be."""
    rows_in_file: int | None = None
    """Number of rows by the file's own footer; None if it was not read."""
    part: Range | None = None
    """Of an archive without a table: the part of its range that a reader takes from it. None: all of it."""
    partition: tuple[object, ...] = ()
    """The partition tuple, as the table says."""
    removed: Mapping[int, tuple[Range, ...]] | None = None
    """Offsets per partition of rows that delete files hide, as read; they are not in `rows`."""
    faults: tuple[RowFault, ...] = ()
    snapshot_id: int = 0
    """That added it to the table."""
    sequence_number: int = 0
    """Of that snapshot, for the rules by which delete files apply."""


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """A delete file of another writer."""

    path: str
    size: int
    readable: bool
    """It hides positions, in Parquet; equality deletes and deletion vectors are not understood here."""
    snapshot_id: int
    """That added it."""
    sequence_number: int = 0
    equality: bool = False
    """It hides rows by their values, in data files of lower sequence numbers only; else also in those of its
    own."""


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Rows in another writer's files of one partition that differ from the archives, or may differ."""

    ranges: tuple[Range, ...]
    snapshot_id: int
    """That added the files."""
    why: str = ""
    """Why it is unknown whether they equal the archived rows; empty: they differ."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A snapshot of another writer that removed rows, or several that are expired and counted together."""

    snapshot_id: int
    """Of several the newest."""
    rows: int
    """How many fewer than before in data files, by the snapshot's summary."""
    hidden: int = 0
    """How many more it hid behind position-delete files; negative where it removed such files."""
    below: Mapping[int, int] | None = None
    """Per partition, where the table ended then: it removed nothing from there on. None if the ledger lacks
    it."""
    expired: tuple[int, ...] = ()
    """Their ids, oldest first, if only a table property records them; of many the newest."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A topic's table as its current snapshot is."""

    name: str
    snapshot_id: int | None
    watermarks: Mapping[int, int] | None
    """By the table's own evidence (protocol rule C1); None if that cannot be trusted."""
    doubt: str | None = None
    """Why the evidence cannot be trusted."""
    files: tuple[FileView, ...] = ()
    removals: tuple[Removal, ...] = ()
    additions: int = 0
    """Rows that snapshots of other writers added, expired or not. A removal may be of them."""
    added_by: tuple[tuple[int, int], ...] = ()
    """(newest id, rows) of those that are expired."""
    changes_unknown: str | None = None
    """Why the changes of other writers' expired snapshots are unknown. Then `removals` and `additions` are of
    the retained ones alone."""
    has_deletes: bool = False
    """The snapshot holds delete files, and which rows they hide is not known: the counts of data files are
    upper bounds."""
    hidden: tuple[HiddenRows, ...] = ()
    """Those delete files, where the manifests were read for them."""
    spans: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Offsets per partition in files of other writers, as read, all files together …"""
    removed: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """… and those of them that delete files hide."""
    removed_by: tuple[int, ...] = ()
    """Snapshots whose delete files hide rows."""
    faults: tuple[RowFault, ...] = ()
    """Of what is between files."""
    rewritten: Mapping[int, tuple[RewrittenRows, ...]] = field(default_factory=dict)
    """Per partition: rows of other writers' files that are not those of our archives, or could not be
    compared with them."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """Everything that the audit uses of one topic."""

    topic: str
    topic_id: TopicId | None
    """None if it is unknown: a topic that the intake log has lost."""
    kind: Kind
    partitions: tuple[PartitionView, ...]
    """Those that were asked for."""
    table: TableState | None = None
    """None if there is no table, or none that is this topic's own; `absent` says why where rows should be."""
    absent: str | None = None
    unreadable: str | None = None
    """Why the table could not be read. Then there is no verdict."""
    count: int | None = None
    """How many partitions the topic has; None: as many as are viewed."""
    by_rows: bool = False
    """Every row had to be read."""
    stray: bool = False
    """The topic is only known by what lies in the data folder."""
