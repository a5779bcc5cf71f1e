"""Values in the state of the control log's fold.

Only the fold changes them. Archives in progress are kept one by one, completed ones as merged ranges and
sums.
"""

from __future__ import annotations

import uuid
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from archiver.events import codec
from archiver.events.types import DataFile, DataWritten
from archiver.ledger.ages import Ages
from archiver.ledger.archived_ranges import ArchivedRanges
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.rewrites import Rewrites
from archiver.ledger.watermark_history import WatermarkHistory
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId

PendingId = tuple[str, int, int]
"""(key, partition, base) of a pending file; ranges of gaps have no key."""


@dataclass(slots=True)
class WrittenEvent:
    """The event of one DATA_WRITTEN entry, decoded on first use: most are never used."""

    index: int
    """The index of the entry, for messages."""
    text: bytes
    datum: bytes
    files: int
    """Number of data files for the entry's archives."""
    _data_files: tuple[DataFile, ...] | None = None

    def data_files(self) -> tuple[DataFile, ...]:
        """The data files in the event; raises `Corrupted` if it is not a DATA_WRITTEN, or lists another
        number of files than the entry.
        """
        if self._data_files is None:
            payload = codec.decode(codec.join(self.text, self.datum)).payload
            if not isinstance(payload, DataWritten) or len(payload.data_files or ()) != self.files:
                raise Corrupted(
                    f"control log entry {self.index}: its event does not describe the {self.files} "
                    "archive files of the entry"
                )
            self._data_files = tuple(payload.data_files or ())
        return self._data_files


@dataclass(frozen=True, slots=True)
class PendingFile:
    """An archive that DATA_WRITTEN made durable and no COMMIT_TO_TABLE has resolved."""

    archive: ArchiveFile
    commit_id: bytes
    """The commit id of the round that wrote it, 16 bytes."""
    table_uuid: uuid.UUID | None
    """Rule T3: the table that the writer last saw."""
    last_sequence_number: int
    """The table's last sequence number at that time."""
    index: int
    """The index of the entry in the control log."""
    event: WrittenEvent | None
    position: int
    """Its position among the event's data files; -1 for a range of gaps."""

    @property
    def data_file(self) -> DataFile | None:
        """The archive's description for the table; None for a range of gaps."""
        if self.event is None or self.position < 0:
            return None
        return self.event.data_files()[self.position]

    @property
    def path(self) -> str | None:
        """The absolute URI of the archive in table metadata; None for a range of gaps."""
        data_file = self.data_file
        return None if data_file is None else data_file.path


@dataclass(frozen=True, slots=True)
class KilledFile:
    """An archive that never enters the table; its object may be deleted by rules D1 and D2."""

    archive: ArchiveFile
    why: str
    index: int
    """The index of the entry that killed it."""


@dataclass(frozen=True, slots=True)
class CondemnedObject:
    """An object that is marked for deletion."""

    index: int
    """The index of the entry that marked it."""
    time_us: int
    """The time of that entry."""
    why: str
    sequence_number: int = 0
    """For an object in a table's folder: the table's sequence number in the ledger at that time. The marking
    leader has recorded the newest one before."""


@dataclass(slots=True)
class Totals:
    """Sums over the completed archives."""

    files: int = 0
    rows: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def add(self, archive: ArchiveFile) -> None:
        """Count one more archive."""
        self.files += 0 if archive.gap_only else 1
        self.rows += archive.rows
        self.raw_bytes += archive.raw_bytes
        self.stored_bytes += archive.size


