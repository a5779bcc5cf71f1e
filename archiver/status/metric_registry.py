"""Registry of all metrics of a daemon: counters of this process, and the state at the last watch cycle.

Counters start at 0 with the process and never decrease, even if a writer or source is opened again. A scrape
queries no dependency: it shows the last watch cycle and its age. An unknown value gives no sample.
Thread-safe. No decision about data may depend on it.
"""

from __future__ import annotations

import bisect
import platform
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from archiver.config.topics import TopicSettings
from archiver.publish.report import ArchiveReport
from archiver.runtime.clock import Clock
from archiver.runtime.metric_names import (
    ALIASES,
    COMMIT_BUCKETS_S,
    COMPATIBILITIES,
    DECODE_CAUSES,
    FILE_STATES,
    JOBS,
    METRICS,
    OTHER,
    ROUND_STEPS,
    ROUTES,
    STATUSES,
    VERDICTS,
)
from archiver.status.group_lag import GroupReport
from archiver.status.journal import Journal
from archiver.status.kafka_port import KafkaPort, kafka_families
from archiver.status.lag import LagReport
from archiver.status.lag_metrics import Family, Labels, Spread, gauge, group_families, standing_families
from intake.write.metrics import WriterMetrics, metrics_of
from reconcile.findings.finding import IDS
from reconcile.repair.run import ReconcileReport
from reconcile.snapshot.oldest_required import OldestRequired
from reconcile.vacuum.report import CleanReport

if TYPE_CHECKING:
    from archiver.config.daemon import MetricsSettings
    from archiver.control_topic.publisher import PublishedState
    from intake.sources.files.source import FilesState
    from intake.sources.kafka.upstream_changes import MirrorState


# --- Inputs
class CountingWriter(Protocol):
    """Metrics of an intake writer."""

    def metrics(self) -> WriterMetrics:
        """Present values; also after it was closed."""


@dataclass(frozen=True, slots=True)
class LogNumbers:
    """Floor and tail of a log."""

    floor: int
    tail: int


@dataclass(frozen=True, slots=True)
class SourceNumbers:
    """Progress of a source since it was opened, and its backlog."""

    up: bool
    waiting: int
    failed: int
    files: int
    records: int
    bytes: int
    mirror: bool = False
    """A Kafka source: `failed` are topics and partitions, and there are no files."""
    behind: int | None = None


def mirrors_of(states: Iterable[MirrorState]) -> dict[str, SourceNumbers]:
    """Numbers of Kafka sources by name."""
    return {
        # A mirror has no files: `waiting` and `files` stay 0, and `failed` counts stopped places.
        one.name: SourceNumbers(
            one.trouble is None, 0, one.stopped, 0, one.records, one.bytes, mirror=True, behind=one.behind
        )
        for one in states
    }


