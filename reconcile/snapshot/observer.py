"""Reads log, ledger, object store and table of a topic into the plain values that the audit judges.

It does every read of the fast audit and the first ones of the deep audit: manifests, one listing per topic,
and the `kafka` columns of files whose manifests do not prove their content. Must never write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.catalog.evidence import Doubted, Gaps, judge
from archiver.catalog.expiry import ancestry
from archiver.catalog.external_changes import (
    Change,
    ExpiredChanges,
    placed,
    read_expired,
    retained_changes,
    unretired,
)
from archiver.catalog.table_layout import CLUSTER_ID, TOPIC_ID, stream_fields
from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.path_normalization import key_of
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError, Corrupted, RetryLater, passing
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.stream.archives import check_footer, find_archives
from archiver.stream.seal import check_seal
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.parquet_footer import read_unverified_metadata
from intake.parquet_pages import check_pages
from reconcile.snapshot.manifests import DeleteFile, snapshot_files
from reconcile.snapshot.offset_coverage import Range, merge, total
from reconcile.snapshot.topic_views import FileView, HiddenRows, Kind, PartitionView, Removal, TableState

_METADATA = ".metadata.json"
"""Part of every name of a table metadata file, compressed or not. The in-memory catalog of tests uses other
names."""


@dataclass(frozen=True)
class SeenTable:
    """A topic's table, as far as it could be read."""

    table: TableState | None = None
    absent: str | None = None
    """Why there is no table of this topic, though there should be one."""
    unreadable: str | None = None
    """Why it could not be read."""
    view: TableView | None = None
    """The table load that all fields come from; None if no table of that name was read."""


@dataclass(frozen=True)
class UnloggedTable:
    """The catalog's table of a topic that the intake log lacks."""

    topic_id: TopicId | None = None
    """By the table's property."""
    snapshot_id: int | None = None
    proof: str | None = None
    """Why the topic cannot be new; None if it may be."""


