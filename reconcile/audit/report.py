"""Runs the audit: one verdict per topic partition, and one over all.

The audit document (`archiver audit --output json`), frozen by this version::

    {"verdict": "valid" | "invalid" | "unknown",
     "partitions": [{"topic", "topic_id", "partition", "start", "watermark", "stable", "next", "rows",
                     "gaps": [[from, to], …], "missing": […], "doubled": […], "removed": […], "altered": […],
                     "pending": […], "proof": "bounds" | "rows", "verdict", "why"}, …],
     "checked_at": "2026-01-02T03:04:05.678901Z", "snapshot_ids": {topic: snapshot id or null}}

Every range is `[from, to]` with `to` exclusive. `gaps` are the offsets below `next` that hold no record
because their transaction was aborted, archived or not. `altered` are offsets whose rows another writer
changed; only the deep audit reports them. `why` is null or text. Partitions are in the order of topic names
and numbers.

The fast audit reads manifests; the deep one (`reconcile.audit.deep`) then reads every row of these files.
Both use the same rules.

A log that was lost or restored from an old copy has no trace of what it lost. So the audit does not start
from the log alone. Data that only the data folder or a catalog has gets its own entries: `unknown`, with zero
offsets and the reason.

- One per configured partition of a topic that the log does not have and that has rows, archives or intake
  files. Its `topic_id` is that of the table or the folder, or null.
- One per partition of a folder below `archive/` whose topic id or partition the log does not have. Its name
  is that in `topic.json`, else `(unknown)`.
- One `(unknown)` if nothing is configured, the log is empty, and the data folder has objects.

A configured topic without any trace is new, and has no entry. A deleted topic has no entry either, although
its archives and its table may remain: no guarantee applies to it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from archiver.catalog.evidence import Gaps
from archiver.catalog.tables import Tables
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.objects import paths
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, NotFound, no_partition, no_topic
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.backlog import Backlog, windows
from intake.log.fold import TopicState
from intake.segments import SegmentRef
from reconcile.audit.deep import RowProof
from reconcile.audit.rules import PartitionFinding, Verdict, judge_topic
from reconcile.snapshot.object_listing import (
    ArchiveFolders,
    UnnamedIntake,
    archive_folders,
    first_key,
    harmed_intake,
    lost_offsets,
    topic_name,
    unnamed_intake,
)
from reconcile.snapshot.observer import Observer, SeenTable, UnloggedTable, partition_views
from reconcile.snapshot.offset_coverage import Range
from reconcile.snapshot.topic_views import PartitionView, TableState, TopicView

Scope = tuple[str, frozenset[int] | None]
"""A topic's name and its partitions (None: all)."""

UNKNOWN_NAME = "(unknown)"
"""The name of a topic whose name is unknown; no topic can have it."""

_REPAIR = "the metadata store is empty, an old copy, or another deployment's: put the newest one in place"