def sources_of(states: Iterable[FilesState]) -> dict[str, SourceNumbers]:
    """Numbers of file sources by pattern; sources with the same pattern are added up."""
    found: dict[str, SourceNumbers] = {}
    for one in states:
        before = found.get(one.glob, SourceNumbers(True, 0, 0, 0, 0, 0))
        found[one.glob] = SourceNumbers(
            # One source in trouble makes the pattern count as down.
            up=before.up and one.trouble is None,
            waiting=before.waiting + one.waiting,
            failed=before.failed + one.failed,
            files=before.files + one.files,
            records=before.records + one.records,
            bytes=before.bytes + one.bytes,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """State at one watch cycle. An unknown value is None, or absent."""

    seen_us: int
    standing: LagReport | None = None
    groups: GroupReport | None = None
    logs: Mapping[str, LogNumbers] = field(default_factory=dict)
    """By `intake` and `control`."""
    checkpoint_index: int | None = None
    leader: bool | None = None
    """Whether this process holds the leadership lease."""
    epoch: int | None = None
    condemned: int | None = None
    """Objects that are marked for deletion and not known to be deleted."""
    pin: OldestRequired | None = None
    pin_known: bool = False
    """Whether `pin` was read. If so, None means that no intake file is required."""
    sources: Mapping[str, SourceNumbers] = field(default_factory=dict)
    """By the name of the source in the configuration."""


# --- The registry
class Numbers:
    """Metrics of a daemon. Counters per topic are bounded: the first `metrics.topics_max` names have their
    own.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        limits: MetricsSettings,
        version: str,
        roles: Collection[str] = ("intake", "archive", "reconcile"),
    ) -> None:
        """`roles` are those of the daemon; metrics of other roles are not shown."""
        # A metric of another role would stay at 0 for ever and mislead an alert.
        self._shown = frozenset({"all", *roles})
        self._journal = journal
        self._clock = clock
        self._limits = limits
        self._version = version
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[Labels]] = defaultdict(Counter)
        self._own_topics: set[str] = set()
        self._commits = [0] * (len(COMMIT_BUCKETS_S) + 1)
        self._commit_seconds = 0.0
        self._watched: Watched | None = None
        self._writer: CountingWriter | None = None
        self._writers_before: Counter[str] = Counter()
        self._findings: dict[Labels, float] = {}
        """Findings of the newest reconcile run, every id at least once."""
        self._sources: dict[str, SourceNumbers] = {}
        """Last numbers of each source, to detect one that was opened again."""
        # Counters start at 0 at once: `rate` needs a sample from before the first increase.
        for step in ROUND_STEPS:
            self._counts["archiver_archive_seconds_total"][step,] = 0
        for name in (
            "archiver_archive_rounds_total",
            *(f"archiver_clean_{what}_total" for what in ("marked", "deleted", "compacted")),
        ):
            self._counts[name][()] = 0

    # what happened

    def declare(self, topics: Iterable[TopicSettings]) -> None:
        """Start the counters of these topics with 0, so that their first increase is visible. Call it again
        after a reload.
        """
        with self._lock:
            # Sorted, so that the same topics get a series of their own after each restart.
            for topic in sorted(topics, key=lambda topic: topic.name):
                name = self._topic(topic.name)
                if topic.archive.kind == "none":
                    continue
                for metric in _OF_TOPIC:
                    # Adds 0: a reload calls this again, and counters must never decrease.
                    self._counts[metric][name,] += 0
                for compatibility in COMPATIBILITIES:
                    self._counts["archiver_schema_changes_total"][name, compatibility] += 0
                for side in (
                    side
                    for side, schema in (("key", topic.key), ("value", topic.value))
                    if schema is not None
                ):
                    for cause in DECODE_CAUSES:
                        self._counts["archiver_decode_errors_total"][name, side, cause] += 0
                if topic.archive.kind == "iceberg":
                    self._counts["archiver_commit_attempts_total"][name,] += 0
                    # Other outcomes appear when they first happen, because most never do.
                    self._counts["archiver_commits_total"][name, "committed"] += 0

    def archived(self, report: ArchiveReport) -> None:
        """Count a run of archiving. A run that raised has a report too (`ArchiveRun.report`)."""
        with self._lock:
            self._counts["archiver_archive_rounds_total"][()] += report.rounds
            for step, seconds in report.seconds.items():
                self._counts["archiver_archive_seconds_total"][step,] += seconds  # type: ignore[assignment]
            for item in report.topics.values():
                name = self._topic(item.topic)
                for metric, attribute in _OF_TOPIC.items():
                    self._counts[metric][name,] += getattr(item, attribute)
                if item.schema_change is not None:
                    compatibility = COMPATIBILITIES[bool(item.schema_change["incompatible"])]
                    self._counts["archiver_schema_changes_total"][name, compatibility] += 1
                for kind, count in item.decode_errors.items():
                    # The report has `side:cause` as one key.
                    side, _, cause = kind.partition(":")
                    self._counts["archiver_decode_errors_total"][name, side, cause] += count
            for tried in report.commits:
                name = self._topic(tried.topic)
                self._counts["archiver_commits_total"][name, tried.end] += 1
                self._counts["archiver_commit_attempts_total"][name,] += tried.attempts
                # The bucket whose upper bound includes the value, as Prometheus defines it.
                self._commits[bisect.bisect_left(COMMIT_BUCKETS_S, tried.seconds)] += 1
                self._commit_seconds += tried.seconds

    def cleaned(self, report: CleanReport) -> None:
        """Count a run of the vacuum; a dry run counts nothing."""
        if report.dry_run:
            return
        with self._lock:
            self._counts["archiver_clean_marked_total"][()] += len(report.condemned)
            self._counts["archiver_clean_deleted_total"][()] += len(report.deleted)
            self._counts["archiver_clean_compacted_total"][()] += sum(
                topic.archives for topic in report.compacted
            )

    def reconciled(self, report: ReconcileReport, *, whole: bool = True) -> None:
        """Count a run of the reconciler; a run for one topic is not `whole` and keeps the findings."""
        with self._lock:
            for known in IDS:
                self._counts["archiver_findings_fixed_total"][known,] += 0
            for finding, fixed in report.findings:
                self._counts["archiver_findings_fixed_total"][finding.id,] += fixed
            # A partial run does not see the findings of other topics, so the last whole one stays.
            if whole and report.error is None:
                left = Counter(
                    (finding.id, finding.severity) for finding, fixed in report.findings if not fixed
                )
                self._findings = {
                    # Every finding has a sample, so that one that is fixed returns to 0.
                    **dict.fromkeys(IDS.items(), 0.0),
                    **{labels: float(count) for labels, count in left.items()},
                }

    def requested(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request; `route` is one of `ROUTES`."""
        with self._lock:
            # A closed set of labels: clients choose paths and may provoke any status.
            shown = route if route in ROUTES else "other"
            self._counts["archiver_http_requests_total"][
                shown, str(status) if str(status) in STATUSES else "other"
            ] += 1
            self._counts["archiver_http_request_seconds_total"][shown,] += seconds  # type: ignore[assignment]

    def watched(self, seen: Watched) -> None:
        """Store the result of a watch cycle, and add the progress of sources."""
        with self._lock:
            self._watched = seen
            for source, now in seen.sources.items():
                # A source counts from its own start, and the metric from that of the process.
                before = self._sources.get(source, now)
                # A count that decreased belongs to a new object, which began at 0.
                reopened = (
                    before.files > now.files or before.records > now.records or before.bytes > now.bytes
                )
                for metric, attribute in _OF_SOURCE.items():
                    seen_before = 0 if reopened or source not in self._sources else getattr(before, attribute)
                    self._counts[metric][source,] += getattr(now, attribute) - seen_before
                self._sources[source] = now

    def _topic(self, name: str) -> str:
        """Label of a topic. It never changes, or the sum under `_other` could decrease."""
        if name not in self._own_topics:
            if len(self._own_topics) >= self._limits.topics_max:
                return OTHER
            self._own_topics.add(name)
        return name

    # what is shown

    def families(
        self,
        writer: CountingWriter | None,
        published: PublishedState | None = None,
        kafka: KafkaPort | None = None,
    ) -> list[Family]:
        """All metrics as of now; `writer` is the present intake writer, `published` the state of the
        publisher of control events, `kafka` that of the Kafka listener.
        """
        now_us = self._clock.now_us()
        with self._lock:
            counted = [
                Family(name, {labels: float(count) for labels, count in found.items()})
                for name, found in self._counts.items()
            ]
            spread = Spread(COMMIT_BUCKETS_S, tuple(self._commits), self._commit_seconds)
            # Under the lock, so that two scrapes do not both add the totals of an earlier writer.
            watched, taken = self._watched, self._of_writer(writer)
            findings = [Family("archiver_findings", dict(self._findings))] if self._findings else []
        families = [
            Family("archiver_build_info", {(self._version, platform.python_version()): 1.0}),
            *counted,
            Family("archiver_commit_seconds", spread=spread),
            *taken,
            *findings,
            *self._of_journal(now_us),
            *([] if watched is None else _of_watch(watched, self._limits, now_us)),
            *([] if published is None else _of_published(published, now_us)),
            *([] if kafka is None else kafka_families(kafka)),
        ]
        # Filtered last: every family, also a new one, passes here.
        shown = [family for family in families if METRICS[family.name].shown in self._shown]
        by_name = {family.name: family for family in shown}
        # Old names of renamed metrics stay for one release.
        return shown + [replace(by_name[new], name=old) for old, new in ALIASES.items() if new in by_name]

    def _of_writer(self, writer: CountingWriter | None) -> list[Family]:
        """Metrics of the writer; its counters continue those of earlier writers."""
        # The earlier writer was closed; its final counts are the base of the next.
        if writer is not self._writer and self._writer is not None:
            self._writers_before.update(_totals(metrics_of(self._writer.metrics())))
        self._writer = writer
        now = {} if writer is None else metrics_of(writer.metrics())
        totals = Counter(self._writers_before)
        totals.update(_totals(now))
        return [Family(name, {(): float(value)}) for name, value in {**now, **totals}.items()]

    def _of_journal(self, now_us: int) -> list[Family]:
        journal = self._journal
        cycles: Counter[Labels] = Counter()
        seconds: Counter[Labels] = Counter()
        for (job, outcome), (count, took) in journal.sums().items():
            # Commands run jobs that have no schedule.
            labels = (job if job in JOBS else "other", outcome)
            cycles[labels] += count
            seconds[labels] += took  # type: ignore[assignment]
        newest = {job: cycle for job in JOBS if (cycle := journal.newest(job)) is not None}
        checks = journal.checks()
        families = [
            Family("archiver_ready", {(): float(journal.ready)}),
            Family("archiver_cycles_total", {labels: float(count) for labels, count in cycles.items()}),
            Family("archiver_cycle_seconds_total", {labels: float(took) for labels, took in seconds.items()}),
            Family(
                "archiver_cycle_age_seconds",
                {(job,): _age(cycle.began_us, now_us) for job, cycle in newest.items()},
            ),
            Family("archiver_cycle_last_seconds", {(job,): cycle.seconds for job, cycle in newest.items()}),
            Family("archiver_dependency_up", {(check.name,): float(check.ok) for check in checks}),
            Family(
                "archiver_dependency_age_seconds",
                {(check.name,): _age(check.since_us, now_us) for check in checks},
            ),
        ]
        for job in ("audit", "deep_audit"):
            audit = newest.get(job)
            verdict = None if audit is None else audit.document.get("verdict")
            # An audit that failed has no document, so the last verdict disappears with its age.
            if audit is not None and verdict in VERDICTS:
                families.append(
                    Family(f"archiver_{job}_verdict", {(one,): float(one == verdict) for one in VERDICTS})
                )
                families += gauge(f"archiver_{job}_age_seconds", _age(audit.began_us, now_us))
            # Only the fast audit counts undecoded values.
            if job == "audit" and audit is not None and "undecoded" in audit.document:
                undecoded: dict[tuple[str, ...], float] = {
                    (str(item["topic"]),): float(item["records"]) for item in audit.document["undecoded"]
                }
                families.append(Family("archiver_undecoded_values", undecoded))
        return families


_OF_TOPIC: Mapping[str, str] = {
    "archiver_archive_records_total": "rows",
    "archiver_archive_files_total": "archives",
    "archiver_archive_raw_bytes_total": "raw_bytes",
    "archiver_archive_stored_bytes_total": "stored_bytes",
    "archiver_archive_gap_offsets_total": "gaps",
}
"""Field of a topic's report for each metric."""
_OF_SOURCE: Mapping[str, str] = {
    "archiver_source_files_total": "files",
    "archiver_source_records_total": "records",
    "archiver_source_bytes_total": "bytes",
}
"""Field of a source's numbers for each metric."""


def _totals(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if METRICS[name].kind == "counter"}


def _age(since_us: int, now_us: int) -> float:
    # Not below 0: the wall clock may have been set back.
    return max(0, now_us - since_us) / 1e6


def _of_watch(seen: Watched, limits: MetricsSettings, now_us: int) -> list[Family]:
    logs: Sequence[tuple[str, dict[str, int]]] = (
        ("archiver_log_floor", {name: log.floor for name, log in seen.logs.items()}),
        ("archiver_log_tail", {name: log.tail for name, log in seen.logs.items()}),
        ("archiver_log_entries", {name: log.tail - log.floor for name, log in seen.logs.items()}),
    )
    families = [
        *gauge("archiver_watch_age_seconds", _age(seen.seen_us, now_us)),
        *gauge("archiver_leader", seen.leader),
        *gauge("archiver_epoch", seen.epoch),
        *gauge("archiver_deletion_pending_objects", seen.condemned),
        *gauge("archiver_checkpoint_index", seen.checkpoint_index),
        *(
            Family(metric, {(name,): float(number) for name, number in numbers.items()})
            for metric, numbers in logs
            if numbers
        ),
        *([] if seen.standing is None else standing_families(seen.standing, limits, now_us)),
        *([] if seen.groups is None else group_families(seen.groups)),
        *gauge(
            # By the present time, because the clock runs on since the report.
            "archiver_intake_log_ahead_seconds",
            None if seen.standing is None else max(0.0, (seen.standing.newest_us - now_us) / 1e6),
        ),
        *gauge("archiver_intake_producers", None if seen.standing is None else seen.standing.producers),
        *_of_sources(seen.sources),
    ]
    if seen.pin is not None:
        families.append(
            Family(
                "archiver_intake_oldest_required_age_seconds",
                {(seen.pin.topic, str(seen.pin.partition)): seen.pin.age_s(now_us)},
            )
        )
    # Known, and no file is required: 0 and not an absent series.
    elif seen.pin_known:
        families.append(Family("archiver_intake_oldest_required_age_seconds", {("", ""): 0.0}))
    return families


def _of_published(state: PublishedState, now_us: int) -> list[Family]:
    families = gauge("archiver_control_topic_events_total", state.events)
    # Of a daemon that does not publish, the state is unknown and not down.
    if state.holder is None and (state.lag is not None or state.trouble is not None):
        families += gauge("archiver_control_topic_up", state.trouble is None)
    if state.holder is None and state.lag is not None:
        families += gauge("archiver_control_topic_lag_entries", state.lag)
        families += gauge(
            "archiver_control_topic_lag_seconds",
            0.0 if state.since_us is None else _age(state.since_us, now_us),
        )
    return families


def _of_sources(sources: Mapping[str, SourceNumbers]) -> list[Family]:
    if not sources:
        return []
    waiting: dict[Labels, float] = {
        (name, state): float(getattr(source, state))
        for name, source in sources.items()
        for state in FILE_STATES
        if not source.mirror
    }
    mirrors = {name: source for name, source in sources.items() if source.mirror}
    families = [
        Family("archiver_source_up", {(name,): float(source.up) for name, source in sources.items()}),
        Family("archiver_source_files", waiting),
        Family(
            "archiver_mirror_stopped", {(name,): float(source.failed) for name, source in mirrors.items()}
        ),
        Family(
            "archiver_mirror_lag_offsets",
            {(name,): float(one.behind) for name, one in mirrors.items() if one.behind is not None},
        ),
    ]
    return [family for family in families if family.samples]
