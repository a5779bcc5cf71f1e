"""What the reconciler compares of one topic: plain values of all three views.

No judgement and no effect: `collector.py` creates these, `findings/` judges them. Partitions and files of the
table are those of the audit (`topic_views.py`). The rest is needed by the reconciler alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from archiver.objects.paths import Granularity
from archiver.runtime.ids import TopicId
from reconcile.snapshot.offset_coverage import Range, merge
from reconcile.snapshot.topic_views import TopicView


@dataclass(frozen=True, slots=True)
class ExternalSnapshot:
    """A snapshot of the table's history that another writer made and that declares changed rows (a compaction
    declares none).
    """

    snapshot_id: int
    operation: str
    added: int
    """Rows that it brought beyond those that it took, by its summary."""
    rewritten: int = 0
    """Rows that it took and brought again, changed or not."""
    removes: bool = False
    """It also took rows for good."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table with the configured name, also if it is not the topic's."""

    name: str
    uuid: uuid.UUID
    cluster_id: str | None
    """By its property; None: it was not made by an archiver."""
    topic_id: str | None
    format_version: int
    granularity: Granularity | None
    sequence_number: int
    mismatch: str | None = None
    """Why it is not the topic's table as this version writes it (`archiver.catalog.identity`); None if it
    is."""
    doubt: str | None = None
    """Why its evidence cannot be trusted (rule C1)."""
    rolled_back: bool = False
    """Our newest commit is no ancestor of its current snapshot, or the catalog is an older copy than the
    ledger: rule T4 waits."""
    unconfirmed: bool = False
    """Its evidence is doubted because expiry has hidden whether it was rolled back or rows were removed."""
    contradiction: str | None = None
    """Why table and ledger cannot both be the newest."""
    landed: tuple[str, ...] = ()
    """Pending or killed keys that are in the table all the same."""
    ahead: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Partition → (ledger, table): watermarks of the table that the ledger does not record yet."""
    external: tuple[ExternalSnapshot, ...] = ()
    schema_fault: str | None = None
    """Why the recorded schema does not fit the table's columns any more."""
    schema_lacking: bool = False
    """The table lacks columns of the newest recorded schema."""


@dataclass(frozen=True, slots=True)
class PendingArchive:
    """An archive that is in the ledger and, as far as the ledger knows, in no table."""

    key: str
    partition: int
    base: int
    end: int
    size: int
    """Of the object, by the ledger."""
    object_size: int | None
    """Of the object that is there; None if there is none."""
    altered: str | None = None
    """How the object's bytes differ from what the ledger says; None if they do not, or were not read."""


@dataclass(frozen=True, slots=True)
class UnreferencedObject:
    """An object below `archive/` that neither ledger nor any retained snapshot names."""

    key: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """All three views of one topic."""

    view: TopicView
    """As the audit sees it."""
    topic_id: TopicId
    table_name: str | None = None
    """By the configuration; None without a table."""
    granularity: Granularity | None = None
    """By the configuration."""
    known_uuid: uuid.UUID | None = None
    """Of the table, by the ledger."""
    archived: bool = False
    """The ledger knows archives of the topic."""
    table: TableSnapshot | None = None
    pending: tuple[PendingArchive, ...] = ()
    archives: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Per partition: the ranges of all archives that stand in the object store."""
    unreferenced: tuple[UnreferencedObject, ...] = ()
    busy: bool = False
    """Another process, or this one, leads and wrote entries of this topic a moment ago: work under way is no
    finding."""
    moving: bool = False
    """The ledger of the topic changed during the collection. The views are of different moments and are not
    compared."""
    ledger_mark: tuple[object, ...] = ()
    """Changes with every entry of the topic; compared before and after to detect a change of the ledger."""
    idle_s: float | None = None
    """Seconds without a write for the topic, while archives wait and another process holds the lease; None
    otherwise."""
    holder: str | None = None
    """`host:pid` of the holder of the lease."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.view.topic

    def faulty(self, partition: int) -> tuple[Range, ...]:
        """The offsets of our files whose object is gone or differs from the table's entry. They have findings
        of their own.
        """
        files = () if self.view.table is None else self.view.table.files
        return merge(
            (file.key.base, file.key.end)
            for file in files
            if file.key is not None
            and file.key.partition == partition
            and (
                file.unread is not None
                or file.object_size is None
                or file.file_size not in (None, file.object_size)
            )
        )

    @property
    def comparable(self) -> bool:
        """Whether the rows of the table say anything about the ledger: it is the topic's own, could be read,
        and was not set back.
        """
        table = self.table
        return (
            self.view.unreadable is None
            and self.view.absent is None
            and (
                table is None
                or (table.mismatch is None and table.doubt is None and table.contradiction is None)
            )
        )


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """Objects in the data folder that belong to no topic of the log."""

    unknown: tuple[UnreferencedObject, ...] = ()
    """One object for each topic id below `archive/` that the log lacks."""
    uploads: tuple[UnreferencedObject, ...] = ()
    """Left behind by incomplete uploads."""
    log_ahead: tuple[int, float] | None = None
    """The newest ingest time of the intake log, and by how many seconds it is ahead of now, if by more than
    may be."""
