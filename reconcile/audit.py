"""The fast audit: one verdict per topic partition, and one over all.

Owns the audit document (`archiver audit --output json`), frozen by this version::

    {"verdict": "valid" | "invalid" | "unknown",
     "partitions": [{"topic", "topic_id", "partition", "start", "watermark", "stable", "next", "rows",
                     "gaps": [[from, to], …], "missing": […], "doubled": […], "removed": […], "pending": […],
                     "proof": "bounds" | "rows", "verdict", "why"}, …],
     "checked_at": "2026-01-02T03:04:05.678901Z", "snapshot_ids": {topic: snapshot id or null}}

Every range is `[from, to]` with `to` exclusive. `why` is null or text. Partitions stand in the order of topic names and numbers.

Order of looking: ledger, tables, intake log. Each may have moved on while the one before was looked at, and only in this order is a newer
state never taken for a fault: tables may be ahead of the ledger, the intake log may be ahead of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from archiver.catalog.tables import Tables
from archiver.clock import Clock
from archiver.errors import NotFound
from archiver.ledger.fold import LedgerFold
from archiver.objects.store import ObjectStore
from archiver.settings import TopicSettings
from intake.fold import IntakeFold, TopicState
from reconcile.coverage import Range
from reconcile.judge import PartitionFinding, Verdict, judge_topic
from reconcile.observe import Observer, SeenTable, partition_views
from reconcile.views import TopicView

Scope = tuple[str, frozenset[int] | None]
"""A topic's name and its partitions (None: all)."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


class Audit:
    """Compares intake log, ledger, object store and tables; changes nothing."""

    def __init__(
        self, objects: ObjectStore, cluster_id: str, tables: Callable[[str], Tables], topics: Sequence[TopicSettings], clock: Clock
    ) -> None:
        self._observer = Observer(objects, cluster_id, tables)
        self._settings = {topic.name: topic for topic in topics}
        self._clock = clock

    def run(self, ledger: Callable[[], LedgerFold], intake: Callable[[], IntakeFold], scope: Scope | None = None) -> dict[str, object]:
        """The audit document of every topic, or of `scope`.

        `ledger` and `intake` read their log to the tail when called. Raises `NotFound` if `scope` names what the intake log does not have;
        what cannot be looked at (a catalog that is down) is `unknown` in the document, never an error.
        """
        known = ledger()
        topics = _chosen(intake(), scope)
        seen = {
            topic.topic_id: self._observer.table(topic, self._settings.get(topic.name), known.topic(topic.topic_id)) for topic in topics
        }
        records = intake()
        views = [self._view(topic, seen[topic.topic_id], known, records, None if scope is None else scope[1]) for topic in topics]
        return self._document(views)

    def _view(self, topic: TopicState, seen: SeenTable, known: LedgerFold, records: IntakeFold, wanted: frozenset[int] | None) -> TopicView:
        settings = self._settings.get(topic.name)
        partitions = partition_views(
            topic,
            known.topic(topic.topic_id),
            lambda partition: records.stable_offset((topic.topic_id, partition)),
            lambda partition: records.next_offset((topic.topic_id, partition)),
            wanted,
        )
        kind = "none" if settings is None else settings.archive.kind
        return TopicView(topic.name, topic.topic_id, kind, partitions, seen.table, seen.absent, seen.unreadable)

    def _document(self, views: Sequence[TopicView]) -> dict[str, object]:
        judged = [(view, finding) for view in views for finding in judge_topic(view)]
        checked = (_START + timedelta(microseconds=self._clock.now_us())).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "verdict": overall([finding.verdict for _, finding in judged]),
            "partitions": [partition_document(view, finding) for view, finding in judged],
            "checked_at": checked,
            "snapshot_ids": {view.topic: None if view.table is None else view.table.snapshot_id for view in views},
        }


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of them: invalid if anything is, else unknown if anything is, else valid."""
    return "invalid" if "invalid" in verdicts else "unknown" if "unknown" in verdicts else "valid"


def partition_document(view: TopicView, finding: PartitionFinding) -> dict[str, object]:
    """One element of `partitions`."""
    place = finding.view
    return {
        "topic": view.topic,
        "topic_id": view.topic_id,
        "partition": place.partition,
        "start": place.start,
        "watermark": place.watermark,
        "stable": place.stable,
        "next": place.next,
        "rows": finding.rows,
        "gaps": _lists(finding.gaps),
        "missing": _lists(finding.missing),
        "doubled": _lists(finding.doubled),
        "removed": _lists(finding.removed),
        "pending": _lists(finding.pending),
        "proof": finding.proof,
        "verdict": finding.verdict,
        "why": finding.why,
    }


def _lists(ranges: Sequence[Range]) -> list[list[int]]:
    return [[low, high] for low, high in ranges]


def _chosen(fold: IntakeFold, scope: Scope | None) -> list[TopicState]:
    """The topics to look at, by name."""
    if scope is None:
        return [fold.topics_by_name[name] for name in sorted(fold.topics_by_name)]
    name, partitions = scope
    topic = fold.topics_by_name.get(name)
    if topic is None:
        raise NotFound(f"there is no topic {name}; `archiver topics list` shows those there are")
    beyond = [partition for partition in sorted(partitions or ()) if partition >= topic.partitions]
    if beyond:
        raise NotFound(f"topic {name} has no partition {beyond[0]}; it has 0 to {topic.partitions - 1}")
    return [topic]