ATTEMPTS_MAX = 5
ATTEMPT_PAUSE_S = 1.0
"""Attempts and the pause between them. An active archiver may commit to a table after the ledger was read and
before the table was; then both are read again. Differences in the last attempt are reported."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


class _Views(NamedTuple):
    views: list[TopicView]
    ledger: LedgerFold
    intake: Backlog


class Audit:
    """Compares intake log, ledger, object store and tables, without changes."""

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        tables: Callable[[str], Tables],
        topics: Sequence[TopicSettings],
        clock: Clock,
        rows: RowProof | None = None,
    ) -> None:
        """With `rows` it is the deep audit, which reads every row of every table."""
        self._objects = objects
        self._rows = rows
        self._observer = Observer(objects, cluster_id, tables, rows_follow=rows is not None)
        self._settings = {topic.name: topic for topic in topics}
        self._clock = clock

    def run(
        self, ledger: Callable[[], LedgerFold], intake: Callable[[], Backlog], scope: Scope | None = None
    ) -> dict[str, object]:
        """The audit document of every topic, or of `scope`.

        `ledger` and `intake` read their log to the tail when called. Raises `NotFound` if `scope` is neither
        in the intake log nor in the configuration. What cannot be read (a catalog that is down) is `unknown`
        in the document, never an error.
        """
        if self._rows is not None:
            # The deep audit must prove the stored data, not a cached read.
            # Here, because the adapter imports pyiceberg, and an audit without a table needs none of it.
            from archiver.catalog.iceberg import local_io

            local_io.SHARED.clear()
        for _ in range(ATTEMPTS_MAX - 1):
            found = self._read_views(ledger, intake, scope)
            # A commit after the read of the ledger is no fault; with newer views the difference is gone.
            if not any(_is_overtaken(view) for view in found.views):
                return self._document(self._by_rows(found))
            self._clock.sleep(ATTEMPT_PAUSE_S)
        # Overtaken in every attempt: the differences of the last one are reported.
        return self._document(self._by_rows(self._read_views(ledger, intake, scope)))

    def _by_rows(self, found: _Views) -> Sequence[TopicView]:
        if self._rows is None:
            return found.views
        return [
            self._rows.proven(view, found.ledger.topic(view.topic_id or TopicId("")), found.intake)
            for view in found.views
        ]

    def _read_views(
        self, ledger: Callable[[], LedgerFold], intake: Callable[[], Backlog], scope: Scope | None
    ) -> _Views:
        """All views as of now. In this order of reads a newer state never appears as a fault."""
        # The ledger is first: a table that is loaded later contains what it records, and may be ahead.
        known = ledger()
        # Only for topics and gaps. The offsets come from the second read below.
        before = intake()
        unlogged = self._unlogged(before, scope)
        topics = _chosen(before, scope, unlogged)
        seen = {
            topic.topic_id: self._observer.table(
                topic,
                self._settings.get(topic.name),
                known.topic(topic.topic_id),
                _gaps_of(before, topic.topic_id),
            )
            for topic in topics
        }
        tables = {settings.name: self._observer.unlogged(settings) for settings in unlogged}
        # The listing comes before the second read of the log, so the log cannot merely be older.
        folder, unlisted = self._folder()
        # The vacuum deletes files with records of a deleted topic of that name; until then they prove
        # nothing.
        unnamed = self._unnamed(
            before,
            {settings.name for settings in unlogged if before.fold.deleted_named(settings.name) is None},
        )
        # The log is read again at the end: it may be ahead of every earlier view, and no view may be ahead of
        # it.
        records = intake()
        partitions = None if scope is None else scope[1]
        # A topic may have been deleted while the tables were read.
        left = [topic for topic in topics if topic.topic_id in records.topics_by_id]
        views = [self._view(topic, seen[topic.topic_id], known, records, partitions) for topic in left]
        views = self._with_intake([_with_folder(view, folder, unlisted) for view in views], known, records)
        # A topic may have been created while the tables were read.
        unlogged = [settings for settings in unlogged if settings.name not in records.topics_by_name]
        tables = {name: _undeleted(table, records) for name, table in tables.items()}
        strays = self._strays(folder, records)
        merged: set[TopicId | None] = set()
        for settings in unlogged:
            table = tables[settings.name]
            folders = [
                stray for stray in strays if stray.topic == settings.name or stray.topic_id == table.topic_id
            ]
            proofs = _proofs(table, folders, unnamed.topics.get(settings.name), [unlisted, unnamed.unread])
            # With an empty log, any object in the folder shows that a log existed.
            if records.next_index == 0:
                proofs += self._anything(folder)
            if proofs:
                views.append(_lost_topic(settings, table, folders, proofs, partitions))
                # Folders of this topic get no entries of their own.
                merged.update(stray.topic_id for stray in folders)
        views += [view for stray in strays if stray.topic_id not in merged for view in _scoped(stray, scope)]
        if not views and scope is None and records.next_index == 0 and (proofs := self._anything(folder)):
            why = f"{proofs[0]}; {_REPAIR}"
            views.append(TopicView(UNKNOWN_NAME, None, "none", _zeros([0]), unreadable=why, stray=True))
        return _Views(
            sorted(views, key=lambda view: (view.topic, view.stray, view.topic_id or "")), known, records
        )

    def _unlogged(self, intake: Backlog, scope: Scope | None) -> list[TopicSettings]:
        """The configured topics in the scope that the log does not know."""
        chosen = self._settings.values() if scope is None else filter(None, [self._settings.get(scope[0])])
        return [settings for settings in chosen if settings.name not in intake.topics_by_name]

    def _view(
        self,
        topic: TopicState,
        seen: SeenTable,
        known: LedgerFold,
        records: Backlog,
        numbers: frozenset[int] | None,
    ) -> TopicView:
        settings = self._settings.get(topic.name)
        partitions = partition_views(topic, known.topic(topic.topic_id), records, numbers)
        kind = "none" if settings is None else settings.archive.kind
        return TopicView(
            topic.name,
            topic.topic_id,
            kind,
            partitions,
            seen.table,
            seen.absent,
            seen.unreadable,
            topic.partitions,
        )

    def _folder(self) -> tuple[ArchiveFolders, str | None]:
        """The objects below `archive/`, or why they are unknown."""
        try:
            return archive_folders(self._objects), None
        except ArchiverError as error:
            # The audit continues: a failed listing only makes partitions doubtful.
            return ArchiveFolders(), f"{paths.ARCHIVE_PREFIX} could not be listed: {error}"

    def _unnamed(self, intake: Backlog, topics: set[str]) -> UnnamedIntake:
        """Traces of the given topics in intake files that the log does not reference. An empty log needs no
        such check.
        """
        # With an empty log every intake file would be unnamed; `_anything` covers that case.
        if not topics or intake.next_index == 0:
            return UnnamedIntake()
        try:
            # Every file that the log names, from offset 0: history files are read too.
            named = {
                segment.file.key
                for topic in intake.topics_by_id.values()
                for partition in range(topic.partitions)
                for segment in _segments(
                    intake, (topic.topic_id, partition), 0, intake.next_offset((topic.topic_id, partition))
                )
            }
            return unnamed_intake(self._objects, named, topics)
        except ArchiverError as error:
            return UnnamedIntake(
                unread=f"{paths.INTAKE_PREFIX} could not be compared with the intake log: {error}"
            )

    def _anything(self, folder: ArchiveFolders) -> list[str]:
        """Objects in the data folder although the log has no entries."""
        try:
            key = folder.example or first_key(self._objects, paths.INTAKE_PREFIX)
        except ArchiverError as error:
            return [f"{paths.INTAKE_PREFIX} could not be listed: {error}"]
        return [] if key is None else [f"the log is empty and the data folder holds {key}"]

    def _with_intake(
        self, views: Sequence[TopicView], known: LedgerFold, records: Backlog
    ) -> list[TopicView]:
        """The views with the offsets that were lost with their intake files."""

        def backlog(view: TopicView, place: PartitionView) -> Iterator[SegmentRef]:
            # Only records that are not archived yet need their intake file.
            if view.topic_id is not None and place.watermark < place.stable:
                yield from _segments(records, (view.topic_id, place.partition), place.watermark, place.stable)

        def with_lost(view: TopicView, place: PartitionView) -> PartitionView:
            ledger = known.topic(view.topic_id or TopicId(""))
            lost = lost_offsets(
                self._objects, ledger, place.partition, backlog(view, place), place.stable, harmed
            )
            return replace(place, lost=lost)

        try:
            places = [(view, place) for view in views for place in view.partitions]
            harmed = harmed_intake(
                self._objects, (segment.file for view, place in places for segment in backlog(view, place))
            )
            # The usual case: no second pass over the segments.
            if not harmed:
                return list(views)
            return [
                replace(view, partitions=tuple(with_lost(view, place) for place in view.partitions))
                for view in views
            ]
        except ArchiverError as error:
            why = f"intake files could not be read: {error}"
            return [
                _doubted(view, lambda place: why if place.watermark < place.stable else None)
                for view in views
            ]

    def _strays(self, folder: ArchiveFolders, records: Backlog) -> list[TopicView]:
        """Topics and partitions that only the folder below `archive/` has."""
        strays: list[TopicView] = []
        for topic_id, reaches in folder.topics.items():
            topic = records.topics_by_id.get(topic_id)
            # No guarantee applies to a deleted topic, although its objects may remain.
            if topic_id in records.fold.deleted_topics:
                continue
            unknown = [number for number in sorted(reaches) if topic is None or number >= topic.partitions]
            if topic is None:
                name, unknown = topic_name(self._objects, topic_id) or UNKNOWN_NAME, unknown or [0]
                why = (
                    f"{paths.ARCHIVE_PREFIX}{topic_id}/ holds objects of a topic id that the intake log "
                    f"does not know; {_REPAIR}"
                )
            else:
                name = topic.name
                why = (
                    f"{paths.ARCHIVE_PREFIX}{topic_id}/ holds archives of a partition that the intake log "
                    f"does not know; {_REPAIR}"
                )
            if unknown:
                strays.append(TopicView(name, topic_id, "none", _zeros(unknown), unreadable=why, stray=True))
        return strays

    def _document(self, views: Sequence[TopicView]) -> dict[str, object]:
        judged = [(view, finding) for view in views for finding in judge_topic(view)]
        checked = (
            (_START + timedelta(microseconds=self._clock.now_us()))
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z")
        )
        return {
            "verdict": overall([finding.verdict for _, finding in judged]),
            "partitions": [partition_document(view, finding) for view, finding in judged],
            "checked_at": checked,
            "snapshot_ids": {
                view.topic: None if view.table is None else view.table.snapshot_id
                for view in views
                if not view.stray
            },
        }


def _is_overtaken(view: TopicView) -> bool:
    """Whether the table has commits that the ledger does not have."""
    watermarks = {} if view.table is None else view.table.watermarks or {}
    return any(watermarks.get(place.partition, 0) > place.watermark for place in view.partitions)


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst verdict: invalid before unknown before valid."""
    # Without partitions it is valid: `Audit` makes an entry for every trace of a record, so none was ever
    # sent.
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
        "altered": _lists(finding.altered),
        "pending": _lists(finding.pending),
        "proof": finding.proof,
        "verdict": finding.verdict,
        "why": finding.why,
    }


