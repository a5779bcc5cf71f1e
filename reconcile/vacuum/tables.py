"""Finds unneeded objects in the folders of tables, and makes the commits to tables that cleaning needs.

`reconcile/snapshot/unreferenced_objects.py` decides what may be deleted. A table that cannot be read
completely allows no conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from archiver.catalog.commit import CommitOutcome, Committer
from archiver.catalog.evidence import read_evidence
from archiver.catalog.identity import TableTarget, load_table, target_of
from archiver.catalog.tables import Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.bridge import append_table_committed
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.views import CondemnedObject, TopicLedger
from archiver.objects.path_normalization import NamedFiles
from archiver.objects.paths import data_prefix, metadata_prefix, table_prefix, topic_id_of
from archiver.objects.store import ObjectInfo, ObjectStore
from archiver.runtime import failpoints
from archiver.runtime.ids import IdSource, TopicId, new_uuid
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.retention_floor import Lines, gaps_of
from reconcile.snapshot.unreferenced_objects import Folder, Unneeded


@dataclass
class Swept:
    """The result of inspecting one topic's folder."""

    topic: TopicState
    has_table: bool
    epoch: int
    """The newest epoch of the control log at that time."""
    sequence_number: int = 0
    """The table's last sequence number."""
    fenced_at: int = 0
    """The sequence number of the newest snapshot of the current epoch; 0 if the table's evidence is of
    another epoch."""
    fresh: list[Unneeded] = field(default_factory=list)
    """Objects that may be marked for deletion, up to the limit."""
    held: int = 0
    """Archives below a start that a retained snapshot still references."""
    over: int = 0
    """Number of such objects beyond the limit."""
    again: dict[str, int] = field(default_factory=dict)
    """Marked objects that are still not needed, with their sizes; 0 for one that no longer exists."""
    stale: bool = False
    """Whether archiving rounds ran since."""

    def due(self, condemned: Mapping[str, CondemnedObject], limit_us: int) -> list[str]:
        """Objects whose deletion delay is over and that the table allows to delete."""
        data = data_prefix(self.topic.topic_id)
        return [
            key
            for key in self.again
            # Another leader may have deleted it since the inspection.
            if key in condemned
            and condemned[key].time_us <= limit_us
            and (
                # A pending request may still add a file. It asserts its base snapshot, so it fails once the
                # table advances.
                not self.has_table
                # Archives get a fence for that (D2).
                or key.startswith(data)
                # Metadata waits for a commit of any writer, because a fence would create new metadata.
                or condemned[key].sequence_number < self.sequence_number
            )
        ]

    def needs_fence(self, condemned: Mapping[str, CondemnedObject], due: Iterable[str]) -> bool:
        """Whether one of the archives `due` was marked after the newest snapshot of the current epoch
        (D2).
        """
        data = data_prefix(self.topic.topic_id)
        waiting = [
            # Another leader may have deleted it since.
            condemned[key]
            for key in due
            if key.startswith(data) and key in condemned
        ]
        # A snapshot of this epoch that is newer than the mark is a fence already. At the same number it is
        # not.
        return self.has_table and any(item.sequence_number >= self.fenced_at for item in waiting)


