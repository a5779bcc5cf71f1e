"""Values in the state of the control log's fold, with the stored form of those that a checkpoint holds whole.

Only the fold changes them. Archives in progress are kept one by one, completed ones as merged ranges and
sums. So the state is as large as the work in progress, not as the history (decision 0045).
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections import ChainMap, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from archiver.events import codec
from archiver.events.types import DataFile, DataWritten
from archiver.ledger.archives import ArchiveFile, Rewrites
from archiver.proto import control_log_pb2
from archiver.proto import control_log_pb2 as pb
from archiver.proto import ledger_state_pb2 as state_pb
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId

# --- Ranges of offsets, earlier watermarks, ingest times


class ArchivedRanges:
    """Disjoint, ordered, non-touching ranges [base, end) per partition.

    One thread changes it while others read. Each change of a partition is one slice assignment, so that
    readers see the ranges before or after it.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, partition: int, base: int, end: int) -> None:
        """Add [base, end); touching or overlapping ranges are merged."""
        ranges = self._ranges.setdefault(partition, [])
        # Left by ends, right by bases: a range that only touches is merged as well.
        first = bisect_left(ranges, base, key=itemgetter(1))
        last = bisect_right(ranges, end, key=itemgetter(0))
        # Otherwise no range touches, and the slice below inserts the new one.
        if first < last:
            base, end = min(base, ranges[first][0]), max(end, ranges[last - 1][1])
        ranges[first:last] = [(base, end)]

    def cut(self, partition: int, at: int) -> None:
        """Remove all offsets from `at` on (a watermark was lowered)."""
        # Without ranges this is a new list, and nothing is changed.
        ranges = self._ranges.get(partition, [])
        first = bisect_right(ranges, at, key=itemgetter(1))
        ranges[first:] = [(base, at) for base, _ in ranges[first : first + 1] if base < at]

    def ranges(self, partition: int) -> tuple[tuple[int, int], ...]:
        """The ranges of one partition, in order."""
        return tuple(self._ranges.get(partition, ()))

    def partitions(self) -> tuple[int, ...]:
        """Partitions with a range, in order."""
        # A copy in one step, because another thread may add a partition.
        return tuple(sorted(partition for partition, ranges in list(self._ranges.items()) if ranges))

    def to_proto(self) -> list[state_pb.Ranges]:
        """The stored form."""
        return [
            state_pb.Ranges(
                partition=number,
                ranges=[control_log_pb2.OffsetRange(base=base, end=end) for base, end in self.ranges(number)],
            )
            for number in self.partitions()
        ]

    def restore(self, message: Iterable[state_pb.Ranges]) -> None:
        """Restore the result of `to_proto` into an empty object."""
        for item in message:
            self._ranges[item.partition] = [(one.base, one.end) for one in item.ranges]


OFFSETS_MAX = 65_536
"""Most offsets per topic, about 6 MB; 163 commits of 400 partitions each."""


class WatermarkHistory:
    """The replaced watermarks of one table, in a bounded memory."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._moves: deque[tuple[int, dict[int, int]]] = deque()
        """(sequence number of the table, partition → the lowest offset of its watermark before)."""
        self._open: dict[int, int] = {}
        """Moves of entries that another entry of the same commit must follow."""
        self._offsets = 0
        self.exact_since = 0
        """From this sequence number on no moves are merged, so the result for it never decreases."""

    def moves(self, partition: int, before: int, to: int) -> None:
        """Record that an entry moves the partition's watermark; `moved` sets the sequence number."""
        # Several entries of one commit may move a partition. The lowest offset before them counts.
        if before != to:
            self._open[partition] = min(before, self._open.get(partition, before))

    def moved(self, sequence_number: int) -> None:
        """Assign that sequence number of the table to all moves since the last call."""
        if not self._open:
            return
        self._moves.append((sequence_number, self._open))
        self._offsets += len(self._open)
        self._open = {}
        # One move always stays, however many partitions it has.
        while self._offsets > self._offsets_max and len(self._moves) > 1:
            self._merge_oldest()

    def lowest(self, partition: int, watermark: int, since_sequence: int) -> int:
        """The lowest watermark of the partition at that sequence number or later; its current one is
        `watermark`.
        """
        # An unfinished move has no number yet, so it counts as newer than every one.
        lowest = min(watermark, self._open.get(partition, watermark))
        for sequence_number, offsets in self._moves:
            if sequence_number > since_sequence:
                lowest = min(lowest, offsets.get(partition, lowest))
        return lowest

    def moves_around(self, sequence_number: int) -> tuple[int, int | None]:
        """The last sequence number at or before that one with a move (0 if none), and the first one
        after it.
        """
        numbers = [number for number, _ in self._moves]
        before = max((number for number in numbers if number <= sequence_number), default=0)
        return before, min((number for number in numbers if number > sequence_number), default=None)

    def _merge_oldest(self) -> None:
        """Merge two moves at the later sequence number, which counts for everything before it."""
        (_, earlier), (sequence_number, later) = self._moves.popleft(), self._moves.popleft()
        # Between the two moves the result is from now on only a lower bound.
        self.exact_since = sequence_number
        merged = dict(later)
        for partition, offset in earlier.items():
            merged[partition] = min(offset, merged.get(partition, offset))
        self._offsets += len(merged) - len(earlier) - len(later)
        self._moves.appendleft((sequence_number, merged))

    def to_proto(self) -> state_pb.Past:
        """The stored form."""
        moves = [_move(sequence_number, offsets) for sequence_number, offsets in self._moves]
        return state_pb.Past(moves=moves, open=_move(0, self._open), exact_since=self.exact_since)

    def restore(self, message: state_pb.Past) -> None:
        """Restore the result of `to_proto` into an empty history."""
        for move in message.moves:
            self._moves.append((move.sequence_number, {item.partition: item.offset for item in move.offsets}))
        self._open = {item.partition: item.offset for item in message.open.offsets}
        self._offsets = sum(len(offsets) for _, offsets in self._moves)
        self.exact_since = message.exact_since


