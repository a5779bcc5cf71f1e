"""Collects the facts about one record from intake log, intake file, ledger, archive and table.

It reads one row group of intake and the footer of one archive. Of data files that may have the record it
reads only the partition and offset columns. It never writes, and a source that cannot be read is a fact, not
an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.catalog.external_changes import is_external_removal, read_expired, unretired
from archiver.catalog.table_layout import COMMIT_ID, RANGES, REPLAYED
from archiver.catalog.tables import LiveFile, SnapshotView, Tables, TableView, parse_identifier
from archiver.config.settings import Settings, TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.log.store import Log
from archiver.objects.path_normalization import key_of
from archiver.objects.paths import PARTITION_MAX
from archiver.objects.store import ObjectStore
from archiver.publish.progress import HeldBack
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, InvalidInput, NotFound, RetryLater
from archiver.runtime.ids import TopicPartition
from archiver.status.explain import (
    ArchiveSight,
    Facts,
    FileSight,
    IntakeSight,
    ProducerSight,
    SnapshotSight,
    TableSight,
)
from archiver.status.reasons import Held, reason_of
from archiver.stream.archives import FoundArchive, check_footer, find_archives
from archiver.stream.seal import check_seal
from intake.log.aborted import Aborted, aborted_by
from intake.log.backlog import Backlog
from intake.log.checkpoint import CheckpointStore
from intake.log.entries import parse_entry
from intake.log.fold import TopicState
from intake.log.transactions import OpenTransaction
from intake.parquet_footer import read_unverified_metadata
from intake.read.reader import IntakeReader
from intake.segments import SegmentRef
from reconcile.snapshot.retention_floor import RetentionFloorReader

FILES_READ_MAX = 64
"""Data files that are read at most. Without external compaction one file has the record."""
# Digits of the largest 64-bit offset; longer text would take time to convert.
_OFFSET_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class Tracer:
    """Dependencies of the collection."""

    settings: Settings
    cluster_id: str
    objects: ObjectStore
    intake_log: Log
    tables: Callable[[str], Tables]
    lines: RetentionFloorReader
    clock: Clock
    stuck: str | None = None
    """Why the last round of a daemon halted or deferred the topic."""

    def facts(
        self, ledger: LedgerFold, intake: Backlog, topic: TopicState, partition: int, offset: int
    ) -> Facts:
        """All facts about one offset.

        `ledger` was read before `intake`. Raises `NotFound` if there is no such partition, `InvalidInput` for
        a negative offset.
        """
        # Ledger, then intake, then the table: a state that moves on is then never taken for a fault.
        tp = (topic.topic_id, partition)
        # First, because it raises for a partition that does not exist.
        following = intake.next_offset(tp)
        if offset < 0:
            raise InvalidInput(f"offset {offset} is negative; offsets begin at 0")
        return _Collection(self, ledger, intake, topic, tp, offset, following).facts()


class _Collection:
    """Collects the facts about one offset."""

    def __init__(
        self,
        tracer: Tracer,
        ledger: LedgerFold,
        intake: Backlog,
        topic: TopicState,
        tp: TopicPartition,
        offset: int,
        following: int,
    ) -> None:
        self._tracer = tracer
        self._objects = tracer.objects
        self._intake = intake
        self._topic = topic
        self._tp = tp
        self._offset = offset
        self._next = following
        self._condemned = ledger.condemned
        self._ledger: TopicLedger = ledger.topic(topic.topic_id)
        self._settings: TopicSettings | None = tracer.settings.topic(topic.name)
        self._unread: ArchiverError | None = None

    def facts(self) -> Facts:
        partition = self._tp[1]
        # An offset that does not exist yet has nothing to read.
        there = self._offset < self._next
        transaction = self._transaction() if there else None
        segment = self._segment() if there else None
        # An offset without a segment is a gap, or its entry cannot be read.
        gap = there and segment is None and self._is_gap()
        archived = there and not gap
        halted = self._halted()
        table, no_table = self._table() if there else (None, None)
        stable = self._intake.stable_offset(self._tp)
        return Facts(
            topic=self._topic.name,
            topic_id=self._topic.topic_id,
            partition=partition,
            offset=self._offset,
            kind="unconfigured" if self._settings is None else self._settings.archive.kind,
            next=self._next,
            stable=stable,
            watermark=self._ledger.watermark(partition),
            written=self._ledger.planned_to(partition),
            start=self._ledger.start(partition),
            deleted_below=self._intake.deleted_below(self._tp),
            transaction=None if transaction is None else self._held(transaction, stable),
            own=transaction is not None and self._is_in(transaction),
            gap=gap,
            aborted=self._aborted() if gap else None,
            unread=None if self._unread is None else str(self._unread),
            intake=None if segment is None else self._intake_sight(segment),
            archive=self._archive() if archived else None,
            table=table,
            no_table=no_table,
            reason=self._reason(stable, halted)
            # A committed record is not held back.
            if there and self._offset >= self._ledger.watermark(partition)
            else None,
            halted=halted,
        )

    # the intake log

    def _is_in(self, transaction: OpenTransaction) -> bool:
        return any(low <= self._offset < high for low, high in transaction.ranges.get(self._tp, ()))

    def _transaction(self) -> OpenTransaction | None:
        """The open transaction that the offset belongs to, else the one it waits for."""
        own = next((one for one in self._intake.fold.transactions if self._is_in(one)), None)
        # Of several open transactions the oldest one sets the stable offset.
        return own or (
            self._intake.blocking(self._tp) if self._offset >= self._intake.stable_offset(self._tp) else None
        )

    def _held(self, one: OpenTransaction, stable: int) -> HeldBack:
        return HeldBack(
            one.transactional_id,
            one.producer_id,
            one.epoch,
            one.started_us,
            one.deadline_us,
            self._next - stable,
        )

    def _segment(self) -> SegmentRef | None:
        try:
            # Only the first segment is used, so the smallest limit is enough.
            found = self._intake.segments(self._tp, self._offset, bytes_max=1)
        except ArchiverError as error:
            self._unread = error
            return None
        # The first segment may begin behind the offset, which is then a gap.
        return found[0] if found and found[0].base <= self._offset else None

    def _is_gap(self) -> bool:
        # Without the history file, the ledger still has the gaps that archiving passed.
        if self._unread is not None:
            return any(low <= self._offset < high for low, high in self._ledger.passed.ranges(self._tp[1]))
        try:
            return bool(self._intake.gaps(self._tp, self._offset, self._offset + 1))
        except ArchiverError as error:
            self._unread = error
            return False

    def _aborted(self) -> Aborted | None:
        try:
            return aborted_by(self._tracer.intake_log, CheckpointStore(self._objects), self._tp, self._offset)
        except ArchiverError:
            # Which transaction it was is only additional information.
            return None

    def _intake_sight(self, segment: SegmentRef) -> IntakeSight:
        place = self._offset - segment.base
        key = segment.file.key
        condemned = self._condemned.get(key)
        damage = accept_us = ingest_us = None
        gone = False
        try:
            gone = self._objects.info(key) is None
            # An absent file is no damage: it may have been deleted as planned.
            for _, rows in [] if gone else IntakeReader(self._objects).read(segment.file, [segment]):
                accepted = rows.column("accept_timestamp").cast(pa.int64()).slice(0, place + 1)
                accept_us = accepted[place].as_py()
                # The ingest time never decreases, so all records before it in the segment count.
                ingest_us = max(segment.floor_us, pc.max(accepted).as_py())
        # Not readable now is not damaged, but both leave the record unread.
        except RetryLater as error:
            damage = f"the object store cannot be reached: {error}"
        except ArchiverError as error:
            damage = str(error)
        return IntakeSight(
            log_index=segment.file.log_index,
            shelf=self._intake.history_file_of(self._tp, segment),
            key=key,
            row_group=segment.row_group,
            row=segment.first_row + place,
            gone=gone,
            condemned_us=None if condemned is None else condemned.time_us,
            damage=damage,
            accept_us=accept_us,
            ingest_us=ingest_us,
            producer=self._producer(segment, segment.first_row + place),
        )

    def _producer(self, segment: SegmentRef, row: int) -> ProducerSight | None:
        """The producer of the row, by the entry of its file; None if the entry is trimmed or unreadable."""
        index = segment.file.log_index
        try:
            entries = self._tracer.intake_log.read(index, 1)
            file = parse_entry(index, entries[0].data).file if entries else None
        # History files keep no producers, so there is no other place to read.
        except ArchiverError:
            return None
        for group in () if file is None else file.topics:
            if group.topic_id.hex() != self._tp[0]:
                continue
            for one in group.segments:
                found = (one.partition, one.row_group) == (self._tp[1], segment.row_group)
                if found and 0 <= row - one.first_row < one.rows and one.HasField("producer"):
                    return ProducerSight(one.producer.producer_id, one.producer.epoch)
        return None

    # the ledger and its archives

    def _archive(self) -> ArchiveSight | None:
        """The archive that has the offset: a pending one, else the one in the data folder."""
        partition = self._tp[1]
        for item in self._ledger.pending:
            archive = item.archive
            if (
                archive.partition == partition
                and archive.base <= self._offset < archive.end
                and not archive.gap_only
            ):
                return self._archive_sight(archive.key, archive.base, archive.end, archive.epoch, item.index)
        if self._offset >= self._ledger.planned_to(partition):
            # An object in the folder is then the unreferenced archive of an incomplete round.
            return None
        try:
            found = find_archives(
                self._objects, self._tp[0], partition, ArchiveVisibility.of(self._ledger, partition)
            ).covering(self._offset)
        except ArchiverError:
            return None
        return (
            None
            if found is None
            else self._archive_sight(found.key, found.base, found.end, found.epoch, None)
        )

    def _archive_sight(
        self, key: str, base: int, end: int, epoch: int, control_index: int | None
    ) -> ArchiveSight:
        stored_us: int | None = None
        damage: str | None = None
        try:
            info = self._objects.info(key)
            if info is not None:
                stored_us = info.modified_us
                # The seal covers the footer, and the footer names range and cluster: no rows are read.
                with self._objects.open_input(key) as source:
                    check_seal(source, key)
                    source.seek(0)
                    place = FoundArchive(key, info.size, self._tp[0], self._tp[1], base, end, epoch)
                    check_footer(place, pq.read_metadata(source), self._tracer.cluster_id)
        # A damaged file makes Arrow raise errors of many types.
        except (ArchiverError, pa.ArrowException, OSError) as error:
            damage = str(error)
        return ArchiveSight(
            key, base, end, epoch, stored_us, control_index is not None, control_index, damage
        )

    # the table

    def _halted(self) -> str | None:
        if self._settings is None:
            return None
        line = self._tracer.lines.line(self._topic, self._intake, self._ledger)
        # Doubts of the retention floor are computed here, so they are known without a daemon too.
        return line.why if line.doubted else self._tracer.stuck

    def _table(self) -> tuple[TableSight | None, str | None]:
        """The table, or why there is none."""
        settings = self._settings
        if settings is None or settings.archive.catalog is None or settings.archive.table is None:
            return None, None
        name, catalog = settings.archive.table, settings.archive.catalog
        try:
            tables = self._tracer.tables(catalog)
            view = tables.load(parse_identifier(name))
            if view is None:
                return None, f"table {name} is not in catalog {catalog}"
            # A table of the same name may be a new one, which says nothing about these archives.
            if self._ledger.table_uuid is not None and view.uuid != self._ledger.table_uuid:
                return None, f"table {name} is another one than the topic was archived to"
            return self._table_sight(tables, view, name, catalog), None
        except ArchiverError as error:
            return None, str(error)

    def _table_sight(self, tables: Tables, view: TableView, name: str, catalog: str) -> TableSight:
        candidates = [file for file in tables.live_files(view) if self._may_hold(file)]
        # Beyond the limit the files count as unread, so the answer is unknown and not wrong.
        files = [self._file_sight(file, place < FILES_READ_MAX) for place, file in enumerate(candidates)]
        # A replay moves rows to a new file, whose snapshot is not the one that added them.
        replays = {one.snapshot_id for one in view.snapshots if REPLAYED in one.summary}
        files = [replace(file, remade=file.snapshot_id in replays) for file in files]
        visible: int | None = None
        undeletable: str | None = None
        # Applying delete files needs a scan of the table, so only if they can hide a row.
        if any(file.has_deletes for file in candidates) and any(file.rows for file in files):
            try:
                visible = tables.count_rows(view, self._tp[1], self._offset)
            except ArchiverError as error:
                undeletable = str(error)
        # Above the watermark an absent row is not lost: it was never committed.
        below = self._offset < self._ledger.watermark(self._tp[1])
        lost = below and not (sum(file.rows or 0 for file in files) if visible is None else visible)
        removed = self._removed(tables, view) if lost else None
        return TableSight(
            name=name,
            catalog=catalog,
            snapshot_id=view.snapshot_id,
            files=tuple(file for file in files if file.rows != 0),
            added=self._added(view),
            removed=removed,
            suspects=self._suspects(view) if lost and removed is None else (),
            visible=visible,
            undeletable=undeletable,
        )

    def _may_hold(self, file: LiveFile) -> bool:
        """Whether its bounds include the record; a file without bounds may have any record."""
        numbers = (file.partition_min, file.partition_max, file.offset_min, file.offset_max)
        if any(number is None for number in numbers):
            return True
        # Bounds are inclusive. None is excluded above; the expression satisfies the type checker.
        low, high, first, last = (number or 0 for number in numbers)
        return low <= self._tp[1] <= high and first <= self._offset <= last

    def _file_sight(self, file: LiveFile, read: bool) -> FileSight:
        """Number of rows of the record in the file."""
        if not read:
            return FileSight(
                file.path,
                None,
                file.snapshot_id,
                f"it is one of more than {FILES_READ_MAX} files that may hold it",
            )
        key = key_of(self._objects, file.path)
        # Another program may have added a file from elsewhere, which the object store cannot read.
        if key is None:
            return FileSight(file.path, None, file.snapshot_id, "it lies outside of the data folder")
        try:
            return FileSight(file.path, self._count(key), file.snapshot_id, None)
        except NotFound:
            return FileSight(file.path, None, file.snapshot_id, "it is gone", gone=True)
        # `KeyError`: a file of another writer may lack the columns.
        except (ArchiverError, pa.ArrowException, OSError, KeyError) as error:
            return FileSight(file.path, None, file.snapshot_id, str(error))

    def _count(self, key: str) -> int:
        found = 0
        with self._objects.open_input(key) as source:
            parquet = pq.ParquetFile(
                source, metadata=read_unverified_metadata(source), page_checksum_verification=True
            )
            for batch in parquet.iter_batches(columns=["kafka.partition", "kafka.offset"]):
                kafka: Any = batch.column("kafka")
                # A file of another writer may have several topic partitions, so both columns are compared.
                of_partition = pc.equal(pc.struct_field(kafka, "partition"), pa.scalar(self._tp[1]))
                of_offset = pc.equal(pc.struct_field(kafka, "offset"), pa.scalar(self._offset))
                found += pc.sum(pc.and_(of_partition, of_offset).cast(pa.int64())).as_py() or 0
        return found

    def _added(self, view: TableView) -> SnapshotSight | None:
        """The archiver's commit whose ranges include the offset."""
        for snapshot in view.snapshots:
            if COMMIT_ID in snapshot.summary and _covers(
                snapshot.summary.get(RANGES, ""), self._tp[1], self._offset
            ):
                return _sight(snapshot)
        return None

    def _removed(self, tables: Tables, view: TableView) -> SnapshotSight | None:
        """The external snapshot that removed the record, by comparing the table before and after it.

        If none can be compared, the only external snapshot that removed rows.
        """
        suspects = _removals(view)
        known = {one.snapshot_id for one in view.snapshots}
        for snapshot in suspects:
            if (
                # Without its parent there is nothing to compare the snapshot with.
                snapshot.parent_id in known
                and self._had(tables, view, snapshot.parent_id)
                and not self._had(tables, view, snapshot.snapshot_id)
            ):
                return _sight(snapshot)
        # With expired changes, the only retained one is not the only suspect.
        return _sight(suspects[0]) if len(suspects) == 1 and not self._expired(view) else None

    def _suspects(self, view: TableView) -> tuple[int, ...]:
        """Expired external snapshots that may have removed the record, and those that cannot be compared, the
        newest first.
        """
        expired = self._expired(view)
        known = {one.snapshot_id for one in view.snapshots}
        uncompared = [one.snapshot_id for one in _removals(view) if one.parent_id not in known]
        return (*uncompared, *expired) if expired else ()

    def _expired(self, view: TableView) -> tuple[int, ...]:
        """Expired external snapshots that removed rows after the record was in the table, the newest
        first.
        """
        try:
            changes = unretired(read_expired(view.properties).changes, self._ledger.starts)
        # The property is external input: a damaged one names no suspects.
        except Corrupted:
            return ()
        partition = self._tp[1]
        found = [
            change
            for change in reversed(changes)
            if change.removes
            and (
                # A change concerns only rows below the table's end at that time.
                change.below is None
                or (partition < len(change.below) and self._offset < change.below[partition])
            )
        ]
        return tuple(number for change in found for number in reversed(change.snapshots))

    def _had(self, tables: Tables, view: TableView, snapshot_id: int | None) -> bool:
        try:
            candidates = [file for file in tables.live_files(view, snapshot_id) if self._may_hold(file)]
        except ArchiverError:
            return False
        # Limited, because this runs twice for each suspect.
        return any(self._file_sight(file, read=True).rows for file in candidates[:FILES_READ_MAX])

    # why it is not further

    def _reason(self, stable: int, halted: str | None) -> str | None:
        settings, partition = self._settings, self._tp[1]
        # No stage follows intake, so nothing holds the record back.
        if settings is not None and settings.archive.kind == "none":
            return "the topic has archive kind none: its records stay in intake"
        transaction = self._intake.blocking(self._tp)
        _, reason = reason_of(
            Held(
                intake=self._intake,
                tp=self._tp,
                topic=self._topic.name,
                stable=stable,
                archived=self._ledger.planned_to(partition),
                committed=self._ledger.watermark(partition),
                unread=self._unread,
                stuck=halted,
                transaction=None
                # A stable record does not wait for a transaction behind it.
                if transaction is None or self._offset < stable
                else self._held(transaction, stable),
                written_us=self._ledger.written_us,
                configured=settings is not None,
                triggers=self._tracer.settings.archive
                if settings is None
                else self._tracer.settings.archive_for(settings),
                now_us=self._tracer.clock.now_us(),
            )
        )
        return reason


