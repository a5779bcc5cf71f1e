"""Selects old archives, replaced by a replay or a compaction, whose objects are no longer needed.

This is rule D1 for them. An old archive may be deleted under three conditions. The table matches the ledger,
its oldest retained snapshot is not older than the exchange, and no retained snapshot references the archive.
All manifests are read, because another writer may have built on a snapshot from before the exchange. The
conditions are stable: a path is never added again (P2), and a rollback leads to a retained snapshot. No
records are lost, because the new archive has the same ones. The age of the snapshots only saves reads. If the
ledger learned of an exchange late, old archives may already be marked as unreferenced, and only the manifests
count. An archive whose table cannot be read is never selected.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from archiver.catalog.tables import Tables, TableView, parse_identifier
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import NamedFiles
from archiver.objects.paths import table_prefix
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from reconcile.snapshot.retention_floor import Lines, oldest_sequence


class ReplacedArchives:
    """Inspects the tables of topics with rewritten archives, without changes."""

    def __init__(self, tables: Callable[[str], Tables], topics: Iterable[TopicSettings]) -> None:
        self._tables = tables
        self._settings = {topic.name: topic for topic in topics}

    def keys(self, intake: Backlog, ledger: LedgerFold, lines: Lines) -> list[str]:
        """The old archives that may be deleted, in ledger order; none of a topic that is unreadable or
        doubtful.
        """
        found: list[str] = []
        for topic in intake.topics_by_id.values():
            line, settings, known = (
                lines.get(topic.topic_id),
                self._settings.get(topic.name),
                ledger.topic(topic.topic_id),
            )
            if line is None or line.why is not None or settings is None or not known.rewrites.replaced:
                continue
            try:
                found += self._of_table(settings, topic.topic_id, known, ledger.condemned)
            except ArchiverError:
                continue  # the next run tries again
        return found

    def _of_table(
        self, settings: TopicSettings, topic_id: TopicId, ledger: TopicLedger, condemned: Container[str]
    ) -> list[str]:
        if settings.archive.kind != "iceberg":
            return []
        tables = self._tables(settings.archive.catalog or "")
        view = tables.load(parse_identifier(settings.archive.table or ""))
        if view is None or view.uuid != ledger.table_uuid:
            return []
        oldest = oldest_sequence(view)
        due = [
            key
            for key, item in ledger.rewrites.replaced.items()
            if item.sequence_number <= oldest or key in condemned
        ]
        held = _held(topic_id, tables, view, due) if due else NamedFiles(table_prefix(topic_id))
        return [key for key in due if key not in held]


def _held(topic_id: TopicId, tables: Tables, view: TableView, keys: list[str]) -> NamedFiles:
    """The files that some retained snapshot references, with normalized paths."""
    held = NamedFiles(table_prefix(topic_id))
    for path in tables.retained_paths(view, {key.rpartition("/")[2] for key in keys}):
        held.add(path)
    return held