def _lists(ranges: Sequence[Range]) -> list[list[int]]:
    return [[low, high] for low, high in ranges]


def _gaps_of(intake: Backlog, topic_id: TopicId) -> Gaps:
    """The gaps of one topic that the log had before the tables were read; none if they are unreadable."""

    def gaps(partition: int, start: int, end: int) -> Sequence[Range]:
        try:
            return intake.gaps((topic_id, partition), start, end)
        except ArchiverError:
            # Without gaps more files are opened, and the partition view reports that gaps are unknown.
            return ()

    return gaps


def _segments(intake: Backlog, tp: TopicPartition, start: int, stop: int) -> Iterator[SegmentRef]:
    """The segments in [start, stop), in windows of limited size."""
    for window in windows(intake, tp, start, stop):
        yield from window.segments


def _chosen(intake: Backlog, scope: Scope | None, unlogged: Sequence[TopicSettings]) -> list[TopicState]:
    """The topics of the log to audit, by name; raises `NotFound` if neither they nor the `unlogged` ones
    match the scope.
    """
    if scope is None:
        return [intake.topics_by_name[name] for name in sorted(intake.topics_by_name)]
    name, numbers = scope
    topic = intake.topics_by_name.get(name)
    if topic is None and not unlogged:
        if intake.fold.deleted_named(name) is not None:
            raise NotFound(f"topic {name} was deleted; `archiver topics list` shows those there are")
        raise no_topic(name, intake.topics_by_name)
    # A topic that the log lacks has its partitions from the configuration.
    count = unlogged[0].partitions if topic is None else topic.partitions
    beyond = [partition for partition in sorted(numbers or ()) if partition >= count]
    if beyond:
        raise no_partition(name, beyond[0], count)
    return [] if topic is None else [topic]


