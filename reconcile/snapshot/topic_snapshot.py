"""Defines the plain values that the reconciler compares: all views of one topic.

`collector.py` creates these, `reconcile/findings/` compares them. Partitions and files of the table are those
of the audit (`topic_views.py`).
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
    """A snapshot in the table's history by another writer that reports changed rows. A compaction reports
    none.
    """

    snapshot_id: int
    operation: str
    added: int
    """Rows added minus rows removed, by its summary."""
    rewritten: int = 0
    """Rows that it removed and added again, changed or not."""
    removes: bool = False
    """Whether it also removed rows for good."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table with the configured name, even if it is not the topic's."""

    name: str
    uuid: uuid.UUID
    cluster_id: str | None
    """By its property; None: no archiver created it."""
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
    """Whether our newest commit is no ancestor of the current snapshot, or the catalog is an older copy than
    the ledger. Rule T4 applies."""
    unconfirmed: bool = False
    """Whether its evidence is doubted because expiry has hidden a rollback or a removal of rows."""
    contradiction: str | None = None
    """Why table and ledger cannot both be the newest."""
    landed: tuple[str, ...] = ()
    """Pending or killed keys that are in the table."""
    ahead: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Partition → (ledger, table): watermarks of the table that are not in the ledger yet."""
    external: tuple[ExternalSnapshot, ...] = ()
    schema_fault: str | None = None
    """Why the recorded schema does not fit the table's columns."""
    schema_lacking: bool = False
    """Whether the table lacks columns of the newest recorded schema."""


@dataclass(frozen=True, slots=True)
class PendingArchive:
    """An archive that is in the ledger and not known to be in the table."""

    key: str
    partition: int
    base: int
    end: int
    size: int
    """Bytes of the object, by the ledger."""
    object_size: int | None
    """Bytes of the existing object; None if there is none."""
    altered: str | None = None
    """How the object's bytes differ from the ledger's digest; None if they are equal or were not read."""


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
    """Whether the ledger has archives of the topic."""
    table: TableSnapshot | None = None
    pending: tuple[PendingArchive, ...] = ()
    archives: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """Per partition: the ranges of all archives in the object store."""
    unreferenced: tuple[UnreferencedObject, ...] = ()
    busy: bool = False
    """Whether a leader wrote entries of this topic a moment ago. Work in progress is no finding."""
    moving: bool = False
    """Whether the topic's ledger changed during the collection. Views of different moments are not compared.
    """
    ledger_mark: tuple[object, ...] = ()
    """A value that changes with every ledger entry of the topic, to detect a change during the collection."""
    idle_s: float | None = None
    """Seconds without an entry of the topic while archives wait and another process leads; None otherwise."""
    holder: str | None = None
    """`host:pid` of the holder of the lease."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.view.topic

    def faulty(self, partition: int) -> tuple[Range, ...]:
        """The offsets of our files with a missing or altered object."""
        files = () if self.view.table is None else self.view.table.files
        # Such files have findings of their own; their offsets must not be reported as a gap too.
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
        """Whether the table's rows and the ledger can be compared: a readable table of the topic that was not
        rolled back.
        """
        table = self.table
        return (
            self.view.unreadable is None
            and self.view.absent is None
            and (
                # Without a table (kind parquet) the archives stand for its rows.
                table is None
                or (table.mismatch is None and table.doubt is None and table.contradiction is None)
            )
        )


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """Objects in the data folder that belong to no topic of the log."""

    unknown: tuple[UnreferencedObject, ...] = ()
    """One for each topic id below `archive/` that the log lacks."""
    uploads: tuple[UnreferencedObject, ...] = ()
    """Remains of incomplete uploads."""
    log_ahead: tuple[int, float] | None = None
    """The newest ingest time of the intake log, and the seconds that it is ahead of now. None within the
    allowed skew."""
