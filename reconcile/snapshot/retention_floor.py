"""Computes the retention floor of each partition: intake below it can be deleted (rule D3).

`docs/protocols/vacuum.md` has the floor for each archive kind, and the proof. The true floor never decreases,
so a cleaner that was paused may use an old one. The computed value may still decrease: when the base of
another writer's snapshot expires, the files of that snapshot prove less. Then `RetentionFloor.exact` is
false, and kept intake is no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from archiver.catalog.assessment import assess_table
from archiver.catalog.evidence import Gaps, Known
from archiver.catalog.external_changes import change_of, is_external_removal
from archiver.catalog.identity import target_of
from archiver.catalog.table_layout import COMMIT_ID
from archiver.catalog.tables import LiveFile, SnapshotView, Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError, Deposed, TopicHalted
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from intake.log.fold import TopicState


@dataclass(frozen=True, slots=True)
class RetentionFloor:
    """The retention floor of one topic."""

    topic_id: TopicId
    topic: str
    offsets: tuple[int, ...]
    """Per partition: intake below is not needed."""
    watermarks: tuple[int, ...]
    """Per partition, by the ledger: archived up to here. Not below the floor."""
    why: str | None = None
    """Why all of the topic's intake is kept, for people; None if the floor follows from what is archived."""
    doubted: bool = False
    """The floor cannot be computed until something changes; `why` says what."""
    exact: bool = True
    """False: the floor is safe, but may have been higher before. The table retains snapshots that are
    older than the ledger's detailed record, or snapshots of other writers whose files prove less than
    their base."""


Lines = Mapping[TopicId, RetentionFloor]
"""Of every topic of the intake log."""


def oldest_sequence(view: TableView) -> int:
    """The sequence number of the oldest retained snapshot, in or outside of the lineage."""
    # Branches and abandoned snapshots count too: a rollback may lead to any of them.
    return min((snapshot.sequence_number for snapshot in view.snapshots), default=view.sequence_number)


def retained_line(view: TableView, known: Known, ledger: TopicLedger) -> tuple[int, ...]:
    """Per partition: every retained snapshot is complete at least up to this offset, or lacks only records
    below the start.
    """
    oldest = oldest_sequence(view)
    return tuple(
        max(
            # Retention removed the records below the start on purpose; a rollback does not bring them back.
            ledger.start(partition),
            # The lower one is safe: the ledger may not record the table's newest commit yet.
            ledger.past.lowest(partition, min(offset, ledger.watermark(partition)), oldest),
        )
        for partition, offset in enumerate(known.watermarks)
    )