def _with_folder(view: TopicView, folder: ArchiveFolders, unlisted: str | None) -> TopicView:
    """The view with doubts where archives reach beyond the log."""
    reaches = folder.topics.get(TopicId(view.topic_id or ""), {})

    def doubt(place: PartitionView) -> str | None:
        reach = reaches.get(place.partition)
        if reach is None or reach.end <= place.stable:
            return unlisted
        return (
            f"archive {reach.key} reaches offset {reach.end}, the intake log ends at {place.stable}; "
            f"{_REPAIR}"
        )

    return _doubted(view, doubt)


def _doubted(view: TopicView, doubt: Callable[[PartitionView], str | None]) -> TopicView:
    places = ((place, doubt(place)) for place in view.partitions)
    return replace(
        view,
        partitions=tuple(
            place if why is None else replace(place, doubts=(*place.doubts, why)) for place, why in places
        ),
    )


def _proofs(
    table: UnloggedTable, folders: Sequence[TopicView], intake_key: str | None, unlooked: Sequence[str | None]
) -> list[str]:
    """All evidence that a topic without a log entry is not new, and all reasons why that is unknown."""
    proofs = [] if table.proof is None else [table.proof]
    proofs += [f"{paths.ARCHIVE_PREFIX}{folder.topic_id}/ holds objects of it" for folder in folders]
    if intake_key is not None:
        proofs.append(f"{intake_key} holds records of it")
    return proofs + [why for why in unlooked if why is not None]


