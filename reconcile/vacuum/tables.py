"""Looks at the folders of tables for what nobody needs any more, and does to a table what cleaning needs done
to it.

Owns the order of one look: the table's metadata with everything it names, then the listing of its folder.
What was stored, or named, after the metadata was read is younger than the age floor, or pending, or of a
newer epoch. What may go is decided in `clean_orphans.py`. Must never conclude anything from a table that
cannot be read to its end.
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
    """One topic's folder, looked at."""

    topic: TopicState
    has_table: bool
    epoch: int
    """The newest of the control log at the time."""
    sequence_number: int = 0
    """The table's last one."""
    fenced_at: int = 0
    """The sequence number of the newest snapshot of the current epoch; 0 if the table's evidence is of
    another one."""
    fresh: list[Unneeded] = field(default_factory=list)
    """What may be condemned, at most as much as was asked for."""
    held: int = 0
    """Archives below a start that a retained snapshot still names."""
    over: int = 0
    """So much more may be."""
    again: dict[str, int] = field(default_factory=dict)
    """What is condemned and still not needed, with its size; what is not there any more among it, with 0."""
    stale: bool = False
    """Rounds of archiving went on since."""

    def due(self, condemned: Mapping[str, CondemnedObject], limit_us: int) -> list[str]:
        """What of it was condemned long enough ago, and may be deleted as far as the table is concerned.

        A file that ours or somebody else's request may still bring into the table waits until the table has
        moved: every request asserts its base. For archives a fence sees to that (D2, `needs_fence`);
        manifests and metadata wait for the next commit, whosever it is, because a fence for them would only
        make new ones.
        """
        data = data_prefix(self.topic.topic_id)
        return [
            key
            for key in self.again
            if key in condemned  # not what another leader deleted since this look
            and condemned[key].time_us <= limit_us
            and (
                not self.has_table
                or key.startswith(data)
                or condemned[key].sequence_number < self.sequence_number
            )
        ]

    def needs_fence(self, condemned: Mapping[str, CondemnedObject], due: Iterable[str]) -> bool:
        """Whether no snapshot of the current epoch came after the condemnation of one of the archives `due`
        (D2).
        """
        data = data_prefix(self.topic.topic_id)
        waiting = [
            condemned[key] for key in due if key.startswith(data) and key in condemned
        ]  # not what another leader deleted meanwhile
        return self.has_table and any(item.sequence_number >= self.fenced_at for item in waiting)


class TableFolders:
    """The tables' folders of all configured topics, on behalf of one leader."""

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
        """Of the topics."""
        return self._settings.values()

    def archived(self, intake: Backlog) -> list[TopicState]:
        """Configured topics that are archived, with a table or without one."""
        settings = ((topic, self._settings.get(topic.name)) for topic in intake.topics_by_id.values())
        return [topic for topic, known in settings if known is not None and known.archive.kind != "none"]

    def sweep(
        self, topic: TopicState, ledger: LedgerFold, lines: Lines, old_us: int, limit: int
    ) -> Swept | None:
        """Look at one topic's folder; None if there is no table to look at, or it is in doubt. Changes
        nothing.

        Objects stored before `old_us` are old. Memory is bounded by the number of files that the table names
        (70 bytes each), by `limit`, and by what nothing names of one partition. Raises what the catalog and
        the object store raise.
        """
        line, known = lines.get(topic.topic_id), ledger.topic(topic.topic_id)
        if line is None or line.why is not None:
            return None
        named = NamedFiles(table_prefix(topic.topic_id))
        has_table = self.has_table(topic)
        swept = Swept(topic, has_table, ledger.epoch)
        if has_table:
            tables, target = self._of_table(topic)
            view = load_table(tables, target, known.table_uuid)
            if view is None:
                return None
            swept.sequence_number, swept.fenced_at = view.sequence_number, _fenced_at(view, ledger.epoch)
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
                if item.key in condemned:
                    swept.again[item.key] = item.size
                elif len(swept.fresh) < limit:
                    swept.fresh.append(item)
                else:
                    swept.over += 1
        swept.held = folder.held
        swept.again.update((key, 0) for key in sorted(absent) if key not in folder.named)

    # what is done to a table; the leader must lead

    def retire(self, topic: TopicState, intake: Backlog) -> None:
        """Take what lies below the topic's starts out of its table. Raises as `Committer.commit`."""
        tables, target = self._of_table(topic)
        outcome = self._committer(tables).retire(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id))
        self._tell(topic, outcome)

    def settle(self, topic: TopicState, intake: Backlog) -> None:
        """Make sure that the ledger knows the table as it is now. Raises as `Committer.settle`."""
        tables, target = self._of_table(topic)
        self._tell(topic, self._committer(tables).settle(target, gaps_of(intake, topic.topic_id)))

    def fence(self, topic: TopicState, intake: Backlog) -> None:
        """Commit a snapshot of this epoch that changes nothing (rule D2). Raises as `Committer.commit`."""
        tables, target = self._of_table(topic)
        self._tell(
            topic, self._committer(tables).fence(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id))
        )

    def unnamed(self, topic: TopicState, ledger: LedgerFold, keys: Iterable[str]) -> list[str]:
        """What of `keys` the table, and every snapshot it retains, still does not name. Raises as `sweep`."""
        tables, target = self._of_table(topic)
        view = load_table(tables, target, ledger.topic(topic.topic_id).table_uuid)
        named: Container[str] = () if view is None else _named(tables, view, topic)
        return [key for key in keys if key not in named]

    def forget(self, topic: TopicState, intake: Backlog) -> None:
        """Commit a snapshot that changes nothing but forgets those that retention no longer keeps, if there
        are any. Raises as `fence`.
        """
        tables, target = self._of_table(topic)
        self._tell(
            topic,
            self._committer(tables).forget(target, new_uuid(self._ids), gaps_of(intake, topic.topic_id)),
        )

    def has_table(self, topic: TopicState) -> bool:
        """Whether its archives go to a table."""
        return self._settings[topic.name].archive.kind == "iceberg"

    def _tell(self, topic: TopicState, outcome: CommitOutcome | None) -> None:
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
    """Everything below the table's folder that its metadata or a retained snapshot names."""
    named = NamedFiles(table_prefix(topic.topic_id))
    for path in tables.named_paths(view):
        named.add(path)
    return named


def _fenced_at(view: TableView, epoch: int) -> int:
    evidence = read_evidence(view.properties)
    if (
        evidence is None
        or evidence.epoch != epoch
        or all(item.snapshot_id != evidence.snapshot_id for item in view.lineage())
    ):
        return 0
    return evidence.sequence_number


def _condemned_of(ledger: LedgerFold, known: TopicLedger) -> set[str]:
    """The topic's condemned objects, but for archives that a replay made anew: those are judged by
    `replaced.py`.
    """
    return {
        key
        for key in ledger.condemned
        if topic_id_of(key) == known.topic_id and key not in known.rewrites.replaced
    }


def swept_key(ledger: LedgerFold, key: str) -> bool:
    """Whether a condemned object lies in a table's folder and is not one that a replay made anew."""
    topic_id = topic_id_of(key)
    return topic_id is not None and key not in ledger.topic(TopicId(topic_id)).rewrites.replaced