class TableFolders:
    """The table folders of all configured topics, for one leader."""

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        leader: Leader,
        tables: Callable[[str], Tables],
        committer: Callable[[Tables], Committer],
        topics: Iterable[TopicSettings],
        ids: IdSource,
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._leader = leader
        self._tables = tables
        self._committer = committer
        self._settings = {topic.name: topic for topic in topics}
        self._ids = ids

    @property
    def settings(self) -> Iterable[TopicSettings]:
        """The settings of the topics."""
        return self._settings.values()

    def archived(self, intake: Backlog) -> list[TopicState]:
        """Configured topics with archives, with or without a table."""
        settings = ((topic, self._settings.get(topic.name)) for topic in intake.topics_by_id.values())
        return [topic for topic, known in settings if known is not None and known.archive.kind != "none"]

    def sweep(
        self, topic: TopicState, ledger: LedgerFold, lines: Lines, old_us: int, limit: int
    ) -> Swept | None:
        """Inspect one topic's folder, without changes. None if its table is missing or doubtful.

        Objects stored before `old_us` are old. Memory is bounded by the number of files that the table
        references (70 bytes each), by `limit`, and by the unreferenced objects of one partition. Raises the
        errors of the catalog and the object store.
        """
        line, known = lines.get(topic.topic_id), ledger.topic(topic.topic_id)
        # A topic with a doubtful floor may need any of its files.
        if line is None or line.why is not None:
            return None
        named = NamedFiles(table_prefix(topic.topic_id))
        has_table = self.has_table(topic)
        swept = Swept(topic, has_table, ledger.epoch)
        if has_table:
            tables, target = self._of_table(topic)
            view = load_table(tables, target, known.table_uuid)
            # No round has created the table yet. One may create it and reference files at any time.
            if view is None:
                return None
            swept.sequence_number, swept.fenced_at = view.sequence_number, _fenced_at(view, ledger.epoch)
            # The metadata comes before the listing. What is stored in between is young, pending or of a newer
            # epoch.
            named = _named(tables, view, topic)
        folder = Folder(topic.topic_id, known, ledger.epoch, ledger.condemned, named, has_table, old_us)
        self._list(swept, folder, _condemned_of(ledger, known), limit)
        return swept

    def _list(self, swept: Swept, folder: Folder, condemned: set[str], limit: int) -> None:
        topic_id, absent = swept.topic.topic_id, set(condemned)

        def stored(prefix: str) -> Iterator[ObjectInfo]:
            for info in self._objects.list(prefix):
                absent.discard(info.key)
                yield info

        for part in (
            folder.archives(stored(data_prefix(topic_id))),
            folder.metadata(stored(metadata_prefix(topic_id))),
        ):
            for item in part:
                # Marked objects do not count against the limit of new ones.
                if item.key in condemned:
                    swept.again[item.key] = item.size
                elif len(swept.fresh) < limit:
                    swept.fresh.append(item)
                else:
                    swept.over += 1
        swept.held = folder.held
        # A marked object that is missing is deleted again, so that DELETED is recorded.
        swept.again.update((key, 0) for key in sorted(absent) if key not in folder.named)

    # Changes to a table; the leader must lead.

    def retire(self, topic: TopicState, intake: Backlog) -> None:
        """Remove the files below the topic's starts from its table. Raises like `Committer.commit`."""
        tables, target = self._of_table(topic)
        outcome = self._committer(tables).retire(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id))
        # Table before ledger, as in every commit. After a crash the next run records it.
        self._append_committed(topic, outcome)

    def settle(self, topic: TopicState, intake: Backlog) -> None:
        """Record the current state of the table in the ledger. Raises like `Committer.settle`."""
        tables, target = self._of_table(topic)
        self._append_committed(topic, self._committer(tables).settle(target, gaps_of(intake, topic.topic_id)))

    def fence(self, topic: TopicState, intake: Backlog) -> None:
        """Commit an empty snapshot of this epoch (rule D2). Raises like `Committer.commit`."""
        tables, target = self._of_table(topic)
        self._append_committed(
            topic, self._committer(tables).fence(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id))
        )

    def unnamed(self, topic: TopicState, ledger: LedgerFold, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that neither the table nor a retained snapshot references. Raises like `sweep`."""
        tables, target = self._of_table(topic)
        view = load_table(tables, target, ledger.topic(topic.topic_id).table_uuid)
        # Without a view the ledger never had a table, so nothing references the files.
        named: Container[str] = () if view is None else _named(tables, view, topic)
        return [key for key in keys if key not in named]

    def forget(self, topic: TopicState, intake: Backlog) -> None:
        """Expire snapshots that retention no longer keeps, if there are any, with an empty commit. Raises
        like `fence`.
        """
        tables, target = self._of_table(topic)
        self._append_committed(
            topic,
            self._committer(tables).forget(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id)),
        )

    def has_table(self, topic: TopicState) -> bool:
        """Whether the topic's archives go to a table."""
        return self._settings[topic.name].archive.kind == "iceberg"

    def _append_committed(self, topic: TopicState, outcome: CommitOutcome | None) -> None:
        # An entry for an unchanged table would only make the ledger longer.
        if outcome is None or not outcome.news:
            return
        failpoints.reach("upkeep.append.before")
        append_table_committed(self._leader, outcome.to_proto(new_uuid(self._ids), topic.topic_id))
        failpoints.reach("upkeep.append.after")

    def _of_table(self, topic: TopicState) -> tuple[Tables, TableTarget]:
        settings = self._settings[topic.name]
        return self._tables(settings.archive.catalog or ""), target_of(
            settings, topic.topic_id, topic.partitions, self._cluster_id, self._objects
        )


def _named(tables: Tables, view: TableView, topic: TopicState) -> NamedFiles:
    """All files below the table's folder that its metadata or a retained snapshot references."""
    named = NamedFiles(table_prefix(topic.topic_id))
    for path in tables.named_paths(view):
        named.add(path)
    return named


def _fenced_at(view: TableView, epoch: int) -> int:
    # A fence must be an ancestor of the current snapshot. One that was rolled back does not fence any more.
    evidence = read_evidence(view.properties)
    if (
        evidence is None
        or evidence.epoch != epoch
        or all(item.snapshot_id != evidence.snapshot_id for item in view.lineage())
    ):
        return 0
    return evidence.sequence_number


def _condemned_of(ledger: LedgerFold, known: TopicLedger) -> set[str]:
    """The topic's marked objects, except archives replaced by a rewrite (`ReplacedArchives` decides)."""
    return {
        key
        for key in ledger.condemned
        if topic_id_of(key) == known.topic_id and key not in known.rewrites.replaced
    }


def swept_key(ledger: LedgerFold, key: str) -> bool:
    """Whether a marked object is in a table's folder and is not an archive replaced by a rewrite."""
    topic_id = topic_id_of(key)
    return topic_id is not None and key not in ledger.topic(TopicId(topic_id)).rewrites.replaced