def external_branches(view: TableView) -> tuple[SnapshotView, ...]:
    """Retained snapshots outside of the lineage whose watermark only their files can prove.

    Another writer rolled the table back, changed it there, and it was rolled forward again. Such a snapshot
    has a newer sequence number than commits that it lacks.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in view.snapshots}
    lineage = frozenset(snapshot.snapshot_id for snapshot in view.lineage())
    found: list[SnapshotView] = []
    for snapshot in view.snapshots:
        root = snapshot
        # Its watermark is that of its base. Once the base has expired, no retained commit of ours gives it.
        while root.parent_id in known:
            root = known[root.parent_id]
        # An ancestor that expiry cut off from the lineage is among them. It cannot be distinguished from a
        # branch.
        if snapshot.snapshot_id not in lineage and COMMIT_ID not in root.summary:
            found.append(snapshot)
    return tuple(found)


def reached_by(files: Iterable[LiveFile], partitions: int) -> tuple[int, ...]:
    """Per partition a lower bound of the watermark of a snapshot with these files: the offset after its last
    certain row.
    """
    reached = [0] * partitions
    for file in files:
        partition = file.partition_min
        if (
            # Only a file of a single partition: the offset bound of a mixed file belongs to an unknown
            # partition.
            partition is not None
            and partition == file.partition_max
            and 0 <= partition < partitions
            and file.offset_max is not None
        ):
            reached[partition] = max(reached[partition], file.offset_max + 1)
    return tuple(reached)


def keeps_change(view: TableView, snapshot: SnapshotView) -> bool:
    """Whether another writer's snapshot may be an ancestor that our own expiry cut off and kept. It is a
    change of the number of rows that could still be undone, or a removal that older versions kept for good.
    """
    lineage = view.lineage()
    oldest = lineage[-1].sequence_number if lineage else 0
    return snapshot.sequence_number < oldest and (
        is_external_removal(snapshot) or change_of(snapshot) is not None
    )


def lacks(files: Iterable[LiveFile], current: Iterable[LiveFile], sequence_number: int) -> bool:
    """Whether a snapshot with that sequence number and these files is no ancestor of the current one."""
    # An ancestor has every older file that the current snapshot has.
    paths = {file.path for file in files}
    return any(file.sequence_number < sequence_number and file.path not in paths for file in current)


class RetentionFloorReader:
    """Computes the floor of one topic after the other; changes nothing."""

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        tables: Callable[[str], Tables],
        topics: Iterable[TopicSettings],
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._tables = tables
        self._settings = {topic.name: topic for topic in topics}

    def read(self, intake: Backlog, ledger: LedgerFold) -> dict[TopicId, RetentionFloor]:
        """The floors of all topics. A table that cannot be read is a doubt, never an error; only `Deposed` is
        raised.
        """
        return {
            topic.topic_id: self.line(topic, intake, ledger.topic(topic.topic_id))
            for topic in intake.topics_by_id.values()
        }

    def line(self, topic: TopicState, intake: Backlog, ledger: TopicLedger) -> RetentionFloor:
        """The floor of one topic; as `read`."""
        settings = self._settings.get(topic.name)
        watermarks = tuple(ledger.watermark(partition) for partition in range(topic.partitions))
        # Floor 0 keeps all intake of the topic.
        nothing = (0,) * topic.partitions
        if settings is None:
            return RetentionFloor(
                topic.topic_id, topic.name, nothing, watermarks, "the topic is not in the configuration"
            )
        # Intake is the only copy of a topic without archives.
        if settings.archive.kind == "none":
            return RetentionFloor(
                topic.topic_id, topic.name, nothing, watermarks, "the topic has archive kind none"
            )
        try:
            offsets, exact = self._offsets(settings, topic, intake, ledger, watermarks)
        except Deposed:
            raise
        except ArchiverError as error:
            why = error.why if isinstance(error, TopicHalted) else str(error)
            # Nothing is deleted in doubt, and one doubtful topic does not stop the others.
            return RetentionFloor(topic.topic_id, topic.name, nothing, watermarks, why, doubted=True)
        return RetentionFloor(topic.topic_id, topic.name, offsets, watermarks, exact=exact)

    def _offsets(
        self,
        settings: TopicSettings,
        topic: TopicState,
        intake: Backlog,
        ledger: TopicLedger,
        watermarks: tuple[int, ...],
    ) -> tuple[tuple[int, ...], bool]:
        if settings.archive.kind == "parquet":
            if ledger.table_uuid is not None:
                raise TopicHalted(
                    topic.name, "it has been archived to a table, but the configuration says kind: parquet"
                )
            # Archives without a table cannot be rolled back.
            return watermarks, True
        # The watermarks of archives without a table say nothing about the snapshots of a table.
        if ledger.table_uuid is None and any(watermarks):
            raise TopicHalted(
                topic.name, "it has been archived without a table, but the configuration says kind: iceberg"
            )
        tables = self._tables(settings.archive.catalog or "")
        target = target_of(settings, topic.topic_id, topic.partitions, self._cluster_id, self._objects)
        found = assess_table(tables, target, ledger, gaps_of(intake, topic.topic_id))
        # No table yet, so no snapshot can need anything that the ledger calls archived.
        if found is None:
            return watermarks, True
        view, known = found.view, found.trusted(topic.name)
        offsets = by_commits = retained_line(view, known, ledger)
        for snapshot in external_branches(view):
            files = list(tables.live_files(view, snapshot.snapshot_id))
            if keeps_change(view, snapshot) and not lacks(
                files, tables.live_files(view), snapshot.sequence_number
            ):
                # Very likely an ancestor. Its files may prove too little, and it is retained for long, so
                # intake would be kept as long.
                continue
            reached = reached_by(files, topic.partitions)
            offsets = tuple(
                max(ledger.start(at), min(offset, reached[at])) for at, offset in enumerate(offsets)
            )
        # Before that sequence number the ledger has merged moves, which gives a floor that is too low.
        return offsets, oldest_sequence(view) >= ledger.past.exact_since and offsets == by_commits


def gaps_of(intake: Backlog, topic_id: TopicId) -> Gaps:
    """Rule C2: the ranges of a topic's partitions that hold no record."""
    return lambda partition, start, end: intake.gaps((topic_id, partition), start, end)