class Observer:
    """Reads one topic at a time."""

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        tables: Callable[[str], Tables],
        *,
        rows_follow: bool = False,
    ) -> None:
        """With `rows_follow` a later step reads the rows of all files, so no file is opened here."""
        self._rows_follow = rows_follow
        self._objects = objects
        self._cluster_id = cluster_id
        self._tables = tables

    def table(
        self, state: TopicState, settings: TopicSettings | None, ledger: TopicLedger, gaps: Gaps
    ) -> SeenTable:
        """The topic's table. Never raises an `ArchiverError`: `SeenTable.unreadable` says what could not be
        read.

        `gaps` are those of the intake log. A file whose number of rows they explain is not opened.
        """
        kind: Kind = "none" if settings is None else settings.archive.kind
        written = bool(ledger.pending) or any(ledger.watermarks.values())
        try:
            # A topic without archives needs no table, so its missing configuration does not matter.
            if settings is None and written:
                return SeenTable(
                    unreadable="the topic has archives, but it is not in the "
                    "configuration: its table is not known"
                )
            if kind == "parquet":
                # Without a table, the archives that readers use stand for its files.
                return SeenTable(self._archives(state, ledger))
            if kind == "none" and written:
                return SeenTable(
                    unreadable="the topic has archives, but its archive kind is now none: "
                    "its table is not "
                    "read"
                )
            if settings is None or kind == "none":
                return SeenTable()
            return self._catalog_table(state, settings, ledger, written, gaps)
        # A failure of one topic's table must not stop the audit of the others.
        except ArchiverError as error:
            return SeenTable(unreadable=f"the table could not be read: {error}")

    def unlogged(self, settings: TopicSettings) -> UnloggedTable:
        """The table of a configured topic that the intake log lacks. Rows, or a topic id, prove that the
        topic is not new.
        """
        catalog, name = settings.archive.catalog, settings.archive.table
        if settings.archive.kind != "iceberg" or catalog is None or name is None:
            return UnloggedTable()
        try:
            tables = self._tables(catalog)
            view = tables.load(parse_identifier(name))
            if view is None:
                return UnloggedTable()
            rows = (
                sum(file.record_count for file in tables.live_files(view))
                if view.snapshot_id is not None
                else 0
            )
        except ArchiverError as error:
            return UnloggedTable(proof=f"its table {name} could not be read ({error})")
        owner = view.properties.get(TOPIC_ID)
        # An empty table with an id of another cluster proves nothing about this topic.
        named = owner is not None and view.properties.get(CLUSTER_ID) == self._cluster_id
        proof = (
            f"its table {name} has {rows} rows"
            if rows
            else f"its table {name} was made for it"
            if named
            else None
        )
        return UnloggedTable(None if owner is None else TopicId(owner), view.snapshot_id, proof)

    def _catalog_table(
        self, state: TopicState, settings: TopicSettings, ledger: TopicLedger, written: bool, gaps: Gaps
    ) -> SeenTable:
        catalog, name = settings.archive.catalog, settings.archive.table
        assert catalog is not None, "settings demand a catalog for kind iceberg"
        assert name is not None, "settings demand a table for kind iceberg"
        tables = self._tables(catalog)
        view = tables.load(parse_identifier(name))
        if view is None:
            return (
                SeenTable(absent=f"table {name} is gone from catalog {catalog}: it was dropped or renamed")
                if written
                else SeenTable()
            )
        other = _other_owner(view, name, self._cluster_id, state, ledger)
        # `view` is kept for the reconciler, which reports what differs.
        if other is not None:
            return SeenTable(absent=other, view=view)
        return SeenTable(self._state(state, ledger, name, tables, view, gaps), view=view)

    def _state(
        self, state: TopicState, ledger: TopicLedger, name: str, tables: Tables, view: TableView, gaps: Gaps
    ) -> TableState:
        live, deletes = self._files(tables, view)
        evidence = judge(view, state.partitions, lambda: live, ledger.starts, gaps)
        known = None if isinstance(evidence, Doubted) else dict(enumerate(evidence.watermarks))
        # One listing of the folder is cheaper than one request per file.
        sizes = {info.key: info.size for info in self._objects.list(paths.data_prefix(state.topic_id))}
        past, unreadable = _expired_changes(view)
        ends = [(known or {}).get(number, 0) for number in range(state.partitions)]
        retained = tuple(
            # The table property and a retained snapshot may both record a change; it counts once.
            one
            for one in _placed_changes(ledger, view, ends)
            if past.ids.isdisjoint(one.snapshots)
        )
        # Retention passes the oldest first, whether they are expired or not.
        changes = unretired((*past.changes, *retained), ledger.starts)
        expired = changes[: max(0, len(changes) - len(retained))]
        removals = [
            _removal(one, expired=place < len(expired)) for place, one in enumerate(changes) if one.removes
        ]
        return TableState(
            name=name,
            snapshot_id=view.snapshot_id,
            watermarks=known,
            doubt=evidence.why if isinstance(evidence, Doubted) else None,
            files=tuple(self._file(state, file, sizes, gaps) for file in live),
            removals=tuple(reversed(removals)),
            additions=sum(one.added for one in changes),
            added_by=tuple((one.snapshots[-1], one.added) for one in expired if one.added),
            changes_unknown=unreadable,
            # For the deep audit `deletes` is known, and it reads which rows those files hide.
            has_deletes=any(file.has_deletes for file in live) and deletes is None,
            hidden=tuple(_hidden(one) for one in deletes or ()),
        )

    def _files(self, tables: Tables, view: TableView) -> tuple[list[LiveFile], tuple[DeleteFile, ...] | None]:
        """The current snapshot's data files, and its delete files if those are known."""

        def read(path: str) -> bytes:
            key = key_of(self._objects, path)
            if key is None:
                raise Corrupted(f"table metadata names {path}, which lies outside of the data folder")
            return self._objects.read(key)

        ours = (
            _METADATA in view.metadata_location and key_of(self._objects, view.metadata_location) is not None
        )
        # A decoder of our own: an error of the library that wrote the manifests must not hide itself.
        if self._rows_follow and ours:
            found = snapshot_files(
                read, view.metadata_location, view.snapshot_id, stream_fields(view.schema_json)
            )
            return list(found.data), found.deletes
        return (list(tables.live_files(view)) if view.snapshot_id is not None else []), None

    def _file(self, state: TopicState, live: LiveFile, sizes: Mapping[str, int], gaps: Gaps) -> FileView:
        key = key_of(self._objects, live.path)
        size = sizes.get(key) if key is not None else None
        # The file may be outside of the listed folder, or newer than the listing.
        if key is not None and size is None:
            info = self._objects.info(key)
            size = None if info is None else info.size
        parsed = None if key is None else paths.parse_archive_key(key)
        mine = parsed if parsed is not None and parsed.topic_id == state.topic_id else None
        file = FileView(
            path=live.path,
            record_count=live.record_count,
            file_size=live.file_size,
            object_size=size,
            key=mine,
            offset_min=live.offset_min,
            offset_max=live.offset_max,
            partition_min=live.partition_min,
            partition_max=live.partition_max,
            gaps=()
            if mine is None or mine.partition >= state.partitions
            else tuple(gaps(mine.partition, mine.base, mine.end)),
            partition=live.partition,
            snapshot_id=live.snapshot_id,
            sequence_number=live.sequence_number,
        )
        if key is None:
            # Its size cannot be checked, so the object counts as matching and the rows as unread.
            return replace(file, object_size=live.file_size or 0, unread="it lies outside of the data folder")
        return file if size is None or self._rows_follow or _proven(file) else self._with_rows(file, key)

    def _with_rows(self, file: FileView, key: str) -> FileView:
        """Read what the manifests do not prove."""
        try:
            with self._objects.open_input(key) as source:
                metadata = None if file.key is not None else read_unverified_metadata(source)
                if file.key is not None:
                    check_seal(source, key)
                source.seek(0)
                parquet = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
                # The footer has gaps that the intake log may not show any more.
                gaps = _gaps(parquet.metadata)
                if _proven(replace(file, gaps=gaps)):
                    return replace(file, gaps=gaps)
                for group in range(parquet.num_row_groups if file.key is not None else 0):
                    # A page header has no checksum, and the reader allocates what it says. Our footers are
                    # sealed.
                    check_pages(source, parquet.metadata, group, {"kafka"})
                return replace(
                    file, gaps=gaps, rows=read_offsets(parquet, key), rows_in_file=parquet.metadata.num_rows
                )
        # A read that is not possible now is no fault of the file.
        except RetryLater:
            raise
        except (ArchiverError, pa.ArrowException, OSError, ValueError) as error:
            # pyarrow wraps errors of the store, so a temporary one must be found inside.
            if (later := passing(error, key)) is not None:
                raise later from error
            return replace(file, unread=f"it cannot be read ({error})")

    def _archives(self, state: TopicState, ledger: TopicLedger) -> TableState:
        """For a topic without a table: the archives that readers use, from the start to the watermark."""
        files: list[FileView] = []
        for partition in range(state.partitions):
            index = find_archives(
                self._objects, state.topic_id, partition, ArchiveVisibility.of(ledger, partition)
            )
            at, end = ledger.start(partition), ledger.watermark(partition)
            while at < end:
                found = index.covering(at)
                if found is None:
                    # A hole: the judge reports the missing offsets.
                    at = min(end, index.next_base(at) or end)
                    continue
                try:
                    with self._objects.open_input(found.key) as source:
                        check_seal(source, found.key)
                        source.seek(0)
                        metadata = pq.read_metadata(source)
                    gaps = check_footer(found, metadata, self._cluster_id).gaps
                    part = (max(at, found.base), min(end, found.end))
                    parsed = paths.parse_archive_key(found.key)
                    files.append(
                        FileView(
                            found.key, metadata.num_rows, found.size, found.size, parsed, gaps=gaps, part=part
                        )
                    )
                except (Corrupted, pa.ArrowException, OSError, ValueError) as error:
                    if (later := passing(error, found.key)) is not None:
                        raise later from error
                    files.append(
                        FileView(
                            found.key,
                            0,
                            None,
                            found.size,
                            paths.parse_archive_key(found.key),
                            unread=f"it cannot be read ({error})",
                        )
                    )
                at = found.end
        watermarks = {partition: ledger.watermark(partition) for partition in range(state.partitions)}
        return TableState("(archives only)", None, watermarks, files=tuple(files))