def _move(sequence_number: int, offsets: Mapping[int, int]) -> state_pb.Past.Move:
    stored = [
        control_log_pb2.PartitionOffset(partition=number, offset=offset)
        for number, offset in sorted(offsets.items())
    ]
    return state_pb.Past.Move(sequence_number=sequence_number, offsets=stored)


POINTS_MAX = 512
"""Most pairs per partition, 8 KiB. Retention then advances in steps of at most a 128th of the retention time,
which is six hours for `retention: 30d`."""


class Ages:
    """The ingest times of one topic's archived offsets, in a bounded memory."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._ends: dict[int, array[int]] = {}
        self._times: dict[int, array[int]] = {}

    def add(self, partition: int, end: int, ingest_max_us: int) -> None:
        """Record that no record below `end` was ingested after `ingest_max_us`."""
        ends, times = (
            self._ends.setdefault(partition, array("q")),
            self._times.setdefault(partition, array("q")),
        )
        # A repeated archive, after a refusal or a rollback. Its offsets are covered by the newest pair.
        if ends and end <= ends[-1]:
            return
        ends.append(end)
        # A running maximum: a later pair must not claim that earlier offsets are older than they are.
        times.append(max(ingest_max_us, times[-1] if times else ingest_max_us))
        if len(ends) > self._points_max:
            self._coarsen(partition, ends, times)

    def _coarsen(self, partition: int, ends: array[int], times: array[int]) -> None:
        """Keep the last pair of each time interval."""
        # Aligned powers of two: a pair that is the last of its interval stays so until the intervals grow.
        # Twice the mean distance leaves about half of the pairs, so the next call is far away.
        stretch_us = 1 << ((times[-1] - times[0]) * 2 // self._points_max).bit_length()
        kept = [
            place
            for place, time_us in enumerate(times)
            # The newest pair stays, because `add` compares the next one with it.
            if place == len(times) - 1 or time_us // stretch_us != times[place + 1] // stretch_us
        ]
        self._ends[partition] = array("q", (ends[place] for place in kept))
        self._times[partition] = array("q", (times[place] for place in kept))

    def older_than(self, partition: int, limit_us: int, below: int) -> int:
        """The highest offset, not above `below`, such that every earlier record was ingested before
        `limit_us`; 0 if unknown.
        """
        found = 0
        for end, time_us in zip(self._ends.get(partition, ()), self._times.get(partition, ()), strict=True):
            # Both ends and times ascend, so no later pair can fit.
            if end > below or time_us >= limit_us:
                break
            found = end
        return found

    def forget(self, partition: int, below: int) -> None:
        """Drop pairs for offsets up to `below`, which are no longer requested."""
        ends, times = self._ends.get(partition), self._times.get(partition)
        if ends is None or times is None:
            return
        gone = sum(end <= below for end in ends)
        # The newest pair stays: it decides whether a later pair has new information.
        gone = min(gone, len(ends) - 1)
        del ends[:gone], times[:gone]

    def to_proto(self) -> list[state_pb.Ages]:
        """The stored form."""
        return [
            state_pb.Ages(partition=number, ends=self._ends[number], times_us=self._times[number])
            for number in sorted(self._ends)
        ]

    def restore(self, message: Iterable[state_pb.Ages]) -> None:
        """Restore the result of `to_proto` into an empty object."""
        for item in message:
            self._ends[item.partition], self._times[item.partition] = (
                array("q", item.ends),
                array("q", item.times_us),
            )


# --- Archives, marked objects, topics, rounds


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
            # Decoded late: most entries are resolved before their event is needed, and a start reads many of
            # them.
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
        # A range of gaps has no key, and so no entry here.
        self._pending_ids.pop(archive.key, None)

    def forget_object(self, key: str) -> None:
        """For the fold: remove a deleted object."""
        # Forgetting is safe: the key is of an older epoch, or used up in this one, so it cannot return.
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
        """For the fold: the archives go to that table from here on."""
        # Sequence numbers of another table mean nothing here, so its history of watermarks ends.
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
        # In log order, so a file that starts beyond the chain cannot continue it later.
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
        # A view, not a copy: a topic may have many killed keys, and readers only test membership.
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
