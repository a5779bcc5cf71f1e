"""What the audit looks at: log, ledger and table of one topic as plain values.

Owns no judgement and no effect: `observe.py` makes these, `judge.py` judges them. Ranges are [low, high).
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
    """First offset that retention has left."""
    stable: int
    """Nothing at or beyond it may be archived."""
    next: int
    """The offset the next record will get."""
    watermark: int
    """The ledger's: archived without a hole up to here."""
    pending: tuple[Range, ...] = ()
    """Ranges that the ledger has written and not yet seen in the table."""
    lost: tuple[Lost, ...] = ()
    """What was sent and can neither be archived nor read any more."""
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
    """What rows show and no list of offsets can say."""

    partition: int | None
    """None: whatever partitions the file can hold rows of."""
    why: str
    unclear: bool = False
    """It keeps us from telling; else it is wrong."""


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
    """What its path says, if that is the path of an archive of this topic; None for a file that somebody else
    wrote."""
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
    """A file of somebody else that hides rows."""

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
    """Rows of files of another writer in one partition, of which something is to be said."""

    ranges: tuple[Range, ...]
    snapshot_id: int
    """That added the files."""
    why: str = ""
    """Why it is not known whether they are as they were archived; empty: they are not."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A snapshot of somebody else that took rows away, or several that are expired and counted together."""

    snapshot_id: int
    """Of several the newest."""
    rows: int
    """How many fewer than before in data files, by the snapshot's summary."""
    hidden: int = 0
    """How many more it hid behind position-delete files; fewer than none where it took such files away."""
    below: Mapping[int, int] | None = None
    """Per partition, where the table ended then: it took nothing from there on. None if the ledger does not
    know."""
    expired: tuple[int, ...] = ()
    """Their ids, oldest first, if the table only tells of them in a property; of many the newest."""


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
    """Rows that snapshots of somebody else added, expired or not; a removal may be of them."""
    added_by: tuple[tuple[int, int], ...] = ()
    """(newest id, rows) of those that are expired."""
    untold: str | None = None
    """Why it is not known what expired snapshots of somebody else changed; `removals` and `additions` are of
    the retained ones alone."""
    has_deletes: bool = False
    """The snapshot holds delete files, and which rows they hide is not known: the counts of data files are
    upper bounds."""
    hidden: tuple[HiddenRows, ...] = ()
    """Those delete files, where the manifests were read for them."""
    spans: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Offsets per partition in the files of somebody else, as read, all files together …"""
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
    """Everything the audit knows of one topic."""

    topic: str
    topic_id: TopicId | None
    """None if nothing tells it: a topic that the intake log has lost."""
    kind: Kind
    partitions: tuple[PartitionView, ...]
    """Those that were asked for."""
    table: TableState | None = None
    """None if there is no table, or none that is this topic's own; `absent` says why where rows should be."""
    absent: str | None = None
    unreadable: str | None = None
    """Why the table could not be looked at; then nothing can be told."""
    count: int | None = None
    """How many partitions the topic has; None: as many as are viewed."""
    by_rows: bool = False
    """Every row was to be looked at."""
    stray: bool = False
    """The topic is only known by what lies in the data folder."""