def partition_views(
    state: TopicState, ledger: TopicLedger, intake: Backlog, only: frozenset[int] | None
) -> tuple[PartitionView, ...]:
    """The partitions of a topic by both logs; of `only` those if given."""
    topic_id = state.topic_id
    pending: dict[int, list[Range]] = {}
    for item in ledger.pending:
        pending.setdefault(item.archive.partition, []).append((item.archive.base, item.archive.end))
    return tuple(
        PartitionView(
            partition=partition,
            start=ledger.start(partition),
            stable=intake.stable_offset((topic_id, partition)),
            next=intake.next_offset((topic_id, partition)),
            watermark=ledger.watermark(partition),
            pending=merge(pending.get(partition, [])),
            gaps=_log_gaps(intake, (topic_id, partition)),
            passed=ledger.passed.ranges(partition),
        )
        for partition in range(state.partitions)
        if only is None or partition in only
    )


def _log_gaps(intake: Backlog, tp: TopicPartition) -> tuple[Range, ...] | None:
    """The gaps by the log; None if a history file is gone or the store is unreachable."""
    try:
        # The judge treats None as unknown; an empty tuple would turn every gap into a missing offset.
        return tuple(intake.gaps(tp, 0, intake.next_offset(tp)))
    except ArchiverError:
        return None


