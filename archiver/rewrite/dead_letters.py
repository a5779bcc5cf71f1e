"""The listing of what could not be decoded: which records, why, in which file, and how many by cause.

Changes nothing and needs no lease. Promises that counts are whole whatever is shown, and that of the records
no more than asked for are held. What is in no table yet is not listed: its archive comes with the next
commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from archiver.catalog.tables import Tables
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.store import ObjectStore
from archiver.publish.scope import Scope, check_scope
from archiver.rewrite.undecoded import (
    DoubtedFile,
    doubted_archives,
    doubted_files,
    topic_table,
    undecoded_rows,
)
from archiver.runtime.errors import ArchiverError, Corrupted
from archiver.runtime.exit_codes import FINE, UNTOLD
from archiver.runtime.redaction import excerpt
from archiver.schema.protobuf.error_causes import told
from intake.log.backlog import Backlog
from intake.log.fold import TopicState

ERROR_CHARACTERS_MAX = 500
"""Of a reason; the file has all of it."""


@dataclass
class UndecodedReport:
    """The document of `archiver dlq list --output json`."""

    records: list[dict[str, object]] = field(default_factory=list)
    total: int = 0
    """Keys and values that could not be decoded, shown or not."""
    topics: list[dict[str, object]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """What `archiver dlq list` exits with."""
        return UNTOLD if any(topic["why"] for topic in self.topics) else FINE

    def to_json(self) -> dict[str, object]:
        """The document."""
        return {"records": self.records, "more": self.total - len(self.records), "topics": self.topics}


class UndecodedListing:
    """One look at the topics of the configuration."""

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        tables: Callable[[str], Tables],
        topics: Sequence[TopicSettings],
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._tables = tables
        self._topics = sorted(
            (topic for topic in topics if topic.archive.kind != "none"), key=lambda topic: topic.name
        )
        self._configured = topics

    def run(
        self, intake: Backlog, ledger: LedgerFold, scope: Scope | None, records_max: int
    ) -> UndecodedReport:
        """List at most `records_max` keys and values, and count all. Raises `NotFound` for an unknown topic
        or partition in `scope`; a topic that cannot be looked at is named with the reason.
        """
        check_scope(scope, self._configured)
        report = UndecodedReport()
        for settings in self._topics:
            state = intake.topics_by_name.get(settings.name)
            if state is not None and (scope is None or settings.name == scope[0]):
                self._topic(
                    settings,
                    state,
                    ledger.topic(state.topic_id),
                    None if scope is None else scope[1],
                    records_max,
                    report,
                )
        return report

    def _topic(
        self,
        settings: TopicSettings,
        state: TopicState,
        ledger: TopicLedger,
        partitions: frozenset[int] | None,
        records_max: int,
        report: UndecodedReport,
    ) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        files = 0
        why: str | None = None
        try:
            for file in self._files(settings, state, ledger):
                if (
                    file.archive is not None
                    and partitions is not None
                    and file.archive.partition not in partitions
                ):
                    continue
                before = counts.total()
                try:
                    for record in self._records(file, partitions, counts):
                        report.total += 1
                        if len(report.records) < records_max:
                            report.records.append({"topic": settings.name, **record})
                except Corrupted as error:
                    why = why or str(error)  # the audit tells of every damaged file
                files += counts.total() > before
        except ArchiverError as error:
            why = str(error)
        report.topics.append(
            {"topic": settings.name, "files": files, "decode_errors": told(counts), "why": why}
        )

    def _files(
        self, settings: TopicSettings, state: TopicState, ledger: TopicLedger
    ) -> Iterator[DoubtedFile]:
        if settings.archive.kind == "parquet":
            return doubted_archives(self._objects, state.topic_id, state.partitions, ledger)
        tables, view = topic_table(settings, state, ledger, self._cluster_id, self._objects, self._tables)
        return iter([] if view is None else doubted_files(self._objects, state.topic_id, tables, view))

    def _records(
        self, file: DoubtedFile, partitions: frozenset[int] | None, counts: Counter[tuple[str, str]]
    ) -> Iterator[Mapping[str, object]]:
        for batch in undecoded_rows(self._objects, file):
            for partition, offset, side, cause, error in batch.told():
                if partitions is None or partition in partitions:
                    counts[side, cause] += 1
                    shown = {
                        "side": side,
                        "cause": cause,
                        "error": excerpt(error, ERROR_CHARACTERS_MAX),
                        "archive": file.name,
                    }
                    yield {"partition": partition, "offset": offset, **shown}