def _removals(view: TableView) -> list[SnapshotView]:
    """Retained external snapshots that can have removed a record, the newest first."""
    return [
        one
        for one in view.history()
        if is_external_removal(one) and one.summary.get("deleted-records", "0") != "0"
    ]


def _sight(snapshot: SnapshotView) -> SnapshotSight:
    # Iceberg has milliseconds.
    return SnapshotSight(snapshot.snapshot_id, snapshot.timestamp_ms * 1000, snapshot.operation)


def _covers(ranges: str, partition: int, offset: int) -> bool:
    """Whether `partition:base-end,…` includes the offset; False if the text has only a count."""
    for item in ranges.split(","):
        number, colon, span = item.partition(":")
        low, dash, high = span.partition("-")
        if (
            colon
            and dash
            and number == str(partition)
            and low.isdecimal()
            and high.isdecimal()
            and int(low) <= offset < int(high)
        ):
            return True
    return False


def parse_place(text: str) -> tuple[str, int, int]:
    """`TOPIC:PARTITION:OFFSET`; raises `InvalidInput`."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    # `isdecimal` accepts digits of other scripts, so ASCII is checked first.
    if not topic or not (
        partition.isascii() and partition.isdecimal() and offset.isascii() and offset.isdecimal()
    ):
        raise InvalidInput(
            f"{text!r} does not name a record; write TOPIC:PARTITION:OFFSET, for example orders:3:17"
        )
    if len(partition) > len(str(PARTITION_MAX)) or len(offset) > _OFFSET_DIGITS_MAX:
        raise InvalidInput(f"{text!r} names a partition or an offset that no topic can have")
    return topic, int(partition), int(offset)