def read_offsets(parquet: pq.ParquetFile, name: str) -> dict[int, tuple[Range, ...]]:
    """The offsets per partition in a file's rows, as runs; a duplicate offset is in two runs.

    Rows without coordinates (added by other writers) belong to no partition and are omitted.
    """
    runs: dict[int, list[Range]] = {}
    for batch in parquet.iter_batches(columns=["kafka.partition", "kafka.offset"]):
        kafka: Any = batch.column("kafka")
        partitions, offsets = pc.struct_field(kafka, "partition"), pc.struct_field(kafka, "offset")
        placed = pc.and_(partitions.is_valid(), offsets.is_valid())
        numbers = partitions.filter(placed).to_numpy(zero_copy_only=False)
        places = offsets.filter(placed).to_numpy(zero_copy_only=False)
        for partition in np.unique(numbers).tolist():
            # Sorted per batch only: another writer may mix offsets, and the judge accepts runs in any order.
            _append_runs(runs.setdefault(int(partition), []), np.sort(places[numbers == partition]))
    # No row has coordinates, so the file cannot hold records of the topic.
    if not runs and parquet.metadata.num_rows:
        raise Corrupted(f"{name} has no kafka.partition and kafka.offset in any row")
    return {partition: tuple(ranges) for partition, ranges in runs.items()}


def _append_runs(ranges: list[Range], offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Add sorted offsets as ranges; offsets that follow the last range extend it."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    for run in np.split(offsets, breaks):
        low, high = int(run[0]), int(run[-1]) + 1
        if ranges and ranges[-1][1] == low:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))


def _other_owner(
    view: TableView, name: str, cluster_id: str, state: TopicState, ledger: TopicLedger
) -> str | None:
    """Why a table of the right name is not the topic's; None if it is."""
    owner = (view.properties.get(CLUSTER_ID), view.properties.get(TOPIC_ID))
    if owner != (cluster_id, state.topic_id):
        return (
            f"table {name} belongs to topic id {owner[1]} of cluster {owner[0]}, not to this topic "
            f"({state.topic_id})"
        )
    if ledger.table_uuid is not None and view.uuid != ledger.table_uuid:
        return (
            f"table {name} was dropped and recreated: its uuid is {view.uuid}, the ledger has "
            f"{ledger.table_uuid}"
        )
    return None


def _placed_changes(ledger: TopicLedger, view: TableView, ends: Sequence[int]) -> tuple[Change, ...]:
    """Changes of the current snapshot's ancestors, oldest first, each with the offsets that it can have
    removed.
    """
    # Snapshots before a cut of the lineage may be rolled back or of a branch. Our commits record the
    # ancestors.
    sure = {snapshot.snapshot_id for snapshot in ancestry(view)}
    found = (
        placed(change, view, ledger, ends, one.sequence_number)
        for one, change in retained_changes(view)
        if one.snapshot_id in sure
    )
    return tuple(found)


def _expired_changes(view: TableView) -> tuple[ExpiredChanges, str | None]:
    """The changes in the table's property; none if it cannot be parsed, and why."""
    try:
        return read_expired(view.properties), None
    except Corrupted as error:
        why = (
            f"{error}; how expired snapshots of other writers changed the table is not known: "
            "restore the property"
        )
        return ExpiredChanges(), why


def _removal(change: Change, *, expired: bool) -> Removal:
    below = None if change.below is None else dict(enumerate(change.below))
    newest = change.snapshots[-1] if change.snapshots else 0
    return Removal(newest, change.rows, change.hidden, below, change.snapshots if expired else ())


def _hidden(file: DeleteFile) -> HiddenRows:
    # Equality deletes and deletion vectors are not decoded, so their rows stay unknown.
    readable = file.kind == "positions" and file.format == "PARQUET"
    return HiddenRows(
        file.path, file.size, readable, file.snapshot_id, file.sequence_number, file.kind == "equality"
    )


def _proven(file: FileView) -> bool:
    """Whether name, bounds and number of rows agree, so that the rows need not be read."""
    key = file.key
    if key is None or file.offset_min is None or file.offset_max is None:
        return False
    return (file.partition_min, file.partition_max) == (
        key.partition,
        key.partition,
    ) and file.record_count == key.end - key.base - total(merge(file.gaps))


def _gaps(metadata: pq.FileMetaData) -> tuple[Range, ...]:
    """The gaps in an archive's footer; none if it has no such key."""
    text = (metadata.metadata or {}).get(b"archiver.gaps")
    try:
        return tuple((int(low), int(high)) for low, high in json.loads(text)) if text else ()
    # A damaged value proves no gaps, so the file's rows are read.
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ()