def _undeleted(table: UnloggedTable, records: Backlog) -> UnloggedTable:
    """The table's evidence, unless it belongs to a deleted topic: then nothing is lost."""
    return (
        UnloggedTable(snapshot_id=table.snapshot_id)
        if table.topic_id in records.fold.deleted_topics
        else table
    )


def _lost_topic(
    settings: TopicSettings,
    table: UnloggedTable,
    folders: Sequence[TopicView],
    proofs: Sequence[str],
    scope: frozenset[int] | None,
) -> TopicView:
    """A configured topic that the log has lost, with the partitions of the folders of its name."""
    # Folders may have partitions that the configuration lacks.
    numbers = {
        *range(settings.partitions),
        *(place.partition for folder in folders for place in folder.partitions),
    }
    # The table is preferred: several folders may have the same topic name.
    topic_id = table.topic_id or (folders[0].topic_id if folders else None)
    why = (
        f"the configured topic {settings.name} is not in the intake log, but {' and '.join(proofs)}; "
        f"{_REPAIR}"
    )
    state = TableState(settings.archive.table or "", table.snapshot_id, None)
    places = _zeros([number for number in sorted(numbers) if scope is None or number in scope])
    return TopicView(settings.name, topic_id, settings.archive.kind, places, state, unreadable=why)


def _scoped(stray: TopicView, scope: Scope | None) -> Iterator[TopicView]:
    """The part of the topic that is in the scope, if any."""
    if scope is None or (scope[0] == stray.topic and scope[1] is None):
        yield stray
    elif scope[0] == stray.topic:
        places = tuple(place for place in stray.partitions if place.partition in (scope[1] or ()))
        if places:
            yield replace(stray, partitions=places)


def _zeros(numbers: Sequence[int]) -> tuple[PartitionView, ...]:
    return tuple(PartitionView(number, 0, 0, 0, 0) for number in numbers)