@dataclass(slots=True)
class TopicLedger:
    """The ledger's state of one topic."""

    topic_id: TopicId
    schemas: dict[int, pb.SchemaChanged] = field(default_factory=dict)
    """Schema entries by version."""
    table_uuid: uuid.UUID | None = None
    snapshot_id: int | None = None
    """The table's last recorded snapshot."""
    sequence_number: int = 0
    """The table's last recorded sequence number."""
    watermarks: dict[int, int] = field(default_factory=dict)
    """Per partition: the table (or, without one, the archives) is complete below this offset."""
    starts: dict[int, int] = field(default_factory=dict)
    """Per partition, the start set by retention: everything below is expired (rule C1). Only rises."""
    ages: Ages = field(default_factory=Ages)
    """Ingest times of archived offsets."""
    past: WatermarkHistory = field(default_factory=WatermarkHistory)
    """The watermarks at earlier sequence numbers of the table."""
    covered: ArchivedRanges = field(default_factory=ArchivedRanges)
    """Committed offsets."""
    passed: ArchivedRanges = field(default_factory=ArchivedRanges)
    """Committed offsets without an archive, because they are only gaps."""
    written_us: int = 0
    """Time of the last entry with archives, or ranges of gaps, of this topic; 0 without one."""
    written_version: int = 0
    """The newest schema version of archives in an entry; 0 without one. Its field ids are in files and
    permanent."""
    committed_us: int = 0
    """Time of the last commit that advanced the table (or, without one, the archives); 0 without one."""
    killed: dict[str, KilledFile] = field(default_factory=dict)
    """By key. A killed key is refused forever."""
    rewrites: Rewrites = field(default_factory=Rewrites)
    """Rewritten archives."""
    totals: Totals = field(default_factory=Totals)
    valid_through_us: int = 0
    """The last tick below which no backlog remained, as of the last commit; 0 if unknown."""
    pending_by_id: dict[PendingId, PendingFile] = field(default_factory=dict)
    """Pending files in log order; changed only by `add_pending` and `drop_pending`."""
    _pending_of: dict[int, dict[PendingId, PendingFile]] = field(default_factory=dict)
    _pending_ids: dict[str, PendingId] = field(default_factory=dict)
    epoch_keys: set[str] = field(default_factory=set)
    """Keys that the current epoch has used. Keys of older epochs cannot be planned again: they contain the
    epoch."""

    @property
    def pending(self) -> tuple[PendingFile, ...]:
        """Pending files in log order; they survive a change of epoch (rule T2)."""
        return tuple(self.pending_by_id.values())

    def add_pending(self, item: PendingFile) -> None:
        """For the fold: add a file after the others."""
        archive = item.archive
        identity = (archive.key, archive.partition, archive.base)
        self.pending_by_id[identity] = item
        self._pending_of.setdefault(archive.partition, {})[identity] = item
        if archive.key:
            self._pending_ids[archive.key] = identity

    def drop_pending(self, item: PendingFile) -> None:
        """For the fold: remove a resolved file."""
        archive = item.archive
        identity = (archive.key, archive.partition, archive.base)
        del self.pending_by_id[identity]
        del self._pending_of[archive.partition][identity]
        self._pending_ids.pop(archive.key, None)

    def forget_object(self, key: str) -> None:
        """For the fold: remove a deleted object. Its key cannot return: it is of an older epoch, or used up
        in this one.
        """
        self.killed.pop(key, None)
        self.rewrites.replaced.pop(key, None)
        self.rewrites.abandoned.pop(key, None)

    def pending_file(self, key: str) -> PendingFile | None:
        """The pending file with that key."""
        identity = self._pending_ids.get(key)
        return None if identity is None else self.pending_by_id[identity]

    def wrote(self, versions: Iterable[int]) -> None:
        """For the fold: note that archives of these schema versions exist."""
        self.written_version = max(self.written_version, *versions, 0)

    def set_table(self, table_uuid: uuid.UUID) -> None:
        """For the fold: the archives go to that table from here on. The snapshot history of another table
        does not apply to it.
        """
        if self.table_uuid not in (None, table_uuid):
            self.past = WatermarkHistory()
        self.table_uuid = table_uuid

    def remains(self) -> list[str]:
        """What exists in addition to the logs: `archives`, `table`, both or nothing."""
        return [
            *(["archives"] if self.totals.files or self.pending_by_id else []),
            *(["table"] if self.table_uuid is not None else []),
        ]

    @property
    def schema_version(self) -> int:
        """The newest version, 0 without one."""
        return max(self.schemas, default=0)

    def watermark(self, partition: int) -> int:
        """The partition's watermark, not below its start (rule C1); 0 if nothing was ever recorded."""
        return max(self.watermarks.get(partition, 0), self.starts.get(partition, 0))

    def start(self, partition: int) -> int:
        """The first offset that retention has kept; 0 without retention."""
        return self.starts.get(partition, 0)

    def planned_to(self, partition: int) -> int:
        """Where the next plan starts: the end of the pending chain, else the watermark (rule P1)."""
        at = self.watermark(partition)
        for item in self._pending_of.get(partition, {}).values():
            if item.archive.base <= at:
                at = max(at, item.archive.end)
        return at

    def knows(self, key: str) -> bool:
        """Whether a plan for that key needs a new epoch first (rule P2: a path is used once)."""
        return (
            key in self.epoch_keys
            or key in self.killed
            or key in self._pending_ids
            or self.rewrites.knows(key)
        )

    @property
    def unread(self) -> Mapping[str, object]:
        """Keys of archives that readers must skip if other archives hold the same records: they may be
        deleted. Killed archives without such others stay and are read (`archiver.ledger.archive_visibility`).
        """
        return ChainMap[str, Any](self.killed, self.rewrites.replaced, self.rewrites.abandoned)


@dataclass(slots=True)
class RoundView:
    """One archiving round in the log."""

    commit_id: bytes
    epoch: int
    index: int
    started_us: int
    state: str = "started"
    """started, written, settled; abandoned: another leader followed."""
    files: int = 0
    rows: int = 0
    committed: int = 0
    killed: int = 0
    settled_us: int | None = None
    topics: set[TopicId] = field(default_factory=set)
    moved: dict[TopicId, dict[int, int]] = field(default_factory=dict)
    """Partitions with archives written by the round, with their newest ingest time; kept until the round
    ends."""

    def to_json(self) -> Mapping[str, object]:
        """The JSON of `ledger` on the command line."""
        return {
            "commit_id": str(uuid.UUID(bytes=self.commit_id)),
            "epoch": self.epoch,
            "index": self.index,
            "started_us": self.started_us,
            "settled_us": self.settled_us,
            "state": self.state,
            "files": self.files,
            "rows": self.rows,
            "committed": self.committed,
            "killed": self.killed,
            "topics": sorted(self.topics),
        }
